"""Tables of a sample in a terminal: a line per stratum, and the worst problems with replays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from compare.timing import distributions, regret
from compare.timing.bench import Work
from compare.timing.distributions import LOW, OURS, Standing
from compare.timing.engine import CONTROL
from compare.timing.results import CaseResult
from compare.timing.scores import Standing as ScoreStanding

CLOSE = 0.02  # a mean this close to the control's gets no colour


def distribution(out: Console, results: Sequence[CaseResult]) -> None:
    """One table per op: ours and the control, per stratum and in all; then the worst of each."""
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


def regrets(out: Console, results: Sequence[CaseResult]) -> None:
    """A table of the regrets of every stratum; then the worst problems of each."""
    title = "chosen configuration ÷ best one, which half the rounds pick and the others judge"
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        header_style="dim",
        padding=(0, 2, 0, 0),
    )
    for name in ("op", "stratum"):
        table.add_column(name, no_wrap=True)
    for name in ("problems", "mean", f"{regret.HIGH} %", "worst three"):
        table.add_column(name, justify="right", no_wrap=True)
    standings = regret.standings(results)
    for each in standings:
        count = f"{len(each.problems)}"
        count += f" of {each.missing + len(each.problems)}" if each.missing else ""
        figures = ["–"] * 3
        if each.problems:
            worst = " ".join(f"{problem.value:.2f}" for problem in each.worst)
            figures = [f"{each.mean:.3f}", f"{each.high:.2f}", worst]
        table.add_row(each.op, each.stratum, count, *figures)
    out.print(table)
    out.print()
    for each in standings:
        for problem in each.worst if each.stratum != "all" else ():
            words = f"[bold]{problem.value:.3f}[/], {escape(each.stratum)}: {problem.chosen}; "
            words += f"best {problem.best}: {escape(regret.command(problem.result))}"
            out.print(words, soft_wrap=True)
    out.print()


def scores(out: Console, standings: Sequence[ScoreStanding]) -> None:
    """One line per op and peer: how many scores are right; then the wrong ones."""
    for each in standings:
        share = f"{each.problems - len(each.wrong)} of {each.problems}"
        out.print(f"[bold]{each.op}[/], capability scores against {each.other}: {share} are right")
        for judged in each.wrong:
            what = f"  score {judged.score:.2f}, measured {judged.speed:.2f}: "
            line = what + distributions.replay(judged.result.case)
            out.print(line, markup=False, soft_wrap=True)


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
    """What would be timed, by strata, each problem with its providers and its replay line."""
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
