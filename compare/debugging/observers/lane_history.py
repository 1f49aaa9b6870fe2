"""One element's way through the arithmetic: what a kernel's variables hold in its lane.

The trace of a program lists what touches memory; between a load and a store lies the arithmetic,
and a wrong constant shows nowhere else.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import sys
import textwrap
from dataclasses import dataclass
from functools import cache
from types import CodeType, FrameType
from typing import Any

from compare.debugging.findings.traces import source_line
from triton_kernels import interpreter
from triton_kernels.interpreter import Place

SHOWN = 10  # lines that are printed
_TRACE = Any  # a trace function returns one


@dataclass
class Step:
    """A variable that a line assigns, or what a function returns (``name`` "return").

    ``first`` and ``last`` are its value in the lane, in words, ``count`` how often it was assigned.
    """

    place: Place
    name: str
    first: str
    last: str
    count: int = 1

    def __str__(self) -> str:
        value = self.last if self.last == self.first else f"{self.first}, …, {self.last}"
        value += f" ({self.count} times)" if self.count > 1 else ""
        what = "returns" if self.name == "return" else f"{self.name} ="
        return f"{what} {value}"

    def to_dict(self) -> dict[str, Any]:
        """For the JSON file."""
        return {
            "name": self.name,
            **self.place._asdict(),
            "code": source_line(self.place),
            "first": self.first,
            "last": self.last,
            "count": self.count,
        }


class LaneHistory:
    """Inside this context, in the programs for which ``on`` is set, notes the steps to a lane.

    A variable counts if it is one number, or a tile of as many dimensions as the stored one's
    ``shape``, with a size of one where it does not have that one's. Operands of a tl.dot do not:
    an element of theirs in the same lane goes elsewhere.
    """

    def __init__(self, lane: tuple[int, ...], shape: tuple[int, ...]) -> None:
        self.steps: list[Step] = []
        self.on = self._inside = False
        self._lane, self._shape = lane, shape
        self._known: dict[tuple[Place, str], Step] = {}
        self._outer: Any = None

    def __enter__(self) -> LaneHistory:
        self._outer = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: Any) -> None:
        sys.settrace(self._outer)

    def _call(self, frame: FrameType, event: str, argument: Any) -> _TRACE:
        role = interpreter.role(frame.f_code) if self.on else ""
        if role in ("program", "observer"):
            outside, self._inside = self._inside, role == "program"

            def leave(frame: FrameType, event: str, argument: Any) -> _TRACE:
                self._inside = outside if event == "return" else self._inside
                return leave

            return leave
        if role != "kernel" or not self._inside:
            return None
        before, line = dict(frame.f_locals), frame.f_lineno

        def trace(frame: FrameType, event: str, argument: Any) -> _TRACE:
            nonlocal before, line
            now = dict(frame.f_locals)
            for name, value in now.items():
                if before.get(name, self) is not value:
                    self._note(frame.f_code, line, name, value)
            if event == "return" and argument is not None:
                self._note(frame.f_code, frame.f_lineno, "return", argument)
            before, line = now, frame.f_lineno
            return trace

        return trace

    def _note(self, code: CodeType, line: int, name: str, value: Any) -> None:
        place = Place(code.co_filename, line, code.co_name)
        text = interpreter.in_lane(value, self._lane, self._shape)
        if text is None or name in _multiplied(code):
            return
        step = self._known.get((place, name))
        if step is None:
            self._known[place, name] = step = Step(place, name, text, text)
            self.steps.append(step)
        else:
            step.last, step.count = text, step.count + 1


@cache
def _multiplied(code: CodeType) -> set[str]:
    """The names in the first two arguments of a function's tl.dot calls."""
    block = inspect.getblock(linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :])
    tree = ast.parse(textwrap.dedent("".join(block)))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {
        name.id
        for call in calls
        if ast.unparse(call.func).split(".")[-1] in ("dot", "dot_scaled")
        for argument in call.args[:2]
        for name in ast.walk(argument)
        if isinstance(name, ast.Name)
    }


def lines(steps: list[Step], store: Place | None) -> list[str]:
    """The last steps in words, each with its line."""
    shown = steps[-SHOWN:]
    width = max((len(str(step)) for step in shown), default=0)
    text = []
    for step in shown:
        same = store is not None and step.place.file == store.file
        file = "" if same else os.path.basename(step.place.file)
        code = f"{file}:{step.place.line} {source_line(step.place)}"
        text.append(f"{str(step).ljust(width)}  {code}")
    if len(steps) > SHOWN:
        text.insert(0, f"… {len(steps) - SHOWN} before, in the JSON file")
    return text
