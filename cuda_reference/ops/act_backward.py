"""act_backward, the gradient of the epilogue's activation: argument checks, launch and second
gradients. The kernel is in csrc/act_backward.cu.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cuda_reference import _activations, _arguments, _build, _launch, _memory, _rungs, _sum_rungs
from cuda_reference._arguments import FLOATING
from cuda_reference._registered import Gradients, Registered, empty
from cuda_reference._second_derivatives import of_saved
from cuda_reference.ops.add import add

__all__ = ["act_backward"]

VARIANTS = {"act_backward": _sum_rungs.VARIANTS}


def act_backward(
    grad: Tensor,
    saved: Tensor,
    act: str,
    *,
    bias: bool = True,
    dtype: torch.dtype | None = None,
    out: tuple[Tensor, Tensor] | None = None,
    variant: str | None = None,
    explain: bool = False,
) -> tuple[Tensor, Tensor]:
    """grad·act'(saved) and its column sums: the CUDA twin of :func:`triton_kernels.act_backward`.

    Args:
        grad, saved, act, bias, dtype, out: as in triton_kernels.act_backward.
        variant: a rung ("lanes", "pack128", "two_pass") for tensors of one dtype, float16, bfloat16
            or float32. "auto" is "two_pass" for these, else None, the plain kernel, which takes any
            dtypes.
        explain: print what "auto" takes, and why.

    Raises:
        TypeError, ValueError, RuntimeError, NotImplementedError: as triton_kernels.act_backward.
        ValueError: also for tensors that the variant does not take.
    """
    results: tuple[Tensor, Tensor] = _act_backward(
        grad, saved, act, bias, dtype, variant, explain, out=out
    )
    return results


def _launch_act_backward(
    grad: Tensor,
    saved: Tensor,
    act: str,
    bias: bool,
    dtype: torch.dtype | None,
    variant: str | None,
    explain: bool,
    *,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    op = "act_backward"
    grad = _arguments.check_tensor(op, "grad", grad, FLOATING)
    saved = _arguments.check_tensor(op, "saved", saved, FLOATING)
    _activations.check(op, act)
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
    rung = _sum_rungs.chosen(op, variant, explain, {**inputs, "dx": dx})
    if grad.shape[1]:
        describe = _launch.tensor if rung is None else _sum_rungs.described
        described = [describe(t) for t in (grad, saved, dx)]
        total = _launch.tensor(sums) if bias else None
        told = {"grad": grad, "act": act}
        arguments = *described, total, _activations.number(act)
        if rung is None:
            _launch.launch(op, op, told, (dx, sums), *arguments, act=act, part=_build.PLAIN)
        else:
            _sum_rungs.launch(op, rung, dx.dtype, told, (dx, sums), *arguments, act=act)
    return dx, sums


def _fake(
    grad: Tensor, saved: Tensor, act: str, bias: bool, dtype: torch.dtype | None, *_: Any
) -> tuple[Tensor, Tensor]:
    dtype = dtype or torch.promote_types(grad.dtype, saved.dtype)
    sums = (grad.shape[1] if bias else 0,)
    return empty(tuple(grad.shape), dtype, grad), empty(sums, dtype, grad)


def _backward(call: Any, of_dx: Tensor | None, of_sums: Tensor | None) -> dict[str, Tensor | None]:
    """Linear in grad."""
    grads: dict[str, Tensor | None] = {}
    total = of_dx
    if of_sums is not None and call.bias:
        each = of_sums.expand(call.grad.shape)
        total = each if of_dx is None else add(of_dx, each)
    if total is None:
        return grads
    if "saved" in call.needs:
        grads["saved"] = of_saved("act_backward", call.act, call.saved, call.grad, total)
    if "grad" in call.needs:
        options: dict[str, Any] = {"dtype": call.grad.dtype, "variant": _rungs.again(call.variant)}
        grads["grad"], _ = act_backward(total, call.saved, call.act, bias=False, **options)
    return grads


_act_backward = Registered(
    "act_backward",
    "Tensor grad, Tensor saved, str act, bool bias, ScalarType? dtype, str? variant, bool explain",
    _launch_act_backward,
    _fake,
    gradients=Gradients(_backward, {"grad": ("saved",), "saved": ("saved", "grad")}),
    results=2,
)
