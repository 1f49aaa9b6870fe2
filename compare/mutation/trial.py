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
from compare.ops import SPECS
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
        for spec, case in itertools.islice(telling_first(ops, mode, level), most):
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


def telling_first(ops: list[str], mode: str, level: str) -> Iterator[tuple[Spec, Case]]:
    """The cases of the ops: first those that show a coordinate which none before them showed, then
    those that show a new pair of coordinates, then the rest; of an op after the other."""
    for op in ops:
        spec = SPECS[op]
        candidates = implementations(spec, [mode])
        wanted = [
            case
            for dtype in spec.dtypes
            for case in spec.cases(dtype, level)  # type: ignore[arg-type]
            if any(applies(c, spec, case) and is_quick(c, spec, case) for c in candidates)
        ]
        # Tiny ones hide what others show; large ones take long.
        wanted.sort(key=lambda case: (math.prod(case.shape) < 16, spec.cost(case)[1]))
        for size in (1, 2):
            seen: set[tuple[Any, ...]] = set()
            late = []
            for case in wanted:
                shown = set(itertools.combinations(_coordinates(case), size))
                if shown <= seen:
                    late.append(case)
                else:
                    seen |= shown
                    yield spec, case
            wanted = late
        yield from ((spec, case) for case in wanted)


def _coordinates(case: Case) -> list[tuple[str, str]]:
    options = [(name, str(value)) for name, value in sorted(case.options.items())]
    size = str(math.prod(case.shape).bit_length() // 4)
    plain = {"dtype": case.dtype, "layout": case.layout, "values": case.values, "size": size}
    return [*plain.items(), *options]


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the process ends, wherever it hangs
    print(json.dumps(try_cases(**json.loads(sys.argv[1]))))
