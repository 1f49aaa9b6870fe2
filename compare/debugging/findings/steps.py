"""The steps that made a value, and their text."""

from __future__ import annotations

import os
import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np

from compare.debugging.findings.statements import statement
from compare.debugging.findings.traces import WIDTH, cut, source_line
from triton_kernels.interpreter import Place, Program

SHORT = 5  # lines of steps without their code
VALUES = 44  # columns of a step's values
# Line and argument of a load → its elements, as offsets in memory from the argument's first.
Loaded = dict[tuple[Place | None, str], np.ndarray]


@dataclass
class Step:
    """An assignment to a variable. The name is "return" for a function's result, "if" or "while"
    for the condition of a branch or loop, and empty for other lines. Elements of tuples have their
    index in the name, as in "return[1]".

    ``first`` and ``last`` are its first and last value in words, in the relevant lanes; ``count``
    is the number of assignments. ``constant`` marks a branch that depends only on constants of the
    compilation.
    """

    place: Place
    name: str
    first: str = ""
    last: str = ""
    count: int = 1
    constant: bool = False

    def __str__(self) -> str:
        return self.brief + (f" ({self.count} times)" if self.count > 1 and self.name else "")

    @property
    def brief(self) -> str:
        """The text without the count."""
        if not self.name:
            return ""
        value = self.last if self.last == self.first else f"{self.first}, …, {self.last}"
        if self.name in ("if", "while"):
            return f"{self.name} {value}"
        if self.name.partition("[")[0] == "return":
            return f"{self.name.replace('return', 'returns')} {value}"
        return f"{self.name} = {value}"

    def to_dict(self) -> dict[str, Any]:
        """The entry of the JSON file."""
        return {
            "name": self.name,
            **self.place._asdict(),
            "code": source_line(self.place),
            "first": self.first,
            "last": self.last,
            "count": self.count,
        }


@dataclass
class Earlier:
    """An earlier launch of a call, whose kernel stored values from which the wrong one was made.

    Attributes:
        elements: those of its stored elements that were loaded later, in words.
        program: the one that stored most of them; of several the last.
        programs: the number of programs that stored some.
        steps: the steps that made them in that program.
    """

    kernel: str
    grid: tuple[int, ...]
    elements: str
    program: Program
    programs: int
    steps: list[Step]

    @property
    def heading(self) -> str:
        """What was stored, and by which program."""
        others = f", the rest in {self.programs - 1} other" if self.programs > 1 else ""
        others += "s" if self.programs > 2 else ""
        return (
            f"before that, {self.elements} in program {self.program} of "
            f"{self.kernel}{list(self.grid)}{others}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The entry of the JSON file."""
        return {
            "kernel": self.kernel,
            "grid": self.grid,
            "elements": self.elements,
            "program": self.program,
            "programs": self.programs,
            "lane_history": [step.to_dict() for step in self.steps],
        }


def in_lines(
    steps: list[Step], store: Place | None, printed: set[Place | None], most: int
) -> list[str]:
    """At most ``most`` lines of steps with their code. If that is not enough, earlier steps have no
    code, share lines, and are left out if the trace shows their lines. If that is still too long,
    the earliest steps are only line numbers."""
    known = {_statement(place) for place in printed if place}
    rows: list[list[Step]] = []
    for step in steps:
        if step.constant or (not step.name and _statement(step.place) in known):
            continue
        if rows and _statement(rows[-1][0].place) == _statement(step.place):
            rows[-1].append(step)
        else:
            rows.append([step])
    if len(rows) > most:
        rows = [row for row in rows if _statement(row[0].place) not in known]
    for short in range(SHORT + 1):
        full = max(0, most - short)
        earlier = _in_short(rows[: max(0, len(rows) - full)], store)
        if len(earlier) <= short:
            break
    if len(earlier) > short:
        earlier = _in_numbers(rows[: max(0, len(rows) - full)], store)
    rows = rows[max(0, len(rows) - full) :]
    words = [", ".join(str(step) for step in row) for row in rows]
    width = min(VALUES, max(map(len, words), default=0))
    return earlier + [
        f"{cut(text, width).ljust(width)}  {_where(row[0].place, store)} "
        f"{source_line(row[0].place)}"
        for text, row in zip(words, rows)
    ]


def constant_branches(steps: list[Step], store: Place | None) -> str:
    """The branches decided by constants, in a line; empty if there are none."""
    told = " ".join(dict.fromkeys(_where(each.place, store) for each in steps if each.constant))
    return told and f"branches by constants {told}"


def _in_short(rows: list[list[Step]], store: Place | None) -> list[str]:
    told = (f"{_where(r[0].place, store)} {', '.join(s.brief for s in r)}".rstrip() for r in rows)
    return textwrap.wrap("; ".join(told), WIDTH - 2, break_long_words=False, break_on_hyphens=False)


def _in_numbers(rows: list[list[Step]], store: Place | None) -> list[str]:
    """The steps in as many lines as fit; the earliest have no values."""
    for bare in range(1, len(rows) + 1):
        numbers = " ".join(dict.fromkeys(_where(row[0].place, store) for row in rows[:bare]))
        told = f"first lines {numbers}, with values in the JSON file"
        wrapped = textwrap.wrap(told, WIDTH - 2, break_long_words=False, break_on_hyphens=False)
        lines = wrapped + _in_short(rows[bare:], store)
        if len(lines) <= SHORT:
            break
    return lines


def _where(place: Place, store: Place | None) -> str:
    same = store is not None and place.file == store.file
    return f"{'' if same else os.path.basename(place.file)}:{place.line}"


def _statement(place: Place) -> tuple[str, int]:
    executed = statement(place)
    return place.file, place.line if executed is None else executed.first
