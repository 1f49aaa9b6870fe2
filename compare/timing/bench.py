"""Benchmarks: the cases, their inputs, the check of results, and timing one case."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from compare.cases import Arguments, Case, tensors_of
from compare.checking import oracles, running
from compare.specs import Spec
from compare.timing import configurations, engine, nvml, providers
from compare.timing.engine import Budget, Candidate, Device, Timing
from compare.timing.gpu import Ceilings
from compare.timing.results import HOST_BOUND, CaseResult, Entry

DTYPES = ("float32", "float16", "bfloat16")  # timed by default
SETS = 3  # of inputs, used in turn
MEMORY = 4 << 30  # bytes for all sets; if that is too little, there are fewer sets
ABSORBED = 64 << 20  # bytes of written lines that L2 may hold
LOOKED_AT = 1 << 22  # elements of operands and result of a checked slice
# Peers round differently, so only the norm of their error is checked (Frobenius).
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-4, "float64": 1e-10}
TOLERANCE["tf32"] = TOLERANCE["float16"]  # as many mantissa bits


@dataclass(frozen=True)
class Mode:
    """How samples are taken: with L2 emptied before each or not, of calls or of graph replays."""

    cold: bool = True
    graph: bool = False


class Work(NamedTuple):
    """A case to time. In a sweep it has the sweep's name and size, in a sample its stratum."""

    spec: Spec
    case: Case
    sweep: str = ""
    x: int = 0
    stratum: str = ""


