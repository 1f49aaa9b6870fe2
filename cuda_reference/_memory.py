"""Whether tensors have memory that a kernel can use. Any other address would end the process."""

from __future__ import annotations

import torch
from torch import Tensor

NEVER = 1 << 42  # no storage has so many bytes, so larger addresses are no offsets without memory


def check_memory(op: str, what: str, t: Tensor) -> Tensor:
    """``t`` if it has memory at its address. ``what`` names it in the error's text.

    Tensors on the meta device are accepted here; the check of the device refuses them.

    Raises:
        TypeError: it has no memory.
    """
    if has_memory(t) or t.is_meta:
        return t
    raise TypeError(
        f"{op}(): {what} is {_kind(t)}, which has no memory of its own that a kernel could use; "
        "only plain tensors do, outside of torch.func's transforms and of FakeTensorMode"
    )


def has_memory(t: Tensor) -> bool:
    """Whether ``t`` has memory at its address, as most subclasses also have."""
    try:
        if t.data_ptr() > NEVER:
            return True
        # The storage's address decides: a view without memory may have its offset as address.
        return t.untyped_storage().data_ptr() != 0 or t.numel() == 0
    except (RuntimeError, ValueError):  # there is no storage, or it has no address
        return False


def new_result(
    op: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    like: Tensor | None = None,
) -> Tensor:
    """A new tensor, as :func:`empty`. Raises TypeError if a mode or transform makes one without
    memory."""
    return check_memory(op, "the result", empty(shape, dtype, device, like))


def empty(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, like: Tensor | None = None
) -> Tensor:
    """A new tensor, dense in the order of ``like``'s strides if that has its shape, as torch's
    results are; else contiguous."""
    if like is None or like.shape != shape:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.empty_like(like, dtype=dtype, device=device)


def _kind(t: Tensor) -> str:
    """A description of a tensor without memory."""
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
