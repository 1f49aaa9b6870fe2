"""Records the lines of the Triton side that each case executes in the interpreter.

``python -m compare.mutation.recorder '{"ops": […], "level": …, "share": [0, 2], …}'`` prints them
as JSON: for every line the set of cases, as the bits of a number. It runs in its own process, since
it also records the lines executed by importing the packages.
"""

from __future__ import annotations

import functools
import gc
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

Tracer = Callable[[FrameType, str, Any], Any]


class Executed:
    """The lines of some files that this thread executes: file → lines."""

    def __init__(self, root: Path, files: list[str]) -> None:
        self.lines: dict[str, set[int]] = {file: set() for file in files}
        self._tracers = {str(root / file): _noting(lines) for file, lines in self.lines.items()}
        sys.settrace(lambda frame, event, argument: self._tracers.get(frame.f_code.co_filename))

    def taken(self) -> Iterator[tuple[str, int]]:
        """The lines since the last call."""
        for file, lines in self.lines.items():
            yield from ((file, line) for line in lines)
            lines.clear()


def _noting(lines: set[int]) -> Tracer:
    def note(frame: FrameType, event: str, argument: Any) -> Tracer:
        if event == "line":
            lines.add(frame.f_lineno)
        return note

    return note


def record(ops: list[str], files: list[str], level: str, share: tuple[int, int]) -> dict[str, Any]:
    """The lines of every ``share[1]``-th case, starting from the ``share[0]``-th."""
    root = Path.cwd()
    executed = Executed(root, files)
    from compare.checking import verdicts
    from compare.checking.implementations import implementations
    from compare.mutation.trial import LINED, cases_of
    from compare.ops import spec_of

    specs = {op: spec_of(op) for op in ops}  # which imports targets
    imported: dict[str, list[int]] = {file: [] for file in files}
    for file, line in executed.taken():
        imported[file].append(line)
    masks: dict[str, dict[str, dict[int, int]]] = {}
    for op, spec in specs.items():
        of_op = masks[op] = {file: defaultdict(int) for file in files}
        for number, case in enumerate(cases_of(spec, LINED, level)):
            if number % share[1] == share[0]:
                forget()
                list(verdicts.check(spec, [case], implementations(spec, [LINED])))
                for file, line in executed.taken():
                    of_op[file][line] |= 1 << number
    sys.settrace(None)
    written = {
        op: {
            file: {line: hex(mask) for line, mask in of_file.items()}
            for file, of_file in files_of_op.items()
        }
        for op, files_of_op in masks.items()
    }
    return {"imported": imported, "masks": written}


def forget() -> None:
    """Clear caches, so that a case executes the same lines whatever ran before."""
    for each in _remembering():
        if hasattr(each, "cache_clear"):
            each.cache_clear()
        else:
            each._configurations.clear()


_LAUNCHER = "<class 'triton_kernels._elementwise_op.Launcher'>"


@functools.cache
def _remembering() -> list[Any]:
    """The cached functions of the kernels' package and the launchers of elementwise ops. Without
    the interpreter's, which have no mutants and are slow to fill."""
    cached = type(_remembering)
    ours = [each for each in gc.get_objects() if isinstance(each, cached) and _is_ours(each)]
    return ours + [each for each in gc.get_objects() if str(type(each)) == _LAUNCHER]


def _is_ours(function: Any) -> bool:
    module = str(getattr(function, "__module__", ""))
    return module.startswith("triton_kernels.") and ".interpreter" not in module


if __name__ == "__main__":
    print(json.dumps(record(**json.loads(sys.argv[1]))))
