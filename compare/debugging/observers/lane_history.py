"""Records the assignments of a program, from which the origin of one element is found.

A program's trace lists accesses of memory only. A wrong constant, index or mask between a load and
a store shows nowhere else.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple

import triton.language as tl

from triton_kernels import interpreter
from triton_kernels.interpreter import Dataflow, Place, Value

_TRACE = Any  # a trace function returns one
MOST = 1 << 18  # recorded assignments


class Assignment(NamedTuple):
    """The assignment of a value to a name; a function's result has the name "return". Elements of
    tuples have their index in the name, as in "return[1]".

    ``value`` is the known origin of the value, ``plain`` a Python number.
    """

    place: Place
    name: str
    value: Value | None
    plain: bool | int | float | None


class Assignments:
    """Records assignments within this context, in the programs for which the dataflow is on.

    Attributes:
        noted: in order.
        called: function of the kernel, as file and name → the lines that called it.
        raised: the place of the last error, and the variables' values there.
    """

    def __init__(self, flow: Dataflow) -> None:
        self.flow = flow
        self.noted: list[Assignment] = []
        self.called: dict[tuple[str, str], dict[Place, None]] = {}
        self.raised: tuple[Place, dict[str, Value]] | None = None
        self._inside = False
        self._outer: Any = None

    def __enter__(self) -> Assignments:
        self._outer = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: Any) -> None:
        sys.settrace(self._outer)

    def _call(self, frame: FrameType, event: str, argument: Any) -> _TRACE:
        role = interpreter.role(frame.f_code) if self.flow.on else ""
        if role in ("program", "observer"):
            outside, self._inside = self._inside, role == "program"

            def leave(frame: FrameType, event: str, argument: Any) -> _TRACE:
                self._inside = outside if event == "return" else self._inside
                return leave

            return leave
        if role != "kernel" or not self._inside:
            return None
        caller = frame.f_back
        while caller is not None and not (known := interpreter.role(caller.f_code)):
            caller = caller.f_back
        if caller is not None and known == "kernel":
            code = frame.f_code
            lines = self.called.setdefault((code.co_filename, code.co_name), {})
            lines[_place(caller.f_code, caller.f_lineno)] = None
        before, line = dict(frame.f_locals), frame.f_lineno

        def trace(frame: FrameType, event: str, argument: Any) -> _TRACE:
            nonlocal before, line
            now = dict(frame.f_locals)
            for name, value in now.items():
                if before.get(name, self) is not value:
                    self._note(frame.f_code, line, name, value)
            if event == "exception" and not _passed_on(argument[2]):
                known = {name: interpreter.made_by(v, self.flow) for name, v in now.items()}
                values = {name: value for name, value in known.items() if value is not None}
                self.raised = _place(frame.f_code, frame.f_lineno), values
            if event == "return" and argument is not None:
                self._note(frame.f_code, frame.f_lineno, "return", argument)
            before, line = now, frame.f_lineno
            return trace

        return trace

    def _note(self, code: CodeType, line: int, name: str, value: Any) -> None:
        if len(self.noted) >= MOST:
            return
        place, named = _place(code, line), [(name, value)]
        if isinstance(value, (tuple, list, tl.tuple)):
            named = [(f"{name}[{i}]", each) for i, each in enumerate(value)]
        for name, each in named:
            known = interpreter.made_by(each, self.flow)
            plain = each if isinstance(each, (bool, int, float)) else None
            if known is not None or plain is not None:
                self.noted.append(Assignment(place, name, known, plain))


def _passed_on(traceback: TracebackType | None) -> bool:
    """Whether an error came from an inner function of the kernel, which has more details."""
    inner = traceback.tb_next if traceback is not None else None
    while inner is not None and interpreter.role(inner.tb_frame.f_code) != "kernel":
        inner = inner.tb_next
    return inner is not None


def _place(code: CodeType, line: int) -> Place:
    return Place(code.co_filename, line, code.co_name)
