"""cross_check: the same scrutiny for a kernel pair that is not in this repository."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

import triton_kernels
from compare import numerics
from compare.cases import Guarded
from compare.checking import judging, running
from compare.checking.judging import Comparison, Deviation, Tolerance
from compare.checking.stores import Stores
from compare.copies import copies, damaged, tensors
from compare.debugging import investigation
from compare.debugging.stepping import failures
from compare.debugging.subjects import Kernel, Result

SOME_ROUNDINGS = 256  # ulps: what a sum or a softmax of some thousand elements may be off


@dataclass
class Finding:
    """One side on one set of inputs."""

    side: str
    inputs: int
    shapes: list[list[int]]
    worst_ulps: float = 0.0
    error: str | None = None
    deviation: Deviation | None = None
    max_ulps: float | None = None  # that were allowed; None where a bound decided

    @property
    def near(self) -> bool:
        """Whether wrong values are as near to the oracle's as some roundings more leave them."""
        wrong = self.error is None and self.deviation is not None
        return wrong and self.max_ulps is not None and self.worst_ulps <= SOME_ROUNDINGS

    @property
    def passed(self) -> bool:
        return self.error is None and self.deviation is None

    def __str__(self) -> str:
        text = f"{self.side} on inputs[{self.inputs}] {self.shapes}: "
        if self.error is not None:
            return text + self.error
        if self.deviation is not None:
            return text + "wrong values\n  " + str(self.deviation).replace("\n", "\n  ")
        return text + f"right, worst {self.worst_ulps:.3g} ulp"


@dataclass
class Report:
    """What cross_check found: true if all is right, printable, and :meth:`to_json`."""

    findings: list[Finding] = field(default_factory=list)
    agree: bool = True

    def __bool__(self) -> bool:
        return all(finding.passed for finding in self.findings)

    @property
    def verdict(self) -> str:
        bad = {finding.side for finding in self.findings if not finding.passed}
        if not bad:
            return "pass: " + ("bitwise equal" if self.agree else "equal within the tolerance")
        if len(bad) > 1:
            if self.agree:
                return "FAIL: both sides agree and differ from the oracle: suspect the oracle"
            return "FAIL: both sides are wrong"
        return f"FAIL: the {bad.pop()} side is wrong"

    def __str__(self) -> str:
        shown = [str(f) for f in self.findings if not f.passed or bool(self)]
        return "\n".join([self.verdict, *shown, *self._hint()])

    def _hint(self) -> list[str]:
        """What to do where nothing but the default tolerance may be wrong."""
        failed = [finding for finding in self.findings if not finding.passed]
        if not failed or not all(finding.near for finding in failed):
            return []
        worst = max(finding.worst_ulps for finding in failed)
        return [
            f"The worst is {worst:.3g} ulp off, and max_ulps={failed[0].max_ulps:g} is for "
            "functions that round once. If one that rounds more often, as a sum does, may be so "
            "far off, say max_ulps=… or bound=…"
        ]

    def to_json(self) -> str:
        """Everything as a JSON text."""
        report = {
            "passed": bool(self),
            "verdict": self.verdict,
            "agree_bitwise": self.agree,
            "findings": [asdict(finding) for finding in self.findings],
        }
        return json.dumps(numerics.json_safe(report))


@dataclass(frozen=True)
class Expected:
    """What the results on one set of inputs must be.

    Attributes:
        reference: what the oracle returned.
        dtypes: that a result may have; empty if any floating one will do.
        max_ulps, bound: how far it may be off; if there is a bound, by that.
    """

    reference: Tensor
    dtypes: tuple[torch.dtype, ...]
    max_ulps: float
    bound: Tensor | None = None

    def compare(self, result: Tensor) -> Comparison:
        """Judge every element of a result of the right shape."""
        reference = self.reference.to(result.device)
        if self.bound is None:
            return judging.by_ulps(result, reference, self.max_ulps)
        return judging.by_bound(result, reference, self.bound.to(result.device))

    def refuse(self, result: Any) -> None:
        """Raise if a result is no tensor of the right shape and dtype."""
        if not isinstance(result, Tensor):
            raise TypeError(f"returned {type(result).__name__}, expected a tensor")
        shape = list(self.reference.shape)
        if list(result.shape) != shape:
            raise ValueError(f"returned shape {list(result.shape)}, expected {shape}")
        able = result.dtype in self.dtypes if self.dtypes else result.is_floating_point()
        if not able:
            expected = " or ".join(map(str, self.dtypes)) or "a floating dtype"
            raise TypeError(
                f"returned {result.dtype}, expected {expected}; if that is right, say "
                f"dtype={result.dtype}"
            )


