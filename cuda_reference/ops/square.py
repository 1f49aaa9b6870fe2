"""square and square_backward: argument checks, launches and gradients. The kernels are in
csrc/square.cu.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cuda_reference import _arguments, _elementwise, _forms, _launch, _rungs
from cuda_reference._arguments import FLOATING, INTEGRAL
from cuda_reference._registered import Gradients, Registered
from cuda_reference.ops.sum_to import reduced

__all__ = ["square", "square_backward"]

_GRIDS = {"1d": FLOATING + INTEGRAL, "2d": FLOATING + INTEGRAL}
_SQUARE: _rungs.Variants = {**_GRIDS, **_rungs.VARIANTS}
VARIANTS = {"square": _SQUARE, "square_backward": _rungs.VARIANTS}


def square(
    x: Tensor, *, out: Tensor | None = None, variant: str | None = None, explain: bool = False
) -> Tensor:
    """x·x: the CUDA twin of :func:`triton_kernels.square`.

    Args:
        x, out: as in triton_kernels.square.
        variant: "1d" for contiguous tensors; "2d" for contiguous matrices, on a two-dimensional
            grid; a rung ("scalar", "pack64", "pack128", "stream") for tensors of a floating
            dtype that are dense in one order; "auto": the best rung that takes x and out. None: any
            layout.
        explain: print the rung that "auto" takes, and why.

    Raises:
        TypeError, ValueError, RuntimeError: as triton_kernels.square; ValueError also for inputs
            that the variant does not take.
    """
    result: Tensor = _square(x, variant, explain, out=out)
    return result


def _launch_square(
    x: Tensor, variant: str | None, explain: bool, *, out: Tensor | None = None
) -> Tensor:
    if variant not in _GRIDS:
        operands, dtypes = {"x": x}, FLOATING + INTEGRAL
        return _elementwise.pointwise(
            "square", "square", operands, {}, dtypes, out, _SQUARE, variant, explain
        )
    x = _arguments.check_tensor("square", "x", x, FLOATING + INTEGRAL)
    out = _elementwise.output("square", {"x": x}, x.dtype, out)
    _rungs.chosen("square", variant, explain, _SQUARE, {"x": x, "out": out})
    if variant == "2d" and x.dim() != 2:
        raise ValueError(f"square(): variant '2d' takes a matrix, but x has shape {list(x.shape)}")
    arguments = _launch.tensor(x), _launch.tensor(out)
    return _elementwise.run("square", f"square_{variant}", out, {"x": x}, *arguments)


def square_backward(
    grad: Tensor,
    x: Tensor,
    *,
    out: Tensor | None = None,
    variant: str | None = None,
    explain: bool = False,
) -> Tensor:
    """grad·(2·x): the CUDA twin of :func:`triton_kernels.square_backward`. Arguments and errors are
    its own; variant and explain are those of square, without "1d" and "2d"."""
    result: Tensor = _square_backward(grad, x, variant, explain, out=out)
    return result


def _launch_backward(
    grad: Tensor, x: Tensor, variant: str | None, explain: bool, *, out: Tensor | None = None
) -> Tensor:
    op, operands, variants = "square_backward", {"grad": grad, "x": x}, _rungs.VARIANTS
    return _elementwise.pointwise(
        op, "square", operands, {}, FLOATING, out, variants, variant, explain
    )


def _gradient(call: Any, grad: Tensor) -> dict[str, Tensor | None]:
    return {"x": square_backward(grad, call.x, variant=_rungs.again(call.variant))}


def _second_gradients(call: Any, g: Tensor) -> dict[str, Tensor | None]:
    """Each factor of grad·2·x has a gradient that holds the other factor."""
    return {
        name: reduced(square_backward(g, other), mine)
        for name, mine, other in (("grad", call.grad, call.x), ("x", call.x, call.grad))
        if name in call.needs
    }


def _form(tensors: Sequence[Tensor], args: tuple[Any, ...]) -> _forms.Form | None:
    """None for kernels that take x's own dimensions."""
    return None if args[1] in _GRIDS else _forms.elementwise(tensors)


_square = Registered(
    "square",
    "Tensor x, str? variant, bool explain",
    _launch_square,
    lambda x, *_: _elementwise.fake(x),
    gradients=Gradients(_gradient, {"x": ("x",)}),
    form=_form,
    autocast=torch.float32,
)
_square_backward = Registered(
    "square_backward",
    "Tensor grad, Tensor x, str? variant, bool explain",
    _launch_backward,
    lambda grad, x, *_: _elementwise.fake(grad, x),
    gradients=Gradients(_second_gradients, {"grad": ("x",), "x": ("grad",)}),
    form=_forms.elementwise,
)
