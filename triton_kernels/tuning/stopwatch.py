"""Measures times on a GPU: calls take turns, each with a cold cache; the median counts.

triton.testing.do_bench is not used. It times one function many times in a row, and the GPU finishes
its flush before the host has started one of these kernels. Then the host's time is counted, which
is longer than the GPU's in small problems.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from triton_kernels._fusion import Probe
from triton_kernels._fusion import Problem as Fused
from triton_kernels._gpu import Gpu
from triton_kernels.gemm.arguments import Gemm
from triton_kernels.gemm.launch import by_descriptors, through_pointers
from triton_kernels.tuning.constants import Run
from triton_kernels.tuning.scores import ELEMENTS, Case, Times

ROUNDS = 25
FLUSHED = 128 << 20  # the least number of bytes that are read to empty the cache
# Cycles that the GPU spins while the host starts a call, about 1 ms. A call that copies unaligned
# operands took the host more than a quarter of that.
HEAD_START = 2_000_000
BLOCK = 20_000  # microseconds of calls in a row; about as long power is averaged
TURNS = 5
RECOMPILED = 1000  # how often Inductor may compile the same code for other shapes
TORCH: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda product: product,
    "gelu_tanh": partial(torch.nn.functional.gelu, approximate="tanh"),
    "relu": torch.relu,
}


class Stopwatch:
    """Times calls on one device."""

    def __init__(self, gpu: Gpu, device: torch.device) -> None:
        self._gpu, self._device = gpu, device
        properties: Any = torch.cuda.get_device_properties(device)
        size = max(4 * properties.L2_cache_size, FLUSHED)
        self._flush = torch.ones(size // 4, device=device)

    def runs(self, runs: Sequence[Run]) -> list[float]:
        """Microseconds of products in given configurations; infinity if one does not fit."""
        calls = [configured(run, self._gpu, self._device) for run in runs]
        able = [i for i, call in enumerate(calls) if _fits(call)]
        medians = dict(zip(able, self.medians([calls[i] for i in able])))
        return [medians.get(i, math.inf) for i in range(len(runs))]

    def case(self, case: Case) -> Times:
        """Microseconds of a kernel, of eager and of Inductor."""
        from torch._dynamo import config

        ours, theirs, tensors = calls(case.probe, case.problem, ELEMENTS)
        with config.patch(recompile_limit=RECOMPILED, fail_on_recompile_limit_hit=True):
            compiled = torch.compile(theirs, fullgraph=True, dynamic=False)
            rivals = [partial(call, *tensors) for call in (ours, theirs, compiled)]
            return Times(*self.medians(rivals))

    def medians(self, calls: Sequence[Callable[[], Any]]) -> list[float]:
        """The median microseconds of each call. A call that raises raises here."""
        for call in (*calls, *calls):  # the first call compiles
            call()
        events: list[list[tuple[Any, Any]]] = [[] for _ in calls]
        order, drawn = list(range(len(calls))), random.Random(0)
        for _ in range(ROUNDS):
            drawn.shuffle(order)
            for i in order:
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                self._flush.sum()  # reads only: the call would wait for writes
                torch.cuda._sleep(HEAD_START)
                start.record()
                calls[i]()
                end.record()
                events[i].append((start, end))
            torch.cuda.synchronize()
        return [
            statistics.median(1e3 * start.elapsed_time(end) for start, end in pairs)
            for pairs in events
        ]

    def in_a_row(self, calls: Sequence[Callable[[], Any]], microseconds: float) -> list[float]:
        """The median microseconds of each call, called again and again for ``BLOCK`` in turns.
        ``microseconds`` are about those of one call.

        The GPU gets as hot as in a large model, where power limits its clock: kernels of the same
        speed while it is cool may need more or less of it.
        """
        count = max(2, round(BLOCK / microseconds))
        samples: list[list[float]] = [[] for _ in calls]
        for _ in range(TURNS):
            for call, taken in zip(calls, samples):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                for _ in range(count):
                    call()
                end.record()
                torch.cuda.synchronize()
                taken.append(1e3 * start.elapsed_time(end) / count)
        return [statistics.median(taken) for taken in samples]


def _fits(call: Callable[[], Any]) -> bool:
    """Whether the call can be launched: a configuration's shared memory is only an estimate."""
    try:
        call()
    except OutOfResources:
        return False
    return True


def configured(run: Run, gpu: Gpu, device: torch.device) -> Callable[[], Tensor]:
    """A call of a linear layer with bias and gelu, in the run's configuration."""
    problem, chosen = run
    M, N, K, dtype, out_dtype, precision, *_ = problem
    a, b = _random((M, K), dtype, device), _random((N, K), dtype, device).t()
    bias = _random((N,), dtype, device)
    out = torch.empty(M, N, dtype=out_dtype, device=device)
    gemm = Gemm("tune", a, b, bias, None, out, "gelu_tanh", 1.0, 0.0, precision)

    def call() -> Tensor:
        if chosen.tma:
            by_descriptors(chosen, gpu.multiprocessors, gemm)
        else:
            through_pointers(chosen, gemm)
        return out

    return call


Call = Callable[..., Tensor]


def calls(probe: Probe, problem: Fused, elements: int) -> tuple[Call, Call, list[Tensor]]:
    """The call of a kernel, the call of torch, and random tensors for both."""
    sizes = {"M": problem.M, "N": problem.N, "K": problem.K, "n": elements}
    shapes = [[sizes[letter] or 0 for letter in shape] for shape in probe.shapes]
    tensors = [_random(shape, problem.dtype, problem.device) for shape in shapes]
    kernel, theirs, act = probe.ours, probe.theirs, problem.act
    if act is None:
        return kernel, lambda *tensors: theirs(*tensors), tensors
    activation = TORCH[act]

    def ours(*tensors: Tensor) -> Tensor:
        return kernel(*tensors, act)

    def layer(*tensors: Tensor) -> Tensor:
        return activation(theirs(*tensors))

    return ours, layer, tensors


def _random(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(shape, dtype=dtype, device=device)
