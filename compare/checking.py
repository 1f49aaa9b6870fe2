"""Run cases on every implementation, compare with the oracle and with each other, name the culprit.

Pure logic: no printing. ``check`` yields a :class:`CaseResult` a case; a :class:`Row` gathers those
of one op and dtype: what the table, the JSON file and the exit status are made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import triton_kernels
from compare import histograms, numerics
from compare.cases import Arguments, Case, Guarded
from compare.debugging.stores import Stores, address_of
from compare.histograms import Histogram
from compare.implementations import Implementation, applies, is_quick
from compare.specs import Spec
from triton_kernels import _interpreter


@dataclass
class Deviation:
    """How a result differs from what is right: how often, and the worst element."""

    wrong: int
    total: int
    index: tuple[int, ...]
    got: str
    expected: str
    ulps: float
    error: float
    bound: float

    def __str__(self) -> str:
        return (
            f"element {self.index}: got {self.got}, expected {self.expected}\n"
            f"{self.ulps:.3g} ulp, |error| {self.error:.3g} against a bound of {self.bound:.3g}; "
            f"{self.wrong} of {self.total} elements wrong"
        )


@dataclass
class Mismatch:
    """A wrong result, or what went wrong before there was one."""

    case: Case
    implementation: str
    problem: str  # "wrong values", "wrote outside its output", or an error's text
    deviation: Deviation | None = None
    program_id: tuple[int, ...] | None = None

    @property
    def replay(self) -> str:
        return self.case.command(self.implementation)

    @property
    def debug(self) -> str:
        """The command that looks into it."""
        return self.case.command(self.implementation, "debug")

    def __str__(self) -> str:
        lines = [f"{self.implementation}: {self.case}: {self.problem}"]
        if self.deviation is not None:
            lines += [f"  {line}" for line in str(self.deviation).splitlines()]
        if self.program_id is not None:
            lines.append(f"  on the Triton side program {self.program_id} writes it")
        lines.append(f"  replay: {self.replay}")
        lines.append(f"  debug: {self.debug}")
        return "\n".join(lines)


@dataclass
class Outcome:
    """What one implementation did with one case.

    Attributes:
        worst: ULPs, or the fraction of the bound.
        errors: every element's, as :mod:`compare.histograms` counts them: measure → histogram.
    """

    implementation: Implementation
    worst: float
    result: Tensor | None
    mismatch: Mismatch | None
    errors: dict[str, Histogram] = field(default_factory=dict)


@dataclass
class CaseResult:
    """What all implementations did with one case."""

    case: Case
    outcomes: list[Outcome]
    agree: bool | None  # Triton and CUDA bitwise equal; None where a bound decides or a side lacks


def check(
    spec: Spec, wanted: Iterable[Case], ways: list[Implementation], *, limit: bool = True
) -> Iterator[CaseResult]:
    """Run every case on every implementation that is made for it.

    A kernel that corrupts the CUDA context, by an illegal access say, makes everything after it on
    the GPU fail: from then on the GPU's implementations are left out. ``limit`` leaves out what
    would take an implementation unreasonably long.
    """
    for case in wanted:
        able = [way for way in ways if applies(way, spec, case)]
        if limit:
            able = [way for way in able if is_quick(way, spec, case)]
        if gpu_is_lost():
            able = [way for way in able if way.device.type != "cuda"]
        outcomes = []
        for device in dict.fromkeys(way.device for way in able):
            placed = spec.inputs(case, device)
            reference = spec.oracle(*placed[0], **placed[1])
            for way in able:
                if way.device == device and not (device.type == "cuda" and gpu_is_lost()):
                    outcomes.append(run(spec, case, way, placed, reference))
        outcomes.sort(key=lambda outcome: ways.index(outcome.implementation))
        comparable = spec.bound is None and not gpu_is_lost()
        yield CaseResult(case, outcomes, _agreement(outcomes) if comparable else None)


def gpu_is_lost() -> bool:
    """Whether a kernel has broken the CUDA context of this process, which nothing mends."""
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def run(
    spec: Spec,
    case: Case,
    way: Implementation,
    arguments: Arguments,
    reference: Tensor,
    out_layout: Tensor | None = None,
) -> Outcome:
    """One implementation on one case: guarded, poisoned output; compared element by element.

    ``out_layout`` is a tensor that lies as the output shall, where the case's layout does not say.
    """
    try:
        result, guards = call(spec, case, way, arguments, reference, out_layout)
        if way.device.type == "cuda":
            torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001 - whatever a kernel under test throws is a finding
        return Outcome(way, math.inf, None, Mismatch(case, way.name, brief(error)))
    outcome = judge(spec, case, way, arguments, result, reference)
    if outcome.mismatch is None and not all(guarded.intact() for guarded in guards):
        outcome.mismatch = Mismatch(case, way.name, "wrote outside its output")
        outcome.worst = math.inf
    return outcome


def call(
    spec: Spec,
    case: Case,
    function: Callable[..., Tensor],
    arguments: Arguments,
    reference: Tensor,
    out_layout: Tensor | None = None,
    guards: list[Guarded] | None = None,
) -> tuple[Tensor, list[Guarded]]:
    """The function's result on a case, in the poisoned output that the case's layout asks for, or
    in allocations of its own; and the guards around what was there to be written, which are
    appended to ``guards`` before the function sees them."""
    args, kwargs = arguments
    guards = [] if guards is None else guards
    if case.layout == "functional" or not spec.has_out:
        with _GuardedAllocations(guards):
            return function(*args, **kwargs), guards
    dtype = reference.dtype if spec.bound is None else spec.out_dtype(case)
    layout = "contiguous" if case.layout == "inplace" else case.layout
    where = layout if out_layout is None else out_layout
    guarded = Guarded(tuple(reference.shape), dtype, reference.device, where)
    guards.append(guarded)
    if case.layout == "inplace":
        guarded.out.copy_(args[0])
        args = (guarded.out, *args[1:])
    return function(*args, **kwargs, out=guarded.out), guards


def brief(error: Exception) -> str:
    """An error's text; of a long one, such as a compiler's with the kernel's source, both ends."""
    lines = [line for line in f"{type(error).__name__}: {error}".splitlines() if line.strip()]
    return "\n".join(lines if len(lines) <= 6 else [lines[0], "  …", *lines[-3:]])


