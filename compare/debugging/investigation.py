"""From a wrong result to the program and line that made it, in the interpreter.

A subject (an op's case, or a kernel from elsewhere) runs interpreted while an observer notes who
stores what; its results are compared with the oracle; then one program runs again, traced.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compare import checking
from compare.cases import CPU
from compare.checking import Deviation
from compare.debugging import regions
from compare.debugging.findings import Failure, Findings, WrongValues
from compare.debugging.hazards import Sanitizer
from compare.debugging.progress import Bar
from compare.debugging.stores import History, Stores, address_of
from compare.debugging.subjects import Kernel, Oracle, Result, Subject, tensors
from compare.debugging.tracing import Tracer
from compare.own import Tolerance
from triton_kernels import _interpreter
from triton_kernels._observer import Launch, Program, Several


class _Watch(Stores):
    """Stores that move a bar."""

    def __init__(self, bar: Bar) -> None:
        super().__init__()
        self._bar, self._done = bar, 0

    def launch(self, launch: Launch) -> None:
        self._done = 0
        super().launch(launch)

    def wants(self, program: Program) -> bool:
        self._bar.update(self._done, math.prod(self.launches[-1].grid))
        self._done += 1
        return super().wants(program)


def _sanitizers() -> list[Sanitizer]:
    """Those that watch the run."""
    return []


def investigate(
    subject: Subject,
    program: Sequence[int] | None = None,
    sanitize: bool = True,
    replay: bool = True,
) -> Findings:
    """Locate what is wrong, and replay the program that made it, or the one that is asked for.

    Without ``replay`` the findings are those of the one interpreted run.

    Raises:
        ValueError: ``program`` is not in the grid.
    """
    bar = Bar(f"interpreting {subject.title}")
    findings, stores = Findings(subject.title), _Watch(bar)
    sanitizers = _sanitizers() if sanitize else []
    state = subject.prepare(CPU)
    results: list[Result] = []
    try:
        with bar, _interpreter.interpreting(Several(stores, *sanitizers)):
            subject.launch(state)
        results = subject.judge(state, stores)
    except KeyboardInterrupt as interrupt:
        findings.partial = True
        findings.notes.append(_interrupted(stores, interrupt))
    except Exception as error:
        place = _interpreter.place_of(error) if stores.current else None
        if place is None and subject.outside_is_usage:
            raise
        findings.failure = Failure(_brief(error), place and _current(stores), place)
    findings.subject = _heading(subject, stores)
    findings.wrong = [w for w in (_describe(r, stores) for r in results) if w is not None]
    findings.compared = bool(results)
    findings.hazards = [hazard for sanitizer in sanitizers for hazard in sanitizer.hazards()]
    if not replay:
        return findings
    target = _target(findings, stores, program)
    if target is not None:
        _replay(subject, findings, stores, target)
    findings.notes += _notes(findings, stores, results)
    _compiled(subject, findings, results)
    return findings


def _current(stores: Stores) -> Program | None:
    return stores.current[1] if stores.current else None


def _interrupted(stores: Stores, interrupt: KeyboardInterrupt) -> str:
    if stores.current is None:
        return "interrupted before any program ran"
    place, program = _interpreter.place_of(interrupt), _current(stores)
    where = f" at {place}" if place else ""
    return f"interrupted in program {program}{where}: no result was compared"


def _brief(error: Exception) -> str:
    """An error's text without the program and line, which are told beside it."""
    text = checking.brief(error)
    place = _interpreter.place_of(error)
    return re.sub(rf",? (in )?program \([\d, ]+\), {re.escape(str(place))}", "", text)


def _heading(subject: Subject, stores: Stores) -> str:
    """What ran."""
    grids = [f"{launch.kernel}{list(launch.grid)}" for launch in stores.launches]
    if len(grids) == 1 and stores.launches[0].kernel == subject.title:
        return grids[0]
    return f"{subject.title} ({', '.join(grids) or 'nothing was launched'})"


def _deviation(result: Result) -> Deviation:
    right, error, bound, _ = (t.cpu() for t in result.comparison)
    return checking.deviation(result.tensor.cpu(), result.reference.cpu(), right, error, bound)


def _describe(result: Result, stores: Stores) -> WrongValues | None:
    """What is wrong with a result; None if nothing is."""
    right = result.comparison.right
    if bool(right.all()):
        return None
    wrong = (~right).cpu().numpy()
    tensor, deviation = result.tensor, _deviation(result)
    writers = stores.writers(tensor)
    numbers = np.unique(writers[wrong]) if writers is not None else np.array([-1])
    programs = list(dict.fromkeys(stores.stores[n].program for n in numbers if n >= 0))
    unwritten = int(wrong.sum() if writers is None else (writers[wrong] < 0).sum())
    history = stores.history(address_of(tensor, deviation.index))
    launch = history.last.launch if history.last else len(stores.launches) - 1
    nan = tensor.dtype.is_floating_point and bool(tensor[~right].isnan().all())
    return WrongValues(
        result.name,
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.shape),
        deviation,
        regions.pattern(wrong, result.name),
        nan,
        unwritten,
        programs,
        stores.launches[launch].grid if stores.launches else (0,),
        history,
        tensor[deviation.index].item(),
    )


