"""The kernels under the elementwise ops.

What the compiler knows of alignment and masks decides how it spreads a block over threads and how
wide the accesses are; some lines here are there for that only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from triton_kernels._scalars import multiple, scalar_value


@triton.jit
def promoted(v, RESULT: tl.constexpr, C: tl.constexpr):
    """v in the result dtype, then in C. By way of C, so that integers and float64 round once to
    float32 before a 16-bit result dtype rounds them again, as torch does."""
    wide = tl.cast(v, C)
    if v.dtype.is_int() and RESULT.is_floating():
        # Else the compiler makes one conversion of two, which rounds once.
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
    """ELEMENT of the operands that it has."""
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
    """What profiles call a compiled kernel: the formula's name with the kernel's, add_flat, and
    with an activation's, act_mul_silu_flat."""

    def name(specialization: Any) -> str:
        element: str = specialization.constants["ELEMENT"].fn.__name__
        act = specialization.constants.get("ACT")
        chosen = "" if act is None else f"_{act.fn.__name__.removeprefix('half_')}"
        return f"{element.removesuffix('_element')}{chosen}_{kernel}"

    return name


@triton.jit
def _divided(index, d, factor, shift):
    """index ÷ d, rounded down, of an index below 2³¹; the numbers are :func:`divisor`'s.

    A division by what only the launch knows takes some twenty instructions, and a multiplication
    with a shift two. Of a multiple of 16 it has to stay: there the compiler sees which elements
    follow each other.
    """
    if factor is None:
        quotient = index // d.to(tl.uint32)
    else:
        quotient = tl.umulhi(index, factor.to(tl.uint32)) >> shift
    return quotient


@triton.jit
def _walked(start, lane, walk):
    """The index of an operand's element at each place of the output: each of them comes walk[0]
    times in a row, and walk[3] of them are a row; the next one begins walk[6] later than it did, or
    is the same again. None is once, and one endless row. (One flat tuple: Triton 3.6 knows no None
    in a tuple in a tuple.)"""
    index = start + lane
    if walk[0] is not None:
        index = _divided(index.to(tl.uint32), walk[0], walk[1], walk[2])
    if walk[3] is not None:
        index = index.to(tl.uint32)
        row = _divided(index, walk[3], walk[4], walk[5])
        index -= row * walk[3].to(tl.uint32)
        if walk[6] is not None:
            index += row * walk[6].to(tl.uint32)
    return index


@triton.jit
def _flat_block(
    x_ptr,
    y_ptr,
    out_ptr,
    y_value,
    s,
    start,
    left,
    x_walk,
    y_walk,
    ELEMENT: tl.constexpr,
    HAS_Y: tl.constexpr,
    HAS_S: tl.constexpr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    ACT: tl.constexpr = None,
):
    """The elements from ``start`` on, of which ``left`` are there; None is all."""
    RESULT: tl.constexpr = out_ptr.dtype.element_ty
    lane = tl.arange(0, BLOCK)
    mask = None
    other = None
    if left is not None:
        mask = lane < left
        other = 0
    x = tl.load(x_ptr + _walked(start, lane, x_walk), mask=mask, other=other)
    x = promoted(x, RESULT, C)
    if y_ptr is None:
        y = scalar_value(y_value, C)
    else:
        y = tl.load(y_ptr + _walked(start, lane, y_walk), mask=mask, other=other)
        y = promoted(y, RESULT, C)
    out = applied(x, y, scalar_value(s, C), ELEMENT, HAS_Y, HAS_S, ACT)
    tl.store(out_ptr + start + lane, tl.cast(out, RESULT), mask=mask)


@triton.jit(do_not_specialize=["y_value", "s"], repr=_named("flat"))
def flat_kernel(
    x_ptr,
    y_ptr,
    out_ptr,
    y_value,
    s,
    n,
    x_walk,
    y_walk,
    ELEMENT: tl.constexpr,
    HAS_Y: tl.constexpr,
    HAS_S: tl.constexpr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    ACT: tl.constexpr = None,
):
    """out[i] = ELEMENT(x[i], y[i], s) for i < n, less y and s where the formula has none. y_ptr is
    None where y is the scalar y_value. An operand that repeats itself, or lies in rows, says how by
    its walk. A formula of an activation is ELEMENT(x, y, ACT).

    Only the last block has a mask: under one, accesses are wide only if n is a multiple of them.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    if start + BLOCK <= n:
        _flat_block(
            x_ptr, y_ptr, out_ptr, y_value, s, start, None, x_walk, y_walk,
            ELEMENT, HAS_Y, HAS_S, C, BLOCK, ACT,
        )  # fmt: skip
    else:
        _flat_block(
            x_ptr, y_ptr, out_ptr, y_value, s, start, n - start, x_walk, y_walk,
            ELEMENT, HAS_Y, HAS_S, C, BLOCK, ACT,
        )  # fmt: skip


@triton.jit
def located(
    i, j, k, outer, sizes, strides, UNITS: tl.constexpr, AT: tl.constexpr, NDIM: tl.constexpr
):
    """The offsets of an operand's elements, and which are there. k counts through all dimensions
    but the first two, and of these i and j only matter where the operand does not repeat itself.

    From AT on UNITS has d and u of the operand: it is dense along dimension d, of whose size u is a
    divisor, and of all strides along others.
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
    """An operand's part of a tile, [BLOCK_K, BLOCK_J, BLOCK_I], or with 1 for BLOCK_J or BLOCK_I
    where the operand repeats itself."""
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
    """Where the program's tile begins, in each direction. UNITS divide the first two sizes."""
    tile = tl.program_id(0)
    columns = (sizes[0] - 1) // BLOCK_I + 1
    rows = (sizes[1] - 1) // BLOCK_J + 1
    # Every tile begins inside; to the compiler the minimum is only as aligned as the size is. So
    # where masks are not of whole vectors it has each thread read neighbours of other threads'.
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


@triton.jit(do_not_specialize=["y_value", "s"], repr=_named("tiled"))
def tiled_kernel(
    x_ptr,
    y_ptr,
    out_ptr,
    y_value,
    s,
    outer,
    sizes,
    x_strides,
    y_strides,
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
    """The same over NDIM dimensions, in tiles of the first two and of the ``outer`` indices that
    the others have together. A stride of 0 comes as None. INDEX is wide enough for every offset.
    UNITS are of the first two sizes, then two numbers for each tensor, as located takes them.

    Each operand is read along the dimension in which it is dense; where that is another one than
    the output's, the tile is turned in shared memory.
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
    out = applied(x, y, scalar_value(s, C), ELEMENT, HAS_Y, HAS_S, ACT)
    i, j, k = indices(i0, j0, k0, BLOCK_I, BLOCK_J, BLOCK_K)
    offset, mask = located(i, j, k, outer, sizes, out_strides, UNITS, 6, NDIM)
    tl.store(out_ptr + offset, tl.cast(out, RESULT), mask=mask)