class _GuardedAllocations(TorchFunctionMode):
    """Inside, torch.empty and its kin return guarded poison: an element that nobody writes shows,
    and so does a write beside them."""

    def __init__(self, guards: list[Guarded]) -> None:
        super().__init__()
        self.guards = guards

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in (torch.empty, torch.empty_like, torch.empty_strided, Tensor.new_empty):
            return result
        guarded = Guarded(tuple(result.shape), result.dtype, result.device, result)
        self.guards.append(guarded)
        return guarded.out


def judge(
    spec: Spec,
    case: Case,
    way: Implementation,
    arguments: Arguments,
    result: Tensor,
    reference: Tensor,
) -> Outcome:
    """Compare a result with the oracle's, by bits or by the op's bound."""
    expected_dtype = reference.dtype if spec.bound is None else spec.out_dtype(case)
    if result.shape != reference.shape or result.dtype != expected_dtype:
        text = (
            f"returned {result.dtype} {tuple(result.shape)}, "
            f"expected {expected_dtype} {tuple(reference.shape)}"
        )
        return Outcome(way, math.inf, None, Mismatch(case, way.name, text))
    found = compare(spec, case, way.name, arguments, result, reference)
    worst = float(found.score.max()) if found.score.numel() else 0.0
    right, error, bound, score = found
    if spec.bound is None or spec.exact(case):
        errors = histograms.of_exact(right, error)
    else:
        errors = histograms.of_bounded(error, bound, score, reference, result.dtype)
    if bool(right.all()):
        return Outcome(way, worst, result, None, errors)
    described = deviation(result, reference, right, error, bound)
    return Outcome(way, worst, result, Mismatch(case, way.name, "wrong values", described), errors)


class Comparison(NamedTuple):
    """A result against the oracle's, element by element.

    ``score`` is what reports show: ULPs, or the fraction of the bound.
    """

    right: Tensor
    error: Tensor
    bound: Tensor
    score: Tensor


def compare(
    spec: Spec,
    case: Case,
    implementation: str,
    arguments: Arguments,
    result: Tensor,
    reference: Tensor,
) -> Comparison:
    """Judge every element, by bits or by the op's bound for that implementation."""
    if spec.bound is None or spec.exact(case):
        rounded = reference.to(result.dtype)
        right = numerics.same_bits(result, rounded)
        if spec.bound is not None:  # the sign of a zero depends on the order of the sums
            right |= (result == 0) & (rounded == 0)
        if bool(right.all()):
            zero = torch.zeros(right.shape, device=right.device, dtype=torch.float64)
            return Comparison(right, zero, zero, zero)
        error = torch.where(right, 0.0, numerics.ulps(result, rounded))
        return Comparison(right, error, torch.zeros_like(error), error)
    bound = spec.bound(implementation, arguments, reference, result.dtype)
    error, right = numerics.within(result, reference, bound)
    return Comparison(right, error, bound, numerics.fraction(error, bound))


