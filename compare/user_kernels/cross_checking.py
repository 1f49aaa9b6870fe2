"""cross_check: the checks of this project's ops, for any pair of kernels."""

from __future__ import annotations

import contextlib
import itertools
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import triton_kernels
from compare import numerics
from compare.cases import CPU, Guarded
from compare.checking import judging, running
from compare.checking.judging import Deviation, Tolerance
from compare.checking.stores import Stores
from compare.copies import copies, damaged, tensors
from compare.debugging import investigation
from compare.debugging.findings.failure import outside, place_text
from compare.debugging.findings.findings import Findings
from compare.debugging.observers.values import Allocations, Values
from compare.debugging.stepping import failures
from compare.debugging.subjects import Kernel, Result
from compare.user_kernels.configurations import configured
from compare.user_kernels.outputs import (
    Expectations,
    Expected,
    expected_outputs,
    judged_outputs,
    outputs_of,
)
from triton_kernels import interpreter as triton_interpreter

SOME_ROUNDINGS = 256  # ulps: a plausible error of a sum or softmax of some thousand elements


@dataclass
class Finding:
    """One output of one side on one set of inputs.

    Attributes:
        output: the path to it in the returned value: ``[0]``, ``['lse']``. Empty if one tensor was
            returned, or if the finding concerns the whole call.
        configuration: the autotuned kernels' configuration, in words, if every one is checked.
    """

    side: str
    inputs: int
    shapes: list[list[int]]
    output: str = ""
    worst_ulps: float = 0.0
    error: str | None = None
    deviation: Deviation | None = None
    max_ulps: float | None = None  # the tolerance; None if a bound decided
    floating: bool = True  # whether the output's values are floating-point numbers
    configuration: str = ""

    @property
    def near(self) -> bool:
        """Whether wrong values are close enough to the oracle's to be roundings. Integers and
        truth values are not rounded."""
        wrong = self.error is None and self.deviation is not None
        rounds = self.max_ulps is not None and self.floating
        return wrong and rounds and self.worst_ulps <= SOME_ROUNDINGS

    @property
    def nan(self) -> bool:
        """Whether the worst wrong value is NaN."""
        return self.deviation is not None and self.deviation.got.startswith("nan")

    @property
    def passed(self) -> bool:
        return self.error is None and self.deviation is None

    def __str__(self) -> str:
        of = f", output {self.output}" if self.output else ""
        of += f", {self.configuration}" if self.configuration else ""
        text = f"{self.side} on inputs[{self.inputs}] {self.shapes}{of}: "
        if self.error is not None:
            return text + self.error
        if self.deviation is not None:
            return text + "wrong values\n  " + str(self.deviation).replace("\n", "\n  ")
        return text + f"right, worst {self.worst_ulps:.3g} ulp"


