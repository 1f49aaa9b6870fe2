"""Matrix products by plain and by block pointers, in one tile a program."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from gallery.exhibits import FLOATS, Launch, exhibit, near, normal


def product_bound(dtype: torch.dtype, *factors: torch.Tensor) -> Callable[..., torch.Tensor]:
    """Of a product that is summed in float32, whatever the order."""
    a, b = (factor.double().abs() for factor in factors)
    return near(dtype, a @ b, (a.shape[-1] + 4) * 2.0**-24)


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, bias_ptr, out_ptr, beta, M, N, K, BLOCK: tl.constexpr):
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    k = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for step in range(tl.cdiv(K, BLOCK)):
        # fault tail dropped: for step in range(K // BLOCK):
        at = step * BLOCK + k
        a_mask = (m < M) & (at[None, :] < K)
        # fault K tail not masked: a_mask = m < M
        a = tl.load(a_ptr + m * K + at[None, :], mask=a_mask, other=0.0)
        b = tl.load(b_ptr + at[:, None] * N + n, mask=(at[:, None] < K) & (n < N), other=0.0)
        # fault b read beyond K: b = tl.load(b_ptr + at[:, None] * N + n, mask=n < N, other=0.0)
        # fault b without other:
        #    b = tl.load(b_ptr + at[:, None] * N + n, mask=(at[:, None] < K) & (n < N))
        acc = tl.dot(a, b, acc, input_precision="ieee")
        # fault tf32 where ieee was asked: acc = tl.dot(a, b, acc, input_precision="tf32")
        # fault float16 accumulator:
        #    acc = tl.dot(a, b, acc.to(tl.float16), out_dtype=tl.float16).to(tl.float32)
    c = tl.load(c_ptr + m * N + n, mask=(m < M) & (n < N))
    acc += beta * c
    # fault beta ignored: acc += c
    acc += tl.load(bias_ptr + n, mask=n < N)
    # fault bias by row: acc += tl.load(bias_ptr + m, mask=m < M)
    tl.store(out_ptr + m * N + n, acc, mask=(m < M) & (n < N))


def addmm(dtype: torch.dtype, M: int, N: int, K: int) -> Launch:
    """c·beta + a@b + bias."""
    a, b = normal(M, K, dtype=dtype), normal(K, N, seed=1, dtype=dtype)
    c, bias = normal(M, N, seed=2, dtype=dtype), normal(max(M, N), seed=3, dtype=dtype)
    wide = [t.double() for t in (a, b, c, bias[:N])]
    magnitude = wide[0].abs() @ wide[1].abs() + wide[2].abs() + wide[3].abs()
    return Launch(
        matmul_kernel,
        (triton.cdiv(M, 16), triton.cdiv(N, 16)),
        (a, b, c, bias, torch.empty(M, N, dtype=dtype), 0.5, M, N, K),
        {"out_ptr": wide[0] @ wide[1] + 0.5 * wide[2] + wide[3]},
        bound=near(dtype, magnitude, (K + 4) * 2.0**-24),
        BLOCK=16,
    )


@exhibit(
    {
        "tail dropped": ("wrong values",),
        "K tail not masked": ("out of bounds", "a_ptr"),
        "b read beyond K": ("out of bounds", "b_ptr"),
        "b without other": ("undefined value", "b_ptr"),
        "beta ignored": ("wrong values", "c_ptr"),
        "bias by row": ("wrong values", "bias_ptr[0:16]"),
    }
)
def matmul_with_bias(dtype: torch.dtype) -> Launch:
    return addmm(dtype, 20, 24, 40)


@exhibit({"tf32 where ieee was asked": ("wrong values", "tf32")}, [torch.float32])
def matmul_in_float32(dtype: torch.dtype) -> Launch:
    return addmm(dtype, 16, 16, 32)


@exhibit({"float16 accumulator": ("wrong values", "acc =")}, [torch.float16])
def matmul_in_float16(dtype: torch.dtype) -> Launch:
    launch = addmm(dtype, 16, 16, 64)
    out = launch.kernel.arg_names.index("out_ptr")
    wide = [each.float() if number == out else each for number, each in enumerate(launch.args)]
    launch.args = tuple(wide)
    launch.judged["bound"] = product_bound(torch.float32, *launch.args[:2])
    return launch


@triton.jit
def grouped_matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    ACT: tl.constexpr,
):  # fmt: skip
    """The tutorial's order of tiles: GROUP_M rows of tiles, column by column."""
    pid = tl.program_id(axis=0)
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    tiles_in_group = GROUP_M * tiles_n
    # fault program ids divided wrongly: tiles_in_group = GROUP_M * tiles_m
    first = pid // tiles_in_group * GROUP_M
    group_size = min(tiles_m - first, GROUP_M)
    # fault last group taken for whole: group_size = GROUP_M
    tile_m = first + (pid % tiles_in_group) % group_size
    tile_n = (pid % tiles_in_group) // group_size
    m = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    n = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + m[:, None] * stride_am + k[None, :] * stride_ak
    b_ptrs = b_ptr + k[:, None] * stride_bk + n[None, :] * stride_bn
    # fault strides swapped: b_ptrs = b_ptr + k[:, None] * stride_bn + n[None, :] * stride_bk
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(0, tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=k[None, :] < K - step * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=k[:, None] < K - step * BLOCK_K, other=0.0)
        # fault mask of the whole K: b = tl.load(b_ptrs, mask=k[:, None] < K, other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
        # fault a step of the other stride: b_ptrs += BLOCK_K * stride_bn
    if ACT is not None:
        acc = ACT(acc)
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + stride_cm * m[:, None] + stride_cn * n[None, :]
    tl.store(c_ptrs, acc, mask=(m[:, None] < M) & (n[None, :] < N))
    # fault rows not masked: tl.store(c_ptrs, acc, mask=n[None, :] < N)


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)
    # fault slope left out: return tl.where(x >= 0, x, 0.0)


