"""The tile with which sum_to adds, and the number of parts into which it cuts a sum.

A dimension is (size, stride in x, stride in out); dimensions come innermost first. ``kept``
dimensions index the results, ``reduced`` dimensions the addends of one result. All constants were
measured on an H200, those of unaligned rows on an H100.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from triton_kernels import _elementwise
from triton_kernels._counts import cdiv, next_power_of_2

Dims = list[tuple[int, ...]]

TILE = 2048  # elements that a program loads per step; twice as many for long columns
NARROWEST = 128  # the fewest addends of a long row to load per step
SHORT = 64  # a row of fewer addends does not fill a tile
FEW = 512  # up to so many results, each has a program
SQUARE = 32  # BLOCK_K and BLOCK_R for short rows that are loaded element by element
WIDE_TILE = 64, 128  # BLOCK_K and BLOCK_R where vectors are loaded ahead of the additions
ENOUGH = 256  # so many programs along one dimension need no second pass
ENOUGH_AHEAD = 128  # the same where tiles are loaded ahead
LONG = 512  # from so many addends per row, loaded by elements, few rows at a time are faster
ALONE = 264  # up to so many results, each has a program of 16 warps
SHORTEST_ALONE = 300  # from so many addends per row, loaded by elements, a program has few rows
MANY_ROWS = 64  # x must have so many times the rows that are merged into one
ADJACENT = 128  # fewer adjacent results are a piece of x
ROWS = 16  # from so many on, whole rows may be added before the pieces within them,
TWO_LAUNCHES = 1 << 22  # if x has so many elements
MANY = 1 << 19  # fewer results of few addends get small programs of one warp
PROGRAMS = 1056  # to aim for: eight per multiprocessor of an H200; twice as many are better
# where tiles are not loaded ahead


class Tile(NamedTuple):
    """What a program adds per step; the fields are constants of sum_kernel."""

    BLOCK_K: int  # results
    BLOCK_R: int  # addends of each
    STAGES: int = 1
    num_warps: int = 4
    UNROLL: int = 1  # steps whose loads are in flight together, by registers


class Sums(NamedTuple):
    """The dimensions of a sum.

    Attributes:
        kept: the dimensions of the results.
        reduced: the dimensions of the addends of one result.
        results, addends: the number of elements in kept and in reduced.
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
    """The tile, long in the direction in which x is dense. ``x_key`` is x's dtype, and whether x is
    aligned to 16 bytes."""
    kept = sums.kept
    if _nearest(sums.reduced) < _nearest(kept):
        return _along_addends(sums, *x_key)
    if kept and kept[0][1] == 1:
        tile = _along_results(sums, *x_key)
        if tile is not None:
            return tile
    return _any(sums)


def _nearest(dims: Dims) -> float:
    """The smallest nonzero stride in x; infinity if there is none."""
    strides = [stride for _, stride, _ in dims if stride]
    return min(strides) if strides else math.inf