Target = tuple[int, Program]  # number of the launch, program


def _target(findings: Findings, stores: Stores, program: Sequence[int] | None) -> Target | None:
    """Which program shall run again."""
    if program is not None:
        x, y, z = (*map(int, program), 0, 0)[:3]
        for number, launch in enumerate(stores.launches):
            if all(0 <= i < n for i, n in zip((x, y, z), launch.grid)):
                return number, (x, y, z)
        grids = ", ".join(str(launch.grid) for launch in stores.launches) or "empty"
        raise ValueError(f"program {(x, y, z)} is not in the grid, which is {grids}")
    if findings.failure is not None:
        return stores.current if findings.failure.program is not None else None
    if findings.wrong:
        history = findings.wrong[0].history
        store = history.last or history.masked
        return (store.launch, store.program) if store else stores.current
    if findings.compared or findings.partial or stores.current is None:
        return None
    return 0, (0, 0, 0)


def _replay(subject: Subject, findings: Findings, stores: Stores, target: Target) -> None:
    """Run the program alone, from the start of its launch, and note what it does."""
    worst = findings.wrong[0] if findings.wrong else None
    watched = _offset(stores, worst.history) if worst else None
    tracer = Tracer(*target, watched)
    try:
        state = subject.prepare(CPU)
        with Bar(f"tracing program {target[1]}"), _interpreter.interpreting(tracer):
            subject.launch(state)
    except KeyboardInterrupt:
        findings.partial = True
        tracer.end("by Ctrl-C, this is the trace so far")
    except Exception as error:  # noqa: BLE001 - the kernel's error, which has been reported
        text = _brief(error)
        known = findings.failure is not None and findings.failure.error == text
        tracer.end("by the error above" if known else text.splitlines()[0])
    findings.trace = tracer.trace
    if findings.failure is not None and tracer.trace is not None and not tracer.trace.ended:
        findings.notes.append("alone the program does not fail: it needs what others write")
    if worst is not None:
        worst.alone = tracer.stored_there


def _offset(stores: Stores, history: History) -> tuple[str, int] | None:
    """The worst element as the argument that its writer stored through, and bytes from its start:
    addresses are others in another run."""
    if history.last is None:
        return None
    for argument in stores.launches[history.last.launch].arguments:
        if argument.name == history.last.argument:
            return argument.name, history.address - argument.low
    return None


def _notes(findings: Findings, stores: Stores, results: list[Result]) -> list[str]:
    """What else the stores tell."""
    notes = []
    if not stores.stored() and not findings.failure and not findings.partial:
        notes.append("no program stored anything")
    wrong = {w.output for w in findings.wrong}
    for result in results:
        if result.name not in wrong:
            notes.append(f"{result.name}: all {result.tensor.numel()} elements are right")
    found = [(r.name, r.tensor) for r in results]
    if not findings.compared and not findings.failure and not findings.partial:
        notes.append("no oracle: no result was compared")
        found = [(argument.name, argument.tensor) for argument in stores.stored()]
        for name, tensor in found:
            writers = stores.writers(tensor)
            never = 0 if writers is None else int((writers < 0).sum())
            nans = int(tensor.isnan().sum()) if tensor.dtype.is_floating_point else 0
            notes += [f"{name}: {never} of {tensor.numel()} elements never stored"] if never else []
            notes += [f"{name}: {nans} of {tensor.numel()} elements are NaN"] if nans else []
    for name, tensor in found:
        shared = stores.shared(tensor)
        if shared is not None and shared.any():
            index = tuple(int(i) for i in np.argwhere(shared)[0])
            history = stores.history(address_of(tensor, index))
            if history.last and history.other:
                notes.append(
                    f"{int(shared.sum())} elements of {name} were stored by two programs with "
                    f"different values, as [{', '.join(map(str, index))}] by "
                    f"{history.other.program} and then {history.last.program}: unless something "
                    "orders them, the result depends on luck"
                )
    return notes


def _compiled(subject: Subject, findings: Findings, results: list[Result]) -> None:
    """Bring the compiled kernel into it, where there is a GPU."""
    if not torch.cuda.is_available() or not subject.compilable() or findings.partial:
        return
    if findings.failure is not None:
        findings.compiled = "not run: after such an error it could break the GPU's context"
        return
    if not results:
        return
    try:
        state = subject.prepare(torch.device("cuda"))
        subject.launch(state)
        torch.cuda.synchronize()
        found = subject.judge(state, None)
    except Exception as error:  # noqa: BLE001 - whatever the kernel throws is a finding
        findings.compiled, findings.compiled_right = checking.brief(error), False
        return
    here = torch.cat([~r.comparison.right.cpu().flatten() for r in results])
    there = torch.cat([~r.comparison.right.cpu().flatten() for r in found])
    findings.compiled_right = not bool(there.any())
    findings.compiled = _against(here, there)
    if bool((there & ~here).any()):
        wrong = next(r for r in found if not bool(r.comparison.right.all()))
        d = _deviation(wrong)
        index = ", ".join(map(str, d.index))
        findings.compiled += f"; worst {wrong.name}[{index}]: got {d.got}, expected {d.expected}"


