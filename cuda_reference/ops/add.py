"""add: argument checks, launches and gradients. The kernels are in csrc/add.cu."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cuda_reference import _arguments, _elementwise, _forms, _launch, _rungs
from cuda_reference._arguments import FLOATING, INTEGRAL
from cuda_reference._registered import Gradients, Registered, broadcast, empty
from cuda_reference.ops.sum_to import reduced

__all__ = ["add"]

VARIANTS = {
    "add": {
        "f32": (torch.float32,),
        "f32x4": (torch.float32,),
        "f16": (torch.float16,),
        "f16x2": (torch.float16,),
        "f16x8": (torch.float16,),
        "f16x8_pack": (torch.float16,),
        "bf16": (torch.bfloat16,),
        "bf16x2": (torch.bfloat16,),
        "bf16x8": (torch.bfloat16,),
        "bf16x8_pack": (torch.bfloat16,),
        **_rungs.VARIANTS,
    }
}


def add(
    x: Tensor | int | float,
    y: Tensor | int | float,
    *,
    alpha: int | float = 1,
    out: Tensor | None = None,
    variant: str | None = None,
    explain: bool = False,
) -> Tensor:
    """x + alpha·y as fma(alpha, y, x): the CUDA twin of :func:`triton_kernels.add`.

    Args:
        x, y, alpha, out: as in triton_kernels.add.
        variant: f32, f32x4, f16, f16x2, f16x8, f16x8_pack, bf16, bf16x2, bf16x8 or bf16x8_pack:
            a kernel for contiguous tensors of one shape and that dtype. A rung ("scalar", "pack64",
            "pack128", "stream") takes tensors of any floating dtype that are dense in one order,
            or ("elements", "strided", "tile") tensors of 16 or 32 bits in other layouts; "auto" is
            the best rung that takes the operands. None: any layout.
        explain: print the rung that "auto" takes, and why.

    Raises:
        TypeError, ValueError, RuntimeError: as triton_kernels.add; ValueError also for inputs that
            the variant does not take.
    """
    op = _add
    if isinstance(x, (bool, int, float)):
        op = _add_to_scalar
        if isinstance(y, (bool, int, float)):
            y = _as_tensor("add", x, y)
    elif isinstance(y, (bool, int, float)):
        op = _add_scalar
    result: Tensor = op(x, y, alpha, variant, explain, out=out)
    return result


def _launch_add(
    x: Tensor | int | float,
    y: Tensor | int | float,
    alpha: int | float,
    variant: str | None,
    explain: bool,
    *,
    out: Tensor | None = None,
) -> Tensor:
    operands = _promotable("add", x, y, FLOATING + INTEGRAL)
    tensors = {name: t for name, t in operands.items() if isinstance(t, Tensor)}
    dtype = _result_dtype(*operands.values())
    alpha = _arguments.check_number("add", "alpha", alpha, dtype)
    given: int | float = 0
    for name in operands.keys() - tensors.keys():
        given = _arguments.check_number("add", name, operands[name], dtype)
    out = _elementwise.output("add", tensors, dtype, out)
    numbers = [f"takes tensors, but '{n}' is a number" for n in operands.keys() - tensors.keys()]
    every, unfit = {**tensors, "out": out}, next(iter(numbers), "")
    chosen = _rungs.chosen("add", variant, explain, VARIANTS["add"], every, unfit)
    if chosen is not None:
        inputs, factor = list(tensors.values()), _launch.scalar(alpha)
        _rungs.launch("add", "add", chosen, tensors, inputs, (out,), factor)
        return out
    views = _elementwise.views(out, tensors)
    return _elementwise.run(
        "add",
        "add",
        out,
        tensors,
        views.get("x"),
        views.get("y"),
        _launch.scalar(given),
        views["out"],
        _launch.scalar(alpha),
    )


def _promotable(op: str, x: Any, y: Any, dtypes: tuple[torch.dtype, ...]) -> dict[str, Any]:
    """The operands by name, checked; one of them may be a number."""
    operands: dict[str, Any] = {"x": x, "y": y}
    numbers = [name for name, t in operands.items() if isinstance(t, (bool, int, float))]
    for name, t in operands.items():
        if name not in numbers:
            _arguments.check_tensor(op, name, t, dtypes)
        elif isinstance(t, bool):
            operands[name] = int(t)
    if not numbers:
        return _elementwise.on_one_device(operands)
    return operands


def _as_tensor(op: str, x: int | float, y: int | float) -> Tensor:
    """y as a 0-d CPU tensor, of the dtype to which two numbers promote."""
    dtype = torch.result_type(type(x)(), type(y)())
    if dtype is torch.bool:
        raise TypeError(f"{op}(): 'x' and 'y' are bools, and there is no sum of dtype bool")
    value = _arguments.check_number(op, "y", int(y) if isinstance(y, bool) else y, dtype)
    if isinstance(value, int) and value >= 2**63:
        value -= 2**64
    return torch.full((), value, dtype=dtype, device="cpu")


def _result_dtype(x: Any, y: Any) -> torch.dtype:
    """The dtype to which torch promotes; of a number only its kind counts."""
    return torch.result_type(*(t if isinstance(t, Tensor) else type(t)() for t in (x, y)))


def _fake(x: Any, y: Any, *_: Any) -> Tensor:
    tensors = [t for t in (x, y) if isinstance(t, Tensor)]
    return empty(broadcast(*tensors), _result_dtype(x, y), *tensors, like=tensors[0])


def _backward(call: Any, grad: Tensor) -> dict[str, Tensor | None]:
    grads: dict[str, Tensor | None] = {}
    if "x" in call.needs:
        grads["x"] = reduced(grad, call.x)
    if "y" in call.needs:
        grads["y"] = reduced(grad, call.y, call.alpha)
    return grads


def _register(name: str, operands: str) -> Registered:
    """Register add for these kinds of operands."""
    parameters = f"{operands}, Scalar alpha, str? variant, bool explain"
    gradients = Gradients(_backward, {"x": (), "y": ()})
    return Registered(
        name,
        parameters,
        _launch_add,
        _fake,
        gradients=gradients,
        label="add",
        form=_forms.elementwise,
    )


_add = _register("add", "Tensor x, Tensor y")
_add_scalar = _register("add_scalar", "Tensor x, Scalar y")
_add_to_scalar = _register("add_to_scalar", "Scalar x, Tensor y")
