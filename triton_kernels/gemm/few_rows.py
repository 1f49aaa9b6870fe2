"""The tiles through pointers for up to 32 rows of 16-bit matrices.

Such products only load b. Up to VECTOR_ROWS a program may do without tensor cores: it multiplies
vectors and adds them up in registers. So b does not go through shared memory, and there is less to
wait for. Tiles for tensor cores have at least 16 rows, and are better from a few rows on, or if
b's rows go across K. With a large b gemm_gluon_kernel competes, which computes the transpose then:
so its tiles need not have 64 rows (see :mod:`triton_kernels.gemm.gluon.forms`).
"""

from __future__ import annotations

from collections.abc import Iterator

from triton_kernels.gemm.configurations import DOT_ROWS, FEW_ROWS, Tiles

VECTOR_ROWS = 8
# Rows → tiles. A step has many columns of a, because its loads are in flight together, and none of
# the next step's are. Each tile was the fastest for some drawn products; without all of them the
# fastest form takes 1.14, 1.10, 1.05 and 1.05 times as long (73 products, H200, triton 3.6).
VECTORS = {
    1: (Tiles(1, 8, 1024, 8, 8, 1), Tiles(1, 8, 512, 8, 4, 1)),
    2: (Tiles(2, 4, 1024, 8, 8, 1), Tiles(2, 8, 256, 8, 4, 1)),
    4: (Tiles(4, 2, 1024, 8, 4, 1), Tiles(4, 4, 512, 8, 4, 1)),
    8: (Tiles(8, 2, 1024, 8, 4, 1), Tiles(8, 4, 256, 8, 4, 1)),
}
ACROSS = (Tiles(1, 32, 128, 8, 4, 1), Tiles(1, 32, 256, 8, 8, 1))  # if b's rows go across K
# K is split for so many programs, as multiples of the multiprocessors.
SHARES = 1, 2, 3, 4, 6, 8


def rows(M: int) -> int:
    """The rows of tiles for M rows on tensor cores."""
    return DOT_ROWS if M <= DOT_ROWS else FEW_ROWS


def tiles(M: int, across: bool, waits: bool) -> Iterator[Tiles]:
    """The tiles for M rows, first those for vectors. ``across``: whether b's rows go across K.
    ``waits``: whether a program waits for its loads in each step, see
    :func:`triton_kernels.gemm.model.synchronous`."""
    if M <= VECTOR_ROWS:
        few = 1 << (M - 1).bit_length()
        if not across:
            yield from (Tiles(few, 4, 256, 8, 2, 1),) if waits else VECTORS[few]
        elif few == 1:
            yield from ACROSS
    yield Tiles(rows(M), 32, 128, 8, 4, 4)
    if across:
        yield Tiles(rows(M), 64, 64, 8, 4, 4)
    else:
        yield Tiles(rows(M), 32, 256, 8, 4, 2) if waits else Tiles(rows(M), 64, 128, 8, 4, 4)


def parts(rows: int, number: int, steps: int, multiprocessors: int) -> list[int]:
    """The numbers of parts into which sums of so many steps may be split in ``number`` tiles of
    ``rows`` rows. With tensor cores, where loads are in flight during products, a part has two
    steps at least."""
    wanted = {share * multiprocessors // max(1, number) for share in SHARES}
    if rows >= DOT_ROWS:
        wanted = {min(each, steps // 2) for each in wanted}
    return sorted(each for each in wanted if 1 < each <= steps)
