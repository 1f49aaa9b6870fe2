"""The kernels under the matrix products.

``gemm_bias_act_kernel`` reads through pointers: any dtype, strides and GPU, one tile of out a
program. ``gemm_tma_kernel`` is for products of 16-bit matrices on GPUs with a tensor memory
accelerator (compute capability 9.0 and newer): a program a multiprocessor takes tile after tile, so
that the next one's loads run during this one's epilogue. Both share the epilogue.

The jit functions take what belongs together as one tuple: ``size`` is (M, N), ``bias`` (pointer,
stride), ``c`` (pointer, row stride, column stride), ``scalars`` (alpha, beta). A pointer is None
where there is no such tensor. OP is for the kernel's name alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from triton_kernels._scalars import scalar_value


@triton.jit
def swizzle(tile, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """Row and column of a tile. Tiles go down GROUP_M rows before they step to the next column, so
    that those in flight share rows of a and columns of b in L2."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    first_m = tile // (GROUP_M * tiles_n) * GROUP_M
    group_m = min(tiles_m - first_m, GROUP_M)
    return first_m + tile % (GROUP_M * tiles_n) % group_m, tile % (GROUP_M * tiles_n) // group_m


@triton.jit
def pre_activation(acc, m, n, size, bias, c, scalars, C: tl.constexpr):
    """alpha·acc + beta·c + bias for rows m and columns n."""
    pre = scalar_value(scalars[0], C) * acc
    if c[0] is not None:
        c_ptr, stride_cm, stride_cn = c
        c_ptrs = c_ptr + m[:, None] * stride_cm + n[None, :] * stride_cn
        addend = tl.load(c_ptrs, mask=(m[:, None] < size[0]) & (n[None, :] < size[1]), other=0.0)
        pre += scalar_value(scalars[1], C) * addend.to(C)
    if bias[0] is not None:
        bias_ptr, stride_bias = bias
        row = tl.load(bias_ptr + n * stride_bias, mask=n < size[1], other=0.0)
        pre += row[None, :].to(C)
    return pre


def named(kernel: str) -> Callable[[Any], str]:
    """What profiles call a compiled kernel: linear_gelu_tma; gemm_pointers with no activation."""

    def name(specialization: Any) -> str:
        op = specialization.constants["OP"]
        act: str = specialization.constants["ACT"].fn.__name__.removeprefix("half_")
        return f"{op}_{kernel}" if act == "none" else f"{op}_{act}_{kernel}"

    return name


