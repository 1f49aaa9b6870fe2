"""bfloat16, float16 and float8: every operation, cast and fma rounds as the GPU's does."""

from __future__ import annotations

import ctypes
import ctypes.util
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from small_kernels import all_bf16, pairs_bf16, run_pointwise, same, wrapping

from triton_kernels.interpreter import (
    emulation,
)


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
