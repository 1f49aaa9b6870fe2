"""cross_check: the same scrutiny for a kernel pair that is not in this repository."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

import triton_kernels
from compare import checking, numerics
from compare.checking import Deviation


@dataclass
class Finding:
    """One side on one set of inputs."""

    side: str
    inputs: int
    shapes: list[list[int]]
    worst_ulps: float = 0.0
    error: str | None = None
    deviation: Deviation | None = None

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
        return "\n".join([self.verdict, *shown])

    def to_json(self) -> str:
        """Everything as a JSON text."""
        found = {
            "passed": bool(self),
            "verdict": self.verdict,
            "agree_bitwise": self.agree,
            "findings": [asdict(finding) for finding in self.findings],
        }
        return json.dumps(numerics.json_safe(found))


Tolerance = Callable[..., Tensor]


def cross_check(
    *,
    triton: Callable[..., Tensor],
    cuda: Callable[..., Tensor],
    oracle: Callable[..., Tensor],
    inputs: Sequence[tuple[Any, ...]],
    max_ulps: float = 1.0,
    bound: Tolerance | None = None,
) -> Report:
    """Run two implementations of one function on the same inputs, against an oracle.

    CPU tensors run the Triton side in the interpreter, CUDA tensors compiled.

    Args:
        triton, cuda: callables that take one entry of ``inputs`` and return a tensor.
        oracle: takes the same; returns what is right, in the result's dtype or in float64.
        inputs: a list of argument tuples. Every call gets copies of the tensors.
        max_ulps: the largest right distance to the oracle's result, rounded to the result's dtype.
        bound: instead of max_ulps, the largest right \\|result − oracle\\| of each element: called
            with the oracle's result and the arguments.

    Returns:
        A :class:`Report`.

    Raises:
        TypeError: ``inputs`` is not a list of tuples, or ``oracle`` returns no tensor.
        ValueError: ``inputs`` is empty.

    Example:
        >>> report = cross_check(triton=f, cuda=g, oracle=lambda x: x.double().sin(), inputs=[(x,)])
        >>> assert report, report
    """
    __tracebackhide__ = True  # pytest shows the caller's line, not this page
    if isinstance(inputs, Tensor) or not all(isinstance(each, tuple) for each in inputs):
        raise TypeError("cross_check(): argument 'inputs' must be a list of argument tuples")
    if not inputs:
        raise ValueError("cross_check(): argument 'inputs' is empty: nothing would be checked")
    report, failed = Report(), None
    for number, arguments in enumerate(inputs):
        reference = oracle(*_copies(arguments))
        if not isinstance(reference, Tensor):
            raise TypeError(f"cross_check(): the oracle returned {type(reference).__name__}")
        results = []
        for side, function in (("triton", triton), ("cuda", cuda)):
            finding, result = judged(side, function, number, arguments, reference, max_ulps, bound)
            report.findings.append(finding)
            results += [] if result is None else [result]
        report.agree &= len(results) == 2 and _same(*results)
        if not report.findings[-2].passed and failed is None:
            failed = report.findings[-2], arguments, reference
    if failed is not None:
        _note(failed[0], triton, *failed[1:], max_ulps, bound)
    return report


def judged(
    side: str,
    function: Callable[..., Tensor],
    number: int,
    arguments: tuple[Any, ...],
    reference: Tensor,
    max_ulps: float,
    bound: Tolerance | None,
) -> tuple[Finding, Tensor | None]:
    """One side's finding on ``inputs[number]``, and its result unless it raised or has no such
    shape."""
    shapes = [list(a.shape) for a in arguments if isinstance(a, Tensor)]
    finding = Finding(side, number, shapes)
    try:
        result = _call(side, function, _copies(arguments))
        _judge(finding, result, reference, arguments, max_ulps, bound)
        return finding, result
    except Exception as error:  # noqa: BLE001 - whatever a kernel throws is a finding
        finding.error = checking.brief(error)
        return finding, None


def _note(finding: Finding, triton: Callable[..., Tensor], *of_call: Any) -> None:
    """For a test that fails by this: the Triton side can be run again in a debugger."""
    from compare.debugging import failures, investigation

    def again(session: Any) -> None:
        session.first = finding.error is None
        investigation.investigate(failures.Call(triton, *of_call), sanitize=False, session=session)

    failures.note(again)


def _copies(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(a.clone() if isinstance(a, Tensor) else a for a in arguments)


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


def _judge(
    finding: Finding,
    result: Tensor,
    reference: Tensor,
    arguments: tuple[Any, ...],
    max_ulps: float,
    bound: Tolerance | None,
) -> None:
    if not isinstance(result, Tensor):
        raise TypeError(f"returned {type(result).__name__}, expected a tensor")
    if result.shape != reference.shape:
        raise ValueError(f"returned shape {list(result.shape)}, expected {list(reference.shape)}")
    reference = reference.to(result.device)
    distance = numerics.ulps(result, reference.to(result.dtype))
    finding.worst_ulps = float(distance.max()) if distance.numel() else 0.0
    if bound is not None:
        limit = bound(reference, *arguments).to(result.device).double()
        error, right = numerics.within(result, reference.double(), limit)
    else:
        error, limit = distance, torch.full_like(distance, max_ulps)
        right = distance <= max_ulps
    if not bool(right.all()):
        finding.deviation = checking.deviation(result, reference, right, error, limit)
        finding.worst_ulps = max(finding.worst_ulps, math.ulp(0.0))
