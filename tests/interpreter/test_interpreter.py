"""The mended interpreter: every mend against an expectation that owes nothing to it."""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import gc
import linecache
import os
import subprocess
import sys
import threading
import types
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from triton_kernels import interpreter
from triton_kernels.interpreter import (
    Access,
    Dot,
    Launch,
    Observer,
    Program,
    assumptions,
    emulation,
    handles,
    launching,
)

INTERPRET_AT_IMPORT = os.environ.get("TRITON_INTERPRET") == "1"
TRITON = tuple(int(part) for part in triton.__version__.split(".")[:2])
HALF = tl.constexpr(0.5)


@pytest.fixture
def interpreted() -> Any:
    with interpreter.interpreting():
        yield


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


# ---- kernels ----


@triton.jit
def relu(x):
    return tl.where(x < 0, 0.0, x)


@triton.jit
def twice(x):
    return relu(x) * 2


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
def cast(x_ptr, out_ptr, n, RTZ: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    if RTZ:
        x = x.to(out_ptr.dtype.element_ty, fp_downcast_rounding="rtz")
    tl.store(out_ptr + offsets, x.to(out_ptr.dtype.element_ty), mask=mask)


def run_cast(x: torch.Tensor, dtype: torch.dtype, rtz: bool = False) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=dtype)
    cast[(triton.cdiv(x.numel(), 4096),)](x, out, x.numel(), RTZ=rtz, BLOCK=4096)
    return out


# ---- bfloat16, float16, float8 ----


@pytest.mark.parametrize(
    ("op", "reference"),
    [
        ("add", torch.add),
        ("sub", torch.sub),
        ("mul", torch.mul),
        ("div", torch.div),
        ("neg", lambda x, y: x * -1.0),
        ("abs", lambda x, y: x.abs()),
        ("where", lambda x, y: torch.where(x < y, x, y)),
        ("le", lambda x, y: (x <= y).int()),
        ("ne", lambda x, y: (x != y).int()),
        ("constant", lambda x, y: x + torch.tensor(1.01, dtype=torch.bfloat16)),
        ("half", lambda x, y: x * 0.5),
    ],
)
def test_bf16_arithmetic(interpreted: Any, op: str, reference: Any) -> None:
    x, y = pairs_bf16()
    want = reference(x, y)
    same(run_pointwise(op, x, y, want.dtype), want)


def test_bf16_minus(interpreted: Any) -> None:
    x = all_bf16()
    x = x[x != 0]  # Triton before 3.8 compiles -x to 0 - x, which gives +0 for +0
    same(run_pointwise("minus", x, x), -x)


def nearest(value: Fraction, mantissa: int, smallest: int, largest: Fraction) -> Fraction | float:
    """A rational number rounded to nearest even in a binary format; inf past the largest."""
    if value == 0:
        return Fraction(0)
    exponent = abs(value).numerator.bit_length() - abs(value).denominator.bit_length()
    if abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, smallest) - mantissa)
    out = round(value / unit) * unit  # Python rounds halves to even
    return out if abs(out) <= largest else float("inf") * (1 if out > 0 else -1)


BF16 = (7, -126, Fraction(2) ** 128 - Fraction(2) ** 120)
F16 = (10, -14, Fraction(65504))


def test_bf16_fma_rounds_once(interpreted: Any) -> None:
    x, y = pairs_bf16(8192)
    x[4096:6144] = 1 + 2.0**-7 * torch.randint(0, 128, (2048,))  # products near ties
    got = run_pointwise("fma", x, y)
    finite = x.isfinite() & y.isfinite() & (got != 0)
    for a, b, out in zip(x[finite].tolist(), y[finite].tolist(), got[finite].tolist(), strict=True):
        assert out == nearest(Fraction(a) * Fraction(b) + Fraction(a), *BF16)
    rest = ~(x.isfinite() & y.isfinite())
    same(got[rest], (x.double() * y.double() + x.double()).bfloat16()[rest])
    # Beyond 53 bits a float64 sum is a tie that the true value is not.
    one = torch.tensor([1.0 + 2.0**-4], dtype=torch.bfloat16)
    for tail in (2.0**-100, -(2.0**-100)):
        out = torch.empty(1, dtype=torch.bfloat16)
        z = torch.tensor([tail], dtype=torch.bfloat16)
        fma_3[(1,)](one, one * (1 + 2.0**-4), z, out, 1, BLOCK=1)
        exact = Fraction(one.item()) * Fraction((one * (1 + 2.0**-4)).item()) + Fraction(tail)
        assert out.item() == nearest(exact, *BF16)


@triton.jit
def fma_3(x_ptr, y_ptr, z_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    z = tl.load(z_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, tl.fma(x, y, z), mask=mask)


def hard_floats(bits: int) -> torch.Tensor:
    """Floats of every exponent, ties of bfloat16 and float16 and their neighbours, specials."""
    generator = np.random.default_rng(bits)
    whole, part = (np.uint32, np.float32) if bits == 32 else (np.uint64, np.float64)
    drawn = generator.integers(0, 2**bits, 40000, dtype=np.uint64).astype(whole)
    coarse = (16, 13) if bits == 32 else (45, 42)
    for i, cut in enumerate(coarse):
        piece = slice(10000 * i, 10000 * (i + 1))
        high = (drawn[piece] >> whole(cut)) << whole(cut) | whole(1 << (cut - 1))
        drawn[piece] = high + generator.integers(-1, 2, 10000).astype(whole)
    out = torch.from_numpy(drawn.view(part).copy())
    out[20000:30000] = torch.randn(10000, dtype=out.dtype) * 2.0 ** torch.randint(-30, 18, (10000,))
    inf = float("inf")
    out[-12:] = torch.tensor(
        [
            0.0,
            -0.0,
            inf,
            -inf,
            float("nan"),
            65504.0,
            65519.99,
            65520.0,
            3.4e38,
            -3.39e38,
            1e-40,
            6e-8,
        ]
    )
    return out


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_float32_rounds_to_nearest_even(interpreted: Any, dtype: torch.dtype) -> None:
    x = hard_floats(32)
    same(run_cast(x, dtype), x.to(dtype))
    one_nan = torch.tensor([0x7F800001, -0x7FFFFF], dtype=torch.int32).view(torch.float32)
    assert run_cast(one_nan, dtype).isnan().all()


@pytest.mark.parametrize(("dtype", "format"), [(torch.bfloat16, BF16), (torch.float16, F16)])
def test_float64_rounds_once(interpreted: Any, dtype: torch.dtype, format: Any) -> None:
    x = hard_floats(64)
    x = x[::7] * (1 + 2.0**-51)
    got = run_cast(x, dtype)
    for value, out in zip(x.tolist(), got.double().tolist(), strict=True):
        if np.isfinite(value):
            assert out == nearest(Fraction(value), *format), value
    assert torch.equal(got.isnan(), x.isnan())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.bfloat16])
