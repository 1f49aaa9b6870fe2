"""From a wrong result to the program and line that made it, in the interpreter.

A subject (an op's case, or a kernel from elsewhere) runs interpreted while an observer notes who
stores what; its results are compared with the oracle; then one program runs again, traced.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor

from compare import checking
from compare.cases import CPU
from compare.checking import Deviation
from compare.debugging import regions
from compare.debugging.findings import Failure, Findings, WrongValues
from compare.debugging.hazards import Hazard, Sanitizer
from compare.debugging.stores import History, Stores, address_of
from compare.debugging.subjects import Kernel, Oracle, Result, Subject, tensors
from compare.debugging.tracing import Tracer
from compare.debugging.values import Values
from compare.own import Tolerance
from triton_kernels import _interpreter
from triton_kernels._observer import Launch, Program, Several

PATIENCE = 1.0  # seconds before the progress bar shows


class _Bar:
    """A progress bar on stderr for what takes longer than PATIENCE."""

    def __init__(self, what: str) -> None:
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[done]}"),
            TimeElapsedColumn(),
            TextColumn("Ctrl-C ends it"),
            console=Console(stderr=True),
            transient=True,
            disable=not Console(stderr=True).is_terminal,
        )
        self._task = self.progress.add_task(what, total=None, done="")
        self.timer = threading.Timer(PATIENCE, self.progress.start)
        self.timer.daemon = True

    def update(self, done: int, total: int) -> None:
        """So many programs are done."""
        text = f"{done} of {total} programs"
        self.progress.update(self._task, completed=done, total=total, done=text)

    def __enter__(self) -> _Bar:
        self.timer.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.timer.cancel()
        self.timer.join()
        if self.progress.live.is_started:  # stopping one that never started prints a line
            self.progress.stop()


class _Watch(Stores):
    """Stores that move a bar."""

    def __init__(self, bar: _Bar) -> None:
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
    return [Values()]


def investigate(
    subject: Subject, program: Sequence[int] | None = None, sanitize: bool = True
) -> Findings:
    """Locate what is wrong, and replay the program that made it, or the one that is asked for.

    Raises:
        ValueError: ``program`` is not in the grid.
    """
    bar = _Bar(f"interpreting {subject.title}")
    findings, stores = Findings(subject.title), _Watch(bar)
    sanitizers = _sanitizers() if sanitize else []
    state = subject.prepare(CPU)
    results: list[Result] = []
    try:
        with bar, _interpreter.interpreting(Several(stores, *sanitizers)):
            subject.launch(state, next((s.shadows for s in sanitizers if s.shadows), None))
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
    findings.hazards.sort(key=lambda hazard: not _explains(hazard, findings.failure))
    values = next((s for s in sanitizers if isinstance(s, Values)), None)
    if values is not None:
        for wrong in findings.wrong:
            wrong.made = None if math.isfinite(wrong.value) else values.made(wrong.history.address)
    target = _target(findings, stores, program)
    if target is not None:
        _replay(subject, findings, stores, target)
    findings.notes += _notes(findings, stores, results, values)
    _compiled(subject, findings, results)
    return findings


def _explains(hazard: Hazard, failure: Failure | None) -> bool:
    """Whether a hazard happened where the run failed: it is the one to look at first."""
    return failure is not None and (failure.program, failure.place) in [
        (witness.program, witness.place) for witness in hazard.witnesses
    ]


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
        with _Bar(f"tracing program {target[1]}"), _interpreter.interpreting(tracer):
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


def _notes(
    findings: Findings, stores: Stores, results: list[Result], values: Values | None
) -> list[str]:
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
            notes += [f"{name}: {never} of {tensor.numel()} elements never stored"] if never else []
            notes += _nans(name, tensor, values)
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


def _nans(name: str, tensor: Tensor, values: Values | None) -> list[str]:
    """How many NaNs there are, and what made the first that the kernel's inputs did not have."""
    if not tensor.dtype.is_floating_point or not bool((nan := tensor.isnan()).any()):
        return []
    text = f"{name}: {int(nan.sum())} of {tensor.numel()} elements are NaN"
    for index in nan.nonzero().tolist() if values else []:
        made = values and values.made(address_of(tensor, tuple(index)))
        if made:
            which = f"{name}[{', '.join(map(str, index))}]"
            return [f"{text}; {which} was {made.what} in program {made.program}, {made.place}"]
    return [text]


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
    uninitialized: Sequence[str] = (),
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
            in the order of their parameters, or a dict by parameter name.
        max_ulps: the largest right distance to the oracle's result, rounded to the result's dtype;
            integers must be equal.
        bound: instead of max_ulps, the largest right \|result − oracle\| of each element: called
            with the oracle's result and ``args``.
        program: the program to run again, instead of the one that stored the worst element.
        sanitize: whether to look for hazards, too: what may be wrong though the result is right.
        uninitialized: names of parameters whose memory holds nothing at the start, as that of
            outputs made by torch.empty: reading them before a store is a hazard.
        constexprs: keyword arguments of the launch, ``num_warps`` and the like among them.

    Returns:
        :class:`Findings`: true if nothing is wrong; print it.

    Raises:
        TypeError: ``kernel`` is no Triton kernel, ``args`` no sequence, a tensor has no
            strided memory, the launch lacks an argument, or the oracle returns no tensors.
        ValueError: the oracle's tensors do not fit those that were stored, ``program`` is not in
            the grid, ``uninitialized`` names no tensor, or there is a ``bound`` and no ``oracle``.

    Example:
        >>> print(debug(kernel, (4,), (x, out, 1000), oracle=lambda: x * x, BLOCK=256))
    """
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
    subject = Kernel(kernel, grid, args, constexprs, oracle, max_ulps, bound, uninitialized)
    return investigate(subject, program, sanitize)
