"""Python numbers as kernel arguments, rounded once, to the kernel's compute type; and sizes with
known divisors.

Triton passes a Python float as float32. That is right for a float32 compute type. For float64 the
bits are passed as an integer.
"""

from __future__ import annotations

import struct

import torch
import triton
import triton.language as tl


def as_argument(value: int | float, dtype: torch.dtype) -> int | float:
    """``value`` as a kernel argument for results of ``dtype``."""
    if dtype != torch.float64:
        return value
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits


@triton.jit
def scalar_value(s, C: tl.constexpr):
    """An argument made by ``as_argument``, as a number of the compute type C."""
    if C == tl.float64:
        value = tl.cast(tl.cast(s, tl.int64), tl.float64, bitcast=True)
    else:
        value = tl.cast(s, C)
    return value


@triton.jit
def multiple(n, UNIT: tl.constexpr):
    """n, which is a multiple of UNIT. The compiler itself only recognises multiples of 16."""
    return n // UNIT * UNIT if UNIT > 1 else n
