"""Where the cases of a check run: in this process, or in workers, which survive crashes and hangs.

Results and their order are the same. One worker runs all cases on the GPU, so that a broken CUDA
context ends with its process; the others run on the host.
"""

from __future__ import annotations

import functools
import math
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from compare.cases import Case
from compare.checking import exhaustive, running, verdicts
from compare.checking.histograms import Histogram
from compare.checking.implementations import MODES, Implementation, implementations
from compare.checking.running import Mismatch, Outcome
from compare.checking.verdicts import CaseResult, Row
from compare.checking.workers import Ended, Worker, Workers
from compare.ops import spec_of
from compare.specs import Spec

MOST_ENDS = 3  # processes that an implementation may end; each costs seconds, or the time limit

Program = tuple[int, ...]


class Run(NamedTuple):
    """A case, and the implementations that run it."""

    spec: Spec
    case: Case
    able: list[Implementation]


class InProcess:
    """Run everything in this process, where a debugger can follow.

    Args:
        attack: steps of a search from each case; 0 runs the case alone.
    """

    def __init__(self, attack: int = 0) -> None:
        self._attack = attack

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def results(self, runs: Iterable[Run]) -> Iterator[CaseResult]:
        """The results of each case, in order."""
        return (verdicts.check_case(*run, self._attack) for run in runs)

    def prove(self, spec: Spec, dtype: str, row: Row, candidates: list[Implementation]) -> None:
        """Every input, on a GPU: :func:`compare.checking.exhaustive.prove`."""
        if not running.gpu_is_lost():
            exhaustive.prove(spec, dtype, row, candidates)

    def left_out(self, row: Row) -> list[str]:
        """What did not run, for reasons other than memory."""
        return []

    def writers(self, wrong: list[tuple[Spec, Mismatch]]) -> Iterator[Program | None]:
        """The program that wrote each mismatch's worst element."""
        return (verdicts.find_writer(spec, mismatch) for spec, mismatch in wrong)


class InWorkers(InProcess):
    """Run cases in ``jobs`` workers, each case at most ``timeout`` seconds. All specs must be found
    by name in compare.ops."""

    def __init__(self, jobs: int, timeout: float | None, attack: int = 0) -> None:
        super().__init__(attack)
        self._hosts = Workers(jobs)
        self._gpu, self._gpu_free = Worker(), threading.Lock()
        self._timeout = timeout
        self._ends: Counter[tuple[str, str]] = Counter()  # op and implementation → processes
        self._left_out: Counter[tuple[str, str, str]] = Counter()  # op, dtype, implementation

    def __exit__(self, *_: Any) -> None:
        self._gpu.close()
        self._hosts.__exit__()
        self._gpu.stop()

    def results(self, runs: Iterable[Run]) -> Iterator[CaseResult]:
        tried = [_Tried(*run, self._attack) for run in runs]
        for each in self._hosts.each(self._try, tried):
            yield self._counted(each)

    def _try(self, host: Worker, tried: _Tried) -> _Tried:
        able = [w for w in tried.able if not self._gives_up(tried.case, w)]
        tried.run(host, [w for w in able if w.device.type == "cpu"], self._timeout)
        if on_gpu := [w for w in able if w.device.type == "cuda"]:
            with self._gpu_free:
                tried.run(self._gpu, on_gpu, self._timeout)
        return tried

    def _gives_up(self, case: Case, implementation: Implementation) -> bool:
        return self._ends[case.op, implementation.name] >= MOST_ENDS

    def _counted(self, tried: _Tried) -> CaseResult:
        """The result without implementations that earlier cases gave up, in whatever order."""
        case, kept = tried.case, []
        for implementation in tried.able:
            if self._gives_up(case, implementation):
                self._left_out[case.op, case.dtype, implementation.name] += 1
            elif outcome := tried.outcomes.get(implementation.name):
                kept.append(outcome)
                self._ends[case.op, implementation.name] += implementation.name in tried.ended
        agree = verdicts.agreement(kept)
        return CaseResult(case, kept, agree, tried.left_out, tried.seconds)

    def left_out(self, row: Row) -> list[str]:
        return [
            f"{op} {dtype} on {name}: {count} cases, after {MOST_ENDS} that ended their process"
            for (op, dtype, name), count in self._left_out.items()
            if (op, dtype) == (row.op, row.dtype)
        ]

    def prove(self, spec: Spec, dtype: str, row: Row, candidates: list[Implementation]) -> None:
        on_gpu = {w.name: w for w in candidates if w.device.type == "cuda"}
        if not on_gpu:
            return
        with self._gpu_free:
            told = self._gpu.call(prove_every_input, spec.name, dtype, list(on_gpu))
            if isinstance(told, Ended):
                probe = exhaustive.probe(spec, dtype)
                row.add_outcome(_ended(probe, on_gpu[told.doing or next(iter(on_gpu))], told.how))
            elif told is not None:
                if told.gpu_is_lost:
                    self._gpu.stop()
                exhaustive.enter(spec, row, told.outcomes(on_gpu))

    def writers(self, wrong: list[tuple[Spec, Mismatch]]) -> Iterator[Program | None]:
        mismatches = [mismatch for _, mismatch in wrong]
        for program in self._hosts.map(find_writer, mismatches, timeout=self._timeout):
            yield None if isinstance(program, Ended) else program