def test_bf16_to_every_float(interpreted: Any, dtype: torch.dtype) -> None:
    same(run_cast(all_bf16(), dtype), all_bf16().to(dtype))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
def test_bf16_from_and_to_integers(interpreted: Any, dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    x = torch.randint(info.min, info.max, (4096,), dtype=dtype, generator=torch.manual_seed(2))
    if dtype == torch.int64:
        x[:2048] >>= torch.arange(2048) % 60
        x[0], x[1] = 2**62 + 2**54 + 1, -(2**62) - 2**54 - 1
    want = [float(nearest(Fraction(v), *BF16)) for v in x.tolist()]
    same(run_cast(x, torch.bfloat16), torch.tensor(want, dtype=torch.bfloat16))
    small = all_bf16()[all_bf16().abs() <= min(info.max, 2**62)]
    small = small[small >= info.min]
    same(run_cast(small, dtype), small.to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_towards_zero(interpreted: Any, dtype: torch.dtype) -> None:
    x = hard_floats(32)
    got = run_cast(x, dtype, rtz=True).float()
    finite = x.isfinite()
    assert (got[finite].abs() <= x[finite].abs()).all()
    largest = torch.finfo(dtype).max
    up = torch.nextafter(got.to(dtype), torch.sign(x).to(dtype) * float("inf")).float()
    inner = finite & (got.abs() < largest) & (got != 0)
    assert (up[inner].abs() > x[inner].abs()).all()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16])
def test_float8_casts(interpreted: Any, dtype: torch.dtype, source: torch.dtype) -> None:
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    same(run_cast(every, source), every.to(source))
    x = hard_floats(32).to(source)
    edge = every.float()[every.float().isfinite()]
    ties = (edge.sort().values[1:] + edge.sort().values[:-1]) / 2
    x = torch.cat([x, ties.to(source)])
    limit = torch.finfo(dtype).max  # the hardware conversion saturates, torch's does not
    want = x.float().clamp(-limit, limit).to(dtype)
    got = run_cast(x, dtype)
    assert torch.equal(got.float().isnan(), want.float().isnan())
    ok = ~x.isnan()
    assert torch.equal(got.view(torch.uint8)[ok], want.view(torch.uint8)[ok])


