"""Forward-mode derivatives of ops that have gradients, and derivatives inside of derivatives.

torch's own ops have a formula for the tangent of a result. Ops here need none: their backward
passes consist of ops that have gradients, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch.eager_transforms import enable_inplace_requires_grad
from torch.autograd import forward_ad


def carried(args: Sequence[Any]) -> bool:
    """Whether a tensor has a forward-mode tangent."""
    # A graph that torch.compile made of a transform does not set the level.
    if forward_ad._current_level < 0 and not torch._C._are_functorch_transforms_active():
        return False
    tensors = (t for t in args if isinstance(t, Tensor) and not is_batch(t))
    return any(dual(t).tangent is not None for t in tensors)


def is_batch(t: Any) -> bool:
    """Whether t is a batch of gradients, as torch.autograd makes for ``is_grads_batched``. torch
    calls registered ops for one gradient at a time."""
    return isinstance(t, Tensor) and torch._C._functorch.is_legacy_batchedtensor(t)


def dual(t: Tensor) -> Any:
    """The pair ``primal`` and ``tangent`` of a tensor; without one, that is None."""
    return forward_ad.unpack_dual(t, level=0)  # there is one level


def pushed(
    function: Callable[..., Any], args: Sequence[Any], tangents: Sequence[Tensor | None]
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """The results of a function, and their tangents J·t.

    The backward pass u ↦ Jᵀ·u is linear, and its own backward pass multiplies by J. So the tangents
    take two backward passes, and no op needs a formula of its own for them.
    """
    given = [dual(t).primal if isinstance(t, Tensor) else t for t in args]
    if not torch.is_grad_enabled():  # these views seem to require grad, and have no history
        given = [unrecorded(t) if isinstance(t, Tensor) else t for t in given]
    recorded = torch.is_grad_enabled() and torch._C._any_requires_grad(*given, *tangents)
    with torch.enable_grad():
        given = [p if t is None else differentiable(p) for p, t in zip(given, tangents)]
        out = function(*given)
        results = (out,) if isinstance(out, Tensor) else out
        grads = [torch.zeros_like(t, requires_grad=True) for t in results]
        pairs = [(p, t) for p, t in zip(given, tangents) if t is not None]
        pulled = torch.autograd.grad(results, [p for p, _ in pairs], grads, create_graph=True)
        linear = [(p, t) for p, (_, t) in zip(pulled, pairs) if p.requires_grad]  # others are 0
        multiplied = tuple(map(torch.zeros_like, results))
        if linear:
            multiplied = torch.autograd.grad(
                [p for p, _ in linear],
                grads,
                [t for _, t in linear],
                create_graph=recorded or transformed(),
                materialize_grads=True,
            )
    return results if recorded else tuple(map(unrecorded, results)), multiplied


def differentiable(t: Tensor) -> Tensor:
    """t if it requires grad, else the same that does."""
    if t.requires_grad:
        return t
    with enable_inplace_requires_grad(True):  # which transforms forbid their functions
        return (t.clone() if transformed() else t.detach()).requires_grad_()


def unrecorded(t: Tensor) -> Tensor:
    """t without its history, unless a transform may need it."""
    return t if transformed() or not t.requires_grad else t.detach()


def transformed() -> bool:
    """Whether transforms of torch.func see this. detach() would end the history of the outer ones,
    too."""
    return torch._C._functorch.peek_interpreter_stack() is not None
