"""Text for sets of elements: the region that an access touches, the pattern of wrong elements."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from triton_kernels.interpreter import Argument

Range = tuple[int, int, int]  # start, stop, step, as in Python's range


class Region(NamedTuple):
    """The elements of a tensor that an access touches.

    Attributes:
        kind: "box": exactly the ranges, one per dimension; "flat": one range of elements in
            row-major order; "memory": one range of element offsets from the tensor's first;
            "within": the elements lie somewhere in the box of the ranges; "none": no element.
        ranges: in a box (0, size, 1) for a dimension of stride 0, whose indices are one element.
        size: the number of different elements.
        transposed: whether the tile's rows are the tensor's columns; for boxes of matrices only.
    """

    kind: str
    ranges: tuple[Range, ...]
    size: int
    transposed: bool = False

    def of(self, name: str) -> str:
        """The region as text: x[32:64, 0:70], x[0:16, 0:32].T, x.flat[0:512], x_ptr + 0:512."""
        inner = ", ".join(map(written, self.ranges))
        if self.kind == "none":
            return f"{name}: nothing"
        if self.kind == "memory":
            return f"{name} + {inner}"
        if self.kind == "flat":
            return f"{name}.flat[{inner}]"
        turned = ".T" if self.transposed else ""
        return f"{'in ' if self.kind == 'within' else ''}{name}[{inner}]{turned}"


def written(one: Range) -> str:
    """A range as written in brackets."""
    start, stop, step = one
    if stop == start + 1:
        return str(start)
    return f"{start}:{stop}" + (f":{step}" if step != 1 else "")


def progression(values: np.ndarray) -> Range | None:
    """Sorted, different integers as a range; None unless they are evenly spaced."""
    first, last = int(values[0]), int(values[-1])
    step = int(values[1]) - first if len(values) > 1 else 1
    if last - first != step * (len(values) - 1) or (np.diff(values) != step).any():
        return None
    return first, last + 1, step


def touched(argument: Argument, pointers: np.ndarray, mask: np.ndarray) -> Region:
    """The elements of an argument at the addresses of a tile's unmasked lanes."""
    lanes = argument.elements(pointers[mask])
    if not lanes.size:
        return Region("none", (), 0)
    elements = np.unique(lanes)
    shape, strides = tuple(argument.tensor.shape), argument.tensor.stride()
    index, count = argument.coordinates(elements), len(elements)
    spread = any(st == 0 and n > 1 for n, st in zip(shape, strides))
    if index is not None:
        different = [np.unique(along) for along in index]
        ranges = [progression(along) for along in different]
        for axis, (n, stride) in enumerate(zip(shape, strides)):
            if stride == 0 and n > 1:
                ranges[axis] = (0, n, 1)
        if math.prod(map(len, different)) == count and None not in ranges:
            box = tuple(r for r in ranges if r)
            return Region("box", box, count, _transposed(argument, lanes, mask))
        if not spread:
            flat = progression(np.sort(np.ravel_multi_index(index, shape)))
            if flat is not None:
                return Region("flat", (flat,), count)
    memory = progression(elements)
    if memory is not None or index is None:
        bounds = (int(elements[0]), int(elements[-1]) + 1, 1)
        return Region("memory", (memory or bounds,), count)
    box = tuple((int(along[0]), int(along[-1]) + 1, 1) for along in different)
    return Region("within", box, count)


def _transposed(argument: Argument, lanes: np.ndarray, mask: np.ndarray) -> bool:
    """Whether the rows of a tile run along a matrix's columns."""
    index = argument.coordinates(lanes)
    if index is None or len(index) != 2 or mask.ndim != 2 or 1 in mask.shape:
        return False
    if any((along == along[0]).all() for along in index):
        return False
    for lane, coordinate in zip(np.nonzero(mask), reversed(index)):
        of_lane = np.zeros(lane.max() + 1, dtype=np.int64)
        of_lane[lane] = coordinate
        if (of_lane[lane] != coordinate).any():
            return False
    return True


class Pattern(NamedTuple):
    """The arrangement of wrong elements. ``kind`` is one of: all, most, element, row, rows, column,
    columns, slice, tile, head, tail, run, every, set, scattered."""

    kind: str
    text: str


ENOUGH = 0.5  # the fraction of a region that must be wrong: some elements are right by luck
NEARLY_ALL = 0.9  # the fraction of a dimension that counts as all of it
FEW = 4  # indices that are listed one by one
BOX_FIRST = 0.8  # a box is preferred to a flat run that is hardly shorter


