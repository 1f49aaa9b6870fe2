"""The result of a sample: the distribution of each stratum's ratios to the fastest peer.

The control is the fastest peer, timed a second time in the same way. Its deviation from 1 is the
error of the measurement.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compare.cases import Case
from compare.ops import SPECS
from compare.timing.engine import CONTROL
from compare.timing.results import CaseResult, geometric_mean

OURS = "triton"
JUDGED = (OURS, CONTROL)
WORST = 3  # problems shown per stratum
LOW = 5  # percentile shown beside the mean


@dataclass(frozen=True)
class Problem:
    """One problem, and a provider's ratio for it."""

    ratio: float
    case: Case
    best_peer: str


@dataclass(frozen=True)
class Standing:
    """A provider's ratios to the fastest peers in one stratum.

    Attributes:
        problems: the worst first.
        missing: the number of problems for which it has no time.
    """

    op: str
    stratum: str
    provider: str
    problems: tuple[Problem, ...]
    missing: int = 0

    @property
    def ratios(self) -> list[float]:
        return [problem.ratio for problem in self.problems]

    @property
    def mean(self) -> float:
        """The geometric mean."""
        return geometric_mean(self.ratios)

    @property
    def low(self) -> float:
        """The 5th percentile."""
        return float(np.percentile(self.ratios, LOW))

    @property
    def worst(self) -> tuple[Problem, ...]:
        """At most three problems."""
        return self.problems[:WORST]

    def to_dict(self) -> dict[str, Any]:
        """The entry of the JSON file. Readers compute it from the cases again."""
        figures: dict[str, Any] = {"geometric_mean": None, "percentile_5": None}
        if self.problems:
            figures = {"geometric_mean": self.mean, "percentile_5": self.low}
        worst = [{"ratio": each.ratio, "replay": replay(each.case)} for each in self.worst]
        count = {"problems": len(self.problems), "missing": self.missing}
        place = {"op": self.op, "stratum": self.stratum, "provider": self.provider}
        return {**place, **count, **figures, "worst": worst}


def standings(results: Iterable[CaseResult], provider: str) -> list[Standing]:
    """A provider in every stratum of every op, in the order of the spec's strata."""
    groups: dict[tuple[str, str], list[CaseResult]] = {}
    for result in results:
        groups.setdefault((result.case.op, result.stratum), []).append(result)
    ops = list(dict.fromkeys(op for op, _ in groups))
    known = {op: [*SPECS[op].strata] for op in ops if op in SPECS}

    def place(each: tuple[str, str]) -> tuple[int, int]:
        op, stratum = each
        strata = known.get(op, [])
        return ops.index(op), strata.index(stratum) if stratum in strata else len(strata)

    return [_standing(*each, provider, groups[each]) for each in sorted(groups, key=place)]


def together(standing: Sequence[Standing]) -> Standing:
    """All strata of one op as one."""
    problems = [problem for each in standing for problem in each.problems]
    problems.sort(key=lambda problem: problem.ratio)
    first, missing = standing[0], sum(each.missing for each in standing)
    return Standing(first.op, "all", first.provider, tuple(problems), missing)


def _standing(op: str, stratum: str, provider: str, results: Sequence[CaseResult]) -> Standing:
    problems = [
        Problem(value, result.case, result.best_peer)
        for result in results
        if (value := ratio(result, provider)) is not None
    ]
    problems.sort(key=lambda problem: problem.ratio)
    return Standing(op, stratum, provider, tuple(problems), len(results) - len(problems))


def ratio(result: CaseResult, provider: str) -> float | None:
    """The fastest peer's median over the provider's."""
    for entry in result.entries:
        if entry.provider == provider and entry.speedup is not None:
            return entry.speedup.value
    return None


def doubtful(results: Sequence[CaseResult], number: int) -> list[int]:
    """The results to measure again: the ``number`` worst of each stratum, for ours or the control,
    that have only the short measurement."""
    worst: set[int] = set()
    places: dict[tuple[str, str], list[int]] = {}
    for i, result in enumerate(results):
        places.setdefault((result.case.op, result.stratum), []).append(i)
    for group in places.values():
        for provider in JUDGED:
            ratios = {i: r for i in group if (r := ratio(results[i], provider)) is not None}
            worst.update(sorted(ratios, key=ratios.__getitem__)[:number])
    return sorted(i for i in worst if not results[i].again)


def replay(case: Case, *more: str) -> str:
    """The command line that times this problem again with all samples, for ours and the peers or
    with other options."""
    words = ["python", "-m", "compare", "bench", *case.words, "--dtype", case.dtype]
    words += ["--shapes", ",".join(map(str, case.shape)), "--layout", case.layout]
    for key, value in case.options.items():
        words += ["--arg", f"{key}={value}"]
    return shlex.join([*words, *(more or ("--providers", f"{OURS},peers"))])
