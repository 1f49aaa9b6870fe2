"""The cheapest check that can see a planted fault: run in a copy, ended by its first mismatch.

``python -m compare.mutation.trial '{"ops": […], "modes": […], …}'`` prints what it found as JSON.
It is a process of its own: the packages that it imports are the copy's.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from typing import Any

from compare.cases import Case
from compare.checking import verdicts
from compare.checking.implementations import applies, implementations, is_quick
from compare.checking.telling import telling_first
from compare.ops import spec_of
from compare.specs import Spec

# What an interpreted kernel ends with that no compiler would take.
_NO_KERNEL = ("CompilationError", "InterpreterError", "NameError", "AttributeError", "TypeError")

LINED = "triton-interpreted"  # the mode in which kernels execute lines of Python
TOO_LONG = (signal.SIGPROF, signal.SIGALRM)  # what ends a trial


def try_cases(
    ops: list[str],
    modes: list[str],
    level: str,
    most: int | None,
    kernel: bool,
    seconds: float,
    numbers: dict[str, list[int]] | None,
) -> dict[str, Any]:
    """The first mismatch of all cases, the telling ones first; or how many cases passed.

    ``kernel``: the fault is in a kernel, and what Python says of it a compiler would say.
    ``seconds``: of this process, after which a case ends it, or six times as many on the clock.
    ``numbers``: op → the cases that come to the fault in the interpreter; None where all may.
    """
    done = 0
    for mode in modes:
        for spec, case in _tried(ops, mode, level, most, numbers):
            signal.setitimer(signal.ITIMER_PROF, seconds)
            signal.setitimer(
                signal.ITIMER_REAL, 6 * seconds
            )  # it waits, for a compiler or for ever
            results = list(verdicts.check(spec, [case], implementations(spec, [mode])))
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            done += 1
            wrong = [o.mismatch for result in results for o in result.outcomes if o.mismatch]
            if wrong:
                problem = wrong[0].problem
                python = kernel and mode.startswith("triton")
                broken = problem.startswith(_NO_KERNEL if python else "BuildError")
                end = "did not compile" if broken else "killed"
                return {"end": end, "says": [problem], "by": wrong[0].replay, "cases": done}
    return {"end": "survived", "cases": done, "says": [] if done else ["no case comes to it"]}


def _tried(
    ops: list[str],
    mode: str,
    level: str,
    most: int | None,
    numbers: dict[str, list[int]] | None,
) -> Iterator[tuple[Spec, Case]]:
    """The cases in the order in which they are tried. Those in CUDA library after library, each of
    which has to be built; of each, and in Triton of all, ``most``."""
    specs = [spec_of(op) for op in ops]
    for stem in dict.fromkeys(spec.stem if mode.startswith("cuda") else "" for spec in specs):
        wanted: list[tuple[Spec, Case]] = []
        for spec in (each for each in specs if not stem or each.stem == stem):
            cases = cases_of(spec, mode, level)
            if numbers is not None and mode == LINED:
                cases = [cases[number] for number in numbers.get(spec.name, ())]
            wanted += [(spec, case) for case in cases]
        yield from telling_first(wanted)[:most]


def cases_of(spec: Spec, mode: str, level: str) -> list[Case]:
    """An op's cases that anything in the mode takes, and in reasonable time."""
    candidates = implementations(spec, [mode])
    return [
        case
        for dtype in spec.dtypes
        for case in spec.cases(dtype, level)  # type: ignore[arg-type]
        if any(applies(c, spec, case) and is_quick(c, spec, case) for c in candidates)
    ]


if __name__ == "__main__":
    for end in TOO_LONG:
        signal.signal(end, signal.SIG_DFL)  # the process ends, wherever it hangs
    print(json.dumps(try_cases(**json.loads(sys.argv[1]))))
