"""The kernels of the elementwise ops.

What the compiler knows about alignment and masks decides the layout of a block over threads and the
width of accesses. Some lines here only give it that knowledge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from triton_kernels._scalars import multiple, scalar_value


@triton.jit
def promoted(v, RESULT: tl.constexpr, C: tl.constexpr):
    """v converted to C, to the result dtype, and to C again. So integers and float64 round to
    float32 before a 16-bit result dtype rounds them again, as in torch."""
    wide = tl.cast(v, C)
    if v.dtype.is_int() and RESULT.is_floating():
        # x·1 + 0: otherwise the compiler merges two conversions into one, which rounds once.
        wide = tl.fma(wide, tl.full(wide.shape, 1.0, C), tl.full(wide.shape, 0.0, C))
    return tl.cast(tl.cast(wide, RESULT), C)


@triton.jit
def applied(
    x,
    y,
    s,
    ELEMENT: tl.constexpr,
    HAS_Y: tl.constexpr,
    HAS_S: tl.constexpr,
    ACT: tl.constexpr,
):
    """ELEMENT applied to the operands that it takes."""
    if ACT is not None:
        out = ELEMENT(x, y, ACT)
    elif HAS_Y and HAS_S:
        out = ELEMENT(x, y, s)
    elif HAS_Y:
        out = ELEMENT(x, y)
    elif HAS_S:
        out = ELEMENT(x, s)
    else:
        out = ELEMENT(x)
    return out


def _named(kernel: str) -> Callable[[Any], str]:
    """The name of a compiled kernel in profiles: the formula's name, the activation's if there is
    one, and ``kernel``: add_flat, act_mul_silu_flat."""

    def name(specialization: Any) -> str:
        element: str = specialization.constants["ELEMENT"].fn.__name__
        act = specialization.constants.get("ACT")
        chosen = "" if act is None else f"_{act.fn.__name__.removeprefix('half_')}"
        return f"{element.removesuffix('_element')}{chosen}_{kernel}"

    return name


@triton.jit
def _divided(index, factor, shift, UNIT: tl.constexpr):
    """index ÷ d rounded down, for an index below 2³¹ and :func:`divisor`'s numbers for d. It takes
    two instructions. A division by a number that is unknown at compile time takes about twenty.

    UNIT divides d, so UNIT quotients in a row are equal. A hint tells the compiler so. It must be
    on the operation: on the result of a call it is lost when the call is inlined.
    """
    return tl.max_constancy(tl.umulhi(index, tl.cast(factor, tl.uint32)) >> shift, [UNIT])


@triton.jit
def _walked(start, lane, walk, UNITS: tl.constexpr):
    """The offset of an operand's element for each element of the output.

    walk has nine numbers: for each of the two innermost dimensions the size as divisor's d, factor
    and shift, and the stride; then the stride of the third dimension. None stands for a stride of 0
    or a missing dimension; nine None are one dense row. (The tuple is flat, because Triton 3.6
    allows no None in a tuple in a tuple.)

    UNITS are a divisor of the first size, and one of the strides after the first. With them the
    compiler can use vectors, or one access if the first stride is 0.
    """
    offset = start + lane
    if walk[0] is not None:
        SIZE: tl.constexpr = UNITS[0]
        STRIDES: tl.constexpr = UNITS[1]
        index = offset.to(tl.uint32)
        row = _divided(index, walk[1], walk[2], SIZE)
        offset = tl.zeros_like(index)
        if walk[3] is not None:
            first = index - row * multiple(tl.cast(walk[0], tl.uint32), SIZE)
            offset += first * tl.cast(walk[3], tl.uint32)
        if walk[4] is not None:
            plane = _divided(row, walk[5], walk[6], SIZE)
            row -= plane * tl.cast(walk[4], tl.uint32)
            if walk[8] is not None:
                offset += plane * multiple(tl.cast(walk[8], tl.uint32), STRIDES)
        if walk[7] is not None:
            offset += row * multiple(tl.cast(walk[7], tl.uint32), STRIDES)
    return offset


@triton.jit
def _flat_block(
    x_ptr,
    y_ptr,
    s_ptr,
    out_ptr,
    y_value,
    s_value,
    start,
    left,
    x_walk,
    y_walk,
    s_walk,
    ELEMENT: tl.constexpr,
    HAS_Y: tl.constexpr,
    HAS_S: tl.constexpr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    X_UNITS: tl.constexpr,
    Y_UNITS: tl.constexpr,
    S_UNITS: tl.constexpr,
    ACT: tl.constexpr = None,
):
    """Compute the elements from ``start`` on: the first ``left``, or all if that is None."""
    RESULT: tl.constexpr = out_ptr.dtype.element_ty
    lane = tl.arange(0, BLOCK)
    mask = None
    other = None
    if left is not None:
        mask = lane < left
        other = 0
    x = tl.load(x_ptr + _walked(start, lane, x_walk, X_UNITS), mask=mask, other=other)
    x = promoted(x, RESULT, C)
    if y_ptr is None:
        y = scalar_value(y_value, C)
    else:
        y = tl.load(y_ptr + _walked(start, lane, y_walk, Y_UNITS), mask=mask, other=other)
        y = promoted(y, RESULT, C)
    if s_ptr is None:
        s = scalar_value(s_value, C)
    else:
        s = tl.load(s_ptr + _walked(start, lane, s_walk, S_UNITS), mask=mask, other=other)
        s = promoted(s, RESULT, C)
    out = applied(x, y, s, ELEMENT, HAS_Y, HAS_S, ACT)
    tl.store(out_ptr + start + lane, tl.cast(out, RESULT), mask=mask)


@triton.jit(do_not_specialize=["y_value", "s_value"], repr=_named("flat"))
def flat_kernel(
    x_ptr,
    y_ptr,
    s_ptr,
    out_ptr,
    y_value,
    s_value,
    n,
    x_walk,
    y_walk,
    s_walk,
    ELEMENT: tl.constexpr,
    HAS_Y: tl.constexpr,
    HAS_S: tl.constexpr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    X_UNITS: tl.constexpr,
    Y_UNITS: tl.constexpr,
    S_UNITS: tl.constexpr,
    ACT: tl.constexpr = None,
):
    """out[i] = ELEMENT(x[i], y[i], s[i]) for i < n, without y or s if the formula has none. A
    formula with an activation is ELEMENT(x, y, ACT).

    If y_ptr is None, y is the scalar y_value; if s_ptr is None, s is s_value. The walk and units of
    an operand describe its layout relative to the output, as in _walked.

    Only the last block has a mask: masked accesses are wide only if n is a multiple of their width.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    if start + BLOCK <= n:
        _flat_block(
            x_ptr, y_ptr, s_ptr, out_ptr, y_value, s_value, start, None, x_walk, y_walk, s_walk,
            ELEMENT, HAS_Y, HAS_S, C, BLOCK, X_UNITS, Y_UNITS, S_UNITS, ACT,
        )  # fmt: skip
    else:
        _flat_block(
            x_ptr, y_ptr, s_ptr, out_ptr, y_value, s_value, start, n - start, x_walk, y_walk,
            s_walk, ELEMENT, HAS_Y, HAS_S, C, BLOCK, X_UNITS, Y_UNITS, S_UNITS, ACT,
        )  # fmt: skip


