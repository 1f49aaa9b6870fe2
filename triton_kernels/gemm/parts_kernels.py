"""float32 products on 16-bit tensor cores: precision "f16x3".

Each row of a and each column of b is scaled by a power of two, so that its largest element lies
between 2¹⁴ and 2¹⁵, and split into two float16 numbers high + low, which have 22 bits together. The
product is low·high + high·low + high·high; low·low, which is left out, is 2⁻²² of it. Tensor cores
truncate their sums. So after every step their sum is added to a float32 sum, which rounds.

A row or column with an infinity or NaN has no such scale. It is split as zeros, and its scale is
NaN. A last kernel computes its results again, in float32. This kernel is always launched, because
only the GPU knows the operands' values; usually it has nothing to do.

WAITS: whether the launch before may still run, which writes what the kernel reads.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from triton_kernels._scalars import multiple
from triton_kernels.gemm.kernels import finish_and_store, named, pre_activation, swizzle


@triton.jit
def split_rows(
    tile, matrix, parts, scales, rows, depth, stride_r, stride_k, pitch,
    BY_DEPTH: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, ONCE: tl.constexpr,
    UNROLL: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Write the parts and scales of some rows. The columns of b count as rows.

    parts is [2·rows, depth] with low below high if BY_DEPTH, else [depth, pitch] with low in the
    second half of a row. ONCE: whether DEPTH covers the whole depth. UNROLL: how many steps are
    loaded at once. UNIT divides the matrix's pitch and contiguous dimension; the parts are stored
    in the same vectors, so that each thread stores what it has loaded.
    """
    half = multiple(pitch // 2, UNIT)
    if BY_DEPTH:
        stride_r, depth, pitch = multiple(stride_r, UNIT), multiple(depth, UNIT), 2 * half
    else:
        stride_k, rows, pitch = multiple(stride_k, UNIT), multiple(rows, UNIT), 2 * half
    r = tile.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, DEPTH)
    x_ptrs = matrix + r[:, None] * stride_r + k[None, :].to(tl.int64) * stride_k
    inside = r[:, None] < rows
    x = tl.load(x_ptrs, mask=inside & (k[None, :] < depth), other=0.0)
    most = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF  # ordered as the numbers, but NaN counts
    if not ONCE:
        for k0 in tl.range(DEPTH, depth, DEPTH, loop_unroll_factor=UNROLL):
            mask = inside & (k0 + k[None, :] < depth)
            x = tl.load(x_ptrs + tl.cast(k0, tl.int64) * stride_k, mask=mask, other=0.0)
            most = tl.maximum(most, x.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    largest = tl.max(most, 1)  # once, because it passes through shared memory
    finite = largest < 0x7F800000
    # At least 2⁻¹¹²; below that the scale would not be a normal number.
    power = tl.maximum(largest >> 23, 15)
    scale = ((127 + 14 + 127 - power) << 23).to(tl.float32, bitcast=True)
    inverse = tl.where(finite, (power - 14) << 23, 0x7FC00000).to(tl.float32, bitcast=True)
    tl.store(scales + r, inverse, mask=r < rows)
    if BY_DEPTH:
        high_ptrs = parts + r[:, None] * pitch + k[None, :]
        low_ptrs = high_ptrs + tl.cast(rows, tl.int64) * pitch
        step = tl.full((), 1, tl.int64)
    else:
        high_ptrs = parts + k[None, :].to(tl.int64) * pitch + r[:, None]
        low_ptrs = high_ptrs + half
        step = tl.cast(pitch, tl.int64)
    for k0 in tl.range(0, DEPTH if ONCE else depth, DEPTH, loop_unroll_factor=UNROLL):
        mask = inside & (k0 + k[None, :] < depth)
        if not ONCE:
            x = tl.load(x_ptrs + tl.cast(k0, tl.int64) * stride_k, mask=mask, other=0.0)
        scaled = tl.where(finite[:, None], x, 0.0) * scale[:, None]
        high = scaled.to(tl.float16)
        low = (scaled - high.to(tl.float32)).to(tl.float16)
        tl.store(high_ptrs + k0 * step, high, mask=mask)
        tl.store(low_ptrs + k0 * step, low, mask=mask)


@triton.jit(do_not_specialize=["a_pitch", "b_pitch"])
def split_kernel(
    a,
    a_parts,
    a_scales,
    b,
    b_parts,
    b_scales,
    size,
    a_strides,
    b_strides,
    a_pitch,
    b_pitch,
    A_HOW: tl.constexpr,
    B_HOW: tl.constexpr,
):
    """Each program splits some rows of a or columns of b; those of a come first. A_HOW and B_HOW
    are the constants of split_rows."""
    M, N, K = size
    stride_am, stride_ak = a_strides
    stride_bk, stride_bn = b_strides
    tile = tl.program_id(0)
    of_a = tl.cdiv(M, A_HOW[1])
    if tile < of_a:
        split_rows(
            tile, a, a_parts, a_scales, M, K, stride_am, stride_ak, a_pitch,
            A_HOW[0], A_HOW[1], A_HOW[2], A_HOW[3], A_HOW[4], A_HOW[5],
        )  # fmt: skip
    else:
        split_rows(
            tile - of_a, b, b_parts, b_scales, N, K, stride_bn, stride_bk, b_pitch,
            B_HOW[0], B_HOW[1], B_HOW[2], B_HOW[3], B_HOW[4], B_HOW[5],
        )  # fmt: skip


@triton.jit
def sum_of_products(
    a_desc, b_desc, m, n, K, a_low, b_low,
    A_T: tl.constexpr, B_T: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The sum of the scaled parts' products, for the tile whose first element is (m, n). a_low and
    b_low are the indices at which the low parts begin.

    Tensor cores cut sums off, and so much the more the larger these are. Hence each step begins
    with zero and the smallest products, and is added in float32."""
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(tl.cdiv(K, BLOCK_K)):
        k = step * BLOCK_K
        if A_T:
            a_high = a_desc.load([k, m]).T
            a_rest = a_desc.load([k, a_low + m]).T
        else:
            a_high = a_desc.load([m, k])
            a_rest = a_desc.load([a_low + m, k])
        if B_T:
            b_high = b_desc.load([n, k]).T
            b_rest = b_desc.load([b_low + n, k]).T
        else:
            b_high = b_desc.load([k, n])
            b_rest = b_desc.load([k, b_low + n])
        low = tl.dot(a_high, b_rest, tl.dot(a_rest, b_high))
        acc += tl.dot(a_high, b_high, low)
    return acc


@triton.jit(do_not_specialize=["alpha", "beta"], repr=named("f16x3"))
def gemm_f16x3_kernel(
    a_desc,
    b_desc,
    a_scales,
    b_scales,
    bias_ptr,
    c_ptr,
    out,
    pre,
    size,
    a_low,
    b_low,
    stride_bias,
    c_strides,
    out_strides,
    alpha,
    beta,
    OP: tl.constexpr,
    ACT: tl.constexpr,
    A_T: tl.constexpr,
    B_T: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    WAITS: tl.constexpr,
):
    """Each program computes one tile of out. If A_T, a's parts are [K, 2·M], else [2·M, K]; if B_T,
    b's parts are [2·N, K], else [K, 2·N]."""
    if WAITS:
        gdc_wait()
    M, N, K = size
    pid_m, pid_n = swizzle(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    m0 = pid_m * BLOCK_M
    n0 = pid_n * BLOCK_N
    acc = sum_of_products(
        a_desc, b_desc, m0, n0, K, a_low, b_low, A_T, B_T, BLOCK_M, BLOCK_N, BLOCK_K
    )
    m = m0 + tl.arange(0, BLOCK_M)
    n = n0 + tl.arange(0, BLOCK_N)
    by_row = tl.load(a_scales + m, mask=m < M, other=1.0)[:, None]
    by_column = tl.load(b_scales + n, mask=n < N, other=1.0)[None, :]
    # First the smaller scale: then only results that are too large in the end overflow.
    acc = acc * tl.minimum(by_row, by_column) * tl.maximum(by_row, by_column)
    finish_and_store(
        acc,
        m0,
        n0,
        size,
        (bias_ptr, stride_bias),
        (c_ptr, c_strides[0], c_strides[1]),
        (alpha, beta),
        out,
        pre,
        out_strides,
        tl.float32,
        ACT,
        False,
    )


@triton.jit(do_not_specialize=["alpha", "beta"], repr=named("f16x3_again"))
def gemm_again_kernel(
    a_ptr,
    b_ptr,
    a_scales,
    b_scales,
    bias_ptr,
    c_ptr,
    out_ptr,
    pre_ptr,
    size,
    a_strides,
    b_strides,
    stride_bias,
    c_strides,
    out_strides,
    alpha,
    beta,
    OP: tl.constexpr,
    ACT: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STRIP: tl.constexpr,
    WAITS: tl.constexpr,
):
    """Compute the results in rows and columns whose scale is NaN, in float32. Each program has
    STRIP tiles that are neighbours along N; most tiles have no such results."""
    if WAITS:
        gdc_wait()
    M, N, K = size
    stride_am, stride_ak = a_strides
    stride_bk, stride_bn = b_strides
    stride_om, stride_on = out_strides
    across = tl.cdiv(N, STRIP * BLOCK)
    m = (tl.program_id(0) // across).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    n0 = (tl.program_id(0) % across).to(tl.int64) * (STRIP * BLOCK)
    strip = n0 + tl.arange(0, STRIP * BLOCK)
    by_row = tl.load(a_scales + m, mask=m < M, other=1.0)
    by_strip = tl.load(b_scales + strip, mask=strip < N, other=1.0)
    rows = (by_row != by_row).to(tl.int32)
    any_row = tl.max(rows, 0)
    if any_row + tl.max((by_strip != by_strip).to(tl.int32), 0) > 0:
        for i in range(STRIP):
            n = n0 + i * BLOCK + tl.arange(0, BLOCK)
            by_column = tl.load(b_scales + n, mask=n < N, other=1.0)
            columns = (by_column != by_column).to(tl.int32)
            if any_row + tl.max(columns, 0) > 0:
                k = tl.arange(0, BLOCK_K)
                a_ptrs = a_ptr + m[:, None] * stride_am + k[None, :].to(tl.int64) * stride_ak
                b_ptrs = b_ptr + k[:, None].to(tl.int64) * stride_bk + n[None, :] * stride_bn
                step = tl.full((), BLOCK_K, tl.int64)
                acc = tl.zeros((BLOCK, BLOCK), tl.float32)
                for k0 in range(0, K, BLOCK_K):
                    a = tl.load(a_ptrs, mask=(m[:, None] < M) & (k[None, :] < K - k0), other=0.0)
                    b = tl.load(b_ptrs, mask=(k[:, None] < K - k0) & (n[None, :] < N), other=0.0)
                    acc += tl.dot(a, b, input_precision="ieee")
                    a_ptrs += step * stride_ak
                    b_ptrs += step * stride_bk
                bias = (bias_ptr, stride_bias)
                c = (c_ptr, c_strides[0], c_strides[1])
                tile = pre_activation(acc, m, n, size, bias, c, (alpha, beta), tl.float32)
                mask = (m[:, None] < M) & (n[None, :] < N) & (rows[:, None] + columns[None, :] > 0)
                at = m[:, None] * stride_om + n[None, :] * stride_on
                if pre_ptr is not None:
                    tl.store(pre_ptr + at, tile.to(pre_ptr.dtype.element_ty), mask=mask)
                tl.store(out_ptr + at, ACT(tile).to(out_ptr.dtype.element_ty), mask=mask)