def test_float8_arithmetic_is_refused(interpreted: Any) -> None:
    x = torch.ones(4).to(torch.float8_e5m2)
    with pytest.raises(TypeError, match="cast to float32 first"):
        wrapping[(1,)](x, x, BLOCK=4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_minimum_maximum_clamp(interpreted: Any, dtype: torch.dtype) -> None:
    x, y = (t.to(dtype) for t in pairs_bf16())
    low = torch.where(x.isnan() | (y < x), y, x)  # torch.fmin takes a signalling NaN for more
    high = torch.where(x.isnan() | (y > x), y, x)
    both = (x == 0) & (y == 0)  # -0 < +0
    low = torch.where(both, -(-x - y), low)
    high = torch.where(both, x + y, high)
    nan = x.isnan() | y.isnan()
    same(run_pointwise("min", x, y), low)
    same(run_pointwise("max", x, y), high)
    same(run_pointwise("min_nan", x, y), low.masked_fill(nan, float("nan")))
    same(run_pointwise("max_nan", x, y), high.masked_fill(nan, float("nan")))
    same(run_pointwise("clamp_nan", x, y), x.clamp(-1, 1))
    same(run_pointwise("clamp", x, y), x.clamp(-1, 1).masked_fill(x.isnan(), -1))


# ---- fused multiply-add ----


def hard_fma_cases(dtype: Any, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Operands near ties, cancellations, subnormal and overflowing results, specials."""
    generator = np.random.default_rng(3)
    bits = np.dtype(dtype).itemsize * 8
    unsigned = np.dtype(f"u{bits // 8}").type
    info = np.finfo(dtype)

    def any_bits(n: int) -> np.ndarray:
        return generator.integers(0, 2**bits, n, dtype=np.uint64).astype(unsigned).view(dtype)

    def ordinary(n: int, spread: int = 12) -> np.ndarray:
        scale = generator.integers(-spread, spread, n)
        return np.ldexp(generator.standard_normal(n), scale).astype(dtype)

    quarter = count // 5
    with np.errstate(all="ignore"):
        x, y, z = any_bits(count), any_bits(count), any_bits(count)
        # cancellation: z = -x*y but for the last bits
        a = slice(0, quarter)
        x[a], y[a] = ordinary(quarter), ordinary(quarter)
        z[a] = -(x[a] * y[a]) * (1 + generator.integers(-2, 3, quarter) * info.eps).astype(dtype)
        # near ties: z carries few bits, x*y falls just beside half a unit in its last place
        b = slice(quarter, 2 * quarter)
        z[b] = ordinary(quarter)
        y[b] = 1 + generator.integers(-3, 4, quarter) * info.eps
        x[b] = np.spacing(z[b]) / 2 * generator.choice([1, -1, 1 + info.eps, 1 - info.eps], quarter)
        # subnormal results
        c = slice(2 * quarter, 3 * quarter)
        small = info.minexp // 2
        x[c], y[c] = np.ldexp(ordinary(quarter, 3), small), np.ldexp(ordinary(quarter, 3), small)
        z[c] = generator.integers(-9, 10, quarter).astype(dtype) * info.smallest_subnormal
        # overflow, and products that overflow before z brings them back
        d = slice(3 * quarter, 4 * quarter)
        big = info.maxexp // 2
        x[d] = np.ldexp(1 + generator.random(quarter), big - 1)
        y[d] = np.ldexp(1 + generator.random(quarter), big - 1)
        z[d] = -info.max * generator.random(quarter).astype(dtype)
        special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, info.max, info.tiny], dtype)
        grid = np.array(np.meshgrid(special, special, special)).reshape(3, -1)
        x[-grid.shape[1] :], y[-grid.shape[1] :], z[-grid.shape[1] :] = grid
    return x, y, z


@pytest.mark.parametrize(
    ("dtype", "name", "count"), [(np.float32, "fmaf", 1_000_000), (np.float64, "fma", 300_000)]
)
def test_fma_against_libm(interpreted: Any, dtype: Any, name: str, count: int) -> None:
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    function = getattr(libm, name)
    kind = ctypes.c_float if dtype == np.float32 else ctypes.c_double
    function.restype, function.argtypes = kind, [kind] * 3
    x, y, z = hard_fma_cases(dtype, count)
    want = np.fromiter(map(function, x.tolist(), y.tolist(), z.tolist()), dtype, count)
    same(torch.from_numpy(emulation.fma(x, y, z)), torch.from_numpy(want))
    few = [torch.from_numpy(v[::41].copy()) for v in (x, y, z)]
    out = torch.empty_like(few[0])
    fma_3[(triton.cdiv(out.numel(), 8192),)](*few, out, out.numel(), BLOCK=8192)
    same(out, torch.from_numpy(want[::41].copy()))


def test_fma_float16(interpreted: Any) -> None:
    x, y, z = (torch.from_numpy(v) for v in hard_fma_cases(np.float16, 20000))
    out = torch.empty_like(x)
    fma_3[(5,)](x, y, z, out, 20000, BLOCK=4096)
    for a, b, c, got in zip(x.tolist(), y.tolist(), z.tolist(), out.tolist(), strict=True):
        if np.isfinite([a, b, c]).all():
            assert got == nearest(Fraction(a) * Fraction(b) + Fraction(c), *F16)
        else:
            with np.errstate(invalid="ignore"):
                want = np.float64(a) * b + c
            assert got == want or (np.isnan(got) and np.isnan(want))


# ---- reductions and scans ----


@triton.jit
def larger_magnitude(a, b):
    return tl.where(tl.abs(a) > tl.abs(b), a, b)


@triton.jit
def affine(a1, b1, a2, b2):  # composition of x -> a*x + b: associative, not commutative
    return a1 * a2, b1 * a2 + b2


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_reductions(interpreted: Any, dtype: torch.dtype) -> None:
    m, n = 8, 32
    x = torch.randint(-64, 64, (m, n), generator=torch.manual_seed(4)).to(dtype)
    x[:, 0] = torch.tensor([1000.0, 3, 5, 7, 9, 11, 13, 15])
    out, index = torch.empty(5 * m + n, dtype=dtype), torch.empty(2 * m, dtype=torch.int32)
    reductions[(1,)](x, out, index, M=m, N=n)
    exact = x.double()
    same(out[:m], exact.sum(1).to(dtype))
    same(out[m : 2 * m], x.max(1).values)
    same(out[2 * m : 3 * m], x.min(1).values)
    magnitude = out[3 * m : 4 * m]
    assert torch.equal(magnitude.abs(), x.abs().max(1).values)
    same(out[4 * m : 4 * m + 1], exact.sum().to(dtype)[None])
    same(out[5 * m :], exact.sum(0).to(dtype))
    assert index[:m].tolist() == [int((r == r.max()).nonzero()[0]) for r in x]
    assert index[m:].tolist() == [int((r == r.min()).nonzero()[0]) for r in x]


@triton.jit
def scans(x_ptr, out_ptr, a_ptr, N: tl.constexpr, REVERSE: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, tl.cumsum(x, axis=0, reverse=REVERSE))
    a, b = tl.associative_scan((x * 0 + 2, x), 0, affine, reverse=REVERSE)
    tl.store(out_ptr + N + i, b)
    tl.store(a_ptr + i, a)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_scans(interpreted: Any, dtype: torch.dtype, reverse: bool) -> None:
    x = torch.tensor([1, -1, 2, 0, -3, 1, 1, 2], dtype=dtype)
    out, factor = torch.empty(16, dtype=dtype), torch.empty(8, dtype=dtype)
    scans[(1,)](x, out, factor, N=8, REVERSE=reverse)
    order = x.flip(0) if reverse else x
    sums, steps, carry = order.double().cumsum(0).to(dtype), [], 0.0
    for i, value in enumerate(order.tolist()):
        carry = carry * 2 + value if i else value
        steps.append(carry)
    affine_sums = torch.tensor(steps, dtype=dtype)
    powers = (2.0 ** torch.arange(1, 9)).to(dtype)
    if reverse:
        sums, affine_sums, powers = sums.flip(0), affine_sums.flip(0), powers.flip(0)
    same(out[:8], sums)
    same(out[8:], affine_sums)
    same(factor, powers)


# ---- dot ----


@triton.jit
def dot(a_ptr, b_ptr, c_ptr, PRECISION: tl.constexpr, OUT: tl.constexpr, S: tl.constexpr):
    i, j = tl.arange(0, S)[:, None], tl.arange(0, S)[None, :]
    a, b = tl.load(a_ptr + i * S + j), tl.load(b_ptr + i * S + j)
    acc = tl.load(c_ptr + i * S + j)
    acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=OUT)
    tl.store(c_ptr + i * S + j, acc)


def run_dot(a: Any, b: Any, c: Any, precision: str = "ieee", out: Any = tl.float32) -> Any:
    dot[(1,)](a, b, c, PRECISION=precision, OUT=out, S=a.shape[0])
    return c


@pytest.mark.parametrize(
    ("dtype", "acc", "out"),
    [
        (torch.bfloat16, torch.float32, tl.float32),
        (torch.float16, torch.float32, tl.float32),
        (torch.float16, torch.float16, tl.float16),
        (torch.float32, torch.float32, tl.float32),
        (torch.float64, torch.float64, tl.float64),
        (torch.int8, torch.int32, tl.int32),
    ],
)
def test_dot_lattice(interpreted: Any, dtype: Any, acc: Any, out: Any) -> None:
    """Integers whose sums are exact: any order of accumulation gives the same bits."""
    generator = torch.manual_seed(5)
    a, b = (torch.randint(-100, 100, (32, 32), generator=generator).to(dtype) for _ in "ab")
    c = torch.randint(-1000, 1000, (32, 32), generator=generator).to(acc)
    want = (a.double() @ b.double() + c.double()).to(acc)
    same(run_dot(a, b, c, out=out), want)


def test_dot_ieee_is_float32_grade(interpreted: Any) -> None:
    a, b = torch.randn(2, 64, 64, generator=torch.manual_seed(6))
    got = run_dot(a, b, torch.zeros(64, 64))
    bound = 64 * 2.0**-24 * (a.double().abs() @ b.double().abs())
    assert ((got.double() - a.double() @ b.double()).abs() <= bound).all()


def dyadic(x: torch.Tensor, bits: int, nearest_away: bool = False) -> torch.Tensor:
    """x cut (or rounded, ties away) to `bits` mantissa bits, in float64 arithmetic."""
    mantissa, exponent = torch.frexp(x.double())
    scaled = mantissa * 2.0 ** (bits + 1)
    whole = (scaled.abs() + 0.5).floor() * scaled.sign() if nearest_away else scaled.trunc()
    return torch.ldexp(whole, exponent - bits - 1)


def selecting(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x as a matrix, and the identity: every product is one exact term."""
    return x.reshape(32, 32).contiguous(), torch.eye(32)


def test_dot_tf32_truncates(interpreted: Any) -> None:
    x = torch.randn(1024, generator=torch.manual_seed(7)) * 2.0 ** torch.arange(-100, 100).repeat(6)[:1024]  # fmt: skip # noqa: E501
    a, eye = selecting(x)
    for left, right in ((a, eye), (eye, a)):
        got = run_dot(left, right, torch.zeros(32, 32), "tf32")
        same(got, dyadic(a, 10).float())
    a[0, 0], a[1, 1] = float("inf"), torch.tensor(0x7F800001, dtype=torch.int32).view(torch.float32)
    got = run_dot(torch.diag(torch.diag(a)), torch.full((32, 32), 1.0), torch.zeros(32, 32), "tf32")
    assert got[0].isinf().all()
    assert got[1].isnan().all()


def test_dot_tf32x3_follows_the_compiler(interpreted: Any) -> None:
    a, eye = selecting(torch.randn(1024, generator=torch.manual_seed(8)))
    big = dyadic(a, 10, nearest_away=True)
    small = dyadic(a.double() - big, 10)
    got = run_dot(a, eye, torch.zeros(32, 32), "tf32x3")
    same(got, (big + small).float())
    a, b = torch.randn(2, 64, 64, generator=torch.manual_seed(9))
    exact = a.double() @ b.double()
    error = {}
    for precision in ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6"):
        got = run_dot(a, b, torch.zeros(64, 64), precision)
        error[precision] = (got.double() - exact).abs().max().item()
    assert max(error["ieee"], error["tf32x3"], error["bf16x6"]) < 2e-5
    assert 1e-3 < error["tf32"] < 0.2
    assert 1e-5 < error["bf16x3"] < 1e-3
    a[0, 0] = float("inf")  # inf - inf in the small part must not reach the result
    assert run_dot(a, b.abs(), torch.zeros(64, 64), "tf32x3")[0].isinf().all()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_dot_float8(interpreted: Any, dtype: torch.dtype) -> None:
    a, b = (torch.randint(-8, 8, (32, 32)).float().to(dtype) for _ in "ab")
    got = run_dot(a, b, torch.zeros(32, 32))
    same(got, (a.double() @ b.double()).float())


# ---- libdevice, tl.math, assembly ----


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
            "ex2.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    tl.store(out_ptr + offsets, out)


REFERENCES: dict[str, Any] = {
    "rint": torch.round,
    "fast_expf": torch.exp,
    "fast_tanhf": torch.tanh,
    "pow": lambda x: x**3,
    "fma": lambda x: x * x - x,
    "isnan": lambda x: x.isnan().double(),
    "isinf": lambda x: x.isinf().double(),
    "tl.exp": torch.exp,
    "tl.erf": torch.erf,
    "tl.rsqrt": torch.rsqrt,
    "tl.sigmoid": torch.sigmoid,
    "asm": torch.tanh,
}
PLAIN = ("tanh", "erf", "exp", "exp2", "expm1", "log", "log1p", "sqrt", "rsqrt", "sin", "cos")
PLAIN += ("floor", "ceil", "trunc")


# Assembly is float32; float64 fma is tested against libm.
IN_FLOAT64 = [name for name in (*PLAIN, *REFERENCES) if name not in ("asm", "fma")]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float32) for name in (*PLAIN, *REFERENCES)]
    + [(name, torch.float64) for name in IN_FLOAT64],
)
def test_libdevice_and_math(interpreted: Any, name: str, dtype: torch.dtype) -> None:
    x = torch.linspace(-9, 9, 1024, dtype=dtype)
    inf = float("inf")
    x[:6] = torch.tensor([0.0, -0.0, inf, -inf, float("nan"), 0.5])
    out = torch.empty_like(x)
    call_libdevice[(1,)](x, out, NAME=name, BLOCK=1024)
    want = REFERENCES.get(name, getattr(torch, name.split(".")[-1], None))(x.double())
    assert torch.equal(out.isnan(), want.isnan())
    unit = torch.finfo(dtype).eps * want.abs().clamp_min(torch.finfo(dtype).tiny)
    close = (out == want) | want.isnan() | ((out.double() - want).abs() <= 4 * unit)
    if name == "tl.sigmoid":  # exp, add and divide each round
        close |= (out.double() - want).abs() <= 16 * unit
    assert close.all(), (name, x[~close], out[~close], want[~close])
    if name in ("fma", "floor", "ceil", "rint", "trunc", "sqrt") and dtype == torch.float32:
        same(out, want.float())


