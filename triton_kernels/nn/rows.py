"""gemm_bias_act for operands with any leading dimensions, as in torch.nn.functional.linear."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from triton_kernels.ops.gemm_bias_act import gemm_bias_act


def gemm_bias_act_of_rows(
    x: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    act: str = "none",
    alpha: float = 1.0,
    c: Tensor | None = None,
    beta: float = 1.0,
    precision: str | None = None,
) -> Tensor:
    """act(alpha·(x@b) + beta·c + bias) in one kernel.

    Args:
        x: […, K].
        b: [K, N]; a weight [N, K] is passed as ``weight.t()``.
        bias: [N].
        act, alpha, precision: as :func:`triton_kernels.gemm_bias_act`.
        c: […, N] with x's leading dimensions, or [N].
        beta: factor of c; ignored without c.

    Returns:
        […, N] in x's dtype.

    Raises:
        TypeError, ValueError, RuntimeError: as :func:`triton_kernels.gemm_bias_act`.
    """
    factor = None if c is None else beta
    return gemm_bias_act(x, b, bias, act=act, alpha=alpha, c=c, beta=factor, precision=precision)


def multiplies_itself(weight: Any) -> bool:
    """Whether a weight's class has a representation of its own, such as a quantised one's. It
    computes torch's products, and knows no others."""
    return isinstance(weight, Tensor) and hasattr(weight, "__tensor_flatten__")


def activated_linear(x: Tensor, weight: Tensor, bias: Tensor | None, act: str) -> Tensor:
    """act(x @ weight.T + bias): torch's linear, then the activation in one kernel.

    Args:
        x: […, K].
        weight: [N, K].
        bias: [N].
        act: as :func:`triton_kernels.gemm_bias_act`.

    Returns:
        […, N] in linear's dtype.

    Raises:
        TypeError, ValueError, RuntimeError: as linear and :func:`triton_kernels.gemm_bias_act`.
    """
    z = torch.nn.functional.linear(x, weight, bias)
    if act == "none":
        return z
    # A product with K = 0 runs only the kernel's epilogue.
    nothing = z.new_empty((*z.shape[:-1], 0)), z.new_empty((0, z.shape[-1]))
    return gemm_bias_act_of_rows(*nothing, act=act, c=z)


def gemm_bias_act_of_columns(
    x: Tensor,
    b: Tensor,
    bias: Tensor | None,
    act: str,
    alpha: float,
    c: Tensor | None,
    beta: float,
    steps: tuple[tuple[Any, ...], ...],
    precision: str | None = None,
) -> Tensor:
    """act(z + beta·c) in one kernel; z is alpha·(x@b) + bias after ``steps`` along its columns.

    A step makes z·scale + shift·factor, of (z − mean)/√(variance + eps) if it has a mean. All
    column factors are multiplied into b, all addends into one bias. Scaling b pays where x has more
    rows than b. For 16-bit dtypes the factors are computed in float32.

    Args:
        x, b, bias, act, alpha, c, beta, precision: as :func:`gemm_bias_act_of_rows` takes them.
        steps: tuples (scale, shift, factor, mean, variance, eps); tensors are [N] or one element.

    Returns:
        […, N] in x's dtype.
    """
    wide = torch.float64 if b.dtype == torch.float64 else torch.float32
    one = torch.ones((), dtype=wide, device=b.device)
    columns = one * alpha
    row = one * 0.0 if bias is None else bias.to(wide)
    for scale, shift, factor, mean, variance, eps in steps:
        if mean is not None:
            inverse = torch.rsqrt(variance.to(wide) + eps)
            columns, row = columns * inverse, (row - mean.to(wide)) * inverse
        if scale is not None:
            by = scale.flatten().to(wide) if isinstance(scale, Tensor) else scale
            columns, row = columns * by, row * by
        if shift is not None:
            row = row + shift.flatten().to(wide) * factor
    scaled = b * columns.to(b.dtype)
    added = row.to(b.dtype).expand(b.shape[1])
    return gemm_bias_act_of_rows(x, scaled, added, act, 1.0, c, beta, precision)


def pointwise_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, act: str, precision: str | None = None
) -> Tensor:
    """act(conv2d(x, weight, bias)) for a 1×1 convolution, in one kernel.

    Args:
        x: [B, K, H, W]; copied unless its channels are contiguous (torch.channels_last).
        weight: [N, K, 1, 1].
        bias: [N].
        act, precision: as :func:`triton_kernels.gemm_bias_act`.

    Returns:
        [B, N, H, W], in the same memory format.

    Raises:
        TypeError, ValueError, RuntimeError: as :func:`triton_kernels.gemm_bias_act`.
    """
    rows, b = x.permute(0, 2, 3, 1), weight.flatten(1).t()
    out = gemm_bias_act_of_rows(rows, b, bias, act, precision=precision)
    return out.permute(0, 3, 1, 2)
