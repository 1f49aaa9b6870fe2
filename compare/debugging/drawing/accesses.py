"""The loads or stores of a kernel's line: its lanes, and the elements that they touched."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compare.debugging.drawing import planes
from compare.debugging.drawing.errors import Output
from compare.debugging.drawing.grids import Grid, grid
from compare.debugging.drawing.planes import Plane, plane_of, row_major
from compare.debugging.findings.traces import Event, Tile, source_line
from triton_kernels.interpreter import Place

# Ranks of a lane or an element, and their CSS classes.
OFF, SOME, ON, WRONG = range(4)
LOOKS = np.array(["off", "some", "on", "wrong4"], dtype=object)


@dataclass
class LineAccess:
    """All accesses of one line to one tensor, in one program or thread.

    Attributes:
        anchor: its id on the page.
        events: in order.
        failed: whether the last one is out of bounds.
        code: of the line; "" if it cannot be read.
        region: the elements in words, if the events do not have them.
    """

    what: str
    tensor: str
    place: Place | None
    anchor: str
    events: list[Event] = field(default_factory=list)
    failed: bool = False
    code: str = ""
    region: str = ""

    @property
    def tiles(self) -> list[Tile]:
        """The tiles of the events that have one."""
        return [event.tile for event in self.events if event.tile is not None]

    def context(
        self,
        output: Output | None = None,
        worst: tuple[int, ...] | None = None,
        loaded: np.ndarray | None = None,
    ) -> dict[str, Any]:
        """The template's values.

        Args:
            output: the wrong output.
            worst: the lane of the worst element or of the failed access, if it was this line's.
            loaded: offsets of the elements that went into the worst one, if this line loaded them.
        """
        lanes, elements = self._lanes(output, worst, loaded), self._elements(loaded)
        return {
            "anchor": self.anchor,
            "what": self.what,
            "tensor": self.tensor or "an unknown tensor",
            "where": f"{os.path.basename(self.place.file)}:{self.place.line}" if self.place else "",
            "code": self.code,
            "facts": self._facts(),
            "failed": self.failed,
            "figures": [(g.label, g.drawn()) for g in (lanes, elements) if g is not None],
        }

    def _facts(self) -> list[str]:
        """Facts about the accesses, a few words each."""
        first, count = self.events[0], len(self.events)
        regions = [e.region.of(e.tensor) for e in self.events if e.region]
        facts = list(dict.fromkeys(regions[:1] + regions[-1:]))
        facts = [", …, ".join(facts) or self.region] if facts or self.region else []
        facts.append(f"{count} times" if count > 1 else "once")
        on, lanes = sum(e.on for e in self.events), sum(e.lanes for e in self.events)
        if lanes > count:
            shape = "×".join(map(str, first.shape))
            facts.append(f"a tile of {shape}")
            facts.append("all lanes on" if on == lanes else f"{on} of {lanes} lanes on")
        elif on < lanes:
            facts.append("its one lane is masked off")
        low = [e.low for e in self.events if e.low is not None]
        high = [e.high for e in self.events if e.high is not None]
        if low and high:
            facts.append(f"values {min(low):.4g} to {max(high):.4g}")
        nans = sum(e.nans for e in self.events)
        facts += [f"{nans} NaN"] if nans else []
        if idle := self._masked_outside():
            facts.append(f"{idle} masked-off lanes point outside of the tensor")
        return facts

    def _masked_outside(self) -> int:
        return sum(int((~tile.mask & (_places(tile) < 0)).sum()) for tile in self.tiles)

    def _lanes(
        self, output: Output | None, worst: tuple[int, ...] | None, loaded: np.ndarray | None
    ) -> Grid | None:
        """The tile: unmasked lanes, wrong lanes, and the lanes that went into the worst element."""
        tiles = self.tiles
        if not tiles or tiles[-1].mask.size == 1:
            return None
        shape = tiles[-1].mask.shape
        alike = [tile for tile in tiles if tile.mask.shape == shape]
        on = np.sum([tile.mask for tile in alike], axis=0)
        ranks = np.select([on == len(alike), on > 0], [ON, SOME], OFF)
        for tile in alike:
            ranks[self._bad(tile, output)] = WRONG
        plane = Plane(shape)
        window = planes.everything(plane)
        looks = LOOKS[_coarse(plane, window, ranks.reshape(-1))]
        mark = None
        if worst and len(worst) == len(shape):
            at = np.array([np.ravel_multi_index(worst, shape)])
            row, column, _ = window.bins(plane, at)
            mark = int(row[0]), int(column[0])
        inside = None
        if loaded is not None:
            went = [tile.mask & np.isin(tile.elements, loaded) for tile in alike]
            inside = window.counts(plane, np.flatnonzero(np.any(went, axis=0))) > 0
        return grid("lanes of the tile", plane, window, looks, mark=mark, inside=inside)

    def _bad(self, tile: Tile, output: Output | None) -> np.ndarray:
        """The lanes that were out of bounds, or that stored a wrong element."""
        bad: np.ndarray
        if self.failed and tile is self.events[-1].tile:
            bad = tile.mask & (_places(tile) < 0)
        elif output is None or self.what == "load":
            bad = np.zeros(tile.mask.shape, dtype=bool)
        else:
            at = output.touched(tile.argument, tile.elements)
            bad = tile.mask & (at >= 0) & output.wrong.reshape(-1)[np.maximum(at, 0)]
        return bad

    def _elements(self, loaded: np.ndarray | None) -> Grid | None:
        """The tensor: the elements that unmasked lanes touch."""
        if not (tiles := self.tiles):
            return None
        plane = plane_of(tiles[0].argument)
        touched, idle = [], []
        for tile in tiles:
            at = _places(tile)
            touched.append(at[tile.mask & (at >= 0)])
            idle.append(at[~tile.mask & (at >= 0)])
        on, off = np.unique(np.concatenate(touched)), np.unique(np.concatenate(idle))
        made = None if loaded is None else row_major(tiles[0].argument, loaded)
        return _elements(self.tensor, plane, on, np.setdiff1d(off, on), made)


def _places(tile: Tile) -> np.ndarray:
    """The lanes' elements in row-major order; −1 for lanes outside of the tensor."""
    return row_major(tile.argument, tile.elements)


