"""Numbers of 8 and 4 bits, and the scales that belong to them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gallery.exhibits import FLOATS, Launch, exhibit, integers, near, normal
from gallery.products import product_bound


@triton.jit
def quantise_int8_kernel(x_ptr, out_ptr, scale_ptr, N, BLOCK: tl.constexpr):
    """Each row by its largest magnitude."""
    n = tl.arange(0, BLOCK)
    at = tl.program_id(0) * N + n
    x = tl.load(x_ptr + at, mask=n < N, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(x), axis=0)
    # fault largest for magnitude: largest = tl.max(x, axis=0)
    scale = tl.maximum(largest, 1e-10) / 127.0
    # fault no guard for rows of zeros: scale = largest / 127.0
    # fault 128 steps: scale = tl.maximum(largest, 1e-10) / 128.0
    q = x / scale
    q = tl.where(q >= 0, tl.floor(q + 0.5), tl.ceil(q - 0.5))
    # fault cut off instead of rounded: q = q + 0.0
    tl.store(out_ptr + at, q.to(tl.int8), mask=n < N)
    tl.store(scale_ptr + tl.program_id(0), scale)


@exhibit(
    {
        "largest for magnitude": ("wrong values",),
        "no guard for rows of zeros": ("wrong values",),
        "128 steps": ("wrong values", "scale_ptr"),
        "cut off instead of rounded": ("wrong values", "out_ptr"),
    }
)
def quantise_to_int8(dtype: torch.dtype) -> Launch:
    x = integers(-127, 128, 5, 24).to(dtype)
    x[:, 0] = torch.tensor([127, -127, 127, -127, 127])
    x[:, 1] = 63.75  # no whole number
    x[3] = 0
    scale = x.float().abs().amax(1).clamp(min=1e-10) / 127
    q = x.float() / scale[:, None]
    right = (q.sign() * (q.abs() + 0.5).floor()).to(torch.int8)
    args = (x, torch.empty(5, 24, dtype=torch.int8), torch.empty(5), 24)
    return Launch(
        quantise_int8_kernel, (5,), args, {"out_ptr": right, "scale_ptr": scale}, BLOCK=32
    )


@triton.jit
def quantise_fp8_kernel(x_ptr, out_ptr, scale_ptr, N, BLOCK: tl.constexpr):
    """A block a scale; magnitudes up to 448."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < N, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(x))
    # fault extra lanes in the scale: largest = tl.max(tl.where(at < N, tl.abs(x), 1000.0))
    scale = largest / 448.0
    scale = tl.where(scale == 0, 1.0, scale)
    # fault guard left out: scale = scale + 0.0
    tl.store(out_ptr + at, (x / scale).to(tl.float8e4nv), mask=at < N)
    # fault multiplied by the scale:
    #    tl.store(out_ptr + at, (x * scale).to(tl.float8e4nv), mask=at < N)
    tl.store(scale_ptr + tl.program_id(0), scale)


@exhibit(
    {
        "extra lanes in the scale": ("wrong values",),
        "guard left out": ("wrong values",),
        "multiplied by the scale": ("wrong values", "out_ptr"),
    }
)
def quantise_to_fp8(dtype: torch.dtype) -> Launch:
    x = normal(80, dtype=dtype)
    x[32:64] = 0
    scales = torch.stack([part.float().abs().amax() / 448 for part in x.split(32)])
    scales = torch.where(scales == 0, 1.0, scales)
    right = (x.float() / scales.repeat_interleave(32)[:80]).to(torch.float8_e4m3fn)
    args = (x, torch.empty(80, dtype=torch.float8_e4m3fn), torch.empty(3), 80)
    return Launch(
        quantise_fp8_kernel, (3,), args, {"out_ptr": right, "scale_ptr": scales}, BLOCK=32
    )


@triton.jit
def dequantise_blocks_kernel(x_ptr, scale_ptr, out_ptr, M, N, BLOCK: tl.constexpr):
    """A scale for each tile of BLOCK²."""
    pid_m, pid_n = tl.program_id(0), tl.program_id(1)
    m = pid_m * BLOCK + tl.arange(0, BLOCK)
    n = pid_n * BLOCK + tl.arange(0, BLOCK)
    at = m[:, None] * N + n[None, :]
    mask = (m[:, None] < M) & (n[None, :] < N)
    # fault only columns masked: mask = n[None, :] < N
    x = tl.load(x_ptr + at, mask=mask).to(tl.float32)
    scale = tl.load(scale_ptr + pid_m * tl.cdiv(N, BLOCK) + pid_n)
    # fault scales of whole tiles: scale = tl.load(scale_ptr + pid_m * (N // BLOCK) + pid_n)
    tl.store(out_ptr + at, x * scale, mask=mask)


