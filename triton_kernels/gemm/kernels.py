"""The kernels of the matrix products.

``gemm_bias_act_kernel`` reads through pointers. It takes any dtype, any strides and any GPU; each
program computes one tile of out. ``gemm_tma_kernel`` is for products of 16-bit matrices on GPUs
with a tensor memory accelerator (compute capability 9.0 and newer), and on 9.0 also for products in
tf32. It runs one program per multiprocessor, which computes one tile after the other, so that the
next tile's loads run during the epilogue of this tile. Both kernels share the epilogue.

If there are too few tiles to keep the GPU busy, K is split, through pointers and in
gemm_gluon_kernel: each program sums a part of K and writes its sum to a workspace. A counter tells
which program of a tile is the last. That one adds the parts, always in the same order, so that the
result is the same bit for bit in every run; then it does the epilogue. No program waits for another
one.

Kernels and jit functions take related arguments as one tuple: ``size`` is (M, N, K), strides are
(of rows, of columns), ``bias`` is (pointer, stride), ``c`` is (pointer, row stride, column stride),
``scalars`` is (alpha, beta). The pointer of a missing tensor is None. OP only serves the kernel's
name. WAITS: whether the launch that copies an operand may still run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from triton_kernels._scalars import multiple, scalar_value
from triton_kernels.gemm import configurations

DOT_ROWS = tl.constexpr(configurations.DOT_ROWS)


@triton.jit
def swizzle(tile, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M):
    """Row and column of a tile. The order goes down GROUP_M rows of tiles before the next column,
    so that tiles in flight share rows of a and columns of b in L2."""
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


@triton.jit
def part_of(steps, part, parts):
    """The range [first, end) of the steps of one part of K. All parts have nearly equal numbers."""
    return part * steps // parts, (part + 1) * steps // parts


@triton.jit
def sum_of_parts(acc, tile, part, parts, workspace, counters):
    """Write acc to the workspace as a part of its tile. Returns the sum of all parts and True if
    this program is the last of the tile; else acc and False."""
    rows = tl.arange(0, acc.shape[0])
    columns = tl.arange(0, acc.shape[1])
    size: tl.constexpr = acc.shape[0] * acc.shape[1]
    tile_ptrs = workspace + tile.to(tl.int64) * parts * size
    tile_ptrs += rows[:, None] * acc.shape[1] + columns[None, :]
    tl.store(tile_ptrs + part * size, acc)
    tl.debug_barrier()  # all threads have stored before one of them counts
    last = tl.atomic_add(counters + tile, 1, sem="acq_rel") == parts - 1
    if last:
        tl.store(counters + tile, 0)  # as the next launch expects it
        acc = tl.load(tile_ptrs, cache_modifier=".cg")
        UNROLL: tl.constexpr = 4 if size <= 8192 else 1  # loads in flight, as registers allow
        for i in tl.range(1, parts, loop_unroll_factor=UNROLL):
            acc += tl.load(tile_ptrs + i * size, cache_modifier=".cg")
    return acc, last


def name_of(kernel: str, op: str, act: Any) -> str:
    """The name of a compiled kernel in profiles: linear_gelu_tma; without an activation
    gemm_pointers."""
    words: str = act.fn.__name__.removeprefix("half_")
    return f"{op}_{kernel}" if words == "none" else f"{op}_{words}_{kernel}"


def named(kernel: str) -> Callable[[Any], str]:
    """:func:`name_of` as a function of Triton's specialization."""

    def name(specialization: Any) -> str:
        constants = specialization.constants
        return name_of(kernel, constants["OP"], constants["ACT"])

    return name


@triton.jit
def store_tile(out, tile, m0, n0, m, n, size, strides, OUT_TMA: tl.constexpr):
    """Store the tile whose first element is (m0, n0). out is a descriptor if OUT_TMA."""
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
    C: tl.constexpr,
    ACT: tl.constexpr,
    OUT_TMA: tl.constexpr,
):
    """The epilogue of the tile of acc's shape whose first element is (m0, n0). ``strides`` are
    those of out and of pre."""
    m = m0.to(tl.int64) + tl.arange(0, acc.shape[0])
    n = n0.to(tl.int64) + tl.arange(0, acc.shape[1])
    tile = pre_activation(acc, m, n, size, bias, c, scalars, C)
    if pre is not None:
        store_tile(pre, tile, m0, n0, m, n, size, strides, OUT_TMA)
    store_tile(out, ACT(tile), m0, n0, m, n, size, strides, OUT_TMA)


