"""Which tiles sum_to adds in, and into how many parts it cuts a sum.

A dimension is (size, x's stride, out's stride); dimensions come innermost first. Those that are
``kept`` have results, those that are ``reduced`` the addends of each. The figures were measured on
an H200.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from triton_kernels import _elementwise
from triton_kernels._counts import cdiv, next_power_of_2

Dims = list[tuple[int, ...]]

TILE = 2048  # elements that a program reads at a time; twice as many of long columns
NARROWEST = 128  # addends of a long row that are read at a time, at least
SHORT = 64  # addends in a row that alone are not worth a tile
FEW = 512  # results: one program each
SQUARE = 32  # results and addends, where short rows are read by single elements
WIDE_TILE = 64, 128  # results and addends, where whole vectors are read ahead of the additions
ENOUGH = 256  # programs of several warps that walk along one dimension: no second pass makes more
ENOUGH_AHEAD = 128  # of them where tiles are read ahead
SHORTEST_ALONE = 300  # addends in a row read by single elements, of which a program has few rows
MANY_ROWS = 64  # times as many as are read as one, at least
PROGRAMS = 1056  # to make of fewer, eight a multiprocessor of an H200; twice as many are better
# where tiles are not read ahead


class Tile(NamedTuple):
    """What a program adds at a time, as sum_kernel's constants."""

    BLOCK_K: int  # results
    BLOCK_R: int  # addends of each
    STAGES: int = 1
    num_warps: int = 4


class Sums(NamedTuple):
    """What is added.

    Attributes:
        kept: the dimensions of the results.
        reduced: those of each one's addends.
        results, addends: how many elements these have together.
    """

    kept: Dims
    reduced: Dims
    results: int
    addends: int

    @staticmethod
    def of(kept: Dims, reduced: Dims) -> Sums:
        return Sums(
            kept,
            reduced,
            math.prod([dim[0] for dim in kept]),
            math.prod([dim[0] for dim in reduced]),
        )


def tile_of(sums: Sums, x_key: tuple[torch.dtype, bool]) -> Tile:
    """The tile for x of this dtype, aligned to 16 bytes or not: long in the direction in which x is
    dense in memory."""
    kept = sums.kept
    if _nearest(sums.reduced) < _nearest(kept):
        return _along_addends(sums, *x_key)
    if kept and kept[0][1] == 1:
        tile = _along_results(sums, *x_key)
        if tile is not None:
            return tile
    return _any(sums)


def _nearest(dims: Dims) -> float:
    """The least of x's strides; infinity if there is none but 0."""
    return min([stride for _, stride, _ in dims if stride], default=math.inf)


