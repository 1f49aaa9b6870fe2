"""``python -m compare timing``: how to time a kernel, and how not to, shown on one of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from compare.checking.printing import environment
from compare.checking.progress import Bar
from compare.commands.options import check_writable, need_gpu, spec_named, timed_case
from compare.numerics import json_safe
from compare.timing import bench
from compare.timing.tables import console, number
from compare.timing.tutorial import TRIES, WAYS, Lesson, TeachingGpu, teach


def timing(
    op: Annotated[str, typer.Option(help="The op whose Triton kernel is timed.")] = "relu_scale",
    dtype: Annotated[str, typer.Option(help="Its dtype.")] = "float16",
    shape: Annotated[
        str | None, typer.Option(help="Its shape: 2048,2048 or M,N,K; a timed one by default.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Samples of each way.", min=3)] = 50,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be measured; needs no GPU.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write all samples there.")
    ] = None,
) -> None:
    """Time one kernel in every way that people do, and say what each time is of.

    Exit status: 0 all right, 2 usage, 3 no GPU.
    """
    check_writable(json_file)
    spec = spec_named(op)
    case = timed_case(spec, dtype, shape)
    if dry_run:
        typer.echo(f"{case}, triton: {samples} samples of each, {TRIES} tries of a ratio")
        width = max(len(f"{lesson}: {way}") for lesson, way, _ in WAYS.values())
        for lesson, way, how in WAYS.values():
            typer.echo(f"  {f'{lesson}: {way}':<{width}}  {how}")
        return
    need_gpu("time")
    args, kwargs = bench.inputs(spec, case, 0)
    device = TeachingGpu()
    with Bar("timing", "ways") as bar:
        lessons = teach(lambda: spec.triton(*args, **kwargs), device, samples, tick=bar.update)
    out = console()
    out.print(f"{case}, triton, by {samples} samples of each way\n", style="bold")
    out.print(table(lessons))
    if json_file:
        found = {
            "environment": environment(),
            "case": str(case),
            "lessons": {key: lesson.to_dict() for key, lesson in lessons.items()},
        }
        json_file.write_text(json.dumps(json_safe(found), indent=1) + "\n")


def table(lessons: dict[str, Lesson]) -> Table:
    """A line a way under its lesson: the median, 20 to 80 % of the samples, the sentence."""
    found = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    found.add_column("", no_wrap=True)
    for name in ("µs", "20–80 %"):
        found.add_column(name, justify="right", no_wrap=True)
    found.add_column("")
    title = ""
    for key, lesson in lessons.items():
        if lesson.lesson != title:
            title = lesson.lesson
            found.add_row(Text(title, style="bold"))
        found.add_row("  " + lesson.way, *_figures(key, lesson), lesson.says)
    return found


def _figures(key: str, lesson: Lesson) -> tuple[str, str]:
    if not lesson.samples:
        return "–", ""
    if key in ("sequential", "interleaved"):
        low, high = lesson.percentile(20), lesson.percentile(80)
        return f"× {lesson.median:.3f}", f"{low:.3f}–{high:.3f}"
    if len(lesson.samples) == 1:
        return number(lesson.median), ""
    low, high = lesson.percentile(20), lesson.percentile(80)
    return number(lesson.median), f"{number(low)}–{number(high)}"
