"""The accesses of one program, in order and as tensor elements; loops are condensed in print."""

from __future__ import annotations

import ast
import linecache
import os
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from compare.debugging.findings.regions import Region
from triton_kernels.interpreter import Argument, Place, Program

WIDTH = 110  # columns
SHOWN = 3  # iterations of a loop before "… n more"; one follows
LONGEST_BODY = 64  # accesses in a loop's body that is recognised


class Tile(NamedTuple):
    """An access lane by lane. ``elements`` are offsets in memory from the argument's first element,
    also of masked lanes."""

    argument: Argument
    elements: np.ndarray
    mask: np.ndarray


@dataclass
class Event:
    """A load, store, atomic operation or tl.dot.

    Attributes:
        what: "load", "store", "atomic add", …, or "dot".
        tensor: the parameter's name; "" for a dot.
        region: the elements that unmasked lanes touch; None if the tensor is unknown.
        shape: of the tile; for a dot (M, N, K).
        lanes, on: the number of lanes, and of unmasked lanes.
        low, high: the range of the values in unmasked lanes, without NaN; None if there are none.
        nans: the number of NaNs among them.
        operands: of a dot, the ranges of a and b as (low, high, NaNs).
        values, mask: the tile; None if the trace had to leave it out.
        tile: the elements of the lanes; None if the trace had to leave it out, or if the tensor is
            unknown.
    """

    what: str
    tensor: str
    region: Region | None
    shape: tuple[int, ...]
    lanes: int
    on: int
    low: float | None
    high: float | None
    nans: int
    place: Place | None
    operands: tuple[tuple[float | None, float | None, int], ...] = ()
    precision: str = ""
    values: np.ndarray | None = None
    mask: np.ndarray | None = None
    tile: Tile | None = None

    def to_dict(self, tiles: bool) -> dict[str, Any]:
        """The entry of the JSON file; with ``tiles`` including the values of the tile."""
        region = self.region
        entry: dict[str, Any] = {
            "what": self.what,
            "file": self.place.file if self.place else None,
            "line": self.place.line if self.place else None,
            "code": source_line(self.place),
            "tensor": self.tensor,
            "region": region and {**region._asdict(), "text": region.of(self.tensor)},
            "shape": self.shape,
            "lanes": self.lanes,
            "lanes_on": self.on,
            "min": self.low,
            "max": self.high,
            "nans": self.nans,
        }
        if self.what == "dot":
            names = ("min", "max", "nans")
            entry["operands"] = [dict(zip(names, each)) for each in self.operands]
            entry["input_precision"] = self.precision
        if tiles and self.values is not None and self.mask is not None:
            entry["values"], entry["mask"] = self.values.tolist(), self.mask.tolist()
        return entry

    def cells(self) -> list[str]:
        """The columns of its line."""
        shape = "×".join(map(str, self.shape)) or "scalar"
        if self.what == "dot":
            a, b = (_span(*each) for each in self.operands)
            return [
                "dot",
                f"{a} · {b}",
                shape,
                self.precision,
                _span(self.low, self.high, self.nans),
            ]
        region = self.region.of(self.tensor) if self.region else "an unknown tensor"
        lanes = "all on" if self.on == self.lanes else f"{self.on}/{self.lanes} on"
        return [self.what, region, shape, lanes, _span(self.low, self.high, self.nans)]


def _span(low: float | None, high: float | None, nans: int) -> str:
    if low is None or high is None:
        return f"{nans} NaN" if nans else "–"
    text = f"{low:.4g}" if low == high else f"{low:.4g}…{high:.4g}"
    return text + (f", {nans} NaN" if nans else "")


