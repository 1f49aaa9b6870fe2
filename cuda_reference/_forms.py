"""Forms of calls: in calls of one form, only addresses and a few numbers of a launch differ.

A repeated call is kept (_prepared.py), and a new shape would be a new call. But to a kernel that
goes through dense tensors element by element, only their number of elements matters. So the key of
such a call has the form of its tensors instead of their shapes: which are dense, and which are a
row or a column that repeats. The descriptions of the tensors in a launch are marked with the
numbers that differ, so that a later call with other shapes can set them.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cuda_reference import _launch

N, ROWS, COLUMNS = "n", "rows", "columns"
REMEMBERED = 256  # forms, by the shapes of their tensors


class Layout:
    """The dimensions of a described tensor.

    Args:
        sizes, strides: names of a form's numbers, or constants.
    """

    def __init__(self, sizes: tuple[str, ...], strides: tuple[str | int, ...]) -> None:
        self._sizes, self._strides = sizes, strides
        each = ctypes.sizeof(ctypes.c_longlong)
        size, stride = _launch.CTensor.size.offset, _launch.CTensor.stride.offset
        self._marks = [(size + each * d, number) for d, number in enumerate(sizes)]
        self._marks += [
            (stride + each * d, number)
            for d, number in enumerate(strides)
            if isinstance(number, str)
        ]

    def of(self, t: Tensor, numbers: Mapping[str, int]) -> Any:
        """``t`` in this layout, as a ``const Tensor*`` argument of a launcher."""
        sizes = tuple([numbers[each] for each in self._sizes])
        strides = tuple([numbers[s] if isinstance(s, str) else s for s in self._strides])
        return _launch.described(t.data_ptr(), t.dtype, sizes, strides, self._marks)


DENSE = Layout((N,), (1,))
MATRIX = Layout((ROWS, COLUMNS), (COLUMNS, 1))
ROW, COLUMN = Layout((ROWS, COLUMNS), (0, 1)), Layout((ROWS, COLUMNS), (1, 0))  # they repeat


class Form(NamedTuple):
    """The form of a call.

    Attributes:
        layouts: what calls of a form have in common: a layout per tensor, results last.
        numbers: the numbers by name.
        shape, strides: those of results, which are contiguous.
    """

    layouts: tuple[Layout, ...]
    numbers: dict[str, int]
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def formed(layouts: Sequence[Layout], numbers: dict[str, int], shape: tuple[int, ...]) -> Form:
    """A form whose results have this shape, and elements."""
    strides, n = [], 1
    for size in reversed(shape):
        strides.append(n)
        n *= size
    return Form(tuple(layouts), numbers, shape, tuple(strides[::-1]))


def elementwise(tensors: Sequence[Tensor], args: tuple[Any, ...] = ()) -> Form | None:
    """The form of an elementwise op's tensors, with or without results; None if there is none. It
    does not depend on the call's other arguments."""
    shapes = []
    for t in tensors:
        if not t.is_contiguous():
            return None
        shapes.append(t.shape)
    return _broadcasting(tuple(shapes))


@functools.lru_cache(REMEMBERED)
def _broadcasting(shapes: tuple[torch.Size, ...]) -> Form | None:
    shape = shapes[0]
    if shapes.count(shape) == len(shapes):
        n = shape.numel()
        return formed([DENSE] * len(shapes), {N: n}, shape) if n else None
    shape = max(shapes, key=torch.Size.numel)
    n, layouts, columns = shape.numel(), [], 0
    for each in shapes:
        if each == shape:
            layouts.append(MATRIX)
            continue
        repeated = repeats(each, shape)
        if repeated is None or columns not in (0, repeated[1]):
            return None
        layout, columns = repeated
        layouts.append(layout)
    return formed(layouts, {ROWS: n // columns, COLUMNS: columns}, shape) if n else None


def repeats(shape: tuple[int, ...], whole: tuple[int, ...]) -> tuple[Layout, int] | None:
    """ROW or COLUMN if a tensor of ``shape`` that broadcasts to ``whole`` is that, and the length
    of a row. None for other shapes, and without dimensions, which matters to torch's promotion."""
    missing = len(whole) - len(shape)
    if missing < 0 or not shape:
        return None
    padded, whole = (1,) * missing + tuple(shape), tuple(whole)
    first = 0  # dimension that a row has
    while first < len(whole) and padded[first] == 1:
        first += 1
    if padded[first:] == whole[first:]:
        return ROW, math.prod(whole[first:])
    if padded[-1] == 1 and padded[:-1] == whole[:-1]:
        return COLUMN, whole[-1]
    return None