@exhibit(
    {
        "program ids divided wrongly": ("wrong values",),
        "last group taken for whole": ("wrong values",),
        "strides swapped": ("wrong values",),
        "mask of the whole K": ("out of bounds", "b_ptr"),
        "a step of the other stride": ("out of bounds", "b_ptr"),
        "rows not masked": ("out of bounds", "c_ptr"),
        "slope left out": ("wrong values",),
    }
)
def matmul_in_grouped_order(dtype: torch.dtype) -> Launch:
    a, b = normal(40, 40, dtype=dtype), normal(60, 40, seed=1, dtype=dtype).T
    c = torch.zeros(40, 60, dtype=dtype)
    right = torch.nn.functional.leaky_relu(a.double() @ b.double())
    args = (a, b, c, 40, 60, 40, *a.stride(), *b.stride(), *c.stride())
    return Launch(
        grouped_matmul_kernel,
        (12,),
        args,
        {"c_ptr": right},
        bound=product_bound(dtype, a, b),
        BLOCK_M=16,
        BLOCK_N=16,
        BLOCK_K=16,
        GROUP_M=2,
        ACT=leaky_relu,
    )


@triton.jit
def block_pointer_matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, BLOCK: tl.constexpr,
):  # fmt: skip
    m, n = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    a_block = tl.make_block_ptr(
        a_ptr, (M, K), (stride_am, stride_ak), (m, 0), (BLOCK, BLOCK), (1, 0)
    )
    shape, strides = (K, N), (stride_bk, stride_bn)
    # fault shape turned round: shape, strides = (N, K), (stride_bk, stride_bn)
    b_block = tl.make_block_ptr(b_ptr, shape, strides, (0, n), (BLOCK, BLOCK), (1, 0))
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for _ in range(0, K, BLOCK):
        a = tl.load(a_block, boundary_check=(0, 1), padding_option="zero")
        b = tl.load(b_block, boundary_check=(0, 1), padding_option="zero")
        # fault one boundary unchecked:
        #    b = tl.load(b_block, boundary_check=(1,), padding_option="zero")
        # fault no padding: b = tl.load(b_block, boundary_check=(0, 1))
        acc = tl.dot(a, b, acc, input_precision="ieee")
        a_block = tl.advance(a_block, (0, BLOCK))
        b_block = tl.advance(b_block, (BLOCK, 0))
        # fault advanced by half: b_block = tl.advance(b_block, (BLOCK // 2, 0))
    c_block = tl.make_block_ptr(
        c_ptr, (M, N), (stride_cm, stride_cn), (m, n), (BLOCK, BLOCK), (1, 0)
    )
    tl.store(c_block, acc.to(c_ptr.dtype.element_ty), boundary_check=(0, 1))
    # fault stored without a check: tl.store(c_block, acc.to(c_ptr.dtype.element_ty))