def _against(here: Tensor, there: Tensor) -> str:
    """In words: the elements wrong interpreted, and compiled."""
    wrong, same = int(there.sum()), int((here & there).sum())
    if not wrong:
        return "right" + (": suspect the interpreter's emulation" if here.any() else "")
    if bool((here == there).all()):
        return f"the same {wrong} elements wrong" if wrong > 1 else "the same element wrong"
    text = f"{wrong} of {there.numel()} elements wrong"
    if same:
        return f"{text}, {same} of them the same"
    return text + (", none of them the same" if here.any() else ": suspect compiler or precision")


def debug(
    kernel: Any,
    grid: Any,
    args: Sequence[Any],
    *,
    oracle: Oracle | None = None,
    max_ulps: float = 1.0,
    bound: Tolerance | None = None,
    program: Sequence[int] | None = None,
    sanitize: bool = True,
    shrink: bool | str | Path = False,
    **constexprs: Any,
) -> Findings:
    r"""Run ``kernel[grid](*args, **constexprs)`` in the interpreter and find out what is wrong.

    The worst wrong element is laid to the program and line that stored it; that program then runs
    again, alone and traced. An error in the kernel is a finding, too. With a GPU the compiled
    kernel is compared as well.

    Args:
        kernel: any ``@triton.jit`` function, bare or under heuristics or autotune.
        grid: a tuple of sizes, or a function of the arguments that returns one.
        args: the positional arguments, with tensors on any device. Kernels get copies.
        oracle: returns what the tensors that the kernel stores to should hold: one tensor, a tuple
            in the order of their parameters, or a dict by parameter name. Takes nothing, or (which
            lets values shrink) ``args``.
        max_ulps: the largest right distance to the oracle's result, rounded to the result's dtype;
            integers must be equal.
        bound: instead of max_ulps, the largest right \|result − oracle\| of each element: called
            with the oracle's result and ``args``.
        program: the program to run again, instead of the one that stored the worst element.
        sanitize: whether to look for hazards, too: what may be wrong though the result is right.
        shrink: whether to look for simpler input values with which it still fails so, and to make a
            file that reproduces it; or that file's name. :func:`compare.shrink` shrinks sizes, too.
        constexprs: keyword arguments of the launch, ``num_warps`` and the like among them.

    Returns:
        :class:`Findings`: true if nothing is wrong; print it.

    Raises:
        TypeError: ``kernel`` is no Triton kernel, ``args`` no sequence, a tensor has no
            strided memory, the launch lacks an argument, or the oracle returns no tensors.
        ValueError: the oracle's tensors do not fit those that were stored, ``program`` is not in
            the grid, there is a ``bound`` and no ``oracle``, or the file cannot be written.

    Example:
        >>> print(debug(kernel, (4,), (x, out, 1000), oracle=lambda: x * x, BLOCK=256))
    """
    subject = subject_of(kernel, grid, args, oracle, max_ulps, bound, **constexprs)
    if not shrink:
        return investigate(subject, program, sanitize)
    if program is not None:
        raise ValueError("debug(): program and shrink exclude each other")
    from compare.debugging import launches, shrinking  # which need this module

    call = {"kernel": kernel, "grid": grid, "args": args, "oracle": oracle}
    call |= {"max_ulps": max_ulps, "bound": bound, **constexprs}
    file = None if shrink is True else Path(shrink)
    try:
        return launches.shrink_kernel(call, sanitize, file)
    except shrinking.NothingToShrink as reason:
        findings = investigate(subject, None, sanitize)
        findings.notes.append(str(reason))
        return findings


def subject_of(
    kernel: Any,
    grid: Any,
    args: Sequence[Any],
    oracle: Oracle | None = None,
    max_ulps: float = 1.0,
    bound: Tolerance | None = None,
    **constexprs: Any,
) -> Kernel:
    """The launch that arguments of :func:`debug` describe, checked."""
    if not (hasattr(kernel, "run") and hasattr(kernel, "__getitem__")):
        raise TypeError(
            "debug(): argument 'kernel' must be a @triton.jit function, but got "
            f"{type(kernel).__name__}"
        )
    if not isinstance(args, (tuple, list)):
        raise TypeError(
            f"debug(): argument 'args' must be a tuple of arguments, but got {type(args).__name__}"
        )
    if not callable(grid) and not isinstance(grid, (tuple, list)):
        raise TypeError(
            f"debug(): argument 'grid' must be a tuple or a function, but got {type(grid).__name__}"
        )
    for t in tensors((args, constexprs)):
        if t.layout is not torch.strided or t.device.type == "meta":
            raise TypeError(
                f"debug(): a tensor argument is {t.layout} on {t.device}; it must be strided memory"
            )
    if bound is not None and oracle is None:
        raise ValueError("debug(): a bound needs an oracle")
    return Kernel(kernel, grid, args, constexprs, oracle, max_ulps, bound)
