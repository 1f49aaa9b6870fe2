"""From a wrong result to the program and line that made it, in the interpreter.

A subject (an op's case, or a kernel from elsewhere) runs interpreted while an observer records all
stores. Its results are compared with the oracle's. Then one program runs again, traced.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from compare.cases import CPU
from compare.checking.progress import Bar
from compare.checking.stores import Store, Stores, address_of
from compare.debugging import derived, replaying
from compare.debugging.compiled import bisection, comparison
from compare.debugging.drawing.errors import Output, error_map
from compare.debugging.findings import regions
from compare.debugging.findings.failure import Failure, outside, place_text
from compare.debugging.findings.findings import Findings, WrongValues
from compare.debugging.findings.hazards import Hazard, Sanitizer, Witness
from compare.debugging.findings.placed import placed
from compare.debugging.observers import program_orders
from compare.debugging.observers.deadlock import SpinGuard, WaitsForever
from compare.debugging.observers.program_orders import OTHERS, Order, Outcome, forward
from compare.debugging.observers.races import Races
from compare.debugging.observers.values import Values
from compare.debugging.replaying import Target, brief
from compare.debugging.stepping import failures
from compare.debugging.stepping.sessions import Session
from compare.debugging.subjects import Result, Subject
from triton_kernels import interpreter
from triton_kernels.interpreter import Access, Dot, Launch, Observer, Place, Program, Several

NEAR = 16  # times its bound: how far an error reaches that rounding alone may make


class _Watch(Stores):
    """Records stores, moves a progress bar, and sets the order of the programs."""

    def __init__(self, bar: Bar, order: Order = forward) -> None:
        super().__init__()
        self._bar, self._order, self._done = bar, order, 0
        self.elsewhere = False  # whether an access hit memory of no argument

    def order(self, launch: Launch, programs: Sequence[Program]) -> Sequence[Program]:
        return self._order(programs)

    def launch(self, launch: Launch) -> None:
        self._done = 0
        super().launch(launch)

    def access(self, access: Access) -> None:
        super().access(access)
        if access.argument is None and not self.elsewhere:
            outside = access.mask.copy()
            for argument in self.launches[-1].arguments:
                outside &= (access.pointers < argument.low) | (access.pointers >= argument.high)
            self.elsewhere = bool(outside.any())

    def wants(self, program: Program) -> bool:
        self._bar.update(self._done, math.prod(self.launches[-1].grid))
        self._done += 1
        return super().wants(program)


class Roundings(Observer):
    """The lines whose tl.dot rounds float32 operands → the input precision that they request."""

    def __init__(self) -> None:
        self.of: dict[Place | None, str] = {}

    def dot(self, dot: Dot) -> None:
        if dot.precision not in ("", "ieee"):
            self.of[dot.place] = dot.precision


class _Exact(Observer):
    """Prevents every tl.dot from rounding its operands."""

    dot_precision = "ieee"


def _sanitizers() -> list[Sanitizer]:
    """The sanitizers that watch the run."""
    return [Values(), Races()]


def investigate(
    subject: Subject,
    program: Sequence[int] | None = None,
    *,
    sanitize: bool = True,
    session: Session | None = None,
    bisect: bool | None = None,
    replay: bool = True,
) -> Findings:
    """Find what is wrong, and replay the program that made it, or the requested ``program``.

    With a ``session`` the replay runs in a debugger. ``bisect``: whether to run the case in many
    ways on a GPU; None: only if interpreted and compiled results differ in being right. Without
    ``replay`` the findings are those of the interpreted runs.

    Raises:
        ValueError: ``program`` is not in the grid.
    """
    bar = Bar(f"interpreting {subject.title}")
    findings, stores = Findings(subject.title), _Watch(bar)
    roundings, sanitizers = Roundings(), _sanitizers() if sanitize else []
    guards = [SpinGuard()] if sanitize else []
    state = subject.prepare(CPU)
    results: list[Result] = []
    try:
        with bar, interpreter.interpreting(Several(stores, roundings, *guards, *sanitizers)):
            subject.launch(state, next((s.shadows for s in sanitizers if s.shadows), None))
        results = subject.judge(state, stores)
    except KeyboardInterrupt as interrupt:
        findings.partial = True
        findings.notes.append(f"{_interrupted(stores, interrupt)}: no result was compared")
    except Exception as error:
        place = interpreter.place_of(error) if stores.current else None
        if place is None and subject.outside_is_usage:
            raise
        lane, shape = interpreter.lane_of(error) or (None, ())
        stopped = place and _current(stores)
        place = place or outside(error)
        findings.failure = Failure(brief(error), stopped, place, lane, shape)
        if isinstance(error, WaitsForever):
            findings.failure.written = _last_written(error, stores)
    findings.subject = _heading(subject, stores)
    described = (_describe(result, stores, results) for result in results)
    findings.wrong = [wrong for wrong in described if wrong is not None]
    # The first one is replayed. A result of an earlier launch may be the cause of the others; one
    # that is just past its bound may be only rounding.
    findings.wrong.sort(key=lambda wrong: (wrong.launch, wrong.deviation.rank[0] < NEAR))
    if worse := next((r.less_accurate for r in results if r.less_accurate), None):
        findings.less_accurate["interpreted"] = worse
    findings.compared = bool(results)
    of_order: list[Hazard] = []
    if sanitize and not findings.failure and not findings.partial:
        ordered = [sanitizer for sanitizer in sanitizers if sanitizer.every_order]
        of_order = _other_orders(subject, findings, Outcome("forward", stores, results), ordered)
    for sanitizer in sanitizers:
        findings.notes += [_look_back(*witnesses) for witnesses in sanitizer.waits()]
    findings.hazards = [hazard for sanitizer in sanitizers for hazard in sanitizer.hazards()]
    findings.hazards.sort(key=lambda hazard: not _explains(hazard, findings.failure))
    findings.hazards += of_order
    values = next((s for s in sanitizers if isinstance(s, Values)), None)
    if values is not None:
        for wrong in findings.wrong:
            wrong.made = None if math.isfinite(wrong.value) else values.made(wrong.history.address)
    if not replay:
        return findings
    target = _target(findings, stores, program)
    if target is None and session is not None and stores.current and not findings.failure:
        target = 0, (0, 0, 0)
    if target is not None:
        replaying.replay(subject, findings, stores, target, guards, session, program is not None)
    if findings.wrong and not findings.failure and not findings.partial:
        before = sum(each.deviation.wrong for each in findings.wrong)
        findings.notes += with_exact_dots(subject, roundings, before)
        findings.notes += _with_zero_lanes(subject, findings, before)
    findings.notes += _notes(findings, stores, results, values)
    if stores.elsewhere and not bisection.impossible(subject):
        findings.compiled = "not run: it reaches memory by addresses that only the host knows"
    else:
        comparison.bring_in(subject, findings, results, bisect)
    if not findings and session is None:

        def again(later: Session) -> None:
            later.first = findings.failure is None
            investigate(subject, program, sanitize=False, session=later, bisect=False)

        failures.note(again)
    return findings


def _look_back(load: Witness, store: Witness) -> str:
    return (
        f"look-back: program {load.program} waits, by volatile loads of {load.element} "
        f"({place_text(load.place)}), for a program that stores there, as {store.program} does "
        f"({place_text(store.place)}); what else that one stored before is ordered by nothing"
    )


def with_exact_dots(subject: Subject, roundings: Roundings, before: int) -> list[str]:
    """Whether fewer than ``before`` elements are wrong if no tl.dot rounds its operands, found in
    another run; in words."""
    if not roundings.of:
        return []
    outcome = _outcome(subject, "with exact dots", _Exact(), before)
    if not outcome:
        return []
    (place, precision), *others = roundings.of.items()
    where = place_text(place) + (f", and {len(others)} more" if others else "")
    return [f"{outcome} with input_precision='ieee' instead of '{precision}' ({where})"]


def _outcome(subject: Subject, how: str, observer: Observer, before: int) -> str:
    """What becomes of so many wrong elements in another run; nothing if none becomes right."""
    state = subject.prepare(CPU)
    with Bar(f"interpreting {subject.title} {how}"), interpreter.interpreting(observer):
        subject.launch(state)
    wrong = sum(int((~result.comparison.right).sum()) for result in subject.judge(state, None))
    if wrong >= before:
        return ""
    return f"{wrong} of {before} elements stay wrong" if wrong else "right"


def _with_zero_lanes(subject: Subject, findings: Findings, before: int) -> list[str]:
    """Whether so many elements are wrong because lanes that a load masked off hold NaN: from a run
    in which they hold 0."""
    undefined = any(hazard.kind == "undefined value" for hazard in findings.hazards)
    if not undefined or os.environ.get("CROSSCHECK_MASKED_LOADS"):
        return []
    os.environ["CROSSCHECK_MASKED_LOADS"] = "zero"
    try:
        outcome = _outcome(subject, "with zeros", Observer(), before)
    finally:
        del os.environ["CROSSCHECK_MASKED_LOADS"]
    if not outcome:
        return []
    return [
        f"{outcome} with 0 in lanes masked off without other=, as NVIDIA's GPUs have it, by no "
        "promise of Triton's (CROSSCHECK_MASKED_LOADS=zero)"
    ]


def _explains(hazard: Hazard, failure: Failure | None) -> bool:
    """Whether a hazard occurred where the run failed; then it comes first."""
    return failure is not None and (failure.program, failure.place) in [
        (witness.program, witness.place) for witness in hazard.witnesses
    ]


def _current(stores: Stores) -> Program | None:
    return stores.current[1] if stores.current else None


def _last_written(error: WaitsForever, stores: Stores) -> list[str]:
    """The last write of another program to the element for which one waits, in words."""
    history = stores.history(error.address) if error.address is not None else None
    for store in (history.last, history.other) if history else ():
        if store is not None and store.program != _current(stores):
            who = f"{error.touched} was last written by program {store.program} ({store.verb})"
            return [who, f"  {place_text(store.place)}"]
    return []


def _interrupted(stores: Stores, interrupt: KeyboardInterrupt) -> str:
    if stores.current is None:
        return "interrupted before any program ran"
    place, program = interpreter.place_of(interrupt), _current(stores)
    return f"interrupted in program {program}" + (f" at {place}" if place else "")


def _other_orders(
    subject: Subject, findings: Findings, first: Outcome, sanitizers: list[Sanitizer]
) -> list[Hazard]:
    """Run the programs in other orders; a hazard per tensor whose result differs."""
    if all(math.prod(launch.grid) < 2 for launch in first.stores.launches):
        return []
    hazards: dict[program_orders.Key, Hazard] = {}
    for name, order in OTHERS.items():
        bar = Bar(f"interpreting {subject.title} in {name} order")
        stores = _Watch(bar, order)
        try:
            state = subject.prepare(CPU)
            with bar, interpreter.interpreting(Several(stores, SpinGuard(), *sanitizers)):
                subject.launch(state)
            results = subject.judge(state, stores)
        except KeyboardInterrupt as interrupt:
            findings.partial = True
            findings.notes.append(f"{_interrupted(stores, interrupt)}, in {name} order")
            break
        except WaitsForever as error:
            where = place_text(interpreter.place_of(error))
            findings.notes.append(
                f"in {name} order program {_current(stores)} waits forever for one that runs "
                f"later and changes {error.touched}: the kernel relies on the GPU starting "
                f"programs in forward order ({where})"
            )
            break
        except Exception as error:  # noqa: BLE001 - any error of the kernel is a finding
            hazards.setdefault(("", False), _stopped(error, name, stores))
            continue
        for key, hazard in program_orders.differences(first, Outcome(name, stores, results)):
            hazards.setdefault(key, hazard)
    return list(hazards.values())


def _stopped(error: Exception, order: str, stores: Stores) -> Hazard:
    place, program = interpreter.place_of(error), _current(stores)
    where = () if program is None else (Witness("the error was raised", program, place),)
    return Hazard("order", f"in {order} order it stops: {brief(error)}", where)


def _heading(subject: Subject, stores: Stores) -> str:
    """The title of what ran."""
    grids = [f"{launch.kernel}{list(launch.grid)}" for launch in stores.launches]
    if len(grids) == 1 and stores.launches[0].kernel == subject.title:
        return grids[0]
    return f"{subject.title} ({', '.join(grids) or 'nothing was launched'})"


def _describe(result: Result, stores: Stores, results: Sequence[Result]) -> WrongValues | None:
    """The wrong values of a result; None if all are right."""
    right = result.comparison.right
    if bool(right.all()):
        return None
    wrong = (~right).cpu().numpy()
    tensor, deviation = result.tensor, result.deviation()
    writers = stores.writers(tensor)
    numbers = np.unique(writers[wrong]) if writers is not None else np.array([-1])
    programs = list(dict.fromkeys(stores.stores[n].program for n in numbers if n >= 0))
    unwritten = int(wrong.sum() if writers is None else (writers[wrong] < 0).sum())
    others = [each.tensor for each in results if each is not result]
    source = derived.source(tensor, deviation.index, stores, others)
    stored, at = (source[0].tensor, source[1]) if source else (tensor, deviation.index)
    history = stores.history(address_of(stored, at))
    nearest = None
    if history.last is None and history.masked is None:
        nearest = _nearest(stored, at, stores.writers(stored), stores)
    given = _given(stores, history.address)
    launch = history.last.launch if history.last else (given[0] if given else 0)
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
        stored[at].item(),
        nearest=nearest,
        source=f"{source[0].name}{list(at)}" if source else "",
        launch=launch,
        drawn=_drawn(result, wrong, deviation.index, writers, stores.launches),
    )


def _drawn(
    result: Result,
    wrong: np.ndarray,
    worst: tuple[int, ...],
    writers: np.ndarray | None,
    launches: Sequence[Launch],
) -> Output:
    """The content of a wrong result's picture."""
    never = np.ones(wrong.shape, dtype=bool) if writers is None else writers < 0
    drawn = error_map(result.tensor, result.reference, wrong, worst, never)
    start = result.tensor.data_ptr()
    arguments = (argument for launch in launches for argument in launch.arguments)
    within = {a.name: start - a.low for a in arguments if a.low <= start < a.high}
    return Output(drawn, wrong, placed(result.name, result.tensor), within)


