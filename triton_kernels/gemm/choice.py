"""The choice of a kernel and its tiles for a matrix product, by the problem and the GPU.

In precisions tf32x3 and f16x3, and for float64 except on compute capability 9.0, rules give one
configuration. Otherwise there are several candidates, and :func:`choose` takes the one that is
fastest by :mod:`triton_kernels.gemm.model`:

- the tiles of gemm_tma_kernel whose waves over the multiprocessors cost least;
- the configurations of gemm_gluon_kernel, on compute capability 9.0, where those of
  gemm_gluon_fma_kernel are the only ones for float32 matrices in precision ieee;
- through pointers, the tiles given by rules, if there are no descriptors or few rows;
- if there are fewer tiles than multiprocessors, the last two with K split, and small tiles.

Each candidate is first reduced until a block has enough shared memory for it: to fewer stages, then
to smaller tiles. The constants of the rules are in :class:`triton_kernels._measured.Constants`;
``triton_kernels.tune()`` measures them on other GPUs.
"""

from __future__ import annotations

import functools
import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from triton_kernels import _known_calls, _measured
from triton_kernels._counts import cdiv
from triton_kernels._gpu import H200, Gpu
from triton_kernels._measured import SHIPPED, Constants
from triton_kernels.gemm import model
from triton_kernels.gemm.configurations import (
    HALVES,
    Configuration,
    Problem,
    Tiles,
    ever_smaller,
)
from triton_kernels.gemm.gluon import forms


class TmaTiles(NamedTuple):
    """Tiles of gemm_tma_kernel.

    Attributes:
        tiles: the tiles.
        SUBTILES: 2 if the epilogue takes half a tile at a time, which leaves memory for a stage.
        stages_with_c: num_stages if there is an addend c, which also needs shared memory.
        long: replaces ``tiles`` from K = Constants.long on, without c: there the time of the loop
            matters, not that of the epilogue.
    """

    tiles: Tiles
    SUBTILES: int
    stages_with_c: int
    long: Tiles | None = None

    def for_problem(self, problem: Problem, constants: Constants = SHIPPED) -> Configuration:
        """The configuration with the best stages and warps for K, with or without c."""
        tiles = self.tiles
        if problem.c:
            tiles = tiles._replace(num_stages=self.stages_with_c)
        elif problem.K >= constants.long and self.long is not None:
            tiles = self.long
        return Configuration(True, tiles, self.SUBTILES).of_dtype(problem.dtype)


# Constants.costs has their costs, in this order.
TMA_TILES = (
    TmaTiles(Tiles(128, 256, 64, 16, 8, 4), 2, 3),
    TmaTiles(Tiles(128, 128, 64, 16, 8, 4), 1, 4, long=Tiles(128, 128, 64, 8, 4, 5)),
    TmaTiles(Tiles(64, 128, 128, 16, 4, 4), 1, 3),
    TmaTiles(Tiles(64, 64, 128, 16, 4, 6), 1, 5),
    TmaTiles(Tiles(64, 32, 128, 16, 4, 6), 1, 5),
)
PARTS_TILES = (  # the tiles of gemm_f16x3_kernel; not measured yet
    Tiles(128, 128, 64, 16, 8, 3),
    Tiles(64, 64, 64, 16, 4, 3),
    Tiles(32, 32, 64, 16, 4, 3),
)
# Of float64 on compute capability 9.0: tiles → fraction of the tensor cores' peak that a full
# multiprocessor reaches (H200, 28 drawn problems, triton 3.6).
FLOAT64_TILES = {
    Tiles(64, 128, 16, 8, 4, 3): 0.91,
    Tiles(64, 64, 16, 8, 4, 3): 0.78,
    Tiles(32, 32, 32, 8, 4, 3): 0.56,
    Tiles(16, 32, 32, 8, 4, 4): 0.41,
}
MOST_ROWS = 1024  # for which the transpose is computed; more were not measured
LARGEST = 64  # the most rows of these, and of those for multiply-adds in Gluon
LONG = 512  # elements of K from which on it may also be split to fill the last wave
MOST = 64  # parts of a sum then
SMALL = 32  # up to this M, N or K pointers are as fast as descriptors
FLOAT64_CAPABILITY = 90  # where float64 was measured
TMA_CAPABILITY = 90  # the first GPUs with a tensor memory accelerator
# Bytes of shared memory. GPUs with less get smaller tiles, so that two blocks fit a multiprocessor,
# and one's loop runs during the other's epilogue. Smaller tiles can keep their tensor cores busy,
# which are half as fast as an A100's. This follows from the architectures' figures, and was not
# measured.
PLENTY = 128 * 1024


