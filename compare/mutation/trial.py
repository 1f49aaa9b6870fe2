"""The cheapest check that can see a planted fault: run in a copy, ended by its first mismatch.

``python -m compare.mutation.trial '{"ops": […], "modes": […], …}'`` prints what it found as JSON.
It is a process of its own: the packages that it imports are the copy's.
"""

from __future__ import annotations

import itertools
import json
import math
import signal
import sys
from collections.abc import Iterator
from typing import Any

from compare.cases import Case
from compare.checking import verdicts
from compare.checking.implementations import applies, implementations, is_quick
from compare.ops import spec_of
from compare.specs import Spec

# What an interpreted kernel ends with that no compiler would take.
_NO_KERNEL = ("CompilationError", "InterpreterError", "NameError", "AttributeError", "TypeError")


def try_cases(
    ops: list[str],
    modes: list[str],
    level: str,
    most: int | None,
    kernel: bool,
    seconds: float,
) -> dict[str, Any]:
    """The first mismatch of all cases, the telling ones first; or how many cases passed.

    ``kernel``: the fault is in a kernel, and what Python says of it a compiler would say.
    ``seconds``: after which a case ends the process.
    """
    done = 0
    for mode in modes:
        for spec, case in telling_first(ops, mode, level)[:most]:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            results = list(verdicts.check(spec, [case], implementations(spec, [mode])))
            signal.setitimer(signal.ITIMER_REAL, 0)
            done += 1
            wrong = [o.mismatch for result in results for o in result.outcomes if o.mismatch]
            if wrong:
                problem = wrong[0].problem
                python = kernel and mode.startswith("triton")
                broken = problem.startswith(_NO_KERNEL if python else "BuildError")
                end = "did not compile" if broken else "killed"
                return {"end": end, "says": [problem], "by": wrong[0].replay, "cases": done}
    return {"end": "survived", "cases": done}


def telling_first(ops: list[str], mode: str, level: str) -> list[tuple[Spec, Case]]:
    """The cases of the ops: first those that show a coordinate which none before them showed, then
    those that show it in another op or dtype, then new pairs of coordinates, then the rest."""
    wanted: list[tuple[Spec, Case]] = []
    for spec in (spec_of(op) for op in ops):
        candidates = implementations(spec, [mode])
        wanted += [
            (spec, case)
            for dtype in spec.dtypes
            for case in spec.cases(dtype, level)  # type: ignore[arg-type]
            if any(applies(c, spec, case) and is_quick(c, spec, case) for c in candidates)
        ]
    # Tiny ones hide what others show; large ones take long.
    wanted.sort(key=lambda each: (math.prod(each[1].shape) < 16, each[0].cost(each[1])[1]))
    ordered: list[tuple[Spec, Case]] = []
    for shown_by in (_alone, _with_op_and_dtype, _in_pairs):
        seen: set[tuple[Any, ...]] = set()
        late: list[tuple[Spec, Case]] = []
        for spec, case in wanted:
            shown = set(shown_by(_coordinates(case)))
            (late if shown <= seen else ordered).append((spec, case))
            seen |= shown
        wanted = late
    return ordered + wanted


Coordinates = list[tuple[str, str]]


def _coordinates(case: Case) -> Coordinates:
    """A case's op and dtype, and everything else about it but its seed."""
    options = [(name, str(value)) for name, value in sorted(case.options.items())]
    size = str(math.prod(case.shape).bit_length() // 4)
    plain = {"op": case.op, "dtype": case.dtype, "layout": case.layout, "values": case.values}
    return [*plain.items(), ("size", size), *options]


def _alone(coordinates: Coordinates) -> Iterator[tuple[Any, ...]]:
    return itertools.combinations(coordinates, 1)


def _with_op_and_dtype(coordinates: Coordinates) -> Iterator[tuple[Any, ...]]:
    op, dtype, *rest = coordinates
    yield from itertools.product((op,), (dtype, *rest))
    yield from itertools.product((dtype,), rest)


def _in_pairs(coordinates: Coordinates) -> Iterator[tuple[Any, ...]]:
    return itertools.combinations(coordinates, 2)


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the process ends, wherever it hangs
    print(json.dumps(try_cases(**json.loads(sys.argv[1]))))
