"""Models of the time of a product with its activation: in one kernel of ours, and in torch. Scores
of graphs are the ratio of the two, for 16-bit matrices on compute capability 9.0.

Our time is that of :mod:`triton_kernels.gemm.model` for the chosen configuration, plus the launch
and the copies that descriptors need, with an epilogue that depends on the activation.

Torch's time is that of cuBLAS's product and of a pass over the result. The product includes the
bias but not the activation, both in eager and in Inductor without max-autotune. For a product the
fastest of several tiles counts, with K split or not. A tile may have fewer rows than its size, and
the last wave costs less than a full one. Torch is slow in two cases. If rows of 16-bit elements do
not start at multiples of 16 bytes, the product runs in kernels for older GPUs; if the tensor cores
are the limit, Inductor copies the operands to aligned rows instead. And Inductor pads the rows of
an intermediate result to multiples of 128 bytes, so that the layouts of its pass's input and output
differ, and the pass takes three times as long.

The constants were fitted to samples of five seeds on an H200 and one on an H100 (torch 2.11, CUDA
13.0). Half of their 390 times were met within 5 %. When the model was fitted anew, the factors of
epilogues were raised as its constant fell, and SUSTAINED was fitted to 13 long products of the
committed sample on an H200, of whose 162 products in the forward layout half are met within 5.3 %,
as before within 5.6 %. docs/FACTS.md says how many scores had the right sign. The figures that
differ between GPUs are in :class:`triton_kernels._measured.Rates`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from triton_kernels._counts import cdiv
from triton_kernels._gpu import Gpu, Peaks
from triton_kernels._measured import Rates
from triton_kernels.gemm import model
from triton_kernels.gemm.choice import NEITHER, after, candidates, fastest
from triton_kernels.gemm.configurations import HALVES, Problem
from triton_kernels.gemm.launch import lying

CAPABILITY = 90  # the model was not compared with times on any other


class Layer(NamedTuple):
    """A product of 16-bit matrices and its activation. Both operands are contiguous along K."""

    M: int
    N: int
    K: int
    dtype: torch.dtype
    act: str | None


def known(dtype: torch.dtype, gpu: Gpu) -> bool:
    """Whether the model is for products of this dtype on this GPU."""
    return gpu.capability == CAPABILITY and dtype in HALVES


# ---- ours ----

# Activation → factor for the time of an epilogue that overlaps with another tile's product.
EPILOGUES = {"none": 0.5, "relu": 1.3, "leaky_relu": 1.3, "gelu": 3.0}
LONGER = 1.9  # the factor of all other activations
ALONE = 1.3  # the factor of all without overlap
BY_ELEMENTS = 2.3  # added to the factor if no descriptor can write the result; theirs: the factor
# The speed of the tensor cores in samples of many calls, relative to the samples of seven that
# model.py is fitted to.
SUSTAINED = 0.96
THROUGH_POINTERS = 0.5  # factor for model.py's time of loads through pointers


@functools.lru_cache(4096)
def ours(layer: Layer, gpu: Gpu, rates: Rates, kernels: str) -> float:
    """Seconds of one call of ours; ``kernels`` as in a gemm Problem."""
    M, N, K, dtype, act = layer
    problem = lying(Problem(M, N, K, dtype, dtype, kernels=kernels), (K, 1), (1, K))
    form, _ = fastest(problem, gpu)
    epilogue = EPILOGUES.get(act or "", LONGER) if form.ALTERNATE else ALONE
    if form.tma and not aligned(N):
        epilogue += BY_ELEMENTS
    loads = 1.0 if form.tma or not aligned(K) else THROUGH_POINTERS
    peak = Peaks(SUSTAINED * rates.flops, rates.bandwidth / model.MEMORY)
    copying = model.copying(problem, gpu, form.copies, peak)
    whole = form._replace(SPLIT=1, copies=NEITHER)
    able = (each for other, each, _ in candidates(problem, gpu) if other == whole)
    reached = next(able, 0.0)  # through pointers it may be chosen for a few more rows only
    timed = model.timed(after(problem, form.copies), gpu, peak)
    (seconds,) = timed(whole, reached, [form.SPLIT], loads, epilogue)
    return rates.ours + copying + seconds


def aligned(columns: int) -> bool:
    """Whether dense rows of this many 16-bit elements all start at multiples of 16 bytes."""
    return columns % 8 == 0


# ---- theirs ----

TILES = ((256, 128), (128, 256), (128, 192), (128, 128), (128, 64), (64, 256), (64, 128), (64, 64))
OLDER = 128 * 128  # the most elements of a tile of the kernels for older GPUs
DEPTH = 64  # elements of K per step
PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # numbers of parts of K
FED = 1.16e11  # bytes/s that one multiprocessor loads
EPILOGUE = 5e-11  # seconds per element, on one multiprocessor
TAIL = 0.2  # the cost of the missing part of a wave that is not full, relative to a full wave
MEETING = 2.4e-6  # additional seconds if K is split
ADDING = 1.5e12  # bytes/s at which parts are added
# Factors by which tensor cores are slower if gcd(N, K) is even but no multiple of 8, and if it is
# odd.
EVEN, ODD = 4.0, 8.5
# Inductor copies to aligned rows from this ratio of FLOPs per element to the GPU's balance on. It
# times both ways where its own rule allows copies, which is from half the balance on.
COPIED = 1.5
PADDED = 1024  # columns from which on Inductor pads intermediate results
STRIDED = 3.0  # factor for the time of a pass over padded rows, which also needs one more kernel


@functools.lru_cache(4096)
def theirs(
    layer: Layer,
    gpu: Gpu,
    rates: Rates,
    other: str,
    extra: int | None = None,
    alone: float | None = None,
) -> float:
    """Seconds of one call of eager's kernels, or of Inductor's if ``other`` is "inductor".

    Inductor's ``extra`` is as in a :class:`triton_kernels._fusion.Problem`. ``alone``: the seconds
    of the product, if they are known; then the layer may have any dtype.
    """
    M, N, K, dtype, _ = layer
    size = dtype.itemsize
    vector = math.gcd(N, K, 8) if dtype in HALVES else 8
    if alone is None:
        alone = product(M, N, K, gpu, rates, vector)
    after = _pass(M * N, rates, size)
    if other == "inductor":
        if extra is not None:
            after = extra * size * M * N / rates.bandwidth
        elif N % 64 and N >= PADDED and M > 1:
            after = 2 * rates.further + STRIDED * 2 * size * M * N / rates.bandwidth
        balance = rates.flops / rates.bandwidth  # FLOPs per byte that the memory moves
        if vector < 8 and 1 / (1 / M + 1 / N + 1 / K) > COPIED * balance:
            copies = rates.further + _pass(M * K + K * N, rates)
            even = product(M, 8 * cdiv(N, 8), 8 * cdiv(K, 8), gpu, rates, 8)
            alone = min(alone, copies + even)
    return alone + after


def _pass(elements: int, rates: Rates, size: int = 2) -> float:
    """Seconds of one more kernel that reads and writes this many elements of ``size`` bytes."""
    return rates.further + 2 * size * elements / rates.bandwidth


def product(M: int, N: int, K: int, gpu: Gpu, rates: Rates, vector: int) -> float:
    """Seconds of cuBLAS's product. It loads vectors of ``vector`` elements, a power of two up to
    8."""
    flops = rates.library * rates.flops
    moved = 2 * (M * K + K * N + M * N) / rates.bandwidth
    if M == 1:
        moved *= 1 if vector == 8 else 2
    elif vector < 8:
        flops /= ODD if vector == 1 else EVEN
    each = flops / gpu.multiprocessors
    epilogue = EPILOGUE * (1 if aligned(N) else BY_ELEMENTS)
    best = math.inf
    for m, n, parts in _cuts(M, N, K, gpu, vector):
        waves = cdiv(M, m) * cdiv(N, n) * parts / gpu.multiprocessors
        waves = max(1.0, waves + TAIL * (math.ceil(waves) - waves))
        steps = cdiv(cdiv(K, DEPTH), parts)
        rows = min(m, M)
        multiplied = 2 * (rows if vector == 8 else m) * n / each
        loop = steps * DEPTH * max(multiplied, 2 * (rows + n) / FED)
        meeting = MEETING + 4 * parts * M * N / ADDING if parts > 1 else 0.0
        best = min(best, math.hypot(waves * (loop + m * n * epilogue), moved) + meeting)
    return rates.theirs + best


def _cuts(M: int, N: int, K: int, gpu: Gpu, vector: int) -> Iterator[tuple[int, int, int]]:
    """(rows of a tile, its columns, parts of K). K is split only if tiles leave multiprocessors
    idle."""
    for m, n in TILES:
        if vector < 8 and m * n > OLDER:
            continue
        tiles = cdiv(M, m) * cdiv(N, n)
        for parts in PARTS:
            if parts == 1 or (tiles * parts <= gpu.multiprocessors and parts <= K // DEPTH // 2):
                yield m, n, parts