def _nearest(
    tensor: Tensor, index: tuple[int, ...], writers: np.ndarray | None, stores: Stores
) -> tuple[tuple[int, ...], Store] | None:
    """The stored element with the nearest coordinates, and the last store to it. Row-major order
    would prefer the next row's first element to the same row's last stored one."""
    if writers is None or not (writers >= 0).any():
        return None
    apart = np.zeros(writers.shape, dtype=np.int64)
    for i, (size, at) in enumerate(zip(writers.shape, index, strict=True)):
        along = np.abs(np.arange(size) - at)
        apart += along.reshape(-1, *[1] * (writers.ndim - 1 - i))
    nearest = np.where(writers >= 0, apart, np.iinfo(np.int64).max).argmin()
    where = tuple(int(i) for i in np.unravel_index(nearest, writers.shape))
    return where, stores.stores[int(writers[where])]


def _target(findings: Findings, stores: Stores, program: Sequence[int] | None) -> Target | None:
    """The program to run again."""
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
        nearest = findings.wrong[0].nearest
        store = history.last or history.masked or (nearest[1] if nearest else None)
        address = findings.wrong[0].history.address
        return (store.launch, store.program) if store else _given(stores, address)
    if findings.compared or findings.partial or stores.current is None:
        return None
    return 0, (0, 0, 0)


