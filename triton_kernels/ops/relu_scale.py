"""relu_scale: out = relu(x)·scale, and relu_scale_add: out = relu(x)·scale + y, in one pass.

Shapes: any; in relu_scale_add x and y broadcast. Dtypes: float16, bfloat16, float32, float64. The
compute type C is float32, or float64 for float64; scale is rounded once to C.

Steps: relu(x) = 0 where x < 0, else x, so that NaN stays NaN and −0 stays −0; then one
multiplication, or fma(relu(x), scale, y); then one rounding to the result dtype. Note that
relu(x)·scale is NaN for x < 0 and an infinite scale, as 0·inf is. Reference: torch.relu(x) * scale.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from triton_kernels import _arguments, _elementwise, _launch

DTYPES = _arguments.FLOATS


@triton.jit
def relu_scale_element(x, y, scale):
    return tl.where(x < 0, 0.0, x) * scale


@triton.jit
def relu_scale_add_element(x, y, scale):
    relu = tl.where(x < 0, 0.0, x)
    return tl.fma(relu, tl.broadcast_to(scale, relu.shape), y)  # 0 + scale would lose a −0


def relu_scale(x: Tensor, scale: int | float, *, out: Tensor | None = None) -> Tensor:
    """relu(x)·scale, elementwise, in one pass over memory.

    Args:
        x: tensor of float16, bfloat16, float32 or float64.
        scale: Python number, rounded once to the compute type.
        out: written and returned if given; exactly x's shape and dtype; may be x itself.

    Raises:
        TypeError: x is no tensor or has an unsupported dtype, scale is no number.
        RuntimeError: out does not fit or overlaps, the device is unsupported, x requires grad.
    """
    if out is None and torch.compiler.is_compiling():
        result: Tensor = torch.ops.triton_kernels.relu_scale(x, scale)
        return result
    x = _arguments.tensor("relu_scale", "x", x, DTYPES)
    scale = _arguments.number("relu_scale", "scale", scale, x.dtype)
    _arguments.refuse_grad("relu_scale", x=x)
    _launch.check_device("relu_scale", x.device, _elementwise.flat_kernel)
    if out is not None:
        _arguments.check_out("relu_scale", out, x.shape, x.dtype, x.device, {"x": x}, in_place=True)
    else:
        out = _elementwise.empty_result(x.shape, x.dtype, like=x)
    return _elementwise.apply(relu_scale_element, x, None, scale, out)


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
        RuntimeError: shapes do not broadcast, devices differ, out overlaps, an input requires grad.
    """
    op = "relu_scale_add"
    if out is None and torch.compiler.is_compiling():
        result: Tensor = torch.ops.triton_kernels.relu_scale_add(x, y, scale)
        return result
    x = _arguments.tensor(op, "x", x, DTYPES)
    y = _arguments.tensor(op, "y", y, DTYPES)
    dtype = torch.result_type(x, y)
    scale = _arguments.number(op, "scale", scale, dtype)
    x, y = _arguments.join_scalar_tensor(x, y)
    device = _arguments.same_device(op, x=x, y=y)
    shape = _arguments.broadcast(op, x, y)
    _arguments.refuse_grad(op, x=x, y=y)
    _launch.check_device(op, device, _elementwise.flat_kernel)
    if out is not None:
        _arguments.check_out(op, out, shape, dtype, device, {"x": x, "y": y}, in_place=True)
    else:
        out = _elementwise.empty_result(shape, dtype, like=x)
    return _elementwise.apply(relu_scale_add_element, x, y, scale, out)


@torch.library.custom_op(
    "triton_kernels::relu_scale", mutates_args=(), schema="(Tensor x, Scalar scale) -> Tensor"
)
def _relu_scale_op(x: Tensor, scale: int | float) -> Tensor:
    return relu_scale(x, scale)


@_relu_scale_op.register_fake
def _relu_scale_fake(x: Tensor, scale: int | float) -> Tensor:
    return _elementwise.empty_result(x.shape, x.dtype, like=x)


@torch.library.custom_op(
    "triton_kernels::relu_scale_add",
    mutates_args=(),
    schema="(Tensor x, Tensor y, Scalar scale) -> Tensor",
)
def _relu_scale_add_op(x: Tensor, y: Tensor, scale: int | float) -> Tensor:
    return relu_scale_add(x, y, scale)


@_relu_scale_add_op.register_fake
def _relu_scale_add_fake(x: Tensor, y: Tensor, scale: int | float) -> Tensor:
    shape = _arguments.broadcast("relu_scale_add", x, y)
    return _elementwise.empty_result(shape, torch.result_type(x, y), like=x)