def cross_check(
    *,
    triton: Callable[..., Tensor],
    cuda: Callable[..., Tensor],
    oracle: Callable[..., Tensor],
    inputs: Sequence[tuple[Any, ...]],
    max_ulps: float = 1.0,
    bound: Tolerance | None = None,
    dtype: torch.dtype | None = None,
) -> Report:
    """Run two implementations of one function on the same inputs, against an oracle.

    CPU tensors run the Triton side in the interpreter, CUDA tensors compiled.

    Integers must be equal. A NaN is right where the oracle is NaN, an infinity where the oracle is
    that infinity, or is finite but lies past the largest number of the result's dtype.

    Args:
        triton, cuda: callables that take one entry of ``inputs`` and return a tensor.
        oracle: takes the same; returns what is right, in the result's dtype or in float64.
        inputs: a list of argument tuples. Every call gets copies of the tensors, which lie in
            memory as these do, with poison (NaN, −1) between the elements of views: strides,
            offset, alignment, and memory that two of them share are kept, and gigabytes between
            elements cost nothing. What a call allocates by torch.empty and its kin holds poison,
            too. Nothing may be written beside the one or the other.
        max_ulps: the largest right distance to the oracle's result, rounded to the result's dtype.
        bound: instead of max_ulps, the largest right \\|result − oracle\\| of each element: called
            with the oracle's result and the arguments.
        dtype: of the results. By default the oracle's; where that is float64, any will do that
            holds what the floating arguments promote to.

    Returns:
        A :class:`Report`.

    Raises:
        TypeError: ``inputs`` is not a list of tuples, or ``oracle`` returns no tensor.
        ValueError: ``inputs`` is empty; ``max_ulps`` is negative or not finite; the bound is
            negative or not finite where the oracle is finite.

    Example:
        >>> report = cross_check(triton=f, cuda=g, oracle=lambda x: x.double().sin(), inputs=[(x,)])
        >>> assert report, report
    """
    __tracebackhide__ = True  # pytest shows the caller's line, not this page
    if isinstance(inputs, Tensor) or not all(isinstance(each, tuple) for each in inputs):
        raise TypeError("cross_check(): argument 'inputs' must be a list of argument tuples")
    if not inputs:
        raise ValueError("cross_check(): argument 'inputs' is empty: nothing would be checked")
    judging.check_max_ulps(max_ulps)
    report, failed = Report(), None
    for number, arguments in enumerate(inputs):
        expected = _expected(oracle, arguments, max_ulps, bound, dtype)
        results = []
        for side, function in (("triton", triton), ("cuda", cuda)):
            finding, result = judged(side, function, number, arguments, expected)
            report.findings.append(finding)
            results += [] if result is None else [result]
        report.agree &= len(results) == 2 and _same(*results)
        if len(results) == 2 and results[0].dtype != results[1].dtype:
            for finding, other in zip(report.findings[-2:], reversed(results)):
                finding.error = finding.error or f"the other side returned {other.dtype}"
        if not report.findings[-2].passed and failed is None:
            failed = report.findings[-2], arguments, expected
    if failed is not None:
        _note(failed[0], triton, *failed[1:])
    return report


def _expected(
    oracle: Callable[..., Tensor],
    arguments: tuple[Any, ...],
    max_ulps: float,
    bound: Tolerance | None,
    dtype: torch.dtype | None,
) -> Expected:
    """What the oracle says of one entry of ``inputs``, checked."""
    reference = oracle(*_copies(arguments))
    if not isinstance(reference, Tensor):
        raise TypeError(
            f"cross_check(): the oracle returned a {type(reference).__name__}, but one tensor is "
            "compared: of several results let all functions return torch.cat() of them"
        )
    if reference.is_complex():
        raise TypeError("cross_check(): the oracle returned complex numbers, which are not judged")
    dtypes: tuple[torch.dtype, ...] = (reference.dtype,)
    if dtype is not None:
        dtypes = (dtype,)
    elif reference.dtype == torch.float64:
        dtypes_given = [t.dtype for t in tensors(arguments) if t.is_floating_point()]
        dtypes = _as_wide_as(functools.reduce(_promoted, dtypes_given)) if dtypes_given else ()
    if bound is None:
        return Expected(reference, dtypes, max_ulps)
    limit = torch.as_tensor(bound(reference, *_copies(arguments)), device=reference.device)
    try:
        limit = limit.double().expand(reference.shape)
        judging.check_bound(limit, reference)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"cross_check(): argument 'bound': {error}") from None
    return Expected(reference, dtypes, max_ulps, limit)