def _given(stores: Stores, address: int) -> Target | None:
    """The last program of the last launch with a tensor that contains an address."""
    for number, launch in reversed(list(enumerate(stores.launches))):
        if any(argument.low <= address < argument.high for argument in launch.arguments):
            x, y, z = (n - 1 for n in launch.grid)
            return (number, (x, y, z)) if min(x, y, z) >= 0 else stores.current
    return stores.current


def _notes(
    findings: Findings, stores: Stores, results: list[Result], values: Values | None
) -> list[str]:
    """Further remarks from the stores."""
    notes = []
    if not stores.stored() and not findings.failure and not findings.partial:
        elsewhere = any(store.on for store in stores.stores)
        notes.append(
            "all stores went to memory that arguments lead to by addresses: memory= names it"
            if elsewhere
            else "no program stored anything"
        )
    wrong = {w.output for w in findings.wrong}
    for result in results:
        if result.name not in wrong and not result.less_accurate:
            notes.append(f"{result.name}: all {result.tensor.numel()} elements are right")
    if not findings.compared and not findings.failure and not findings.partial:
        notes.append("no oracle: no result was compared")
        for argument in stores.stored():
            name, tensor = argument.name, argument.tensor
            writers = stores.writers(tensor)
            never = 0 if writers is None else int((writers < 0).sum())
            notes += [f"{name}: {never} of {tensor.numel()} elements never stored"] if never else []
            notes += _nans(name, tensor, values)
    return notes


def _nans(name: str, tensor: Tensor, values: Values | None) -> list[str]:
    """The number of NaNs, and the operation that made the first one not in the inputs."""
    if not tensor.dtype.is_floating_point or not bool((nan := tensor.isnan()).any()):
        return []
    text = f"{name}: {int(nan.sum())} of {tensor.numel()} elements are NaN"
    for index in nan.nonzero().tolist() if values else []:
        made = values and values.made(address_of(tensor, tuple(index)))
        if made:
            which = f"{name}[{', '.join(map(str, index))}]"
            return [f"{text}; {which} was {made.what} in program {made.program}, {made.place}"]
    return [text]
