"""Activations as jit functions of one argument, from float32 to float32 or float64 to float64.

Kernels take one as a constexpr and call it in their epilogue:

    none        x
    relu        0 where x < 0, else x: NaN stays NaN, −0 stays −0
    gelu        x/2·(1 + erf(x/√2))
    gelu_tanh   x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
    silu        x/(1 + exp(−x))
    sigmoid     1/(1 + exp(−x))
    tanh        tanh(x)
    leaky_relu  x/100 where x < 0, else x

The functions are those of torch.nn.functional. But gelu in float32 is computed as
x/(1 + 2^(−x·q(x²))) with a polynomial q, and gelu_tanh as x/(1 + exp(−2y)), where y is the argument
of tanh. In a product's epilogue few warps compute, and erf and tanh would take longer than the
product. For negative x these forms are also more accurate. Results of 16 bits need fewer digits:
for them q is shorter, and gelu, gelu_tanh, silu and sigmoid divide approximately, as do their
derivatives.

Each activation has a derivative, a jit function of what a training step saves. That is the result r
if the derivative follows from it, so that nothing else is saved; otherwise the pre-activation x. At
kinks the derivative is torch's.

    none        1
    relu        1, also where r is NaN; where r <= 0 the gradient is dropped
    sigmoid     r·(1 − r)
    tanh        1 − r²
    leaky_relu  1 where r > 0, else 1/100
    gelu        Φ(x) + x·φ(x) of the normal distribution
    gelu_tanh   s + x·s·(1 − s)·y', s = sigmoid(y), y = 2·√(2/π)·(x + 0.044715·x³)
    silu        s + x·s·(1 − s), s = sigmoid(x)

The last three are 0 and 1 at −∞ and ∞.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
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
def normal_odds(x, SHORT: tl.constexpr = False):
    """log₂(Φ(−x)/Φ(x)) ≈ −x·q(x²), accurate enough for float32, or if SHORT for 16 bits.

    q is fitted so that the error of gelu(x) is at most 1.2e-8·|x|; if SHORT, so that the error of
    gelu(−|x|) is at most 2.2e-4·|gelu(−|x|)| + 4.3e-7, and that of Φ 4.1e-5. Beyond |x| = 5.3,
    where |gelu(−|x|)| < 2⁻²¹, q is constant; if SHORT, it grows faster than it should, which takes
    no instruction.
    """
    if SHORT:
        s = x * x
        q = 4.201133566991678e-05 - s * 1.4402841930127107e-06
        q = 0.0007333594816573769 + s * q
        q = -0.10626228469658319 + s * q
        q = -2.301359497792478 + s * q
        odds = x * q  # q has the sign: to negate x takes an instruction
    else:
        s = tl.minimum(x * x, 28.09)
        q = 7.164413506899336e-10 - s * 1.1075817346606343e-11
        q = -1.2498788670711747e-08 + s * q
        q = -1.717654640742694e-07 + s * q
        q = 1.013348446576856e-05 + s * q
        q = -0.00015538185834884644 + s * q
        q = -0.0001005172889563255 + s * q
        q = 0.10483913123607635 + s * q
        q = 2.302208662033081 + s * q
        odds = -x * q
    return odds


@triton.jit
def gelu(x):
    if x.dtype == tl.float64:
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    else:
        return x / (1.0 + tl.exp2(normal_odds(x)))


@triton.jit
def gelu_tanh(x):
    return x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def tanh(x):
    # Triton links libdevice with subnormals flushed to zero. So near zero, where tanh(x) rounds to
    # x, the result is x.
    return tl.where(tl.abs(x) < 7.450580596923828e-09, x, libdevice.tanh(x))


@triton.jit
def leaky_relu(x):
    return tl.where(x < 0, 0.01 * x, x)


@triton.jit
def half_gelu(x):
    return libdevice.fast_dividef(x, 1.0 + tl.exp2(normal_odds(x, SHORT=True)))


@triton.jit
def half_gelu_tanh(x):
    # (1 + tanh(u))/2 = 1/(1 + exp(−2u)). The factors are 2·log₂(e)·√(2/π), and 0.044715 times that.
    inner = x * (2.302208198 + 0.1029432397 * x * x)
    return libdevice.fast_dividef(x, 1.0 + tl.exp2(-inner))


@triton.jit
def half_silu(x):
    # tl.exp would also have instructions for results that are subnormal, which 1 absorbs.
    return libdevice.fast_dividef(x, 1.0 + tl.exp2(-1.4426950408889634 * x))


@triton.jit
def half_sigmoid(x):
    return libdevice.fast_dividef(1.0, 1.0 + tl.exp2(-1.4426950408889634 * x))


@triton.jit
def clamped(x, limit: tl.constexpr):
    """x between −limit and limit; NaN stays NaN."""
    return tl.where(x > limit, limit, tl.where(x < -limit, -limit, x))


@triton.jit
def none_derivative(result):
    return tl.full(result.shape, 1.0, result.dtype)


@triton.jit
def relu_drops(result):
    return result <= 0


@triton.jit
def sigmoid_derivative(result):
    return result * (1.0 - result)


@triton.jit
def tanh_derivative(result):
    return 1.0 - result * result


@triton.jit
def leaky_relu_derivative(result):
    one = tl.full(result.shape, 1.0, result.dtype)  # two numbers alone would make a float32
    return tl.where(result > 0, one, 0.01 * one)


@triton.jit
def gelu_derivative(x):
    x = clamped(x, 40.0)  # where φ is 0 in float64, too, and infinity is not yet times 0
    density = 0.3989422804014327 * tl.exp(-0.5 * x * x)
    return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * density


@triton.jit
def sigmoid_and_slope(y, SHORT: tl.constexpr):
    """sigmoid(y) and its derivative. s·(1 − s) would lose digits of the derivative."""
    small = tl.exp(-tl.abs(y))
    if SHORT:
        large = libdevice.fast_dividef(1.0, 1.0 + small)
    else:
        large = 1.0 / (1.0 + small)
    return tl.where(y < 0, small * large, large), small * large * large


@triton.jit
def gelu_tanh_derivative(x, SHORT: tl.constexpr = False):
    x = clamped(x, 10.0)  # where tanh is 1 in float64, too
    square = x * x
    y = x * (1.5957691216057308 + 0.07135481627260025 * square)
    s, slope = sigmoid_and_slope(y, SHORT)
    return s + x * slope * (1.5957691216057308 + 0.21406444881780076 * square)


@triton.jit
def silu_derivative(x, SHORT: tl.constexpr = False):
    x = clamped(x, 1000.0)  # where sigmoid is 0 or 1 in float64, too
    s, slope = sigmoid_and_slope(x, SHORT)
    return s + x * slope


@triton.jit
def half_gelu_derivative(x):
    x = clamped(x, 40.0)
    # log₂(φ(x)) = −x²/2·log₂(e) + log₂(1/√(2π))
    density = tl.exp2(-0.7213475204444817 * x * x - 1.3257480647361595)
    return libdevice.fast_dividef(1.0, 1.0 + tl.exp2(normal_odds(x, SHORT=True))) + x * density


@triton.jit
def half_gelu_tanh_derivative(x):
    return gelu_tanh_derivative(x, SHORT=True)


@triton.jit
def half_silu_derivative(x):
    return silu_derivative(x, SHORT=True)


class Activation(NamedTuple):
    """An activation: jit functions for the kernels, chosen by dtype.

    Attributes:
        forward: the activation, a function of the pre-activation.
        derivative: a function of the result, or of the pre-activation if ``of_pre``.
        half_forward, half_derivative: faster ones for results of 16 bits, or None.
        of_pre: whether the derivatives are functions of the pre-activation.
        straight: whether it is piecewise linear, so that the second derivative is 0.
        drops: jit function of what derivative takes: where it is true the gradient is dropped, even
            one that is infinite or NaN, as torch's relu does; None if it is multiplied everywhere.
        torch_function: the argument of :func:`triton_kernels.register_activation`, or None.
        in_torch: the same function in torch, for second derivatives; None if there is none, or if
            it is not needed, because the activation is ``straight``.
        written: the formula of an activation that a graph composes, for plans; else "".
    """

    forward: Any
    derivative: Any
    half_forward: Any = None
    half_derivative: Any = None
    of_pre: bool = False
    straight: bool = False
    drops: Any = None
    torch_function: Any = None
    in_torch: Any = None
    written: str = ""

    def forward_for(self, result: torch.dtype, compute: torch.dtype) -> Any:
        """The activation for results and inputs of these dtypes."""
        return self.half_forward if _short(result, compute) and self.half_forward else self.forward

    def derivative_for(self, result: torch.dtype, compute: torch.dtype) -> Any:
        """The derivative for results and inputs of these dtypes."""
        short = _short(result, compute) and self.half_derivative
        return self.half_derivative if short else self.derivative


def _short(result: torch.dtype, compute: torch.dtype) -> bool:
    return result.itemsize == 2 and compute != torch.float64


ACTIVATIONS = {
    "none": Activation(none, none_derivative, straight=True),
    "relu": Activation(relu, none_derivative, straight=True, drops=relu_drops),
    "gelu": Activation(
        *(gelu, gelu_derivative, half_gelu, half_gelu_derivative),
        of_pre=True,
        in_torch=F.gelu,
    ),
    "gelu_tanh": Activation(
        *(gelu_tanh, gelu_tanh_derivative, half_gelu_tanh, half_gelu_tanh_derivative),
        of_pre=True,
        in_torch=functools.partial(F.gelu, approximate="tanh"),
    ),
    "silu": Activation(
        *(silu, silu_derivative, half_silu, half_silu_derivative),
        of_pre=True,
        in_torch=F.silu,
    ),
    "sigmoid": Activation(sigmoid, sigmoid_derivative, half_sigmoid, in_torch=torch.sigmoid),
    "tanh": Activation(tanh, tanh_derivative, in_torch=torch.tanh),
    "leaky_relu": Activation(leaky_relu, leaky_relu_derivative, straight=True),
}

GELU_APPROXIMATIONS = {"none": "gelu", "tanh": "gelu_tanh"}  # torch's name → ours


def checked_act(op: str, act: Any) -> str:
    """``act`` if it is the name of an activation.

    Raises:
        ValueError: it is not. The text names ``op``.
    """
    if isinstance(act, str) and act in ACTIVATIONS:
        return act
    choices = ", ".join(repr(name) for name, each in ACTIVATIONS.items() if not each.written)
    raise ValueError(
        f"{op}(): argument 'act' must be one of {choices}, but got {act!r}; "
        "triton_kernels.register_activation adds one of your own"
    )
