"""relu_scale: out = relu(x)·scale; relu_scale_add: out = relu(x)·scale + y, in one pass; and
relu_scale_backward: out = grad·scale where x > 0 or NaN, else 0, the gradient of both.

Shapes: any; of two tensors, they broadcast. Dtypes: float16, bfloat16, float32, float64. The
compute type C is float32, or float64 for float64; scale is rounded once to C.

Steps: relu(x) = 0 where x < 0, else x, so that NaN stays NaN and −0 stays −0; then one
multiplication, or fma(relu(x), scale, y); for the gradient 0 where x <= 0, else one multiplication,
so that NaN lets the gradient through, as torch does; then one rounding to the result dtype. Note
that relu(x)·scale is NaN for x < 0 and an infinite scale, as 0·inf is.
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
)
from triton_kernels._operator import Gradient
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


def relu_scale(x: Tensor, scale: int | float, *, out: Tensor | None = None) -> Tensor:
    """relu(x)·scale, elementwise, in one pass over memory.

    Args:
        x: tensor of float16, bfloat16, float32 or float64.
        scale: Python number, rounded once to the compute type.
        out: written and returned if given; exactly x's shape and dtype; may be x itself.

    Raises:
        TypeError: x is no tensor or has an unsupported dtype, scale is no number.
        RuntimeError: out does not fit or overlaps, the device is unsupported, out is given and x
            requires grad.
    """
    return _relu_scale(x, scale, out=out)


def relu_scale_add(
    x: Tensor, y: Tensor, scale: int | float, *, out: Tensor | None = None
) -> Tensor:
    """relu(x)·scale + y, elementwise, in one pass over memory, with one rounding for ·scale + y.

    Args:
        x: tensor of float16, bfloat16, float32 or float64.
        y: tensor of these dtypes that broadcasts with x.
        scale: Python number, rounded once to the compute type.
        out: written and returned if given; exactly the result's shape and dtype; may be x or y.

    Returns:
        Tensor of dtype ``torch.result_type(x, y)``.

    Raises:
        TypeError: x or y is no tensor or has an unsupported dtype, scale is no number.
        RuntimeError: shapes do not broadcast, devices differ, out does not fit or overlaps, out is
            given and an input requires grad.
    """
    return _relu_scale_add(x, y, scale, out=out)


def relu_scale_backward(
    grad: Tensor, x: Tensor, scale: int | float, *, out: Tensor | None = None
) -> Tensor:
    """grad·scale where x > 0 or NaN, else 0: the gradient of relu_scale.

    Args:
        grad: tensor of float16, bfloat16, float32 or float64.
        x: relu_scale's input; a tensor of these dtypes that broadcasts with grad.
        scale: Python number, rounded once to the compute type.
        out: written and returned if given; exactly the result's shape and dtype; may be grad or x.

    Returns:
        Tensor of dtype ``torch.result_type(grad, x)``.

    Raises:
        TypeError: grad or x is no tensor or has an unsupported dtype, scale is no number.
        RuntimeError: as relu_scale_add.
    """
    return _relu_scale_backward(grad, x, scale, out=out)


def _backward_rules(grad: Any, x: Any, scale: Any) -> Iterator[Rule]:
    """Linear in grad."""
    yield from elementwise(grad, x)
    yield (P,), (P, R)


_relu_scale = _elementwise_op.define(
    "relu_scale",
    "Tensor x, Scalar scale",
    relu_scale_element,
    DTYPES,
    gradients={"x": Gradient(lambda g, i: relu_scale_backward(g, i.x, i.scale), reads=("x",))},
)
_relu_scale_add = _elementwise_op.define(
    "relu_scale_add",
    "Tensor x, Tensor y, Scalar scale",
    relu_scale_add_element,
    DTYPES,
    gradients={
        "x": Gradient(
            lambda g, i: reduce_to(relu_scale_backward(g, i.x, i.scale), i.x), reads=("x",)
        ),
        "y": Gradient(lambda g, i: reduce_to(g, i.y)),
    },
)
_relu_scale_backward = _elementwise_op.define(
    "relu_scale_backward",
    "Tensor grad, Tensor x, Scalar scale",
    relu_scale_backward_element,
    DTYPES,
    gradients={
        "grad": Gradient(
            lambda g, i: reduce_to(relu_scale_backward(g, i.x, i.scale), i.grad), reads=("x",)
        ),
        "x": Gradient(lambda g, i: g.new_zeros(i.x.shape, dtype=i.x.dtype)),
    },
    sharding=Sharding(_backward_rules),
)


@dataclass(frozen=True)
class _ReluScale(Form):
    """relu(x)·scale, as relu_scale computes it."""

    x: Node
    scale: float


def _match_relu_scale(root: Node, forms: Mapping[Node, Form | None]) -> Match | None:
    form = forms[root]
    relu = forms[form.x] if isinstance(form, Scaled) else None
    if not isinstance(form, Scaled) or not isinstance(relu, Activation) or relu.name != "relu":
        return None
    return Match("relu_scale", (form.x, root), relu_scale, (relu.x, form.factor), {})


def _match_relu_scale_add(root: Node, forms: Mapping[Node, Form | None]) -> Match | None:
    """relu(x)·scale + y, either way round."""
    form = forms[root]
    if not isinstance(form, Sum) or form.alpha != 1:
        return None
    nodes: tuple[Node, ...]
    for scaled, y in ((form.x, form.y), (form.y, form.x)):
        inner, match = forms[scaled], _match_relu_scale(scaled, forms)
        if isinstance(inner, _ReluScale):
            x, scale, nodes = inner.x, inner.scale, (scaled, root)
        elif match is not None:
            (x, scale), nodes = match.arguments, (*match.nodes, root)
        else:
            continue
        return Match("relu_scale_add", nodes, relu_scale_add, (x, y, scale), {})
    return None


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
