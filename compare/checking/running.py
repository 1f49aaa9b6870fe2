"""One run of an implementation on a case: its output is guarded and poisoned, then judged."""

from __future__ import annotations

import math
import os
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from compare import cases, numerics
from compare.cases import Arguments, Case, Guarded
from compare.checking import histograms, judging
from compare.checking.histograms import Histogram
from compare.checking.implementations import Implementation
from compare.checking.judging import Comparison, Deviation
from compare.checking.oracles import Oracle, check_precision
from compare.checking.without_gpu import WithoutGpu
from compare.ops import has_name, words
from compare.specs import Spec
from triton_kernels import interpreter

NO_LAUNCH = "the Triton side launched no kernel, so no Triton kernel was checked"


@dataclass
class Mismatch:
    """A wrong result, or a failure before there was a result."""

    case: Case
    implementation: str
    problem: str  # "wrong values", "wrote outside its output" and the like, or an error's text
    deviation: Deviation | None = None
    program_id: tuple[int, ...] | None = None
    attack: int = 0  # steps of a search that led to its inputs

    @property
    def replay(self) -> str:
        return replayed(self.case, self.implementation, self.attack)

    @property
    def debug(self) -> str:
        """The command that debugs it, or "": debug knows no inputs that a search has changed."""
        return "" if self.attack else self.case.command(self.implementation, "debug")

    def __str__(self) -> str:
        lines = [f"{self.implementation}: {self.case}: {self.problem}"]
        if self.deviation is not None:
            lines += [f"  {line}" for line in str(self.deviation).splitlines()]
        if self.program_id is not None:
            lines.append(f"  on the Triton side program {self.program_id} writes it")
        if has_name(self.case.op):
            lines += [f"  replay: {self.replay}"]
            lines += [f"  debug: {self.debug}"] if self.debug else []
        return "\n".join(lines)


def replayed(case: Case, implementation: str, attack: int) -> str:
    """The command that checks the case, or what so many steps of a search make of it."""
    command = case.command(implementation)
    return f"{command} --attack {attack}" if attack else command


@dataclass
class Outcome:
    """The outcome of one implementation on one case.

    Attributes:
        worst: ULPs, or the fraction of the bound.
        errors: measure → histogram of all elements (:mod:`compare.checking.histograms`).
        bits: where bits decide: "right" or a digest of the result; equal for equal results.
        launches: the number of kernel launches of an interpreted function from elsewhere.
        replay: of a search, the command that repeats it.
    """

    implementation: Implementation
    worst: float
    result: Tensor | None
    mismatch: Mismatch | None
    errors: dict[str, Histogram] = field(default_factory=dict)
    bits: str | None = None
    launches: int | None = None
    replay: str = ""


def memory_asked(error: BaseException) -> str | None:
    """The size that a failed allocation asked for, in words; None for any other error."""
    text = str(error)
    asked = re.search(r"[Tt]ried to allocate ([\d.]+ [A-Za-z]+)", text)
    # The driver's text if there is no memory even for a context.
    of_driver = re.match(r"(CUDA error: )?out of memory( \(\d+\))?$", text, re.M)
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        asked and "DefaultCPUAllocator" in text
    ):
        return f"out of memory, asked for {asked[1]}" if asked else f"out of memory: {text}"
    return "out of memory" if of_driver else None


def gpu_is_lost() -> bool:
    """Whether a kernel has broken this process's CUDA context, which cannot be repaired."""
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return memory_asked(error) is None
    return False


def run(
    spec: Spec,
    case: Case,
    implementation: Implementation,
    arguments: Arguments,
    reference: Tensor | Oracle,
    out_layout: Tensor | None = None,
) -> Outcome:
    """Run an implementation on a case with guarded, poisoned output, and compare each element.

    ``out_layout`` is a tensor whose strides the output shall have, instead of the case's layout.
    """
    oracle = Oracle.of(spec, arguments, reference)
    check_precision(spec, case, oracle.like.dtype)
    before, launched = _memories(arguments), interpreter.launches()
    try:
        result, guards = call(spec, case, implementation, arguments, oracle.like, out_layout)
        if implementation.device.type == "cuda":
            torch.cuda.synchronize()
    except (Exception, SystemExit) as error:
        if memory_asked(error) is not None:
            raise
        # Any other error of a kernel under test is a mismatch.
        return Outcome(
            implementation, math.inf, None, Mismatch(case, implementation.name, brief(error))
        )
    intact = all(guarded.intact() for guarded in guards)
    del guards  # what the kernels allocated is not needed beside what judging needs
    outcome = judge(spec, case, implementation, arguments, result, oracle)
    if spec.own and implementation.mode == "triton-interpreted":
        outcome.launches = interpreter.launches() - launched
    problem = "" if intact else "wrote outside its output"
    for memory, copy in before:
        if not torch.equal(memory, copy):
            problem = "wrote to its inputs"
            memory.copy_(copy)  # restore the inputs for the next implementation
    if outcome.mismatch is None and problem:
        outcome.mismatch = Mismatch(case, implementation.name, problem)
        outcome.worst = math.inf
    return outcome


