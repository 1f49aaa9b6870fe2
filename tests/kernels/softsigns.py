"""softsign and its derivative as jit functions, which tests register as an activation."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def softsign(x):
    return x / (1.0 + tl.abs(x))


@triton.jit
def softsign_derivative(x):
    return 1.0 / ((1.0 + tl.abs(x)) * (1.0 + tl.abs(x)))
