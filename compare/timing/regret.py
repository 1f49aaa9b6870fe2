"""Regret: the time of the chosen configuration of a product over that of the best candidate.

A best that is picked and judged by the same samples looks too good, because of many candidates one
is lucky. So half of the rounds pick it, and the other half judge it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compare.ops import spec_of
from compare.timing.distributions import WORST, replay
from compare.timing.results import CANDIDATE, CHOSEN, CaseResult, Entry, geometric_mean

HIGH = 95  # percentile shown beside the mean


@dataclass(frozen=True)
class Regret:
    """A problem's regret: the chosen configuration's time over the best one's, at best 1."""

    value: float
    chosen: str
    best: str
    result: CaseResult


@dataclass(frozen=True)
class Standing:
    """The problems of a stratum, the largest regret first. For ``missing`` problems the chosen
    configuration has no time."""

    op: str
    stratum: str
    problems: tuple[Regret, ...]
    missing: int = 0

    @property
    def mean(self) -> float:
        """The geometric mean."""
        return geometric_mean([problem.value for problem in self.problems])

    @property
    def high(self) -> float:
        """The 95th percentile."""
        return float(np.percentile([problem.value for problem in self.problems], HIGH))

    @property
    def worst(self) -> tuple[Regret, ...]:
        """At most three problems."""
        return self.problems[:WORST]

    def to_dict(self) -> dict[str, Any]:
        """The entry of the JSON file."""
        figures: dict[str, Any] = {"geometric_mean": None, "percentile_95": None}
        if self.problems:
            figures = {"geometric_mean": self.mean, "percentile_95": self.high}
        worst = [
            {
                "regret": each.value,
                "chosen": each.chosen,
                "best": each.best,
                "replay": command(each.result),
            }
            for each in self.worst
        ]
        place = {"op": self.op, "stratum": self.stratum}
        count = {"problems": len(self.problems), "missing": self.missing}
        return {**place, **count, **figures, "worst": worst}


def regret(result: CaseResult) -> Regret | None:
    """The regret of one problem; None if the chosen configuration has no times."""
    timed = [e for e in result.entries if not e.problem and len(e.timing.gpu.microseconds) > 1]
    chosen = next((entry for entry in timed if entry.provider.startswith(CHOSEN)), None)
    if chosen is None:
        return None
    best = min(timed, key=lambda entry: _median(entry, 0))
    value = 1.0 if best is chosen else _median(chosen, 1) / _median(best, 1)
    return Regret(value, _label(chosen), _label(best), result)


def _median(entry: Entry, half: int) -> float:
    """The median of every second round, starting from round ``half``."""
    return float(np.median(entry.timing.gpu.microseconds[half::2]))


def _label(entry: Entry) -> str:
    return entry.provider.removeprefix(CHOSEN).removeprefix(CANDIDATE)


def standings(results: Iterable[CaseResult]) -> list[Standing]:
    """Every stratum of each op, then all of them as one."""
    groups: dict[tuple[str, str], list[CaseResult]] = {}
    for result in results:
        groups.setdefault((result.case.op, result.stratum), []).append(result)
    ops = list(dict.fromkeys(op for op, _ in groups))
    table = []
    for op in ops:
        present = [stratum for other, stratum in groups if other == op]
        known = [stratum for stratum in spec_of(op).strata if stratum in present]
        strata = [*known, *(stratum for stratum in present if stratum not in known)]
        table += [_standing(op, stratum, groups[op, stratum]) for stratum in strata]
        if len(strata) > 1:
            table.append(_standing(op, "all", [r for s in strata for r in groups[op, s]]))
    return table


def _standing(op: str, stratum: str, results: Sequence[CaseResult]) -> Standing:
    problems = [each for result in results if (each := regret(result)) is not None]
    problems.sort(key=lambda problem: -problem.value)
    return Standing(op, stratum, tuple(problems), len(results) - len(problems))


def doubtful(results: Sequence[CaseResult], number: int) -> list[int]:
    """The results to measure again: the ``number`` worst of each stratum that have only the short
    measurement."""
    places: dict[tuple[str, str], dict[int, float]] = {}
    for i, result in enumerate(results):
        if (each := regret(result)) is not None:
            places.setdefault((result.case.op, result.stratum), {})[i] = each.value
    worst = (sorted(group, key=lambda i: -group[i])[:number] for group in places.values())
    return sorted(i for group in worst for i in group if not results[i].again)


def command(result: CaseResult) -> str:
    """The command line that times all configurations of this problem again."""
    return replay(result.case, "--regret")