@triton.jit(do_not_specialize=["alpha", "beta"], repr=named("pointers"))
def gemm_bias_act_kernel(
    a_ptr,
    b_ptr,
    bias_ptr,
    c_ptr,
    out_ptr,
    pre_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_bias,
    stride_cm,
    stride_cn,
    stride_om,
    stride_on,
    alpha,
    beta,
    OP: tl.constexpr,
    ACT: tl.constexpr,
    C: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """One BLOCK_M × BLOCK_N tile of out a program; C is the accumulator's type."""
    pid_m, pid_n = swizzle(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    m = pid_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = pid_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + m[:, None] * stride_am + k[None, :].to(tl.int64) * stride_ak
    b_ptrs = b_ptr + k[:, None].to(tl.int64) * stride_bk + n[None, :] * stride_bn
    # A tall matrix by columns has strides that 32 bits hold, but not BLOCK_K of them.
    step = tl.full((), BLOCK_K, tl.int64)
    acc = tl.zeros((BLOCK_M, BLOCK_N), C)
    for k0 in range(0, K, BLOCK_K):
        a = tl.load(a_ptrs, mask=(m[:, None] < M) & (k[None, :] < K - k0), other=0.0)
        b = tl.load(b_ptrs, mask=(k[:, None] < K - k0) & (n[None, :] < N), other=0.0)
        if PRECISION == "ieee" and a_ptr.dtype.element_ty == tl.float32:
            # A sum of BLOCK_K products at a time: the error grows with K / BLOCK_K, not with K. As
            # fma, because the compiler makes acc + dot(a, b) one dot that accumulates on.
            part = tl.dot(a, b, input_precision=PRECISION, out_dtype=C)
            acc = tl.fma(part, tl.full(part.shape, 1.0, C), acc)
        else:
            acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=C)
        a_ptrs += step * stride_ak
        b_ptrs += step * stride_bk
    bias = (bias_ptr, stride_bias)
    c = (c_ptr, stride_cm, stride_cn)
    pre = pre_activation(acc, m, n, (M, N), bias, c, (alpha, beta), C)
    offsets = m[:, None] * stride_om + n[None, :] * stride_on
    mask = (m[:, None] < M) & (n[None, :] < N)
    if pre_ptr is not None:
        tl.store(pre_ptr + offsets, pre.to(pre_ptr.dtype.element_ty), mask=mask)
    tl.store(out_ptr + offsets, ACT(pre).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def store_tile(out, tile, m0, n0, m, n, size, strides, OUT_TMA: tl.constexpr):
    """The tile whose corner is (m0, n0); out is a descriptor if OUT_TMA."""
    if OUT_TMA:
        out.store([m0, n0], tile.to(out.dtype))
    else:
        out_ptrs = out + m[:, None] * strides[0] + n[None, :] * strides[1]
        mask = (m[:, None] < size[0]) & (n[None, :] < size[1])
        tl.store(out_ptrs, tile.to(out.dtype.element_ty), mask=mask)


@triton.jit
def finish_and_store(
    acc,
    m0,
    n0,
    size,
    bias,
    c,
    scalars,
    out,
    pre,
    strides,
    ACT: tl.constexpr,
    OUT_TMA: tl.constexpr,
):
    """The epilogue of the tile whose corner is (m0, n0), of acc's shape; strides: out's and
    pre's."""
    m = m0.to(tl.int64) + tl.arange(0, acc.shape[0])
    n = n0.to(tl.int64) + tl.arange(0, acc.shape[1])
    tile = pre_activation(acc, m, n, size, bias, c, scalars, tl.float32)
    if pre is not None:
        store_tile(pre, tile, m0, n0, m, n, size, strides, OUT_TMA)
    store_tile(out, ACT(tile), m0, n0, m, n, size, strides, OUT_TMA)


@triton.jit(do_not_specialize=["alpha", "beta"], repr=named("tma"))
def gemm_tma_kernel(
    a_desc,
    b_desc,
    bias_ptr,
    c_ptr,
    out,
    pre,
    M,
    N,
    K,
    stride_bias,
    stride_cm,
    stride_cn,
    stride_om,
    stride_on,
    alpha,
    beta,
    OP: tl.constexpr,
    ACT: tl.constexpr,
    A_T: tl.constexpr,
    B_T: tl.constexpr,
    OUT_TMA: tl.constexpr,
    PROGRAMS: tl.constexpr,
    SUBTILES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """Every PROGRAMS-th tile of out; A_T: a_desc is of a's transpose, [K, M]; B_T: [N, K].

    out and pre are descriptors if OUT_TMA.
    """
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=True):
        pid_m, pid_n = swizzle(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m = pid_m * BLOCK_M
        n = pid_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(tl.cdiv(K, BLOCK_K)):
            k = step * BLOCK_K
            if A_T:
                a = a_desc.load([k, m]).T
            else:
                a = a_desc.load([m, k])
            if B_T:
                b = b_desc.load([n, k]).T
            else:
                b = b_desc.load([k, n])
            acc = tl.dot(a, b, acc, input_precision="ieee")
        if SUBTILES == 2:
            parts = tl.split(tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1)))
        else:
            parts = (acc,)
        for i in tl.static_range(SUBTILES):
            finish_and_store(
                parts[i],
                m,
                n + i * (BLOCK_N // SUBTILES),
                (M, N),
                (bias_ptr, stride_bias),
                (c_ptr, stride_cm, stride_cn),
                (alpha, beta),
                out,
                pre,
                (stride_om, stride_on),
                ACT,
                OUT_TMA,
            )
