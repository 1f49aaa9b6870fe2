"""``python -m compare bench``: how long every implementation takes, beside everyone else's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from compare.commands.options import check_writable, listed, spec_named
from compare.numerics import json_safe
from compare.printing import environment
from compare.specs import SPECS
from compare.timing import bench as benchmarks
from compare.timing import gpu, providers, tables
from compare.timing.engine import Budget

NOTHING_TO_TIME = 3  # exit status


def bench(
    ops: Annotated[
        list[str] | None, typer.Argument(metavar="OP", help="Ops to time; all by default.")
    ] = None,
    wanted: Annotated[
        list[str] | None,
        typer.Option(
            "--providers", help="Only these: triton, cuda/tiled, eager, …; or ours, peers."
        ),
    ] = None,
    shapes: Annotated[
        list[str] | None, typer.Option(help="These shapes instead: 4096,4096 or 512,4096,1024.")
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only these dtypes.")] = None,
    samples: Annotated[int, typer.Option(help="Samples of each candidate.", min=3)] = 60,
    seconds: Annotated[float, typer.Option(help="Or so many seconds of each a case.")] = 1.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be timed; needs no GPU.")
    ] = False,
    baseline: Annotated[
        Path | None, typer.Option(help="A file of --json; slower than it means exit status 1.")
    ] = None,
    threshold: Annotated[float, typer.Option(help="How much slower, in per cent.")] = 5.0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write everything there.")
    ] = None,
) -> None:
    """Time the ops on the GPU: cold cache, random inputs, results checked, candidates in turn.

    A ratio is the fastest peer's median over this one's, with half its 95 % interval: above 1 is
    faster. Ctrl-C keeps what is measured. Exit status: 0 all right; 1 a wrong result, one of
    ours that did not run, or a regression; 2 usage; 3 no GPU.
    """
    check_writable(json_file)
    specs = [spec_named(name) for name in ops or SPECS]
    names = listed(wanted)
    known = {name for spec in specs for name in providers.names(spec)} | {"ours", "peers"}
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"--providers {name}: {', '.join(sorted(known))}")
    for name in listed(dtype):
        if name not in benchmarks.DTYPES:
            raise typer.BadParameter(f"--dtype {name}: one of {', '.join(benchmarks.DTYPES)}")
    work = list(benchmarks.work(specs, listed(dtype), [_shape(text) for text in shapes or []]))
    if not work:
        raise typer.BadParameter("these ops have other numbers of sizes than --shapes gives")
    before = _read(baseline) if baseline else None
    if dry_run:
        for spec, case in work:
            typer.echo(f"{case}: {', '.join(providers.names(spec, case, names))}")
        return
    if not torch.cuda.is_available():
        typer.echo(
            "nothing to time: no CUDA device (--dry-run shows what there would be)", err=True
        )
        raise typer.Exit(NOTHING_TO_TIME)
    results: list[benchmarks.CaseResult] = []
    interrupted, report = False, _Report()
    try:
        _run(work, names, Budget(samples, seconds), results, report)
    except KeyboardInterrupt:
        interrupted = True
    out = tables.console()
    out.print(tables.summary(results))
    if interrupted:
        out.print(f"interrupted: {len(results)} of {len(work)} cases are timed")
    found = report.to_dict(results)
    if json_file:
        json_file.write_text(json.dumps(json_safe(found), indent=1) + "\n")
    slower = tables.regressions(found["cases"], before, threshold / 100) if before else []
    for line in slower:
        out.print(f"[red]{line}[/]")
    failed = any(entry.failed for result in results for entry in result.entries)
    raise typer.Exit(1 if slower or failed else 0)


class _Report:
    """What stands above the cases in the JSON file."""

    def __init__(self) -> None:
        self.before: dict[str, Any] = {}
        self.after: dict[str, Any] = {}
        self.ceilings: gpu.Ceilings | None = None

    def to_dict(self, results: list[benchmarks.CaseResult]) -> dict[str, Any]:
        return {
            "environment": environment(),
            "state_before": self.before,
            "state_after": self.after,
            "ceilings": self.ceilings and self.ceilings.to_dict(),
            "cases": [result.to_dict() for result in results],
        }


def _run(
    work: list[Any],
    names: list[str],
    budget: Budget,
    results: list[benchmarks.CaseResult],
    report: _Report,
) -> None:
    out = tables.console()
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=out,
        transient=True,
    )
    with progress:
        task = progress.add_task("what the device can do", total=len(work))
        device = gpu.Gpu()
        report.before, report.ceilings = gpu.state(), gpu.ceilings()
        out.print(_heading(report))
        for spec, case in work:

            def tick(name: str, what: str = f"{case.op} {case.dtype}") -> None:
                progress.update(task, description=f"{what} {name}")

            result = benchmarks.run_case(spec, case, names, device, report.ceilings, budget, tick)
            results.append(result)
            out.print(tables.block(result))
            progress.advance(task)
            torch.cuda.empty_cache()
            report.after = gpu.state()


def _heading(report: _Report) -> str:
    assert report.ceilings is not None
    rates = ", ".join(f"{k} {v / 1e12:.0f} TFLOP/s" for k, v in report.ceilings.rates.items())
    clock, power = (report.before.get(k) for k in ("sm_clock_mhz", "power_w"))
    return (
        f"{report.ceilings.name}: copy {report.ceilings.bandwidth / 1e9:.0f} GB/s, {rates}; "
        f"{clock} MHz, {power} W\n"
    )


def _shape(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(word) for word in text.replace("x", ",").split(","))
    except ValueError:
        raise typer.BadParameter(f"--shapes {text}: sizes with commas, as 4096,4096") from None
    if any(n < 1 for n in sizes):
        raise typer.BadParameter(f"--shapes {text}: sizes are positive")
    return sizes


def _read(file: Path) -> list[dict[str, Any]]:
    try:
        cases: list[dict[str, Any]] = json.loads(file.read_text())["cases"]
    except (OSError, ValueError, KeyError) as error:
        raise typer.BadParameter(f"--baseline {file}: no file of bench --json ({error})") from None
    return cases
