"""The cheapest check that can find a planted fault; it runs in a copy and ends at a mismatch.

``python -m compare.mutation.trial '{"ops": […], "modes": […], …}'`` prints its result as JSON. It
runs in its own process, because it imports the copy's packages.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import torch

from compare.cases import Case
from compare.checking import verdicts
from compare.checking.implementations import (
    MODES,
    Implementation,
    applies,
    implementations,
    is_quick,
)
from compare.checking.telling import telling_first
from compare.ops import spec_of
from compare.specs import Spec
from triton_kernels.gemm.gluon import availability

# Errors of an interpreted kernel that a compiler would also reject.
_NO_KERNEL = ("CompilationError", "InterpreterError", "NameError", "AttributeError", "TypeError")

LINED = "triton-interpreted"  # the mode in which kernels execute lines of Python
NO_CASE = "no case comes to it"
CASE = "next: "  # how the line begins that names a case before it is run
TOO_LONG = (signal.SIGPROF, signal.SIGALRM)  # signals at a trial's time limit
# How names of Gluon's files begin that are for float32 alone → the precision.
PRECISIONS = {"fma": "ieee", "parts": "f16x3"}


def try_cases(
    ops: list[str],
    modes: list[str],
    level: str,
    most: int | None,
    kernel: bool,
    seconds: float,
    numbers: dict[str, list[int]] | None,
    variant: str | None,
    file: str,
) -> dict[str, Any]:
    """The first mismatch of all cases, the most telling ones first; or how many cases passed.

    ``kernel``: the fault is in a kernel, so Python's errors about it count as compile errors.
    ``seconds``: a case's limit of CPU time; the limit on the clock is six times as long.
    ``numbers``: op → the cases that reach the fault in the interpreter; None: any case may.
    ``file``: the file with the fault.
    """
    if variant == "gluon":
        with _limited(seconds):
            # The self-tests, before any case.
            reason = availability.here() or availability.here(multiply_adds=True)
        if reason:
            broken = any(name in reason for name in _NO_KERNEL)
            return {"end": "did not compile" if broken else "killed", "says": [reason]}
    done = 0
    for mode in modes:
        for spec, case in _tried(ops, mode, level, most, numbers, variant, file):
            if "CROSSCHECK_SANITIZE" in os.environ:  # a report ends the process
                print(f"{CASE}{case.command(mode)} --sanitize address", flush=True)
            with _limited(seconds):
                results = list(verdicts.check(spec, [case], _candidates(spec, mode, variant)))
            done += 1
            wrong = [o.mismatch for result in results for o in result.outcomes if o.mismatch]
            if wrong:
                problem = wrong[0].problem
                python = kernel and mode.startswith("triton")
                broken = problem.startswith(_NO_KERNEL if python else "BuildError")
                end = "did not compile" if broken else "killed"
                return {"end": end, "says": [problem], "by": wrong[0].replay, "cases": done}
    return {"end": "survived", "cases": done, "says": [] if done else [NO_CASE]}


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """End the process if what is inside takes that much CPU time, or six times that on the clock:
    it may wait for a compiler, or for ever."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 6 * seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _tried(
    ops: list[str],
    mode: str,
    level: str,
    most: int | None,
    numbers: dict[str, list[int]] | None,
    variant: str | None,
    file: str,
) -> Iterator[tuple[Spec, Case]]:
    """The cases in the order of trial, ``most`` of them in Triton. In CUDA ``most`` per library,
    one library after the other, since each has to be built. On a GPU the cases that only the full
    level has come first, those past 2³¹ elements before all: what others show has been killed on
    the CPU."""
    specs = [spec_of(op) for op in ops]
    for stem in dict.fromkeys(spec.stem if mode.startswith("cuda") else "" for spec in specs):
        wanted: list[tuple[Spec, Case]] = []
        of_stem = [spec for spec in specs if not stem or spec.stem == stem]
        for spec in of_stem:
            cases = cases_of(spec, mode, level, variant)
            if numbers is not None and mode == LINED:
                cases = [cases[number] for number in numbers.get(spec.name, ())]
            wanted += [(spec, case) for case in cases]
        ordered = telling_first(wanted)
        if level == "full" and MODES[mode][1] == "cuda":
            few = (case for spec in of_stem for case in cases_of(spec, mode, "quick", variant))
            quick = set(map(str, few))
            late = [each for each in ordered if str(each[1]) in quick]
            own = [each for each in ordered if str(each[1]) not in quick]
            ordered = sorted(own, key=lambda each: not _huge(*each)) + late
        if variant is not None:
            ordered.sort(key=lambda each: _made_for_forms(each[1], file), reverse=True)
        yield from ordered[:most]


def _huge(spec: Spec, case: Case) -> bool:
    """Whether a case has more memory than 32-bit offsets reach."""
    return spec.memory(case, torch.device("cpu")) > 2**31


def _made_for_forms(case: Case, file: str) -> tuple[bool, ...]:
    """What makes a case come first if one kernel is judged: it was made for a form of those in the
    file (several tiles, K in parts), with an epilogue, in one dtype."""
    name = file.rpartition("/")[2]
    own = [precision for start, precision in PRECISIONS.items() if name.startswith(start)]
    of_float32 = [case.options.get("precision", "ieee")] if case.dtype == "float32" else None
    made = own == of_float32 if own else "operands" in case.options
    made = made and "multiprocessors" in case.options
    return made, made and "c" in case.options, case.dtype == "float16"


def _candidates(spec: Spec, mode: str, variant: str | None) -> list[Implementation]:
    every = implementations(spec, [mode])
    return [each for each in every if variant is None or each.variant == variant]


def cases_of(spec: Spec, mode: str, level: str, variant: str | None = None) -> list[Case]:
    """An op's cases that some implementation of the mode takes in reasonable time."""
    candidates = _candidates(spec, mode, variant)
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
