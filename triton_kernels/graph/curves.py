"""Jit functions for the texts of :mod:`triton_kernels.graph.primitives`, which also use those of
:mod:`triton_kernels.activations`."""

from __future__ import annotations

import triton
import triton.language as tl

from triton_kernels.activations import sigmoid


@triton.jit
def number(x, value: tl.constexpr):
    """A number in x's dtype. A number as such is compared as a float32, even with a float64. A
    block of it would need a layout in Gluon, where x is float32."""
    if x.dtype != tl.float32:
        value = tl.full(x.shape, value, x.dtype)
    return value


@triton.jit
def square(x):
    return x * x


@triton.jit
def tanh_of_softplus(x):
    """tanh(log(1 + exp(x))), which is n/(n + 2) for n = exp(x)·(exp(x) + 2)."""
    power = tl.exp(tl.where(x > 20.0, 20.0, x))  # where it is 1 in float64, too
    n = power * (power + 2.0)
    return n / (n + 2.0)


@triton.jit
def mish(x):
    return x * tanh_of_softplus(x)


@triton.jit
def mish_derivative(x):
    t = tanh_of_softplus(x)
    return t + x * sigmoid(x) * (1.0 - t) * (1.0 + t)