def deviation(
    result: Tensor, reference: Tensor, right: Tensor, error: Tensor, bound: Tensor
) -> Deviation:
    """Count the wrong elements and describe the worst: the largest error for its bound."""
    excess = numerics.fraction(error, bound).nan_to_num(math.inf, posinf=math.inf)
    # Among exact results every fraction is infinite: there the plain error decides.
    ranked = torch.where(excess.isinf(), 1e300 + error.nan_to_num(math.inf, posinf=1e308), excess)
    flat = int(torch.where(right, -1.0, ranked).flatten().argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), result.shape))
    got, expected = result[index], reference[index].to(result.dtype)
    return Deviation(
        wrong=int((~right).sum()),
        total=right.numel(),
        index=index,
        got=f"{got.item()!r} ({numerics.hex_of(got)})",
        expected=f"{reference[index].item()!r} ({numerics.hex_of(expected)})",
        ulps=float(numerics.ulps(got, expected)),
        error=float(error[index]),
        bound=float(bound[index]),
    )


def _agreement(outcomes: list[Outcome]) -> bool | None:
    results: dict[str, list[Tensor]] = {"triton": [], "cuda": []}
    for outcome in outcomes:
        if outcome.result is not None:
            results[outcome.implementation.side].append(outcome.result)
    if not results["triton"] or not results["cuda"]:
        return None
    first, *others = results["triton"] + results["cuda"]
    return all(bool(numerics.same_bits(first.to(o.device), o).all()) for o in others)


def find_writer(spec: Spec, mismatch: Mismatch) -> tuple[int, ...] | None:
    """The Triton program that stored the worst element: recorded from the stores of an interpreted
    run, of the variant of the same name if there is one, on the inputs of the case; None if nobody
    stored it or the run fails."""
    if mismatch.deviation is None:
        return None
    variant = mismatch.implementation.partition("/")[2]
    function = triton_kernels.variants(spec.name).get(variant, spec.triton)
    arguments = spec.inputs(mismatch.case)
    reference = spec.oracle(*arguments[0], **arguments[1])
    stores = Stores()
    try:
        with _interpreter.interpreting(stores):
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
    cases: int = 0
    worst: dict[str, float] = field(default_factory=dict)  # mode → worst score, variants too
    runs: dict[str, int] = field(default_factory=dict)  # mode → how many runs, variants included
    agree: bool | None = None
    proved: str = ""  # "every input" and the like; empty where sampled
    mismatches: list[Mismatch] = field(default_factory=list)
    seconds: float = 0.0
    # implementation → measure → all its runs' errors
    errors: dict[str, dict[str, Histogram]] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return not self.mismatches and bool(self.runs)

    def add(self, result: CaseResult) -> None:
        """Count a case that anything is made for."""
        self.cases += bool(result.outcomes)
        for outcome in result.outcomes:
            self.add_outcome(outcome)
        if result.agree is not None:
            self.agree = result.agree and self.agree is not False

    def add_outcome(self, outcome: Outcome) -> None:
        """Count one run."""
        mode = outcome.implementation.mode
        self.runs[mode] = self.runs.get(mode, 0) + 1
        self.worst[mode] = max(self.worst.get(mode, 0.0), outcome.worst)
        errors = self.errors.setdefault(outcome.implementation.name, {})
        for measure, histogram in outcome.errors.items():
            errors.setdefault(measure, Histogram()).update(histogram)
        if outcome.mismatch:
            self.mismatches.append(outcome.mismatch)

    def verdict(self) -> str:
        """In words: equal, or whose fault it is."""
        if not self.runs:
            return "nothing ran"
        if not self.mismatches:
            return "pass"
        bad = {m.implementation.split("/")[0] for m in self.mismatches}
        variants = sorted({m.implementation.partition("/")[2] for m in self.mismatches})
        only = f" (only {', '.join(variants)})" if "" not in variants else ""
        return culprit(bad, set(self.runs)) + only

    def telling(self, most: int) -> list[Mismatch]:
        """Some mismatches to show: of those that failed in one way, the first only."""
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
            "errors": self.errors,
            "triton_equals_cuda": self.agree,
            "coverage": self.proved or "sampled",
            "verdict": self.verdict(),
            "passed": self.passed,
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
    """Who is wrong, from which modes are wrong among those that ran."""
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
