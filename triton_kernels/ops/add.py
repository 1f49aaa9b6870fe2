"""add: out = x + alpha·y, with torch.add's broadcasting, type promotion and scalars.

Shapes: x and y broadcast to out; either may be a number. Dtypes: float16, bfloat16, float32,
float64, uint8 and the signed integers. The compute type C is float32 for the 16-bit floats, else
the result dtype itself.

Steps: operands → result dtype → C; fma(alpha, y, x) with one rounding in C (integers: x + alpha·y,
wrapping); one rounding to the result dtype. NaN and inf propagate, −0 + −0 is −0, subnormals are
kept. Reference for the conventions: torch.add.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.fx import Node

from triton_kernels import _arguments, _elementwise_op
from triton_kernels._fusion import Entry, Form, Fusion, Match, Probe, Scaled, Sum
from triton_kernels._operator import Gradient, Operator
from triton_kernels._placements import P, Rule, Sharding, elementwise, floating
from triton_kernels.ops.sum_to import reduce_to

__all__ = ["add"]

DTYPES = _arguments.FLOATS + _arguments.INTEGERS

# Elements per thread of each variant. Triton derives the access width from it: f16x8 and
# f16x8_pack, four half2 against one 128-bit access in CUDA, are the same Triton kernel.
_PER_THREAD = {
    "f32": (torch.float32, 1),
    "f32x4": (torch.float32, 4),
    "f16": (torch.float16, 1),
    "f16x2": (torch.float16, 2),
    "f16x8": (torch.float16, 8),
    "f16x8_pack": (torch.float16, 8),
    "bf16": (torch.bfloat16, 1),
    "bf16x2": (torch.bfloat16, 2),
    "bf16x8": (torch.bfloat16, 8),
    "bf16x8_pack": (torch.bfloat16, 8),
}


@triton.jit
def add_element(x, y, alpha):
    if x.dtype.is_floating():
        out = tl.fma(tl.broadcast_to(alpha, x.shape), y, x)  # 0 + alpha would lose a −0
    else:
        out = x + alpha * y
    return out


@triton.jit
def add_to_scalar_element(y, x, alpha):
    return add_element(tl.broadcast_to(x, y.shape), y, alpha)


def add(
    x: Tensor | int | float,
    y: Tensor | int | float,
    *,
    alpha: int | float = 1,
    out: Tensor | None = None,
) -> Tensor:
    """x + alpha·y, elementwise, as torch.add.

    Args:
        x, y: tensors of float16, bfloat16, float32, float64, uint8, int8, int16, int32 or int64
            that broadcast, or Python numbers. Two numbers give a 0-d CPU tensor, as in torch.
        alpha: factor of y; must be an integer if the result is.
        out: written and returned if given; must have exactly the result's shape and dtype. It may
            be x or y itself, but must not overlap them otherwise.

    Returns:
        fma(alpha, y, x) in float32 (float64 for float64, wrapping integers for integers), rounded
        once to ``torch.result_type(x, y)``. Scalars round once to the compute type. Dense inputs
        of one layout take the flat path; strided and broadcast inputs are read in place.

    Raises:
        TypeError: an argument is no tensor or number, or has an unsupported dtype.
        RuntimeError: shapes do not broadcast, devices differ, out does not fit or overlaps, out is
            given and an input requires grad.
    """
    op, args = _form(x, y)
    return op(*args, alpha, out=out)  # type: ignore[no-any-return]


def _form(x: Any, y: Any) -> tuple[Operator, tuple[Any, Any]]:
    """The registered op for these operands, and the operands in its order."""
    if isinstance(x, (int, float)):
        if isinstance(y, (int, float)):
            dtype = torch.result_type(type(x)(), type(y)())
            if dtype == torch.bool:
                raise TypeError("add(): 'x' or 'y' must be a number or a torch.Tensor, not a bool")
            value = _arguments.number("add", "y", int(y) if isinstance(y, bool) else y, dtype)
            y = torch.tensor(value, dtype=dtype, device="cpu")
        return _add_to_scalar, (y, x)
    return _add_scalar if isinstance(y, (int, float)) else _add, (x, y)


_GRADIENTS = {
    "x": Gradient(lambda grad, i: reduce_to(grad, i.x)),
    "y": Gradient(lambda grad, i: reduce_to(grad, i.y, i.alpha)),
}


def _rules(x: Any, y: Any, alpha: Any) -> Iterator[Rule]:
    yield from elementwise(x, y)
    if floating(x) and floating(y):  # DTensor would divide a replicated addend by the ranks
        yield (P,), (P, P)


_add = _elementwise_op.define(
    "add",
    "Tensor x, Tensor y, Scalar alpha",
    add_element,
    DTYPES,
    gradients=_GRADIENTS,
    sharding=Sharding(_rules),
)
_add_scalar = _elementwise_op.define(
    "add_scalar",
    "Tensor x, Scalar y, Scalar alpha",
    add_element,
    DTYPES,
    gradients=_GRADIENTS,
    op="add",
)
_add_to_scalar = _elementwise_op.define(
    "add_to_scalar",
    "Tensor y, Scalar x, Scalar alpha",
    add_to_scalar_element,
    DTYPES,
    gradients=_GRADIENTS,
    op="add",
)


def _variant(
    name: str,
    x: Tensor | int | float,
    y: Tensor | int | float,
    *,
    alpha: int | float = 1,
    out: Tensor | None = None,
) -> Tensor:
    """``add`` with the elements per thread of variant ``name``, for the variant's dtype only."""
    if torch.compiler.is_compiling():
        raise RuntimeError(f"add(): variant '{name}' runs eagerly only; compile a call of add")
    op, args = _form(x, y)
    result: Tensor = op.launch(
        *args, alpha, out=out, variant=_elementwise_op.Pinned(name, *_PER_THREAD[name])
    )
    if out is not None:
        torch.autograd.graph.increment_version(out)
    return result


VARIANTS: dict[str, dict[str, Callable[..., Tensor]]] = {
    "add": {name: partial(_variant, name) for name in _PER_THREAD}
}


def _match(root: Node, forms: Mapping[Node, Form | None]) -> Match | None:
    """x + alpha·(factor·y), or factor·x + y."""
    form = forms[root]
    if not isinstance(form, Sum):
        return None
    y = forms[form.y]
    if isinstance(y, Scaled):
        alpha = {"alpha": form.alpha * y.factor}
        return Match("add", (form.y, root), add, (form.x, y.x), alpha)
    x = forms[form.x]
    if isinstance(x, Scaled) and form.alpha == 1:
        return Match("add", (form.x, root), add, (form.y, x.x), {"alpha": x.factor})
    return None


GRAPH = Fusion(
    elementwise=(_match,),
    # Estimated from bytes moved: mul and add move five tensors, this op three.
    speeds={"add": (Entry(_arguments.FLOATS, eager=1.6, inductor=1.0),)},
    probes={"add": Probe(("n", "n"), partial(add, alpha=0.5), lambda x, y: x + 0.5 * y)},
)
