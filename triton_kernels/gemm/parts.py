"""Launches of float32 products in precision "f16x3", by the kernels of gemm.parts_kernels."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from triton_kernels import _launch
from triton_kernels._counts import cdiv, next_power_of_2
from triton_kernels._launch import REMEMBERED, Launch
from triton_kernels.activations import ACTIVATIONS
from triton_kernels.gemm.arguments import Gemm
from triton_kernels.gemm.configurations import Configuration
from triton_kernels.gemm.descriptors import Descriptor
from triton_kernels.gemm.parts_kernels import gemm_again_kernel, gemm_f16x3_kernel, split_kernel

VECTOR = 8  # elements of float16 in 16 bytes
PITCH = 64  # elements; pitches of the parts are multiples of this, a line of 128 bytes
AGAIN = 64  # rows and columns of a tile that is computed again
AGAIN_K = 16
STRIP = 8  # so many tiles, neighbours in a row of tiles, are one program's


def by_parts(chosen: Configuration, most: int, gemm: Gemm) -> None:
    """Launch the three kernels: split, multiply, compute again. gemm_gluon_f16x3_kernel multiplies
    with at most ``most`` programs."""
    device = gemm.out.device
    a, b = gemm.a, gemm.b
    M, N, K = shape = gemm.shape
    a_by, b_by = _by_depth(*a.stride()), _by_depth(*b.t().stride())
    parts = [_room(rows, K, by_depth, device) for rows, by_depth in ((M, a_by), (N, b_by))]
    scales = [_launch.workspace((rows,), torch.float32, device) for rows in (M, N)]
    strides, others, scalars = (a.stride(), b.stride()), gemm.strides, gemm.scalars
    waits = _launch.overlaps(gemm_f16x3_kernel, device)
    split, multiply, again, blocks = _prepared(
        gemm.prefix, chosen, shape, (*strides, *others), gemm.keys(a, b), gemm.act, waits
    )
    pitches = [t.stride(0) for t in parts]
    (a_parts, b_parts), (a_scales, b_scales) = parts, scales
    split(device, a, a_parts, a_scales, b, b_parts, b_scales, shape, *strides, *pitches)
    # For descriptors without the padding of the lines.
    a_matrix, b_matrix = (t[:, :K] if by else t for t, by in zip(parts, (a_by, b_by)))
    lows = [rows if by else pitch // 2 for rows, by, pitch in zip((M, N), (a_by, b_by), pitches)]
    rest = gemm.bias, gemm.c, gemm.out, gemm.pre
    if chosen.gluon:
        from triton_kernels.gemm.gluon import parts as gluon  # not every Triton can import it

        gluon.multiply(chosen, most, gemm, (a_matrix, b_matrix), scales, lows, (not a_by, b_by))
    else:
        operands = Descriptor.of(a_matrix, blocks[0]), Descriptor.of(b_matrix, blocks[1])
        multiply(device, *operands, *scales, *rest, shape, *lows, *others, *scalars)
    again(device, a, b, *scales, *rest, shape, *strides, *others, *scalars)


def _by_depth(stride_r: int, stride_k: int) -> bool:
    """Whether the parts of an operand with these strides are stored as rows of K elements."""
    return stride_r != 1 or stride_k == 1


def _room(rows: int, depth: int, by_depth: bool, device: torch.device) -> Tensor:
    """A workspace for both parts of an operand."""
    if by_depth:
        shape = (2 * rows, cdiv(depth, PITCH) * PITCH)
    else:
        shape = (depth, 2 * cdiv(rows, PITCH) * PITCH)
    return _launch.workspace(shape, torch.float16, device)


def _how(
    rows: int, depth: int, strides: tuple[int, int], aligned: bool
) -> tuple[bool, int, int, bool, int, int]:
    """The constants of split_rows, for up to 8192 elements at a time. ``strides`` are those of a
    row and along the depth. Not by depth it reads lines of 128 bytes, or shorter ones if there
    would be too few programs."""
    by_depth = _by_depth(*strides)
    length, step, pitch = (depth, *strides[::-1]) if by_depth else (rows, *strides)
    unit = math.gcd(length, pitch, VECTOR) if aligned and step == 1 else 1
    if by_depth:
        at_once = min(4096, next_power_of_2(depth))
        return True, max(1, 4096 // max(512, at_once)), at_once, at_once >= depth, 1, unit
    columns = 32 if rows >= 4096 else 16 if rows >= 1024 else 8
    at_once = min(2048 // columns, next_power_of_2(depth))
    return False, columns, at_once, at_once >= depth, 4, unit


@functools.lru_cache(REMEMBERED)
def _prepared(
    op: str,
    chosen: Configuration,
    shape: tuple[int, int, int],
    strides: tuple[Any, ...],
    keys: tuple[Any, ...],
    act: str,
    waits: bool,
) -> tuple[Launch, Launch, Launch, tuple[list[int], list[int]]]:
    """The three launches for arguments with these integers and keys, and the blocks of the
    descriptors of a and b."""
    (dtype, a_aligned), (_, b_aligned), _, _, (out_dtype, _), _ = keys
    M, N, K = shape
    a_strides, b_strides, *_ = strides
    a_how, b_how = _how(M, K, a_strides, a_aligned), _how(N, K, b_strides[::-1], b_aligned)
    a_by, b_by = a_how[0], b_how[0]
    split = Launch(
        split_kernel,
        (cdiv(M, a_how[1]) + cdiv(N, b_how[1]),),
        A_HOW=a_how,
        B_HOW=b_how,
        num_warps=8,
    )
    forward = ACTIVATIONS[act].forward_for(out_dtype, dtype)
    m, n, k, *_ = chosen.tiles
    multiply = Launch(
        gemm_f16x3_kernel,
        (chosen.tiles_of(M, N),),
        OP=op,
        ACT=forward,
        A_T=not a_by,
        B_T=b_by,
        **chosen.tiles._asdict(),
        **_launch.waiting(waits),
    )
    again = Launch(
        gemm_again_kernel,
        (cdiv(M, AGAIN) * cdiv(N, STRIP * AGAIN),),
        OP=op,
        ACT=forward,
        BLOCK=AGAIN,
        BLOCK_K=AGAIN_K,
        STRIP=STRIP,
        **_launch.waiting(waits),
    )
    blocks = [m, k] if a_by else [k, m], [n, k] if b_by else [k, n]
    return split, multiply, again, blocks
