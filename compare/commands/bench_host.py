"""``python -m compare bench --host``: the host time of a call, compared with torch's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from compare.commands.options import write_json
from compare.specs import Spec
from compare.timing import host, saved, tables
from compare.timing.host import PROVIDERS, TORCH, Effort, HostTime, Job

DTYPES = ("float32", "bfloat16")


def jobs(specs: Sequence[Spec], dtypes: Sequence[str], model: bool) -> list[Job]:
    """The rows to measure; an error if the ops have none."""
    rows = host.jobs(specs, dtypes or DTYPES, model)
    if not rows:
        raise typer.BadParameter("--host: these ops have no small cases of these dtypes")
    return rows


def providers(wanted: Sequence[str]) -> list[str]:
    """The providers that --providers names; torch is always among them."""
    for name in wanted:
        if name not in PROVIDERS:
            raise typer.BadParameter(f"--providers {name}: with --host {', '.join(PROVIDERS)}")
    return [name for name in PROVIDERS if name == TORCH or name in wanted or not wanted]


def run(jobs: Sequence[Job], names: Sequence[str], effort: Effort, file: Path | None) -> bool:
    """Measure, print, and save however it ends. Returns whether all results were right."""
    out = tables.console()
    report: dict[str, Any] = {
        "environment": saved.environment(),
        "sources": saved.sources(),
        "rounds": effort.rounds,
        "seconds": 0.0,
        "ended": "",
        "host": [],
    }
    rows: list[HostTime] = []
    begin = time.perf_counter()

    def keep() -> None:
        report["seconds"] = time.perf_counter() - begin
        if file:
            write_json(file, report)

    with tables.progress(out) as progress:
        task = progress.add_task("", total=len(jobs))
        try:
            for job in jobs:
                progress.update(task, description=f"{job.case.op} {job.case.dtype}, {job.what}")
                if (row := host.measure(job, names, effort)) is not None:
                    rows.append(row)
                    report["host"].append(row.to_dict())
                    keep()  # before a compiler, which a signal may end together with this process
                progress.advance(task)
        except KeyboardInterrupt:
            report["ended"] = "interrupted"
        except BaseException as error:
            report["ended"] = type(error).__name__
            raise
        finally:
            keep()
    out.print(table(rows, names))
    for row in rows:
        for provider, problem in row.problems.items():
            told = f"{row.op} {row.dtype}, {row.what}: {provider}: {problem}"
            out.print(told, style="yellow", markup=False)
    if report["ended"]:
        out.print(f"interrupted: {len(rows)} of {len(jobs)} rows", markup=False)
    return not any(row.problems for row in rows)


def table(rows: Sequence[HostTime], names: Sequence[str]) -> Table:
    """One line per row: microseconds per call of each provider, and the multiple of torch's."""
    shown = Table(
        title="Host time of a call, µs, and times torch's", title_justify="left", box=None
    )
    for name in ("op", "dtype", "shape", "call"):
        shown.add_column(name, no_wrap=True)
    for name in names:
        shown.add_column(name, justify="right", no_wrap=True)
        if name != TORCH:
            shown.add_column("× torch", justify="right", no_wrap=True)
    for row in rows:
        options = "".join(f" {name}={value}" for name, value in row.options.items())
        cells = [row.op, row.dtype, "×".join(map(str, row.shape)) + options, row.what]
        for name in names:
            samples = row.times.get(name)
            cells.append(f"{samples.median:.1f}" if samples else "–")
            if name != TORCH:
                against = row.against(name)
                cells.append(f"{against[0]:.2f}" if against else "–")
        shown.add_row(*cells)
    return shown