def pattern(wrong: np.ndarray, name: str) -> Pattern:
    """The pattern of the wrong elements; there must be one at least."""
    count, shape = int(wrong.sum()), wrong.shape
    if count == wrong.size:
        return Pattern("all", "all of them")
    if count == 1:
        return Pattern("element", "this one only")
    different = [np.unique(along) for along in np.nonzero(wrong)]
    flat = np.flatnonzero(wrong)
    plain = all(len(along) <= FEW or progression(along) for along in different)
    if plain and math.prod(map(len, different)) == count:
        return _box(different, shape, name)
    line = progression(flat)
    if line is not None:
        return _line(line, wrong.size, f"{name}.flat", "in flat order")
    different = [_filled(along, n) for along, n in zip(different, shape)]
    size, length = math.prod(map(len, different)), int(flat[-1] - flat[0]) + 1
    if count / size < ENOUGH and count / length < ENOUGH:
        box = ", ".join(written((int(a[0]), int(a[-1]) + 1, 1)) for a in different)
        return Pattern("scattered", f"scattered over {name}[{box}]")
    if size * BOX_FIRST <= length:
        if size == wrong.size:
            return Pattern("most", f"most of them, {count / size:.0%}")
        region = _box(different, shape, name)
        return Pattern(region.kind, f"{count} of the {size} in {region.text}")
    run = (int(flat[0]), int(flat[-1]) + 1, 1)
    region = _line(run, wrong.size, f"{name}.flat", "in flat order")
    return Pattern(region.kind, f"{count} of the {length} in {region.text}")


def _filled(indices: np.ndarray, size: int) -> np.ndarray:
    """Indices with their gaps filled if most are there; all, if few are missing at the ends."""
    first, last = int(indices[0]), int(indices[-1])
    span, even = last + 1 - first, progression(indices)
    if len(indices) < ENOUGH * span or (even is not None and even[2] > 1):
        return indices
    if span >= NEARLY_ALL * size:
        first, last = 0, size - 1
    return np.arange(first, last + 1)


def _line(line: Range, size: int, name: str, order: str = "") -> Pattern:
    start, stop, step = line
    where = f"{order + ', ' if order else ''}{name}[{written(line)}]"
    if step > 1:
        return Pattern("every", f"every {_ordinal(step)} element {where}")
    if stop == size:
        return Pattern("tail", f"the tail {where}")
    return Pattern("run", f"a run {where}") if start else Pattern("head", f"the head {where}")


def _box(different: list[np.ndarray], shape: tuple[int, ...], name: str) -> Pattern:
    """A product of index sets, one per dimension."""
    ranges = [progression(along) for along in different]
    inner = ", ".join(written(r) if r else _listed(along) for r, along in zip(ranges, different))
    where = f"{name}[{inner}]"
    if len(shape) == 1 and ranges[0] is not None:
        return _line(ranges[0], shape[0], name)
    partial = [axis for axis, n in enumerate(shape) if len(different[axis]) < n]
    if len(partial) != 1 or len(shape) == 1:
        if None in ranges:
            return Pattern("set", where)
        steps = [r[2] for r in ranges if r and r[2] > 1]
        return Pattern("every", f"evenly spaced, {where}") if steps else _part(different, where)
    (axis,) = partial
    words = {len(shape) - 1: "column", len(shape) - 2: "row"}.get(axis, "slice")
    count, span = len(different[axis]), ranges[axis]
    if count == 1:
        return Pattern(words, f"one {words}, {where}")
    if span is not None and span[2] > 1:
        return Pattern("every", f"every {_ordinal(span[2])} {words}, {where}")
    last = "the last " if span is not None and span[1] == shape[axis] else ""
    return Pattern(words + "s", f"{last}{count} {words}s, {where}")


def _part(different: list[np.ndarray], where: str) -> Pattern:
    longer = [axis for axis, along in enumerate(different) if len(along) > 1]
    if len(different) == 2 and len(longer) == 1:
        word = "row" if longer == [1] else "column"
        return Pattern("tile", f"a part of one {word}, {where}")
    return Pattern("tile", f"one tile, {where}")


def _ordinal(n: int) -> str:
    if n % 100 in (11, 12, 13):
        return f"{n}th"
    return f"{n}" + {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")


def _listed(values: np.ndarray) -> str:
    shown = ", ".join(str(int(v)) for v in values[:FEW])
    return "{" + shown + (", …" if len(values) > FEW else "") + "}"
