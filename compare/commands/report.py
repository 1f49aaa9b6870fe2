"""``python -m compare report``: one HTML page with the results of the other commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compare.commands.options import check_writable
from compare.reporting import facts, page, sources
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
    facts_file: Annotated[
        Path | None,
        typer.Option("--facts", help="Only rewrite the tables in this Markdown file."),
    ] = None,
) -> None:
    """Make one self-contained HTML page from the JSON files of check, mutate, bench, profile and
    compile.

    Needs no GPU. Exit status: 0 written, 2 a file that is none of these, or a missing package.
    """
    if picture and facts_file:
        raise typer.BadParameter("--picture and --facts are two files: make one after the other")
    target, option = (picture, "--picture") if picture else (out, "--out")
    target, option = (facts_file, "--facts") if facts_file else (target, option)
    check_writable(target, option)
    try:
        if not facts_file:
            page.check_packages()
        files_read = sources.read(files or [])
        if facts_file:
            page.write(facts_file, facts.rewritten(_document(facts_file), files_read))
        else:
            page.write(target, page.picture(files_read) if picture else page.html(files_read))
    except ReportError as error:
        typer.echo(f"report: {error}", err=True)
        raise typer.Exit(2) from None
    names = ", ".join(source.name for source in files_read)
    typer.echo(f"{target}: {target.stat().st_size / 1000:.0f} kB from {names}")


def _document(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ReportError(f"--facts {file}: {error}") from None
