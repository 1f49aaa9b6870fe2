"""The output of a check: progress bar, table, mismatches, last line."""

from __future__ import annotations

import contextlib
import itertools
import math
import platform
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy
import torch
import triton
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import triton_kernels
from compare.cases import Case
from compare.checking import budgets, running, verdicts
from compare.checking.budgets import Budget
from compare.checking.implementations import BUILD_TARGETS, MODES, Implementation
from compare.checking.scheduling import InProcess, Run
from compare.checking.verdicts import Row
from compare.specs import Spec
from cuda_reference import _build

TITLES = {
    "triton-interpreted": "Triton\ninterp.",
    "triton-compiled": "Triton\ncompiled",
    "cuda-host": "CUDA\nhost",
    "cuda-gpu": "CUDA\nGPU",
}
SHOWN = 3  # mismatches printed for one op and dtype

Work = list[tuple[Spec, str, list[Case]]]


@dataclass
class Report:
    """The result of a check."""

    rows: list[Row]
    reasons: dict[str, str]
    missing: list[str] = field(default_factory=list)
    seconds: float = 0.0
    require_all: bool = False

    @property
    def passed(self) -> bool:
        complete = not (self.require_all and self.left_out)
        return all(row.passed for row in self.rows) and not self.missing and complete

    @property
    def left_out(self) -> int:
        """The number of cases that did not run on every implementation."""
        return sum(len(row.left_out) + len(row.too_large) for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "environment": environment(),
            "date": date(),
            "not_run": self.reasons,
            "required_but_missing": self.missing,
            "seconds": round(self.seconds, 1),
            "rows": [row.to_dict() for row in self.rows],
        }


def date() -> str:
    """The current time, for reports."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def environment() -> dict[str, str]:
    """Versions and devices, for reports."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "triton_kernels": triton_kernels.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "numpy": numpy.__version__,
        "cuda": torch.version.cuda or "none",
        "gpu": gpu,
    }


