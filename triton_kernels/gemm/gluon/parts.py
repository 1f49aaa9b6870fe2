"""Launches of gemm_gluon_f16x3_kernel."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from triton_kernels import _launch
from triton_kernels._launch import REMEMBERED, Launch, specialization_key
from triton_kernels.activations import ACTIVATIONS
from triton_kernels.gemm.arguments import Gemm
from triton_kernels.gemm.choice import tma_writable
from triton_kernels.gemm.configurations import PART_M, WARPS, Configuration
from triton_kernels.gemm.gluon.launch import Descriptor, unit_of
from triton_kernels.gemm.gluon.parts_kernels import gemm_gluon_f16x3_kernel


def multiply(
    chosen: Configuration,
    most: int,
    gemm: Gemm,
    parts: tuple[Tensor, Tensor],
    scales: list[Tensor],
    lows: list[int],
    how: tuple[bool, bool],
) -> None:
    """Launch the kernel, just after the one that writes the parts.

    Args:
        chosen: the configuration.
        most: the largest number of programs.
        gemm: the arguments.
        parts: of a and of b.
        scales: of a's rows and of b's columns.
        lows: the indices at which the low parts of a and b begin.
        how: (A_T, B_T).
    """
    out, pre, c = gemm.out, gemm.pre, gemm.c
    bias = None if gemm.bias is None else gemm.bias.contiguous()
    m, n, k, *_ = chosen.tiles
    a_block, b_block = (k, m) if how[0] else (m, k), (n, k) if how[1] else (k, n)
    out_block = PART_M, chosen.part
    out_tma = tma_writable(out)
    unit = 1 if out_tma else unit_of(out)
    strides = (0, 0) if c is None else c.stride(), out.stride()
    keys = tuple(map(specialization_key, (*scales, bias, c, out, pre)))
    kinds = _launch.kinds((gemm.shape, *lows, *strides))
    prepared = _prepared(gemm.prefix, chosen, kinds, keys, gemm.act, (*how, out_tma), unit)
    results = [out, pre]
    if out_tma:
        results = [t if t is None else Descriptor.of(t, out_block) for t in results]
    prepared(
        out.device,
        Descriptor.of(parts[0], a_block),
        Descriptor.of(parts[1], b_block),
        *scales,
        bias,
        c,
        *results,
        gemm.shape,
        *lows,
        *strides,
        *gemm.scalars,
        grid=(min(chosen.tiles_of(*out.shape), most), 1, 1),
    )


@functools.lru_cache(REMEMBERED)
def _prepared(
    op: str,
    chosen: Configuration,
    kinds: tuple[Any, ...],
    keys: tuple[Any, ...],
    act: str,
    how: tuple[bool, bool, bool],
    unit: int,
) -> Launch:
    """The launch for tensors with these keys and integers of these kinds; ``how`` is (A_T, B_T,
    OUT_TMA)."""
    *_, (out_dtype, _), _ = keys
    m, n, k, group, warps, stages = chosen.tiles
    return Launch(
        gemm_gluon_f16x3_kernel,
        (),
        OP=op,
        ACT=ACTIVATIONS[act].forward_for(out_dtype, torch.float32),
        A_T=how[0],
        B_T=how[1],
        OUT_TMA=how[2],
        UNIT=unit,
        CONSUMERS=warps // WARPS,
        PART_N=chosen.part,
        BLOCK_M=m,
        BLOCK_N=n,
        BLOCK_K=k,
        GROUP_M=group,
        STAGES=stages,
        num_warps=WARPS,
        **_launch.waiting(True),
    )
