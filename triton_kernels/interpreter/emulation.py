"""GPU arithmetic in numpy that numpy lacks or rounds differently.

Everything works on plain arrays and is independent of Triton. bfloat16 and float8 values are
represented by their bits (uint16, uint8), as in the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]

_BF16_NAN = np.uint16(0x7FC0)
_F32_EXPONENT = np.uint32(0x7F800000)
_TF32_MASK = np.uint32(0xFFFFE000)


# ---- bfloat16 ----


def bf16_to_f32(bits: Array) -> Array:
    """The exact float32 values of bfloat16 bits."""
    return np.asarray(bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(x: Array) -> Array:
    """float32 to bfloat16 bits, to nearest even; overflow gives inf, NaN stays NaN."""
    x = np.asarray(x)
    bits = x.view(np.uint32)
    out = ((bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))) >> 16).astype(
        np.uint16
    )
    nan = x != x
    return np.where(nan, _BF16_NAN, out) if nan.any() else np.asarray(out)


def f64_to_f32_odd(x: Array) -> Array:
    """float64 to float32, rounded to odd, so that one more rounding gives the nearest value.

    Rounding to odd records in the last bit that the value was inexact. Two roundings to nearest
    would turn values close to a tie into ties.
    """
    near = x.astype(np.float32)
    back = near.astype(np.float64)
    bits = np.asarray(near).view(np.int32)
    even = (back != x) & (x == x) & ((bits & 1) == 0)
    if not even.any():
        return near
    step = np.where(np.abs(back) < np.abs(x), np.int32(1), np.int32(-1))
    return np.asarray(bits + np.where(even, step, np.int32(0))).view(np.float32)


def to_bf16(x: Array) -> Array:
    """Any numpy number to bfloat16 bits, with one rounding to nearest even."""
    x = np.asarray(x)
    if x.dtype == np.float32:
        return f32_to_bf16(x)
    if x.dtype == np.float16 or x.dtype.itemsize < 4 or x.dtype == np.bool_:
        return f32_to_bf16(x.astype(np.float32))
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8:
        # 64 bits do not fit into a float64: merge the last 11 into one sticky bit if necessary.
        low = x & x.dtype.type(0x7FF)
        sticky = (x >> x.dtype.type(11) | (low != 0).astype(x.dtype)) << x.dtype.type(11)
        x = np.where(np.abs(x.astype(np.float64)) >= 2.0**53, sticky, x)
    return f32_to_bf16(f64_to_f32_odd(x.astype(np.float64)))


# ---- float8 ----


class Float8:
    """A float8 format, given by its 128 non-negative values; saturates as `cvt.satfinite`."""

    def __init__(self, mantissa_bits: int, bias: int, largest: int, infinity: int | None) -> None:
        codes = np.arange(128)
        exponent, mantissa = codes >> mantissa_bits, codes & ((1 << mantissa_bits) - 1)
        fraction = mantissa / (1 << mantissa_bits) + (exponent > 0)
        values = fraction * 2.0 ** (np.maximum(exponent, 1) - bias)
        self.midpoints = (values[:largest] + values[1 : largest + 1]) / 2
        values[largest + 1 :] = np.nan
        if infinity is not None:
            values[infinity] = np.inf
        self.values = np.concatenate([values, -values]).astype(np.float32)

    def decode(self, codes: Array) -> Array:
        """The exact float32 values of float8 bits."""
        return np.asarray(self.values[codes])

    def encode(self, x: Array) -> Array:
        """Floats to float8 bits, to nearest even; overflow gives the largest finite value."""
        size = np.abs(x.astype(np.float64))
        code = np.searchsorted(self.midpoints, size)
        inner = np.minimum(code, len(self.midpoints) - 1)
        code = code + ((self.midpoints[inner] == size) & (code % 2 == 1))
        code = np.where(np.isnan(size), 0x7F, code)
        out: Array = (code | (np.signbit(x) * 0x80)).astype(np.uint8)
        return out


E4M3 = Float8(mantissa_bits=3, bias=7, largest=0x7E, infinity=None)
E5M2 = Float8(mantissa_bits=2, bias=15, largest=0x7B, infinity=0x7C)
FLOAT8 = {"fp8e4nv": E4M3, "fp8e5": E5M2}  # by Triton's names


def decoded(data: Array, dtype: str) -> Array:
    """The numbers in data of a Triton dtype, in a dtype with which numpy computes."""
    if dtype == "bf16":
        return bf16_to_f32(data)
    if dtype in FLOAT8:
        return FLOAT8[dtype].decode(data)
    if dtype.startswith("fp8"):
        raise NotImplementedError(f"{dtype} is not emulated in the interpreter")
    return data


# ---- fused multiply-add ----


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b rounded, and the exact rounding error."""
    total = a + b
    virtual = total - a
    return total, (a - (total - virtual)) + (b - virtual)


