"""The activations in float64 for the oracle, and the errors allowed to the kernels' formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

_aten = torch.ops.aten


def has_short_formulas(implementation: str) -> bool:
    """Whether an implementation of an elementwise op or of act_backward has them for results of
    16 bits: Triton's kernels and the rungs of the CUDA side, not its plain kernels."""
    return implementation.startswith("triton") or "/" in implementation


class Derivative(NamedTuple):
    """A derivative for the oracle, as a function of the saved tensor.

    ``error``: the error of the kernels' formulas, in roundings of the compute type. ``eager``:
    torch's own backward pass, (grad, saved, out). ``half``: the error of the short formula for
    16-bit results, if there is one. ``of_pre``: the saved tensor is the
    pre-activation, else the result. ``masks``: a slope of 0 drops the gradient, even an infinite
    one or NaN.
    """

    function: Callable[[Tensor], Tensor]
    error: Callable[[Tensor], Tensor]
    eager: Callable[[Tensor, Tensor, Tensor], Any]
    half: float = 0.0
    of_pre: bool = False
    masks: bool = False

    def masked(self, gradient: Tensor, slope: Tensor) -> Tensor:
        """The gradient of these slopes, in place set to 0 where the slope is 0 and masks it."""
        return gradient.masked_fill_(slope == 0, 0) if self.masks else gradient


class Activation(NamedTuple):
    """An activation for the oracle, and the numbers that its bound needs.

    ``lipschitz``: the largest |slope|. ``error``: the evaluation error of the kernels' formula, in
    roundings of the epilogue, as a function of the pre-activation. ``half``: the relative and the
    absolute error of the short formula for 16-bit results, if there is one. ``curvature``: the
    largest |second derivative|; None for straight lines.
    """

    function: Callable[[Tensor], Tensor]
    lipschitz: float
    error: Callable[[Tensor], Tensor]
    derivative: Derivative
    half: tuple[float, float] | None = None
    curvature: float | None = None

    def amplified(self, pre: Tensor, error: Tensor) -> Tensor:
        """The largest |act(x) − act(pre)| for |x − pre| ≤ error. By the slope at pre, since in its
        tails an activation damps errors that its largest slope would let pass."""
        most = self.lipschitz * error
        if self.curvature is None:
            return most
        saved = pre if self.derivative.of_pre else self.function(pre)
        slope = self.derivative.function(saved).abs() + self.curvature / 2 * error
        return torch.minimum(most, slope * error)


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


def _of_sigmoid(x: Tensor) -> Tensor:
    """The error of 1/(1 + exp(−x)), in roundings: that of exp, damped by 1 − s, of a sum and a
    division, all relative; and 2⁻¹¹⁸ in float32, where the divisor passes 2¹²⁶."""
    of_exp = (1.25 * x.abs().clamp_max(1e3) + 5) * torch.sigmoid(-x)
    return torch.sigmoid(x) * (of_exp + 5) + 2.0**-94


# The evaluation errors. erf and tanh are within 2 ulp and are multiplied by x/2 after an addition
# to 1, so gelu's absolute error is a few roundings of x. gelu_tanh adds tanh' · |inner| ≤ 0.45
# times its argument's few roundings. Triton's float32 gelu is x/(1 + 2^y): y is fitted to 0.2
# roundings of x, y's own three contribute s·(1 − s)·ln2·|y| ≤ 0.23 each, 2^y's two 1/4 each, the
# sum and the division 5/2; gelu_tanh is x/(1 + exp(−y)), as silu. exp(−x) is computed as
# 2^(x·log₂e): relative error (1.25·|x| + 5) roundings, of which the constant's is 0.22·|x|, damped
# by sigmoid' = s·(1 − s), and s·(1 − s)·|x| ≤ 0.23. sigmoid and silu are held to this where they
# are small, too; the others' formulas add to 1 there on one side. For 16-bit results gelu's
# exponent is a polynomial fitted to 2⁻¹²·|gelu(x)| + 2⁻²¹, which grows too fast from |x| = 5.7 on;
# CUDA's is constant from |x| = 5 on, where gelu(−|x|) < 2⁻¹⁹. In all of these an exponent y < 128
# with three roundings makes 2⁻¹⁵, and a divisor past 2¹²⁶ makes 0.
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
            masks=True,
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
        curvature=0.8,
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
        curvature=0.8,
    ),
    "silu": Activation(
        lambda x: x * torch.sigmoid(x),
        1.1,
        lambda x: x.abs() * (_of_sigmoid(x) + torch.sigmoid(x)),
        Derivative(
            _silu_derivative,
            _const(16.0),
            lambda grad, x, out: _aten.silu_backward(grad, x, grad_input=out),
            half=2.0**-18,
            of_pre=True,
        ),
        half=_SIGMOID_FORM,
        curvature=0.5,
    ),
    "sigmoid": Activation(
        torch.sigmoid,
        0.25,
        _of_sigmoid,
        Derivative(
            lambda r: r * (1 - r),
            lambda r: 2 * r.abs() * (1 + r.abs()),
            lambda grad, r, out: _aten.sigmoid_backward(grad, r, grad_input=out),
        ),
        half=_SIGMOID_FORM,
        curvature=0.1,
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
        curvature=0.77,
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