@dataclass
class Report:
    """The result of cross_check: true if all is right; printable; with :meth:`to_json`.
    :meth:`debug` finds where the Triton side went wrong."""

    findings: list[Finding] = field(default_factory=list)
    agree: bool = True  # whether two sides returned the same bits; False for one side alone
    undefined: list[str] = field(default_factory=list)  # the origin of a wrong NaN, in words
    rounding: list[str] = field(default_factory=list)  # the tl.dot that causes a wrong value
    no_launch: bool = False  # whether the Triton side launched no kernel
    failed: Call | None = field(default=None, repr=False)  # the Triton side's first wrong call
    calls: list[Callable[[], Call]] = field(default_factory=list, repr=False)  # its every call

    def __bool__(self) -> bool:
        return all(finding.passed for finding in self.findings)

    @property
    def verdict(self) -> str:
        bad = {finding.side for finding in self.findings if not finding.passed}
        if not bad:
            alone = len({finding.side for finding in self.findings}) == 1
            within = "within the tolerance" if alone else "equal within the tolerance"
            return "pass: " + ("bitwise equal" if self.agree else within)
        if len(bad) > 1:
            if self.agree:
                return "FAIL: both sides agree and differ from the oracle: suspect the oracle"
            return "FAIL: both sides are wrong"
        return f"FAIL: the {bad.pop()} side is wrong"

    def __str__(self) -> str:
        shown = [str(f) for f in self.findings if not f.passed or bool(self)]
        nothing = [running.NO_LAUNCH] if self and self.no_launch else []
        told = [*self.undefined, *self.rounding, *nothing]
        return "\n".join([self.verdict, *shown, *self._hint(), *told])

    def _hint(self) -> list[str]:
        """Advice if only the default tolerance may be too small."""
        failed = [finding for finding in self.findings if not finding.passed]
        if not failed or not all(finding.near for finding in failed):
            return []
        worst = max(finding.worst_ulps for finding in failed)
        return [
            f"The worst is {worst:.3g} ulp off, and max_ulps={failed[0].max_ulps:g} is for "
            "functions that round once. If one that rounds more often, as a sum does, may be so "
            "far off, say max_ulps=… or bound=…"
        ]

    def debug(self) -> Findings:
        """The findings of :func:`compare.debug` on the Triton side's first wrong call, which runs
        again, interpreted, with all its launches. If no call is wrong, all run again until one has
        a hazard: what leaves the result right by luck, such as a race.

        Raises:
            ValueError: there is no Triton side.

        Example:
            >>> report = cross_check(triton=f, oracle=lambda x: x.double().sin(), inputs=[(x,)])
            >>> print(report.debug())
        """
        if not self.calls:
            raise ValueError("debug(): cross_check() got no 'triton' to debug")
        if self.failed is not None:
            return investigation.investigate(self.failed)
        for call in self.calls:
            findings = investigation.investigate(call())
            if not findings:
                break
        return findings

    def to_json(self) -> str:
        """The whole result as JSON text."""
        report = {
            "passed": bool(self),
            "verdict": self.verdict,
            "agree_bitwise": self.agree,
            "findings": [asdict(finding) for finding in self.findings],
        }
        return json.dumps(numerics.json_safe(report))


Each = Sequence[Any] | Mapping[str, Any]  # an option per output, nested like the outputs


