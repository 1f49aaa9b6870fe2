"""The time that a product takes in a configuration.

Three things take time: the tensor cores multiply, a multiprocessor loads, and the memory moves each
matrix once. The first two run together, and of both together the slower counts; the memory is
shared, so that it counts beside them. Where K is split, the parts of a tile meet at last.

Its constants were fitted to 88 problems on an H200 (triton 3.6): what is chosen took 1.02 times as
long as the best of all that were timed, 1.04 times where tiles or rows are few (geometric means).
Fitted to one half, of the other half 1.025 and 1.045 times. All were of 16-bit matrices. Of tf32
and ieee, to which MULTIPLY_ADD and LONG_STEP belong, 12 and 14 were looked at. Few rows of odd
length take LONG_STEP, too: two of one row were timed in 36 and 42 configurations.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from triton_kernels._counts import cdiv
from triton_kernels._gpu import Gpu, Peaks, peaks
from triton_kernels.gemm.configurations import Configuration, Problem

MEMORY = 0.9  # of the peak bandwidth
BY_DESCRIPTORS = 1e11  # bytes/s that reach one multiprocessor
THROUGH_POINTERS = 7e10
UNALIGNED = 3.4  # times as long through pointers, where 16-bit rows of K start at no vector
RESIDENT = 4  # programs of gemm_bias_act_kernel on a multiprocessor at once
MULTIPLY_ADD = 3e11  # float32 operations/s of a multiprocessor without tensor cores
STEP = 2.1e-7  # seconds of a step of K in one of them at least, for its loads to arrive
LONG_STEP = 1.7e-6  # where it multiplies and adds, operand by operand, or waits for every load
EPILOGUE = 1.34e-10  # seconds an element, on one multiprocessor
ADDEND = 1.6  # times that, where there is c
MEETING = 1e-6  # seconds until the last program of a tile knows that it is
ADDING = 4e10  # bytes/s of parts that it adds


def synchronous(problem: Problem) -> bool:
    """Whether loads through pointers come to registers, so that a program waits for those of each
    step: what is copied to shared memory meanwhile has 4 bytes at least."""
    return problem.K * problem.dtype.itemsize % 4 != 0


def timed(problem: Problem, gpu: Gpu, peak: Peaks | None = None) -> Callable[..., float]:
    """What a problem takes in a form, but for the launch. The second argument is what the loop of a
    kernel by descriptors reaches of the tensor cores' peak; loads and epilogue are how many times
    the usual time these take. peak: the GPU's, if that is known better."""
    M, N, K, dtype, _, precision, c, _ = problem
    itemsize, multiprocessors, peak = dtype.itemsize, gpu.multiprocessors, peak or peaks(gpu)
    elements = M * K + K * N + M * N * (2 if c else 1)
    moved = elements * itemsize / (peak.bandwidth * MEMORY)
    addend = ADDEND if c else 1
    by_cores = dtype != torch.float32 or precision != "ieee"
    unaligned = UNALIGNED * 2 / itemsize if K * itemsize % 16 else 1.0
    step = STEP if by_cores and not synchronous(problem) else LONG_STEP

    def seconds(
        form: Configuration, reached: float, loads: float = 1.0, epilogue: float = 1.0
    ) -> float:
        m, n, k, _, _, _ = form.tiles
        parts = form.parts(K)
        steps = cdiv(cdiv(K, k), parts)
        waves = cdiv(cdiv(M, m) * cdiv(N, n) * parts, multiprocessors)
        loaded = loads * steps * (min(m, M) + n) * k * itemsize
        if form.tma:
            flops = peak.flops * reached * 2 / itemsize  # tf32 at half the speed
            multiplied = steps * 2 * m * n * k * multiprocessors / flops
            loop = max(multiplied, loaded / BY_DESCRIPTORS)
            last = m * n * EPILOGUE * epilogue * addend
            if form.ALTERNATE:  # the epilogues run under the products, but the last one
                busy = waves * max(loop, (loop + last) / 2) + last
            else:
                busy = waves * (loop + last)
        else:
            loop = loaded / THROUGH_POINTERS * unaligned
            if not by_cores:
                loop = max(loop, steps * 2 * m * n * k / MULTIPLY_ADD)
            busy = max(waves * loop, cdiv(waves, RESIDENT) * steps * step)
        meeting = MEETING + parts * m * n * 4 / ADDING if parts > 1 else 0.0
        return math.hypot(busy, moved) + meeting

    return seconds
