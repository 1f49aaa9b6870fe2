"""How Python numbers reach a kernel: rounded once, to the kernel's compute type; and sizes, with
what the compiler shall know of them.

Triton passes a Python float as float32. That is right for a float32 compute type; for float64 the
bits travel as an integer instead.
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
    """The argument made by ``as_argument`` as a number of the compute type C."""
    if C == tl.float64:
        value = tl.cast(tl.cast(s, tl.int64), tl.float64, bitcast=True)
    else:
        value = tl.cast(s, C)
    return value


@triton.jit
def multiple(n, UNIT: tl.constexpr):
    """n, a multiple of UNIT, as the compiler cannot see by itself of less than 16."""
    return n // UNIT * UNIT if UNIT > 1 else n
