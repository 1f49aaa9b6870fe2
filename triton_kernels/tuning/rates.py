"""Measures the rates of the model of products' times, :mod:`triton_kernels.gemm.rivals`.

Each rate gets the value for which the model gives the measured times of products that depend mostly
on it: seconds per launch from small products, bandwidth from the activation of a wide result,
FLOP/s from large products.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

from triton_kernels import ops
from triton_kernels._fusion import Problem
from triton_kernels._gpu import Gpu
from triton_kernels._measured import Rates
from triton_kernels.gemm import rivals
from triton_kernels.gemm.rivals import Layer
from triton_kernels.tuning.scores import Case, Times

KERNEL, DTYPE = "linear_act", torch.bfloat16
SMALL = ((128, 128, 128), (256, 64, 64), (64, 256, 128))
WIDE = (16384, 8192, 64)
LARGE = ((4096, 4096, 4096), (2048, 8192, 6144), (8192, 4096, 3072))
ALONE, FOLLOWED = "none", "relu"  # in torch FOLLOWED takes one more kernel
FRACTIONS = (0.05, 4.0)  # a rate is searched between these multiples of its estimate


def cases(gpu: Gpu, device: torch.device) -> list[Case]:
    """The cases to time; none on GPUs where scores do not depend on the model."""
    if not rivals.known(DTYPE, gpu):
        return []
    probe = next(each.probes[KERNEL] for each in ops.FUSIONS if KERNEL in each.probes)
    wanted = [(size, act) for size in (*SMALL, WIDE) for act in (ALONE, FOLLOWED)]
    wanted += [(size, ALONE) for size in LARGE]
    problems = [Problem(KERNEL, DTYPE, device, "eager", *size, act) for size, act in wanted]
    return [Case((KERNEL,), 0, probe, problem) for problem in problems]


def measure(
    gpu: Gpu,
    cases: Sequence[Case],
    time: Callable[[Case], Times],
    estimate: Rates,
    kernels: str,
) -> Rates:
    """The rates of a GPU. ``estimate``: rates from which the search starts. ``kernels`` as in a
    gemm Problem."""
    taken = {(case.problem[4:7], case.problem.act): time(case) for case in cases}

    def eager(size: tuple[int, int, int], act: str) -> float:
        return 1e-6 * taken[size, act].eager

    def ours(size: tuple[int, int, int]) -> float:
        return 1e-6 * taken[size, ALONE].ours

    def our_model(size: tuple[int, int, int], rates: Rates) -> float:
        return rivals.ours(Layer(*size, DTYPE, ALONE), gpu, rates, kernels)

    def their_model(size: tuple[int, int, int], rates: Rates) -> float:
        return rivals.product(*size, gpu, rates, 8)

    passes = [eager(size, FOLLOWED) - eager(size, ALONE) for size in (*SMALL, WIDE)]
    further = _positive(statistics.median(passes[:-1]), estimate.further)
    moving = passes[-1] - further
    bandwidth = 4 * WIDE[0] * WIDE[1] / moving if moving > 0 else estimate.bandwidth
    rates = estimate._replace(further=further, bandwidth=bandwidth)
    # Two rounds suffice: launches and FLOP/s influence each other's measurement only little.
    for _ in range(2):
        late = [ours(size) - our_model(size, rates._replace(ours=0.0)) for size in SMALL]
        rates = rates._replace(ours=_positive(statistics.median(late), estimate.ours))
        late = [eager(size, ALONE) - their_model(size, rates._replace(theirs=0)) for size in SMALL]
        rates = rates._replace(theirs=_positive(statistics.median(late), estimate.theirs))
        rates = _solved(rates, "flops", estimate, [(our_model, s, ours(s)) for s in LARGE])
        known = [(their_model, s, eager(s, ALONE)) for s in LARGE]
        rates = _solved(rates, "library", estimate, known)
    return Rates(*(float(f"{each:.3g}") for each in rates))


def _positive(measured: float, estimate: float) -> float:
    return measured if measured > 0 else estimate


Model = Callable[[tuple[int, int, int], Rates], float]


def _solved(
    rates: Rates,
    name: str,
    estimate: Rates,
    known: Sequence[tuple[Model, tuple[int, int, int], float]],
) -> Rates:
    """The rates with a new value of the named one: the median of the values for which the models
    give the known seconds."""
    values = []
    for model, size, seconds in known:
        low, high = (getattr(estimate, name) * each for each in FRACTIONS)
        while high / low > 1.001:
            middle = (low * high) ** 0.5
            if model(size, rates._replace(**{name: middle})) > seconds:
                low = middle
            else:
                high = middle
        values.append(low)
    return rates._replace(**{name: statistics.median(values)})
