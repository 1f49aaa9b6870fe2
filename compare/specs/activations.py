"""The activations in float64 for the oracle, and the errors allowed to the kernels' formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

_aten = torch.ops.aten


class Derivative(NamedTuple):
    """A derivative for the oracle, as a function of the saved tensor.

    ``error``: the error of the kernels' formulas, in roundings of the compute type. ``eager``:
    torch's own backward pass, (grad, saved, out). ``half``: the error of Triton's formula for
    16-bit results, if it has another one for them. ``of_pre``: the saved tensor is the
    pre-activation, else the result.
    """

    function: Callable[[Tensor], Tensor]
    error: Callable[[Tensor], Tensor]
    eager: Callable[[Tensor, Tensor, Tensor], Any]
    half: float = 0.0
    of_pre: bool = False


class Activation(NamedTuple):
    """An activation for the oracle, and the numbers that its bound needs.

    ``lipschitz``: the largest |slope|. ``error``: the evaluation error of the kernels' formula, in
    roundings of the epilogue, as a function of the pre-activation. ``half``: the relative and the
    absolute error of Triton's formula for 16-bit results, if it has another one for them.
    """

    function: Callable[[Tensor], Tensor]
    lipschitz: float
    error: Callable[[Tensor], Tensor]
    derivative: Derivative
    half: tuple[float, float] | None = None


def _const(value: float) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.full_like(x, value)


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def _gelu_tanh(x: Tensor) -> Tensor:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + torch.tanh(inner))


def _gelu_derivative(x: Tensor) -> Tensor:
    x = x.clamp(-40, 40)
    return torch.special.ndtr(x) + x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _gelu_tanh_derivative(x: Tensor) -> Tensor:
    x = x.clamp(-20, 20)
    root = math.sqrt(2 / math.pi)
    y = 2 * root * (x + 0.044715 * x**3)
    slope = torch.sigmoid(y) * torch.sigmoid(-y)
    return torch.sigmoid(y) + x * slope * 2 * root * (1 + 3 * 0.044715 * x * x)


def _silu_derivative(x: Tensor) -> Tensor:
    x = x.clamp(-1e4, 1e4)
    return torch.sigmoid(x) + x * torch.sigmoid(x) * torch.sigmoid(-x)


# The evaluation errors. erf and tanh are within 2 ulp and are multiplied by x/2 after an addition
# to 1, so gelu's absolute error is a few roundings of x. gelu_tanh adds tanh' · |inner| ≤ 0.45
# times its argument's few roundings. Triton's float32 gelu is x/(1 + 2^y): y is fitted to 0.2
# roundings of x, y's own three contribute s·(1 − s)·ln2·|y| ≤ 0.23 each, 2^y's two 1/4 each, the
# sum and the division 5/2; gelu_tanh is x/(1 + exp(−y)), as silu. exp(−x) is computed as
# 2^(x·log₂e): relative error (|x| + 4) roundings, damped by sigmoid' = s·(1 − s) ≤ 1/4, and
# s·(1 − s)·|x| ≤ 0.23. For 16-bit results gelu's exponent is a polynomial fitted to 2⁻¹², constant
# from |x| = 5 on, where gelu(−|x|) < 2⁻¹⁹. In all of these an exponent y < 128 with three roundings
# makes 2⁻¹⁵, and a divisor past 2¹²⁶ makes 0.
_SIGMOID_FORM = 2.0**-15, 2.0**-118

# The errors of the derivatives. Polynomials of the saved tensor: one rounding per step. gelu: erf
# within 2 ulp and two roundings, halved, are 3; exp(−x²/2) has its argument's roundings, 3/2·x²,
# and 8 more, and |x|·φ·(3/2·x² + 8) ≤ 3. gelu_tanh and silu: the sigmoid and its slope within
# |y| + 8 roundings of y's own error, 4·|y|; with x·y'·slope ≤ 0.6 and slope·|y| ≤ 0.23 that is
# below 16. For 16 bits gelu's Φ uses the fitted exponent, with an error of at most 4.5e-5, and
# divisions have 2 ulp.
ACTIVATIONS = {
    "none": Activation(
        lambda x: x,
        1.0,
        torch.zeros_like,
        Derivative(torch.ones_like, torch.zeros_like, lambda grad, r, out: out.copy_(grad)),
    ),
    "relu": Activation(
        lambda x: torch.where(x < 0, torch.zeros_like(x), x),
        1.0,
        torch.zeros_like,
        Derivative(
            lambda r: torch.where(r <= 0, 0.0, torch.ones_like(r)),
            torch.zeros_like,
            lambda grad, r, out: _aten.threshold_backward(grad, r, 0, grad_input=out),
        ),
    ),
    "gelu": Activation(
        _gelu,
        1.13,
        lambda x: 4 * x.abs(),
        Derivative(
            _gelu_derivative,
            _const(8.0),
            lambda grad, x, out: _aten.gelu_backward(grad, x, grad_input=out),
            half=2.0**-14,
            of_pre=True,
        ),
        half=(2.0**-12, 2.0**-21),
    ),
    "gelu_tanh": Activation(
        _gelu_tanh,
        1.13,
        lambda x: 6 * x.abs(),
        Derivative(
            _gelu_tanh_derivative,
            _const(16.0),
            lambda grad, x, out: _aten.gelu_backward(grad, x, approximate="tanh", grad_input=out),
            half=2.0**-18,
            of_pre=True,
        ),
        half=_SIGMOID_FORM,
    ),
    "silu": Activation(
        lambda x: x * torch.sigmoid(x),
        1.1,
        lambda x: 6 * x.abs(),
        Derivative(
            _silu_derivative,
            _const(16.0),
            lambda grad, x, out: _aten.silu_backward(grad, x, grad_input=out),
            half=2.0**-18,
            of_pre=True,
        ),
        half=_SIGMOID_FORM,
    ),
    "sigmoid": Activation(
        torch.sigmoid,
        0.25,
        _const(6.0),
        Derivative(
            lambda r: r * (1 - r),
            lambda r: 2 * r.abs() * (1 + r.abs()),
            lambda grad, r, out: _aten.sigmoid_backward(grad, r, grad_input=out),
        ),
        half=_SIGMOID_FORM,
    ),
    "tanh": Activation(
        torch.tanh,
        1.0,
        lambda x: 4 * torch.tanh(x).abs(),
        Derivative(
            lambda r: 1 - r * r,
            lambda r: 1 + 2 * r * r,
            lambda grad, r, out: _aten.tanh_backward(grad, r, grad_input=out),
        ),
    ),
    "leaky_relu": Activation(
        lambda x: torch.where(x < 0, 0.01 * x, x),
        1.0,
        lambda x: 2 * x.abs(),
        Derivative(
            lambda r: torch.where(r > 0, torch.ones_like(r), 0.01),
            _const(0.01),
            lambda grad, r, out: _aten.leaky_relu_backward(grad, r, 0.01, False, grad_input=out),
        ),
    ),
}

# Those whose backward pass reads the pre-activation.
OF_PRE = tuple(name for name, act in ACTIVATIONS.items() if act.derivative.of_pre)