def _add_odd(a: Array, b: Array) -> Array:
    """a + b in float64, rounded to odd."""
    total, error = _two_sum(a, b)
    inexact = error != 0
    if not np.any(inexact):
        return total
    bits = np.asarray(total).view(np.int64)
    even = inexact & np.isfinite(total) & ((bits & 1) == 0)
    step = np.where((error > 0) == (total > 0), 1, -1)
    return np.asarray(bits + np.where(even, step, 0)).view(np.float64)


def _split(x: Array) -> tuple[Array, Array]:
    """A float64 as the sum of two 26-bit numbers (Veltkamp)."""
    scaled = x * 134217729.0
    high = scaled - (scaled - x)
    return high, x - high


def _fma_exact(x: float, y: float, z: float) -> float:
    """x*y + z of finite floats with rational numbers: slow, but correct at every exponent."""
    total = Fraction(x) * Fraction(y) + Fraction(z)
    try:
        return float(total)
    except OverflowError:
        return float("inf") if total > 0 else float("-inf")


def _fma_f64(x: Array, y: Array, z: Array) -> Array:
    """fma of float64 from error-free sums and products (Boldo and Melquiond)."""
    x, y, z = np.broadcast_arrays(x, y, z)
    product = x * y
    # Already correct if a factor is 0, infinite or NaN, because the product is exact then.
    plain = product + z
    x_size, y_size, z_size = np.abs(x), np.abs(y), np.abs(z)
    ordinary = (x_size < np.inf) & (y_size < np.inf) & (x_size > 0) & (y_size > 0)
    # With these exponents no step below overflows or underflows.
    safe = (np.minimum(x_size, y_size) > 2.0**-450) & (np.maximum(x_size, y_size) < 2.0**480)
    safe &= z_size < 2.0**990

    x_high, x_low = _split(x)
    y_high, y_low = _split(y)
    tail = x_low * y_low - (((product - x_high * y_high) - x_low * y_high) - x_high * y_low)
    sum_high, sum_low = _two_sum(z, tail)
    high, low = _two_sum(product, sum_high)
    out = np.where(safe, high + _add_odd(sum_low, low), plain)

    beyond = ordinary & ~(z_size < np.inf)
    out = np.where(beyond, z, out)
    for index in zip(*np.nonzero(ordinary & ~safe & ~beyond), strict=True):
        out[index] = _fma_exact(float(x[index]), float(y[index]), float(z[index]))
    return out


def fma(x: Array, y: Array, z: Array) -> Array:
    """x*y + z with one rounding, for float16, float32 or float64 arrays of one dtype."""
    with np.errstate(all="ignore"):
        if z.dtype == np.float64:
            return _fma_f64(x, y, z)
        product = np.multiply(x, y, dtype=np.float64)  # exact: 2 * 24 bits at most
        if z.dtype == np.float16:
            # The product has 22 bits, the addend 11: an inexact float64 sum is far from a tie of
            # float16.
            return (product + z).astype(np.float16)
        return _add_odd(product, z.astype(np.float64)).astype(np.float32)


def fma_bf16(x: Array, y: Array, z: Array) -> Array:
    """x*y + z of bfloat16 bits with one rounding."""
    wide = [bf16_to_f32(v).astype(np.float64) for v in (x, y, z)]
    with np.errstate(all="ignore"):
        return to_bf16(_add_odd(wide[0] * wide[1], wide[2]))


# ---- minimum and maximum ----


def extremum(x: Array, y: Array, largest: bool, propagate_nan: bool) -> Array:
    """The larger (or smaller) of two float arrays; −0 is less than +0, as in PTX."""
    out: Array
    if propagate_nan:
        out = np.maximum(x, y) if largest else np.minimum(x, y)
    else:
        out = np.fmax(x, y) if largest else np.fmin(x, y)
    zero = (x == 0) & (y == 0)
    if np.any(zero):  # numpy returns either zero
        signed = x + y if largest else -(-x - y)
        out = np.where(zero, signed, out)
    return out


# ---- matrix products ----


def tf32_truncate(x: Array) -> Array:
    """float32 with the last 13 mantissa bits cleared, as a tensor core reads it as tf32.

    For input_precision="tf32" the compiler passes raw float32 bits to the tensor core (the PTX has
    no cvt.rna), and the hardware ignores the low bits, as measured on an H200.
    """
    bits = np.ascontiguousarray(x).view(np.uint32)
    out = (bits & _TF32_MASK).view(np.float32)
    return np.where(x == x, out, x)  # a NaN with a low payload must not become inf