Failed = tuple[Configuration, tuple[object, ...], Gpu]
LARGEST_REACHES = 0.89  # fraction of the tensor cores' peak that the first of TMA_TILES reaches
# The tiles for a split K with more than 32 rows. With up to 32 rows tiles are SMALL columns wide.
FEW_TILES = Tiles(32, 32, 128, 8, 4, 4), Tiles(64, 32, 128, 8, 4, 4)


@functools.lru_cache(4096)
def choose(problem: Problem, gpu: Gpu) -> Configuration:
    """The configuration for a problem on a GPU: the fastest candidate by the model."""
    speeds = candidates(problem, gpu)
    if len(speeds) == 1:
        return next(iter(speeds))
    seconds = model.timed(problem, gpu)
    return min(speeds, key=lambda form: seconds(form, speeds[form]))


def candidates(problem: Problem, gpu: Gpu) -> dict[Configuration, float]:
    """Configurations that fit → the fraction of the tensor cores' peak that the loop reaches, if it
    loads by descriptors."""
    if problem.precision == "f16x3":
        return {_of_parts(problem, gpu): 0.0}
    constants = _measured.constants(gpu)
    multiply_adds = not problem.by_cores
    speeds: dict[Configuration, float] = {}
    if problem.dtype == torch.float64 and gpu.capability == FLOAT64_CAPABILITY:
        for tiles, each in FLOAT64_TILES.items():
            form = Configuration(False, tiles)
            if suits(tiles, problem.M, 16) and _fits(form, problem, gpu, _failed):
                speeds |= dict.fromkeys((form, *split(form, problem, gpu, True)), each)
        if speeds:
            return speeds
    if tma_pays(problem, gpu):
        for form, each in _of_gluon(_of_any_size(problem), gpu, _failed).items():
            if multiply_adds and not suits(form.tiles, problem.M, 8):
                continue
            if form.TURNED and not form.tiles.BLOCK_M // 2 < problem.M <= MOST_ROWS:
                continue
            speeds |= dict.fromkeys((form, *split(form, problem, gpu, multiply_adds)), each)
        if speeds and (problem.kernels == "gluon" or multiply_adds):
            return speeds
        speeds |= _of_tma(problem, gpu, constants)
    usual = Configuration(False, tiles_for(problem, gpu, constants))
    if not speeds or problem.M <= SMALL:
        speeds[fitting(usual, problem, gpu) or _SMALLEST] = 0.0
    if problem.dtype == torch.float64 or problem.precision == "tf32x3":
        return speeds
    if problem.M <= SMALL:
        columns = (SMALL, 2 * SMALL) if model.synchronous(problem) else (SMALL,)
        few = [usual._replace(tiles=usual.tiles._replace(BLOCK_N=each)) for each in columns]
    elif problem.dtype == torch.float32 and problem.precision == "ieee":
        few = [usual]
    else:
        few = [Configuration(False, tiles).of_dtype(problem.dtype) for tiles in FEW_TILES]
    for wanted in few:
        if (small := fitting(wanted, problem, gpu)) is not None:
            speeds |= dict.fromkeys(split(small, problem, gpu), 0.0)
    return speeds


def _of_any_size(problem: Problem, K: int = 0) -> Problem:
    """The problem without its size. What fits does not depend on the size, so it is cached for this
    problem, and not computed again for every new shape."""
    return Problem(0, 0, K, *problem[3:])


@functools.lru_cache(256)
def _of_gluon(problem: Problem, gpu: Gpu, failed: frozenset[Failed]) -> dict[Configuration, float]:
    """The configurations of gemm_gluon_kernel that fit → the fraction of the peak of each loop."""
    able = forms.able(problem, gpu)
    return {form: each for form, each in able.items() if _fits(form, problem, gpu, failed)}


@functools.lru_cache(4096)
def parts_pay(problem: Problem, gpu: Gpu) -> bool:
    """Whether a problem in precision "f16x3" takes less time in parts than by float32's
    multiply-adds, which are no less accurate. With few rows the split takes most of it."""
    whole = problem._replace(precision="ieee")
    form = choose(whole, gpu)
    reached = forms.FMA_FORMS.get(form._replace(SPLIT=1), 0.0)
    chosen = _of_parts(problem, gpu)
    waves = cdiv(chosen.tiles_of(problem.M, problem.N), gpu.multiprocessors)
    in_parts = model.in_parts(problem, gpu, waves * forms.PARTS_FORMS.get(chosen, 1.0))
    return in_parts < model.timed(whole, gpu)(form, reached)


