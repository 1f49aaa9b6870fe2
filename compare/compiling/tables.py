"""The output of a compile: progress on stderr, a table per architecture, the problems, totals."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from compare.checking.printing import date, environment
from compare.compiling import cross_compile
from compare.compiling.cross_compile import Kernel, Row
from compare.compiling.machine_code import SHARED_LIMIT, Figures
from compare.ops import spec_of

COLUMNS = ("regs", "spill\nstack", "shared", "ld/st", "tensor")


@dataclass
class Report:
    """The result of a compile. ``reasons``: a side, or side and op, → why it was not compiled."""

    rows: list[Row]
    archs: list[str]
    reasons: dict[str, str]
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        fine = all(reason for row in self.rows for _, _, reason in row.problems())
        return fine and bool(self.rows)

    def to_dict(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "environment": environment(),
            "date": date(),
            "archs": {arch: {"shared_limit": SHARED_LIMIT[arch]} for arch in self.archs},
            "not_compiled": self.reasons,
            "seconds": round(self.seconds, 1),
            "rows": [row.to_dict() for row in self.rows],
        }


def run(
    ops: list[str], archs: list[str], sides: list[str], full: bool = False, asm: str = ""
) -> Report:
    """Compile with a progress bar, then print the tables and the problems."""
    start = time.perf_counter()
    reasons = {}
    if "cuda" in sides and (reason := cross_compile.nvcc_missing()):
        reasons["cuda"] = reason
        sides = [side for side in sides if side != "cuda"]
    for op in ops if "cuda" in sides else ():
        if why := cross_compile.sourceless(spec_of(op)):
            reasons[f"cuda, {op}"] = why
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with progress:
        units = cross_compile.units(ops, archs, sides, full, asm)
        task = progress.add_task("compile", total=len(units))
        rows = cross_compile.compile_all(units, lambda: progress.advance(task))
    launching = {row.op for row in rows if row.triton}
    for op in ops if "triton" in sides else ():
        if op not in launching:
            what = "it launched no Triton kernel" if spec_of(op).triton else "it has no Triton side"
            reasons[f"triton, {op}"] = what
    report = Report(rows, archs, reasons, time.perf_counter() - start)
    console = Console()
    if not console.is_terminal:  # rich assumes 80 columns in a log file, which are too few
        console = Console(width=120)
    for arch in archs:
        console.print(table(arch, [row for row in rows if row.arch == arch], sides))
        console.print()
    _print_findings(console, report)
    return report


def table(arch: str, rows: list[Row], sides: list[str]) -> Table:
    """The table of one architecture's rows, with columns for the given sides."""
    limit = SHARED_LIMIT[arch]
    shown = Table(
        title=f"{arch}, {limit} bytes of shared memory a block",
        title_justify="left",
        title_style="bold",
        box=None,
        header_style="bold",
        padding=(0, 1, 0, 0),
    )
    shown.add_column("dtype", no_wrap=True)
    shown.add_column("kernel")  # only this column wraps, so that no figure is broken
    for side in sides:
        for i, column in enumerate(COLUMNS):
            title = {"triton": "Triton\n", "cuda": "CUDA\n"}[side] if i == 0 else ""
            shown.add_column(title + column, justify="right", no_wrap=True, vertical="bottom")
    op = ""
    for row in rows:
        if row.op != op:  # rows of compile_report have no op
            op = row.op
            shown.add_row(f"[bold]{op}[/]")
        cells = []
        for side in sides:
            kernel = row.triton if side == "triton" else row.cuda
            cells += _cells(kernel, limit)
        shown.add_row(row.dtype, row.label, *cells)
    return shown


def _cells(kernel: Kernel | None, limit: int) -> list[str]:
    if kernel is None or kernel.figures is None:
        return ["–" if kernel is None else "[red]fails[/]", *[""] * (len(COLUMNS) - 1)]
    figures = kernel.figures
    return [
        str(figures.registers),
        _local(figures),
        f"[red]{figures.shared}[/]" if figures.shared > limit else str(figures.shared or "·"),
        f"{_widest(figures.loads)}/{_widest(figures.stores)}",
        " ".join(figures.tensor) or "·",
    ]


def _local(figures: Figures) -> str:
    """Spilled bytes / bytes of the stack frame."""
    if not figures.stack:
        return "·"
    return f"[red]{figures.spills}[/]/{figures.stack}" if figures.spills else f"0/{figures.stack}"


def _widest(accesses: dict[str, int]) -> str:
    if "bulk" in accesses:
        return "bulk"
    return str(max(map(int, accesses), default="–"))


def _print_findings(console: Console, report: Report) -> None:
    plain: dict[str, Any] = {"highlight": False, "markup": False, "soft_wrap": True}
    failing = 0
    accepted: dict[str, dict[str, list[str]]] = {}  # reason → where → what
    for row in report.rows:
        for side, problem, reason in row.problems():
            where = f"{row.op} {row.dtype} {row.label}"
            if reason:
                problems_there = accepted.setdefault(reason, {}).setdefault(f"{side} {where}", [])
                problems_there.append(f"{row.arch} {problem}")
                continue
            failing += 1
            console.print(f"[red bold]{row.arch} {side}[/] ", end="", highlight=False)
            console.print(f"{where}: {problem}", **plain)
    for reason, problems in accepted.items():
        console.print(f"accepted: {reason}:", **plain)
        for where, problems_there in problems.items():
            console.print(f"  {where}: {', '.join(problems_there)}", **plain)
    for side, reason in report.reasons.items():
        console.print(f"not compiled: {side}: {reason}", **plain)
    console.print(
        "spill and stack: bytes per thread; shared: bytes per block; ld/st: the widest access to "
        "global memory, in bits; ·: none",
        **plain,
    )
    # A CUDA kernel may be in several rows; it counts once.
    kernels = sum(row.triton is not None for row in report.rows)
    kernels += len({(row.arch, row.op, row.cuda.name) for row in report.rows if row.cuda})
    words = f"{failing} of them FAIL" if failing else "all fit"
    spills = sum(
        len(problems_there)
        for problems in accepted.values()
        for problems_there in problems.values()
    )
    words += f", {spills} accepted spills" if spills else ""
    words = words if kernels else "nothing was compiled"
    colour = "green" if report.passed else "red"
    versions = environment()
    console.print(
        f"[{colour} bold]{words}[/]: {kernels} kernels for {', '.join(report.archs)}, "
        f"{report.seconds:.0f} s; triton {versions['triton']}",
        highlight=False,
    )