@triton.jit
def located(
    i, j, k, outer, sizes, strides, UNITS: tl.constexpr, AT: tl.constexpr, NDIM: tl.constexpr
):
    """The offsets of an operand's elements, and the mask of those inside. i and j are indices of
    the first two dimensions; k counts through all others together. A stride of None means that the
    operand repeats along that dimension.

    UNITS[AT] and UNITS[AT + 1] are d and u of the operand: it is dense along dimension d, and u
    divides d's size and the strides along other dimensions.
    """
    DENSE: tl.constexpr = UNITS[AT]
    UNIT: tl.constexpr = UNITS[AT + 1]
    offset = k * 0
    mask = k < outer
    rest = k
    for d in tl.static_range(2, NDIM):
        index = rest
        if d < NDIM - 1:
            index = rest % sizes[d]
            rest = rest // sizes[d]
        if strides[d] is not None:
            offset = offset + index * multiple(strides[d], UNIT)
    if strides[1] is not None:
        offset = offset + j * (strides[1] if DENSE == 1 else multiple(strides[1], UNIT))
        mask = mask & (j < multiple(sizes[1], UNITS[1]))
    if strides[0] is not None:
        offset = offset + i * (strides[0] if DENSE == 0 else multiple(strides[0], UNIT))
        mask = mask & (i < multiple(sizes[0], UNITS[0]))
    return offset, mask


