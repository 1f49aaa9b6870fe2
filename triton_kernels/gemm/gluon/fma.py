"""Launches of gemm_gluon_fma_kernel."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from triton_kernels import _launch
from triton_kernels._launch import REMEMBERED, Launch, divisibility, specialization_key
from triton_kernels.activations import ACTIVATIONS
from triton_kernels.gemm import splitting
from triton_kernels.gemm.arguments import Gemm
from triton_kernels.gemm.configurations import Configuration, Tiles
from triton_kernels.gemm.gluon.fma_kernels import gemm_gluon_fma_kernel
from triton_kernels.gemm.gluon.launch import Descriptor

LANES = 32
REGISTERS = 168  # of a thread with a kept sum, so that twelve warps fit a multiprocessor
ROUNDED = 64, 192  # terms that are added one after the other; the second is for kept sums


def launch(
    chosen: Configuration,
    gemm: Gemm,
    operands: tuple[Tensor, Tensor],
    how: tuple[bool, bool],
    parts: int,
    waits: bool,
) -> None:
    """Launch the kernel.

    Args:
        chosen: the configuration.
        gemm: the arguments.
        operands: a and b, or their copies; transposes if A_T and B_T say so.
        how: (A_T, B_T).
        parts: the number of parts of K.
        waits: whether the launch just before writes a or b, and may still run.
    """
    (a, b), c, out, pre = operands, gemm.c, gemm.out, gemm.pre
    bias = None if gemm.bias is None else gemm.bias.contiguous()
    m, n, k, *_ = tiles = chosen.tiles
    shape = *out.shape, a.shape[0 if how[0] else 1]
    strides = (0, 0) if c is None else c.stride(), out.stride()
    keys = tuple(map(specialization_key, (bias, c, out, pre)))
    kinds = tuple(map(divisibility, (*shape, *strides[0], *strides[1], parts)))
    prepared = _prepared(gemm.prefix, tiles, parts > 1, kinds, keys, gemm.act, how, waits)
    count = chosen.tiles_of(*out.shape)
    prepared(
        out.device,
        Descriptor.of(a, (k, m) if how[0] else (m, k)),
        Descriptor.of(b, (n, k) if how[1] else (k, n)),
        bias,
        c,
        out,
        pre,
        *splitting.memory(count, m * n, parts, torch.float32, out.device),
        shape,
        *strides,
        *gemm.scalars,
        parts,
        grid=(count * parts, 1, 1),
    )


@functools.lru_cache(REMEMBERED)
def _prepared(
    op: str,
    tiles: Tiles,
    split: bool,
    kinds: tuple[Any, ...],
    keys: tuple[Any, ...],
    act: str,
    how: tuple[bool, bool],
    waits: bool,
) -> Launch:
    """The launch for tensors with these keys and integers of these kinds; ``split``: with K in
    parts, and so with a workspace."""
    _, _, (out_dtype, _), _ = keys
    m, n, k, group, warps, stages = tiles
    lanes_m, warps_m = threads_along_m(tiles)
    kept = tiles.kept
    limit = {"maxnreg": REGISTERS} if kept else {}
    return Launch(
        gemm_gluon_fma_kernel,
        (),
        OP=op,
        ACT=ACTIVATIONS[act].forward_for(out_dtype, torch.float32),
        A_T=how[0],
        B_T=how[1],
        LANES_M=lanes_m,
        WARPS_M=warps_m,
        EVERY=ROUNDED[kept] // k,
        KEPT=kept,
        BLOCK_M=m,
        BLOCK_N=n,
        BLOCK_K=k,
        GROUP_M=group,
        STAGES=stages,
        num_warps=warps,
        **limit,
        **_launch.waiting(waits),
    )


def threads_along_m(tiles: Tiles) -> tuple[int, int]:
    """How many threads of a warp, and warps, lie along M, so that the block of each thread is as
    square as possible: then it reads the least."""

    def read(threads: tuple[int, int]) -> int:
        lanes, warps = threads
        along_n = LANES // lanes * (tiles.num_warps // warps)
        return tiles.BLOCK_M // (lanes * warps) + tiles.BLOCK_N // along_n

    able = [(lanes, warps) for lanes in (4, 2) for warps in (1, 2, 4) if warps <= tiles.num_warps]
    return min(able, key=read)
