"""The operands of tl.dot_scaled, for Tritons whose interpreter lacks it."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl

from triton_kernels.interpreter.emulation import Array
from triton_kernels.interpreter.handles import decode

_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_E2M1 = np.concatenate([_E2M1, -_E2M1])


def values(operand: Any, scale: Any, k_axis: int, k_packed: bool) -> Array:
    """The numbers of an operand times their scales, in float32.

    Args:
        operand: of [M, K] or [K, N], perhaps in a batch. Bytes are two e2m1 numbers each, the lower
            one first, along K or along the other axis.
        scale: of [M, K / 32] or [N, K / 32] (16 for nvfp4), or None. Bytes are exponents, e8m0.
        k_axis: −1 or −2.
    """
    numbers = decode(operand)
    if operand.dtype.scalar == tl.uint8:
        axis = k_axis if k_packed else -3 - k_axis
        numbers = _interleaved(_E2M1[numbers & 15], _E2M1[numbers >> 4], axis)
    numbers = numbers.astype(np.float32)
    if scale is None:
        return numbers
    factors = decode(scale)
    if scale.dtype.scalar == tl.uint8:
        exponents = factors.astype(np.int32) - 127
        factors = np.where(factors == 255, np.float32("nan"), np.ldexp(np.float32(1), exponents))
    factors = np.repeat(factors, numbers.shape[k_axis] // factors.shape[-1], axis=-1)
    return numbers * (factors if k_axis == -1 else factors.swapaxes(-1, -2))


def _interleaved(low: Array, high: Array, axis: int) -> Array:
    """Elements of both in turn along an axis, −1 or −2."""
    shape = list(low.shape)
    shape[axis] *= 2
    after = low.ndim + axis + 1
    return np.stack([low, high], axis=after).reshape(shape)