@triton.jit(do_not_specialize=["alpha", "beta", "parts"], repr=named("pointers"))
def gemm_bias_act_kernel(
    a_ptr,
    b_ptr,
    bias_ptr,
    c_ptr,
    out_ptr,
    pre_ptr,
    workspace,
    counters,
    size,
    a_strides,
    b_strides,
    stride_bias,
    c_strides,
    out_strides,
    alpha,
    beta,
    parts,
    OP: tl.constexpr,
    ACT: tl.constexpr,
    C: tl.constexpr,
    PRECISION: tl.constexpr,
    UNITS: tl.constexpr,
    B_POLICY: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    WAITS: tl.constexpr,
):
    """Each program computes one BLOCK_M × BLOCK_N tile of out, or a part of its sum over K. With
    fewer than DOT_ROWS rows it does so without tensor cores.

    C is the accumulator's type. workspace and counters are None if K is not split. B_POLICY is b's
    eviction policy. UNITS are divisors of the length and pitch of a's rows, a's columns, b's
    columns and b's rows; 1 for those that are not contiguous.
    """
    if WAITS:
        gdc_wait()
    M, N, K = size
    stride_am, stride_ak = a_strides
    stride_bk, stride_bn = b_strides
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    pid_m, pid_n = swizzle(tl.program_id(0) % tiles, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    m = pid_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = pid_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    if BLOCK_M < DOT_ROWS:  # all products of a step are elements, which are added up at the end
        a_rows, a_depth = m[:, None, None], k[None, :, None]
        b_depth, b_columns = k[None, :, None], n[None, None, :]
        acc = tl.zeros((BLOCK_M, BLOCK_K, BLOCK_N), C)
    else:
        a_rows, a_depth = m[:, None], k[None, :]
        b_depth, b_columns = k[:, None], n[None, :]
        acc = tl.zeros((BLOCK_M, BLOCK_N), C)
    stride_am, a_end = multiple(stride_am, UNITS[0]), multiple(K, UNITS[0])
    stride_ak, m_end = multiple(stride_ak, UNITS[1]), multiple(M, UNITS[1])
    stride_bn, b_end = multiple(stride_bn, UNITS[2]), multiple(K, UNITS[2])
    stride_bk, n_end = multiple(stride_bk, UNITS[3]), multiple(N, UNITS[3])
    a_ptrs = a_ptr + a_rows * stride_am + a_depth.to(tl.int64) * stride_ak
    b_ptrs = b_ptr + b_depth.to(tl.int64) * stride_bk + b_columns * stride_bn
    # A stride of a tall column-major matrix may fit 32 bits, but not BLOCK_K times that stride.
    step = tl.full((), BLOCK_K, tl.int64)
    if workspace is None:
        first = 0
        end = tl.cdiv(K, BLOCK_K)
    else:
        first, end = part_of(tl.cdiv(K, BLOCK_K), tl.program_id(0) // tiles, parts)
        a_ptrs += step * first * stride_ak
        b_ptrs += step * first * stride_bk
    for i in range(first, end):
        k0 = i * BLOCK_K
        a_mask = (a_rows < m_end) & (a_depth < a_end - k0)
        b_mask = (b_depth < b_end - k0) & (b_columns < n_end)
        a = tl.load(a_ptrs, mask=a_mask, other=0.0)
        b = tl.load(b_ptrs, mask=b_mask, other=0.0, eviction_policy=B_POLICY)
        if BLOCK_M < DOT_ROWS:
            acc += a.to(C) * b
        elif PRECISION == "ieee" and a_ptr.dtype.element_ty == tl.float32:
            # Sums of BLOCK_K products are added up: the error grows with K / BLOCK_K, not with K.
            # By fma, because the compiler would turn acc + dot(a, b) into one accumulating dot.
            part = tl.dot(a, b, input_precision=PRECISION, out_dtype=C)
            acc = tl.fma(part, tl.full(part.shape, 1.0, C), acc)
        else:
            acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=C)
        a_ptrs += step * stride_ak
        b_ptrs += step * stride_bk
    if BLOCK_M < DOT_ROWS:
        acc = tl.sum(acc, 1)
    last = True
    if workspace is not None:
        tile = tl.program_id(0) % tiles
        part = tl.program_id(0) // tiles
        acc, last = sum_of_parts(acc, tile, part, parts, workspace, counters)
    if last:
        finish_and_store(
            acc,
            pid_m * BLOCK_M,
            pid_n * BLOCK_N,
            size,
            (bias_ptr, stride_bias),
            (c_ptr, c_strides[0], c_strides[1]),
            (alpha, beta),
            out_ptr,
            pre_ptr,
            out_strides,
            C,
            ACT,
            False,
        )


@triton.jit(do_not_specialize=["alpha", "beta"], repr=named("tma"))
def gemm_tma_kernel(
    a_desc,
    b_desc,
    bias_ptr,
    c_ptr,
    out,
    pre,
    size,
    stride_bias,
    c_strides,
    out_strides,
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
    WAITS: tl.constexpr,
):
    """Each program computes every PROGRAMS-th tile of out.

    If A_T, a_desc describes a's transpose, [K, M]; if B_T, b_desc describes b's, [N, K]. out and
    pre are descriptors if OUT_TMA.
    """
    if WAITS:
        gdc_wait()
    M, N, K = size
    PRECISION: tl.constexpr = "tf32" if a_desc.dtype == tl.float32 else "ieee"
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
            acc = tl.dot(a, b, acc, input_precision=PRECISION)
        if SUBTILES == 2:
            parts = tl.split(tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1)))
        else:
            parts = (acc,)
        for i in tl.static_range(SUBTILES):
            finish_and_store(
                parts[i],
                m,
                n + i * (BLOCK_N // SUBTILES),
                size,
                (bias_ptr, stride_bias),
                (c_ptr, c_strides[0], c_strides[1]),
                (alpha, beta),
                out,
                pre,
                out_strides,
                tl.float32,
                ACT,
                OUT_TMA,
            )
