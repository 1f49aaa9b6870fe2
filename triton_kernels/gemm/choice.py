"""The choice of a kernel and its tiles for a matrix product, by the problem and the GPU.

In precisions tf32x3 and f16x3, and for float64 except on compute capability 9.0, rules give one
configuration. Otherwise there are several candidates, and :func:`choose` takes the one that is
fastest by :mod:`triton_kernels.gemm.model`:

- the configurations of gemm_gluon_kernel, on compute capability 9.0, where those of
  gemm_gluon_fma_kernel are the only ones for float32 matrices in precision ieee;
- the tiles of gemm_tma_kernel whose waves over the multiprocessors cost least, elsewhere and in
  tf32; without them the chosen took 0.1 % longer at most (820 drawn products of 16-bit matrices, by
  strata);
- through pointers, the tiles given by rules, if there are no descriptors or few rows; and
  POINTER_TILES, if descriptors need copies that pointers can do without;
- if there are fewer tiles than multiprocessors, the last two with K split, and small tiles;
- for up to 32 rows of 16-bit matrices only those of :mod:`triton_kernels.gemm.few_rows`, and of
  gemm_gluon_kernel those that are made for so few; the narrow ones of these compete for more rows,
  too, where there is little to do;
- for short sums of 16-bit matrices with few tiles only BRIEF_TILES, through pointers, on compute
  capability 9.0, or BRIEF_TILES_UNALIGNED, if descriptors would need copies;
- any of those by descriptors after copies of operands whose pitch is slow;
- two configurations of gemm_gluon_kernel side by side, see :mod:`triton_kernels.gemm.beside`.

Each candidate is first reduced until a block has enough shared memory for it: to fewer stages, then
to smaller tiles. The constants of the rules are in :class:`triton_kernels._measured.Constants`;
``triton_kernels.tune()`` measures them on other GPUs.
"""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from triton_kernels import _known_calls, _measured
from triton_kernels._counts import cdiv
from triton_kernels._gpu import H200, Gpu
from triton_kernels._measured import SHIPPED, Constants
from triton_kernels.gemm import few_rows, model
from triton_kernels.gemm.beside import SHORT, beside
from triton_kernels.gemm.configurations import (
    ALIGNED,
    FEW_ROWS,
    HALVES,
    SLOW,
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
        reached: the fraction of the tensor cores' peak that the loop reaches.
        long: replaces ``tiles`` from K = Constants.long on, without c: there the time of the loop
            matters, not that of the epilogue.
    """

    tiles: Tiles
    SUBTILES: int
    stages_with_c: int
    reached: float
    long: Tiles | None = None

    def for_problem(self, problem: Problem, constants: Constants = SHIPPED) -> Configuration:
        """The configuration with the best stages and warps for K, with or without c."""
        tiles = self.tiles
        if problem.c:
            tiles = tiles._replace(num_stages=self.stages_with_c)
        elif problem.K >= constants.long and self.long is not None:
            tiles = self.long
        return Configuration(True, tiles, self.SUBTILES).of_dtype(problem.dtype)


# Constants.costs has their costs, in this order. These tell which row competes; the fraction of the
# peak is for the model.
TMA_TILES = (
    TmaTiles(Tiles(128, 256, 64, 16, 8, 4), 2, 3, 0.95),
    TmaTiles(Tiles(128, 128, 64, 16, 8, 4), 1, 4, 0.85, long=Tiles(128, 128, 64, 8, 4, 5)),
    TmaTiles(Tiles(64, 128, 128, 16, 4, 4), 1, 3, 0.74),
    TmaTiles(Tiles(64, 64, 128, 16, 4, 6), 1, 5, 0.54),
    TmaTiles(Tiles(64, 32, 128, 16, 4, 6), 1, 5, 0.31),
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
LARGEST = 64  # the most rows of these, and of those for multiply-adds in Gluon
LONG = 512  # elements of K from which on it may also be split to fill the last wave
MOST = 64  # parts of a sum then
# More than MANY rows are rounded up to a multiple of SHARED, as they are in any of their tiles.
# Of 20,000 drawn products 26 then get another configuration, by the model at most 3 % slower.
MANY, SHARED = 64, 16
# Columns from which on a tile of the transpose may have all rows of a. With fewer, more programs
# load these: 160×7232×11776 took 1.2 to 1.9 times as long in tiles of 64 as by the model.
CROWDED = 128
# The most columns of a tile of up to 32 rows that competes for more rows: products of little work
# gain by more programs. 156 drawn ones, 128 of them below 20 µs, go from 1.039 to 1.013 times the
# best configuration; wider tiles bring nothing (H200).
NARROW = 64
WIDE = 96 * 64  # columns from which few rows of float32 have wider tiles
VECTOR = 8  # 16-bit elements of 16 bytes
# Products with clusters: multiprocessors, since no GPC of an H200 has more, and elements of K. With
# more than one wave, shorter sums or an addend clusters took up to 3 times as long as others,
# where the model was not fitted; in one wave every program ends with its tile.
GPC, DEEP = 18, 1024
SMALL = 32  # up to this M, N or K pointers are as fast as descriptors
FLOAT64_CAPABILITY = 90  # where float64 was measured
TMA_CAPABILITY = 90  # the first GPUs with a tensor memory accelerator
# Bytes of shared memory. GPUs with less get smaller tiles, so that two blocks fit a multiprocessor,
# and one's loop runs during the other's epilogue. Smaller tiles can keep their tensor cores busy,
# which are half as fast as an A100's. This follows from the architectures' figures, and was not
# measured.
PLENTY = 128 * 1024


Failed = tuple[Configuration, Problem, Gpu]
# The tiles for a split K with more than 32 rows.
FEW_TILES = Tiles(32, 32, 128, 8, 4, 4), Tiles(64, 32, 128, 8, 4, 4)


# Through pointers, for operands that descriptors would have to copy: if their rows go across K and
# are read in pieces of 4 bytes or more, and if the sum is LENGTHY, because the model knows no
# epilogue of this kernel. Of six such products with pieces of 8 bytes four took 0.44 to 0.92 times
# as long so (H100).
POINTER_TILES = (
    Tiles(128, 128, 64, 8, 8, 3),
    Tiles(128, 64, 64, 8, 4, 4),
    Tiles(64, 128, 64, 8, 4, 4),
)
# The same for up to 64 rows of 16 bits and such a b, however it lies; the second not where b lies
# along K in pieces of 2 bytes, which makes it up to 3 times slower. On 30 drawn products of 33 to
# 64 rows with pitches that 16 does not divide, the best peer took 1.38 times as long as the chosen,
# and 1.18 times as long as the chosen without these (H200).
POINTER_TILES_64 = Tiles(64, 64, 128, 8, 4, 3), Tiles(64, 128, 64, 8, 4, 4)
LENGTHY = 1024


# Through pointers, for sums so short that the start of gemm_gluon_kernel takes longer: tiles → the
# most steps of a program. The smallest that fill one wave are best. 49 products take 0.93 times as
# long as in the best form of Gluon (0.85 to 1.01; H200, with relu).
BRIEF_TILES = {
    Tiles(32, 32, 64, 8, 4, 4): 3,
    Tiles(64, 32, 64, 8, 4, 4): 3,
    Tiles(64, 64, 64, 8, 4, 4): 2,
}
BRIEF = max(tiles.BLOCK_K * most for tiles, most in BRIEF_TILES.items())  # elements of K
# The same of operands that descriptors would have to copy, which takes a launch of its own: those
# of which all programs start at once; deep ones if a step waits for its loads. 12 products take
# 0.88 times as long as in the chosen form of Gluon (0.77 to 1.06; H200, with relu).
BRIEF_TILES_UNALIGNED = {
    False: Tiles(32, 32, 64, 8, 4, 4),
    True: Tiles(32, 32, 128, 8, 4, 4),
}
BRIEF_UNALIGNED = 256  # elements of K


# A configuration whose SPLIT is 1; the fraction of the peak that its loop reaches, as for
# model.timed; and numbers of parts into which K may be split.
Splits = tuple[Configuration, float, list[int]]
WHOLE = [1]
NEITHER = (False, False)  # of a and b


@functools.lru_cache(4096)
def choose(problem: Problem, gpu: Gpu) -> Configuration:
    """The configuration for a problem on a GPU: the fastest candidate by the model, or a pair that
    is faster. Many rows are rounded up: all that fill the same tiles share an entry, and little
    else depends on so few."""
    M = problem.M
    if M > MANY and M % SHARED:
        return choose(problem._replace(M=SHARED * cdiv(M, SHARED)), gpu)
    ways = candidates(problem, gpu)
    one, seconds = fastest(problem, gpu, ways)
    if seconds < SHORT or problem.dtype not in HALVES or problem.few_rows:
        return one
    forms = [(f, r) for f, r, cuts in ways if _pairs(f) and cuts[0] == 1]
    if not forms:
        return one
    seconds -= model.copying(problem, gpu, one.copies)
    pair = beside(after(problem, one.copies), gpu, forms, seconds)
    return pair._replace(copies=one.copies) if pair else one


def _pairs(form: Configuration) -> bool:
    """Whether a configuration may be one of a pair. With a rest in tiles of 64 by 64 to 224 eleven
    drawn products took 1.04 times as long as in one configuration, with 64 by 256 to 320 as long
    (17 pairs), with others 0.993 times (88 pairs of 54 products; H200)."""
    return form.gluon and not form.ALTERNATE and min(form.tiles[:2]) > NARROW


def fastest(
    problem: Problem, gpu: Gpu, ways: list[Splits] | None = None
) -> tuple[Configuration, float]:
    """The fastest candidate by the model, and its seconds; 0 if there is no choice. ``ways``: the
    candidates, if they are known."""
    ways, each_way = ways or candidates(problem, gpu), copyings(problem)
    if len(ways) == len(each_way) == 1 and ways[0][2] == WHOLE:
        return ways[0][0], 0.0
    least = math.inf
    for copies in each_way:
        seconds = model.timed(after(problem, copies), gpu)
        before = model.copying(problem, gpu, copies)
        for form, reached, parts in ways:
            if before and not form.tma:
                continue
            for number, each in zip(parts, seconds(form, reached, parts)):
                if before + each < least:
                    least, best, into, copied = before + each, form, number, copies
    return best._replace(SPLIT=into, copies=copied) if into > 1 or any(copied) else best, least


def copyings(problem: Problem) -> list[tuple[bool, bool]]:
    """The ways of copying operands with a slow pitch, as in a Configuration. For few rows that
    never pays."""
    if problem.M <= FEW_ROWS or SLOW not in problem.pitches:
        return [NEITHER]
    of_a, of_b = ((False, True) if pitch == SLOW else (False,) for pitch in problem.pitches)
    return list(itertools.product(of_a, of_b))


def after(problem: Problem, copies: tuple[bool, bool]) -> Problem:
    """The problem as it lies in memory when operands have been copied."""
    if copies == NEITHER:
        return problem
    lie = zip(problem.pitches, copies)
    of_a, of_b = (ALIGNED if copied else pitch for pitch, copied in lie)
    return problem._replace(pitches=(of_a, of_b))


def candidates(problem: Problem, gpu: Gpu) -> list[Splits]:
    """The configurations that fit, whole and with K split."""
    if problem.precision == "f16x3":
        return [(_of_parts(problem, gpu), 0.0, WHOLE)]
    if problem.few_rows:
        return _of_few_rows(problem, gpu)
    M, kind, multiply_adds = problem.M, problem.of_any_size(), not problem.by_cores
    ways: list[Splits] = []
    if problem.dtype == torch.float64 and gpu.capability == FLOAT64_CAPABILITY:
        for form, reached in _of_float64(kind, gpu, _failed).items():
            if suits(form.tiles, M, 16):
                ways.append((form, reached, [1, *parts_of(form, problem, gpu, True)]))
        if ways:
            return ways
    by_descriptors = tma_pays(problem, gpu)
    if by_descriptors and (brief := _brief(problem, gpu)):
        return [(brief, 0.0, WHOLE)]
    if by_descriptors:
        clusters = _clusters_pay(problem, gpu)
        lying = kind._replace(across=(problem.across[0], False))
        for form, reached in _of_gluon(lying, gpu, _failed).items():
            if multiply_adds and not suits(form.tiles, M, 8):
                continue
            m, n, *_ = form.tiles
            if form.cluster[0]:
                if clusters and form.tiles_of(M, problem.N) <= model.programs_at_once(form, gpu):
                    ways.append((form, reached, WHOLE))
                continue
            if form.TURNED:
                flat, most = m <= FEW_ROWS, M if n < CROWDED else 2 * M
                if (flat and n > NARROW) or (not flat and m >= most):
                    continue
            parts = parts_of(form, problem, gpu, multiply_adds)
            if not form.ALTERNATE:
                ways.append((form, reached, [1, *parts]))
                continue
            ways.append((form, reached, WHOLE))
            if parts and not form.TURNED:  # as in split; of the transpose others have these tiles
                ways.append((form._replace(ALTERNATE=False), reached, parts))
        if ways and (problem.kernels == "gluon" or multiply_adds):
            return ways
    constants = _measured.constants(gpu)
    if by_descriptors and not (ways and problem.dtype in HALVES):
        ways += _of_tma(problem, gpu, constants)
    if not ways or M <= SMALL:
        usual = Configuration(False, tiles_for(problem, gpu, constants))
        ways.append((_fitting(usual, kind, gpu, _failed) or _SMALLEST, 0.0, WHOLE))
    if problem.dtype == torch.float64 or problem.precision == "tf32x3":
        return ways
    if M <= SMALL:
        columns = (SMALL, 2 * SMALL) if model.synchronous(problem) else (SMALL,)
        few = [usual._replace(tiles=usual.tiles._replace(BLOCK_N=each)) for each in columns]
    elif multiply_adds:  # by descriptors they have ways already
        few = [usual]
    else:
        few = [Configuration(False, tiles).of_dtype(problem.dtype) for tiles in FEW_TILES]
    if by_descriptors and min(problem.pitches) < 16:
        able = [Configuration(False, tiles) for tiles in _without_copies(problem)]
        able = [form for form in able if _fits(form, kind, gpu, _failed)]
        ways += [(form, 0.0, WHOLE) for form in able]
        few += able
    for wanted in few:
        small = _fitting(wanted, kind, gpu, _failed)
        if small is not None and (parts := parts_of(small, problem, gpu)):
            ways.append((small, 0.0, parts))
    return ways


def _clusters_pay(problem: Problem, gpu: Gpu) -> bool:
    """Whether forms in clusters compete, of which all tiles must fit one wave. Descriptors store
    the result."""
    deep = problem.K >= DEEP and not problem.c
    return deep and gpu.multiprocessors >= GPC and problem.N % VECTOR == 0


def _brief(problem: Problem, gpu: Gpu) -> Configuration | None:
    """The configuration through pointers for a short sum of 16-bit matrices, if it has few
    tiles."""
    if (
        problem.K > BRIEF_UNALIGNED
        or gpu.capability != forms.CAPABILITY  # not measured
        or problem.dtype not in HALVES
        or problem.kernels == "gluon"
    ):
        return None
    if min(problem.pitches) < 16:
        form = Configuration(False, BRIEF_TILES_UNALIGNED[model.synchronous(problem)])
        few = form.tiles_of(problem.M, problem.N) <= model.RESIDENT * gpu.multiprocessors
        return form if few and _fits(form, problem.of_any_size(), gpu, _failed) else None
    if problem.K > BRIEF:
        return None
    *_, largest = BRIEF_TILES
    for tiles, most in BRIEF_TILES.items():
        form = Configuration(False, tiles)
        waves = cdiv(form.tiles_of(problem.M, problem.N), gpu.multiprocessors)
        steps = waves * cdiv(problem.K, tiles.BLOCK_K)
        if (waves == 1 or tiles == largest) and steps <= most:
            return form if _fits(form, problem.of_any_size(), gpu, _failed) else None
    return None


def _of_few_rows(problem: Problem, gpu: Gpu) -> list[Splits]:
    """The configurations for up to 32 rows of 16-bit matrices that fit, whole and with K split."""
    M, kind = problem.M, problem.of_any_size()
    able: list[tuple[Configuration, float]] = []
    if min(problem.N, problem.K) > SMALL and problem.out_dtype in HALVES:
        for form, reached in _of_gluon(kind, gpu, _failed).items():
            if form.tiles.BLOCK_M == few_rows.rows(M):
                able.append((form, reached))
    if not (able and problem.kernels == "gluon"):
        for tiles in few_rows.tiles(M, problem.across[1], model.synchronous(problem)):
            if small := _fitting(Configuration(False, tiles), kind, gpu, _failed):
                able.append((small, 0.0))
    ways = [(form, reached, [1, *parts_of(form, problem, gpu)]) for form, reached in able]
    return ways or [(_SMALLEST, 0.0, WHOLE)]


@functools.lru_cache(256)
def _of_float64(kind: Problem, gpu: Gpu, failed: frozenset[Failed]) -> dict[Configuration, float]:
    """The configurations for float64 that fit → the fraction of the peak of each loop."""
    able = {Configuration(False, tiles): each for tiles, each in FLOAT64_TILES.items()}
    return {form: each for form, each in able.items() if _fits(form, kind, gpu, failed)}


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
    one = form._replace(SPLIT=1)
    reached = forms.FMA_FORMS.get(one, 0.0)
    chosen = _of_parts(problem, gpu)
    waves = cdiv(chosen.tiles_of(problem.M, problem.N), gpu.multiprocessors)
    in_parts = model.in_parts(problem, gpu, waves * forms.PARTS_FORMS.get(chosen, 1.0))
    (in_one,) = model.timed(whole, gpu)(one, reached, [form.SPLIT])
    return in_parts < in_one


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


def _of_tma(problem: Problem, gpu: Gpu, constants: Constants) -> list[Splits]:
    """The configuration of gemm_tma_kernel whose waves cost least, if one fits."""
    K = constants.long if problem.K >= constants.long else 0  # all K of a kind share a cache entry
    costs = _tma_costs(problem.of_any_size(K), gpu, constants, _failed)

    def waves(form: Configuration) -> int:
        return cdiv(form.tiles_of(problem.M, problem.N), gpu.multiprocessors)

    best = min(costs, key=lambda form: waves(form) * costs[form][0], default=None)
    return [] if best is None else [(best, costs[best][1], WHOLE)]


@functools.lru_cache(256)
def _tma_costs(
    problem: Problem, gpu: Gpu, constants: Constants, failed: frozenset[Failed]
) -> dict[Configuration, tuple[float, float]]:
    """The configurations of gemm_tma_kernel that fit → the cost of a tile, and the fraction of the
    peak of its loop."""
    costs: dict[Configuration, tuple[float, float]] = {}
    for row, cost in zip(TMA_TILES, constants.costs):
        form = _fitting(row.for_problem(problem, constants), problem.of_any_size(), gpu, failed)
        if form is not None:
            costs.setdefault(form, (cost, row.reached))
    return costs


def split(form: Configuration, problem: Problem, gpu: Gpu) -> list[Configuration]:
    """The configuration with K split into each of :func:`parts_of`. Then a program has one tile,
    and so none to alternate."""
    numbers = parts_of(form, problem, gpu)
    return [form._replace(ALTERNATE=False, SPLIT=parts) for parts in numbers]


def parts_of(form: Configuration, problem: Problem, gpu: Gpu, together: bool = False) -> list[int]:
    """The numbers of parts into which K may be split; none if the configuration's tiles fill the
    GPU.

    By descriptors each multiprocessor gets one part, through pointers up to four, or of few rows of
    16-bit matrices as few_rows.parts says. If programs wait for the loads of every step, one
    program's loads run while the others wait. The same is so if several programs together reach the
    multiprocessor's peak (``together``); then parts of large tiles also fill the last wave.
    """
    if form.tma and not form.gluon:
        return []
    M, N, K, *_ = problem
    rows, columns, depth, *_ = form.tiles
    # -(-x // y) is cdiv(x, y) without a call: this runs for every form of every new shape.
    tiles, full = -(-M // rows) * -(-N // columns), gpu.multiprocessors
    if not form.tma and problem.few_rows:
        return few_rows.parts(rows, tiles, -(-K // depth), full)
    if together or (not form.tma and model.synchronous(problem)):
        full *= model.RESIDENT
    elif tiles >= full:
        return []
    most = -(-K // depth) // 2  # each part has at least two steps
    wanted: tuple[int, ...] = ()
    if 0 < tiles < full:
        each = gpu.multiprocessors
        wanted = (each // tiles,)
        if together or not form.gluon:
            wanted += (2 * each // tiles, 4 * each // tiles)
    if together:
        most = min(most, MOST)
        if rows == LARGEST and K >= LONG and tiles < 2 * full:
            wanted += (2, 3, 4)
    parts: list[int] = []
    for each in wanted:
        number = min(each, most)
        if number > 1 and number not in parts:
            parts.append(number)
    return parts


def _without_copies(problem: Problem) -> tuple[Tiles, ...]:
    """The tiles through pointers that compete where descriptors need copies."""
    (_, of_b), (_, b_across) = problem.pitches, problem.across
    if problem.K < LENGTHY:
        return ()
    if problem.M <= 2 * SMALL and of_b < 16 and problem.dtype in HALVES:
        return POINTER_TILES_64[:1] if of_b < 4 and not b_across else POINTER_TILES_64
    lie = zip(problem.pitches, problem.across)
    by_pieces = all(across and pitch >= 4 for pitch, across in lie if pitch < 16)
    return POINTER_TILES if by_pieces else ()


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
        wide, depth = N >= WIDE * busy, 256 // dtype.itemsize
        return Tiles(few_rows.rows(M), 64 if wide else 32, depth, 8, 4, 4)
    if M * N <= constants.large * busy:
        return Tiles(64, 128, 64, 8, 4, 4 if plenty else 3)
    return Tiles(128, 256, 64, 8, 8, 3) if plenty else Tiles(128, 128, 32, 8, 8, 4)


def fitting(wanted: Configuration, problem: Problem, gpu: Gpu) -> Configuration | None:
    """The first of the wanted configuration and its smaller forms for which there is enough shared
    memory; None if there is none."""
    return _fitting(wanted, problem.of_any_size(), gpu, _failed)


@functools.lru_cache(1024)
def _fitting(
    wanted: Configuration, problem: Problem, gpu: Gpu, failed: frozenset[Failed]
) -> Configuration | None:
    smaller = ever_smaller(wanted)
    return next((form for form in smaller if _fits(form, problem, gpu, failed)), None)


def _fits(form: Configuration, problem: Problem, gpu: Gpu, failed: frozenset[Failed]) -> bool:
    """Whether there is enough shared memory, by the estimate and by failed launches."""
    enough = form.shared_memory(problem, gpu.capability) <= gpu.shared_memory
    return enough and (form.kind, problem.of_any_size(), gpu) not in failed


_SMALLEST = Configuration(False, Tiles(16, 16, 16, 8, 4, 1))
# Configurations whose launch ran out of resources although they should have fitted. Of the Problem
# its size and how it lies do not count.
_failed: frozenset[Failed] = frozenset()


def forget() -> None:
    """Choose anew from now on, because other configurations may run."""
    choose.cache_clear()
    _of_gluon.cache_clear()
    _known_calls.forget()


def too_large(configuration: Configuration, problem: Problem, gpu: Gpu, error: Exception) -> bool:
    """Record that a launch ran out of resources, and warn. Returns whether there is a smaller
    configuration."""
    global _failed
    if configuration == _SMALLEST:
        return False
    used = [configuration, *([configuration.rest.form] if configuration.rest else [])]
    _failed |= {(form.kind, problem.of_any_size(), gpu) for form in used}
    forget()
    warnings.warn(
        f"a matrix product needs more resources than this GPU has; smaller tiles are used from now "
        f"on; please report it: {problem} on {gpu} as {configuration}: {error}",
        RuntimeWarning,
        stacklevel=2,
    )
    return True
