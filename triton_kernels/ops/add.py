"""add: out = x + alpha·y, with torch.add's broadcasting, type promotion and scalars.

Shapes: x and y broadcast to out. Dtypes: float16, bfloat16, float32, float64, uint8 and the signed
integers. The compute type C is float32 for the 16-bit floats, else the result dtype itself.

Steps: operands → result dtype → C; fma(alpha, y, x) with one rounding in C (integers: x + alpha·y,
wrapping); one rounding to the result dtype. NaN and inf propagate, −0 + −0 is −0, subnormals are
kept. Reference for the conventions: torch.add.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from triton_kernels import _arguments, _elementwise_op
from triton_kernels._operator import Gradient
from triton_kernels.ops.sum_to import fitted

DTYPES = _arguments.FLOATS + _arguments.INTEGERS

# Elements per thread of each variant. Triton derives the access width from it: f16x8 and
# f16x8_pack, four half2 against one 128-bit access in CUDA, are the same Triton kernel.
VARIANTS = {
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


def add(
    x: Tensor, y: Tensor | int | float, *, alpha: int | float = 1, out: Tensor | None = None
) -> Tensor:
    """x + alpha·y, elementwise, as torch.add.

    Args:
        x: tensor of float16, bfloat16, float32, float64, uint8, int8, int16, int32 or int64.
        y: tensor of these dtypes that broadcasts with x, or a Python number.
        alpha: factor of y; must be an integer if the result is.
        out: written and returned if given; must have exactly the result's shape and dtype, and
            may be x or y itself but not overlap them otherwise.

    Returns:
        fma(alpha, y, x) in float32 (float64 for float64, wrapping integers for integers), rounded
        once to ``torch.result_type(x, y)``. Scalars round once to the compute type. Dense inputs
        of one layout take the flat path; strided and broadcast inputs are read in place.

    Raises:
        TypeError: an argument is no tensor or number, or has an unsupported dtype.
        RuntimeError: shapes do not broadcast, devices differ, out does not fit or overlaps, out is
            given and an input requires grad.
    """
    if isinstance(y, (int, float)):
        return _add_scalar(x, y, alpha, out=out)
    return _add(x, y, alpha, out=out)


_GRADIENTS = {
    "x": Gradient(lambda grad, i: fitted(grad, i.x)),
    "y": Gradient(lambda grad, i: fitted(grad, i.y, i.alpha)),
}
_add = _elementwise_op.define(
    "add", "Tensor x, Tensor y, Scalar alpha", add_element, DTYPES, gradients=_GRADIENTS
)
_add_scalar = _elementwise_op.define(
    "add_scalar",
    "Tensor x, Scalar y, Scalar alpha",
    add_element,
    DTYPES,
    gradients=_GRADIENTS,
    op="add",
)


def _variant(
    name: str,
    x: Tensor,
    y: Tensor | int | float,
    *,
    alpha: int | float = 1,
    out: Tensor | None = None,
) -> Tensor:
    """``add`` with the elements per thread that ``name`` stands for, for its dtype only."""
    if torch.compiler.is_compiling():
        raise RuntimeError(f"add(): variant '{name}' runs eagerly only; compile a call of add")
    launch = _add_scalar.launch if isinstance(y, (int, float)) else _add.launch
    result: Tensor = launch(
        x, y, alpha, out=out, variant=_elementwise_op.Pinned(name, *VARIANTS[name])
    )
    if out is not None:
        torch.autograd.graph.increment_version(out)
    return result


def variants() -> dict[str, Callable[..., Tensor]]:
    """The ten variants by name, each with add's signature."""
    return {name: partial(_variant, name) for name in VARIANTS}