@exhibit(
    {
        "only columns masked": ("out of bounds", "x_ptr"),
        "scales of whole tiles": ("wrong values", "scale_ptr"),
    }
)
def dequantise_blocks(dtype: torch.dtype) -> Launch:
    x, scale = normal(20, 40).to(torch.float8_e4m3fn), 1 + normal(2, 3, seed=1).abs()
    wide = scale.repeat_interleave(16, 0)[:20].repeat_interleave(16, 1)[:, :40]
    right = {"out_ptr": x.double() * wide.double()}
    args = (x, scale, torch.empty(20, 40, dtype=dtype), 20, 40)
    return Launch(dequantise_blocks_kernel, (2, 3), args, right, bound=near(dtype, 4), BLOCK=16)


@triton.jit
def int8_matmul_kernel(
    a_ptr, b_ptr, scale_a_ptr, scale_b_ptr, out_ptr, M, N, K,
    BLOCK: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Rows of a and columns of b have a scale each."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), tl.int32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        a = tl.load(a_ptr + m[:, None] * K + k[None, :],
                    mask=(m[:, None] < M) & (k[None, :] < K), other=0)  # fmt: skip
        b = tl.load(b_ptr + k[:, None] * N + n[None, :],
                    mask=(k[:, None] < K) & (n[None, :] < N), other=0)  # fmt: skip
        acc += tl.dot(a, b, out_dtype=tl.int32)
        # fault sums of 8 bits: acc += tl.dot(a, b, out_dtype=tl.int32).to(tl.int8)
    scale_a = tl.load(scale_a_ptr + m, mask=m < M)
    scale_b = tl.load(scale_b_ptr + n, mask=n < N)
    # fault the other's scales: scale_b = tl.load(scale_a_ptr + n, mask=n < M)
    out = acc.to(tl.float32) * scale_a[:, None] * scale_b[None, :]
    # fault without one scale: out = acc.to(tl.float32) * scale_a[:, None]
    mask = (m[:, None] < M) & (n[None, :] < N)
    tl.store(out_ptr + m[:, None] * N + n[None, :], out, mask=mask)


@exhibit(
    {
        "sums of 8 bits": ("wrong values", "acc"),
        "the other's scales": ("wrong values", "scale_a_ptr"),
        "without one scale": ("wrong values",),
    }
)
def int8_matmul_with_scales(dtype: torch.dtype) -> Launch:
    a, b = integers(-128, 128, 20, 40).to(torch.int8), integers(-128, 128, 40, 20, seed=1)
    b = b.to(torch.int8)
    scale_a, scale_b = normal(20).abs() / 64, normal(20, seed=1).abs() / 64
    right = (a.double() @ b.double()) * scale_a[:, None].double() * scale_b.double()
    args = (a, b, scale_a, scale_b, torch.empty(20, 20, dtype=dtype), 20, 20, 40)
    return Launch(
        int8_matmul_kernel, (2, 2), args, {"out_ptr": right}, max_ulps=3, BLOCK=16, BLOCK_K=32
    )