def _memories(arguments: Arguments) -> list[tuple[Tensor, Tensor]]:
    """The inputs' memory as bytes, gaps included, and copies of it."""
    tensors = [t.untyped_storage() for t in cases.tensors_of(arguments)]
    storages = {storage.data_ptr(): storage for storage in tensors}
    small = [storage for storage in storages.values() if storage.nbytes() <= cases.WATCHED]
    memories = [torch.tensor([], dtype=torch.uint8, device=s.device).set_(s) for s in small]
    return [(memory, memory.clone()) for memory in memories]


def call(
    spec: Spec,
    case: Case,
    function: Callable[..., Tensor],
    arguments: Arguments,
    reference: Tensor,
    out_layout: Tensor | None = None,
    guards: list[Guarded] | None = None,
) -> tuple[Tensor, list[Guarded]]:
    """The function's result on a case, and the guards around the memory that it may write. The
    output is poisoned; its layout is the case's, unless the function allocates it. Guards are
    appended to ``guards`` before the call. Only the shape and dtype of ``reference`` matter.
    """
    args, kwargs = arguments
    function = _in_block_order(case, spec.called(case, function))
    guards = [] if guards is None else guards
    garbage = GARBAGE[(zlib.crc32(str(case).encode()) >> 1) % len(GARBAGE)]
    if case.layout == "functional" or not spec.takes_out:
        with GuardedAllocations(guards, garbage=garbage):
            return function(*args, **kwargs), guards
    dtype = _result_dtype(spec, case, reference)
    where = case.out_layout if out_layout is None else out_layout
    guarded = Guarded(tuple(reference.shape), dtype, reference.device, where)
    guards.append(guarded)
    if case.layout == "inplace":
        guarded.out.copy_(args[0])
        args = (guarded.out, *args[1:])
    # Workspaces then hold no parts of an earlier call.
    with GuardedAllocations(guards, cases.WATCHED, garbage):
        result = function(*args, **kwargs, out=guarded.out)
    if result is not guarded.out:
        raise RuntimeError("returned another tensor than out")
    return result, guards