def test_libdevice_refuses_what_it_cannot(interpreted: Any) -> None:
    x = torch.ones(16)
    with pytest.raises(NotImplementedError, match="clz is not emulated"):
        call_libdevice[(1,)](x, x, NAME="clz", BLOCK=16)
    with pytest.raises(TypeError, match="tanh takes float32 or float64, got bf16"):
        call_libdevice[(1,)](x.bfloat16(), x.bfloat16(), NAME="tanh", BLOCK=16)
    with pytest.raises(NotImplementedError, match="only 'tanh"):
        call_libdevice[(1,)](x, x, NAME="asm?", BLOCK=16)


# ---- memory checks ----


@triton.jit
def copy(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)


@triton.jit
def copy_2d(x_ptr, out_ptr, M, N, stride_m, stride_n, BLOCK: tl.constexpr):
    i, j = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    mask = (i < M) & (j < N)
    x = tl.load(x_ptr + i * stride_m + j * stride_n, mask=mask, other=0.0)
    tl.store(out_ptr + i * BLOCK + j, x, mask=mask)


@triton.jit
def atomics(x_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.atomic_add(x_ptr + offsets, 1.0, mask=offsets < n)


@triton.jit
def both_ways(out_ptr, a, b):
    tl.store(out_ptr, a + b)
    tl.store(out_ptr + 1, a * b)


def test_integers_beyond_int32_are_64_bits_wide(interpreted: Any) -> None:
    out = torch.zeros(2, dtype=torch.int64)
    both_ways[(1,)](out, 3_000_000_000, 2_500_000_000)
    assert out.tolist() == [5_500_000_000, 7_500_000_000_000_000_000]


@triton.jit
def either(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    pointers = tl.where(offsets % 2 == 0, x_ptr + offsets, y_ptr + offsets)
    tl.store(out_ptr + offsets, tl.load(pointers, mask=offsets < n, other=0), mask=offsets < n)


def test_bounds_name_the_argument(interpreted: Any) -> None:
    buffer = torch.zeros(4096)  # neighbours in one storage: the pointer's own tensor counts
    x, out = buffer[:100], buffer[128:256]
    copy[(2,)](x, out, 100, BLOCK=64)
    with pytest.raises(IndexError) as caught:
        copy[(2,)](x, out, 128, BLOCK=64)
    text = str(caught.value)
    for part in ("load through x_ptr", "program (1, 0, 0)", "28 of 64 active lanes", "lane [36]",
                 "element offset 100 of x_ptr", "shape (100,)", "strides (1,)", "float32",
                 "test_interpreter.py:", "in copy"):  # fmt: skip
        assert part in text, text
    with pytest.raises(IndexError, match=r"store through out_ptr in program .*offset 99 of"):
        copy[(2,)](x, out[:99], 100, BLOCK=64)
    with pytest.raises(IndexError, match="atomic through x_ptr"):
        atomics[(1,)](x[:60], 61, BLOCK=64)
    atomics[(1,)](x[:60], 60, BLOCK=64)
    with pytest.raises(IndexError, match=r"offset 0 of x_ptr"):
        copy[(1,)](x[:0], out, 1, BLOCK=64)


def test_bounds_of_strided_views(interpreted: Any) -> None:
    base = torch.arange(12.0 * 16).reshape(12, 16)
    out = torch.zeros(16, 16)
    view = base[:6, 2:7]
    copy_2d[(1,)](view, out, 6, 5, *view.stride(), BLOCK=16)
    same(out[:6, :5], view)
    with pytest.raises(IndexError) as caught:
        copy_2d[(1,)](view, out, 6, 6, *view.stride(), BLOCK=16)
    for part in ("offset 5 of x_ptr", "would be [0, 5]", "between the elements", "lane [0, 5]"):
        assert part in str(caught.value)
    with pytest.raises(IndexError, match=r"offset 96 of x_ptr, which would be \[6, 0\]"):
        copy_2d[(1,)](view, out, 7, 5, *view.stride(), BLOCK=16)
    copy_2d[(1,)](base.t(), out, 12, 12, *base.t().stride(), BLOCK=16)  # dense: no gaps
    same(out[:12, :12], base.t()[:12])
    wide = torch.ones(3, 1).expand(3, 5)
    copy_2d[(1,)](wide, out, 3, 5, *wide.stride(), BLOCK=16)
    with pytest.raises(IndexError, match="x_ptr"):
        copy_2d[(1,)](wide, out, 4, 5, *wide.stride(), BLOCK=16)
    windows = torch.arange(20.0).unfold(0, 4, 1)  # overlapping elements
    copy_2d[(1,)](windows, out, 16, 4, *windows.stride(), BLOCK=16)
    same(out[:16, :4], windows[:16])


@triton.jit
def block_pointers(x_ptr, out_ptr, M, N, stride, BLOCK: tl.constexpr):
    x = tl.make_block_ptr(x_ptr, (M, N), (stride, 1), (0, 0), (BLOCK, BLOCK), (1, 0))
    out = tl.make_block_ptr(out_ptr, (M, N), (N, 1), (0, 0), (BLOCK, BLOCK), (1, 0))
    tl.store(out, tl.load(x, boundary_check=(0, 1)), boundary_check=(0, 1))


@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
@pytest.mark.skipif(TRITON >= (3, 9), reason="Triton 3.9 removed block pointers")
def test_bounds_of_block_pointers(interpreted: Any) -> None:
    x, out = torch.randn(10, 16)[:, :12], torch.zeros(10, 12)
    block_pointers[(1,)](x, out, 10, 12, 16, BLOCK=16)
    same(out, x.contiguous())
    with pytest.raises(IndexError, match=r"load through x_ptr.*would be \[10, 0\]"):
        block_pointers[(1,)](x, out, 11, 12, 16, BLOCK=16)


def test_pointers_of_two_arguments(interpreted: Any) -> None:
    x, y, out = torch.zeros(8), torch.ones(8), torch.empty(8)
    either[(1,)](x, y, out, 8, BLOCK=8)
    assert out.tolist() == [0, 1] * 4
    with pytest.raises(IndexError, match="out-of-bounds load in program"):
        either[(1,)](x[:2], y[:2], out, 8, BLOCK=8)


@triton.jit
def descriptor_copy(desc, out_ptr, R, C, M, N, BLOCK: tl.constexpr):
    made = tl.make_tensor_descriptor(
        out_ptr, shape=[M, N], strides=[N, 1], block_shape=[BLOCK, BLOCK]
    )
    made.store([R, C], desc.load([R, C]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensor_descriptors(interpreted: Any, dtype: torch.dtype) -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    x, out = torch.randn(24, 40).to(dtype), torch.zeros(24, 40, dtype=dtype)
    desc = TensorDescriptor(x, [24, 40], [40, 1], [16, 16])
    for r in (0, 16):
        for c in (0, 16, 32):
            descriptor_copy[(1,)](desc, out, r, c, 24, 40, BLOCK=16)
    same(out, x)
    with pytest.raises(IndexError, match=r"store through out_ptr.*would be \[24, 0\]"):
        descriptor_copy[(1,)](desc, out, 16, 0, 32, 40, BLOCK=16)
    lying = TensorDescriptor(x, [32, 40], [40, 1], [16, 16])
    with pytest.raises(IndexError, match="load through desc"):
        descriptor_copy[(1,)](lying, out, 16, 0, 24, 40, BLOCK=16)


@triton.jit
def masked_load(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n))


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int64]
)
def test_masked_lanes_are_poison(interpreted: Any, dtype: torch.dtype) -> None:
    x, out = torch.ones(8, dtype=dtype), torch.zeros(8, dtype=dtype)
    masked_load[(1,)](x, out, 5, BLOCK=8)
    assert (out[:5] == 1).all()
    if dtype.is_floating_point:
        assert out[5:].isnan().all()
    else:
        assert (out[5:] > torch.iinfo(dtype).max // 2).all()
        assert (out[5:] % 2 == 1).all()


@triton.jit
def one_masked_lane(x_ptr, out_ptr, n, OTHER: tl.constexpr):
    i = tl.arange(0, 1)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n, other=OTHER))
    tl.store(out_ptr + 1, tl.load(x_ptr, mask=n > 0, other=OTHER))
    tl.store(out_ptr + 2, tl.load(x_ptr, mask=n > 0))


