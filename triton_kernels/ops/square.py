"""square: out = x·x, and square_backward: out = grad·(2·x), its gradient.

Shapes: any; in square_backward grad and x broadcast. Dtypes: float16, bfloat16, float32, float64,
and for square uint8 and the signed integers, too. The compute type C is float32 for the 16-bit
floats, else the dtype itself; integers wrap.

Steps: one multiplication in C; for the gradient d = x + x, which is exact or infinite, then grad·d;
then one rounding to the result dtype. NaN stays NaN, inf and −inf give inf, −0 gives 0.
Reference: torch.square.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import triton
from torch import Tensor
from torch.fx import Node

from triton_kernels import _arguments, _elementwise_op
from triton_kernels._fusion import Entry, Form, Fusion, Match, Probe, Square
from triton_kernels._operator import Gradient
from triton_kernels._placements import P, R, Rule, Sharding, elementwise
from triton_kernels.ops.sum_to import reduce_to

__all__ = ["square", "square_backward"]

DTYPES = _arguments.FLOATS + _arguments.INTEGERS


@triton.jit
def square_element(x):
    return x * x


@triton.jit
def square_backward_element(grad, x):
    return grad * (x + x)


def square(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """x·x, elementwise, as torch.square.

    Args:
        x: tensor of float16, bfloat16, float32, float64, uint8, int8, int16, int32 or int64.
            Under CUDA's autocast it is converted to float32, as torch.square does.
        out: written and returned if given; exactly x's shape and dtype; may be x itself.

    Raises:
        TypeError: x is no tensor or has an unsupported dtype.
        RuntimeError: out does not fit or overlaps, the device is unsupported, out is given and x
            requires grad.
    """
    return _square(x, out=out)


def square_backward(grad: Tensor, x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """grad·(2·x), elementwise: the gradient of square.

    Args:
        grad: tensor of float16, bfloat16, float32 or float64.
        x: what was squared; a tensor of these dtypes that broadcasts with grad.
        out: written and returned if given; exactly the result's shape and dtype; may be grad or x.

    Returns:
        Tensor of dtype ``torch.result_type(grad, x)``.

    Raises:
        TypeError: grad or x is no tensor or has an unsupported dtype.
        RuntimeError: shapes do not broadcast, devices differ, out does not fit or overlaps, out is
            given and an input requires grad.
    """
    return _square_backward(grad, x, out=out)


def _backward_rules(grad: Any, x: Any) -> Iterator[Rule]:
    """Linear in either."""
    yield from elementwise(grad, x)
    yield (P,), (P, R)
    yield (P,), (R, P)


_square = _elementwise_op.define(
    "square",
    "Tensor x",
    square_element,
    DTYPES,
    gradients={"x": Gradient(lambda grad, i: square_backward(grad, i.x), reads=("x",))},
    autocast=torch.float32,
)
_square_backward = _elementwise_op.define(
    "square_backward",
    "Tensor grad, Tensor x",
    square_backward_element,
    _arguments.FLOATS,
    gradients={
        "grad": Gradient(lambda g, i: reduce_to(square_backward(g, i.x), i.grad), reads=("x",)),
        "x": Gradient(lambda g, i: reduce_to(square_backward(g, i.grad), i.x), reads=("grad",)),
    },
    sharding=Sharding(_backward_rules),
)


def _match(root: Node, forms: Mapping[Node, Form | None]) -> Match | None:
    """x·x, x² or torch.square(x)."""
    form = forms[root]
    if not isinstance(form, Square):
        return None
    return Match("square", (root,), square, (form.x,), {}, autocast=torch.float32)


GRAPH = Fusion(
    elementwise=(_match,),
    speeds={"square": (Entry(_arguments.FLOATS, eager=1.0, inductor=1.0),)},
    probes={"square": Probe(("n",), square, torch.square)},
)