def _in_block_order(case: Case, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function, with the host target's blocks in reverse order for every second case, since no
    result may depend on their order. The environment variable takes precedence."""
    setting = "CROSSCHECK_BLOCK_ORDER"
    if setting in os.environ or zlib.crc32(str(case).encode()) % 2:
        return function

    def backwards(*args: Any, **kwargs: Any) -> Tensor:
        os.environ[setting] = "reverse"
        try:
            return function(*args, **kwargs)
        finally:
            del os.environ[setting]

    return backwards


def brief(error: BaseException) -> str:
    """An error's text. Of a long one, such as a compiler's with the kernel's source, only the first
    and the last lines."""
    lines = [line for line in f"{type(error).__name__}: {error}".splitlines() if line.strip()]
    return "\n".join(lines if len(lines) <= 6 else [lines[0], "  …", *lines[-3:]])


_ALLOCATE = (
    torch.empty,
    torch.empty_like,
    torch.empty_strided,
    Tensor.new_empty,
    Tensor.new_empty_strided,
)


# What new memory of floats holds, in turn; NaN first. NaN alone would not show an element that
# nobody wrote to a maximum, nor to a kernel that computes rows with NaN again.
GARBAGE = (math.nan, 1234.5, -1234.5)


class GuardedAllocations(WithoutGpu):
    """torch.empty and similar functions return guarded memory that is filled with poison; between
    the guards, with ``garbage``, or the number nearest to it, if it holds floats. So elements that
    are never written are noticed, and writes outside the tensor. Not those of more than ``most``
    bytes."""

    def __init__(
        self, guards: list[Guarded], most: float = math.inf, garbage: float = math.nan
    ) -> None:
        super().__init__()
        self.guards, self._most, self._garbage = guards, most, garbage

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = super().__torch_function__(func, types, args, kwargs)
        if func not in _ALLOCATE or torch.compiler.is_compiling():
            return result
        plain = type(result) is Tensor and result.layout is torch.strided
        if not plain or result.requires_grad or result.device.type not in ("cpu", "cuda"):
            return result
        if result.nbytes > self._most:
            return result
        guarded = Guarded(tuple(result.shape), result.dtype, result.device, result)
        if result.is_floating_point() and not math.isnan(self._garbage):
            limits = torch.finfo(result.dtype)  # those of 8 bits overflow
            guarded.out.fill_(min(max(self._garbage, limits.min), limits.max))
        self.guards.append(guarded)
        return guarded.out


def misfit(spec: Spec, case: Case, result: Any, like: Tensor) -> str:
    """Why a returned value cannot be compared with the oracle's result, or ""."""
    if not isinstance(result, Tensor):
        return f"returned {type(result).__name__}, expected one tensor"
    dtype = _result_dtype(spec, case, like)
    if result.shape == like.shape and result.dtype == dtype:
        return ""
    expected = f"expected {dtype} {tuple(like.shape)}"
    return f"returned {result.dtype} {tuple(result.shape)}, {expected}"


def _result_dtype(spec: Spec, case: Case, like: Tensor) -> torch.dtype:
    return spec.out_dtype(case) if spec.bounded else like.dtype


def judge(
    spec: Spec,
    case: Case,
    implementation: Implementation,
    arguments: Arguments,
    result: Tensor,
    reference: Tensor | Oracle,
) -> Outcome:
    """Compare a result with the oracle's, by bits or with the op's bound."""
    oracle = Oracle.of(spec, arguments, reference)
    like = oracle.like
    if text := misfit(spec, case, result, like):
        return Outcome(implementation, math.inf, None, Mismatch(case, implementation.name, text))
    exact = spec.in_ulps or spec.exact(case)
    worst, deviations = 0.0, []
    errors: dict[str, Histogram] = {}
    try:
        for part in oracle.parts():
            own, expected = part.of(result), part.reference
            right, error, bound, score = compare(
                spec, case, implementation.name, part.arguments, own, expected
            )
            worst = max(worst, float(score.max()) if score.numel() else 0.0)
            if exact and spec.max_ulps:  # right elements have errors, too
                counts = {"exact_ulp": histograms.counted(error)}
            elif exact:
                counts = histograms.of_exact(right, error)
            else:
                counts = histograms.of_bounded(error, bound, score, expected, result.dtype)
            for measure, counted in counts.items():
                errors.setdefault(measure, Histogram()).update(counted)
            if not bool(right.all()):
                deviation = judging.deviation(own, expected, right, error, bound)
                deviations.append(replace(deviation, index=part.place(deviation.index)))
    except ValueError as useless:  # a bound that proves nothing
        return Outcome(
            implementation,
            math.inf,
            None,
            Mismatch(case, implementation.name, f"no verdict: {useless}"),
        )
    if not deviations:
        return Outcome(
            implementation, worst, result, None, errors, None if spec.bounded else "right"
        )
    described = judging.worst(deviations, result.numel())
    return Outcome(
        implementation,
        worst,
        result,
        Mismatch(case, implementation.name, "wrong values", described),
        errors,
        None if spec.bounded else numerics.digest(result),
    )


def compare(
    spec: Spec,
    case: Case,
    implementation: str,
    arguments: Arguments,
    result: Tensor,
    reference: Tensor,
) -> Comparison:
    """Judge every element, by bits or with the op's bound for that implementation."""
    limits = bounds(spec, case, implementation, arguments, result, reference)
    return by_rule(spec, result, reference, limits)


def bounds(
    spec: Spec,
    case: Case,
    implementation: str,
    arguments: Arguments,
    result: Tensor,
    reference: Tensor,
) -> Tensor | None:
    """The op's bound of every element for that implementation; None if bits decide.

    Raises:
        ValueError: the bound is infinite, NaN or negative where the oracle is finite; the bound of
            a spec from elsewhere raises, or has another shape.
    """
    if spec.in_ulps or spec.exact(case):
        return None
    try:
        bound = spec.bound(implementation, arguments, reference, result.dtype)
    except Exception as error:
        if memory_asked(error) is not None or not spec.own:
            raise
        raise ValueError(f"its bound raises {words(error)}") from error
    shapes = tuple(bound.shape), tuple(reference.shape)
    if spec.own and not _expands(*shapes):
        raise ValueError(f"its bound is of shape {shapes[0]}, the results of {shapes[1]}")
    judging.check_bound(bound, reference)
    return bound.expand(reference.shape)


def _expands(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    own = to[max(0, len(to) - len(shape)) :]
    return len(shape) <= len(to) and all(n in (1, size) for n, size in zip(shape, own))


def by_rule(
    spec: Spec, result: Tensor, reference: Tensor, bound: Tensor | None = None
) -> Comparison:
    """Compare by bits, with the given bound, or with the spec's ULPs."""
    if bound is not None:
        return judging.by_bound(result, reference, bound)
    if spec.max_ulps is not None:
        return judging.by_ulps(result, reference, spec.max_ulps)
    # The sign of a zero sum depends on the order of additions.
    return judging.by_bits(result, reference, zeros_alike=spec.bounded)
