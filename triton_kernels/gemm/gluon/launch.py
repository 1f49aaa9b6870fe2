"""Launches of gemm_gluon_kernel, with its descriptors."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from triton_kernels import _launch
from triton_kernels._counts import powers_of_2
from triton_kernels._launch import REMEMBERED, Launch, divisibility, specialization_key
from triton_kernels.activations import ACTIVATIONS
from triton_kernels.gemm import splitting
from triton_kernels.gemm.arguments import Gemm
from triton_kernels.gemm.configurations import PART_M, WARPS, Configuration, Tiles
from triton_kernels.gemm.gluon import forms
from triton_kernels.gemm.gluon.kernels import gemm_gluon_kernel
from triton_kernels.gemm.gluon.versions import TensorDescriptor, gl

Block = tuple[int, int]
MOST = 4  # blocks of a tile's columns
# The stages where a tile has no more steps: others would only be set up, or load the next tiles.
# 1.03 times as fast with up to two steps, 1.04 times with three or four (H200, 43 and 23 pairs of a
# product and tiles).
FEW_STAGES = 4


class Blocks:
    """The blocks of a launch's descriptors.

    Attributes:
        a: the block of a: all rows of a tile, or those of one of three consumers.
        b: the blocks of b, whose columns are a tile's; None for those that a tile lacks.
        part: the number of columns that a consumer stores at once.
        out: the block that it stores, of PART_M rows.
    """

    def __init__(self, chosen: Configuration, a_t: bool, b_t: bool) -> None:
        m, n, k, _, warps, _ = tiles_of(chosen)
        if m & (m - 1):  # not a power of two: each consumer has a block
            m //= warps // WARPS
        self.a = (k, m) if a_t else (m, k)
        self.b: list[Block | None] = [(each, k) if b_t else (k, each) for each in powers_of_2(n)]
        self.b += [None] * (MOST - len(self.b))
        self.part = chosen.part
        self.out = (self.part, PART_M) if chosen.TURNED else (PART_M, self.part)


def tiles_of(chosen: Configuration) -> Tiles:
    """The tiles of the product that the kernel computes, which is bᵀ·aᵀ for TURNED."""
    tiles = chosen.tiles
    if not chosen.TURNED:
        return tiles
    return tiles._replace(BLOCK_M=tiles.BLOCK_N, BLOCK_N=tiles.BLOCK_M)


def unit_of(matrix: Tensor) -> int:
    """UNIT and C_UNIT of gemm_gluon_kernel, for a result that no descriptor writes, and for c."""
    pitch, step = matrix.stride()
    return math.gcd(pitch, matrix.shape[1], 4) if step == 1 else 1


How = tuple[bool, bool, bool]


class Region(NamedTuple):
    """A part of a result.

    Attributes:
        begin: its first row and column.
        end: its last row and column, exclusive.
        beside: "first" if the next launch may run at the same time, "second" if this one may run
            at the same time as the launch just before, or "".
    """

    begin: tuple[int, int]
    end: tuple[int, int]
    beside: str = ""


def launch(
    chosen: Configuration,
    most: int,
    gemm: Gemm,
    operands: tuple[Tensor, Tensor],
    how: How,
    waits: bool = False,
) -> None:
    """Launch the kernel; of two configurations side by side one after the other.

    Args:
        chosen: the configuration.
        most: the number of programs that all have a multiprocessor.
        gemm: the arguments.
        operands: a and b, or their copies; transposes if A_T and B_T say so.
        how: (A_T, B_T, OUT_TMA).
        waits: whether the launch just before writes a or b, and may still run.
    """
    if gemm.bias is not None:
        gemm = gemm._replace(bias=gemm.bias.contiguous())
    M, N, K = gemm.shape
    if (rest := chosen.rest) is None:
        parts = chosen.parts(K)
        programs = min(chosen.tiles_of(M, N) * parts, most)
        _launch_region(chosen, programs, gemm, operands, how, waits, Region((0, 0), (M, N)), parts)
        return
    cut = rest.begin
    end, begin = ((M, cut), (0, cut)) if rest.across else ((cut, N), (cut, 0))
    programs = min(chosen.tiles_of(*end), most)
    first, second = Region((0, 0), end, "first"), Region(begin, (M, N), "second")
    _launch_region(chosen, programs, gemm, operands, how, waits, first)
    # One program per tile: which multiprocessor will be free first is not known.
    programs = rest.form.tiles_of(M - begin[0], N - begin[1])
    _launch_region(rest.form, programs, gemm, operands, how, False, second)


def _launch_region(
    chosen: Configuration,
    programs: int,
    gemm: Gemm,
    operands: tuple[Tensor, Tensor],
    how: How,
    waits: bool,
    region: Region,
    parts: int = 1,
) -> None:
    """Launch the kernel for a region of the result with this number of programs. Each part of a
    tile is computed by one program; ``parts`` is the number of parts of K."""
    (a, b), c, out, pre = operands, gemm.c, gemm.out, gemm.pre
    bias, (begin, end, beside) = gemm.bias, region
    shape = *end, a.shape[0 if how[0] else 1]
    strides = (0, 0) if c is None else c.stride(), out.stride()
    if chosen.TURNED:
        (M, N, K), (of_c, of_out) = shape, strides
        shape, strides, begin = (N, M, K), (of_c[::-1], of_out[::-1]), begin[::-1]
        a, b, how = b, a, (not how[1], not how[0], how[2])
    units = 1 if how[2] else unit_of(out), 1 if c is None or chosen.TURNED else unit_of(c)
    keys = tuple(map(specialization_key, (a, b, bias, c, out, pre)))
    kinds = tuple(map(divisibility, (*shape, *begin, *strides[0], *strides[1], parts)))
    few_steps = shape[2] <= FEW_STAGES * chosen.tiles.BLOCK_K * parts
    prepared, blocks = _prepared(
        gemm.prefix, chosen.kind, few_steps, kinds, keys, gemm.act, how, units, waits, beside
    )
    # Each consumer stores and adds only its own sums.
    consumers = chosen.tiles.num_warps // WARPS
    meetings, left = chosen.tiles_of(*out.shape) * consumers, chosen.left // consumers
    split = splitting.memory(meetings, left, parts, torch.float32, out.device)
    results = [out, pre]
    if how[2]:
        results = [t if t is None else Descriptor.of(t, blocks.out) for t in results]
    prepared(
        out.device,
        Descriptor.of(a, blocks.a),
        *(None if block is None else Descriptor.of(b, block) for block in blocks.b),
        bias,
        c,
        *results,
        *split,
        shape,
        begin,
        *strides,
        *gemm.scalars,
        parts,
        forms.group_m(tiles_of(chosen), shape[0] - begin[0], shape[1] - begin[1]),
        grid=(programs, 1, 1),
    )


@functools.lru_cache(REMEMBERED)
def _prepared(
    op: str,
    chosen: Configuration,
    few_steps: bool,
    kinds: tuple[Any, ...],
    keys: tuple[Any, ...],
    act: str,
    how: How,
    units: tuple[int, int],
    waits: bool,
    beside: str,
) -> tuple[Launch, Blocks]:
    """The launch for tensors with these keys and integers of these kinds, and the blocks of its
    descriptors."""
    (dtype, _), _, _, _, (out_dtype, _), _ = keys
    a_t, b_t, out_tma = how
    blocks = Blocks(chosen, a_t, b_t)
    m, n, k, _, warps, stages = tiles_of(chosen)
    wide = chosen in forms.WIDE and b_t
    prepared = Launch(
        gemm_gluon_kernel,
        (),
        OP=op,
        ACT=ACTIVATIONS[act].forward_for(out_dtype, dtype),
        A_T=a_t,
        B_T=b_t,
        OUT_TMA=out_tma,
        TURNED=chosen.TURNED,
        UNIT=units[0],
        C_UNIT=units[1],
        CONSUMERS=warps // WARPS,
        ALTERNATE=chosen.ALTERNATE,
        PART_N=blocks.part,
        BLOCK_M=m,
        BLOCK_N=n,
        BLOCK_K=k,
        STAGES=min(stages, FEW_STAGES) if few_steps else stages,
        BY_REGISTERS=chosen.by_registers and not wide,
        WIDE=wide,
        num_warps=WARPS,
        **_launch.waiting(waits),
        BESIDE=beside,
        **({"launch_pdl": True} if beside == "second" else {}),
    )
    return prepared, blocks


class Descriptor(TensorDescriptor):  # type: ignore[misc]
    """Gluon's TensorDescriptor without its checks, which take most of its time. tma_compatible has
    made them."""

    def __post_init__(self) -> None:
        pass

    @property
    def kind(self) -> tuple[object, ...]:
        """A key with everything on which Triton's choice of a compiled kernel depends. The layout
        follows from the block."""
        return Descriptor, self.base.dtype, *self.block_shape

    @staticmethod
    def of(matrix: Tensor, block: Block) -> Descriptor:
        layout = _layout(matrix.dtype, block)
        return Descriptor(matrix, matrix.shape, matrix.stride(), list(block), layout)


@functools.cache
def _layout(dtype: torch.dtype, block: Block) -> Any:
    """The layout of a block in shared memory."""
    return gl.NVMMASharedLayout.get_default_for(
        list(block), getattr(gl, str(dtype).removeprefix("torch."))
    )
