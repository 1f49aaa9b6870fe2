"""Launches of gemm_gluon_cluster_kernel."""

from __future__ import annotations

import functools
import math
from typing import Any

from torch import Tensor

from triton_kernels import _launch
from triton_kernels._launch import REMEMBERED, Launch, specialization_key
from triton_kernels.activations import ACTIVATIONS
from triton_kernels.gemm.arguments import Gemm
from triton_kernels.gemm.configurations import PART_M, Configuration
from triton_kernels.gemm.gluon.cluster_kernels import gemm_gluon_cluster_kernel
from triton_kernels.gemm.gluon.launch import Block, Descriptor, How

BOX = 256  # the most rows of a descriptor's block


def launch(
    chosen: Configuration, gemm: Gemm, operands: tuple[Tensor, Tensor], how: How, waits: bool
) -> None:
    """Launch the kernel for b's and a's transposes, whole clusters of programs.

    Args:
        chosen: the configuration.
        gemm: the arguments.
        operands: a and b, or their copies; transposes if A_T and B_T say so.
        how: (A_T, B_T, OUT_TMA). a lies along K.
        waits: whether the launch just before writes a or b, and may still run.
    """
    (a, b), (M, N, K), c, out, pre = operands, gemm.shape, gemm.c, gemm.out, gemm.pre
    bias = None if gemm.bias is None else gemm.bias.contiguous()
    strides = (0, 0) if c is None else c.stride()[::-1], out.stride()[::-1]
    keys = tuple(map(specialization_key, (a, b, bias, c, out, pre)))
    kinds = _launch.kinds(((N, M, K), *strides))
    prepared, a_block, b_block, out_block = _prepared(
        gemm.prefix, chosen.kind, kinds, keys, gemm.act, (not how[1], how[2]), waits
    )
    results = [out, pre]
    if how[2]:
        results = [t if t is None else Descriptor.of(t, out_block) for t in results]
    prepared(
        out.device,
        Descriptor.of(b, a_block),
        Descriptor.of(a, b_block),
        bias,
        c,
        *results,
        (N, M, K),
        *strides,
        *gemm.scalars,
        grid=(chosen.tiles_of(M, N) // math.prod(chosen.cluster), 1, 1),
    )


@functools.lru_cache(REMEMBERED)
def _prepared(
    op: str,
    chosen: Configuration,
    kinds: tuple[Any, ...],
    keys: tuple[Any, ...],
    act: str,
    how: tuple[bool, bool],
    waits: bool,
) -> tuple[Launch, Block, Block, Block]:
    """The launch for tensors with these keys and integers of these kinds, and the blocks of the
    descriptors of the kernel's a, b and out. ``how`` is (A_T, OUT_TMA)."""
    (dtype, _), _, _, _, (out_dtype, _), _ = keys
    columns, _, k, _, warps, stages = chosen.tiles
    below, beside = chosen.cluster
    rows, box = PART_M // below, math.gcd(columns // beside, BOX)
    prepared = Launch(
        gemm_gluon_cluster_kernel,
        (),
        OP=op,
        ACT=ACTIVATIONS[act].forward_for(out_dtype, dtype),
        A_T=how[0],
        OUT_TMA=how[1],
        CLUSTER=below * beside,
        CLUSTER_M=beside,
        BOX=box,
        PART_N=chosen.part,
        BLOCK_N=columns,
        STAGES=stages,
        num_warps=warps,
        **_launch.waiting(waits),
    )
    return prepared, (rows, k), (box, k), (chosen.part, PART_M)
