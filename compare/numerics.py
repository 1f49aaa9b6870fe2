"""Distances and the oracles' arithmetic: ULPs, bitwise equality, exact fused multiply-add.

Everything works on tensors of any device, so a large case is judged on its own device.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import hashlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(t: Tensor) -> Tensor:
    """The elements' bit patterns as integers of the same width."""
    return t if t.dtype == torch.uint8 else t.contiguous().view(BITS[t.element_size()])


def same_bits(a: Tensor, b: Tensor) -> Tensor:
    """Elementwise bitwise equality. All NaNs are equal; −0 differs from 0."""
    equal = bits(a) == bits(b)
    return equal | (a.isnan() & b.isnan()) if a.dtype.is_floating_point else equal


def digest(t: Tensor) -> str:
    """A hash of the shape and the bits. Tensors with equal shapes and bits have equal digests; all
    NaNs are equal."""
    sha256 = hashlib.sha256()
    for _, (part,) in by_rows(t):
        alike = torch.where(part.isnan(), math.nan, part) if t.dtype.is_floating_point else part
        sha256.update(bits(alike).cpu().numpy().tobytes())
    return sha256.hexdigest()


def _rank(t: Tensor) -> Tensor:
    """Floats mapped to consecutive int64s in their order; −0 and 0 both map to 0."""
    raw = bits(t).to(torch.int64)
    low = -(1 << (8 * t.element_size() - 1))
    # In two's complement the pattern without its sign bit makes negative floats count downwards.
    return torch.where(raw < 0, low - raw, raw)


def ulps(a: Tensor, b: Tensor) -> Tensor:
    """The distance in units in the last place, as float64: the floats in between, plus one.

    0 for equal bits and for two NaNs, 0.5 for −0 against 0, inf if only one is NaN. For integers
    it is the difference.
    """
    if not a.dtype.is_floating_point:
        return difference(a, b)
    # The difference of two ranks may overflow int64; doubles are precise enough to report.
    distance = (_rank(a).double() - _rank(b).double()).abs()
    distance = torch.where((distance == 0) & ~same_bits(a, b), 0.5, distance)
    distance = torch.where(a.isnan() ^ b.isnan(), math.inf, distance)
    return torch.where(same_bits(a, b), 0.0, distance)


def ulp_of(x: float, dtype: torch.dtype) -> float:
    """The spacing of ``dtype`` at ``x``."""
    info = torch.finfo(dtype)
    if not math.isfinite(x):
        return math.inf
    if abs(x) < info.tiny:
        return info.smallest_normal * info.eps
    return math.ldexp(info.eps, math.frexp(abs(x))[1] - 1)


def fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a·b + c with one rounding, in the operands' common dtype, float32 or float64."""
    a, b, c = torch.broadcast_tensors(a, b, c)
    fused = _fma32 if a.dtype == torch.float32 else _fma64
    parts = [fused(*part) for _, part in by_rows(a, b, c)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


CHUNK = 1 << 24  # elements


def by_rows(*tensors: Tensor) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
    """Tensors of one shape in slices of rows, and the first row of each slice: the float64
    intermediates of a huge tensor would not fit into memory."""
    first = tensors[0]
    if first.numel() <= CHUNK or not first.dim():
        yield 0, tensors
        return
    rows = max(1, CHUNK * first.shape[0] // first.numel())
    for i, parts in enumerate(zip(*(t.split(rows) for t in tensors))):
        yield i * rows, parts


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a + b rounded, and the exact rounding error (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _odd_sum(a: Tensor, b: Tensor) -> Tensor:
    """a + b in float64, rounded to odd. Rounding that again, to a type at least two bits narrower,
    equals one rounding of the exact sum (Boldo and Melquiond, 2008)."""
    total, error = _two_sum(a, b)
    inexact = (error != 0) & total.isfinite() & error.isfinite()
    pattern = total.view(torch.int64)
    away = (error > 0) == (total > 0)  # the exact sum lies farther from zero than the rounded one
    odd = torch.where(pattern & 1 == 1, pattern, torch.where(away, pattern + 1, pattern - 1))
    return torch.where(inexact, odd, pattern).view(torch.float64)


def _fma32(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """fma computed in float64, where the product of two float32 numbers is exact."""
    return _odd_sum(a.double() * b.double(), c.double()).float()


def _split(a: Tensor) -> tuple[Tensor, Tensor]:
    """a as the sum of two numbers of 26 bits (Veltkamp)."""
    scaled = a * 134217729.0
    high = scaled - (scaled - a)
    return high, a - high


def _fma64(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """fma: the product as an unevaluated sum of two doubles, c added to it with rounding to odd.
    Near overflow and underflow, where that is not exact, the C library's fma."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _split(a), _split(b)
    lost = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    low, low_error = _two_sum(c, lost)
    high, high_error = _two_sum(product, low)
    result = high + _odd_sum(low_error, high_error)
    safe = (product.abs() > 2.0**-900) & (product.abs() < 2.0**900) & (c.abs() < 2.0**900)
    safe &= (a.abs() < 2.0**900) & (b.abs() < 2.0**900)
    safe &= (c == 0) | (c.abs() > 2.0**-900)
    if not bool(safe.all()):
        result = result.clone()
        result[~safe] = _libm_fma(a[~safe], b[~safe], c[~safe])
    return result


def _libm_fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The C library's fma, element by element; IEEE 754 requires correct rounding."""
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    library.fma.restype = ctypes.c_double
    library.fma.argtypes = [ctypes.c_double] * 3
    each = np.frompyfunc(library.fma, 3, 1)
    with np.errstate(all="ignore"):
        result = each(*(t.cpu().numpy() for t in (a, b, c)))
    return torch.from_numpy(np.asarray(result, dtype=np.float64)).to(a.device)


def difference(a: Tensor, b: Tensor) -> Tensor:
    """|a − b| in float64; inf if that is NaN. For integers it is exact, however large they are, if
    a and b are close."""
    far = (a.double() - b.double()).abs_().nan_to_num_(math.inf, posinf=math.inf)
    if a.dtype.is_floating_point:
        return far
    # Doubles cannot tell large integers apart. An int64 difference is right if it is small.
    whole = b.to(torch.int64)
    near = (a.to(torch.int64) - whole).double().abs() + (b.double() - whole.double()).abs()
    return torch.where(far < 2.0**53, near, far)


def fraction(error: Tensor, bound: Tensor) -> Tensor:
    """error / bound, 0 for 0/0."""
    return torch.where(error == 0, 0.0, error / bound)


def hex_of(t: Tensor) -> str:
    """The bit pattern of a one-element tensor."""
    width = 2 * t.element_size()
    return f"0x{int(bits(t).item()) & ((1 << (4 * width)) - 1):0{width}x}"


def json_safe(value: Any) -> Any:
    """``value`` with infinities and NaN as strings: JSON has no such numbers."""
    if isinstance(value, dict):
        return {key: json_safe(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_safe(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
