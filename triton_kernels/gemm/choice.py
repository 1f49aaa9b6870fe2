"""Which kernel a matrix product gets, and its tiles."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from triton_kernels import _launch

HALVES = (torch.float16, torch.bfloat16)


class Tiles(NamedTuple):
    """How one launch is cut into tiles."""

    BLOCK_M: int
    BLOCK_N: int
    BLOCK_K: int
    GROUP_M: int
    num_warps: int
    num_stages: int


class TmaTiles(NamedTuple):
    """The same for gemm_tma_kernel.

    ``SUBTILES``: 2 if the epilogue takes half a tile at a time: that leaves memory for a stage.
    ``cost``: the time of one tile relative to the first's, measured on an H200.
    ``stages_with_c``: num_stages where there is c, which passes through shared memory, too.
    ``long``: instead for K from LONG on, without c: the loop counts there, not the epilogue.
    """

    tiles: Tiles
    SUBTILES: int
    cost: float
    stages_with_c: int
    long: Tiles | None = None

    def for_problem(self, K: int, with_c: bool) -> Tiles:
        """The tiles with the stages and warps that are best for K, with or without c."""
        if with_c:
            return self.tiles._replace(num_stages=self.stages_with_c)
        if K >= LONG and self.long is not None:
            return self.long
        return self.tiles


TMA_TILES = (
    TmaTiles(Tiles(128, 256, 64, 16, 8, 4), 2, 1.0, 3),
    TmaTiles(Tiles(128, 128, 64, 16, 8, 4), 1, 0.53, 4, long=Tiles(128, 128, 64, 8, 4, 5)),
    TmaTiles(Tiles(64, 128, 128, 16, 4, 4), 1, 0.31, 3),
    TmaTiles(Tiles(64, 64, 128, 16, 4, 6), 1, 0.2, 5),
    TmaTiles(Tiles(64, 32, 128, 16, 4, 6), 1, 0.17, 5),
)
LONG = 3072
TMA_CAPABILITY = 90  # the first GPUs with a tensor memory accelerator
SMALL = 32  # rows, columns or steps of K up to which pointers are as fast as descriptors
# On 132 multiprocessors:
WIDE = 96 * 64  # columns that keep a GPU busy with tiles of 64
LARGE = 1024 * 1024 * 2  # results, beyond which large tiles do


def tma_pays(shape: tuple[int, int, int], dtype: torch.dtype, out_dtype: torch.dtype) -> bool:
    """Whether gemm_tma_kernel is the faster one for M, N, K, on a GPU that can run it."""
    return dtype in HALVES and out_dtype in HALVES and min(shape) > SMALL


def tma_compatible(matrix: Tensor) -> bool:
    """Whether a descriptor takes the matrix: rows without gaps, all on multiples of 16 bytes."""
    row, column = matrix.stride()
    size = matrix.element_size()
    return column == 1 and row > 0 and row * size % 16 == 0 and matrix.data_ptr() % 16 == 0


def tiles_for(
    M: int,
    N: int,
    dtype: torch.dtype,
    precision: str,
    multiprocessors: int = _launch.MULTIPROCESSORS,
) -> Tiles:
    """The tiles of gemm_bias_act_kernel for a problem."""
    busy = multiprocessors / _launch.MULTIPROCESSORS
    if dtype == torch.float64:
        return Tiles(32, 32, 16, 8, 4, 2)
    if dtype == torch.float32:
        if precision == "ieee":
            return Tiles(64, 64, 16, 8, 4, 3)
        if precision == "tf32" and M > 64:
            return Tiles(128, 128, 32, 8, 8, 3)
        return Tiles(64, 64, 32, 8, 4, 2)
    if M <= 32:
        return Tiles(32 if M > 16 else 16, 64 if N >= WIDE * busy else 32, 128, 8, 4, 6)
    if M * N <= LARGE * busy:
        return Tiles(64, 128, 64, 8, 4, 4)
    return Tiles(128, 256, 64, 8, 8, 3)


def cdiv(a: int, b: int) -> int:
    """⌈a/b⌉. triton.cdiv, made for kernels, too, takes microseconds."""
    return -(-a // b)


@functools.lru_cache(4096)
def tma_tiles_for(M: int, N: int, multiprocessors: int) -> tuple[TmaTiles, int]:
    """The tiles of gemm_tma_kernel and their number: those whose waves over the multiprocessors
    cost least."""

    def number(tiles: Tiles) -> int:
        return cdiv(M, tiles.BLOCK_M) * cdiv(N, tiles.BLOCK_N)

    best = min(TMA_TILES, key=lambda c: cdiv(number(c.tiles), multiprocessors) * c.cost)
    return best, number(best.tiles)
