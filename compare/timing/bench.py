"""Benchmarks: every provider of every timed case, with what a result is worth."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from compare import checking
from compare.cases import Arguments, Case
from compare.specs import Spec
from compare.timing import engine, providers
from compare.timing.engine import Budget, Candidate, Timing
from compare.timing.gpu import Ceilings, Gpu
from compare.timing.statistics import Ratio, ratio

DTYPES = ("float32", "float16", "bfloat16")  # that are timed
SETS = 3  # of inputs, in turn
MEMORY = 4 << 30  # bytes that they may take; fewer sets beyond
# Peers round as they like: their results need only be the same function. Frobenius norms.
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-4, "float64": 1e-10}


@dataclass
class Entry:
    """One provider on one case.

    Attributes:
        problem: why there is no time; empty if there is.
        speedup: against the fastest peer; None for that peer itself and without one.
    """

    provider: str
    timing: Timing
    problem: str = ""
    percent_of_limit: float | None = None
    rate: float | None = None
    speedup: Ratio | None = None

    @property
    def is_peer(self) -> bool:
        return self.provider in providers.PEERS

    @property
    def failed(self) -> bool:
        """Whether its result is wrong, or it is ours and did not run."""
        if self.is_peer:
            return "wrong: " in self.problem
        return bool(self.problem) and not self.timing.host_bound

    def to_dict(self) -> dict[str, Any]:
        """For the JSON file; microseconds unless the name says otherwise."""
        found: dict[str, Any] = {"provider": self.provider, "problem": self.problem}
        if self.problem:
            return found
        gpu = self.timing.gpu
        return {
            **found,
            "median": gpu.median,
            "p20": gpu.percentile(20),
            "p80": gpu.percentile(80),
            "samples": len(gpu.microseconds),
            "replay": self.timing.replay,
            "host": self.timing.host,
            "first_call_seconds": self.timing.first_call,
            "rate": self.rate,
            "percent_of_limit": self.percent_of_limit,
            "speedup": self.speedup and self.speedup._asdict(),
        }


@dataclass
class CaseResult:
    """All providers on one case. ``rate_unit``: TFLOP/s where arithmetic is the limit, or GB/s."""

    case: Case
    limit: float
    rate_unit: str
    entries: list[Entry] = field(default_factory=list)
    best_peer: str = ""
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """For the JSON file."""
        return {
            "op": self.case.op,
            "dtype": self.case.dtype,
            "shape": self.case.shape,
            "options": dict(self.case.options),
            "limit": self.limit,
            "rate_unit": self.rate_unit,
            "best_peer": self.best_peer,
            "seconds": round(self.seconds, 2),
            "entries": [entry.to_dict() for entry in self.entries],
        }


def inputs(spec: Spec, case: Case, seed: int) -> Arguments:
    """A case's arguments with random numbers drawn on the GPU: as shaped, strided and typed."""
    args, kwargs = spec.inputs(case, torch.device("meta"))
    generator = torch.Generator("cuda").manual_seed(seed)

    def filled(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        new = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")
        if value.is_floating_point():
            return new.normal_(generator=generator)
        return new.random_(generator=generator)

    return tuple(map(filled, args)), {name: filled(value) for name, value in kwargs.items()}


class Checker:
    """Whether results are right: ours by bits or the op's bound, peers' by a norm."""

    def __init__(self, spec: Spec, case: Case) -> None:
        self._spec, self._case = spec, case
        self._oracles: dict[int, Tensor] = {}

    def __call__(self, candidate: Candidate, result: Any, arguments: Arguments) -> str:
        if not isinstance(result, Tensor):
            return f"returned {type(result).__name__}"
        key = arguments[0][0].data_ptr()
        if key not in self._oracles:
            self._oracles[key] = self._spec.oracle(*arguments[0], **arguments[1])
        reference = self._oracles[key]
        if result.shape != reference.shape:
            return f"returned shape {list(result.shape)}"
        if candidate.name in providers.PEERS:
            wide = reference.double()
            error = float((result.double() - wide).norm() / wide.norm())
            worst = TOLERANCE.get(self._case.dtype, 0.0)
            return "" if error <= worst else f"wrong: off by {error:.1e} of its norm"
        mode = "triton-compiled" if candidate.name.startswith("triton") else "cuda-gpu"
        variant = candidate.name.partition("/")[2]
        name = f"{mode}/{variant}" if variant else mode
        found = checking.compare(self._spec, self._case, name, arguments, result, reference)
        wrong = int((~found.right).sum())
        return f"wrong: {wrong} of {result.numel()} elements" if wrong else ""


def run_case(
    spec: Spec,
    case: Case,
    wanted: Sequence[str],
    gpu: Gpu,
    ceilings: Ceilings,
    budget: Budget,
    tick: Callable[[str], None] = lambda name: None,
) -> CaseResult:
    """Time the wanted providers of a case against each other."""
    begin = time.perf_counter()
    flops, moved = spec.cost(case)
    limit = ceilings.limit(case.dtype, flops if spec.bound else 0, moved)
    arithmetic = bool(spec.bound) and limit > 1.01e6 * moved / ceilings.bandwidth
    result = CaseResult(case, limit, "TFLOP/s" if arithmetic else "GB/s")
    sets = max(1, min(SETS, MEMORY // max(1, moved)))
    arguments = [inputs(spec, case, seed) for seed in range(sets)]
    chosen = list(providers.candidates(spec, case, wanted))
    timings = engine.measure(chosen, arguments, gpu, Checker(spec, case), budget, tick=tick)
    fastest = ceilings.possible(case.dtype, flops if spec.bound else 0, moved)
    for timing in timings:
        entry = Entry(timing.name, timing, timing.problem)
        result.entries.append(entry)
        if entry.problem:
            continue
        median = timing.gpu.median
        if timing.host_bound:
            graph = f"{timing.replay:.3g} µs as a CUDA graph"
            entry.problem = f"host-bound: launching takes {timing.host:.0f} µs; {graph}"
            continue
        if median < fastest:
            entry.problem = f"{median:.3g} µs is faster than the hardware can ({fastest:.3g} µs)"
            continue
        entry.percent_of_limit = 100 * limit / median
        entry.rate = flops / median / 1e6 if arithmetic else moved / median / 1e3
    _rank(result)
    result.seconds = time.perf_counter() - begin
    return result


def _rank(result: CaseResult) -> None:
    """Against the fastest peer."""
    timed = [entry for entry in result.entries if not entry.problem]
    peers = [entry for entry in timed if entry.is_peer]
    if not peers:
        return
    best = min(peers, key=lambda entry: entry.timing.gpu.median)
    result.best_peer = best.provider
    for entry in timed:
        if entry is not best:
            entry.speedup = ratio(best.timing.gpu, entry.timing.gpu)


def work(
    specs: list[Spec], dtypes: list[str], shapes: list[tuple[int, ...]]
) -> Iterator[tuple[Spec, Case]]:
    """What to time: the ops' timed cases, or these shapes instead."""
    for spec in specs:
        for dtype in dtypes or DTYPES:
            if dtype not in spec.dtypes:
                continue
            timed = list(spec.timed(spec.name, dtype, spec.default_options))
            if not shapes:
                yield from ((spec, case) for case in timed)
                continue
            for shape in shapes:
                if len(shape) == len(spec.default_shape):
                    yield spec, Case(spec.name, dtype, shape, options=timed[0].options)


def geometric_mean(values: list[float]) -> float:
    """Of ratios."""
    return math.exp(sum(map(math.log, values)) / len(values))
