"""The kernels of act_mul_backward: the gradients of gate and of up, in one pass.

Tiles and masks are those of the elementwise kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from triton_kernels._elementwise_kernels import corner, indices, located, part, promoted


@triton.jit
def gradients(
    grad, gate, up,
    ACT: tl.constexpr, DERIVATIVE: tl.constexpr, OF_PRE: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """The gradients of gate and up: grad·act'(gate)·up and grad·act(gate)."""
    value = ACT(gate)
    if OF_PRE:
        slope = DERIVATIVE(gate)
    else:
        slope = DERIVATIVE(value)
    dgate = grad * (slope * up)  # grad·up might overflow where the slope is 0
    if DROPS is not None:
        dgate = tl.where(DROPS(gate if OF_PRE else value), 0.0, dgate)
    return dgate, grad * value


def _named(kernel: str) -> Callable[[Any], str]:
    """The kernel's name in profiles, for example act_mul_backward_silu_flat."""

    def name(specialization: Any) -> str:
        act: str = specialization.constants["ACT"].fn.__name__
        return f"act_mul_backward_{act.removeprefix('half_')}_{kernel}"

    return name


@triton.jit
def _flat_block(
    grad_ptr,
    gate_ptr,
    up_ptr,
    dgate_ptr,
    dup_ptr,
    lane,
    mask,
    other,
    ACT: tl.constexpr,
    DERIVATIVE: tl.constexpr,
    OF_PRE: tl.constexpr,
    DROPS: tl.constexpr,
    C: tl.constexpr,
):
    RESULT: tl.constexpr = dgate_ptr.dtype.element_ty
    grad = promoted(tl.load(grad_ptr + lane, mask=mask, other=other), RESULT, C)
    gate = promoted(tl.load(gate_ptr + lane, mask=mask, other=other), RESULT, C)
    up = promoted(tl.load(up_ptr + lane, mask=mask, other=other), RESULT, C)
    dgate, dup = gradients(grad, gate, up, ACT, DERIVATIVE, OF_PRE, DROPS)
    tl.store(dgate_ptr + lane, dgate, mask=mask)
    tl.store(dup_ptr + lane, dup, mask=mask)


@triton.jit(repr=_named("flat"))
def flat_gradients_kernel(
    grad_ptr,
    gate_ptr,
    up_ptr,
    dgate_ptr,
    dup_ptr,
    n,
    ACT: tl.constexpr,
    DERIVATIVE: tl.constexpr,
    OF_PRE: tl.constexpr,
    DROPS: tl.constexpr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """n elements of tensors that are dense in one order. Only the last block is masked: masked
    accesses are wide only if n is a multiple of their width."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    lane = start + tl.arange(0, BLOCK)
    if start + BLOCK <= n:
        _flat_block(
            grad_ptr, gate_ptr, up_ptr, dgate_ptr, dup_ptr, lane, None, None,
            ACT, DERIVATIVE, OF_PRE, DROPS, C,
        )  # fmt: skip
    else:
        _flat_block(
            grad_ptr, gate_ptr, up_ptr, dgate_ptr, dup_ptr, lane, lane < n, 0,
            ACT, DERIVATIVE, OF_PRE, DROPS, C,
        )  # fmt: skip


@triton.jit(repr=_named("tiled"))
def tiled_gradients_kernel(
    grad_ptr,
    gate_ptr,
    up_ptr,
    dgate_ptr,
    dup_ptr,
    outer,
    sizes,
    grad_strides,
    gate_strides,
    up_strides,
    dgate_strides,
    dup_strides,
    ACT: tl.constexpr,
    DERIVATIVE: tl.constexpr,
    OF_PRE: tl.constexpr,
    DROPS: tl.constexpr,
    C: tl.constexpr,
    UNITS: tl.constexpr,
    NDIM: tl.constexpr,
    INDEX: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """The gradients for tensors of any strides, in the tiles of
    _elementwise_kernels.tiled_kernel."""
    RESULT: tl.constexpr = dgate_ptr.dtype.element_ty
    i0, j0, k0 = corner(sizes, UNITS, INDEX, BLOCK_I, BLOCK_J, BLOCK_K)
    grad = part(
        grad_ptr, i0, j0, k0, outer, sizes, grad_strides, UNITS, 2, NDIM, BLOCK_I, BLOCK_J, BLOCK_K
    )
    gate = part(
        gate_ptr, i0, j0, k0, outer, sizes, gate_strides, UNITS, 4, NDIM, BLOCK_I, BLOCK_J, BLOCK_K
    )
    up = part(
        up_ptr, i0, j0, k0, outer, sizes, up_strides, UNITS, 6, NDIM, BLOCK_I, BLOCK_J, BLOCK_K
    )
    grad = tl.broadcast_to(promoted(grad, RESULT, C), [BLOCK_K, BLOCK_J, BLOCK_I])
    gate = tl.broadcast_to(promoted(gate, RESULT, C), [BLOCK_K, BLOCK_J, BLOCK_I])
    up = tl.broadcast_to(promoted(up, RESULT, C), [BLOCK_K, BLOCK_J, BLOCK_I])
    dgate, dup = gradients(grad, gate, up, ACT, DERIVATIVE, OF_PRE, DROPS)
    i, j, k = indices(i0, j0, k0, BLOCK_I, BLOCK_J, BLOCK_K)
    offset, mask = located(i, j, k, outer, sizes, dgate_strides, UNITS, 8, NDIM)
    tl.store(dgate_ptr + offset, dgate, mask=mask)
    offset, mask = located(i, j, k, outer, sizes, dup_strides, UNITS, 10, NDIM)
    tl.store(dup_ptr + offset, dup, mask=mask)
