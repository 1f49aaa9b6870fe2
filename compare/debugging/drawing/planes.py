"""Tensors and tiles as rows and columns, and the part of them that a picture shows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from triton_kernels.interpreter import Argument

MOST = 32  # rows and columns of a picture
AROUND = 1  # extra rows and columns on each side


@dataclass(frozen=True)
class Plane:
    """A shape as rows and columns: the last dimension along a row, all others along the columns. A
    vector is wrapped into rows of :data:`MOST`."""

    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def wrapped(self) -> bool:
        """Whether it is a vector, whose rows have no meaning."""
        return len(self.shape) < 2 or self.shape[-1] == 1

    @property
    def columns(self) -> int:
        """Cells in a row."""
        return max(1, min(self.size, MOST) if self.wrapped else self.shape[-1])

    @property
    def rows(self) -> int:
        """The number of rows; the last may have fewer columns."""
        return -(-self.size // self.columns)

    def index(self, flat: int) -> tuple[int, ...]:
        """The index of the element at a position in row-major order."""
        return tuple(int(i) for i in np.unravel_index(flat, self.shape)) if self.shape else ()

    def row_label(self, row: int) -> str:
        """The label of a row: the index without its last number; for a vector the index of the
        row's first element."""
        if self.wrapped:
            return str(row * self.columns)
        return ", ".join(map(str, self.index(row * self.columns)[:-1]))

    def column_label(self, column: int) -> str:
        """The label of a column."""
        return f"+{column}" if self.wrapped and self.rows > 1 else str(column)


class Window(NamedTuple):
    """Rows and columns of a plane; ``down`` × ``across`` of them are one cell."""

    top: int
    left: int
    rows: int
    columns: int
    down: int = 1
    across: int = 1

    @property
    def cells(self) -> tuple[int, int]:
        """The numbers of rows and columns of cells."""
        return -(-self.rows // self.down), -(-self.columns // self.across)

    @property
    def single(self) -> bool:
        """Whether each cell is one element."""
        return self.down == self.across == 1

    def whole(self, plane: Plane) -> bool:
        """Whether it shows the whole plane."""
        return (self.rows, self.columns) == (plane.rows, plane.columns)

    def bins(self, plane: Plane, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The rows and columns of cells of the elements that lie inside, and which these are."""
        row, column = np.divmod(flat, plane.columns)
        row, column = row - self.top, column - self.left
        inside = (row >= 0) & (row < self.rows) & (column >= 0) & (column < self.columns)
        return row[inside] // self.down, column[inside] // self.across, inside

    def counts(self, plane: Plane, flat: np.ndarray) -> np.ndarray:
        """How many of these elements lie in each cell."""
        in_cells = np.zeros(self.cells, dtype=np.int64)
        row, column, _ = self.bins(plane, flat)
        np.add.at(in_cells, (row, column), 1)
        return in_cells

    def elements(self, plane: Plane) -> np.ndarray:
        """The number of elements of each cell."""
        down = np.minimum(self.down, self.rows - np.arange(self.cells[0]) * self.down)
        across = np.minimum(self.across, self.columns - np.arange(self.cells[1]) * self.across)
        each = np.outer(down, across)
        if self.single:
            row, column = np.indices(self.cells)
            each[(row + self.top) * plane.columns + column + self.left >= plane.size] = 0
        return each


def everything(plane: Plane) -> Window:
    """The whole plane; if it is large, in cells of several elements."""
    down, across = -(-plane.rows // MOST), -(-plane.columns // MOST)
    return Window(0, 0, plane.rows, plane.columns, max(1, down), max(1, across))


def around(plane: Plane, flat: np.ndarray, centre: int | None = None) -> Window:
    """The part with these elements. If they are too many for a picture: the part around the centre,
    or without a centre all of them in cells of several elements."""
    if not flat.size:
        return everything(plane)
    row, column = np.divmod(flat, plane.columns)
    at = (None, None) if centre is None else divmod(centre, plane.columns)
    top, rows, down = _along(row, plane.rows, at[0])
    left, columns, across = _along(column, plane.columns, at[1])
    return Window(top, left, rows, columns, down, across)


def _along(index: np.ndarray, size: int, centre: int | None) -> tuple[int, int, int]:
    """Start, length and step along one axis."""
    if size <= MOST:
        return 0, size, 1
    first = max(0, int(index.min()) - AROUND)
    length = min(size, int(index.max()) + 1 + AROUND) - first
    if length <= MOST:
        return first, length, 1
    if centre is None:
        return first, length, -(-length // MOST)
    return min(max(0, centre - MOST // 2), size - MOST), MOST, 1


def row_major(argument: Argument, elements: np.ndarray) -> np.ndarray:
    """Element offsets in memory as positions in the tensor's row-major order; −1 outside of it. If
    elements share memory, offsets are returned unchanged."""
    shape, strides = tuple(argument.tensor.shape), argument.tensor.stride()
    elements = elements.astype(np.int64)
    span = (argument.high - argument.low) // argument.itemsize
    inside = (elements >= 0) & (elements < span)
    index = argument.coordinates(elements)
    if index is None:
        return np.where(inside, elements, -1)
    rest = elements - sum((i * st for i, st in zip(index, strides)), start=elements * 0)
    inside &= rest == 0
    for i, n in zip(index, shape):
        inside &= i < n
    if not shape:
        return np.where(inside, 0, -1)
    inner = tuple(np.where(inside, i, 0) for i in index)
    return np.where(inside, np.ravel_multi_index(inner, shape), -1)


def plane_of(argument: Argument) -> Plane:
    """The plane of a tensor; if elements share memory, the plane of its memory."""
    if argument.overlaps:
        return Plane(((argument.high - argument.low) // argument.itemsize,))
    return Plane(tuple(argument.tensor.shape))
