"""``python -m compare timing``: right and wrong ways to time a kernel, shown on one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from compare.checking.printing import environment
from compare.checking.progress import Bar
from compare.commands.options import (
    Target,
    check_writable,
    need_gpu,
    need_gpu_memory,
    one_named,
    spec_named,
    timed_case,
)
from compare.numerics import json_safe
from compare.timing import bench
from compare.timing.tables import console, number
from compare.timing.tutorial import TECHNIQUES, TRIES, TeachingGpu, Technique, teach


def timing(
    op: Annotated[str, typer.Option(help="The op whose Triton kernel is timed.")] = "relu_scale",
    target: Target = None,
    dtype: Annotated[
        str | None, typer.Option(help="Its dtype; float16 if it has that.", show_default=False)
    ] = None,
    shape: Annotated[
        str | None, typer.Option(help="Its shape: 2048,2048 or M,N,K; a timed one by default.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Samples of each technique.", min=3)] = 50,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be measured; needs no GPU.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write all samples there.")
    ] = None,
) -> None:
    """Time one kernel with every common technique, and say what each of them measures.

    Exit status: 0 all right, 2 usage, 3 no GPU, or none of its memory free.
    """
    check_writable(json_file)
    spec = spec_named(op if target is None else one_named(None, target))
    if spec.triton is None:
        raise typer.BadParameter(f"{spec.name} has no Triton side")
    case = timed_case(spec, dtype, shape)
    if dry_run:
        typer.echo(f"{case}, triton: {samples} samples of each, {TRIES} tries of a ratio")
        width = max(len(f"{topic}: {name}") for topic, name, _ in TECHNIQUES.values())
        for topic, name, how in TECHNIQUES.values():
            typer.echo(f"  {f'{topic}: {name}':<{width}}  {how}")
        return
    need_gpu("time")
    with need_gpu_memory("time"):
        args, kwargs = bench.inputs(spec, case, 0)
        device = TeachingGpu()
    with Bar("timing", "techniques") as bar:
        techniques = teach(lambda: spec.triton(*args, **kwargs), device, samples, tick=bar.update)
    out = console()
    out.print(f"{case}, triton, by {samples} samples of each technique\n", style="bold")
    out.print(table(techniques))
    if json_file:
        report = {
            "environment": environment(),
            "case": str(case),
            "techniques": {key: technique.to_dict() for key, technique in techniques.items()},
        }
        json_file.write_text(json.dumps(json_safe(report), indent=1) + "\n")


def table(techniques: dict[str, Technique]) -> Table:
    """One line per technique, by topic: median, 20 to 80 % of the samples, and the sentence."""
    rows = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    rows.add_column("", no_wrap=True)
    for name in ("µs", "20–80 %"):
        rows.add_column(name, justify="right", no_wrap=True)
    rows.add_column("")
    title = ""
    for key, technique in techniques.items():
        if technique.topic != title:
            title = technique.topic
            rows.add_row(Text(title, style="bold"))
        rows.add_row("  " + technique.name, *_figures(key, technique), technique.says)
    return rows


def _figures(key: str, technique: Technique) -> tuple[str, str]:
    if not technique.samples:
        return "–", ""
    if key in ("sequential", "interleaved"):
        low, high = technique.percentile(20), technique.percentile(80)
        return f"× {technique.median:.3f}", f"{low:.3f}–{high:.3f}"
    if len(technique.samples) == 1:
        return number(technique.median), ""
    low, high = technique.percentile(20), technique.percentile(80)
    return number(technique.median), f"{number(low)}–{number(high)}"
