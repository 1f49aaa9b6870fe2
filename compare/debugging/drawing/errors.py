"""The elements of an output: the wrong ones, their errors, and the values around the worst."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compare.debugging.drawing import planes
from compare.debugging.drawing.grids import Grid, grid
from compare.debugging.drawing.planes import Plane, Window, row_major
from triton_kernels.interpreter import Argument

RIGHT, WRONG, NEVER = range(3)  # an element's state; NEVER: wrong, and nothing stored it
BESIDE = 2  # rows and columns of numbers on either side of the worst element
LEVELS = 4  # shades of errors: down to a tenth of the largest, a hundredth, …


@dataclass
class ErrorMap:
    """The content of an output's picture, in plain numbers that can be sent to another process.

    Attributes:
        shape: of the output.
        worst: the worst element's position in row-major order.
        window: the part that is shown element by element.
        state, got, expected: of the window's elements, row by row.
        counts: the number of wrong elements in each cell of the whole output.
    """

    shape: tuple[int, ...]
    worst: int
    window: Window
    state: list[list[int]]
    got: list[list[float]]
    expected: list[list[float]]
    counts: list[list[int]]

    @property
    def plane(self) -> Plane:
        """The plane in which the output is drawn."""
        return Plane(self.shape)

    def to_dict(self) -> dict[str, Any]:
        """The map as JSON, for another process."""
        return asdict(self) | {"window": list(self.window)}

    @classmethod
    def of(cls, told: dict[str, Any]) -> ErrorMap:
        """The map from another process's JSON, where infinities and NaN are text."""
        got, expected = (
            [[float(n) for n in row] for row in told[name]] for name in ("got", "expected")
        )
        shape, window = tuple(told["shape"]), Window(*told["window"])
        return cls(shape, told["worst"], window, told["state"], got, expected, told["counts"])


def error_map(
    got: Tensor, expected: Tensor, wrong: np.ndarray, worst: tuple[int, ...], never: Any = None
) -> ErrorMap:
    """The map of a wrong output; ``never`` marks elements that no program stored."""
    plane = Plane(tuple(got.shape))
    flat = np.flatnonzero(wrong)
    centre = int(np.ravel_multi_index(worst, plane.shape)) if plane.shape else 0
    whole = planes.everything(plane)
    window = whole if whole.single else planes.around(plane, flat, centre)
    state = np.where(wrong, np.uint8(WRONG), np.uint8(RIGHT)).reshape(-1)
    if never is not None:
        state[wrong.reshape(-1) & never.reshape(-1)] = NEVER
    shown, is_, should_be = (_part(each, plane, window) for each in (state, got, expected))
    counts = whole.counts(plane, flat).tolist()
    return ErrorMap(plane.shape, centre, window, shown, is_, should_be, counts)


def _part(values: Any, plane: Plane, window: Window) -> list[list[Any]]:
    """A window's values; the last row is filled up with the last value."""
    row, column = np.indices(window.cells)
    flat = (row + window.top) * plane.columns + column + window.left
    flat = np.minimum(flat, plane.size - 1)
    if isinstance(values, Tensor):
        index = np.unravel_index(flat, plane.shape) if plane.shape else ()
        picked = values.detach().cpu()[tuple(map(torch.from_numpy, index))].expand(flat.shape)
        taken: list[list[Any]] = picked.double().tolist()
        return taken
    shown: list[list[Any]] = values[flat].tolist()
    return shown


@dataclass
class Output:
    """A wrong output: its map, its wrong elements, and its memory.

    ``within``: argument of the launch that contains it → the output's offset there in bytes.
    """

    map: ErrorMap
    wrong: np.ndarray
    argument: Argument
    within: dict[str, int]

    def touched(self, argument: Argument, elements: np.ndarray) -> np.ndarray:
        """The row-major positions of the elements that a launch touched through an argument, one
        per lane; −1 outside of the output."""
        if argument.name not in self.within:
            return np.full(elements.shape, -1)
        start = self.argument.low - self.within[argument.name]
        addresses = start + elements.astype(np.int64) * argument.itemsize
        return row_major(self.argument, self.argument.elements(addresses))


# ---- pictures ----