def inputs(spec: Spec, case: Case, seed: int, device: str = "cuda") -> Arguments:
    """A case's arguments, with random numbers drawn on the GPU. Shape, dtype, strides, offset and
    gaps are the case's. If a spec allows no random numbers, its own inputs are used."""
    if not spec.random_inputs:
        return spec.inputs(case, torch.device(device))
    args, kwargs = spec.inputs(case, torch.device("meta"))
    generator = torch.Generator(device).manual_seed(seed)

    def filled(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        start, sizes = value.storage_offset(), zip(value.shape, value.stride())
        extent = start + 1 + sum((n - 1) * stride for n, stride in sizes) if value.numel() else 0
        memory = torch.empty(extent, dtype=value.dtype, device=device)
        if value.is_floating_point():
            memory.normal_(generator=generator)
        else:
            memory.random_(generator=generator)
        return memory.as_strided(value.shape, value.stride(), start)

    return tuple(map(filled, args)), {name: filled(value) for name, value in kwargs.items()}


def _arithmetic(case: Case) -> str:
    """The arithmetic of a case's products."""
    return "tf32" if providers.in_tf32(case) else case.dtype


class Checker:
    """Judges results: ours by bits or the op's bound, peers' by a norm."""

    def __init__(self, spec: Spec, case: Case) -> None:
        self._spec, self._case = spec, case
        self._oracles: dict[Any, Tensor] = {}

    def __call__(self, candidate: Candidate, result: Any, arguments: Arguments) -> str:
        if not isinstance(result, Tensor):
            return f"returned {type(result).__name__}"
        return self._judged(candidate.name, result, arguments, arguments[0][0].data_ptr())

    def _judged(self, provider: str, result: Tensor, arguments: Arguments, key: Any) -> str:
        if key not in self._oracles:
            self._oracles[key] = oracles.results(self._spec, arguments)
        reference = self._oracles[key]
        if result.shape != reference.shape:
            return f"returned shape {list(result.shape)}"
        loosely = self._spec.by_norm or provider == engine.CONTROL
        if loosely or providers.is_peer(provider):
            error = off_by_norm(result, reference)
            worst = TOLERANCE.get(_arithmetic(self._case), 0.0)
            return "" if error <= worst else f"wrong: off by {error:.1e} of its norm"
        # For given inputs the dtype of results is unknown.
        known = self._spec.own and self._spec.bounded and self._spec.random_inputs
        if known and result.dtype != (expected := self._spec.out_dtype(self._case)):
            return f"returned {result.dtype}, expected {expected}"
        mode = "triton-compiled" if provider.startswith("triton") else "cuda-gpu"
        variant = provider.partition("/")[2]
        name = f"{mode}/{variant}" if variant else mode
        comparison = running.compare(self._spec, self._case, name, arguments, result, reference)
        wrong = int((~comparison.right).sum())
        return f"wrong: {wrong} of {result.numel()} elements" if wrong else ""


def off_by_norm(result: Tensor, reference: Tensor) -> float:
    """‖error‖ / ‖reference‖. Elements that overflow in both have no error."""
    rounded, wide_result = reference.to(result.dtype).double(), result.double()
    same = rounded.isinf() & (rounded == wide_result)
    wide = reference.double().masked_fill(same, 0)
    return float((wide_result.masked_fill(same, 0) - wide).norm() / wide.norm())


class SliceChecker(Checker):
    """Judges the first, the middle and the last slice of a result with more than LOOKED_AT
    elements. The oracle of the whole would take longer than the timing."""

    def __call__(self, candidate: Candidate, result: Any, arguments: Arguments) -> str:
        along = self._spec.cut(arguments)
        if along is None or not isinstance(result, Tensor):
            return super().__call__(candidate, result, arguments)
        shape = self._spec.result_shape(arguments)
        if tuple(result.shape) != shape:
            return f"returned shape {list(result.shape)}"
        length = shape[along]
        work = max(math.prod(shape), *(t.numel() for t in tensors_of(arguments)))
        size = max(1, LOOKED_AT * length // max(1, work))
        if 3 * size >= length:
            return super().__call__(candidate, result, arguments)
        for start in (0, (length - size) // 2, length - size):
            part = self._spec.part(arguments, along, start, size)
            key = arguments[0][0].data_ptr(), start
            own = result.narrow(along, start, size)
            if wrong := self._judged(candidate.name, own, part, key):
                return f"{wrong}, of {start} to {start + size} along dimension {along}"
        return ""


def first_values(result: Any, count: int = 4) -> list[float]:
    """The first elements of a result."""
    if not isinstance(result, Tensor) or not result.numel():
        return []
    while result.dim() > 1:
        result = result[0]
    values: list[float] = result.reshape(-1)[:count].tolist()
    return values


def candidates(spec: Spec, case: Case, wanted: Sequence[str]) -> Iterator[Candidate]:
    """The wanted providers, or all configurations of a product if they are wanted."""
    if configurations.NAME in wanted:
        return configurations.candidates(spec, case)
    return providers.candidates(spec, case, wanted)


def run_case(
    spec: Spec,
    case: Case,
    wanted: Sequence[str],
    gpu: Device,
    ceilings: Ceilings,
    budget: Budget,
    tick: Callable[[str], None] = lambda name: None,
    mode: Mode = Mode(),
    drawn: bool = False,
) -> CaseResult:
    """Time the wanted providers of a case against each other. For a ``drawn`` case slices of the
    results are checked, and the fastest peer is timed twice.

    Raises:
        DeviceLostError: the GPU answers no more calls after an error.
    """
    begin = time.perf_counter()
    flops, moved = spec.cost(case)
    matrix = spec.bounded
    limit = ceilings.limit(_arithmetic(case), flops if matrix else 0, moved)
    arithmetic = matrix and limit > 1.01e6 * moved / ceilings.bandwidth
    unit = "TFLOP/s" if arithmetic else "GB/s"
    result = CaseResult(case, limit, unit, flops, moved, matrix)
    chosen = list(candidates(spec, case, wanted))
    # A graph keeps its result; there is one per candidate and set of inputs.
    sets = max(1, min(SETS, MEMORY // max(1, moved * (len(chosen) if mode.graph else 1))))
    watch, seen = nvml.Watch(), dict[str, list[float]]()
    try:
        arguments = [inputs(spec, case, seed) for seed in range(sets)]
    except torch.OutOfMemoryError as error:
        said = f"no memory for the inputs: {str(error).splitlines()[0]}"
        timings = [Timing(candidate.name, problem=said) for candidate in chosen]
    else:
        right = (SliceChecker if drawn else Checker)(spec, case)

        def check(candidate: Candidate, out: Any, arguments: Arguments) -> str:
            seen.setdefault(candidate.name, first_values(out))
            return right(candidate, out, arguments)

        twice = providers.PEERS if drawn else ()
        timings = engine.measure(
            chosen, arguments, gpu, check, budget, mode.cold, 0, tick, mode.graph, watch.look, twice
        )
    result.throttling = sorted(watch.throttling)
    result.state_before, result.state_after = watch.before, watch.after
    # From a warm L2 bytes come faster than the measured limit.
    bytes_bind = moved if mode.cold else 0
    if drawn:  # of a large result a part may still be in L2 at the end
        bytes_bind = max(0, bytes_bind - ABSORBED)
    fastest = ceilings.possible(_arithmetic(case), flops if matrix else 0, bytes_bind)
    for timing in timings:
        entry = Entry(timing.name, timing, timing.problem)
        entry.first_values = seen.get(timing.name, ())
        result.entries.append(entry)
        if entry.problem:
            continue
        median = timing.gpu.median
        if timing.host_bound:
            graph = f"{timing.replay:.3g} µs as a CUDA graph"
            entry.problem = f"{HOST_BOUND}: launching takes {timing.host:.0f} µs; {graph}"
            continue
        if median < fastest:
            entry.problem = f"{median:.3g} µs is faster than the hardware can ({fastest:.3g} µs)"
            continue
        entry.percent_of_limit = 100 * limit / median if mode.cold or arithmetic else None
        entry.rate = result.rates(entry)[unit]
    result.rank()
    result.seconds = time.perf_counter() - begin
    return result


def work(
    specs: list[Spec],
    dtypes: list[str],
    shapes: list[tuple[int, ...]],
    sweeps: list[str] | None = None,
    full: bool = False,
) -> Iterator[Work]:
    """What to time: the ops' timed cases, or these shapes, or these sweeps ([] means all).

    ``full``: the timed cases and all sweeps.
    """
    for spec in specs:
        for dtype in dtypes or (spec.dtypes if spec.own else DTYPES):
            if dtype not in spec.dtypes:
                continue
            timed = list(spec.timed(dtype, spec.default_options))
            if shapes:
                for shape in shapes:
                    if len(shape) == len(spec.default_shape):
                        yield Work(spec, Case(spec.name, dtype, shape, options=timed[0].options))
            elif sweeps is None:
                yield from (Work(spec, case) for case in timed)
            if full or sweeps is not None:
                for name, x, case in spec.sweeps(dtype, spec.default_options):
                    if not sweeps or name in sweeps:
                        yield Work(spec, case, name, x)
