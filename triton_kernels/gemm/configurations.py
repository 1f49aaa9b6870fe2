"""The configurations of a matrix product, and the shared memory that they need."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch

from triton_kernels._counts import cdiv, next_power_of_2

HALVES = (torch.float16, torch.bfloat16)
ALIGNED = 128  # bytes of a line of L2, and of a row of a tile that a descriptor loads at once
# A pitch, as in Problem, with which descriptors load so slowly that copies may pay: L2's sectors
# have 32 bytes. With pitches of 32 and 64 bytes 89 products would gain 0.05 % by copies (H200).
SLOW = 16
# Of kernels in Gluon: warps of a consumer, rows of a part of a tile that it stores at once, and its
# buffers for such parts.
WARPS, PART_M, BUFFERS = 4, 64, 2
DOT_ROWS = 16  # the fewest rows of a tile that tensor cores multiply through pointers
FEW_ROWS = 2 * DOT_ROWS  # the most for which gemm.few_rows has the tiles
KEPT_FROM = 64  # elements of a thread from which on gemm_gluon_fma_kernel keeps sums elsewhere


class Problem(NamedTuple):
    """A problem for which a configuration is chosen.

    Attributes:
        M, N, K: the product is [M, K] · [K, N].
        dtype: the dtype of a, b, bias and c.
        out_dtype: the dtype of the result.
        precision: "ieee", "tf32", "tf32x3" or "f16x3".
        c: "" without an addend c; "odd" if c is read in another layout than the result is written
            in: a descriptor writes the result, and a stride of c is neither 1 nor a multiple of 16
            elements; else "even".
        kernels: the allowed kernels: "tl" for those of gemm.kernels, "gluon" for those of
            gemm.gluon, or "any".
        pitches: of a and of b, the largest power of two up to ALIGNED that divides the bytes
            between rows. Below 16 descriptors load a copy instead.
        across: whether rows of a, and of b, go across K: are columns of a, or rows of b.
    """

    M: int
    N: int
    K: int
    dtype: torch.dtype
    out_dtype: torch.dtype
    precision: str = "ieee"
    c: str = ""
    kernels: str = "tl"
    pitches: tuple[int, int] = (ALIGNED, ALIGNED)
    across: tuple[bool, bool] = (False, False)

    @property
    def by_cores(self) -> bool:
        """Whether tensor cores multiply; if not, multiply-adds do."""
        return self.dtype != torch.float32 or self.precision != "ieee"

    @property
    def few_rows(self) -> bool:
        """Whether there are few rows, of 16-bit matrices: see gemm.few_rows."""
        return self.M <= FEW_ROWS and self.dtype in HALVES

    def of_any_size(self, K: int = 0) -> Problem:
        """The problem without its size and how it lies in memory. What depends on the rest only is
        cached for it, and not computed again for every new shape."""
        return Problem(0, 0, K, *self[3:-2])


class Tiles(NamedTuple):
    """The tiles of a launch, with its warps and stages."""

    BLOCK_M: int
    BLOCK_N: int
    BLOCK_K: int
    GROUP_M: int
    num_warps: int
    num_stages: int

    @property
    def kept(self) -> bool:
        """Whether gemm_gluon_fma_kernel keeps sums in shared memory: a thread has too many elements
        to hold two sums of each in registers."""
        return self.BLOCK_M * self.BLOCK_N >= KEPT_FROM * 32 * self.num_warps


class Rest(NamedTuple):
    """The rest of a result, which another configuration computes at the same time.

    Attributes:
        across: whether it is the last columns; otherwise it is the last rows.
        begin: the first of these.
        form: the other configuration.
    """

    across: bool
    begin: int
    form: Configuration


class Configuration(NamedTuple):
    """A kernel and its tiles.

    Attributes:
        tma: whether the kernel loads by descriptors. If not, it is gemm_bias_act_kernel, which
            loads through pointers. Precision "f16x3" has only gemm_f16x3_kernel, by descriptors.
        tiles: its tiles. In gemm_gluon_kernel BLOCK_N may also be a sum of two or three powers of
            two, BLOCK_M may be 192, and num_warps counts the warps that multiply.
        SUBTILES: the number of parts of a tile's columns that the epilogue stores one after the
            other, by descriptors.
        gluon: whether the kernel by descriptors is one of gemm.gluon, and not gemm_tma_kernel:
            gemm_gluon_kernel, or gemm_gluon_fma_kernel for multiply-adds.
        ALTERNATE: whether in gemm_gluon_kernel each group of four warps has its own tiles.
        TURNED: whether gemm_gluon_kernel computes the transpose, bᵀ·aᵀ. Then BLOCK_M is such a sum,
            16 up to 320, and BLOCK_N may be 192.
        SPLIT: the largest number of parts into which K is split, for tiles that would not fill all
            multiprocessors.
        rest: what another configuration computes of the result, see gemm.beside.
        copies: whether a, and whether b, is copied to aligned rows because its pitch is slow. What
            has no descriptor is copied in any case.
        cluster: of gemm_gluon_cluster_kernel, how many tiles below each other and side by side the
            programs of a cluster compute, which load for each other; (0, 0) otherwise. TURNED then.
    """

    tma: bool
    tiles: Tiles
    SUBTILES: int = 1
    gluon: bool = False
    ALTERNATE: bool = False
    TURNED: bool = False
    SPLIT: int = 1
    rest: Rest | None = None
    copies: tuple[bool, bool] = (False, False)
    cluster: tuple[int, int] = (0, 0)

    @property
    def kind(self) -> Configuration:
        """The configuration without what may differ from call to call of its kernel."""
        return self._replace(SPLIT=1, rest=None, copies=(False, False))

    @property
    def part(self) -> int:
        """The columns of a tile that a consumer of gemm_gluon_kernel stores at once: a power of
        two. If SUBTILES of them are more than the tile has, the last overlap others."""
        columns = self.tiles.BLOCK_M if self.TURNED else self.tiles.BLOCK_N
        return next_power_of_2(cdiv(columns, self.SUBTILES))

    @property
    def left(self) -> int:
        """The elements of the workspace for a program's sums of a tile of gemm_gluon_kernel if K is
        split: of each consumer two halves of as many parts, each as it is stored."""
        rows = self.tiles.BLOCK_N if self.TURNED else self.tiles.BLOCK_M
        consumers = self.tiles.num_warps // WARPS
        parts = rows // consumers // PART_M * self.SUBTILES
        return consumers * 2 * cdiv(parts, 2) * PART_M * self.part

    @property
    def by_registers(self) -> bool:
        """Whether the consumers of gemm_gluon_kernel load rows to registers: there are three, or
        two whose tiles have three blocks of columns. With one nobody would multiply meanwhile. Two
        consumers of two blocks take 0.93 to 0.99 times as long without (five forms, 75 to 99
        products each, H200)."""
        columns = self.tiles.BLOCK_M if self.TURNED else self.tiles.BLOCK_N
        consumers = self.tiles.num_warps // WARPS
        return not self.ALTERNATE and (
            consumers > 2 or (consumers == 2 and columns.bit_count() > 2)
        )

    def of_dtype(self, dtype: torch.dtype) -> Configuration:
        """The same configuration, which is for 16-bit matrices, for another dtype: a step of K and
        a part of a result's row have the same number of bytes."""
        ratio = dtype.itemsize // 2
        if ratio == 1:
            return self
        tiles = self.tiles._replace(BLOCK_K=self.tiles.BLOCK_K // ratio)
        SUBTILES = self.SUBTILES * ratio if self.gluon else self.SUBTILES
        return self._replace(tiles=tiles, SUBTILES=SUBTILES)

    def tiles_of(self, M: int, N: int) -> int:
        """The number of tiles of an M × N result, in whole clusters."""
        tiles, (below, beside) = self.tiles, self.cluster
        if below:
            clusters = cdiv(M, tiles.BLOCK_M * below) * cdiv(N, tiles.BLOCK_N * beside)
            return clusters * below * beside
        return cdiv(M, tiles.BLOCK_M) * cdiv(N, tiles.BLOCK_N)

    def parts(self, K: int) -> int:
        """The number of parts of a sum over K; each has at least one step."""
        if self.SPLIT == 1:
            return 1
        return max(1, min(self.SPLIT, cdiv(K, self.tiles.BLOCK_K)))

    def shared_memory(self, problem: Problem, capability: int) -> int:
        """The largest number of bytes that a block needs. It follows what Triton 3.6 and 3.7
        allocate for the tiles of gemm.choice; half of a narrow tile may need more.

        They hold the stages of a and b, and beside or after these the matrices that the epilogue
        exchanges between threads: an element may be computed by one thread and loaded or stored by
        another.
        """
        m, n, k, _, warps, stages = self.tiles
        if not (self.gluon or _multiplies_in_shared_memory(self.tiles, problem, capability)):
            stages = max(1, stages - 1)  # the stage that is multiplied is in registers
        loop = stages * (m + n) * k * problem.dtype.itemsize
        if self.gluon and not problem.by_cores:
            return loop + (m * n * 4 if self.tiles.kept else 0) + _REST
        if self.gluon:  # each consumer has buffers for parts of its tile
            parts = warps // WARPS * BUFFERS * PART_M * self.part
            barriers = _UNIT if self.cluster[0] else 0
            return loop + parts * problem.out_dtype.itemsize + barriers + _REST
        if problem.precision == "f16x3":  # two parts of two bytes; one tile per program
            epilogue = m * n * 4  # from tensor memory it does not reuse the stages
            return (loop + epilogue if capability >= 100 else max(loop, epilogue)) + _REST
        if self.tma:  # the next tile's loads run during the epilogue
            c = {"": 0, "even": problem.dtype.itemsize, "odd": 4}[problem.c]
            if c and capability >= 100:
                c = 4  # converted to float32 first
            return loop + m * n // self.SUBTILES * (problem.out_dtype.itemsize + c) + _REST
        sums = max(4, problem.dtype.itemsize)
        element = sums if problem.c else min(sums, problem.out_dtype.itemsize)
        return max(loop, m * n * element) + _REST


_UNIT = 1024  # bytes of a unit, see gemm.gluon.wide
_REST = 1024  # bytes for barriers, a row of the bias, and alignment


def _multiplies_in_shared_memory(tiles: Tiles, problem: Problem, capability: int) -> bool:
    """Whether a and b are multiplied from shared memory (wgmma, tcgen05), not from registers
    (mma.sync, multiply-add)."""
    by_cores = problem.by_cores and problem.dtype != torch.float64
    return by_cores and 90 <= capability < 120 and tiles.BLOCK_M >= 64


STAGES = 3  # the fewest with which loads are in flight during the multiplication


def ever_smaller(wanted: Configuration) -> Iterator[Configuration]:
    """The wanted configuration, then with fewer stages, then with half BLOCK_K; through pointers
    also with half BLOCK_M or BLOCK_N. For descriptors TMA_TILES has smaller tiles; those of
    less than DOT_ROWS are small."""
    m, n, k, _, _, most = wanted.tiles
    shallow = 64 if wanted.tma else 32  # descriptors: rows of 128 bytes have no bank conflicts
    while True:
        depths = (k, k // 2) if k > shallow else (k,)
        for depth, stages in itertools.product(depths, range(most, min(most, STAGES) - 1, -1)):
            tiles = wanted.tiles._replace(BLOCK_M=m, BLOCK_N=n, BLOCK_K=depth, num_stages=stages)
            yield wanted._replace(tiles=tiles)
        if wanted.tma or m < DOT_ROWS or m == n == 16:
            return
        m, n = (m // 2, n) if m >= n else (m, n // 2)
