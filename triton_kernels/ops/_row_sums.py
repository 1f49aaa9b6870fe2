"""sum_to's kernel for rows that begin anywhere: it loads them by whole vectors all the same."""

from __future__ import annotations

import triton
import triton.language as tl

from triton_kernels._scalars import scalar_value

__all__ = ["VECTOR", "row_sum_kernel"]

VECTOR = 16  # bytes


@triton.jit(do_not_specialize=["factor"])
def row_sum_kernel(
    x_ptr,
    out_ptr,
    factor,
    addends,
    pitch,
    stride_out,
    C: tl.constexpr,
    V: tl.constexpr,
    BLOCK_R: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Program i: out[i·stride_out] = factor·Σ x[i·pitch : i·pitch + addends].

    V elements are a vector, and x is aligned to one. Addresses relative to the row's first whole
    vector are multiples of V to the compiler, and so is the number of elements that such vectors
    hold; hence all loads but the first are wide. The first has what lies before and behind them,
    less than a vector each.
    """
    row = tl.program_id(0).to(tl.int64)
    start = row * pitch
    first = tl.cdiv(start, V) * V
    x_ptrs = x_ptr + first
    head = (first - start).to(tl.int32)
    inner = (addends - head) // V * V

    lane = tl.arange(0, 2 * V)
    r = tl.where(lane < V, lane - V, inner + lane - V)
    outer = tl.load(x_ptrs + r, mask=(r >= -head) & (r < addends - head), other=0)

    r = tl.arange(0, BLOCK_R)
    whole = inner // BLOCK_R * BLOCK_R
    total = tl.zeros([BLOCK_R], C)
    for at in tl.range(0, whole, BLOCK_R, loop_unroll_factor=UNROLL):
        total += tl.load(x_ptrs + at + r)
    total += tl.load(x_ptrs + whole + r, mask=r < inner - whole, other=0)
    out = (tl.sum(total) + tl.sum(tl.cast(outer, C))) * scalar_value(factor, C)
    tl.store(out_ptr + row * stride_out, out)
