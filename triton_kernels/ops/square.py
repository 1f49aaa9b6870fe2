"""square: out = x·x.

Shapes: any. Dtypes: float16, bfloat16, float32, float64, uint8 and the signed integers. One
multiplication in the compute type (float32 for the 16-bit floats, integers wrap), one rounding to
x's dtype. NaN stays NaN, inf and −inf give inf, −0 gives 0. Reference: torch.square.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from triton_kernels import _arguments, _elementwise, _launch

DTYPES = _arguments.FLOATS + _arguments.INTEGERS


@triton.jit
def square_element(x, y, s):
    return x * x


def square(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """x·x, elementwise, as torch.square.

    Args:
        x: tensor of float16, bfloat16, float32, float64, uint8, int8, int16, int32 or int64.
        out: written and returned if given; exactly x's shape and dtype; may be x itself.

    Raises:
        TypeError: x is no tensor or has an unsupported dtype.
        RuntimeError: out does not fit or overlaps, the device is unsupported, x requires grad.
    """
    if out is None and torch.compiler.is_compiling():
        result: Tensor = torch.ops.triton_kernels.square(x)
        return result
    x = _arguments.tensor("square", "x", x, DTYPES)
    _arguments.refuse_grad("square", x=x)
    _launch.check_device("square", x.device, _elementwise.flat_kernel)
    if out is not None:
        _arguments.check_out("square", out, x.shape, x.dtype, x.device, {"x": x}, in_place=True)
    else:
        out = _elementwise.empty_result(x.shape, x.dtype, like=x)
    return _elementwise.apply(square_element, x, None, 0, out)


@torch.library.custom_op("triton_kernels::square", mutates_args=())
def _square_op(x: Tensor) -> Tensor:
    return square(x)


@_square_op.register_fake
def _square_fake(x: Tensor) -> Tensor:
    return _elementwise.empty_result(x.shape, x.dtype, like=x)
