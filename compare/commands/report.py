"""``python -m compare report``: one HTML page of what check, bench and compile found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compare.commands.options import check_writable
from compare.reporting import page, sources
from compare.reporting.sources import ReportError


def report(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE", help="Files of --json; those in docs/benchmarks by default."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Write the page there.")] = Path("report.html"),
    picture: Annotated[
        Path | None, typer.Option(help="Write only one picture of all speed-ups there, as SVG.")
    ] = None,
) -> None:
    """Make one self-contained HTML page from the JSON files of check, bench and compile.

    Needs no GPU. Exit status: 0 written, 2 a file that is none of these, or a missing package.
    """
    target, option = (picture, "--picture") if picture else (out, "--out")
    check_writable(target, option)
    try:
        page.check_packages()
        found = sources.read(files or [])
        page.write(target, page.picture(found) if picture else page.html(found))
    except ReportError as error:
        typer.echo(f"report: {error}", err=True)
        raise typer.Exit(2) from None
    names = ", ".join(source.name for source in found)
    typer.echo(f"{target}: {target.stat().st_size / 1000:.0f} kB from {names}")
