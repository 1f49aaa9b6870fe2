"""Which tensors have memory that a kernel can use: the address of any other ends the process."""

from __future__ import annotations

import torch
from torch import Tensor

NEVER = 1 << 42  # bytes: no storage is as large, so that no offset of no memory lies there


def check_memory(op: str, what: str, t: Tensor) -> Tensor:
    """``t``, if its elements lie at its address; ``what`` is what the error calls it.

    Tensors on the meta device pass: their device is refused, as any other that is not supported.
    """
    if has_memory(t) or t.is_meta:
        return t
    raise TypeError(
        f"{op}(): {what} is {_kind(t)}, which has no memory of its own that a kernel could use; "
        "only plain tensors do, outside of torch.func's transforms and of FakeTensorMode"
    )


def has_memory(t: Tensor) -> bool:
    """Whether the elements of ``t`` lie at its address, as they do in most subclasses, too."""
    try:
        if t.data_ptr() > NEVER:
            return True
        # Of the storage: a view of no memory may have an address, which is its offset.
        return t.untyped_storage().data_ptr() != 0 or t.numel() == 0
    except (RuntimeError, ValueError):  # there is no storage, or none that has an address
        return False


def new_result(op: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A new contiguous tensor, unless a mode or a transform makes it one that has no memory."""
    return check_memory(op, "the result", torch.empty(shape, dtype=dtype, device=device))


def _kind(t: Tensor) -> str:
    """What a tensor without memory is called."""
    functorch = torch._C._functorch
    if torch._is_functional_tensor(t):
        return "a functional tensor (torch.func.functionalize)"
    if functorch.is_functorch_wrapped_tensor(t):
        if functorch.is_batchedtensor(t):
            return "a BatchedTensor (torch.func.vmap)"
        return "a GradTrackingTensor (torch.func.grad, vjp, jvp)"
    if type(t) not in (Tensor, torch.nn.Parameter):
        return f"a {type(t).__module__}.{type(t).__qualname__}"
    if t._is_zerotensor():
        return "a ZeroTensor, autograd's sign for zeros"
    return "a tensor whose storage was freed"
