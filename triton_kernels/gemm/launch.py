"""The start of a matrix product: descriptors, and launches kept for calls that come again."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from triton_kernels import _elementwise, _launch
from triton_kernels._launch import REMEMBERED, Launch, specialization_key
from triton_kernels._scalars import as_argument
from triton_kernels.activations import ACTIVATIONS
from triton_kernels.gemm.choice import (
    TMA_CAPABILITY,
    TmaTiles,
    cdiv,
    tiles_for,
    tma_compatible,
    tma_pays,
    tma_tiles_for,
)
from triton_kernels.gemm.kernels import gemm_bias_act_kernel, gemm_tma_kernel


def launch(
    op: str,
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    c: Tensor | None,
    out: Tensor,
    act: str,
    alpha: float,
    beta: float,
    precision: str,
    pre: Tensor | None = None,
) -> None:
    """out = act(alpha·(a@b) + beta·c + bias), of arguments that fit.

    pre, of out's dtype and strides, gets the same before the activation. The first word of op's
    name begins the kernel's.
    """
    op = op.partition("_")[0]
    M, N = out.shape
    shape = M, N, a.shape[1]
    strides = (
        0 if bias is None else bias.stride(0),
        *((0, 0) if c is None else c.stride()),
        *out.stride(),
    )
    scalars = as_argument(alpha, a.dtype), as_argument(beta, a.dtype)
    if tma_pays(shape, a.dtype, out.dtype):
        gpu = _launch.gpu(gemm_tma_kernel, out.device)
        if gpu.capability >= TMA_CAPABILITY:
            a, a_t = _tma_operand(a)
            b, b_t = _tma_operand(b)
            out_tma = tma_compatible(out)
            choice, count = tma_tiles_for(M, N, gpu.multiprocessors)
            programs = min(count, gpu.multiprocessors)
            keys = tuple(map(specialization_key, (a, b, bias, c, out, pre)))
            prepared, a_block, b_block, out_block = _tma_launch(
                op, choice, programs, shape, strides, keys, act, a_t, b_t, out_tma
            )
            results = [out, pre]
            if out_tma:
                results = [t if t is None else _Descriptor.of(t, out_block) for t in results]
            prepared(
                out.device,
                _Descriptor.of(a, a_block),
                _Descriptor.of(b, b_block),
                bias,
                c,
                *results,
                *shape,
                *strides,
                *scalars,
            )
            return
    if a.dtype == torch.float32 and precision == "ieee" and M > 64 and b.stride(0) == 1:
        b = b.contiguous()  # the multiply-adds read b by rows; by columns they take twice as long
    strides = (*a.stride(), *b.stride(), *strides)
    keys = tuple(map(specialization_key, (a, b, bias, c, out, pre, *scalars)))
    prepared = _pointer_launch(op, shape, strides, keys, act, precision, _launch.pretended())
    prepared(out.device, a, b, bias, c, out, pre, *shape, *strides, *scalars)


@functools.lru_cache(REMEMBERED)
def _pointer_launch(
    op: str,
    shape: tuple[int, int, int],
    strides: tuple[int, ...],
    keys: tuple[Any, ...],
    act: str,
    precision: str,
    multiprocessors: int | None,
) -> Launch:
    """The launch of gemm_bias_act_kernel for arguments of these integers and keys; every GPU
    counts as one of 132 multiprocessors, unless another number is asked for."""
    M, N, _ = shape
    (dtype, _), _, _, _, (out_dtype, _), *_ = keys
    tiles = tiles_for(M, N, dtype, precision, multiprocessors or _launch.MULTIPROCESSORS)
    return Launch(
        gemm_bias_act_kernel,
        (cdiv(M, tiles.BLOCK_M) * cdiv(N, tiles.BLOCK_N),),
        OP=op,
        ACT=ACTIVATIONS[act].forward_for(out_dtype, dtype),
        C=_elementwise.compute_type(dtype),
        PRECISION=precision,
        **tiles._asdict(),
    )


Block = list[int]


@functools.lru_cache(REMEMBERED)
def _tma_launch(
    op: str,
    choice: TmaTiles,
    programs: int,
    shape: tuple[int, int, int],
    strides: tuple[int, ...],
    keys: tuple[Any, ...],
    act: str,
    a_t: bool,
    b_t: bool,
    out_tma: bool,
) -> tuple[Launch, Block, Block, Block]:
    """The launch of gemm_tma_kernel, and the blocks of the descriptors of a, b, out."""
    (dtype, _), _, _, c, (out_dtype, _), _ = keys
    tiles = choice.for_problem(shape[2], c is not None)
    prepared = Launch(
        gemm_tma_kernel,
        (programs,),
        OP=op,
        ACT=ACTIVATIONS[act].forward_for(out_dtype, dtype),
        A_T=a_t,
        B_T=b_t,
        OUT_TMA=out_tma,
        PROGRAMS=programs,
        SUBTILES=choice.SUBTILES,
        **tiles._asdict(),
    )
    m, n, k, *_ = tiles
    a_block, b_block = [k, m] if a_t else [m, k], [n, k] if b_t else [k, n]
    return prepared, a_block, b_block, [m, n // choice.SUBTILES]


class _Descriptor(TensorDescriptor):  # type: ignore[misc]
    """Triton's, without its checks, which take longer than the rest: tma_compatible did them."""

    def __post_init__(self) -> None:
        pass

    @staticmethod
    def of(matrix: Tensor, block: Block) -> _Descriptor:
        return _Descriptor(matrix, matrix.shape, matrix.stride(), block)


def _tma_operand(matrix: Tensor) -> tuple[Tensor, bool]:
    """The matrix as a descriptor takes it, and whether that is the transpose.

    What no descriptor takes is copied to rows that start on multiples of 16 bytes.
    """
    if tma_compatible(matrix):
        return matrix, False
    transposed = matrix.stride(0) == 1
    if transposed:
        matrix = matrix.t()
    if not tma_compatible(matrix):
        step = 16 // matrix.element_size()
        pitch = cdiv(matrix.shape[1], step) * step
        padded = matrix.new_empty(matrix.shape[0], pitch)[:, : matrix.shape[1]]
        matrix = padded.copy_(matrix)
    return matrix, transposed
