"""Run cases on every implementation, compare with the oracle and with each other, name the culprit.

Nothing here prints. ``check`` yields one :class:`CaseResult` per case. A :class:`Row` gathers those
of one op and dtype, for the table, the JSON file and the exit status.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from compare.cases import Case
from compare.checking import attack, eager_rule, running, workers
from compare.checking.budgets import LeftOut
from compare.checking.histograms import Histogram
from compare.checking.implementations import Implementation, applies, is_quick
from compare.checking.oracles import Oracle
from compare.checking.running import Mismatch, Outcome, call, memory_asked, run
from compare.checking.stores import Stores, address_of
from compare.specs import Spec
from triton_kernels import interpreter


@dataclass
class CaseResult:
    """The outcomes of all implementations on one case."""

    case: Case
    outcomes: list[Outcome]
    agree: bool | None  # Triton and CUDA bitwise equal; None if a bound decides or a side is absent
    left_out: list[str] = field(default_factory=list)  # what ran out of memory, and its request
    seconds: float = 0.0


def check(
    spec: Spec, wanted: Iterable[Case], candidates: list[Implementation], *, limit: bool = True
) -> Iterator[CaseResult]:
    """Run every case on every implementation that supports it.

    A kernel that corrupts the CUDA context, for example by an illegal access, makes all later work
    on the GPU fail. GPU implementations are left out from then on. ``limit`` leaves out cases that
    are too slow for an implementation.
    """
    for case in wanted:
        yield check_case(spec, case, able(spec, case, candidates, limit=limit))


def able(
    spec: Spec, case: Case, candidates: list[Implementation], *, limit: bool
) -> list[Implementation]:
    """The implementations that support the case and, with ``limit``, run it in reasonable time."""
    return [
        implementation
        for implementation in candidates
        if applies(implementation, spec, case)
        and (not limit or is_quick(implementation, spec, case))
    ]


def check_case(
    spec: Spec, case: Case, able: list[Implementation], attack_steps: int = 0
) -> CaseResult:
    """Run a case on these implementations, except on a GPU whose context is lost. With steps, each
    searches for its worst inputs: :mod:`compare.checking.attack`."""
    began = time.perf_counter()
    outcomes: list[Outcome] = []
    left_out = []
    for device in dict.fromkeys(implementation.device for implementation in able):
        if device.type == "cuda" and running.gpu_is_lost():
            continue
        try:
            for outcome in _on(device, spec, case, able, attack_steps):
                outcomes.append(outcome)
        except Exception as error:
            asked = memory_asked(error)
            if asked is None:
                raise
            left_out.append(f"{case} on {device.type}: {asked}")
    if left_out and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    outcomes.sort(key=lambda outcome: able.index(outcome.implementation))
    seconds = time.perf_counter() - began
    return CaseResult(case, outcomes, agreement(outcomes), left_out, seconds)


def _on(
    device: torch.device, spec: Spec, case: Case, able: list[Implementation], attack_steps: int
) -> Iterator[Outcome]:
    """The outcomes of the implementations that run on one device."""
    if device.type == "cuda" and spec.memory(case, device) > LARGE:
        torch.cuda.empty_cache()  # smaller cases have fragmented it
    arguments = spec.inputs(case, device)
    oracle = Oracle(spec, arguments)
    for implementation in able:
        if implementation.device != device or (device.type == "cuda" and running.gpu_is_lost()):
            continue
        workers.tell(implementation.name)
        if attack_steps:
            own = spec.inputs(case, device)
            yield attack.attack(spec, case, implementation, own, attack_steps)
            continue
        outcome = run(spec, case, implementation, arguments, oracle)
        side, variant = implementation.side, implementation.variant
        answers = eager_rule.answers_to_eager(spec, case, side, variant, oracle.like.numel())
        if outcome.mismatch is None and answers:
            assert outcome.result is not None
            if worse := eager_rule.less_accurate(spec, outcome.result, oracle):
                outcome.mismatch = Mismatch(case, implementation.name, str(worse))
        outcome.result = None  # frees it before the next implementation allocates as much
        yield outcome


LARGE = 1 << 32  # bytes


def agreement(outcomes: list[Outcome]) -> bool | None:
    """Whether all results have the same bits; None if a bound decides or a side has no result."""
    with_bits = [outcome for outcome in outcomes if outcome.bits is not None]
    if len({outcome.implementation.side for outcome in with_bits}) < 2:
        return None
    return len({outcome.bits for outcome in with_bits}) == 1


INTERPRETED_AGAIN = 1 << 24  # bytes moved; takes some seconds


def find_writer(spec: Spec, mismatch: Mismatch) -> tuple[int, ...] | None:
    """The Triton program that stored the worst element. The case runs again in the interpreter, on
    the variant of the same name if there is one. None if nothing stored the element, the run fails,
    or it would take too long."""
    if mismatch.deviation is None or mismatch.attack:
        return None
    if spec.cost(mismatch.case)[1] > INTERPRETED_AGAIN:
        return None
    variant = mismatch.implementation.partition("/")[2]
    function = spec.variants("triton").get(variant, spec.triton)
    if function is None:
        return None
    arguments = spec.inputs(mismatch.case)
    reference = spec.oracle(*arguments[0], **arguments[1])
    stores = Stores()
    try:
        with interpreter.interpreting(stores):
            out, _ = call(spec, mismatch.case, function, arguments, reference)
    except Exception:  # noqa: BLE001 - the kernel under test is wrong; it may also fail
        return None
    writer = stores.history(address_of(out, mismatch.deviation.index)).last
    return None if writer is None else writer.program


@dataclass
class Row:
    """One op and dtype in the table."""

    op: str
    dtype: str
    exact: bool
    max_ulps: float = 0.0  # the tolerance, if it is in ULPs
    cases: int = 0
    worst: dict[str, float] = field(default_factory=dict)  # mode → worst score, variants too
    runs: dict[str, int] = field(default_factory=dict)  # mode → how many runs, variants included
    agree: bool | None = None
    proved: str = ""  # "every input" and the like; empty if sampled
    mismatches: list[Mismatch] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    too_large: list[LeftOut] = field(default_factory=list)  # beyond the memory budget
    seconds: float = 0.0
    launches: int | None = None  # kernel launches of an interpreted function from elsewhere
    # implementation → measure → histogram of all its runs
    errors: dict[str, dict[str, Histogram]] = field(default_factory=dict)
    # mode → the worst that searches found, and the command that repeats it
    attacks: dict[str, tuple[float, str]] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return not self.mismatches and bool(self.runs)

    def add(self, result: CaseResult) -> None:
        """Count a case, if any implementation supports it."""
        self.cases += bool(result.outcomes)
        self.left_out += result.left_out
        self.seconds += result.seconds
        for outcome in result.outcomes:
            self.add_outcome(outcome)
        if result.agree is not None:
            self.agree = result.agree and self.agree is not False

    def add_outcome(self, outcome: Outcome) -> None:
        """Count one run."""
        mode = outcome.implementation.mode
        self.runs[mode] = self.runs.get(mode, 0) + 1
        self.worst[mode] = max(self.worst.get(mode, 0.0), outcome.worst)
        if outcome.replay and outcome.worst > self.attacks.get(mode, (0.0, ""))[0]:
            self.attacks[mode] = outcome.worst, outcome.replay
        if outcome.launches is not None:
            self.launches = (self.launches or 0) + outcome.launches
        errors = self.errors.setdefault(outcome.implementation.name, {})
        for measure, histogram in outcome.errors.items():
            errors.setdefault(measure, Histogram()).update(histogram)
        if outcome.mismatch:
            self.mismatches.append(outcome.mismatch)

    def verdict(self) -> str:
        """A sentence: pass, or which side is wrong."""
        if not self.runs:
            return "nothing ran"
        if not self.mismatches:
            return "pass"
        if all(m.problem.startswith("no verdict") for m in self.mismatches):
            return "no verdict: the bound is none"
        bad = {m.implementation.split("/")[0] for m in self.mismatches}
        variants = sorted({m.implementation.partition("/")[2] for m in self.mismatches})
        only = f" (only {', '.join(variants)})" if "" not in variants else ""
        return culprit(bad, set(self.runs)) + only

    def telling(self, most: int) -> list[Mismatch]:
        """At most ``most`` mismatches to print; of equal failures only the first."""
        distinct: dict[tuple[str, str], Mismatch] = {}
        for m in self.mismatches:
            where = str(m.case) if m.deviation else ""
            distinct.setdefault((m.implementation, m.problem + where), m)
        return list(distinct.values())[:most]

    def to_dict(self) -> dict[str, Any]:
        """The row for the JSON file."""
        return {
            "op": self.op,
            "dtype": self.dtype,
            "cases": self.cases,
            "seconds": round(self.seconds, 1),
            "runs": self.runs,
            "worst": self.worst,
            "unit": "ulp" if self.exact else "fraction of the bound",
            "max_ulps": self.max_ulps if self.exact else None,
            "errors": self.errors,
            "launches": self.launches,
            "attacks": self.attacks,
            "triton_equals_cuda": self.agree,
            "coverage": self.proved or "sampled",
            "verdict": self.verdict(),
            "passed": self.passed,
            "left_out": self.left_out,
            "too_large": [{**each._asdict(), "case": str(each.case)} for each in self.too_large],
            "mismatches": [
                {
                    "implementation": m.implementation,
                    "case": str(m.case),
                    "problem": m.problem,
                    "deviation": None if m.deviation is None else asdict(m.deviation),
                    "program_id": m.program_id,
                    "replay": m.replay,
                    "debug": m.debug,
                }
                for m in self.mismatches
            ],
        }


def culprit(bad: set[str], ran: set[str]) -> str:
    """Which side is wrong, from the wrong modes among those that ran."""
    triton_bad = {m for m in bad if m.startswith("triton")}
    cuda_bad = bad - triton_bad
    if triton_bad and cuda_bad and bad == ran:
        return "both sides differ from the oracle: suspect the oracle or the contract"
    faults = []
    if triton_bad == {"triton-compiled"} and "triton-interpreted" in ran:
        faults.append("Triton: right interpreted, wrong compiled: the compiler or precision")
    elif triton_bad == {"triton-interpreted"} and "triton-compiled" in ran:
        faults.append("Triton: right compiled, wrong interpreted: the interpreter's emulation")
    elif triton_bad:
        faults.append("Triton: the kernel's logic")
    if cuda_bad == {"cuda-gpu"} and "cuda-host" in ran:
        faults.append("CUDA: right on the host, wrong on the GPU: a race, nvcc or the hardware")
    elif cuda_bad == {"cuda-host"} and "cuda-gpu" in ran:
        faults.append("CUDA: right on the GPU, wrong on the host: a race, or the host target")
    elif cuda_bad:
        faults.append("CUDA: the reference kernel")
    return "; ".join(faults)