def cross_check(
    *,
    triton: Callable[..., Any] | None = None,
    cuda: Callable[..., Any] | None = None,
    oracle: Callable[..., Any],
    inputs: Sequence[tuple[Any, ...]],
    max_ulps: float | Each = 1.0,
    bound: Tolerance | Each | None = None,
    dtype: torch.dtype | Each | None = None,
    every_configuration: bool = False,
) -> Report:
    """Run two implementations of one function on the same inputs, against an oracle.

    CPU tensors run the Triton side in the interpreter, CUDA tensors compiled.

    Integers must be equal. A NaN is right where the oracle is NaN. An infinity is right where the
    oracle is the same infinity, or is finite but past the largest number of the result's dtype.

    Args:
        triton, cuda: callables that take one entry of ``inputs`` and return a tensor, or several
            in tuples, lists and dicts; one of the two is enough.
        oracle: takes the same arguments and returns the right results, in the result's dtype or in
            float64. With several outputs they are nested in the same way; None accepts anything.
        inputs: a list of argument tuples. Every call gets copies of the tensors with the same
            strides, offset, alignment and shared memory, and with poison (NaN, −1) between the
            elements of views. Gigabytes between elements take no memory. Memory that a call
            allocates by torch.empty and similar functions also holds poison. A call must write
            nowhere else.
        max_ulps: the tolerance around the oracle's result, rounded to the result's dtype.
        bound: instead of max_ulps, makes the tolerance \\|result − oracle\\| of each element from
            the oracle's result and the arguments.
        dtype: of the results. By default the oracle's; if that is float64, any dtype that holds the
            promoted floating arguments.
        every_configuration: whether the Triton side is called on CPU tensors once for every
            configuration of its autotuned kernels that differs in more than options of the
            compiler. By default they run in the first one. Compiled, the autotuner chooses.

    Each of several outputs is judged by itself. ``max_ulps``, ``bound`` and ``dtype`` apply to all
    outputs, or are tuples, lists or dicts with one entry per output; dicts may leave some out.

    Returns:
        A :class:`Report`.

    Raises:
        TypeError: there is neither ``triton`` nor ``cuda``, ``inputs`` is not a list of tuples, or
            ``oracle`` returns no tensor.
        ValueError: ``inputs`` is empty; ``max_ulps`` is negative or not finite; the bound is
            negative or not finite where the oracle is finite; one of the three names an output
            that the oracle does not return.

    Example:
        >>> report = cross_check(triton=f, cuda=g, oracle=lambda x: x.double().sin(), inputs=[(x,)])
        >>> assert report, report
    """
    __tracebackhide__ = True  # pytest shows the caller's line, not this page
    if isinstance(inputs, Tensor) or not all(isinstance(each, tuple) for each in inputs):
        raise TypeError("cross_check(): argument 'inputs' must be a list of argument tuples")
    if not inputs:
        raise ValueError("cross_check(): argument 'inputs' is empty: nothing would be checked")
    given = {"triton": triton, "cuda": cuda}
    sides = {side: function for side, function in given.items() if function is not None}
    if not sides:
        raise TypeError("cross_check() needs the argument 'triton' or 'cuda': a function to check")
    report, failed = Report(agree=len(sides) == 2), None
    before = triton_interpreter.launches()
    for number, arguments in enumerate(inputs):
        expectations = partial(_expectations, oracle, arguments, max_ulps, bound, dtype)
        expected = expectations()
        judgements: dict[str, list[_Judged]] = {}
        every = every_configuration and not _on_gpu(arguments)
        for side, function in sides.items():
            calls = configured(function) if every and side == "triton" else (function,)
            judgements[side] = [
                _Judged(call, *judged(side, call, number, arguments, expected)) for call in calls
            ]
            for call, findings, _ in judgements[side]:
                for finding in findings:
                    finding.configuration = getattr(call, "configuration", "")
        if len(sides) == 2:
            twin = judgements["cuda"][0]
            report.agree &= all(_compared(each, twin, expected) for each in judgements["triton"])
        each = itertools.chain.from_iterable(judgements.values())
        report.findings += [finding for _, findings, _ in each for finding in findings]
        for call, findings, _ in judgements.get("triton", ()):
            report.calls.append(partial(_call_of, call, arguments, expectations))
            wrong = next((each for each in findings if not each.passed), None)
            if failed is None and wrong is not None:
                failed = wrong, call, arguments, expected
    if triton is not None and triton_interpreter.launches() == before:
        report.no_launch = not any(_on_gpu(arguments) for arguments in inputs)
    if report and report.no_launch:
        warnings.warn(f"cross_check(): {running.NO_LAUNCH}", stacklevel=2)
    if failed is not None:
        finding, call, arguments, expected = failed
        report.failed = Call(call, arguments, expected)
        _note(finding, report.failed)
        if finding.nan and not _on_gpu(arguments):
            report.undefined = _undefined(report.failed)
        if finding.deviation is not None and not _on_gpu(arguments):
            report.rounding = _rounding(report.failed)
    return report


class _Judged(NamedTuple):
    """A call of one side, its findings, and its outputs of the right shape and dtype."""

    call: Callable[..., Any]
    findings: list[Finding]
    results: dict[str, Tensor]


def _expectations(
    oracle: Callable[..., Any],
    arguments: tuple[Any, ...],
    max_ulps: float | Each,
    bound: Tolerance | Each | None,
    dtype: torch.dtype | Each | None,
) -> Expectations:
    """What the oracle says of a call."""
    returned, again = oracle(*_copies(arguments)), partial(_copies, arguments)
    return expected_outputs(returned, arguments, again, max_ulps, bound, dtype)


