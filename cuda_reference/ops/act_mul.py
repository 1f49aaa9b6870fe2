"""act_mul, the middle of a gated unit, and its gradients: argument checks, launches and second
gradients. The kernels are in csrc/act_mul.cu.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cuda_reference import _activations, _arguments, _build, _elementwise, _forms, _launch, _rungs
from cuda_reference._arguments import FLOATING
from cuda_reference._registered import Gradients, Registered, broadcast, empty, promoted
from cuda_reference._second_derivatives import of_argument
from cuda_reference.ops.add import add
from cuda_reference.ops.sum_to import reduced

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
        gate, up, act, out: as in triton_kernels.act_mul.
        variant: a rung ("scalar", "pack64", "pack128", "stream") for tensors of one shape that are
            dense in one order, of float16, bfloat16 or float32; "auto": the best rung that takes
            the tensors. None: any layout.
        explain: print the rung that "auto" takes, and why.

    Raises:
        TypeError, ValueError, RuntimeError: as triton_kernels.act_mul; ValueError also for inputs
            that the variant does not take.
    """
    result: Tensor = _act_mul(gate, up, act, variant, explain, out=out)
    return result


def _launch_act_mul(
    gate: Tensor,
    up: Tensor,
    act: str,
    variant: str | None,
    explain: bool,
    *,
    out: Tensor | None = None,
) -> Tensor:
    op = "act_mul"
    tensors = _checked(op, {"gate": gate, "up": up}, act)
    result = _elementwise.output(op, tensors, torch.result_type(*tensors.values()), out)
    rung = _rungs.chosen(op, variant, explain, VARIANTS[op], {**tensors, "out": result})
    if rung is not None:
        told, inputs = {**tensors, "act": act}, list(tensors.values())
        _rungs.launch(op, op, rung, told, inputs, (result,), _activations.number(act), act=act)
        return result
    views = _elementwise.views(result, tensors)
    return _elementwise.run(
        op, op, result, tensors, *views.values(), _activations.number(act), act=act
    )


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
        grad, gate, up, act, out: as in triton_kernels.act_mul_backward.
        variant, explain: as in act_mul.

    Raises:
        TypeError, ValueError, RuntimeError, NotImplementedError: as
            triton_kernels.act_mul_backward; ValueError also for inputs that variant does not take.
    """
    results: tuple[Tensor, Tensor] = _act_mul_backward(
        grad, gate, up, act, variant, explain, out=out
    )
    return results


def _launch_backward(
    grad: Tensor,
    gate: Tensor,
    up: Tensor,
    act: str,
    variant: str | None,
    explain: bool,
    *,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    op = "act_mul_backward"
    tensors = _checked(op, {"grad": grad, "gate": gate, "up": up}, act)
    dtype = promoted(*tensors.values())
    if out is None:
        dgate, dup = (
            _elementwise.output(op, tensors, dtype, None, like) for like in ("gate", "up")
        )
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
        _rungs.launch("act_mul", op, rung, told, inputs, written, _activations.number(act), act=act)
    elif dup.numel():
        views = _elementwise.views(dup, {**tensors, "dgate": dgate})
        arguments = *views.values(), _activations.number(act)
        _launch.launch("act_mul", op, told, written, *arguments, act=act, part=_build.PLAIN)
    return dgate, dup


def _checked(op: str, tensors: dict[str, Tensor], act: str) -> dict[str, Tensor]:
    """Check dtypes and act; return the tensors on one device."""
    for name, t in tensors.items():
        _arguments.check_tensor(op, name, t, FLOATING)
    _activations.check(op, act)
    return _elementwise.on_one_device(tensors)


def _fake(gate: Tensor, up: Tensor, *_: Any) -> Tensor:
    return _elementwise.fake(gate, up)


def _fake_backward(grad: Tensor, gate: Tensor, up: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    shape, dtype = broadcast(grad, gate, up), promoted(grad, gate, up)
    dgate, dup = (empty(shape, dtype, grad, gate, up, like=like) for like in (gate, up))
    return dgate, dup


def _gradients(call: Any, grad: Tensor) -> dict[str, Tensor | None]:
    """One launch makes the gradients of both operands; up's alone is act_mul(gate, grad)."""
    variant = _rungs.again(call.variant)
    if "gate" not in call.needs:
        return {"up": reduced(act_mul(call.gate, grad, call.act, variant=variant), call.up)}
    dgate, dup = act_mul_backward(grad, call.gate, call.up, call.act, variant=variant)
    grads: dict[str, Tensor | None] = {"gate": reduced(dgate, call.gate)}
    if "up" in call.needs:
        grads["up"] = reduced(dup, call.up)
    return grads


def _second_gradients(
    call: Any, of_dgate: Tensor | None, of_dup: Tensor | None
) -> dict[str, Tensor | None]:
    """dgate = grad·act'(gate)·up and dup = grad·act(gate) are linear in grad and up."""
    grad, gate, up, act = call.grad, call.gate, call.up, call.act
    terms: dict[str, list[Tensor]] = {"grad": [], "gate": [], "up": []}
    if of_dgate is not None:
        if "gate" in call.needs:
            terms["gate"].append(of_argument("act_mul_backward", act, gate, grad, up, of_dgate))
        terms["grad"].append(act_mul_backward(of_dgate, gate, up, act)[0])
        terms["up"].append(act_mul_backward(of_dgate, gate, grad, act)[0])
    if of_dup is not None:
        terms["grad"].append(act_mul(gate, of_dup, act))
        terms["gate"].append(act_mul_backward(of_dup, gate, grad, act)[0])
    grads: dict[str, Tensor | None] = {}
    for name, mine in (("grad", grad), ("gate", gate), ("up", up)):
        if name in call.needs:
            total = terms[name][:1] if len(terms[name]) < 2 else [add(*terms[name])]
            grads[name] = reduced(total[0], mine) if total else torch.zeros_like(mine)
    return grads


_act_mul = Registered(
    "act_mul",
    "Tensor gate, Tensor up, str act, str? variant, bool explain",
    _launch_act_mul,
    _fake,
    gradients=Gradients(_gradients, {"gate": ("gate", "up"), "up": ("gate",)}),
    form=_forms.elementwise,
)
_EVERY = ("grad", "gate", "up")
_act_mul_backward = Registered(
    "act_mul_backward",
    "Tensor grad, Tensor gate, Tensor up, str act, str? variant, bool explain",
    _launch_backward,
    _fake_backward,
    gradients=Gradients(_second_gradients, dict.fromkeys(_EVERY, _EVERY)),
    form=_forms.elementwise,
    results=2,
)