def zoomed(name: str, found: ErrorMap, tile: np.ndarray | None) -> Grid:
    """The window, element by element; ``tile`` are the elements that the program stored."""
    plane, window = found.plane, found.window
    looks = np.full(window.cells, "right", dtype=object)
    titles = {}
    state, got, expected = (np.array(x) for x in (found.state, found.got, found.expected))
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(got - expected)
    finite = error[(state != RIGHT) & np.isfinite(error)]
    largest = float(finite.max()) if finite.size else 0.0
    height, width = window.cells
    for r in range(height):
        for c in range(width):
            flat = (window.top + r) * plane.columns + window.left + c
            if flat >= plane.size:
                continue
            index = ", ".join(map(str, plane.index(flat)))
            if state[r, c] == RIGHT:
                titles[r, c] = f"{name}[{index}]: {number(got[r, c])}, right"
                continue
            looks[r, c] = _look(int(state[r, c]), float(got[r, c]), float(error[r, c]), largest)
            stored = ", never stored" if state[r, c] == NEVER else ""
            told = f"got {number(got[r, c])}, expected {number(expected[r, c])}"
            titles[r, c] = f"{name}[{index}]: {told}{stored}"
    part = "" if window.whole(plane) else ", the part around the worst element"
    at = divmod(found.worst, plane.columns)
    return grid(
        f"{name}{part}: its wrong elements",
        plane,
        window,
        looks,
        titles=titles,
        inside=_inside(plane, window, tile),
        mark=(at[0] - window.top, at[1] - window.left),
    )


def overview(name: str, found: ErrorMap, tile: np.ndarray | None) -> Grid | None:
    """The whole output in cells of several elements; None if the window shows all."""
    plane = found.plane
    if found.window.whole(plane):
        return None
    window, counts = planes.everything(plane), np.array(found.counts)
    share = counts / np.maximum(1, window.elements(plane))
    looks = np.full(window.cells, "right", dtype=object)
    for level in range(1, LEVELS + 1):
        looks[share > (level - 1) / LEVELS] = f"wrong{level}"
    titles = {(int(r), int(c)): f"{counts[r, c]} wrong here" for r, c in zip(*np.nonzero(counts))}
    row, column, _ = window.bins(plane, np.array([found.worst]))
    return grid(
        f"{name}, all of it: where wrong elements lie",
        plane,
        window,
        looks,
        titles=titles,
        inside=_inside(plane, window, tile),
        mark=(int(row[0]), int(column[0])),
    )


def _inside(plane: Plane, window: Window, tile: np.ndarray | None) -> np.ndarray | None:
    if tile is None or not tile.size:
        return None
    cells: np.ndarray = window.counts(plane, tile) > 0
    return None if cells.all() else cells


def _look(state: int, got: float, error: float, largest: float) -> str:
    if state == NEVER:
        return "never"
    if not math.isfinite(got):
        return "nan"
    if not math.isfinite(error) or not error or not largest:
        return f"wrong{LEVELS}"
    return f"wrong{max(1, LEVELS + math.ceil(math.log10(error / largest)))}"


def numbers(found: ErrorMap) -> dict[str, Any]:
    """A table of the elements around the worst, with their actual and right values."""
    plane, window = found.plane, found.window
    row, column = divmod(found.worst, plane.columns)
    row, column = row - window.top, column - window.left
    rows = range(max(0, row - BESIDE), min(window.rows, row + BESIDE + 1))
    columns = range(max(0, column - BESIDE), min(window.columns, column + BESIDE + 1))
    lines = []
    for r in rows:
        cells = []
        for c in columns:
            flat = (window.top + r) * plane.columns + window.left + c
            if flat >= plane.size:
                continue
            right = found.state[r][c] == RIGHT
            got, wanted = number(found.got[r][c]), number(found.expected[r][c])
            if not right and got == wanted:  # they differ in later digits
                got, wanted = repr(found.got[r][c]), repr(found.expected[r][c])
            worst = (r, c) == (row, column)
            cells.append({"got": got, "expected": "" if right else wanted, "worst": worst})
        lines.append({"label": plane.row_label(window.top + r), "cells": cells})
    heads = [plane.column_label(window.left + c) for c in columns]
    return {"heads": heads, "lines": lines}


def number(value: Any) -> str:
    """A value in a few digits."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e9 else f"{value:.6g}"
