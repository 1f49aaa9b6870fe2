"""Measuring a sample: every problem briefly, then the worst of each stratum at length."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compare.cases import DTYPES
from compare.specs import Spec
from compare.specs.drawn import drawn
from compare.timing import bench, distributions, warm_up
from compare.timing.bench import Work
from compare.timing.engine import Budget
from compare.timing.results import CaseResult
from compare.timing.session import Session

FIRST = Budget(samples=20, seconds=0.25)  # a candidate's brief measurement

Job = tuple[Work, list[str]]  # a problem and its providers


def work(specs: Sequence[Spec], dtypes: Sequence[str], count: int, seed: int) -> list[Work]:
    """``count`` problems of each op; in every stratum the dtypes take turns."""
    problems_of_all = []
    for spec in specs:
        known = [name for name in dtypes or bench.DTYPES if name in spec.dtypes]
        # The narrowest first: if the count is not a multiple, it has one more problem.
        known.sort(key=lambda name: DTYPES[name].itemsize)
        if known and spec.strata:
            problems = drawn(spec, count, seed, known)
            problems_of_all += [Work(spec, each.case, stratum=each.stratum) for each in problems]
    return problems_of_all


def compile_first(jobs: Sequence[Job], session: Session, done: Callable[[], None]) -> list[str]:
    """Compile what the unmeasured problems need. Returns what went wrong, in words."""
    left = [(work.case, names) for work, names in jobs if session.known(work) is None]
    return warm_up.compile_all(left, done)


def run(
    jobs: Sequence[Job],
    session: Session,
    results: list[CaseResult],
    doubtful: Callable[[Sequence[CaseResult], int], list[int]],
    tick: Callable[[Work, str], None],
    done: Callable[[int], None],
) -> None:
    """Measure every problem into ``results``. Then measure the three worst of each stratum with the
    session's budget, until no worst one has only the brief measurement.

    Args:
        doubtful: the results among the ``number`` worst of a stratum that were not measured again.
        tick: called with a problem and what is done next.
        done: called after each problem with the number of known remaining ones.
    """

    def measure(work: Work, names: list[str], budget: Budget | None = None) -> CaseResult:
        return session.measure(work, names, lambda name: tick(work, name), budget)

    for number, (work, names) in enumerate(jobs, 1):
        results.append(session.known(work) or measure(work, names, FIRST))
        done(len(jobs) - number)
    number = distributions.WORST
    while again := doubtful(results, number):
        for count, i in enumerate(again, 1):
            results[i] = measure(*jobs[i])
            done(len(again) - count)
        number = 1
