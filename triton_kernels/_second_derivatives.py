"""Second derivatives of curved activations, computed by torch.

Training needs none, so no kernel computes them; gradient penalties and Hessians do. What is here
differentiates the activation as torch writes it, in float32 or float64. So it drops gradients where
torch does, and third derivatives follow by autograd.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from triton_kernels import _arguments
from triton_kernels._tangents import differentiable, transformed, unrecorded
from triton_kernels.activations import ACTIVATIONS


def of_argument(op: str, act: str, x: Tensor, factors: Sequence[Tensor], grad: Tensor) -> Tensor:
    """The gradient of x in act'(x)·factors.

    Args:
        op: for errors.
        act: the activation.
        x: its argument.
        factors: the product's other factors.
        grad: the gradient of the product. All tensors broadcast.

    Returns:
        Tensor of the shape to which they broadcast, of x's dtype, rounded once.

    Raises:
        NotImplementedError: the activation is registered without ``torch_function``.
    """
    function = ACTIVATIONS[act].in_torch
    if function is None:
        raise NotImplementedError(
            f"{op}(): the second derivative of '{act}' is not there; "
            "with torch_function= register_activation makes it"
        )
    return _pulled(lambda g, x: _pull(function, x, g), x, factors, grad)


def of_saved(op: str, act: str, saved: Tensor, factors: Sequence[Tensor], grad: Tensor) -> Tensor:
    """:func:`of_argument` for what a training step saves, which is act's result for some acts."""
    backward = _BY_RESULT.get(act)
    if backward is None:
        return of_argument(op, act, saved, factors, grad)
    return _pulled(backward, saved, factors, grad)


_BY_RESULT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sigmoid": torch.ops.aten.sigmoid_backward,
    "tanh": torch.ops.aten.tanh_backward,
}


def _pulled(
    backward: Callable[[Tensor, Tensor], Tensor],
    saved: Tensor,
    factors: Sequence[Tensor],
    grad: Tensor,
) -> Tensor:
    """The gradient of ``saved`` in backward(product of factors, saved)."""
    tensors = _arguments.on_one_device(saved, grad, *factors)
    if not torch.is_grad_enabled():  # views would seem to require grad, and have no history
        tensors = tuple(map(unrecorded, tensors))
    compute = functools.reduce(torch.promote_types, [t.dtype for t in tensors], torch.float32)
    shape = torch.broadcast_shapes(*(t.shape for t in tensors))
    wide = [t.to(compute).expand(shape) for t in tensors]
    product = functools.reduce(torch.mul, wide[2:])
    return _pull(lambda s: backward(product, s), wide[0], wide[1]).to(saved.dtype)


def _pull(function: Callable[[Tensor], Any], x: Tensor, grad: Tensor) -> Tensor:
    """The gradient of x in function(x), whose gradient is ``grad``. It is differentiable itself.

    Not by torch.func.vjp, which does not work where a transform of torch.func calls an op.
    """
    recorded = torch.is_grad_enabled() or transformed()
    with torch.enable_grad():
        lead = differentiable(x)
        (pulled,) = torch.autograd.grad(function(lead), lead, grad, create_graph=recorded)
    return pulled
