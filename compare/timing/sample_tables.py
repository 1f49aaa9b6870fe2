"""What a sample looks like in a terminal: a line a stratum, and the worst problems with replays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from compare.timing import distributions
from compare.timing.bench import Work
from compare.timing.distributions import LOW, OURS, Standing
from compare.timing.engine import CONTROL
from compare.timing.results import CaseResult

CLOSE = 0.02  # of a mean: not told from the control's by colour


def distribution(out: Console, results: Sequence[CaseResult]) -> None:
    """A table an op: ours and the control in every stratum and in all; below, the worst of each."""
    ours = _by_op(distributions.standings(results, OURS))
    control = _by_op(distributions.standings(results, CONTROL))
    for op, strata in ours.items():
        table = Table(
            title=f"{op}: × best peer, {OURS} and beside it the control, the best peer once more",
            title_justify="left",
            title_style="bold",
            box=None,
            header_style="dim",
            padding=(0, 2, 0, 0),
        )
        table.add_column("stratum", no_wrap=True)
        columns = ("problems", "mean", f"{LOW} %", "worst three", "mean", f"{LOW} %", "worst three")
        for i, name in enumerate(columns):
            style = "dim" if i > 3 else None
            table.add_column(name, justify="right", no_wrap=True, style=style)
        pairs = list(zip(strata, control[op]))
        if len(pairs) > 1:
            everything = distributions.together(strata), distributions.together(control[op])
            pairs.append(everything)
        for own, twin in pairs:
            count = f"{len(own.problems)}" + (
                f" of {own.missing + len(own.problems)}" if own.missing else ""
            )
            table.add_row(own.stratum, count, *_figures(own, twin), *_figures(twin))
        out.print(table)
        out.print()
        for own in strata:
            for problem in own.worst:
                line = (
                    f"[bold]{problem.ratio:.3f}[/] of {problem.best_peer}, {escape(own.stratum)}: "
                )
                out.print(line + escape(distributions.replay(problem.case)), soft_wrap=True)
        out.print()


def _figures(own: Standing, other: Standing | None = None) -> tuple[str, str, str]:
    if not own.problems:
        return "–", "–", "–"
    worst = " ".join(f"{problem.ratio:.2f}" for problem in own.worst)
    mean = f"{own.mean:.3f}"
    if other is not None and other.problems:
        apart = own.mean / other.mean
        colour = "green" if apart > 1 + CLOSE else "red" if apart < 1 - CLOSE else "default"
        mean = f"[{colour}]{mean}[/]"
    return mean, f"{own.low:.2f}", worst


def _by_op(standings: Sequence[Standing]) -> dict[str, list[Standing]]:
    groups: dict[str, list[Standing]] = {}
    for each in standings:
        groups.setdefault(each.op, []).append(each)
    return groups


def problems(works: Sequence[tuple[Work, Any]], out: Console) -> None:
    """What would be timed, stratum by stratum, each with its providers and its replay line."""
    specs = {work.case.op: work.spec for work, _ in works}
    groups: dict[tuple[str, str], list[tuple[Work, Any]]] = {
        (op, stratum): [] for op, spec in specs.items() for stratum in spec.strata
    }
    for work, names in works:
        groups.setdefault((work.case.op, work.stratum), []).append((work, names))
    for (op, stratum), group in groups.items():
        out.print(f"[bold]{op}, {escape(stratum)}[/]: {len(group)}")
        for work, names in group:
            line = f"  {work.case}: {', '.join(names)}\n    {distributions.replay(work.case)}"
            out.print(line, markup=False, soft_wrap=True)
