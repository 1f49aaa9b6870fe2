"""The error that ended a run, and the text of places."""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import compare
from compare.debugging.findings.steps import Earlier, Loaded, Step
from compare.debugging.findings.traces import WIDTH, Event, source_line
from triton_kernels import interpreter
from triton_kernels.interpreter import Place, Program

_COMPARE = str(Path(compare.__file__).parent) + os.sep
LONGEST = 5 * WIDTH  # characters per line of an error's text


def place_text(place: Place | None) -> str:
    """A place with its code; the path is relative to the current folder."""
    if place is None:
        return "at an unknown line"
    path = os.path.relpath(place.file)
    path = place.file if path.startswith("..") else path
    return f"{path}:{place.line} in {place.function}: {source_line(place)}"


def outside(error: Exception) -> Place | None:
    """The line of user code from which an error came, not of torch or of these packages."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = frame.f_code.co_filename
        if not interpreter.not_kernels(frame.f_code) and not file.startswith(_COMPARE):
            return Place(file, line, frame.f_code.co_name)
    return None


def place_dict(place: Place | None) -> dict[str, Any]:
    """A place for the JSON file."""
    if place is None:
        return {"file": None, "line": None, "function": None, "code": ""}
    return {**place._asdict(), "code": source_line(place)}


@dataclass
class Failure:
    """An error that ended the run. ``program`` and ``place`` are None outside a kernel.

    ``lane`` is the first failing lane, in a tile of shape ``shape``. ``lane_history`` holds the
    variables' values in it, ``loaded`` the loaded elements they came from, ``earlier`` how earlier
    launches made these. They are None or empty if the error belongs to no lane. ``access`` is the
    one that was out of bounds. ``written`` are lines about the last write of another program to the
    element for which this program waits.
    """

    error: str
    program: Program | None
    place: Place | None
    lane: tuple[int, ...] | None = None
    shape: tuple[int, ...] = ()
    lane_history: list[Step] = field(default_factory=list)
    loaded: Loaded = field(default_factory=dict)
    earlier: list[Earlier] = field(default_factory=list)
    access: Event | None = None
    written: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The failure as lines of text."""
        if self.program is None:
            where = [f"  {place_text(self.place)}"] if self.place else []
            return [f"stopped outside a kernel: {self.error}", *where]
        text = [f"  {_short(line)}" for line in (*self.error.splitlines(), *self.written)]
        return [f"stopped in program {self.program}", f"  {place_text(self.place)}", *text]

    def to_dict(self) -> dict[str, Any]:
        """The entry of the JSON file."""
        return {
            "error": self.error,
            "program": self.program,
            **place_dict(self.place),
            "lane": self.lane,
            "lane_history": [step.to_dict() for step in self.lane_history],
            "earlier": [each.to_dict() for each in self.earlier],
        }


def _short(line: str) -> str:
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