def _compared(one: _Judged, other: _Judged, expected: Expectations) -> bool:
    """Whether both sides returned the same bits. Another dtype becomes a finding."""
    for at in set(one.results) & set(other.results):
        if one.results[at].dtype != other.results[at].dtype:
            for each, theirs in ((one, other), (other, one)):
                finding = next(finding for finding in each.findings if finding.output == at)
                dtype = theirs.results[at].dtype
                finding.error = finding.error or f"the other side returned {dtype}"
    names = [at for at, _ in judged_outputs(expected)]
    a, b = one.results, other.results
    return all(at in a and at in b and _same(a[at], b[at]) for at in names)


def judged(
    side: str,
    function: Callable[..., Any],
    number: int,
    arguments: tuple[Any, ...],
    expected: Expectations,
) -> tuple[list[Finding], dict[str, Tensor]]:
    """One side's findings on ``inputs[number]``, one per output; and the outputs that have the
    right shape and dtype."""
    shapes = [list(a.shape) for a in arguments if isinstance(a, Tensor)]
    guards: list[Guarded] = []
    given = _copies(arguments)
    memory = [t.detach() for t in tensors(given)]
    try:
        garbage = running.GARBAGE[number % len(running.GARBAGE)]
        with running.GuardedAllocations(guards, garbage=garbage):
            returned = _call(side, function, given)
        outputs = outputs_of(returned, expected)
    except Exception as error:  # noqa: BLE001 - any error of a kernel is a finding
        text, place = running.brief(error), triton_interpreter.place_of(error) or outside(error)
        if place is not None and f"{place.file}:{place.line}" not in text:
            text += f"\n  {place_text(place)}"
        return [Finding(side, number, shapes, error=text)], {}
    findings: list[Finding] = []
    results: dict[str, Tensor] = {}
    for at, wanted in judged_outputs(expected):
        findings.append(Finding(side, number, shapes, at))
        result = _judge(findings[-1], outputs[at], wanted)
        if result is not None and _shares_memory(result, memory):
            result = result.detach().clone()  # the guards are checked, and overwritten, below
        results |= {} if result is None else {at: result}
    problems = []
    if not all(guarded.intact() for guarded in guards):
        problems.append("wrote outside memory that it allocated")
    if beside := damaged(memory):
        which = ", ".join(f"{i} {list(memory[i].shape)}" for i in beside)
        problems.append(f"wrote between or around the elements of its input tensors: {which}")
    if problems and len(findings) > 1:  # they concern no single output
        findings.insert(0, Finding(side, number, shapes))
    if problems:
        findings[0].error = findings[0].error or problems[0]
    return findings, results


def _judge(finding: Finding, result: Any, expected: Expected) -> Tensor | None:
    """Fill in the finding. Returns the result if it has the right shape and dtype."""
    try:
        expected.refuse(result)
        comparison = expected.compare(result)
    except Exception as error:  # noqa: BLE001 - a tensor of any kind may have been returned
        finding.error = running.brief(error)
        return None
    assert isinstance(result, Tensor)
    reference = expected.reference.to(result.device)
    if result.numel():
        finding.worst_ulps = float(judging.by_ulps(result, reference, 0).error.max())
    if not bool(comparison.right.all()):
        finding.deviation = judging.deviation(result, reference, *comparison[:3])
        finding.max_ulps = None if expected.bound is not None else expected.max_ulps
        finding.floating = result.is_floating_point()
    return result


def _shares_memory(result: Tensor, memory: list[Tensor]) -> bool:
    try:
        storages = {t.untyped_storage().data_ptr() for t in memory}
        return result.untyped_storage().data_ptr() in storages
    except (NotImplementedError, RuntimeError):  # of another layout
        return False


