"""Copies of operands that descriptors do not take, or are slow with: both in one launch."""

from __future__ import annotations

import functools
import math
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from triton_kernels._launch import REMEMBERED, Launch, specialization_key
from triton_kernels._scalars import multiple
from triton_kernels.gemm.configurations import cdiv

PITCH = 128  # bytes, of which rows of a copy are multiples
COLUMNS = 512


@triton.jit
def copy_tile(
    tile, matrix, copy, rows, columns, pitch, new_pitch,
    UNIT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One tile of a matrix with rows of stride 1, all multiples of UNIT. What a copy's row has
    beyond the matrix's is filled, too: so every store is of whole vectors."""
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
    room = rest & (n[None, :] < new_pitch)
    tl.store(copy + m[:, None] * new_pitch + n[None, :], values, mask=room)


@triton.jit
def repack_kernel(
    a,
    a_copy,
    b,
    b_copy,
    a_rows,
    a_columns,
    a_pitch,
    a_new,
    b_rows,
    b_columns,
    b_pitch,
    b_new,
    A_UNIT: tl.constexpr,
    B_UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A tile of a or b a program; those of a come first. b is None if there is one matrix."""
    tile = tl.program_id(0)
    of_a = tl.cdiv(a_rows, ROWS) * tl.cdiv(a_columns, COLUMNS)
    if tile < of_a:
        copy_tile(tile, a, a_copy, a_rows, a_columns, a_pitch, a_new, A_UNIT, ROWS, COLUMNS)
    elif b is not None:
        tile -= of_a
        copy_tile(tile, b, b_copy, b_rows, b_columns, b_pitch, b_new, B_UNIT, ROWS, COLUMNS)


def repacked(*matrices: Tensor) -> list[Tensor]:
    """Copies of one or two matrices, whose rows have stride 1 and start on multiples of PITCH."""
    copies = [_room(matrix) for matrix in matrices]
    tensors: list[Tensor | None] = []
    integers: list[int] = []
    for pair in zip(matrices, copies):
        tensors += pair
        integers += [*pair[0].shape, pair[0].stride(0), pair[1].stride(0)]
    if len(matrices) == 1:
        tensors, integers = [*tensors, None, None], [*integers, 0, 0, 0, 0]
    keys = tuple(map(specialization_key, tensors))
    _prepared(tuple(integers), keys, matrices[0].element_size())(
        matrices[0].device, *tensors, *integers
    )
    return [copy[:, : matrix.shape[1]] for matrix, copy in zip(matrices, copies)]


def _room(matrix: Tensor) -> Tensor:
    rows, columns = matrix.shape
    step = PITCH // matrix.element_size()
    return matrix.new_empty(rows, cdiv(columns, step) * step)


@functools.lru_cache(REMEMBERED)
def _prepared(integers: tuple[int, ...], keys: tuple[Any, ...], size: int) -> Launch:
    of_a, of_b = integers[:4], integers[4:]
    units = [math.gcd(*each[1:3], 16 // size) for each in (of_a, of_b)]
    rows = 2 if min(units) == 1 else 8  # few where each element is loaded by itself
    programs = sum(cdiv(each[0], rows) * cdiv(each[1], COLUMNS) for each in (of_a, of_b))
    more = {"A_UNIT": units[0], "B_UNIT": units[1], "ROWS": rows, "COLUMNS": COLUMNS}
    return Launch(repack_kernel, (programs,), **more)