def _as_wide_as(dtype: torch.dtype) -> tuple[torch.dtype, ...]:
    floats = torch.float16, torch.bfloat16, torch.float32, torch.float64
    able = (f for f in (dtype, *floats) if _promoted(dtype, f) == f)
    return tuple(dict.fromkeys(able))


def _promoted(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """torch.promote_types, for which no two kinds of float8 have a common type."""
    return a if a == b else torch.promote_types(a, b)


def judged(
    side: str,
    function: Callable[..., Tensor],
    number: int,
    arguments: tuple[Any, ...],
    expected: Expected,
) -> tuple[Finding, Tensor | None]:
    """One side's finding on ``inputs[number]``, and its result unless it raised or is of another
    shape or dtype than it should be."""
    shapes = [list(a.shape) for a in arguments if isinstance(a, Tensor)]
    finding = Finding(side, number, shapes)
    try:
        guards: list[Guarded] = []
        given = _copies(arguments)
        memory = [t.detach() for t in tensors(given)]
        with running.GuardedAllocations(guards):
            result = _call(side, function, given)
        expected.refuse(result)
        comparison = expected.compare(result)
    except Exception as error:  # noqa: BLE001 - whatever a kernel throws is a finding
        finding.error = running.brief(error)
        return finding, None
    if not all(guarded.intact() for guarded in guards):
        finding.error = "wrote outside memory that it allocated"
    reference = expected.reference.to(result.device)
    if result.numel():
        finding.worst_ulps = float(judging.by_ulps(result, reference, 0).error.max())
    if not bool(comparison.right.all()):
        finding.deviation = judging.deviation(result, reference, *comparison[:3])
        finding.max_ulps = None if expected.bound is not None else expected.max_ulps
    if _shares_memory(result, memory):  # which is looked at, and overwritten, at last
        result = result.detach().clone()
    if (beside := damaged(memory)) and finding.error is None:
        which = ", ".join(f"{i} {list(memory[i].shape)}" for i in beside)
        finding.error = f"wrote between or around the elements of its input tensors: {which}"
    return finding, result


def _shares_memory(result: Tensor, memory: list[Tensor]) -> bool:
    try:
        storages = {t.untyped_storage().data_ptr() for t in memory}
        return result.untyped_storage().data_ptr() in storages
    except (NotImplementedError, RuntimeError):  # of another layout
        return False


class Call(Kernel):
    """A call that launches kernels, and the right result."""

    outside_is_usage = False

    def __init__(
        self,
        function: Callable[..., Tensor],
        arguments: tuple[Any, ...],
        expected: Expected,
    ) -> None:
        super().__init__(function, (), arguments, {}, None, expected.max_ulps, None)
        self._wanted = expected
        self.in_ulps = expected.bound is None

    def prepare(self, device: torch.device) -> Any:
        return {"arguments": _copies(self._given[0], device)}

    def launch(self, state: Any, shadows: Any = None) -> None:
        with running.GuardedAllocations([]):
            state["result"] = self._kernel(*state["arguments"])

    def judge(self, state: Any, stores: Stores | None) -> list[Result]:
        result = state["result"]
        self._wanted.refuse(result)
        return [Result("result", result, self._wanted.reference, self._wanted.compare(result))]

    def compilable(self) -> bool:
        """Not from here: it is run for its interpreted programs."""
        return False


def _note(
    finding: Finding,
    triton: Callable[..., Tensor],
    arguments: tuple[Any, ...],
    expected: Expected,
) -> None:
    """For a test that fails by this: the Triton side can be run again in a debugger."""

    def again(session: Any) -> None:
        session.first = finding.error is None
        call = Call(triton, arguments, expected)
        investigation.investigate(call, sanitize=False, session=session)

    failures.note(again)


def _copies(arguments: tuple[Any, ...], device: torch.device | None = None) -> tuple[Any, ...]:
    """What a call gets."""
    copied: tuple[Any, ...] = copies(arguments, device, poison=True)
    for new, t in zip(tensors(copied), tensors(arguments)):
        if t.requires_grad and new.is_leaf:
            new.requires_grad_()
    return copied


def _call(side: str, function: Callable[..., Tensor], arguments: tuple[Any, ...]) -> Tensor:
    on_gpu = any(isinstance(a, Tensor) and a.is_cuda for a in arguments)
    if side != "cuda" and not on_gpu:
        with triton_kernels.interpret():
            return function(*arguments)
    result = function(*arguments)
    if on_gpu:
        torch.cuda.synchronize()
    return result


def _same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bool(numerics.same_bits(a, b).all())
