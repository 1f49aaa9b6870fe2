"""The output of mutate: progress, survivors as they occur, a table by file, the score last."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from compare.checking.printing import date, environment
from compare.mutation import explained, planting
from compare.mutation.explained import Explanation
from compare.mutation.mutant import Mutant
from compare.mutation.planting import ENDS, Plan, Trial

COLUMNS = ("killed", "explained", *(end for end in ENDS if end != "killed"))
KEEP = 30  # seconds


@dataclass
class Report:
    """The ends of all trials, and the explanations of survivors."""

    trials: list[Trial]
    known: list[Explanation]
    options: dict[str, Any]
    stale: list[Explanation] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False

    def explanation(self, trial: Trial) -> Explanation | None:
        """The explanation of a survivor, if there is one."""
        return explained.explanation(trial.mutant, self.known) if trial.end == "survived" else None

    @property
    def survivors(self) -> list[Mutant]:
        return [trial.mutant for trial in self.trials if trial.end == "survived"]

    @property
    def open(self) -> list[Trial]:
        """The survivors without an explanation."""
        return [t for t in self.trials if t.end == "survived" and self.explanation(t) is None]

    @property
    def score(self) -> float:
        """killed / (killed + survivors without an explanation)."""
        killed = sum(trial.end == "killed" for trial in self.trials)
        return killed / max(1, killed + len(self.open))

    @property
    def passed(self) -> bool:
        return not (self.open or self.stale or self.interrupted)

    def to_dict(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "interrupted": self.interrupted,
            "environment": environment(),
            "date": date(),
            "sources": planting.digest(),
            **self.options,
            "score": self.score,
            "ends": {end: sum(t.end == end for t in self.trials) for end in ENDS},
            "files": self.files(),
            "stale": [str(each) for each in self.stale],
            "seconds": round(self.seconds, 1),
            "rows": [self._row(trial) for trial in self.trials],
        }

    def files(self) -> dict[str, dict[str, int]]:
        """File → end → number of mutants. Explained survivors count as "explained"."""
        counts: dict[str, Counter[str]] = {}
        for trial in sorted(self.trials, key=lambda trial: trial.mutant.file):
            end = trial.end if self.explanation(trial) is None else "explained"
            counts.setdefault(trial.mutant.file, Counter())[end] += 1
        return {file: dict(ends) for file, ends in counts.items()}

    def summary(self) -> dict[str, Any]:
        """The report without the rows of killed mutants."""
        whole = self.to_dict()
        return whole | {"rows": [row for row in whole["rows"] if row["end"] != "killed"]}

    def _row(self, trial: Trial) -> dict[str, Any]:
        why = self.explanation(trial)
        return {
            **_named(trial.mutant),
            "end": trial.end,
            "explained": why and {"reason": why.reason, "because": why.because},
            "says": trial.says,
            "by": trial.by,
            "cases": trial.cases,
            "seconds": round(trial.seconds, 1),
        }


def _named(mutant: Mutant) -> dict[str, Any]:
    """The fields that identify a mutant, for people."""
    before, after = mutant.statement
    return {
        "file": mutant.file,
        "line": mutant.line,
        "function": mutant.function,
        "kind": mutant.edit.kind,
        "statement": before,
        "mutant": after,
    }


def load(file: Path, **options: Any) -> dict[str, Any]:
    """The content of a file of ``to_dict``. Raises ValueError for other sources or options."""
    before: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    for name, value in {"sources": planting.digest(), **options}.items():
        if before.get(name) != value:
            raise ValueError(f"{file}: of other {name}")
    return before


def trials(before: dict[str, Any], mutants: list[Mutant]) -> dict[Mutant, Trial]:
    """The saved trials of these mutants."""
    names = ("file", "line", "function", "kind", "statement", "mutant")  # as _named has them
    rows = {tuple(row[name] for name in names): row for row in before["rows"]}
    ends = ("end", "says", "by", "cases", "seconds")
    return {
        mutant: Trial(mutant, *(row[name] for name in ends))
        for mutant in mutants
        if (row := rows.get(tuple(_named(mutant).values())))
    }


def left_over(
    before: dict[str, Any], mutants: list[Mutant], known: list[Explanation]
) -> list[Mutant]:
    """The mutants that survived there, unless an explanation other than gpu covers them; and those
    that are not in the file."""
    ended = {mutant: trial.end for mutant, trial in trials(before, mutants).items()}
    whys = {mutant: explained.explanation(mutant, known) for mutant in mutants}
    return [
        mutant
        for mutant, why in whys.items()
        if mutant not in ended
        or (ended[mutant] == "survived" and (why is None or why.reason == "gpu"))
    ]


def run(
    mutants: list[Mutant],
    plan: Plan,
    jobs: int,
    known: list[Explanation],
    tried: Mapping[Mutant, Trial] = MappingProxyType({}),
    seconds: float | None = None,
    keep: Callable[[Report], None] = lambda report: None,
    **options: Any,
) -> Report:
    """Try every mutant with a progress bar, print survivors as they occur, then the table. Mutants
    in ``tried`` are not tried again.

    For a whole population, an entry that explains a killed mutant is stale. Ctrl-C keeps the trials
    that have ended, and so does the time limit, which is checked after each trial. ``keep`` gets
    the report every half minute.
    """
    console = Console()
    if not console.is_terminal:  # a log file has room; rich would assume 80 columns
        console = Console(width=120)
    report = Report([tried[mutant] for mutant in mutants if mutant in tried], known, options)
    began = kept = time.perf_counter()
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    place = {mutant: at for at, mutant in enumerate(mutants)}
    # Survivors take longest, so the expected ones start first.
    left = [mutant for mutant in mutants if mutant not in tried]
    left.sort(key=lambda each: explained.explanation(each, known) is None)
    with progress, contextlib.suppress(KeyboardInterrupt):
        task = progress.add_task("mutate", total=len(mutants), completed=len(report.trials))
        for trial in planting.run(left, plan, jobs):
            report.trials.append(trial)
            if not console.is_terminal:  # without a bar, a line per trial shows that it is alive
                count = f"{len(report.trials)} of {len(mutants)}"
                print(f"{count}: {trial.end}: {trial.mutant}", file=sys.stderr, flush=True)
            if trial.end == "survived" and report.explanation(trial) is None:
                _print_survivor(console, trial)
            ends = Counter(trial.end for trial in report.trials)
            said = ", ".join(f"{end} {ends[end]}" for end in ENDS if ends[end])
            progress.update(task, advance=1, description=said)
            now = time.perf_counter()
            report.seconds, report.interrupted = now - began, len(report.trials) < len(mutants)
            if seconds is not None and report.seconds > seconds:
                break
            if now - kept > KEEP:
                keep(report)
                kept = now
    report.interrupted = len(report.trials) < len(mutants)
    report.trials.sort(key=lambda trial: place[trial.mutant])
    report.seconds = time.perf_counter() - began
    return report


def _print_survivor(console: Console, trial: Trial) -> None:
    cases = trial.says or f"{trial.cases} cases"
    console.print(f"[red bold]survived[/] {cases}: {trial.mutant}", highlight=False)
    console.print(trial.mutant.diff, markup=False, highlight=False, soft_wrap=True)
    before, after = trial.mutant.statement
    console.print(f"  statement: {before}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"  mutant: {after}\n", markup=False, highlight=False, soft_wrap=True)
    console.file.flush()


def print_report(report: Report) -> None:
    """The table by file, then stale entries, then the score."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("file", no_wrap=True)
    for name in ("mutants", *COLUMNS):
        table.add_column(name, justify="right")
    for file, ends in report.files().items():
        counts = (sum(ends.values()), *(ends.get(end, 0) for end in COLUMNS))
        table.add_row(file, *map(str, counts))
    console.print(table)
    for end in ("timed out", "did not compile"):
        for trial in (trial for trial in report.trials if trial.end == end):
            text = f"{end}: {trial.mutant}: {trial.says[:80]}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)
    for each in report.stale:
        text = f"stale: {each}: no such mutant survives; take the entry out"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    if report.interrupted:
        console.print("interrupted: not all mutants were tried; --resume goes on with the file")
    killed = sum(trial.end == "killed" for trial in report.trials)
    colour = "green" if report.passed else "red"
    console.print(
        f"[{colour} bold]score {100 * report.score:.1f} %[/]: {killed} killed of "
        f"{killed + len(report.open)} that nobody has explained; {len(report.trials)} mutants, "
        f"{report.seconds:.0f} s",
        highlight=False,
    )