@triton.jit
def part(
    ptr,
    i0,
    j0,
    k0,
    outer,
    sizes,
    strides,
    UNITS: tl.constexpr,
    AT: tl.constexpr,
    NDIM: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Load an operand's part of a tile, [BLOCK_K, BLOCK_J, BLOCK_I], with 1 in place of BLOCK_I or
    BLOCK_J if the operand repeats along that dimension."""
    if strides[0] is None:  # in two dimensions: in three, threads would read the same twice
        j = j0 + tl.arange(0, BLOCK_J)[None, :]
        k = k0 + tl.arange(0, BLOCK_K)[:, None]
        offset, mask = located(i0, j, k, outer, sizes, strides, UNITS, AT, NDIM)
        v = tl.load(ptr + offset, mask=mask, other=0)[:, :, None]
    else:
        i, j, k = indices(i0, j0, k0, BLOCK_I, BLOCK_J, BLOCK_K)
        offset, mask = located(i, j, k, outer, sizes, strides, UNITS, AT, NDIM)
        v = tl.load(ptr + offset, mask=mask, other=0)
    return v


@triton.jit
def corner(
    sizes,
    UNITS: tl.constexpr,
    INDEX: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """The first index of the program's tile in each direction. UNITS divide the first two sizes."""
    tile = tl.program_id(0)
    columns = (sizes[0] - 1) // BLOCK_I + 1
    rows = (sizes[1] - 1) // BLOCK_J + 1
    # Every tile begins inside, so the minimum changes nothing. But to the compiler the result is
    # only as aligned as the size is: if masks do not cover whole vectors, it gives neighbouring
    # elements to different threads.
    i0 = tl.minimum((tile % columns).to(INDEX) * BLOCK_I, multiple(sizes[0], UNITS[0]))
    j0 = tl.minimum((tile // columns % rows).to(INDEX) * BLOCK_J, multiple(sizes[1], UNITS[1]))
    k0 = (tile // columns // rows).to(INDEX) * BLOCK_K
    return i0, j0, k0


@triton.jit
def indices(i0, j0, k0, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_K: tl.constexpr):
    i = i0 + tl.arange(0, BLOCK_I)[None, None, :]
    j = j0 + tl.arange(0, BLOCK_J)[None, :, None]
    k = k0 + tl.arange(0, BLOCK_K)[:, None, None]
    return i, j, k


@triton.jit(do_not_specialize=["y_value", "s_value"], repr=_named("tiled"))
def tiled_kernel(
    x_ptr,
    y_ptr,
    s_ptr,
    out_ptr,
    y_value,
    s_value,
    outer,
    sizes,
    x_strides,
    y_strides,
    s_strides,
    out_strides,
    ELEMENT: tl.constexpr,
    HAS_Y: tl.constexpr,
    HAS_S: tl.constexpr,
    C: tl.constexpr,
    UNITS: tl.constexpr,
    NDIM: tl.constexpr,
    INDEX: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ACT: tl.constexpr = None,
):
    """The same as flat_kernel over NDIM dimensions, in tiles of the first two dimensions and of the
    others together, which have ``outer`` indices. A stride of 0 is passed as None. INDEX is a type
    wide enough for every offset. UNITS has divisors of the first two sizes, then two numbers for
    each tensor, as in located.

    Each operand is read along the dimension in which it is dense. If that is not the output's, the
    tile is transposed in shared memory.
    """
    RESULT: tl.constexpr = out_ptr.dtype.element_ty
    i0, j0, k0 = corner(sizes, UNITS, INDEX, BLOCK_I, BLOCK_J, BLOCK_K)
    x = part(x_ptr, i0, j0, k0, outer, sizes, x_strides, UNITS, 2, NDIM, BLOCK_I, BLOCK_J, BLOCK_K)
    x = tl.broadcast_to(promoted(x, RESULT, C), [BLOCK_K, BLOCK_J, BLOCK_I])
    if y_ptr is None:
        y = scalar_value(y_value, C)
    else:
        y = part(
            y_ptr, i0, j0, k0, outer, sizes, y_strides, UNITS, 4, NDIM, BLOCK_I, BLOCK_J, BLOCK_K
        )
        y = tl.broadcast_to(promoted(y, RESULT, C), [BLOCK_K, BLOCK_J, BLOCK_I])
    if s_ptr is None:
        s = scalar_value(s_value, C)
    else:
        s = part(
            s_ptr, i0, j0, k0, outer, sizes, s_strides, UNITS, 6, NDIM, BLOCK_I, BLOCK_J, BLOCK_K
        )
        s = tl.broadcast_to(promoted(s, RESULT, C), [BLOCK_K, BLOCK_J, BLOCK_I])
    out = applied(x, y, s, ELEMENT, HAS_Y, HAS_S, ACT)
    i, j, k = indices(i0, j0, k0, BLOCK_I, BLOCK_J, BLOCK_K)
    offset, mask = located(i, j, k, outer, sizes, out_strides, UNITS, 8, NDIM)
    tl.store(out_ptr + offset, tl.cast(out, RESULT), mask=mask)
