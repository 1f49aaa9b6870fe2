"""The forms of gemm_gluon_kernel, and the time that a product takes in a form of any kernel that
loads by descriptors.

The model is a handful of constants, fitted to 47 problems on an H200 (triton 3.6): what a form's
products reach of the tensor cores' peak while its loop runs, what an element of the epilogue takes,
and what loads reach of the memory's bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterable

from triton_kernels._gpu import Gpu, peaks
from triton_kernels.gemm.configurations import Configuration, Problem, Tiles, cdiv

CAPABILITY = 90

# Form → what its loop reaches of the peak. One that wins no problem is not here.
FORMS = {
    # Two consumers with half of a tile's rows each.
    Configuration(True, Tiles(256, 128, 64, 8, 8, 4), 2, gluon=True): 0.88,
    Configuration(True, Tiles(128, 192, 64, 8, 8, 5), 3, gluon=True): 0.86,
    Configuration(True, Tiles(128, 160, 64, 8, 8, 5), 5, gluon=True): 0.77,
    # Two that alternate: for short sums, which epilogues outweigh.
    Configuration(True, Tiles(128, 128, 64, 8, 8, 6), 2, gluon=True, ALTERNATE=True): 0.77,
    Configuration(True, Tiles(128, 64, 64, 8, 8, 7), 1, gluon=True, ALTERNATE=True): 0.54,
    # One: for few tiles.
    Configuration(True, Tiles(64, 192, 64, 8, 4, 6), 3, gluon=True): 0.77,
    Configuration(True, Tiles(64, 160, 64, 8, 4, 7), 5, gluon=True): 0.69,
    Configuration(True, Tiles(64, 64, 128, 8, 4, 6), 1, gluon=True): 0.53,
}
LARGEST_TMA = 0.89  # the same of gemm_tma_kernel's tile of 128×256, whose cost is 1
MEMORY = 0.8  # of the peak bandwidth
EPILOGUE = 1.34e-10  # seconds an element, on one multiprocessor
ADDEND = 1.6  # times that, where there is c


def able(problem: Problem, gpu: Gpu) -> tuple[Configuration, ...]:
    """The forms that may be chosen for a problem that descriptors take, if there is memory."""
    return tuple(FORMS) if problem.kernels != "tl" and gpu.capability == CAPABILITY else ()


def best(
    problem: Problem, gpu: Gpu, fit: Iterable[Configuration], tma: Configuration, cost: float
) -> Configuration:
    """Of the forms that fit the one that takes least, or that of gemm_tma_kernel, of whose tiles
    one costs so much."""
    reached = {form: FORMS[form] for form in fit}
    if problem.kernels != "gluon" or not reached:
        reached[tma] = efficiency(tma, cost)
    return min(reached, key=lambda form: seconds(problem, gpu, form, reached[form]))


def efficiency(form: Configuration, cost: float) -> float:
    """What a form of gemm_tma_kernel reaches, by the cost of a tile that gemm.choice knows."""
    return LARGEST_TMA * form.tiles.BLOCK_M * form.tiles.BLOCK_N / (128 * 256) / cost


def seconds(problem: Problem, gpu: Gpu, form: Configuration, reached: float) -> float:
    """What a product takes, but for the launch: waves of tiles, or all bytes moved once."""
    M, N, K = problem[:3]
    m, n, k = form.tiles[:3]
    peak = peaks(gpu)
    waves = cdiv(form.tiles_of(M, N), gpu.multiprocessors)
    loop = cdiv(K, k) * 2 * m * n * k * gpu.multiprocessors / (peak.flops * reached)
    epilogue = m * n * EPILOGUE * (ADDEND if problem.c else 1)
    if form.ALTERNATE:  # the epilogues run under the products, but the last one
        computed = waves * max(loop, (loop + epilogue) / 2) + epilogue
    else:
        computed = waves * (loop + epilogue)
    elements = M * K + K * N + M * N * (2 if problem.c else 1)
    moved = elements * problem.dtype.itemsize / (peak.bandwidth * MEMORY)
    return max(computed, moved)