def test_one_masked_lane_with_other_0_is_0(interpreted: Any) -> None:
    """A tensor of one 0 is false, so that Triton takes it for no other at all."""
    for other in (0.0, 3.0):
        x, out = torch.ones(1), torch.full((3,), 9.0)
        one_masked_lane[(1,)](x, out, 0, other)
        assert out[:2].tolist() == [other, other]
        assert out[2].isnan()


# ---- assertions, observers, launching ----


@triton.jit
def asserting(x_ptr, LIMIT: tl.constexpr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    tl.device_assert(x < LIMIT, "x is too large", mask=x > -5)


def test_device_assert(interpreted: Any) -> None:
    x = torch.arange(32.0)
    asserting[(2,)](x, LIMIT=32, BLOCK=16)
    with pytest.raises(AssertionError) as caught:
        asserting[(2,)](x, LIMIT=30, BLOCK=16)
    for part in ("x is too large", "program (1, 0, 0)", "2 of 16", "test_interpreter.py:"):
        assert part in str(caught.value)
    asserting[(1,)](x - 100, LIMIT=-200, BLOCK=16)


class Recorder(Observer):
    """Keeps all it is told; runs only the programs of ``only``, if given."""

    def __init__(self, only: tuple[int, ...] = ()) -> None:
        self.only = only
        self.launches: list[Launch] = []
        self.accesses: list[Access] = []
        self.dots: list[Dot] = []

    def launch(self, launch: Launch) -> None:
        self.launches.append(launch)

    def wants(self, program: Program) -> bool:
        return not self.only or program[0] in self.only

    def access(self, access: Access) -> None:
        self.accesses.append(access)

    def dot(self, dot: Dot) -> None:
        self.dots.append(dot)

    def brief(self) -> list[tuple[str, str, Program]]:
        return [(a.verb, a.argument.name if a.argument else "", a.program) for a in self.accesses]


def test_observer_sees_every_access() -> None:
    x, out = torch.arange(100, dtype=torch.bfloat16), torch.empty(100, dtype=torch.bfloat16)
    recorder, inner = Recorder(), Recorder()
    with interpreter.interpreting(recorder):
        with interpreter.interpreting():  # keeps the outer observer
            copy[(2,)](x, out, 100, BLOCK=64)
        with interpreter.interpreting(inner):
            copy[(2,)](x, out, 100, BLOCK=64)
        atomics[(1,)](torch.zeros(8), 5, BLOCK=8)
    both = [
        *(("load", "x_ptr", (0, 0, 0)), ("store", "out_ptr", (0, 0, 0))),
        *(("load", "x_ptr", (1, 0, 0)), ("store", "out_ptr", (1, 0, 0))),
    ]
    assert inner.brief() == both
    assert recorder.brief() == [*both, ("atomic", "x_ptr", (0, 0, 0))]
    assert [(x.kernel, x.grid) for x in recorder.launches] == [
        ("copy", (2, 1, 1)),
        ("atomics", (1, 1, 1)),
    ]
    assert [a.name for a in recorder.launches[0].arguments] == ["x_ptr", "out_ptr"]
    assert recorder.accesses[4].operation == "fadd"
    loaded, stored = recorder.accesses[2:4]
    assert (stored.pointers.dtype, stored.mask.dtype, stored.mask.sum()) == (
        np.uint64,
        np.bool_,
        36,
    )
    assert stored.argument is not None
    assert stored.argument.elements(stored.pointers[stored.mask]).tolist() == list(range(64, 100))
    same(emulated_bf16(stored.values[stored.mask]), x[64:])
    for access in (loaded, stored):  # a load is told with what it read, bits and numbers
        assert access.dtype == "bf16"
        assert access.numbers[access.mask].tolist() == list(range(64, 100))
    assert (stored.place.file, stored.place.function) == (__file__, "copy")
    assert "tl.store" in linecache.getline(__file__, stored.place.line)


def test_observer_is_told_before_memory_changes() -> None:
    class Reader(Observer):
        seen: list[float] = []  # noqa: RUF012

        def access(self, access: Access) -> None:
            if access.verb == "store":
                self.seen.append(access.argument.tensor[0].item())

    out = torch.full((8,), 7.0)
    with interpreter.interpreting(Reader()):
        copy[(1,)](torch.ones(8), out, 8, BLOCK=8)
    assert Reader.seen == [7.0]
    assert out[0] == 1


def test_observer_chooses_programs() -> None:
    x, out = torch.arange(100.0), torch.zeros(100)
    with interpreter.interpreting(Recorder(only=(1,))):
        copy[(4,)](x, out, 100, BLOCK=32)
    assert out.nonzero().flatten().tolist() == list(range(32, 64))


def test_observer_sees_dots() -> None:
    a, b = torch.randn(16, 16), torch.randn(16, 16)
    out, recorder = torch.empty(16, 16), Recorder()
    with interpreter.interpreting(recorder):
        dot_once[(1,)](a, b, out)
    (dot,) = recorder.dots
    assert (dot.precision, dot.program) == ("ieee", (0, 0, 0))
    assert "tl.dot" in linecache.getline(__file__, dot.place.line)
    for got, want in ((dot.a, a), (dot.b, b), (dot.result, out), (dot.c, torch.zeros(16, 16))):
        same(torch.from_numpy(got), want)


@triton.jit
def dot_once(a_ptr, b_ptr, out_ptr):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    out = tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at), input_precision="ieee")
    tl.store(out_ptr + at, out)


