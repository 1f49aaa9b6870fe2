"""A picture of cells with labels, as the template draws it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compare.debugging.drawing.planes import Plane, Window

WIDTH = 352  # pixels; a phone's screen without margins
LARGEST, LETTER, LINE = 17.0, 5.9, 13.0  # pixels of a cell, a digit, a line of labels
SMALLEST = 4.0  # pixels of a cell that still has lines around it

Cell = tuple[int, int]


@dataclass
class Grid:
    """Cells in rows and columns.

    Attributes:
        label: what it shows, for screen readers.
        looks: the CSS class of each cell; empty for no cell.
        titles: the tooltips of cells.
        rows, columns: their labels.
        inside: cells that are outlined.
        mark: one highlighted cell.
    """

    label: str
    looks: np.ndarray
    rows: list[str]
    columns: list[str]
    titles: dict[Cell, str] = field(default_factory=dict)
    inside: np.ndarray | None = None
    mark: Cell | None = None

    def drawn(self) -> dict[str, Any]:
        """The template's values."""
        height, width = self.looks.shape
        margin = max(map(len, self.rows), default=0) * LETTER + 5
        side = min(LARGEST, (WIDTH - margin - 2) / max(1, width))
        left, top = margin, LINE + 2
        place = {"side": _short(side), "left": left, "top": top}
        texts = [
            (_short(left - 4), _short(top + (r + 0.5) * side + 3.5), "end", self.rows[r])
            for r in _ticks(height, side, LINE)
        ]
        widest = max(map(len, self.columns), default=0) * LETTER + 6
        texts += [
            (_short(left + (c + 0.5) * side), _short(top - 5), "middle", self.columns[c])
            for c in _ticks(width, side, widest)
        ]
        mark = self.mark and {
            "x": _short(left + self.mark[1] * side - 0.5),
            "y": _short(top + self.mark[0] * side - 0.5),
            "side": _short(side + 1),
        }
        # A label is centred on its cell; half of it may extend beyond the end.
        return {
            **place,
            "label": self.label,
            "width": _short(max(left + width * side, left + (width - 0.5) * side + widest / 2) + 2),
            "height": _short(top + height * side + 2),
            "cells": list(self._cells(left, top, side)),
            "texts": texts,
            "lattice": self._lattice(left, top, side),
            "outline": self._outline(left, top, side),
            "mark": mark,
        }

    def _cells(self, left: float, top: float, side: float) -> Iterator[dict[str, Any]]:
        """One rectangle per cell with a title; other equal cells in a row share one."""
        for r, row in enumerate(self.looks):
            start = 0
            for c, look in enumerate(row):
                following = row[c + 1] if c + 1 < len(row) else None
                titled = (r, c) in self.titles or (r, c + 1) in self.titles
                if look == following and not titled:
                    continue
                if look:
                    yield {
                        "x": _short(left + start * side),
                        "y": _short(top + r * side),
                        "width": _short((c + 1 - start) * side),
                        "look": look,
                        "title": self.titles.get((r, c), ""),
                    }
                start = c + 1

    def _lattice(self, left: float, top: float, side: float) -> str:
        """The lines between cells, unless the cells are too small."""
        height, width = self.looks.shape
        if side < SMALLEST:
            return ""
        across = (f"M{_short(left)} {_short(top + r * side)}h{_short(width * side)}"
                  for r in range(1, height))  # fmt: skip
        down = (f"M{_short(left + c * side)} {_short(top)}v{_short(height * side)}"
                for c in range(1, width))  # fmt: skip
        return "".join([*across, *down])

    def _outline(self, left: float, top: float, side: float) -> str:
        """The outline of the inside cells."""
        if self.inside is None:
            return ""
        parts = []
        framed = np.pad(self.inside, 1)
        for r, c in zip(*np.nonzero(self.inside)):
            x, y = left + c * side, top + r * side
            for is_in, a, b, way in (
                (framed[r, c + 1], x, y, "h"),
                (framed[r + 2, c + 1], x, y + side, "h"),
                (framed[r + 1, c], x, y, "v"),
                (framed[r + 1, c + 2], x + side, y, "v"),
            ):
                if not is_in:
                    parts.append(f"M{_short(a)} {_short(b)}{way}{_short(side)}")
        return "".join(parts)


def grid(label: str, plane: Plane, window: Window, looks: np.ndarray, **others: Any) -> Grid:
    """A window of a plane, with its indices as labels."""
    height, width = window.cells
    rows = [plane.row_label(window.top + r * window.down) for r in range(height)]
    columns = [plane.column_label(window.left + c * window.across) for c in range(width)]
    looks = np.where(window.elements(plane) > 0, looks, "")
    return Grid(label, looks, rows, columns, **others)


def _ticks(count: int, side: float, room: float) -> range:
    """The labels for which there is room."""
    least = room / side if side else 1.0
    step = next(s for s in _steps() if s >= least or s >= count)
    return range(0, count, max(1, step))


def _steps() -> Iterator[int]:
    k = 1
    while True:
        yield k
        k *= 2


def _short(number: float) -> float:
    return round(float(number), 1)
