"""Runs one program again, traced and followed, or in a debugger."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence

import numpy as np

from compare.cases import CPU
from compare.checking import running
from compare.checking.progress import Bar
from compare.checking.stores import Stores
from compare.debugging.findings import regions
from compare.debugging.findings.failure import Failure
from compare.debugging.findings.findings import Findings, WrongValues
from compare.debugging.findings.steps import Earlier, Loaded, Step
from compare.debugging.observers import slicing
from compare.debugging.observers.deadlock import SpinGuard
from compare.debugging.observers.lane_history import Assignments
from compare.debugging.observers.slicing import Slice
from compare.debugging.observers.tracing import Tracer
from compare.debugging.stepping.sessions import Quit, Session
from compare.debugging.subjects import Subject
from triton_kernels import interpreter
from triton_kernels.interpreter import Argument, Dataflow, Program, Several

Target = tuple[int, Program]  # number of the launch, program
Element = tuple[str, int]  # an argument of a launch, and bytes from its start
EARLIER = 3  # reported launches before that of the wrong value
LOADED = 1 << 12  # elements of each load whose earlier stores are searched
STORED = 64  # of those stored by one program, how many are followed


def replay(
    subject: Subject,
    findings: Findings,
    stores: Stores,
    target: Target,
    guards: Sequence[SpinGuard],
    session: Session | None,
    chosen: bool,
) -> None:
    """Run the program alone, from the start of its launch, and record its accesses. If it fails in
    another way, and was not ``chosen`` by the caller, run it again after those before it."""
    worst = findings.wrong[0] if findings.wrong else None
    if session is not None:
        tracer = Tracer(*target)
        with _ending(findings, tracer), session.stepping(tracer, *target, findings.reason()):
            subject.launch(subject.prepare(CPU))
        findings.trace = tracer.trace
        if not session.reached:
            findings.notes.append(f"program {target[1]} got to none of the breakpoints")
        return
    tracer, steps, loaded = _traced(subject, findings, stores, target, guards, True)
    findings.trace = tracer.trace
    if worst is not None:
        worst.alone = tracer.stored_there
        last = worst.history.last
        plain = last is not None and last.verb == "store" and (last.launch, last.program) == target
        worst.idle_alone = plain and worst.alone is None
    apart = worst is not None and (
        worst.idle_alone or (worst.alone is not None and not _same(worst.alone, worst.value))
    )
    if worst is not None and tracer.trace and tracer.trace.ended:
        apart = True  # it waits for others, or fails without their stores
    if findings.failure is not None and tracer.trace and tracer.trace.ended != AS_REPORTED:
        apart = True
        if not tracer.trace.ended:
            findings.notes.append("alone the program does not fail: it needs what others write")
    if apart and not chosen and not findings.partial:
        tracer, steps, loaded = _traced(subject, findings, stores, target, guards, False)
        findings.trace = tracer.trace
    for told in (findings.failure, worst):
        if told is not None:
            told.lane_history, told.loaded = steps, loaded
            told.earlier = _earlier(subject, findings, stores, target[0], loaded)
    if findings.failure is not None and tracer.trace and tracer.trace.ended == AS_REPORTED:
        findings.failure.access = tracer.failing(findings.failure)


AS_REPORTED = "by the error above"


def _same(x: float, y: float) -> bool:
    return repr(x) == repr(y)


def _traced(
    subject: Subject,
    findings: Findings,
    stores: Stores,
    target: Target,
    guards: Sequence[SpinGuard],
    alone: bool,
) -> tuple[Tracer, list[Step], Loaded]:
    """One run of the program, and the origin of the worst element in it."""
    watched = _offset(stores, findings.wrong[0], target[0]) if findings.wrong else None
    followed = watched is not None or (findings.failure and findings.failure.program is not None)
    assignments = Assignments(Dataflow()) if followed else None
    flow = assignments.flow if assignments else None
    tracer = Tracer(*target, watched, alone, flow)
    _run(subject, findings, tracer, assignments, guards)  # alone, it may wait for the others
    followed_back = assignments and _slice(tracer, assignments, findings.failure)
    if not followed_back:
        return tracer, [], {}
    return tracer, followed_back.steps(), followed_back.loaded()


def _run(
    subject: Subject,
    findings: Findings,
    tracer: Tracer,
    assignments: Assignments | None,
    guards: Sequence[SpinGuard],
) -> None:
    with (
        _ending(findings, tracer),
        Bar(f"tracing program {tracer.target[1]}"),
        interpreter.interpreting(Several(tracer, *guards)),
        assignments or contextlib.nullcontext(),
    ):
        subject.launch(subject.prepare(CPU))


def _earlier(
    subject: Subject, findings: Findings, stores: Stores, launch: int, loaded: Loaded
) -> list[Earlier]:
    """How programs of earlier launches made the elements that a program loaded."""
    told: list[Earlier] = []
    waiting = _stored_before(stores, launch, loaded)
    while waiting and len(told) < EARLIER and not findings.partial:
        launch = max(number for number, _ in waiting)
        programs = {program: at for (number, program), at in waiting.items() if number == launch}
        program = max(reversed(programs), key=lambda each: len(programs[each]))
        assignments = Assignments(Dataflow())
        tracer = Tracer(launch, program, alone=False, flow=assignments.flow)
        _run(subject, findings, tracer, assignments, [SpinGuard()])
        arguments = {argument.name: argument for argument in tracer.arguments}
        stored = list(programs[program])
        starts = [
            slicing.of_element(assignments.flow, arguments[name], arguments[name].low + offset)
            for name, offset in stored[:: -(-len(stored) // STORED)]
            if name in arguments
        ]
        made = Slice(assignments, tracer.arguments, starts)
        kept = stores.launches[launch]
        told.append(
            Earlier(
                kept.kernel,
                kept.grid,
                _words(kept.arguments, stored),
                program,
                len(programs),
                made.steps(),
            )
        )
        waiting = {key: elements for key, elements in waiting.items() if key[0] < launch}
        for key, elements in _stored_before(stores, launch, made.loaded()).items():
            waiting.setdefault(key, {}).update(elements)
    return told


def _stored_before(
    stores: Stores, launch: int, loaded: Loaded
) -> dict[Target, dict[Element, None]]:
    """The programs of earlier launches that stored elements which a launch loaded, with these
    elements. Those that the launch or a later one overwrote are left out: their value is gone."""
    programs: dict[Target, dict[Element, None]] = {}
    arguments = {argument.name: argument for argument in stores.launches[launch].arguments}
    for (_, name), elements in loaded.items():
        for element in elements[:LOADED].tolist():
            address = arguments[name].low + element * arguments[name].itemsize
            last = stores.history(address).last
            if last is None or last.launch >= launch:
                continue
            for argument in stores.launches[last.launch].arguments:
                if argument.name == last.argument:
                    at = programs.setdefault((last.launch, last.program), {})
                    at[argument.name, address - argument.low] = None
    return programs


def _words(arguments: Sequence[Argument], elements: Sequence[Element]) -> str:
    """Elements in words: Mid_O[1, 2, 0:3, 15]."""
    offsets: dict[str, list[int]] = {}
    for name, offset in elements:
        offsets.setdefault(name, []).append(offset)
    told = []
    for argument in arguments:
        if argument.name in offsets:
            at = np.array([argument.low + offset for offset in offsets[argument.name]], np.uint64)
            region = regions.touched(argument, at, np.ones(at.shape, dtype=bool))
            told.append(region.of(argument.name))
    return ", ".join(told)


@contextlib.contextmanager
def _ending(findings: Findings, tracer: Tracer) -> Iterator[None]:
    """Record in the trace why a program ends early."""
    try:
        yield
    except KeyboardInterrupt:
        findings.partial = True
        tracer.end("by Ctrl-C, this is the trace so far")
    except Quit:
        tracer.end("by q in the debugger")
    except Exception as error:  # noqa: BLE001 - the kernel's error, which has been reported
        text = brief(error)
        known = findings.failure is not None and findings.failure.error == text
        tracer.end(AS_REPORTED if known else text.splitlines()[0])


def _slice(tracer: Tracer, assignments: Assignments, failure: Failure | None) -> Slice | None:
    """The slice of the worst element, or of the failing lane."""
    flow, watched = assignments.flow, tracer.watched_at
    if failure is not None:
        if failure.lane is None:
            start = slicing.of_error(assignments.raised)
        else:
            start = slicing.of_failure(flow, failure.lane, failure.shape)
    elif watched is not None:
        start = slicing.of_element(flow, *watched, tracer.arguments)
    else:
        return None
    return Slice(assignments, tracer.arguments, [start])


def _offset(stores: Stores, worst: WrongValues, launch: int) -> Element | None:
    """The worst element as an argument of the launch that stored it, and the bytes from its start,
    because addresses differ in another run."""
    history = worst.history
    store = history.last or history.masked or (worst.nearest[1] if worst.nearest else None)
    name = store.argument if store else worst.output
    arguments = stores.launches[launch].arguments if stores.launches else ()
    for argument in sorted(arguments, key=lambda each: each.name != name):
        if argument.name == name or argument.low <= history.address < argument.high:
            return argument.name, history.address - argument.low
    return None


def brief(error: Exception) -> str:
    """An error's text without the program and line, which are printed beside it."""
    text = running.brief(error)
    place = interpreter.place_of(error)
    return re.sub(rf",? (in )?program \([\d, ]+\), {re.escape(str(place))}", "", text)
