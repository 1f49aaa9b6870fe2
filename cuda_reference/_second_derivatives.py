"""Second derivatives of curved activations: formulas, computed by torch in float32 or float64.

Training needs none, so no kernel has them; gradient penalties and Hessians do. They consist of
torch's ops, so third derivatives follow by autograd.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from cuda_reference._activations import STRAIGHT


def _gelu(x: Tensor) -> Tensor:
    x = x.clamp(-40, 40)  # beyond it is 0, also in float64
    return (2 - x * x) * torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _gelu_tanh(x: Tensor) -> Tensor:
    """Of x·s(y), s the sigmoid."""
    x = x.clamp(-10, 10)  # beyond it is 0, also in float64
    unit = 2 * math.sqrt(2 / math.pi)
    y = unit * (x + 0.044715 * x**3)
    slope, curvature = unit * (1 + 3 * 0.044715 * x * x), unit * 6 * 0.044715 * x
    s = torch.sigmoid(y)
    first = s * torch.sigmoid(-y)
    second = first * (1 - 2 * s)
    return 2 * first * slope + x * (second * slope * slope + first * curvature)


def _silu(x: Tensor) -> Tensor:
    x = x.clamp(-1000, 1000)  # beyond it is 0, also in float64
    s = torch.sigmoid(x)
    return s * torch.sigmoid(-x) * (2 + x * (1 - 2 * s))


def _sigmoid(x: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s * torch.sigmoid(-x) * (1 - 2 * s)


def _tanh(x: Tensor) -> Tensor:
    t = torch.tanh(x)
    return -2 * t * (1 - t * t)


_OF_ARGUMENT: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
}
# What act_backward takes: the result of sigmoid and tanh. The derivatives are r·(1 − r), 1 − r².
_OF_SAVED: dict[str, Callable[[Tensor], Tensor]] = {
    **_OF_ARGUMENT,
    "sigmoid": lambda r: 1 - 2 * r,
    "tanh": lambda r: -2 * r,
}


def of_argument(op: str, act: str, x: Tensor, *factors: Tensor) -> Tensor:
    """act''(x)·factors: the gradient of x in act'(x) times all but the last of the factors, where
    the last is the product's gradient.

    Returns:
        Tensor of the shape to which all broadcast, of x's dtype, rounded once.

    Raises:
        NotImplementedError: the activation is a registered one.
    """
    return _product(op, _OF_ARGUMENT, act, x, factors)


def of_saved(op: str, act: str, saved: Tensor, *factors: Tensor) -> Tensor:
    """:func:`of_argument` for what act_backward takes."""
    return _product(op, _OF_SAVED, act, saved, factors)


def _product(
    op: str,
    formulas: Mapping[str, Callable[[Tensor], Tensor]],
    act: str,
    x: Tensor,
    factors: tuple[Tensor, ...],
) -> Tensor:
    if act in STRAIGHT:
        shape = torch.broadcast_shapes(x.shape, *(t.shape for t in factors))
        return x.new_zeros(shape)
    if act not in formulas:
        raise NotImplementedError(
            f"{op}(): the second derivative of '{act}' is not there; it is of what ships"
        )
    dtypes = [x.dtype, *(t.dtype for t in factors)]
    compute = functools.reduce(torch.promote_types, dtypes, torch.float32)
    terms = [t.to(compute) for t in factors]
    return functools.reduce(torch.mul, terms, formulas[act](x.to(compute))).to(x.dtype)
