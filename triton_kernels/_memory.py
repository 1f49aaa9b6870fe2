"""Whether a tensor has memory that a kernel can use."""

from __future__ import annotations

import torch

LOW = 1 << 40  # addresses of memory are rarely below; those of views without memory always are


def there(t: torch.Tensor) -> bool:
    """Whether ``t`` has memory at its address. If not, a kernel would end the process.

    The answer is True for tensors on the meta device: kernels are cross-compiled for them, or their
    device is refused.
    """
    try:
        if t.data_ptr() >= LOW:  # asking for the storage takes longer
            return True
        return t.is_meta or bool(t.untyped_storage().data_ptr()) or not t.numel()
    except RuntimeError:  # wrappers of other tensors have no address and no storage
        return False


def refusal(op: str, what: str, t: torch.Tensor) -> TypeError:
    """The error for a tensor without memory; ``what`` names the tensor in its text."""
    return TypeError(
        f"{op}(): {what} is {_kind(t)}: it has no memory of its own for a kernel to read or write; "
        "pass a plain tensor"
    )


def _kind(t: torch.Tensor) -> str:
    """A description of a tensor without memory."""
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