def tile_of_parts(sums: Sums, compute: torch.dtype) -> Tile:
    """The tile for partial sums, which are in L2: of many parts each program has few results, or
    few programs would have all that is left to do."""
    across = next_power_of_2(sums.addends)
    if across < TILE // 2:
        return tile_of(sums, (compute, True))
    if sums.results < 8:
        block_r = min(across, 4 * TILE)
        return Tile(1, block_r, num_warps=max(4, block_r // 512))
    return Tile(4, min(across, TILE), num_warps=min(across, TILE) // 128)


def _along_addends(sums: Sums, dtype: torch.dtype, aligned: bool) -> Tile:
    """Where each result's addends are next to each other."""
    kept, reduced, results, addends = sums
    along, across = next_power_of_2(results), next_power_of_2(addends)
    # Half of what is added, or less, at a time, and so at least two loads under way.
    if len(reduced) > 1 and reduced[0][0] < SHORT:
        if addends >= 8 * TILE:
            return Tile(min(along, 4), TILE // 4)
        half = max(4, next_power_of_2(reduced[0][0]) // 2)
        return Tile(min(along, 2 * TILE // half), half)
    few = results <= (PROGRAMS if addends >= 4 * TILE else FEW)
    if few and addends < 8 * TILE:  # at once, and with no second pass
        block_r = min(across, 2 * TILE)
        return Tile(1, block_r, num_warps=8 if block_r > TILE else 4)
    if len(reduced) > 1 and across >= 2 * TILE:
        return Tile(1, 2 * TILE, num_warps=8)
    vectors = aligned and _in_vectors(reduced, kept, dtype)
    if len(reduced) == 1 and results * across >= PROGRAMS * TILE // 2:
        tile = _short_rows(addends, dtype, vectors)
        if tile is not None:
            return tile
    squares = not vectors and addends <= SHORTEST_ALONE and results >= SQUARE * PROGRAMS
    if not (vectors or squares) and TILE // 8 < addends < 8 * TILE:  # all at once, or little
        if across <= (TILE // 4 if dtype.itemsize == 2 else TILE):
            return Tile(min(along, TILE // across), across)
        return Tile(2, TILE // 8) if results >= 4 * PROGRAMS else Tile(1, TILE // 2)
    half = min(max(4, across // 2), TILE // 2)
    if half > NARROWEST and addends < 4 * half:  # little shall hang over, if rows are enough
        narrower = max(NARROWEST, _elementwise.cut(addends, half))
        half = narrower if results * narrower >= PROGRAMS * TILE // 2 else half
    if squares:
        half = min(half, SQUARE)
    return Tile(min(along, TILE // 2 // half), half)


def _short_rows(addends: int, dtype: torch.dtype, vectors: bool) -> Tile | None:
    """Where many results have few addends each, in one row. None where it makes no difference."""
    across = next_power_of_2(addends)
    if addends <= 3:
        return Tile(TILE // 4, 2)
    if vectors and 32 <= across <= 256:  # whole rows, 64 bytes a lane
        return Tile(TILE // across, across, num_warps=dtype.itemsize)
    if not vectors and dtype.itemsize > 2 and across <= 64:
        half = max(4, across // 2)
        return Tile(TILE // 4 // half, half, num_warps=1)
    return None


def _along_results(sums: Sums, dtype: torch.dtype, aligned: bool) -> Tile | None:
    """Where results are next to each other, if there are enough of them for more than
    :func:`_any` does."""
    kept, reduced, results, addends = sums
    along, across = next_power_of_2(results), next_power_of_2(addends)
    vectors = aligned and _in_vectors(kept, reduced, dtype)
    if across <= 4:
        return Tile(min(along, 1024), 2) if vectors else Tile(min(along, 512), across)
    # One warp, whose lanes are all at different results: sums between lanes and warps pass
    # through shared memory, which takes up to nine times as long where addends are few. Short
    # rows of results, with others between them, leave little to read at once in any case.
    apart = len(kept) > 1 and 12 < kept[0][0] < 1024 and addends > 8
    if apart and results >= 2**14 and addends >= 32 and results * addends < 2**23:
        return Tile(32, 32, num_warps=1)  # of little data in one pass
    if apart and not vectors and results >= TILE:
        return Tile(128, 8, num_warps=1)
    many = results >= (2**18 if vectors and across >= 128 and not apart else 2**16)
    short = len(kept) > 1 and kept[0][0] < 128
    if many or (short and results >= 2**14):
        if apart:
            return Tile(64, 16, num_warps=1)
        return Tile(256 if dtype.itemsize == 2 else 128, 4, num_warps=1)
    # To read ahead pays where vectors are read, and costs many times as much where not.
    columns, rows = WIDE_TILE
    if dtype == torch.float64:
        rows //= 2  # three stages of more would not fit a small GPU's shared memory
    reach = sum([(n - 1) * stride for n, stride, _ in (*kept, *reduced)])
    if vectors and across >= rows and reach < 2**30:
        block_k = min(along, columns)
        return Tile(block_k, min(across, columns * rows // block_k), STAGES=3)
    return None


def _any(sums: Sums) -> Tile:
    """The tile where neither results nor addends are dense, or where results are few."""
    results = sums.results
    along, across = next_power_of_2(results), next_power_of_2(sums.addends)
    if results >= FEW // 2 and len(sums.kept) == 1:
        return Tile(64, min(across, 16))
    tile = TILE if across <= 512 else 2 * TILE
    block_k = min(along, tile // min(across, 128))
    block_r = min(across, tile // block_k)
    while block_k > 16 and -results % (block_k // 2) < -results % block_k:
        block_k //= 2
    return Tile(block_k, block_r, num_warps=8 if tile > TILE and along <= 16 else 4)


def _in_vectors(dense: Dims, others: Dims, dtype: torch.dtype) -> bool:
    """Whether the compiler sees that it may read the first dimension by whole vectors."""
    (n, stride, _), *rest = dense
    if stride != 1:
        return False
    divisor = math.gcd(16, n, *[dim[1] for dim in (*rest, *others)])
    return divisor * dtype.itemsize >= 16


def rows_at_once(sums: Sums, dtype: torch.dtype, aligned: bool) -> int:
    """How many of x's rows are read as one, where a second pass adds up anyway: so many that
    threads access whole vectors, and that no tile hangs over short rows. 1 is one by one."""
    kept, reduced, *_ = sums
    if len(kept) != 1 or len(reduced) != 1 or _in_vectors(kept, reduced, dtype) or not aligned:
        return 1
    ((results, stride, _),), ((addends, pitch, _),) = kept, reduced
    multiple = WIDE_TILE[0] if results < WIDE_TILE[0] else 16
    rows = multiple // math.gcd(multiple, results)
    many = addends >= rows * max(MANY_ROWS, results // 2)
    return rows if stride == 1 and pitch == results and many else 1


def parts_of(sums: Sums, tile: Tile) -> int:
    """Into how many parts the addends are cut, so that a GPU is busy: 1 is one pass."""
    programs, tiles = cdiv(sums.results, tile.BLOCK_K), sums.addends // tile.BLOCK_R
    ahead = tile.STAGES > 1
    enough = programs >= (ENOUGH_AHEAD if ahead else ENOUGH)
    if len(sums.reduced) == 1 and tile.num_warps > 1 and enough:
        return 1
    if tiles < 4 or (tiles == 4 and ahead and programs >= ENOUGH_AHEAD // 2):
        return 1
    busy, better = PROGRAMS // programs, 2 * PROGRAMS // programs
    if ahead:  # a program of few tiles has none to read ahead
        least = 4 if programs * tiles >= PROGRAMS else 2 if programs * tiles >= PROGRAMS // 4 else 1
        return max(1, min(busy, tiles // least))
    return max(1, min(tiles, max(busy, min(better, tiles // 2))))


def unit(dense: Dims, others: Dims) -> int:
    """What the compiler shall be told that a dense dimension's size, and the strides along all the
    others, are multiples of; 1 of what it sees by itself, as multiples of 16."""
    if not dense or dense[0][1] != 1:
        return 1
    divisor = math.gcd(16, dense[0][0], *[stride for _, stride, _ in (*dense[1:], *others)])
    return 1 if divisor == 16 else divisor


def out_unit(kept: Dims) -> int:
    """The same divisor for out, along whose first dimension results are stored."""
    (n, _, stride), *others = kept
    return math.gcd(16, n, *[step for _, _, step in others]) if stride == 1 else 1
