"""Activations as jit functions of one argument, float32 or float64 in and out.

Kernels take one as a constexpr and call it in their epilogue:

    none        x
    relu        0 where x < 0, else x: NaN stays NaN, −0 stays −0
    gelu        x/2·(1 + erf(x/√2))
    gelu_tanh   x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
    silu        x/(1 + exp(−x))
    sigmoid     1/(1 + exp(−x))
    tanh        tanh(x)
    leaky_relu  x/100 where x < 0, else x

The forms are those of torch.nn.functional.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def none(x):
    return x


@triton.jit
def relu(x):
    return tl.where(x < 0, 0.0, x)


@triton.jit
def gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def gelu_tanh(x):
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1.0 + libdevice.tanh(inner))


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def tanh(x):
    # Triton links libdevice with subnormals flushed to zero; so near zero tanh(x) rounds to x.
    return tl.where(tl.abs(x) < 7.450580596923828e-09, x, libdevice.tanh(x))


@triton.jit
def leaky_relu(x):
    return tl.where(x < 0, 0.01 * x, x)


ACTIVATIONS = {
    "none": none,
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
    "sigmoid": sigmoid,
    "tanh": tanh,
    "leaky_relu": leaky_relu,
}
