"""act_backward, the gradient of the products' activations: argument checks and launch. The kernel
stands in csrc/act_backward.cu.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cuda_reference import _arguments, _gemm, _launch, _memory
from cuda_reference._arguments import FLOATING

__all__ = ["act_backward"]


def act_backward(
    grad: Tensor,
    saved: Tensor,
    act: str,
    *,
    bias: bool = True,
    dtype: torch.dtype | None = None,
    out: tuple[Tensor, Tensor] | None = None,
    variant: str | None = None,
) -> tuple[Tensor, Tensor]:
    """grad·act'(saved), and its column sums: the twin of :func:`triton_kernels.act_backward`; it
    has no variants.

    Args:
        grad, saved, act, bias, dtype, out: as there.
        variant: None.

    Raises:
        TypeError, ValueError, RuntimeError: as there; ValueError for any variant.
    """
    op = "act_backward"
    grad = _arguments.check_tensor(op, "grad", grad, FLOATING)
    saved = _arguments.check_tensor(op, "saved", saved, FLOATING)
    _arguments.check_choice(op, "act", act, _gemm.ACTS)
    if variant is not None:
        _arguments.check_choice(op, "variant", variant, ())
    _arguments.check_flag(op, "bias", bias)
    promoted = torch.promote_types(grad.dtype, saved.dtype)
    dtype = _arguments.check_result_dtype(op, "dtype", dtype, promoted)
    if grad.dim() != 2 or grad.shape != saved.shape:
        raise RuntimeError(
            f"{op}(): 'grad' and 'saved' must have one shape [M, N], but have {list(grad.shape)} "
            f"and {list(saved.shape)}"
        )
    inputs = {"grad": grad, "saved": saved}
    device = _arguments.check_device(op, inputs)
    sums_shape = (grad.shape[1],) if bias else (0,)
    if out is None:
        dx = _memory.new_result(op, tuple(grad.shape), dtype, device)
        sums = _memory.new_result(op, sums_shape, dtype, device)
    else:
        if not isinstance(out, tuple) or len(out) != 2:
            raise TypeError(f"{op}(): argument 'out' must be two tensors, not {out!r:.60}")
        shape = tuple(grad.shape)
        dx = _arguments.check_out(op, out[0], shape, dtype, inputs, in_place=True)
        others = {**inputs, "the other result": dx}
        sums = _arguments.check_out(op, out[1], sums_shape, dtype, others, in_place=False)
    if grad.shape[1]:
        described = [_launch.tensor(t) for t in (grad, saved, dx)]
        total = _launch.tensor(sums) if bias else None
        told = {"grad": grad, "act": act}
        _launch.launch(op, op, told, (dx, sums), *described, total, _gemm.ACTS.index(act))
    return dx, sums