@dataclass
class Trace:
    """The accesses of one program, which ran ``alone`` or after those before it.

    ``ended`` says why it stopped early; else it is empty.
    """

    kernel: str
    program: Program
    grid: tuple[int, ...]
    alone: bool = True
    events: list[Event] = field(default_factory=list)
    ended: str = ""

    @property
    def heading(self) -> str:
        """The program, and how it ran."""
        how = "alone, from the start of the launch" if self.alone else "after those before it"
        return f"program {self.program} of {self.grid}, {how}"

    def __str__(self) -> str:
        return self.show(most=1 << 30)

    def show(self, most: int) -> str:
        """The trace in at most that many lines; repeated iterations are condensed."""
        return self.condensed(most)[0]

    def condensed(self, most: int) -> tuple[str, set[Place | None]]:
        """The condensed trace, and the lines that it shows."""
        head = self.heading
        files = {e.place.file for e in self.events if e.place}
        if len(files) == 1:
            head = cut(f"{head}, {os.path.basename(files.pop())}", WIDTH)
        tail = [cut(f"  stopped: {self.ended}", WIDTH)] if self.ended else []
        nodes = _fold([_Node((i,), _key(e)) for i, e in enumerate(self.events)])
        room = most - 1 - len(tail)
        for before in (SHOWN, 1, 0):
            plan = list(_plan(nodes, before))
            if len(plan) <= room:
                break
        if len(plan) > room:
            kept = max(0, room - 1)
            left = len(plan) - kept
            plan = [
                *plan[: kept // 2],
                f"… {left} more lines",
                *plan[len(plan) - (kept + 1) // 2 :],
            ]
        lines = self._lines(plan, len(files) > 1)
        places = {self.events[i].place for i in plan if isinstance(i, int)}
        return "\n".join([head, *lines, *tail]), places

    def _lines(self, plan: list[int | str], many: bool) -> list[str]:
        cells = {i: self.events[i].cells() for i in plan if isinstance(i, int)}
        if not cells:
            return [f"  {item}" for item in plan] or [
                "  no load, store or dot" + (" before" if self.ended else "")
            ]
        limits = (12, 36, 11, 14, 24)
        wide = [min(m, max(len(c[k]) for c in cells.values())) for k, m in enumerate(limits)]
        digits = len(str(len(self.events)))
        lines = []
        for item in plan:
            if isinstance(item, str):
                lines.append(f"  {item}")
                continue
            row = "  ".join(cut(c, w).ljust(w) for c, w in zip(cells[item], wide))
            line = f"  {item + 1:{digits}} {row}  {self._code(self.events[item], many)}"
            lines.append(cut(line.rstrip(), WIDTH))
        return lines

    def _code(self, event: Event, many: bool) -> str:
        if event.place is None:
            return ""
        file = os.path.basename(event.place.file) if many else ""
        return f"{file}:{event.place.line} {source_line(event.place)}"

    def tiles(self) -> str:
        """The values of every tile; masked lanes are "--"."""
        parts = []
        for i, event in enumerate(self.events):
            parts.append(f"{i + 1} {'  '.join(event.cells()[:4])}")
            if event.values is None or event.mask is None:
                parts.append("  not kept: the trace is too long")
                continue
            shown = np.ma.array(event.values, mask=~event.mask)
            with np.printoptions(precision=5, threshold=300, edgeitems=4, linewidth=WIDTH - 2):
                parts.append(textwrap.indent(str(shown), "  "))
        return "\n".join(parts)

    def to_dict(self, tiles: bool) -> dict[str, Any]:
        """The whole trace for the JSON file."""
        return {
            "kernel": self.kernel,
            "program": self.program,
            "grid": self.grid,
            "alone": self.alone,
            "stopped": self.ended,
            "events": [event.to_dict(tiles) for event in self.events],
        }


def cut(text: str, width: int) -> str:
    """A line cut to this width."""
    return text if len(text) <= width else text[: width - 1] + "…"


# ---- loops: repeated runs of the same lines ----


@dataclass(frozen=True)
class _Node:
    """An event, or with ``iterations`` a loop over events. Equal ``key``s repeat."""

    first: tuple[int, ...]
    key: tuple[Any, ...]
    iterations: tuple[tuple[_Node, ...], ...] = ()


def _key(event: Event) -> tuple[Any, ...]:
    return event.what, event.place, event.tensor


def _fold(nodes: list[_Node]) -> list[_Node]:
    """Replace repetitions by loops, innermost first, until there are none."""
    while True:
        folded = _fold_once(nodes)
        if len(folded) == len(nodes):
            return folded
        nodes = folded


def _fold_once(nodes: list[_Node]) -> list[_Node]:
    """The events, with the shortest body folded that repeats often enough."""
    keys = [node.key for node in nodes]
    for period in range(1, min(LONGEST_BODY, len(nodes) // 2) + 1):
        out: list[_Node] = []
        at = 0
        while at < len(nodes):
            end = at + period
            while keys[at : at + period] == keys[end : end + period] and end + period <= len(nodes):
                end += period
            if (end - at) // period > SHOWN + 1:
                bodies = tuple(tuple(nodes[i : i + period]) for i in range(at, end, period))
                out.append(_Node((), ("loop", *keys[at : at + period]), bodies))
                at = end
            else:
                out.append(nodes[at])
                at += 1
        if len(out) < len(nodes):
            return out
    return nodes


def _plan(nodes: list[_Node] | tuple[_Node, ...], before: int) -> Iterator[int | str]:
    """The lines to print: events' numbers, or words. A loop shows ``before`` iterations first."""
    for node in nodes:
        yield from node.first
        count = len(node.iterations)
        if not count:
            continue
        for body in node.iterations[:before]:
            yield from _plan(body, before)
        left = count - before - 1
        yield f"… {left} more iteration{'s' if left > 1 else ''} of this loop"
        yield from _plan(node.iterations[-1], before)


# ---- source ----


@cache
def _statements(file: str) -> list[tuple[int, int]]:
    """First and last line of every simple statement, and of every compound statement's head."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return []
    spans = []
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            end = node.end_lineno or node.lineno
            spans.append((node.lineno, max(node.lineno, body[0].lineno - 1) if body else end))
    return spans


def source_line(place: Place | None) -> str:
    """The statement at a place, joined; empty if the source cannot be read."""
    if place is None:
        return ""
    inside = [(a, b) for a, b in _statements(place.file) if a <= place.line <= b]
    first, last = min(inside, key=lambda s: s[1] - s[0], default=(place.line, place.line))
    lines = [linecache.getline(place.file, n).strip() for n in range(first, last + 1)]
    code = [line for line in lines if line and not line.startswith("#")]
    return " ".join(code).replace("( ", "(").replace(", )", ")")