def run(
    work: Work,
    candidates: dict[str, list[Implementation]],
    reasons: dict[str, str],
    required: list[str],
    every_input: bool,
    limit: bool,
    require_all: bool,
    budget: Budget,
    runner: InProcess,
    console: Console | None = None,
) -> Report:
    """Build what is needed, run the cases with a progress bar, print the findings.

    ``limit`` leaves out cases that are too slow for an implementation, ``budget`` those that need
    too much memory. ``console`` is standard output by default.
    """
    quiet = console is not None
    console = console or Console()
    if not console.is_terminal and not quiet:  # a log file is wider than rich's default of 80
        console = Console(width=120)
    start = time.perf_counter()
    rows = [Row(spec.name, dtype, spec.in_ulps, spec.max_ulps or 0.0) for spec, dtype, _ in work]
    progress = Progress(
        TextColumn("{task.description:<34}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    with progress, _one_thread(), runner:
        _build_all(work, candidates, progress)
        task = progress.add_task("check", total=sum(len(chosen) for *_, chosen in work))

        def runs() -> Iterator[Run]:
            for (spec, _, chosen), row in zip(work, rows):
                for case in chosen:
                    able = verdicts.able(spec, case, candidates[spec.name], limit=limit)
                    able, too_large = budget.fitting(spec, case, able)
                    row.too_large += too_large
                    yield Run(spec, case, able)

        results = runner.results(runs())
        for (spec, dtype, chosen), row in zip(work, rows):
            progress.update(task, description=f"{spec.name} {dtype}")
            for result in itertools.islice(results, len(chosen)):
                row.add(result)
                # A case given by the user may cover fewer inputs, so it proves nothing.
                if limit and result.outcomes and result.case.values == "every":
                    row.proved = spec.every
                progress.advance(task)
            if every_input:
                progress.update(task, description=f"{spec.name} {dtype}, every input")
                began = time.perf_counter()
                runner.prove(spec, dtype, row, candidates[spec.name])
                row.seconds += time.perf_counter() - began
            row.left_out += runner.left_out(row)
            if not console.is_terminal and not quiet:
                # Without a bar, one line per row shows that the check is alive.
                said = f"{row.cases} cases, {row.seconds:.1f} s, {'pass' if row.passed else 'FAIL'}"
                print(f"{spec.name} {dtype}: {said}", file=sys.stderr)
        shown = [
            (spec, mismatch)
            for (spec, *_), row in zip(work, rows)
            for mismatch in row.telling(SHOWN)
            if mismatch.deviation is not None
        ]
        for (_, mismatch), program in zip(shown, runner.writers(shown)):
            mismatch.program_id = program
    ran = {mode for row in rows for mode in row.runs}
    ran |= {MODES[mode][0] for mode in ran}
    if torch.cuda.is_available() and not budget.gpu:
        reasons = {**reasons, "the GPU": "it is out of memory; other processes may use it"}
    if running.gpu_is_lost():
        reasons = {**reasons, "the rest on the GPU": "a kernel broke the CUDA context, see above"}
    report = Report(rows, reasons, [name for name in required if name not in ran])
    report.require_all = require_all
    report.seconds = time.perf_counter() - start
    _print(console, report)
    return report


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Run torch on one CPU thread. The cases are small: waking a second thread costs more than it
    gains, several times more on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _build_all(work: Work, candidates: dict[str, list[Implementation]], progress: Progress) -> None:
    """Build the CUDA sources first, all at once, so that no case waits for the compiler."""
    stems = list(dict.fromkeys(spec.stem for spec, *_ in work if not spec.own))
    modes = {implementation.mode for group in candidates.values() for implementation in group}
    for mode, target in BUILD_TARGETS.items():
        if mode in modes and stems:
            task = progress.add_task(f"build {mode}: {', '.join(stems)}"[:34], total=None)
            _build.build(stems, target)
            progress.remove_task(task)


def _print(console: Console, report: Report) -> None:
    modes = [mode for mode in MODES if any(mode in row.runs for row in report.rows)]
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("op", no_wrap=True)
    table.add_column("dtype", no_wrap=True)
    table.add_column("cases", justify="right", no_wrap=True)
    for mode in modes:
        table.add_column(TITLES[mode], justify="right", no_wrap=True)
    table.add_column("Triton\n= CUDA", no_wrap=True)
    table.add_column("coverage")
    table.add_column("verdict", no_wrap=True)
    for row in report.rows:
        worst = [_score(row, mode) for mode in modes]
        equal = {None: "–", True: "bitwise", False: "no"}[row.agree]
        coverage = row.proved or "sampled"
        verdict = "[green]pass[/]" if row.passed else "[red]FAIL[/]"
        table.add_row(row.op, row.dtype, str(row.cases), *worst, equal, coverage, verdict)
    console.print(table)
    if any(not row.exact for row in report.rows):
        console.print("b: worst error as a fraction of the op's derived bound", highlight=False)
    for row in report.rows:
        if not row.passed:
            console.print(f"\n[red bold]{row.op} {row.dtype}: {row.verdict()}[/]", highlight=False)
        shown = row.telling(SHOWN)
        for mismatch in shown:
            console.print(
                textwrap.indent(str(mismatch), "  "), highlight=False, markup=False, soft_wrap=True
            )
        if len(row.mismatches) > len(shown):
            console.print(f"  … and {len(row.mismatches) - len(shown)} more failing runs")
    for row in report.rows:
        for mode, (score, replay) in row.attacks.items():
            told = f"worst found, {row.op} {row.dtype}, {mode}: {_worded(row, score)}: {replay}"
            console.print(told, highlight=False, markup=False, soft_wrap=True)
    console.print()
    for mode, reason in report.reasons.items():
        console.print(f"not run: {mode}: {reason}", highlight=False, markup=False, soft_wrap=True)
    for row in report.rows:
        if row.launches == 0:
            told = f"{row.op} {row.dtype}: {running.NO_LAUNCH}"
            console.print(told, style="yellow", highlight=False, markup=False, soft_wrap=True)
    for text in (text for row in report.rows for text in row.left_out):
        console.print(f"left out: {text}", highlight=False, markup=False, soft_wrap=True)
    for text in budgets.summaries([each for row in report.rows for each in row.too_large]):
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    for name in report.missing:
        console.print(f"[red]required, but did not run: {name}[/]", highlight=False)
    runs = sum(sum(row.runs.values()) for row in report.rows)
    cases = sum(row.cases for row in report.rows)
    failed = sum(not row.passed for row in report.rows)
    words = f"{failed} of {len(report.rows)} rows FAIL" if failed else "all pass"
    if report.left_out:
        words += f"{',' if failed else ' but'} {report.left_out} left out"
    if report.left_out and report.require_all:
        words += ", and all are required"
    colour = "green" if report.passed else "red"
    versions = environment()
    console.print(
        f"[{colour} bold]{words}[/]: {cases} cases, {runs} runs, {report.seconds:.0f} s; "
        f"torch {versions['torch']}, triton {versions['triton']}, GPU {versions['gpu']}",
        highlight=False,
    )


def _score(row: Row, mode: str) -> str:
    if mode not in row.worst:
        return "–"
    return _worded(row, row.worst[mode])


def _worded(row: Row, worst: float) -> str:
    if not math.isfinite(worst):
        return "wrong"
    return f"{worst:.0f} ulp" if row.exact else f"{worst:.2f} b"
