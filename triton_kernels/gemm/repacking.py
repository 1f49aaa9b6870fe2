"""Copies of operands that have no descriptor or a slow pitch, and transposes of operands that the
tensor cores need contiguous along the other dimension. One launch serves both operands."""

from __future__ import annotations

import functools
import math
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from triton_kernels import _launch
from triton_kernels._counts import cdiv
from triton_kernels._launch import REMEMBERED, Launch, divisibility, specialization_key
from triton_kernels._scalars import multiple

PITCH = 128  # bytes; pitches of copies are multiples of this
COLUMNS = 512  # of a tile that is copied
SIDE = 64  # of a square tile that is transposed


@triton.jit
def copy_tile(tile, matrix, copy, size, HOW: tl.constexpr):
    """Copy one tile of a matrix whose rows have stride 1, and a pitch and length that UNIT divides.
    The copy's rows are written beyond the matrix's columns, so that stores are of whole vectors."""
    UNIT: tl.constexpr = HOW[0]
    ROWS: tl.constexpr = HOW[1]
    COLUMNS: tl.constexpr = HOW[2]
    TURNED: tl.constexpr = HOW[3]
    rows, columns, pitch, new_pitch = size
    pitch, columns = multiple(pitch, UNIT), multiple(columns, UNIT)
    across = tl.cdiv(columns, COLUMNS)
    m = (tile // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    n0 = tile % across * COLUMNS
    n = n0 + tl.arange(0, COLUMNS)
    rest = m[:, None] < rows
    source = matrix + m[:, None] * pitch + n[None, :]
    if n0 + COLUMNS <= columns:
        values = tl.load(source, mask=rest, other=0.0)
    else:
        values = tl.load(source, mask=rest & (n[None, :] < columns), other=0.0)
    if TURNED:  # through shared memory, so that stores go along rows, too
        room = (n[:, None] < columns) & (m[None, :] < new_pitch)
        target = copy + n[:, None].to(tl.int64) * new_pitch + m[None, :]
        tl.store(target, values.T, mask=room)
    else:
        room = rest & (n[None, :] < new_pitch)
        tl.store(copy + m[:, None] * new_pitch + n[None, :], values, mask=room)


@triton.jit
def repack_kernel(
    a, a_copy, a_size, b, b_copy, b_size, A_HOW: tl.constexpr, B_HOW: tl.constexpr
):  # fmt: skip
    """Each program copies a tile of a or b; those of a come first. With one matrix b is None.

    Sizes are (rows, columns, pitch, the copy's pitch). A_HOW and B_HOW are (UNIT, ROWS, COLUMNS,
    TURNED): a tile has ROWS × COLUMNS elements, and is transposed if TURNED.
    """
    tile = tl.program_id(0)
    of_a = tl.cdiv(a_size[0], A_HOW[1]) * tl.cdiv(a_size[1], A_HOW[2])
    if tile < of_a:
        copy_tile(tile, a, a_copy, a_size, A_HOW)
    elif b is not None:
        copy_tile(tile - of_a, b, b_copy, b_size, B_HOW)


def repacked(*matrices: tuple[Tensor, bool]) -> list[Tensor]:
    """Copies of one or two matrices, each given with whether to copy its transpose. The rows of the
    matrices and of the copies have stride 1; those of the copies start at multiples of PITCH."""
    first, _ = matrices[0]
    copies: list[Tensor] = []
    arguments: list[Any] = []
    hows: list[tuple[Any, ...]] = []
    kinds: list[int] = []
    programs = 0
    for matrix, turned in matrices:
        rows, columns = matrix.shape[::-1] if turned else matrix.shape
        step = PITCH // first.element_size()
        pitch = cdiv(columns, step) * step
        copy = _launch.workspace((rows, pitch), first.dtype, first.device)
        copies.append(copy.narrow(1, 0, columns))
        size = (*matrix.shape, matrix.stride(0), pitch)
        arguments += [matrix, copy, size]
        unit = math.gcd(*size[1:3], 16 // first.element_size())
        tile = (SIDE, SIDE) if turned else (8, COLUMNS)
        if unit == 1 and not turned:
            tile = (2, COLUMNS)  # small, because elements are loaded one by one
        hows.append((unit, *tile, turned))
        kinds += map(divisibility, size)
        programs += cdiv(size[0], tile[0]) * cdiv(size[1], tile[1])
    if len(matrices) == 1:
        arguments += [None, None, (0, 0, 0, 0)]
        hows.append((1, 8, COLUMNS, False))
    keys = tuple(map(specialization_key, (*arguments[:2], *arguments[3:5])))
    prepared = _prepared(tuple(hows), tuple(kinds), keys)
    prepared(first.device, *arguments, grid=(programs, 1, 1))
    return copies


@functools.lru_cache(REMEMBERED)
def _prepared(hows: tuple[Any, ...], kinds: tuple[Any, ...], keys: tuple[Any, ...]) -> Launch:
    """The launch for tensors with these keys and sizes of these kinds."""
    return Launch(repack_kernel, (), A_HOW=hows[0], B_HOW=hows[1])