class Call(Kernel):
    """A call that launches kernels, with its right outputs."""

    outside_is_usage = False

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        expected: Expectations,
    ) -> None:
        super().__init__(function, (), arguments, {}, None, 0.0, None)
        self._wanted = expected
        self.in_ulps = all(each.bound is None for _, each in judged_outputs(expected))

    def prepare(self, device: torch.device) -> Any:
        return {"arguments": _copies(self._given[0], device)}

    def launch(self, state: Any, shadows: Any = None) -> None:
        fresh = contextlib.nullcontext() if shadows is None else Allocations(shadows)
        with running.GuardedAllocations([]), fresh:
            state["result"] = self._kernel(*state["arguments"])

    def judge(self, state: Any, stores: Stores | None) -> list[Result]:
        outputs = outputs_of(state["result"], self._wanted)
        results: list[Result] = []
        refused: Exception | None = None
        for at, expected in judged_outputs(self._wanted):
            try:
                expected.refuse(outputs[at])
            except (TypeError, ValueError) as error:
                refused = refused or error
                continue
            comparison = expected.compare(outputs[at])
            results.append(Result(f"result{at}", outputs[at], expected.reference, comparison))
        # If other outputs are wrong, too, their elements say more than a shape.
        if refused is not None and all(bool(each.comparison.right.all()) for each in results):
            raise refused
        return results

    def compilable(self) -> bool:
        """False: it is run for its interpreted programs."""
        return False


def _call_of(
    triton: Callable[..., Any],
    arguments: tuple[Any, ...],
    expectations: Callable[[], Expectations],
) -> Call:
    """A call to debug. Its expectations are computed again, rather than kept for every call."""
    return Call(triton, arguments, expectations())


def _note(finding: Finding, call: Call) -> None:
    """Let the Triton side run again in a debugger, for a test that fails by this finding."""

    def again(session: Any) -> None:
        session.first = finding.error is None
        investigation.investigate(call, sanitize=False, session=session)

    failures.note(again)


def _undefined(call: Call) -> list[str]:
    """The undefined values of loads that reached a result, found in another run: of lanes masked
    off, or of memory that nobody had written."""
    values = Values()
    with contextlib.suppress(Exception), triton_interpreter.interpreting(values):
        call.launch(call.prepare(CPU), values.shadows)
    hazards = {hazard.kind: [hazard] for hazard in reversed(values.hazards())}
    masked = hazards.get("undefined value")
    told = Findings("", hazards=masked or hazards.get("uninitialised memory", [])).hazard_lines()
    if masked is None:
        return told[0] if told else []
    return [
        *told[0],
        "Such lanes hold NaN here, and 0 on NVIDIA's GPUs, by no promise of Triton's: give other=, "
        "or set CROSSCHECK_MASKED_LOADS=zero to have 0 here, too",
    ]


def _rounding(call: Call) -> list[str]:
    """Whether more results are right if no tl.dot rounds its operands, in words."""
    roundings = investigation.Roundings()
    with contextlib.suppress(Exception):
        state = call.prepare(CPU)
        with triton_interpreter.interpreting(roundings):
            call.launch(state)
        wrong = sum(int((~each.comparison.right).sum()) for each in call.judge(state, None))
        return investigation.with_exact_dots(call, roundings, wrong)
    return []


def _copies(arguments: tuple[Any, ...], device: torch.device | None = None) -> tuple[Any, ...]:
    """The copies that a call gets."""
    copied: tuple[Any, ...] = copies(arguments, device, poison=True)
    for new, t in zip(tensors(copied), tensors(arguments)):
        if t.requires_grad and new.is_leaf:
            new.requires_grad_()
    return copied


def _on_gpu(arguments: tuple[Any, ...]) -> bool:
    return any(isinstance(a, Tensor) and a.is_cuda for a in arguments)


def _call(side: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    on_gpu = _on_gpu(arguments)
    if side != "cuda" and not on_gpu:
        with triton_kernels.interpret():
            return function(*arguments)
    result = function(*arguments)
    if on_gpu:
        torch.cuda.synchronize()
    return result


def _same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bool(numerics.same_bits(a, b).all())
