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

The forms are those of torch.nn.functional. A result of 16 bits needs fewer digits: for it gelu is
x/(1 + 2^(−x·q(x²))) with a polynomial q, and it, gelu_tanh, silu and sigmoid divide approximately.
"""

from __future__ import annotations

from typing import Any

import torch
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


@triton.jit
def half_gelu(x):
    # q(s) = log₂(Φ(x)/Φ(−x))/x at s = x², fitted on |x| ≤ 5 to 2.1e-4 of gelu(−|x|) + 2⁻¹⁴; beyond
    # 5, where gelu(−|x|) < 2⁻¹⁹, its last value.
    s = tl.minimum(x * x, 25.0)
    q = 3.249581062201871e-06 - s * 4.980163975415861e-08
    q = 2.301320533857351 + s * (
        0.10613248649745968 + s * (-0.0006337557467964516 + s * (-6.382900477412452e-05 + s * q))
    )
    return libdevice.fast_dividef(x, 1.0 + tl.exp2(-x * q))


@triton.jit
def half_gelu_tanh(x):
    # (1 + tanh(u))/2 = 1/(1 + exp(−2u)), the factors 2·log₂(e)·√(2/π) and that times 0.044715.
    inner = x * (2.302208198 + 0.1029432397 * x * x)
    return libdevice.fast_dividef(x, 1.0 + tl.exp2(-inner))


@triton.jit
def half_silu(x):
    return libdevice.fast_dividef(x, 1.0 + tl.exp(-x))


@triton.jit
def half_sigmoid(x):
    return libdevice.fast_dividef(1.0, 1.0 + tl.exp(-x))


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

HALF_ACTIVATIONS = ACTIVATIONS | {
    "gelu": half_gelu,
    "gelu_tanh": half_gelu_tanh,
    "silu": half_silu,
    "sigmoid": half_sigmoid,
}


def for_result(name: str, result: torch.dtype, compute: torch.dtype) -> Any:
    """The activation of that name for results and inputs of these dtypes."""
    if result.itemsize == 2 and compute != torch.float64:
        return HALF_ACTIVATIONS[name]
    return ACTIVATIONS[name]