def tf32_round(x: Array) -> Array:
    """float32 to tf32 like cvt.rna.tf32.f32: to nearest, ties away from zero."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    out = (bits + np.uint32(0x1000)) & _TF32_MASK
    return np.where((bits & _F32_EXPONENT) == _F32_EXPONENT, bits, out).view(np.float32)


def _zero_nans(x: Array) -> Array:
    # As the compiler before the product of the leading parts: inf splits into inf + NaN.
    return np.where(x == x, x, np.float32(0))


def _bf16_parts(x: Array, count: int) -> list[Array]:
    """float32 as a sum of `count` bfloat16 values (held in float32), leading part first."""
    parts = []
    for _ in range(count):
        parts.append(bf16_to_f32(f32_to_bf16(x)))
        x = x - parts[-1]
    return parts


def dot_f32(a: Array, b: Array, c: Array, precision: str) -> Array:
    """a @ b + c in float32, with the compiler's steps for an input precision.

    "ieee" multiplies and accumulates in float32, "tf32" truncates the operands, "tf32x3", "bf16x3"
    and "bf16x6" split them as Triton's F32DotTC pass does. Within a single product the order of
    accumulation is numpy's.
    """
    if precision == "ieee":
        return np.asarray(np.matmul(a, b) + c)
    if precision == "tf32":
        return np.asarray(np.matmul(tf32_truncate(a), tf32_truncate(b)) + c)
    if precision == "tf32x3":
        a_big, b_big = tf32_round(a), tf32_round(b)
        a_small, b_small = tf32_truncate(a - a_big), tf32_truncate(b - b_big)
        small = np.matmul(a_big, b_small) + np.matmul(a_small, b_big)
        return np.asarray((np.matmul(a_big, b_big) + _zero_nans(small)) + c)
    if precision in ("bf16x3", "bf16x6"):
        count = 2 if precision == "bf16x3" else 3
        a_parts, b_parts = _bf16_parts(a, count), _bf16_parts(b, count)
        terms = [(1, 0), (0, 1)]
        if count == 3:
            terms = [(1, 1), (2, 0), (0, 2), *terms]
        total = np.float32(0)
        for i, j in terms:
            total = np.matmul(a_parts[i], b_parts[j]) + total
        leading = np.matmul(a_parts[0], b_parts[0])
        return np.asarray((leading + _zero_nans(np.asarray(total))) + c)
    raise ValueError(f"unknown input precision {precision!r}")


def dot_int(a: Array, b: Array, c: Array) -> Array:
    """a @ b + c of 8-bit integers, wrapping in c's dtype; float64 holds every sum exactly."""
    product = np.matmul(a.astype(np.float64), b.astype(np.float64))
    return np.asarray(product.astype(np.int64).astype(c.dtype) + c)


# ---- elementary functions ----


def _torch(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Array], Array]:
    def call(x: Array) -> Array:
        return np.asarray(function(torch.from_numpy(np.ascontiguousarray(x))).numpy())

    return call


def _round_away(x: Array) -> Array:
    whole = np.trunc(x)
    step = np.where(np.abs(x - whole) >= 0.5, np.copysign(1.0, x), 0.0)
    return np.asarray(np.copysign(whole + step, x))


def _rsqrt(x: Array) -> Array:
    return 1.0 / np.sqrt(x)


# Name in libdevice (and, for some, in tl.math) -> float64 function.
FUNCTIONS: dict[str, Callable[..., Array]] = {
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "ceil": np.ceil,
    "copysign": np.copysign,
    "cos": np.cos,
    "cosh": np.cosh,
    "div_rn": np.divide,
    "erf": _torch(torch.erf),
    "erfc": _torch(torch.special.erfc),
    "erfinv": _torch(torch.erfinv),
    "exp": np.exp,
    "exp10": lambda x: np.power(10.0, x),
    "exp2": np.exp2,
    "expm1": np.expm1,
    "fast_cosf": np.cos,
    "fast_dividef": np.divide,
    "fast_exp10f": lambda x: np.power(10.0, x),
    "fast_expf": np.exp,
    "fast_log10f": np.log10,
    "fast_log2f": np.log2,
    "fast_logf": np.log,
    "fast_powf": np.power,
    "fast_sinf": np.sin,
    "fast_tanf": np.tan,
    "fast_tanhf": np.tanh,
    "floor": np.floor,
    "fmod": np.fmod,
    "hypot": np.hypot,
    "lgamma": _torch(torch.lgamma),
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "nearbyint": np.rint,
    "pow": np.power,
    "rint": np.rint,
    "round": _round_away,
    "rsqrt": _rsqrt,
    "rsqrt_rn": _rsqrt,
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "sqrt_rn": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
    "trunc": np.trunc,
}

PREDICATES: dict[str, Callable[[Array], Array]] = {
    "finitef": np.isfinite,
    "isfinited": np.isfinite,
    "isinf": np.isinf,
    "isnan": np.isnan,
    "signbit": np.signbit,
}


def elementary(name: str, *arguments: Array) -> Array:
    """A function of FUNCTIONS in the arguments' float dtype.

    float32 is computed in float64, so the result is the nearest float32 except for rare double
    roundings, and does not depend on numpy's vector units.
    """
    dtype = arguments[0].dtype
    if dtype == np.float64:
        return FUNCTIONS[name](*arguments)
    out: Array = FUNCTIONS[name](*(a.astype(np.float64) for a in arguments)).astype(dtype)
    return out
