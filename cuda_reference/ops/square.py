"""square and square_backward: argument checks and launches. The kernels stand in csrc/square.cu."""

from __future__ import annotations

from torch import Tensor

from cuda_reference import _arguments, _elementwise, _launch
from cuda_reference._arguments import FLOATING, INTEGRAL

__all__ = ["square", "square_backward"]

VARIANTS = {"square": {"1d": FLOATING + INTEGRAL, "2d": FLOATING + INTEGRAL}}


def square(x: Tensor, *, out: Tensor | None = None, variant: str | None = None) -> Tensor:
    """x·x: the CUDA twin of :func:`triton_kernels.square`.

    Args:
        x, out: as there.
        variant: "1d" for contiguous tensors, "2d" for contiguous matrices on a two-dimensional
            grid. None: any layout.

    Raises:
        TypeError, ValueError, RuntimeError: as there; ValueError also for inputs that the variant
            does not take.
    """
    if variant is None:
        return _elementwise.pointwise("square", "square", {"x": x}, {}, FLOATING + INTEGRAL, out)
    x = _arguments.check_tensor("square", "x", x, FLOATING + INTEGRAL)
    out = _elementwise.output("square", {"x": x}, x.dtype, out)
    _elementwise.check_variant("square", variant, VARIANTS["square"], {"x": x, "out": out})
    if variant == "2d" and x.dim() != 2:
        raise ValueError(f"square(): variant '2d' takes a matrix, but x has shape {list(x.shape)}")
    arguments = _launch.tensor(x), _launch.tensor(out)
    return _elementwise.run("square", f"square_{variant}", out, {"x": x}, *arguments)


def square_backward(
    grad: Tensor, x: Tensor, *, out: Tensor | None = None, variant: str | None = None
) -> Tensor:
    """grad·(2·x): the CUDA twin of :func:`triton_kernels.square_backward`."""
    tensors = {"grad": grad, "x": x}
    return _elementwise.pointwise("square_backward", "square", tensors, {}, FLOATING, out, variant)