def test_an_error_is_laid_to_the_kernels_line(interpreted: Any) -> None:
    with pytest.raises(IndexError) as caught:
        copy[(1,)](torch.ones(4), torch.ones(8), 8, BLOCK=8)
    place = interpreter.place_of(caught.value)
    assert (place.file, place.function) == (__file__, "copy")
    assert "tl.load" in linecache.getline(__file__, place.line)
    assert interpreter.place_of(ValueError("never raised")) is None


def emulated_bf16(bits: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(bits.view(np.int16).copy()).view(torch.bfloat16)


@triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0})
@triton.jit
def with_heuristics(out_ptr, n, EVEN: tl.constexpr):
    tl.store(out_ptr, EVEN)


@triton.autotune([triton.Config({"BLOCK": 8}), triton.Config({"BLOCK": 16})], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0})
@triton.jit
def autotuned(out_ptr, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    tl.atomic_add(out_ptr, BLOCK + EVEN)


@triton.jit
def language(x_ptr, out_ptr, n, pair, alpha, ACT: tl.constexpr, STEPS: tl.constexpr):
    total = 0.0
    for i in range(n):  # run-time bound: numpy >= 2.4 breaks this in Triton 3.6
        total += tl.load(x_ptr + i)
    for i in tl.range(0, n, num_stages=2):
        total += tl.load(x_ptr + i)
    for i in tl.static_range(STEPS):
        total += i
    i = 0
    while i < n:
        i += 1
    first, second = pair
    total = ACT(total * alpha) + first * second + tl.cdiv(n, 2) + i * HALF
    tl.store(out_ptr, total)


@triton.jit
def scalars(out_ptr, plain, wide: tl.float64, flag, count: tl.int64):
    tl.static_assert(plain.dtype == tl.float32)
    tl.static_assert(wide.dtype == tl.float64)
    tl.static_assert(flag.dtype == tl.int1 and count.dtype == tl.int64)
    if flag:
        tl.store(out_ptr, plain)
        tl.store(out_ptr + 1, wide)
        tl.store(out_ptr + 2, wide + count)


def test_language(interpreted: Any) -> None:
    x, out = torch.ones(5), torch.zeros(1)
    language[(1,)](x, out, 5, (2, 3), 0.5, ACT=twice, STEPS=3)
    assert out.item() == 2 * (13 * 0.5) + 6 + 3 + 2.5
    with_heuristics[(1,)](out, 4)
    assert out.item() == 1
    autotuned[lambda meta: (32 // meta["BLOCK"],)](out, 4)
    assert out.item() == 1 + 4 * 9
    numbers = torch.zeros(3, dtype=torch.float64)
    scalars[(1,)](numbers, 0.1, 0.1, True, 2)
    assert numbers.tolist() == [float(np.float32(0.1)), 0.1, 2.1]


@triton.jit
def wrapping(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, x * x + x)


@triton.jit
def logic(out_ptr, n, FLAG: tl.constexpr, NOTHING: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    out = tl.where(i > 1 and i < n, 1, 0) + tl.where(i < 2 or i > 5, 2, 0)
    out += tl.where(not (i < 4), 4, 0) + tl.where(i > 6 and FLAG, 8, 0)
    if NOTHING is not None and NOTHING.gone:
        out += 16
    if FLAG and not NOTHING:
        out += 32
    tl.store(out_ptr + i, out)


def test_and_or_not_of_tensors(interpreted: Any) -> None:
    """Element by element, as compiled; Python's own `and` would return its second operand."""
    out = torch.empty(8, dtype=torch.int32)
    logic[(1,)](out, 6, FLAG=True, NOTHING=None, BLOCK=8)
    want = [(1 < i < 6) + 2 * (i < 2 or i > 5) + 4 * (i >= 4) + 8 * (i > 6) + 32 for i in range(8)]
    assert out.tolist() == want


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.float32])
def test_no_warnings_and_wrapping(interpreted: Any, dtype: torch.dtype) -> None:
    big = torch.iinfo(dtype).max if not dtype.is_floating_point else 3e38
    x = torch.tensor([big, 1, 2, 3], dtype=dtype)
    out = torch.empty_like(x)
    wrapping[(1,)](x, out, BLOCK=4)
    same(out, x * x + x)
    if dtype.is_floating_point:
        run_pointwise("div", x, x * 0)
        run_pointwise("sub", x / 0, x / 0)


def test_views_of_one_storage_and_in_place(interpreted: Any) -> None:
    storage = torch.arange(64.0)
    copy[(1,)](storage[:32], storage[32:], 32, BLOCK=32)
    assert torch.equal(storage[32:], torch.arange(32.0))
    run_in_place = storage[8:16]
    wrapping[(1,)](run_in_place, run_in_place, BLOCK=8)
    assert storage[9].item() == 90


def test_no_torch_operation_runs(interpreted: Any) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    calls = []

    class Spy(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            calls.append(str(func))
            return func(*args, **(kwargs or {}))

    x, out = torch.ones(64), torch.empty(64)
    with Spy():
        copy[(1,)](x, out, 64, BLOCK=64)
    assert calls == []


def test_tensors_of_another_device(monkeypatch: Any, interpreted: Any) -> None:
    """The way of CUDA tensors, to the host and back, walked with CPU tensors."""
    elsewhere = [types.SimpleNamespace(device=torch.device("cuda"))]
    monkeypatch.setattr(launching, "_tensors", lambda values: elsewhere)
    base = torch.arange(200.0)
    x, out = base[:100], torch.zeros(100)
    copy[(2,)](x, out, 100, BLOCK=64)
    same(out, x)
    with pytest.raises(IndexError, match="offset 100 of x_ptr"):
        copy[(2,)](x, out, 128, BLOCK=64)


def test_any_exception_names_the_program(interpreted: Any) -> None:
    with pytest.raises(TypeError) as caught:
        call_libdevice[(1,)](torch.ones(16).half(), torch.ones(16), NAME="exp", BLOCK=16)
    assert caught.value.__notes__ == ["in program (0, 0, 0) of kernel call_libdevice"]


def test_made_interpreted() -> None:
    for kernel in (copy, with_heuristics, autotuned):
        assert interpreter.made_interpreted(kernel) is INTERPRET_AT_IMPORT


# ---- the context itself ----


def language_state() -> dict[Any, Any]:
    spaces = (
        *(tl, tl.core, tl.math, tl.standard, tl.tensor, tl.dtype, tl.core.tensor_descriptor_base),
        *(libdevice, sys.modules["triton.language.extra.cuda.libdevice"]),
        *(triton.runtime.jit, triton.runtime.JITFunction, triton.runtime.Autotuner),
        *(
            handles.upstream,
            handles.upstream.InterpretedFunction,
            handles.upstream.FunctionRewriter,
        ),
        handles.upstream.interpreter_builder,
    )
    return {(str(s), k): v for s in spaces for k, v in vars(s).items()}


def test_nothing_is_left_behind() -> None:
    with interpreter.interpreting():  # first rewriting of helpers adds two names to their modules
        test_language(None)
    before, kind = language_state(), type(handles.upstream.interpreter_builder)
    names = set(globals())
    with interpreter.interpreting():
        test_language(None)
        with pytest.raises(IndexError):
            copy[(2,)](torch.zeros(8), torch.zeros(8), 128, BLOCK=64)
    after = language_state()
    assert type(handles.upstream.interpreter_builder) is kind
    assert before.keys() == after.keys()
    assert [key for key, value in before.items() if value is not after[key]] == []
    assert set(globals()) == names
    assert not {"np", "ast", "textwrap", "T"} & set(vars(tl.standard))


def test_active_and_threads() -> None:
    order: list[str] = []

    def other() -> None:
        order.append(f"active {interpreter.active()}")
        with interpreter.interpreting():
            order.append("other in")

    assert not interpreter.active()
    with interpreter.interpreting():
        with interpreter.interpreting():
            assert interpreter.active()
        assert interpreter.active()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()  # waits for us
        order.append("first out")
    thread.join(10)
    assert order == ["active False", "first out", "other in"]
    assert not interpreter.active()


def test_an_exception_leaves_cleanly() -> None:
    before = tl.load
    with pytest.raises(ZeroDivisionError), interpreter.interpreting():
        raise ZeroDivisionError
    assert tl.load is before
    assert not interpreter.active()


@contextlib.contextmanager
def fake_driver(capability: int) -> Any:
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    class FakeDriver(DriverBase):  # type: ignore[misc]
        def __init__(self) -> None:
            pass

        @classmethod
        def is_active(cls) -> bool:
            return True

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", capability, 32)

        def get_active_torch_device(self) -> torch.device:
            return torch.device("cpu")

        def get_current_device(self) -> int:
            return capability

        def get_current_stream(self, device: int) -> int:
            return 0

        def get_benchmarker(self) -> Any:
            raise RuntimeError("fake driver")

        def map_python_to_cpp_type(self, ty: str) -> str:
            return ty

    driver = triton.runtime.driver
    old = driver._active
    driver.set_active(FakeDriver())
    try:
        yield
    finally:
        driver._active = old


@pytest.mark.skipif(INTERPRET_AT_IMPORT, reason="TRITON_INTERPRET=1 kernels cannot be compiled")
def test_interpret_and_compile_in_turns(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    x, y = pairs_bf16(1024)

    def compiled() -> str:
        with fake_driver(80):
            return str(
                pointwise.warmup(x, y, x, 1024, OP="add", BLOCK=1024, grid=(1,)).asm["ptx"]
            ) + str(reductions.warmup(x, x, x, M=8, N=32, grid=(1,)).asm["ptx"])

    def run() -> None:
        with interpreter.interpreting():
            same(run_pointwise("add", x, y), x + y)

    first = compiled()
    run()
    pointwise.device_caches.clear()
    reductions.device_caches.clear()
    gc.collect()
    assert compiled() == first
    run()


def test_compiles_after_interpreting_first(tmp_path: Any) -> None:
    """In a new process: whatever Triton loads late must not have been loaded amid the mends."""
    program = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[2])!r}]
import torch, triton_kernels
from triton_kernels.activations import gelu
from triton_kernels.gemm import choice, kernels
a = torch.ones(64, 64)
with triton_kernels.interpret():
    assert float(triton_kernels.gemm_bias_act(a, a, act="gelu").sum()) == 64.0**3
operands = a, a, None, None, a, None
import test_interpreter, triton.language as tl
sizes = [64, 64, 64, 64, 1, 64, 1, 0, 0, 0, 64, 1, 1.0, 0.0]
options = dict(OP="gemm", ACT=gelu, C=tl.float32, PRECISION="ieee", grid=(1,))
tiles = choice.tiles_for(64, 64, torch.float32, "ieee")._asdict()
with test_interpreter.fake_driver(90):
    kernel = kernels.gemm_bias_act_kernel.warmup(*operands, *sizes, **options, **tiles)
print("compiled", len(kernel.asm["cubin"]))
"""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "compiled" in done.stdout, done.stderr[-2000:]


def test_self_test_holds() -> None:
    assert interpreter.self_test() == []


@pytest.mark.parametrize("name", ["_patch_lang", "TensorHandle"])
def test_a_missing_name_is_reported(monkeypatch: Any, name: str) -> None:
    monkeypatch.delattr(handles.upstream, name)
    assumptions.missing_names.cache_clear()
    try:
        assert interpreter.self_test() == [f"triton.runtime.interpreter.{name} is gone"]
        with pytest.raises(RuntimeError, match=f"{name} is gone"), interpreter.interpreting():
            pass
    finally:
        assumptions.missing_names.cache_clear()


def test_a_changed_method_is_reported(monkeypatch: Any) -> None:
    monkeypatch.delattr(handles.upstream.InterpreterBuilder, "create_fma")
    assert any("create_fma is gone" in sentence for sentence in interpreter.self_test())
    monkeypatch.undo()
    monkeypatch.setattr(handles.upstream.InterpreterBuilder, "create_dot", lambda self, a, b: None)
    assert any("create_dot takes" in sentence for sentence in interpreter.self_test())


@pytest.mark.skipif(INTERPRET_AT_IMPORT, reason="this is that run")
def test_with_triton_interpret_set() -> None:
    """Kernels imported under TRITON_INTERPRET=1 are InterpretedFunctions; all holds for them."""
    picked = "bf16_arithmetic or bounds or reductions or language or device_assert or lattice"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        [*command, "-k", picked],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout
