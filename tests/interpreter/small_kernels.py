"""Kernels of a few lines that several tests of the interpreter launch, and what compares bits."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

HALF = tl.constexpr(0.5)


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal bits, any NaN for any NaN."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    wrong = got.view(bits) != want.view(bits)
    if got.dtype.is_floating_point:
        wrong &= ~(got.isnan() & want.isnan())
    if wrong.any():
        first = wrong.flatten().nonzero()[0].item()
        a, b = got.flatten()[first].item(), want.flatten()[first].item()
        raise AssertionError(f"{int(wrong.sum())} differ, first [{first}]: {a} for {b}")


def all_bf16() -> torch.Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def pairs_bf16(count: int = 4096) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs with every special value, subnormals and ordinary numbers of all exponents."""
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(0, 2**16, (2, count), generator=generator)
    x, y = all_bf16()[index]
    inf, nan = float("inf"), float("nan")
    special = torch.tensor([0.0, -0.0, inf, -inf, nan, 1.0, 2.0**-133], dtype=torch.bfloat16)
    x[:49], y[:49] = special.repeat(7), special.repeat_interleave(7)
    half = count // 2
    y[49:half] = x[49:half].flip(0)
    x[half:] = torch.randn(count - half, generator=generator)
    y[half:] = torch.randn(count - half, generator=generator)
    return x, y


@triton.jit
def pointwise(x_ptr, y_ptr, out_ptr, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0)
    y = tl.load(y_ptr + offsets, mask=mask, other=0)
    if OP == "add":
        out = x + y
    elif OP == "sub":
        out = x - y
    elif OP == "mul":
        out = x * y
    elif OP == "div":
        out = x / y
    elif OP == "neg":
        out = x * -1.0
    elif OP == "minus":
        out = -x
    elif OP == "abs":
        out = tl.abs(x)
    elif OP == "where":
        out = tl.where(x < y, x, y)
    elif OP == "le":
        out = (x <= y).to(tl.int32)
    elif OP == "ne":
        out = (x != y).to(tl.int32)
    elif OP == "max":
        out = tl.maximum(x, y)
    elif OP == "min":
        out = tl.minimum(x, y)
    elif OP == "max_nan":
        out = tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "min_nan":
        out = tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "clamp":
        out = tl.clamp(x, -1.0, 1.0)
    elif OP == "clamp_nan":
        out = tl.clamp(x, -1.0, 1.0, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "fma":
        out = tl.fma(x, y, x)
    elif OP == "constant":
        out = x + tl.full([BLOCK], 1.01, x.dtype)
    elif OP == "half":
        out = x * HALF
    tl.store(out_ptr + offsets, out, mask=mask)


def run_pointwise(op: str, x: torch.Tensor, y: torch.Tensor, dtype: Any = None) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=dtype or x.dtype)
    block = min(4096, triton.next_power_of_2(x.numel()))
    grid = (triton.cdiv(x.numel(), block),)
    pointwise[grid](x, y, out, x.numel(), OP=op, BLOCK=block)
    return out


@triton.jit
def larger_magnitude(a, b):
    return tl.where(tl.abs(a) > tl.abs(b), a, b)


@triton.jit
def reductions(x_ptr, out_ptr, index_ptr, M: tl.constexpr, N: tl.constexpr):
    rows, columns = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + rows[:, None] * N + columns[None, :])
    tl.store(out_ptr + rows, tl.sum(x, axis=1))
    tl.store(out_ptr + M + rows, tl.max(x, axis=1))
    tl.store(out_ptr + 2 * M + rows, tl.min(x, axis=1))
    tl.store(out_ptr + 3 * M + rows, tl.reduce(x, 1, larger_magnitude))
    tl.store(out_ptr + 4 * M, tl.sum(x))
    tl.store(index_ptr + rows, tl.argmax(x, axis=1))
    tl.store(index_ptr + M + rows, tl.argmin(x, axis=1))
    kept = tl.sum(x, axis=0, keep_dims=True)
    tl.static_assert(kept.shape[0] == 1)
    tl.store(out_ptr + 5 * M + tl.arange(0, 1)[:, None] + columns[None, :], kept)


@triton.jit
def dot(a_ptr, b_ptr, c_ptr, PRECISION: tl.constexpr, OUT: tl.constexpr, S: tl.constexpr):
    i, j = tl.arange(0, S)[:, None], tl.arange(0, S)[None, :]
    a, b = tl.load(a_ptr + i * S + j), tl.load(b_ptr + i * S + j)
    acc = tl.load(c_ptr + i * S + j)
    acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=OUT)
    tl.store(c_ptr + i * S + j, acc)


@triton.jit
def call_libdevice(x_ptr, out_ptr, NAME: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets)
    if NAME == "tanh":
        out = libdevice.tanh(x)
    elif NAME == "erf":
        out = libdevice.erf(x)
    elif NAME == "exp":
        out = libdevice.exp(x)
    elif NAME == "exp2":
        out = libdevice.exp2(x)
    elif NAME == "expm1":
        out = libdevice.expm1(x)
    elif NAME == "log":
        out = libdevice.log(x)
    elif NAME == "log1p":
        out = libdevice.log1p(x)
    elif NAME == "sqrt":
        out = libdevice.sqrt(x)
    elif NAME == "rsqrt":
        out = libdevice.rsqrt(x)
    elif NAME == "sin":
        out = libdevice.sin(x)
    elif NAME == "cos":
        out = libdevice.cos(x)
    elif NAME == "floor":
        out = libdevice.floor(x)
    elif NAME == "ceil":
        out = libdevice.ceil(x)
    elif NAME == "rint":
        out = libdevice.rint(x)
    elif NAME == "trunc":
        out = libdevice.trunc(x)
    elif NAME == "fast_expf":
        out = libdevice.fast_expf(x)
    elif NAME == "fast_tanhf":
        out = libdevice.fast_tanhf(x)
    elif NAME == "pow":
        out = libdevice.pow(x, 3.0)
    elif NAME == "fma":
        out = libdevice.fma(x, x, -x)
    elif NAME == "isnan":
        out = tl.where(libdevice.isnan(x), 1.0, 0.0).to(x.dtype)
    elif NAME == "isinf":
        out = tl.where(libdevice.isinf(x), 1.0, 0.0).to(x.dtype)
    elif NAME == "tl.exp":
        out = tl.exp(x)
    elif NAME == "tl.erf":
        out = tl.math.erf(x)
    elif NAME == "tl.rsqrt":
        out = tl.math.rsqrt(x)
    elif NAME == "tl.sigmoid":
        out = tl.sigmoid(x)
    elif NAME == "clz":
        out = libdevice.clz(x)
    elif NAME == "asm":
        out = tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    elif NAME == "asm?":
        out = tl.inline_asm_elementwise(
            "lop3.b32 $0, $1, $1, $1, 3;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    tl.store(out_ptr + offsets, out)


@triton.jit
def copy(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)


@triton.jit
def atomics(x_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.atomic_add(x_ptr + offsets, 1.0, mask=offsets < n)


@triton.jit
def wrapping(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, x * x + x)