@exhibit(
    {
        "shape turned round": ("wrong values",),
        "one boundary unchecked": ("out of bounds", "b_ptr"),
        "no padding": ("undefined value", "b_ptr"),
        "advanced by half": ("wrong values",),
        "stored without a check": ("out of bounds", "c_ptr"),
    }
)
def matmul_by_block_pointers(dtype: torch.dtype) -> Launch:
    a, b = normal(20, 40, dtype=dtype), normal(40, 24, seed=1, dtype=dtype)
    c = torch.empty(20, 24, dtype=dtype)
    args = (a, b, c, 20, 24, 40, *a.stride(), *b.stride(), *c.stride())
    right = {"c_ptr": a.double() @ b.double()}
    bound = product_bound(dtype, a, b)
    return Launch(block_pointer_matmul_kernel, (2, 2), args, right, bound=bound, BLOCK=16)


@triton.jit
def batched_kernel(a_ptr, b_ptr, c_ptr, K, BLOCK: tl.constexpr):
    """A batch of products of [BLOCK, K] and [K, BLOCK]."""
    batch = tl.program_id(0)
    m, n = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    a_ptr += batch * BLOCK * K
    b_ptr += batch * BLOCK * K
    # fault the first batch's operand: b_ptr += BLOCK * K
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in tl.range(0, K, BLOCK, num_stages=2):
        # fault last block left out: for start in tl.range(0, K - BLOCK, BLOCK, num_stages=2):
        a = tl.load(a_ptr + m * K + start + n)
        b = tl.load(b_ptr + (start + m) * BLOCK + n)
        acc += tl.dot(a, b, input_precision="ieee")
        # fault overwritten instead of added to: acc = tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + batch * BLOCK * BLOCK + m * BLOCK + n, acc)


@exhibit(
    {
        "the first batch's operand": ("wrong values", "b_ptr"),
        "last block left out": ("wrong values",),
        "overwritten instead of added to": ("wrong values",),
    }
)
def batched_matmul(dtype: torch.dtype) -> Launch:
    a, b = normal(3, 16, 32, dtype=dtype), normal(3, 32, 16, seed=1, dtype=dtype)
    right = {"c_ptr": a.double() @ b.double()}
    args = (a, b, torch.empty(3, 16, 16, dtype=dtype), 32)
    return Launch(batched_kernel, (3,), args, right, bound=product_bound(dtype, a, b), BLOCK=16)


@triton.jit
def gemv_kernel(w_ptr, x_ptr, out_ptr, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, N, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)[None, :]
        w = tl.load(w_ptr + m * N + n, mask=(m < M) & (n < N), other=0.0).to(tl.float32)
        # fault columns not masked:
        #    w = tl.load(w_ptr + m * N + n, mask=m < M, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + n, mask=n < N, other=0.0).to(tl.float32)
        # fault the first block's x:
        #    x = tl.load(x_ptr + n - start, mask=n < N, other=0.0).to(tl.float32)
        acc += w * x
    out = tl.sum(acc, axis=1)
    tl.store(out_ptr + tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), out,
             mask=tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M) < M)  # fmt: skip


@exhibit(
    {
        "columns not masked": ("out of bounds", "w_ptr"),
        "the first block's x": ("wrong values", "x_ptr"),
    },
    FLOATS,
)
def gemv(dtype: torch.dtype) -> Launch:
    w, x = normal(10, 40, dtype=dtype), normal(40, seed=1, dtype=dtype)
    bound = product_bound(dtype, w, x)
    args = (w, x, torch.empty(10, dtype=dtype), 10, 40)
    right = {"out_ptr": w.double() @ x.double()}
    return Launch(gemv_kernel, (2,), args, right, bound=bound, BLOCK_M=8, BLOCK_N=16)