def _of_parts(problem: Problem, gpu: Gpu) -> Configuration:
    """The largest tiles of gemm_f16x3_kernel of which there are enough for all multiprocessors.
    GPUs without descriptors in hardware compute addresses instead; with large tiles there would be
    no registers left for these."""
    if problem.kernels != "tl" and gpu.capability == forms.CAPABILITY:

        def cost(form: Configuration) -> float:
            waves = cdiv(form.tiles_of(problem.M, problem.N), gpu.multiprocessors)
            return waves * forms.PARTS_FORMS[form]

        able = [form for form in forms.PARTS_FORMS if _fits(form, problem, gpu, _failed)]
        if able:
            return min(able, key=cost)
    large = gpu.capability >= TMA_CAPABILITY
    tiles = PARTS_TILES if large else PARTS_TILES[-1:]
    each_fit = [fitting(Configuration(True, each), problem, gpu) for each in tiles]
    fit = [form for form in each_fit if form is not None]
    enough = [f for f in fit if f.tiles_of(problem.M, problem.N) >= gpu.multiprocessors]
    return (enough or fit[-1:] or [_SMALLEST])[0]


def _of_tma(problem: Problem, gpu: Gpu, constants: Constants) -> dict[Configuration, float]:
    """The configuration of gemm_tma_kernel whose waves cost least, if one fits."""
    K = constants.long if problem.K >= constants.long else 0  # all K of a kind share a cache entry
    costs = _tma_costs(_of_any_size(problem, K), gpu, constants, _failed)

    def waves(form: Configuration) -> int:
        return cdiv(form.tiles_of(problem.M, problem.N), gpu.multiprocessors)

    best = min(costs, key=lambda form: waves(form) * costs[form], default=None)
    if best is None:
        return {}
    tiles, (first, *_) = best.tiles, TMA_TILES
    area = tiles.BLOCK_M * tiles.BLOCK_N / (first.tiles.BLOCK_M * first.tiles.BLOCK_N)
    return {best: LARGEST_REACHES * area / costs[best]}


@functools.lru_cache(256)
def _tma_costs(
    problem: Problem, gpu: Gpu, constants: Constants, failed: frozenset[Failed]
) -> dict[Configuration, float]:
    """The configurations of gemm_tma_kernel that fit → the cost of a tile."""
    costs: dict[Configuration, float] = {}
    for row, cost in zip(TMA_TILES, constants.costs):
        form = _fitting(row.for_problem(problem, constants), _of_any_size(problem), gpu, failed)
        if form is not None:
            costs.setdefault(form, cost)
    return costs