@triton.jit
def fp8_block_matmul_kernel(
    a_ptr, b_ptr, scale_a_ptr, scale_b_ptr, out_ptr, M, N, K,
    BLOCK: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """a has a scale each row and BLOCK_K columns, b each BLOCK_K rows and BLOCK columns."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    parts = tl.cdiv(K, BLOCK_K)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for part in range(parts):
        k = part * BLOCK_K + tl.arange(0, BLOCK_K)
        a_mask = (m[:, None] < M) & (k[None, :] < K)
        b_mask = (k[:, None] < K) & (n[None, :] < N)
        a = tl.load(a_ptr + m[:, None] * K + k[None, :], mask=a_mask, other=0.0)
        b = tl.load(b_ptr + k[:, None] * N + n[None, :], mask=b_mask, other=0.0)
        scale_a = tl.load(scale_a_ptr + m * parts + part, mask=m < M, other=0.0)
        # fault the first part's scales:
        #    scale_a = tl.load(scale_a_ptr + m * parts, mask=m < M, other=0.0)
        scale_b = tl.load(scale_b_ptr + part * tl.num_programs(1) + tl.program_id(1))
        # fault the table turned round:
        #    scale_b = tl.load(scale_b_ptr + tl.program_id(1) * parts + part)
        acc += tl.dot(a, b) * scale_a[:, None] * scale_b
        # fault a product without its scale: acc += tl.dot(a, b) * scale_a[:, None]
    mask = (m[:, None] < M) & (n[None, :] < N)
    tl.store(out_ptr + m[:, None] * N + n[None, :], acc, mask=mask)


@exhibit(
    {
        "the first part's scales": ("wrong values", "scale_a_ptr"),
        "the table turned round": ("wrong values", "scale_b_ptr"),
        "a product without its scale": ("wrong values",),
    }
)
def fp8_matmul_with_scales(dtype: torch.dtype) -> Launch:
    a, b = (normal(*shape, seed=shape[0]).to(torch.float8_e4m3fn) for shape in ((20, 72), (72, 24)))
    scale_a, scale_b = 1 + normal(20, 3).abs(), 1 + normal(3, 2, seed=1).abs()
    wide_a = a.double() * scale_a.repeat_interleave(32, 1)[:, :72]
    wide_b = b.double() * scale_b.repeat_interleave(32, 0)[:72].repeat_interleave(16, 1)[:, :24]
    args = (a, b, scale_a, scale_b, torch.empty(20, 24, dtype=dtype), 20, 24, 72)
    # Tensor cores sum products of float8 in fewer bits.
    bound = near(dtype, wide_a.abs() @ wide_b.abs(), 2.0**-12)
    return Launch(
        fp8_block_matmul_kernel, (2, 2), args, {"out_ptr": wide_a @ wide_b}, bound=bound,
        BLOCK=16, BLOCK_K=32,
    )  # fmt: skip


@triton.jit
def int4_matmul_kernel(a_ptr, packed_ptr, scale_ptr, zero_ptr, out_ptr, N, K, BLOCK: tl.constexpr):
    """Weights of 4 bits, eight a word along K; each column has a scale and a zero point."""
    m = tl.arange(0, BLOCK)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    scale = tl.load(scale_ptr + n, mask=n < N)
    zero = tl.load(zero_ptr + n, mask=n < N)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        a = tl.load(a_ptr + m[:, None] * K + k[None, :])
        words = tl.load(packed_ptr + (k[:, None] // 8) * N + n[None, :], mask=n[None, :] < N)
        bits = (words >> (k[:, None] % 8 * 4)) & 0xF
        # fault sign of the word kept: bits = words >> (k[:, None] % 8 * 4)
        # fault the byte's half: bits = (words >> (k[:, None] % 8 * 2)) & 0xF
        b = (bits - zero[None, :]).to(tl.float32) * scale[None, :]
        # fault zero point left out: b = bits.to(tl.float32) * scale[None, :]
        acc = tl.dot(a, b.to(a.dtype), acc, input_precision="ieee")
    tl.store(out_ptr + m[:, None] * N + n[None, :], acc, mask=n[None, :] < N)


@exhibit(
    {
        "sign of the word kept": ("wrong values",),
        "the byte's half": ("wrong values",),
        "zero point left out": ("wrong values",),
    },
    FLOATS,
)
def int4_matmul(dtype: torch.dtype) -> Launch:
    a, weights = normal(16, 32, dtype=dtype), integers(0, 16, 32, 24)
    zero, scale = integers(0, 16, 24, seed=1), 2.0 ** -integers(0, 4, 24, seed=2)
    shifts = 4 * torch.arange(8)[None, :, None]
    packed = (weights.view(4, 8, 24).long() << shifts).sum(1).to(torch.int32)
    wide = (weights - zero).double() * scale.double()
    args = (a, packed, scale.float(), zero, torch.empty(16, 24, dtype=dtype), 24, 32)
    right = {"out_ptr": a.double() @ wide}
    bound = product_bound(dtype, a, wide)
    return Launch(int4_matmul_kernel, (2,), args, right, bound=bound, BLOCK=16)