def _elements(
    name: str, plane: Plane, on: np.ndarray, off: np.ndarray, made: np.ndarray | None
) -> Grid | None:
    if not plane.size:
        return None
    whole = planes.everything(plane)
    window = whole if whole.single else planes.around(plane, on if on.size else off)
    counts, size = window.counts(plane, on), window.elements(plane)
    idle = window.counts(plane, off)
    looks = np.full(window.cells, "rest", dtype=object)
    looks[idle > 0] = "idle"
    looks[counts > 0] = "some"
    looks[(counts == size) & (size > 0)] = "on"
    part = "" if window.whole(plane) else ", the part around them"
    shape = "×".join(map(str, plane.shape)) or "a scalar"
    inside = None if made is None else window.counts(plane, made[made >= 0]) > 0
    return grid(f"elements of {name} ({shape}){part}", plane, window, looks, inside=inside)


def _coarse(plane: Plane, window: planes.Window, ranks: np.ndarray) -> np.ndarray:
    """The rank of each cell that stands for several lanes."""
    low, high = np.full(window.cells, WRONG), np.zeros(window.cells, dtype=int)
    row, column, _ = window.bins(plane, np.arange(ranks.size))
    np.minimum.at(low, (row, column), ranks)
    np.maximum.at(high, (row, column), ranks)
    cells: np.ndarray = np.where((low == high) | (high == WRONG), high, SOME)
    return cells


def by_line(events: Iterable[Event], failing: Event | None = None) -> list[LineAccess]:
    """Loads, stores and atomics grouped by line and tensor, in the order of the first ones."""
    lines: dict[Any, LineAccess] = {}
    for event in [*events, *([failing] if failing else [])]:
        if event.what == "dot":
            continue
        key = event.what, event.tensor, event.place
        if key not in lines:
            anchor = f"access{len(lines) + 1}"
            lines[key] = LineAccess(*key, anchor, code=source_line(event.place))
        line = lines[key]
        line.events.append(event)
        line.failed |= event is failing
    return list(lines.values())