def split(
    form: Configuration, problem: Problem, gpu: Gpu, together: bool = False
) -> list[Configuration]:
    """The configuration with K split into different numbers of parts; none if its tiles fill the
    GPU.

    By descriptors each multiprocessor gets one part, through pointers up to four. If programs wait
    for the loads of every step, one program's loads run while the others wait. The same is so if
    several programs together reach the multiprocessor's peak (``together``); then parts of large
    tiles also fill the last wave.
    """
    M, N, K, *_ = problem
    tiles = form.tiles_of(M, N)
    full = gpu.multiprocessors
    if together or (not form.tma and model.synchronous(problem)):
        full *= model.RESIDENT
    few = 0 < tiles < full and (form.gluon or not form.tma)
    most = cdiv(K, form.tiles.BLOCK_K) // 2  # each part has at least two steps
    if together:
        most = min(most, MOST)
    wanted = (1,) if form.gluon and not together else (1, 2, 4)
    parts = {programs * gpu.multiprocessors // tiles: None for programs in wanted if few}
    if together and form.tiles.BLOCK_M == LARGEST and K >= LONG and tiles < 2 * full:
        parts |= dict.fromkeys((2, 3, 4))
    return [
        form._replace(ALTERNATE=False, SPLIT=each)
        for each in {min(part, most): None for part in parts}
        if each > 1
    ]


def suits(tiles: Tiles, M: int, least: int) -> bool:
    """Whether tiles may be the fastest for M rows: they have neither twice as many, nor far fewer.
    ``least``: the smallest number of rows of the tiles among which is chosen."""
    rows = tiles.BLOCK_M
    most = 512 if rows == LARGEST // 2 else 3 * rows
    return (rows == least or rows < 2 * M) and (rows == LARGEST or M <= most)


def tma_pays(problem: Problem, gpu: Gpu) -> bool:
    """Whether a kernel by descriptors can run and is expected to be faster than pointers."""
    if min(problem.N, problem.K) <= SMALL:
        return False
    if not problem.by_cores:
        return problem.kernels != "tl" and gpu.capability == forms.CAPABILITY
    if problem.precision == "tf32":  # measured on this capability only
        ours = problem.out_dtype == torch.float32 and gpu.capability == TMA_CAPABILITY
        return ours and (problem.M > SMALL or problem.K % 4 == 0)  # otherwise b would be copied
    if problem.M <= SMALL:
        return False
    halves = problem.dtype in HALVES and problem.out_dtype in HALVES
    return halves and gpu.capability >= TMA_CAPABILITY


def tma_compatible(matrix: Tensor) -> bool:
    """Whether a descriptor can be of the matrix: its rows have stride 1 and all start at multiples
    of 16 bytes."""
    row, column = matrix.stride()
    size = matrix.element_size()
    return column == 1 and row > 0 and row * size % 16 == 0 and matrix.data_ptr() % 16 == 0


def tma_writable(matrix: Tensor) -> bool:
    """Whether a descriptor may write the matrix. It stores whole 16 bytes, even beyond the end of a
    row."""
    return tma_compatible(matrix) and matrix.shape[1] * matrix.element_size() % 16 == 0


def tiles_for(problem: Problem, gpu: Gpu, constants: Constants = SHIPPED) -> Tiles:
    """The tiles of gemm_bias_act_kernel by rules, which may still be too large."""
    M, N, _, dtype, _, precision, *_ = problem
    busy = gpu.multiprocessors / H200.multiprocessors
    plenty = gpu.shared_memory >= PLENTY
    if dtype == torch.float64:
        return Tiles(32, 32, 16, 8, 4, 2)
    if dtype == torch.float32 and (M > SMALL or precision == "tf32x3"):
        if precision == "ieee":
            return Tiles(64, 64, 16, 8, 4, 3)
        large = precision == "tf32" and M > 64
        return Tiles(128, 128, 32, 8, 8, 3) if large else Tiles(64, 64, 32, 8, 4, 2)
    if M <= SMALL:
        wide, depth = N >= constants.wide * busy, 256 // dtype.itemsize
        return Tiles(32 if M > 16 else 16, 64 if wide else 32, depth, 8, 4, 4)
    if M * N <= constants.large * busy:
        return Tiles(64, 128, 64, 8, 4, 4 if plenty else 3)
    return Tiles(128, 256, 64, 8, 8, 3) if plenty else Tiles(128, 128, 32, 8, 8, 4)


def fitting(wanted: Configuration, problem: Problem, gpu: Gpu) -> Configuration | None:
    """The first of the wanted configuration and its smaller forms for which there is enough shared
    memory; None if there is none."""
    return _fitting(wanted, _of_any_size(problem), gpu, _failed)


@functools.lru_cache(1024)
def _fitting(
    wanted: Configuration, problem: Problem, gpu: Gpu, failed: frozenset[Failed]
) -> Configuration | None:
    smaller = ever_smaller(wanted)
    return next((form for form in smaller if _fits(form, problem, gpu, failed)), None)


def _fits(form: Configuration, problem: Problem, gpu: Gpu, failed: frozenset[Failed]) -> bool:
    """Whether there is enough shared memory, by the estimate and by failed launches."""
    enough = form.shared_memory(problem, gpu.capability) <= gpu.shared_memory
    return enough and (form._replace(SPLIT=1), problem[3:], gpu) not in failed


_SMALLEST = Configuration(False, Tiles(16, 16, 16, 8, 4, 1))
# Configurations whose launch ran out of resources although they should have fitted, with the parts
# of the Problem on which that depends: all except its size.
_failed: frozenset[Failed] = frozenset()


def too_large(configuration: Configuration, problem: Problem, gpu: Gpu, error: Exception) -> bool:
    """Record that a launch ran out of resources, and warn. Returns whether there is a smaller
    configuration."""
    global _failed
    if configuration == _SMALLEST:
        return False
    _failed |= {(configuration._replace(SPLIT=1), problem[3:], gpu)}
    choose.cache_clear()
    _known_calls.forget()
    warnings.warn(
        f"a matrix product needs more resources than this GPU has; smaller tiles are used from now "
        f"on; please report it: {problem} on {gpu} as {configuration}: {error}",
        RuntimeWarning,
        stacklevel=2,
    )
    return True