def tile_of_parts(sums: Sums, compute: torch.dtype) -> Tile:
    """The tile for the second pass, over partial sums in L2. Where a result has many parts, a
    program takes few results; otherwise there would be too few programs."""
    across = next_power_of_2(sums.addends)
    if across < TILE // 2:
        return tile_of(sums, (compute, True))
    if sums.results < 8:
        block_r = min(across, 4 * TILE)
        return Tile(1, block_r, num_warps=max(4, block_r // 512))
    return Tile(4, min(across, TILE), num_warps=min(across, TILE) // 128)


def _along_addends(sums: Sums, dtype: torch.dtype, aligned: bool) -> Tile:
    """The tile where the addends of a result are contiguous."""
    kept, reduced, results, addends = sums
    along, across = next_power_of_2(results), next_power_of_2(addends)
    # At most half of the addends per step, so that two loads or more are in flight.
    if len(reduced) > 1 and reduced[0][0] < SHORT:
        if addends >= 8 * TILE:
            return Tile(min(along, 4), TILE // 4, UNROLL=2)
        if results < 2 * TILE and addends >= TILE // 8:
            return Tile(min(along, 16), 64, UNROLL=2)
        half = max(4, next_power_of_2(reduced[0][0]) // 2)
        return Tile(min(along, 2 * TILE // half), half)
    few = results <= (PROGRAMS if addends >= 2 * TILE else FEW)
    if few and addends < 8 * TILE:  # a few large steps, no second pass
        alone = results <= ALONE
        block_r = min(across, 2 * TILE if alone or addends >= 4 * TILE else TILE)
        warps = 16 if alone and block_r > TILE else 8 if across > TILE else 4
        return Tile(1, block_r, num_warps=warps, UNROLL=2)
    if len(reduced) > 1 and across >= 2 * TILE:
        return Tile(1, 2 * TILE, num_warps=8)
    vectors = aligned and _in_vectors(reduced, kept, dtype)
    if len(reduced) == 1 and results * across >= PROGRAMS * TILE // 2:
        tile = _whole_rows(sums, dtype) if vectors else _by_elements(sums, dtype)
        if tile is not None:
            return tile
    squares = not vectors and addends <= SHORTEST_ALONE and results >= SQUARE * PROGRAMS
    if not (vectors or squares) and TILE // 8 < addends < 8 * TILE:  # one step, or short ones
        if across <= (TILE // 4 if dtype.itemsize == 2 else TILE):
            return Tile(min(along, TILE // across), across)
        return Tile(2, TILE // 8) if results >= 4 * PROGRAMS else Tile(1, TILE // 2)
    half = min(max(4, across // 2), TILE // 2)
    if half > NARROWEST and addends < 4 * half:  # waste little of the last tile
        narrower = max(NARROWEST, _elementwise.cut(addends, half))
        half = narrower if results * narrower >= PROGRAMS * TILE // 2 else half
    if squares:
        half = min(half, SQUARE)
    return Tile(min(along, TILE // 2 // half), half, UNROLL=2 if half == TILE // 2 else 1)


def _whole_rows(sums: Sums, dtype: torch.dtype) -> Tile | None:
    """The tile for many results whose addends are a short row of vectors: whole rows, 64 bytes per
    lane. None: no special tile is faster."""
    across = next_power_of_2(sums.addends)
    if 32 <= across <= 256:
        return Tile(TILE // across, across, num_warps=dtype.itemsize)
    return None


# Bytes per element → the most addends of a row that is loaded element by element, and its tile.
BY_ELEMENTS = {
    2: (
        (9, Tile(512, 1)),
        (16, Tile(256, 2, UNROLL=2)),
        (24, Tile(128, 4, UNROLL=2)),
        (63, Tile(64, 4, UNROLL=2)),
        (127, Tile(32, 8, UNROLL=2)),
    ),
    4: (
        (5, Tile(512, 1)),
        (8, Tile(128, 4, num_warps=1)),
        (16, Tile(64, 8, num_warps=1)),
        (31, Tile(64, 4)),
        (63, Tile(32, 8, UNROLL=2)),
    ),
}


def _by_elements(sums: Sums, dtype: torch.dtype) -> Tile | None:
    """The tile for many results whose addends are a row that is loaded element by element. A lane
    has few elements of a step. It finds the rest of a line in L1, where the step before brought it.
    None: no special tile is faster."""
    results, addends = sums.results, sums.addends
    narrow = dtype.itemsize == 2
    for most, tile in BY_ELEMENTS[2 if narrow else 4]:
        if addends <= most:
            return tile
    if addends < (LONG if narrow else 2 * SHORT) and (narrow or addends % 2):
        many = results >= SQUARE * PROGRAMS
        return Tile(32, 16, num_warps=8) if many else Tile(8, 64, UNROLL=2)
    if 3 * LONG <= addends < 8 * TILE and results >= 2 * PROGRAMS:
        return Tile(1, TILE // 4, num_warps=2, UNROLL=2)
    if LONG <= addends < 8 * TILE and results >= 4 * PROGRAMS:
        return Tile(2, TILE // 8, num_warps=1, UNROLL=2)
    return None


def unaligned_rows(sums: Sums, dtype: torch.dtype, aligned: bool) -> Tile | None:
    """The tile of row_sum_kernel, whose BLOCK_K is 1: the addends of a result are a row, which
    begins anywhere, but x is aligned. None: no such rows, or that is not faster."""
    kept, reduced, *_ = sums
    if not len(kept) == len(reduced) == 1 or reduced[0][1] != 1:
        return None
    return _tile_of_rows(sums, dtype, aligned)


def _tile_of_rows(sums: Sums, dtype: torch.dtype, aligned: bool) -> Tile | None:
    kept, reduced, results, addends = sums
    if not aligned or dtype.itemsize > 4 or results <= ALONE:
        return None
    narrow = dtype.itemsize == 2
    most = 2**30 if results >= 2 * PROGRAMS else 16 * TILE
    if not (2 * LONG if narrow else LONG) <= addends < most or _in_vectors(reduced, kept, dtype):
        return None
    if not narrow:
        across = min(max(TILE // 2, next_power_of_2(addends)), 2 * TILE)
        return Tile(1, across, num_warps=across // 512)
    across = TILE if addends >= 2 * TILE else TILE // 2 if addends >= 3 * LONG else TILE // 4
    return Tile(1, across, num_warps=across // 512, UNROLL=2)


def _along_results(sums: Sums, dtype: torch.dtype, aligned: bool) -> Tile | None:
    """The tile where results are contiguous. None: too few results, and :func:`_any` is as good."""
    kept, reduced, results, addends = sums
    along, across = next_power_of_2(results), next_power_of_2(addends)
    vectors = aligned and _in_vectors(kept, reduced, dtype)
    if across <= 4 and results < MANY:
        return Tile(min(along, 1024 // across), across, num_warps=1)
    if across <= 4:
        return Tile(min(along, 1024), 2) if vectors else Tile(min(along, 512), across)
    gaps = len(kept) > 1
    if gaps and kept[0][0] < ADJACENT:
        tile = _of_pieces(sums, dtype, vectors)
        return tile._replace(BLOCK_K=min(along, tile.BLOCK_K), BLOCK_R=min(across, tile.BLOCK_R))
    # One warp, with every lane at another result: sums across lanes and warps pass through shared
    # memory, which took up to nine times as long where addends are few. Short rows of results that
    # are not adjacent leave little to load per step anyway.
    apart = gaps and kept[0][0] < 1024 and addends > 8
    if apart and results >= 2**14 and addends >= 32 and results * addends < 2**23:
        return Tile(32, 32, num_warps=1, UNROLL=2)  # little data, in one pass
    if apart and not vectors and results >= TILE:
        return Tile(128, 8, num_warps=1, UNROLL=2)
    narrow = dtype.itemsize == 2
    if vectors and not apart and 2**16 < results < 2**18 and 16 <= addends < LONG:
        # Tiles for STAGES would be too few, or half empty.
        columns = 64 if narrow and addends >= 40 else 128
        return Tile(columns, 1024 // columns, num_warps=1, UNROLL=2)
    if results >= (2**18 if vectors and across >= 128 and not apart else 2**16):
        if apart:
            return Tile(64, 16, num_warps=2, UNROLL=2) if narrow else Tile(32, 32, UNROLL=2)
        return Tile(256 if narrow else 128, 4, num_warps=1, UNROLL=2)
    # Loading ahead pays where vectors are loaded. Elsewhere it is many times slower.
    columns, rows = WIDE_TILE
    if dtype == torch.float64:
        rows //= 2  # three stages of a larger tile would not fit the shared memory of a small GPU
    reach = sum([(n - 1) * stride for n, stride, _ in (*kept, *reduced)])
    if vectors and across >= rows and reach < 2**30:
        block_k = min(along, columns)
        return Tile(block_k, min(across, columns * rows // block_k), STAGES=3)
    return Tile(min(along, 128), across, num_warps=1) if across <= 8 else None


def _of_pieces(sums: Sums, dtype: torch.dtype, vectors: bool) -> Tile:
    """The tile where few results are adjacent, so that x has pieces of them with gaps."""
    kept, reduced, results, addends = sums
    narrow, adjacent, together = dtype.itemsize == 2, kept[0][0], reduced[0][0]
    if results >= 2**15 and addends < (256 if narrow else 128):
        if together >= 32:  # the addends of a result in a row of pieces
            return Tile(32, 32, num_warps=1, UNROLL=2)
        columns = 64 if adjacent < 48 else 128
        return Tile(columns, 1024 // columns, num_warps=1, UNROLL=2)
    if not narrow:
        return Tile(16, 256, num_warps=8)
    if results * addends < 2**23:
        return Tile(16, 128, UNROLL=2)
    if not vectors and (adjacent % 2 or adjacent >= 32):
        return Tile(64, 16, num_warps=1, UNROLL=2)
    return Tile(16, 64, num_warps=1, UNROLL=2)


def _any(sums: Sums) -> Tile:
    """The tile where neither results nor addends are contiguous, or where results are few."""
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
    """Whether the compiler can prove that loads along the first dimension may be vectors."""
    (n, stride, _), *rest = dense
    if stride != 1:
        return False
    divisor = math.gcd(16, n, *[dim[1] for dim in (*rest, *others)])
    return divisor * dtype.itemsize >= 16


def rows_at_once(sums: Sums, dtype: torch.dtype, aligned: bool) -> int:
    """How many rows of x are merged into one, for a sum that has a second pass anyway. Merged rows
    let threads load whole vectors, and fill the tile where rows are short. 1: none are merged."""
    kept, reduced, *_ = sums
    if len(kept) != 1 or len(reduced) != 1 or _in_vectors(kept, reduced, dtype) or not aligned:
        return 1
    ((results, stride, _),), ((addends, pitch, _),) = kept, reduced
    multiple = WIDE_TILE[0] if results < WIDE_TILE[0] else 16
    rows = multiple // math.gcd(multiple, results)
    many = addends >= rows * max(MANY_ROWS, results // 2)
    return rows if stride == 1 and pitch == results and many else 1


def within(sums: Sums, dtype: torch.dtype) -> Sums | None:
    """Of sums with two kept and two reduced dimensions or more: the addends of a result within one
    contiguous row of x, if all others are the same elements of further rows. Whole rows are then
    added first, by vectors, and what they hold afterwards. None: results and addends lie otherwise,
    or that is not faster."""
    kept, reduced, results, addends = sums
    adjacent, stride, _ = kept[0]
    if stride != 1 or adjacent >= ADJACENT or adjacent % 8 == 0 or dtype.itemsize > 2:
        return None
    rows, inner = reduced[-1][0], reduced[:-1]
    row = _elementwise.coalesced([(n, stride) for n, stride, _ in (*kept, *inner)])
    contiguous = row == [(results * (addends // rows), 1)]
    repaid = rows >= ROWS and results * addends >= TWO_LAUNCHES
    return Sums.of(kept, inner) if contiguous and repaid else None


def parts_of(sums: Sums, tile: Tile) -> int:
    """The number of parts into which the addends are cut to keep a GPU busy; 1 means one pass."""
    programs, tiles = cdiv(sums.results, tile.BLOCK_K), sums.addends // tile.BLOCK_R
    ahead = tile.STAGES > 1
    enough = programs >= (ENOUGH_AHEAD if ahead else ENOUGH)
    if len(sums.reduced) == 1 and tile.num_warps > 1 and enough:
        return 1
    if tiles < 4 or (tiles == 4 and ahead and programs >= ENOUGH_AHEAD // 2):
        return 1
    busy, better = PROGRAMS // programs, 2 * PROGRAMS // programs
    if ahead:  # loading ahead needs several tiles per program
        least = 4 if programs * tiles >= PROGRAMS else 2 if programs * tiles >= PROGRAMS // 4 else 1
        return max(1, min(busy, tiles // least))
    return max(1, min(tiles, max(busy, min(better, tiles // 2))))


def unit(dense: Dims, others: Dims) -> int:
    """The common divisor, at most 16, of a dense dimension's size and of all other strides, to be
    passed to the compiler. 1 also stands for 16, which Triton's specialization finds itself."""
    if not dense or dense[0][1] != 1:
        return 1
    divisor = math.gcd(16, dense[0][0], *[stride for _, stride, _ in (*dense[1:], *others)])
    return 1 if divisor == 16 else divisor


def out_unit(kept: Dims) -> int:
    """The same divisor for out, where its first dimension is contiguous."""
    (n, _, stride), *others = kept
    return math.gcd(16, n, *[step for _, _, step in others]) if stride == 1 else 1