class _Tried:
    """A run that may need several processes.

    Attributes:
        outcomes: by implementation.
        ended: the implementations that ended a process, or broke the CUDA context.
    """

    def __init__(self, spec: Spec, case: Case, able: list[Implementation], attack: int) -> None:
        self.case, self.able, self.attack = case, able, attack
        self.outcomes: dict[str, Outcome] = {}
        self.ended: set[str] = set()
        self.left_out: list[str] = []
        self.seconds = 0.0

    def run(self, worker: Worker, able: list[Implementation], timeout: float | None) -> None:
        """Run the case on these implementations, all of one device. An implementation that ends the
        process fails; the rest run in a new process."""
        rest = {implementation.name: implementation for implementation in able}
        suspicion: Ended | None = None
        while rest:
            told = worker.call(run_case, self.case, list(rest), self.attack, timeout=timeout)
            if isinstance(told, Ended):
                if not (told.fresh or told.late or suspicion):
                    suspicion = told  # an earlier case may be to blame: retry in a fresh process
                    continue
                suspicion = None
                for name in [told.doing] if told.doing in rest else list(rest):
                    self._end(rest.pop(name), told.how)
                continue
            outcomes = told.outcomes(rest)
            self.outcomes |= {outcome.implementation.name: outcome for outcome in outcomes}
            self.left_out += told.left_out
            self.seconds += told.seconds
            if suspicion is not None:
                how = f"{suspicion.how}, but not when run by itself: {ELSEWHERE}"
                for name in [suspicion.doing] if suspicion.doing in rest else list(rest):
                    self._end(rest[name], how)
            if not told.gpu_is_lost or not outcomes:
                return
            worker.stop()
            self.ended.add(outcomes[-1].implementation.name)
            for outcome in outcomes:
                del rest[outcome.implementation.name]

    def _end(self, implementation: Implementation, how: str) -> None:
        self.outcomes[implementation.name] = _ended(self.case, implementation, how, self.attack)
        self.ended.add(implementation.name)


ELSEWHERE = (
    "a case before it may have written to memory that is not its own; see --sanitize address"
)


def _ended(case: Case, implementation: Implementation, how: str, attack: int = 0) -> Outcome:
    mismatch = Mismatch(case, implementation.name, how, attack=attack)
    return Outcome(implementation, math.inf, None, mismatch)


# ---- In the workers ----


class Told(NamedTuple):
    """A worker's answer: outcomes by implementations' names, since functions cannot be sent, and
    without results, which are large."""

    entries: list[
        tuple[str, float, Mismatch | None, dict[str, Histogram], str | None, int | None, str]
    ]
    left_out: list[str]
    seconds: float
    gpu_is_lost: bool

    def outcomes(self, known: dict[str, Implementation]) -> list[Outcome]:
        """The outcomes, without result tensors."""
        return [
            Outcome(known[name], worst, None, mismatch, errors, bits, launches, replay)
            for name, worst, mismatch, errors, bits, launches, replay in self.entries
        ]


def _told(outcomes: list[Outcome], left_out: list[str], seconds: float) -> Told:
    entries = [
        (o.implementation.name, o.worst, o.mismatch, o.errors, o.bits, o.launches, o.replay)
        for o in outcomes
    ]
    return Told(entries, left_out, seconds, running.gpu_is_lost())


@functools.cache
def _known(op: str) -> dict[str, Implementation]:
    return {each.name: each for each in implementations(spec_of(op), list(MODES))}


def run_case(case: Case, names: list[str], attack: int) -> Told:
    """Check a case on the implementations of these names."""
    able = [_known(case.op)[name] for name in names]
    result = verdicts.check_case(spec_of(case.op), case, able, attack)
    return _told(result.outcomes, result.left_out, result.seconds)


def prove_every_input(op: str, dtype: str, names: list[str]) -> Told | None:
    """The outcomes of the implementations on all inputs of the op; None if not all inputs can be
    tried."""
    able = [_known(op)[name] for name in names]
    outcomes = exhaustive.wrong(spec_of(op), dtype, able)
    return None if outcomes is None else _told(outcomes, [], 0.0)


def find_writer(mismatch: Mismatch) -> Program | None:
    """The program that wrote the worst element."""
    return verdicts.find_writer(spec_of(mismatch.case.op), mismatch)
