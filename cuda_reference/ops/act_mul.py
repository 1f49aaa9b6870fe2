"""act_mul, the middle of a gated unit, and its gradients: argument checks and launches. The kernels
stand in csrc/act_mul.cu.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from cuda_reference import _arguments, _elementwise, _gemm, _launch, _rungs
from cuda_reference._arguments import FLOATING

__all__ = ["act_mul", "act_mul_backward"]

_DTYPES = FLOATING[:3]
VARIANTS = dict.fromkeys(__all__, dict.fromkeys(_rungs.RUNGS, _DTYPES))


def act_mul(
    gate: Tensor,
    up: Tensor,
    act: str,
    *,
    out: Tensor | None = None,
    variant: str | None = None,
    explain: bool = False,
) -> Tensor:
    """act(gate)·up: the CUDA twin of :func:`triton_kernels.act_mul`.

    Args:
        gate, up, act, out: as there.
        variant: a rung ("scalar", "pack64", "pack128", "stream") for contiguous tensors of float16,
            bfloat16 or float32; "auto", the best rung that takes the tensors. None: any layout.
        explain: print what "auto" is, and why.

    Raises:
        TypeError, ValueError, RuntimeError: as there; ValueError also for inputs that the variant
            does not take.
    """
    op = "act_mul"
    tensors = _checked(op, {"gate": gate, "up": up}, act)
    result = _elementwise.output(op, tensors, torch.result_type(*tensors.values()), out)
    rung = _rungs.chosen(op, variant, explain, VARIANTS[op], {**tensors, "out": result})
    if rung is not None:
        told, inputs = {**tensors, "act": act}, list(tensors.values())
        _rungs.launch(op, op, rung, told, inputs, (result,), _gemm.ACTS.index(act))
        return result
    views = _elementwise.views(result, tensors)
    return _elementwise.run(op, op, result, tensors, *views.values(), _gemm.ACTS.index(act))


def act_mul_backward(
    grad: Tensor,
    gate: Tensor,
    up: Tensor,
    act: str,
    *,
    out: tuple[Tensor, Tensor] | None = None,
    variant: str | None = None,
    explain: bool = False,
) -> tuple[Tensor, Tensor]:
    """grad·act'(gate)·up and grad·act(gate): the twin of :func:`triton_kernels.act_mul_backward`.

    Args:
        grad, gate, up, act, out: as there.
        variant, explain: as act_mul.

    Raises:
        TypeError, ValueError, RuntimeError: as there; ValueError also for inputs that the variant
            does not take.
    """
    op = "act_mul_backward"
    tensors = _checked(op, {"grad": grad, "gate": gate, "up": up}, act)
    dtype = _promoted(tensors)
    if out is None:
        dgate, dup = (_elementwise.output(op, tensors, dtype, None) for _ in range(2))
    else:
        if not isinstance(out, tuple) or len(out) != 2:
            raise TypeError(f"{op}(): argument 'out' must be two tensors, not {out!r:.60}")
        dgate, dup = (_elementwise.output(op, tensors, dtype, result) for result in out)
        other = {"the other result": dgate}
        _arguments.check_out(op, dup, tuple(dup.shape), dtype, other, in_place=False)
    told, written = {**tensors, "act": act}, (dgate, dup)
    every = {**tensors, "dgate": dgate, "dup": dup}
    rung = _rungs.chosen(op, variant, explain, VARIANTS[op], every)
    if rung is not None:
        inputs = list(tensors.values())
        _rungs.launch("act_mul", op, rung, told, inputs, written, _gemm.ACTS.index(act))
    elif dup.numel():
        views = _elementwise.views(dup, {**tensors, "dgate": dgate})
        arguments = *views.values(), _gemm.ACTS.index(act)
        _launch.launch("act_mul", op, told, written, *arguments)
    return dgate, dup


def _checked(op: str, tensors: dict[str, Tensor], act: str) -> dict[str, Tensor]:
    """The tensors; those on the CPU without dimensions follow the others to their GPU."""
    for name, t in tensors.items():
        _arguments.check_tensor(op, name, t, FLOATING)
    _arguments.check_choice(op, "act", act, _gemm.ACTS)
    for t in tensors.values():
        if t.is_cuda:
            scalars = {n: s for n, s in tensors.items() if s.is_cpu and s.dim() == 0}
            return {**tensors, **{name: s.to(t.device) for name, s in scalars.items()}}
    return tensors


def _promoted(tensors: dict[str, Tensor]) -> torch.dtype:
    """torch.result_type of three floats: those without dimensions count where all are so."""
    counting = [t for t in tensors.values() if t.dim()] or list(tensors.values())
    return functools.reduce(torch.promote_types, (t.dtype for t in counting))
