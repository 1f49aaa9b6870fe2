"""relu_scale: out = relu(x)·scale. relu_scale_add: out = relu(x)·scale + y.
relu_scale_backward: out = grad·scale where x > 0 or NaN, else 0, the gradient of both.

Shapes: any that broadcast. scale is a Python number or a tensor of any shape that broadcasts, for
example one value per channel. Dtypes: float16, bfloat16, float32, float64. The compute type C is
float32, or float64 for float64. Tensors are converted to the result dtype, then to C. A number is
rounded once to C.

Steps: relu(x) = 0 where x < 0, else x, so NaN stays NaN and −0 stays −0; one multiplication, or
fma(relu(x), scale, y); one rounding to the result dtype. Gradient: 0 where x <= 0, else one
multiplication, so a NaN in x passes the gradient through, as in torch. relu(x)·scale is NaN for
x < 0 and an infinite scale: 0·inf.
The gradient of scale is relu_scale(x, grad), summed to scale's shape.
Reference: torch.relu(x) * scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.fx import Node

from triton_kernels import _arguments, _elementwise_op
from triton_kernels._fusion import (
    Activation,
    Entry,
    Form,
    Fusion,
    Match,
    Probe,
    Scaled,
    Signature,
    Sum,
    Times,
)
from triton_kernels._operator import Gradient, Operator
from triton_kernels._placements import P, R, Rule, Sharding, elementwise
from triton_kernels.ops.sum_to import reduce_to

__all__ = ["relu_scale", "relu_scale_add", "relu_scale_backward"]

DTYPES = _arguments.FLOATS


@triton.jit
def relu_scale_element(x, scale):
    return tl.where(x < 0, 0.0, x) * scale


@triton.jit
def relu_scale_add_element(x, y, scale):
    relu = tl.where(x < 0, 0.0, x)
    return tl.fma(relu, tl.broadcast_to(scale, relu.shape), y)  # 0 + scale would lose a −0


@triton.jit
def relu_scale_backward_element(grad, x, scale):
    return tl.where(x <= 0, 0.0, grad * scale)


def relu_scale(x: Tensor, scale: Tensor | int | float, *, out: Tensor | None = None) -> Tensor:
    """relu(x)·scale, elementwise, in one pass over memory.

    Args:
        x: tensor of float16, bfloat16, float32 or float64.
        scale: Python number, rounded once to the compute type; or a tensor of these dtypes that
            broadcasts with x, such as [C, 1, 1]. A tensor may require grad. A 0-d tensor may be on
            the CPU while x is on the GPU.
        out: written and returned if given; exactly the result's shape and dtype; may be x or scale.

    Returns:
        Tensor of x's dtype; for a tensor scale of ``torch.result_type(x, scale)``.

    Raises:
        TypeError: x is no tensor or has an unsupported dtype; scale is no number and no tensor of
            a supported dtype.
        RuntimeError: shapes do not broadcast, devices differ, out does not fit or overlaps, the
            device is unsupported, out is given and an input requires grad.
    """
    return _form(_relu_scale, scale)(x, scale, out=out)  # type: ignore[no-any-return]


def relu_scale_add(
    x: Tensor, y: Tensor, scale: Tensor | int | float, *, out: Tensor | None = None
) -> Tensor:
    """relu(x)·scale + y, elementwise, in one pass over memory, with one rounding for ·scale + y.

    Args:
        x: tensor of float16, bfloat16, float32 or float64.
        y: tensor of these dtypes that broadcasts with x.
        scale: as in relu_scale; a tensor broadcasts with both.
        out: written and returned if given; exactly the result's shape and dtype; may be an input.

    Returns:
        Tensor of the dtype to which the tensors promote.

    Raises:
        TypeError: x or y is no tensor or has an unsupported dtype; scale as in relu_scale.
        RuntimeError: shapes do not broadcast, devices differ, out does not fit or overlaps, out is
            given and an input requires grad.
    """
    return _form(_relu_scale_add, scale)(x, y, scale, out=out)  # type: ignore[no-any-return]


def relu_scale_backward(
    grad: Tensor, x: Tensor, scale: Tensor | int | float, *, out: Tensor | None = None
) -> Tensor:
    """grad·scale where x > 0 or NaN, else 0: the gradient of relu_scale.

    Args:
        grad: tensor of float16, bfloat16, float32 or float64.
        x: relu_scale's input; a tensor of these dtypes that broadcasts with grad.
        scale: as in relu_scale; a tensor broadcasts with both.
        out: written and returned if given; exactly the result's shape and dtype; may be an input.

    Returns:
        Tensor of the dtype to which the tensors promote.

    Raises:
        TypeError: grad or x is no tensor or has an unsupported dtype; scale as in relu_scale.
        RuntimeError: as relu_scale_add.
    """
    return _form(_relu_scale_backward, scale)(grad, x, scale, out=out)  # type: ignore[no-any-return]


def _form(op: Operator, scale: Any) -> Operator:
    """The registered op: one for a tensor scale, another for a number."""
    return _OF_TENSORS[op.name] if isinstance(scale, Tensor) else op


def _rules(x: Any, scale: Any) -> Iterator[Rule]:
    """Sharding: linear in a tensor scale."""
    yield from elementwise(x, scale)
    yield (P,), (R, P)


def _backward_rules(grad: Any, x: Any, scale: Any) -> Iterator[Rule]:
    """Sharding: linear in grad, and in a tensor scale."""
    if not hasattr(scale, "shape"):
        yield from elementwise(grad, x)
        yield (P,), (P, R)
        return
    yield from elementwise(grad, x, scale)
    yield (P,), (P, R, R)
    yield (P,), (R, R, P)


# Each op is registered twice: for a number scale and for a tensor scale. They share the formulas of
# the gradients; a number has no gradient.
_OF_X = Gradient(
    lambda g, i: reduce_to(relu_scale_backward(g, i.x, i.scale), i.x), reads=("x", "scale")
)
_OF_Y = Gradient(lambda g, i: reduce_to(g, i.y))
_OF_GRAD = Gradient(
    lambda g, i: reduce_to(relu_scale_backward(g, i.x, i.scale), i.grad), reads=("x", "scale")
)
_OF_STEPS = Gradient(lambda g, i: g.new_zeros(i.x.shape, dtype=i.x.dtype))
_OF_SCALE = Gradient(lambda g, i: reduce_to(relu_scale(i.x, g), i.scale), reads=("x",))
_OF_BACKWARDS_SCALE = Gradient(
    lambda g, i: reduce_to(relu_scale_backward(g, i.x, i.grad), i.scale), reads=("x", "grad")
)

_relu_scale = _elementwise_op.define(
    "relu_scale",
    "Tensor x, Scalar scale",
    relu_scale_element,
    DTYPES,
    gradients={"x": _OF_X},
    or_tensor=True,
)
_relu_scale_tensor = _elementwise_op.define(
    "relu_scale_tensor",
    "Tensor x, Tensor scale",
    relu_scale_element,
    DTYPES,
    gradients={"x": _OF_X, "scale": _OF_SCALE},
    op="relu_scale",
    sharding=Sharding(_rules),
)
_relu_scale_add = _elementwise_op.define(
    "relu_scale_add",
    "Tensor x, Tensor y, Scalar scale",
    relu_scale_add_element,
    DTYPES,
    gradients={"x": _OF_X, "y": _OF_Y},
    or_tensor=True,
)
_relu_scale_add_tensor = _elementwise_op.define(
    "relu_scale_add_tensor",
    "Tensor x, Tensor y, Tensor scale",
    relu_scale_add_element,
    DTYPES,
    gradients={"x": _OF_X, "y": _OF_Y, "scale": _OF_SCALE},
    op="relu_scale_add",
)
_relu_scale_backward = _elementwise_op.define(
    "relu_scale_backward",
    "Tensor grad, Tensor x, Scalar scale",
    relu_scale_backward_element,
    DTYPES,
    gradients={"grad": _OF_GRAD, "x": _OF_STEPS},
    or_tensor=True,
    sharding=Sharding(_backward_rules),
)
_relu_scale_backward_tensor = _elementwise_op.define(
    "relu_scale_backward_tensor",
    "Tensor grad, Tensor x, Tensor scale",
    relu_scale_backward_element,
    DTYPES,
    gradients={"grad": _OF_GRAD, "x": _OF_STEPS, "scale": _OF_BACKWARDS_SCALE},
    op="relu_scale_backward",
    sharding=Sharding(_backward_rules),
)
_OF_TENSORS = {
    op.label: op for op in (_relu_scale_tensor, _relu_scale_add_tensor, _relu_scale_backward_tensor)
}


@dataclass(frozen=True)
class _ReluScale(Form):
    """relu(x)·scale, as relu_scale computes it."""

    x: Node
    scale: Node | float


def _match_relu_scale(root: Node, forms: Mapping[Node, Form | None]) -> Match | None:
    """relu(x)·scale of a number; times a tensor it is act_mul, whose gradients are one launch."""
    if not isinstance(forms[root], Scaled):
        return None
    for nodes, arguments in _scaled(root, forms):
        return Match("relu_scale", nodes, relu_scale, arguments, {})
    return None


def _match_relu_scale_add(root: Node, forms: Mapping[Node, Form | None]) -> Match | None:
    """relu(x)·scale + y, either way round."""
    form = forms[root]
    if not isinstance(form, Sum) or form.alpha != 1:
        return None
    for scaled, y in ((form.x, form.y), (form.y, form.x)):
        for nodes, (x, scale) in _scaled(scaled, forms):
            return Match("relu_scale_add", (*nodes, root), relu_scale_add, (x, y, scale), {})
    return None


def _scaled(
    root: Node, forms: Mapping[Node, Form | None]
) -> Iterator[tuple[tuple[Node, ...], tuple[Node, Node | float]]]:
    """The nodes of relu(x)·scale that end with this one, and x and scale."""
    form = forms[root]
    pairs: tuple[tuple[Node, Node | float], ...] = ()
    if isinstance(form, _ReluScale):
        yield (root,), (form.x, form.scale)
    elif isinstance(form, Scaled):
        pairs = ((form.x, form.factor),)
    elif isinstance(form, Times):
        pairs = ((form.x, form.y), (form.y, form.x))
    for value, scale in pairs:
        relu = forms[value]
        if isinstance(relu, Activation) and relu.name == "relu":
            yield (value, root), (relu.x, scale)


GRAPH = Fusion(
    reads={
        relu_scale: Signature(("x", "scale"), lambda given: _ReluScale(given["x"], given["scale"]))
    },
    elementwise=(_match_relu_scale, _match_relu_scale_add),
    speeds={
        "relu_scale": (Entry(DTYPES, eager=1.7, inductor=1.0),),
        "relu_scale_add": (Entry(DTYPES, eager=2.1, inductor=1.0),),
    },
    probes={
        "relu_scale": Probe(("n",), lambda x: relu_scale(x, 0.5), lambda x: torch.relu(x) * 0.5),
        "relu_scale_add": Probe(
            ("n", "n"),
            lambda x, y: relu_scale_add(x, y, 0.5),
            lambda x, y: torch.relu(x) * 0.5 + y,
        ),
    },
)
