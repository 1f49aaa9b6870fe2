"""How long a product and its activation take: here in one kernel, and in torch otherwise. Scores of
graphs are the ratio of both, for 16-bit matrices on compute capability 9.0.

Ours is what :mod:`triton_kernels.gemm.model` says of the configuration that is chosen, with its
launch, the copies that descriptors need, and an epilogue that depends on the activation.

Theirs is cuBLAS's product and a pass over the result: bias goes with the product, the activation
does not, neither in eager nor in Inductor without max-autotune. Of a product the fastest of several
tiles counts, with K split or not, which may have fewer rows; the last wave costs less than a whole
one. Two things make torch slow. Where rows of 16-bit elements do not begin at multiples of 16 bytes
the product runs in kernels for older GPUs; Inductor copies operands to aligned rows instead where
the tensor cores are what takes the time. And Inductor lets rows of an intermediate result begin at
multiples of 128 bytes, so that its pass reads other places than it writes, and takes three times as
long.

The constants were fitted to samples of five seeds on an H200 and one on an H100 (torch 2.11, CUDA
13.0): half of their 390 times are met within 5 %. What rows at odd multiples of 16 bytes take where
b is copied is a second H100 sample's. How many scores are right in sign stands in docs/FACTS.md.
What differs between GPUs is in :class:`triton_kernels._measured.Rates`.
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
from triton_kernels.gemm.choice import candidates, choose
from triton_kernels.gemm.configurations import HALVES, Problem
from triton_kernels.gemm.launch import PITCHED

CAPABILITY = 90  # nobody held the model against another one's times


class Layer(NamedTuple):
    """A product of 16-bit matrices and the activation after it, both operands by rows of K."""

    M: int
    N: int
    K: int
    dtype: torch.dtype
    act: str | None


def known(dtype: torch.dtype, gpu: Gpu) -> bool:
    """Whether the times of such products on such a GPU are known."""
    return gpu.capability == CAPABILITY and dtype in HALVES


# ---- ours ----

# What an activation makes of the time of an epilogue that runs beside another tile's product; else
# they are alike.
EPILOGUES = {"none": 0.4, "relu": 1.0, "leaky_relu": 1.0, "gelu": 2.3}
LONGER = 1.5  # any other
BY_ELEMENTS = 1.7  # more, where no descriptor takes the result
# What loads take of the time that model.py gives them, by descriptors and through pointers; the
# second where rows begin at odd multiples of 16 bytes.
BY_DESCRIPTORS = (0.93, 1.6)
THROUGH_POINTERS = (0.5, 1.3)


@functools.lru_cache(4096)
def ours(layer: Layer, gpu: Gpu, rates: Rates, kernels: str) -> float:
    """Seconds of one call; kernels as a gemm Problem has it."""
    M, N, K, dtype, act = layer
    problem = Problem(M, N, K, dtype, dtype, kernels=kernels)
    form = choose(problem, gpu)
    epilogue = EPILOGUES.get(act or "", LONGER) if form.ALTERNATE else 1.0
    if form.tma and not aligned(N):
        epilogue += BY_ELEMENTS
    usual, pitched = BY_DESCRIPTORS if form.tma else THROUGH_POINTERS
    loads, copied = usual, 0
    if not aligned(K):
        loads, copied = 1.0, M * K + K * N if form.tma else 0
    elif K % 16:  # of many rows b is copied, and a is not
        loads, copied = pitched, K * N if form.tma and M >= PITCHED else 0
    peak = Peaks(rates.flops, rates.bandwidth / model.MEMORY)
    seconds = model.timed(problem, gpu, peak)(form, candidates(problem, gpu)[form], loads, epilogue)
    return rates.ours + seconds + (_pass(copied, rates) if copied else 0.0)


def aligned(columns: int) -> bool:
    """Whether rows of so many 16-bit elements all begin at multiples of 16 bytes."""
    return columns % 8 == 0


# ---- theirs ----

TILES = ((256, 128), (128, 256), (128, 192), (128, 128), (128, 64), (64, 256), (64, 128), (64, 64))
OLDER = 128 * 128  # elements of a tile at most, of the kernels for older GPUs
DEPTH = 64  # of a step of K
PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # of K
FED = 1.16e11  # bytes/s that reach one multiprocessor
EPILOGUE = 5e-11  # seconds an element, on one multiprocessor
TAIL = 0.2  # of a wave that is not full, for what it has not
MEETING = 2.4e-6  # seconds more where K is split
ADDING = 1.5e12  # bytes/s of parts that are added
# The tensor cores are so many times slower where K and N are even or a multiple of 4, and odd.
EVEN, ODD = 4.0, 8.5
# From so many multiplications an element on, relative to the GPU's balance, Inductor copies to
# aligned rows. It times both ways, where its own rule allows that from half the balance on.
COPIED = 1.5
PADDED = 1024  # columns from which Inductor pads what it does not return
STRIDED = 3.0  # times that a pass over such rows takes, and one more kernel


@functools.lru_cache(4096)
def theirs(layer: Layer, gpu: Gpu, rates: Rates, other: str) -> float:
    """Seconds of eager's kernels, or of Inductor's if that is ``other``."""
    M, N, K, *_ = layer
    vector = math.gcd(N, K, 8)
    alone = product(M, N, K, gpu, rates, vector)
    after = _pass(M * N, rates)
    if other == "inductor":
        if N % 64 and N >= PADDED and M > 1:
            after = 2 * rates.further + STRIDED * 4 * M * N / rates.bandwidth
        balance = rates.flops / rates.bandwidth  # FLOPs that are done while a byte is moved
        if vector < 8 and 1 / (1 / M + 1 / N + 1 / K) > COPIED * balance:
            copies = rates.further + _pass(M * K + K * N, rates)
            even = product(M, 8 * cdiv(N, 8), 8 * cdiv(K, 8), gpu, rates, 8)
            alone = min(alone, copies + even)
    return alone + after


def _pass(elements: int, rates: Rates) -> float:
    """Of one more kernel, which reads so many 16-bit elements and writes as many."""
    return rates.further + 4 * elements / rates.bandwidth


def product(M: int, N: int, K: int, gpu: Gpu, rates: Rates, vector: int) -> float:
    """Of cuBLAS, by a vector of so many elements at a time, a power of two up to 8."""
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
    """Tiles, and parts of K where tiles leave multiprocessors idle."""
    for m, n in TILES:
        if vector < 8 and m * n > OLDER:
            continue
        tiles = cdiv(M, m) * cdiv(N, n)
        for parts in PARTS:
            if parts == 1 or (tiles * parts <= gpu.multiprocessors and parts <= K // DEPTH // 2):
                yield m, n, parts
