"""Whether a tensor has memory that a kernel can use."""

from __future__ import annotations

import torch

LOW = 1 << 40  # memory seldom lies below, and views at an offset of no memory do


def there(t: torch.Tensor) -> bool:
    """Whether the elements of ``t`` lie at its address: where not, a kernel would end the process.

    Of tensors on the meta device it says yes: they are cross-compiled for, or their device is
    refused.
    """
    try:
        if t.data_ptr() >= LOW:  # to look at the storage as well would take long
            return True
        return t.is_meta or bool(t.untyped_storage().data_ptr()) or not t.numel()
    except RuntimeError:  # what wraps or stands for other tensors has neither
        return False


def refusal(op: str, what: str, t: torch.Tensor) -> TypeError:
    """The error for a tensor that is not there; ``what`` is what it calls it."""
    return TypeError(
        f"{op}(): {what} is {_kind(t)}: it has no memory of its own for a kernel to read or write; "
        "pass a plain tensor"
    )


def _kind(t: torch.Tensor) -> str:
    """What to call a tensor that has no memory."""
    if torch._is_functional_tensor(t):
        return "a functional tensor, as of torch.func.functionalize"
    if torch._C._functorch.is_functorch_wrapped_tensor(t):
        return "a wrapped tensor of a torch.func transform (vmap, grad and the like)"
    if torch._C._functorch.is_legacy_batchedtensor(t):
        return (
            "a batch of gradients, of torch.autograd with is_grads_batched or vectorize "
            "(torch.func's jacrev and vmap of vjp work)"
        )
    if t._is_zerotensor():
        return "a ZeroTensor, which autograd puts in place of zeros"
    if type(t) is torch.Tensor or type(t) is torch.nn.Parameter:
        return "a tensor whose storage was freed"
    return f"a {type(t).__module__}.{type(t).__qualname__}"
