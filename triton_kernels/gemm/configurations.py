"""What a matrix product can be cut into, and the shared memory that this takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch

from triton_kernels._counts import cdiv

HALVES = (torch.float16, torch.bfloat16)


class Problem(NamedTuple):
    """What the choice of a configuration depends on.

    Attributes:
        M, N, K: the product is [M, K] · [K, N].
        dtype: of a, b, bias and c.
        out_dtype: of the result.
        precision: "ieee", "tf32", "tf32x3" or "f16x3".
        c: "" without an addend c; "odd" if c is read in other pieces than the result is written,
            since a descriptor takes the result and a stride of c is no multiple of 16 elements
            (nor 1); else "even".
        kernels: from which is chosen: "tl" for those of gemm.kernels, "gluon" for
            gemm_gluon_kernel, or "any".
    """

    M: int
    N: int
    K: int
    dtype: torch.dtype
    out_dtype: torch.dtype
    precision: str = "ieee"
    c: str = ""
    kernels: str = "tl"


class Tiles(NamedTuple):
    """How one launch is cut into tiles."""

    BLOCK_M: int
    BLOCK_N: int
    BLOCK_K: int
    GROUP_M: int
    num_warps: int
    num_stages: int


class Configuration(NamedTuple):
    """A kernel and its tiles.

    Attributes:
        tma: by descriptors; else gemm_bias_act_kernel, through pointers. In precision "f16x3" there
            is gemm_f16x3_kernel alone, which is by descriptors.
        tiles: its tiles. gemm_gluon_kernel's BLOCK_N may be 160 or 192, too; its num_warps are
            those that multiply.
        SUBTILES: in how many parts the epilogue by descriptors takes a tile.
        gluon: gemm_gluon_kernel; else, by descriptors, gemm_tma_kernel.
        ALTERNATE: of gemm_gluon_kernel, whether every four of its warps have tiles of their own.
        SPLIT: in how many parts K is summed, of tiles that would not fill all multiprocessors.
    """

    tma: bool
    tiles: Tiles
    SUBTILES: int = 1
    gluon: bool = False
    ALTERNATE: bool = False
    SPLIT: int = 1

    def of_dtype(self, dtype: torch.dtype) -> Configuration:
        """It, which is for 16-bit matrices, for a dtype: with as many bytes of K a step, and as
        many of a result's row a part."""
        ratio = dtype.itemsize // 2
        if ratio == 1:
            return self
        tiles = self.tiles._replace(BLOCK_K=self.tiles.BLOCK_K // ratio)
        SUBTILES = self.SUBTILES * ratio if self.gluon else self.SUBTILES
        return self._replace(tiles=tiles, SUBTILES=SUBTILES)

    def tiles_of(self, M: int, N: int) -> int:
        """How many tiles a result has."""
        tiles = self.tiles
        return cdiv(M, tiles.BLOCK_M) * cdiv(N, tiles.BLOCK_N)

    def parts(self, K: int) -> int:
        """The number of parts of a sum over K; each has one step at least."""
        if self.SPLIT == 1:
            return 1
        return max(1, min(self.SPLIT, cdiv(K, self.tiles.BLOCK_K)))

    def shared_memory(self, problem: Problem, capability: int) -> int:
        """Bytes that a block needs at most, by what Triton 3.6 and 3.7 allocate for the tiles of
        gemm.choice (half of a narrow one may take more).

        The stages of a and b, and beside or after them what the epilogue passes between threads: a
        matrix changes hands where the threads that computed an element are not those that load or
        store it.
        """
        m, n, k, _, _, stages = self.tiles
        if not _multiplies_in_shared_memory(self.tiles, problem, capability):
            stages = max(1, stages - 1)  # that in work is in registers
        loop = stages * (m + n) * k * problem.dtype.itemsize
        if self.gluon:  # each consumer has a part of its tile, or of its half of one, to store
            tiles = 2 if self.ALTERNATE else 1
            return loop + tiles * m * n // self.SUBTILES * problem.out_dtype.itemsize + _REST
        if problem.precision == "f16x3":  # two parts of two bytes; one tile a program
            epilogue = m * n * 4  # of tensor memory not in the stages' place
            return (loop + epilogue if capability >= 100 else max(loop, epilogue)) + _REST
        if self.tma:  # the next tile's loads run during the epilogue
            c = {"": 0, "even": problem.dtype.itemsize, "odd": 4}[problem.c]
            if c and capability >= 100:
                c = 4  # converted to float32 before
            return loop + m * n // self.SUBTILES * (problem.out_dtype.itemsize + c) + _REST
        sums = max(4, problem.dtype.itemsize)
        element = sums if problem.c else min(sums, problem.out_dtype.itemsize)
        return max(loop, m * n * element) + _REST


_REST = 1024  # barriers, a row of the bias, and what aligns them


def _multiplies_in_shared_memory(tiles: Tiles, problem: Problem, capability: int) -> bool:
    """Whether a and b are multiplied where they lie (wgmma, tcgen05), not in registers (mma.sync,
    multiply-add)."""
    by_cores = problem.dtype in HALVES or (
        problem.dtype == torch.float32 and problem.precision != "ieee"
    )
    return by_cores and 90 <= capability < 120 and tiles.BLOCK_M >= 64


STAGES = 3  # the fewest that keep loads in flight during the multiplication


def ever_smaller(wanted: Configuration) -> Iterator[Configuration]:
    """It, with fewer stages, then with half the depth; through pointers with half the rows or
    columns, too. Of descriptors TMA_TILES has the smaller ones."""
    m, n, k, _, _, most = wanted.tiles
    shallow = 64 if wanted.tma else 32  # by descriptors rows of 128 bytes: no bank conflicts
    while True:
        depths = (k, k // 2) if k > shallow else (k,)
        for depth, stages in itertools.product(depths, range(most, min(most, STAGES) - 1, -1)):
            tiles = wanted.tiles._replace(BLOCK_M=m, BLOCK_N=n, BLOCK_K=depth, num_stages=stages)
            yield wanted._replace(tiles=tiles)
        if wanted.tma or m == n == 16:
            return
        m, n = (m // 2, n) if m >= n else (m, n // 2)
