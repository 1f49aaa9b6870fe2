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

from triton_kernels import _arguments, _elementwise, _launch

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
        RuntimeError: shapes do not broadcast, devices differ, out overlaps, an input requires grad.
    """
    if out is None and torch.compiler.is_compiling():
        ops = torch.ops.triton_kernels
        result: Tensor = (ops.add if isinstance(y, Tensor) else ops.add_scalar)(x, y, alpha)
        return result
    x, y, alpha, shape, dtype = _prepare("add", x, y, alpha, out)
    return _run(x, y, alpha, out, shape, dtype)


def _prepare(
    op: str, x: Tensor, y: Tensor | int | float, alpha: int | float, out: Tensor | None
) -> tuple[Tensor, Tensor | int | float, int | float, torch.Size, torch.dtype]:
    """Check the arguments; return them converted, with the result's shape and dtype."""
    x = _arguments.tensor(op, "x", x, DTYPES)
    if isinstance(y, (int, float)):
        dtype = torch.result_type(x, type(y)())  # the kind counts, and any size is checked below
        y = _arguments.number(op, "y", int(y) if isinstance(y, bool) else y, dtype)
        shape = x.shape
        _arguments.refuse_grad(op, x=x)
    else:
        y = _arguments.tensor(op, "y", y, DTYPES)
        dtype = torch.result_type(x, y)
        x, y = _arguments.join_scalar_tensor(x, y)
        _arguments.same_device(op, x=x, y=y)
        shape = _arguments.broadcast(op, x, y)
        _arguments.refuse_grad(op, x=x, y=y)
    alpha = _arguments.number(op, "alpha", alpha, dtype)
    _launch.check_device(op, x.device, _elementwise.flat_kernel)
    if out is not None:
        inputs = {"x": x, "y": y if isinstance(y, Tensor) else None}
        _arguments.check_out(op, out, shape, dtype, x.device, inputs, in_place=True)
    return x, y, alpha, shape, dtype


def _run(
    x: Tensor,
    y: Tensor | int | float,
    alpha: int | float,
    out: Tensor | None,
    shape: torch.Size,
    dtype: torch.dtype,
    elements_per_thread: int | None = None,
) -> Tensor:
    if out is None:
        out = _elementwise.empty_result(shape, dtype, like=x)
    return _elementwise.apply(add_element, x, y, alpha, out, elements_per_thread)


def _variant(
    name: str,
    x: Tensor,
    y: Tensor | int | float,
    *,
    alpha: int | float = 1,
    out: Tensor | None = None,
) -> Tensor:
    """``add`` with the elements per thread that ``name`` stands for, for its dtype only."""
    want, elements_per_thread = VARIANTS[name]
    x, y, alpha, shape, dtype = _prepare("add", x, y, alpha, out)
    if dtype != want:
        raise TypeError(f"add(): variant '{name}' is for a {want} result, but got {dtype}")
    return _run(x, y, alpha, out, shape, dtype, elements_per_thread)


def variants() -> dict[str, Callable[..., Tensor]]:
    """The ten variants by name, each with add's signature."""
    return {name: partial(_variant, name) for name in VARIANTS}


@torch.library.custom_op(
    "triton_kernels::add", mutates_args=(), schema="(Tensor x, Tensor y, Scalar alpha) -> Tensor"
)
def _add_op(x: Tensor, y: Tensor, alpha: int | float) -> Tensor:
    return add(x, y, alpha=alpha)


@torch.library.custom_op(
    "triton_kernels::add_scalar",
    mutates_args=(),
    schema="(Tensor x, Scalar y, Scalar alpha) -> Tensor",
)
def _add_scalar_op(x: Tensor, y: int | float, alpha: int | float) -> Tensor:
    return add(x, y, alpha=alpha)


@_add_op.register_fake
@_add_scalar_op.register_fake
def _add_fake(x: Tensor, y: Tensor | int | float, alpha: int | float) -> Tensor:
    shape = _arguments.broadcast("add", x, y) if isinstance(y, Tensor) else x.shape
    return _elementwise.empty_result(shape, torch.result_type(x, y), like=x)
