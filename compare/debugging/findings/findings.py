"""The findings of debug, and their text."""

from __future__ import annotations

import json
import math
import textwrap
from dataclasses import asdict, dataclass, field
from typing import Any

from compare import numerics
from compare.checking.eager_rule import LessAccurate
from compare.checking.judging import Deviation
from compare.checking.stores import History, Store
from compare.debugging.compiled.bisection import Bisection
from compare.debugging.drawing import page
from compare.debugging.drawing.errors import Output
from compare.debugging.findings import steps
from compare.debugging.findings.failure import Failure, place_dict, place_text
from compare.debugging.findings.hazards import Hazard, Witness
from compare.debugging.findings.regions import Pattern
from compare.debugging.findings.steps import Earlier, Loaded, Step
from compare.debugging.findings.traces import WIDTH, Trace, cut
from compare.debugging.shrink.shrunk import Reproduction, Shrunk
from triton_kernels.interpreter import Place, Program

LINES = 40  # of printed findings: one screen
MOST_STEPS, LEAST_STEPS = 20, 8  # lines about the origin of the worst element
MOST_EARLIER = 20  # lines about the same in each earlier launch
SHOWN = 2  # outputs with wrong values that are described


def beside_the_bound(worse: LessAccurate) -> str:
    """A line about a result that breaks only the eager rule."""
    return (
        f"every element keeps its bound, but the root mean square error, {worse.error:.3g}, is "
        f"more than twice eager's, {worse.eager:.3g}"
    )


@dataclass
class WrongValues:
    """An output that differs from the oracle's.

    Attributes:
        output: the name of the parameter that was stored to.
        deviation: the number of wrong elements, and the worst one.
        pattern: the arrangement of the wrong elements.
        all_nan: whether all of them are NaN.
        unwritten: how many of them no program stored.
        programs: the programs that stored the others.
        grid: of the launch.
        source: if torch made the result, the stored element from which the worst one most likely
            came; else empty.
        history: the stores to the worst element, or to the source.
        value: its value.
        made: the operation that made it NaN or infinite; None if it is neither, or was so before.
        nearest: if no program addressed the element, the nearest stored one: its index and the
            store; None if there is none.
        alone: the value that the writer stores when it runs alone; None if it stores none, or if
            the store was an atomic operation.
        idle_alone: whether it stores none, although it did beside the others.
        lane_history, loaded: the steps that made the worst element, and the elements they loaded.
        earlier: how earlier launches made these elements, the latest launch first.
        drawn: the content of its picture.
        launch: the number of the launch that stored the worst element or got its memory.
    """

    output: str
    dtype: str
    shape: tuple[int, ...]
    deviation: Deviation
    pattern: Pattern
    all_nan: bool
    unwritten: int
    programs: list[Program]
    grid: tuple[int, ...]
    history: History
    value: float
    made: Witness | None = None
    nearest: tuple[tuple[int, ...], Store] | None = None
    alone: float | None = None
    idle_alone: bool = False
    lane_history: list[Step] = field(default_factory=list)
    loaded: Loaded = field(default_factory=dict)
    earlier: list[Earlier] = field(default_factory=list)
    drawn: Output | None = None
    source: str = ""
    launch: int = 0

    def lines(self) -> list[str]:
        """The text about the output."""
        d, h = self.deviation, self.history
        index = ", ".join(map(str, d.index))
        nan = "; all NaN" if self.all_nan else ""
        by = f"|error| {d.error:.3g} against a bound of {d.bound:.3g}"
        if d.error == d.ulps:  # the tolerance was in ULPs
            by = f"{d.bound:.3g} allowed"
        lines = [
            f"{self.output} {self.dtype} {self.shape}: {d.wrong} of {d.total} elements wrong: "
            f"{self.pattern.text}{nan}",
            f"  worst {self.output}[{index}]: got {d.got}, expected {d.expected}",
            f"  {d.ulps:.3g} ulp, {by}",
        ]
        lines += _witness(self.made, "in") if self.made else []
        total = math.prod(self.grid)
        if self.programs:
            shown = ", ".join(map(str, self.programs[:3]))
            more = ", …" if len(self.programs) > 3 else ""
            lines.append(
                f"  wrong ones stored by {len(self.programs)} of {total} programs: {shown}{more}"
            )
        if self.source:
            lines.append(f"  no kernel stores to it: torch made it, maybe of {self.source}")
            if h.last is None:
                lines[-1] += f", to which none of {total} programs stored"
        elif self.unwritten:
            lines.append(f"  never stored by any of {total} programs: {self.unwritten} of them")
        if h.last is not None:
            verb = "stored" if h.last.verb == "store" else f"last changed ({h.last.verb})"
            lines.append(f"  {verb} by {_store(h.last, h.lane)}: {_mask(h.last, True)}")
            lines.append(f"    {place_text(h.last.place)}")
            if self.alone is not None and repr(self.alone) != repr(self.value):
                lines.append(f"    alone it gives {self.alone!r}: it needs what others write")
            elif self.idle_alone:
                lines.append("    alone it stores nothing there: it needs what others write")
        elif h.masked is not None:
            where = _store(h.masked, h.masked_lane)
            lines.append(f"  addressed by {where}: {_mask(h.masked, False)}")
            lines.append(f"    {place_text(h.masked.place)}")
        elif self.nearest is not None:
            index = ", ".join(map(str, self.nearest[0]))
            lines.append(
                f"  the nearest that is stored: {self.output}[{index}], by program "
                f"{self.nearest[1].program}"
            )
            lines.append(f"    {place_text(self.nearest[1].place)}")
        if h.other is not None:
            words = ", which had stored another value" if h.clash else ""
            lines.append(f"  before that by program {h.other.program}{words}")
            lines.append(f"    {place_text(h.other.place)}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """The entry of the JSON file."""
        h = self.history
        return {
            "output": self.output,
            "dtype": self.dtype,
            "shape": self.shape,
            "deviation": asdict(self.deviation),
            "pattern": self.pattern._asdict(),
            "all_nan": self.all_nan,
            "never_stored": self.unwritten,
            "made_by_torch_of": self.source,
            "programs": self.programs,
            "grid": self.grid,
            "worst": {
                "stored_by": _store_dict(h.last, h.lane),
                "before_that_by": _store_dict(h.other, None),
                "with_another_value": h.clash,
                "masked_off_in": _store_dict(h.masked, h.masked_lane),
                "nearest_stored_by": _store_dict(self.nearest and self.nearest[1], None),
            },
            "value": self.value,
            "made": self.made and self.made.to_dict(),
            "value_stored_alone": self.alone,
            "stores_nothing_alone": self.idle_alone,
            "lane_history": [step.to_dict() for step in self.lane_history],
            "earlier": [each.to_dict() for each in self.earlier],
        }


def _store(store: Store, lane: tuple[int, ...]) -> str:
    where = f" in lane {list(lane)} of {list(store.shape)}" if store.lanes > 1 else ""
    return f"program {store.program}{where}"


def _mask(store: Store, on: bool) -> str:
    """The state of the mask, for all lanes and for the element's lane."""
    if store.lanes == 1:
        return f"its one lane {'on' if on else 'masked off'}"
    this = "this one, too" if on else "not this one"
    return (
        f"{'all' if store.on == store.lanes else f'{store.on} of'} {store.lanes} lanes on, {this}"
    )


def _store_dict(store: Store | None, lane: tuple[int, ...] | None) -> dict[str, Any] | None:
    if store is None:
        return None
    entry = {**store._asdict(), **place_dict(store.place)}
    del entry["place"]
    return entry if lane is None else {**entry, "lane": lane}


@dataclass
class Findings:
    """The result of :func:`compare.debug`: true if nothing is wrong; printable; with
    :meth:`to_json` and :meth:`to_html`.

    Attributes:
        subject: the kernel, or the case of an op.
        wrong: the outputs that differ from the oracle's.
        failure: the error that ended the interpreted run.
        less_accurate: "interpreted" or "compiled" → its errors and eager's, if every element is
            within its bound but the result breaks the eager rule.
        hazards: the reports of the sanitizers; the result may be right nevertheless.
        compiled: the results of the compiled kernel, in words; empty without a GPU.
        compiled_right: whether they are right; None if it did not run.
        bisection: of the case compiled in several ways, or None.
        notes: further remarks.
        compared: whether results were compared with an oracle's.
        partial: whether Ctrl-C ended the run or the replay early.
        trace: of the program that ran again; None if none did.
        shrunk: how the given case was shrunk to this one; None if it was not.
        reproduction: a file that fails like this case.
    """

    subject: str
    wrong: list[WrongValues] = field(default_factory=list)
    failure: Failure | None = None
    less_accurate: dict[str, LessAccurate] = field(default_factory=dict)
    hazards: list[Hazard] = field(default_factory=list)
    compiled: str = ""
    compiled_right: bool | None = None
    bisection: Bisection | None = None
    notes: list[str] = field(default_factory=list)
    compared: bool = True
    partial: bool = False
    trace: Trace | None = None
    shrunk: Shrunk | None = None
    reproduction: Reproduction | None = None

    def __bool__(self) -> bool:
        return not (self._wrong or self.less_accurate or self.hazards or self.partial)

    @property
    def _wrong(self) -> bool:
        compiled = self.compiled_right is False and "compiled" not in self.less_accurate
        return bool(self.wrong or self.failure or compiled)

    @property
    def verdict(self) -> str:
        """The verdict in one or two words."""
        if self._wrong:
            return "WRONG"
        if self.less_accurate:
            return "LESS ACCURATE"
        if self.partial:
            return "interrupted"
        if self.hazards:
            return "RIGHT BY LUCK" if self.compared else "HAZARDS"
        return "nothing wrong found" if self.compared else "ran to its end"

    def reason(self) -> list[str]:
        """What is wrong, in a few lines, for a debugger's start."""
        lines = self.failure.lines() if self.failure else []
        for wrong in self.wrong[:1]:
            text = wrong.lines()
            lines = [*text[:2], *text[-2:]]
        return [part for line in lines for part in _wrapped(line)]

    def __str__(self) -> str:
        lines = [f"{self.subject}: {self.verdict}"]
        if self.failure is not None:
            lines += self.failure.lines()
        for wrong in self.wrong[:SHOWN]:
            lines += wrong.lines()
        if len(self.wrong) > SHOWN:
            names = ", ".join(wrong.output for wrong in self.wrong[SHOWN:])
            lines.append(f"wrong, too: {names}")
        if "interpreted" in self.less_accurate:
            lines.append(beside_the_bound(self.less_accurate["interpreted"]))
        for told in self.hazard_lines()[:SHOWN]:
            lines += told
        if len(self.hazards) > SHOWN:
            left = len(self.hazards) - SHOWN
            lines.append(f"and {left} more hazard{'s' if left > 1 else ''}, in the JSON file")
        lines += [f"compiled: {self.compiled}"] if self.compiled else []
        lines += self.bisection.lines() if self.bisection else []
        lines += [f"note: {note}" for note in self.notes]
        lines = [part for line in lines for part in _wrapped(line)]
        if self.shrunk is not None:
            told = [part for line in self.shrunk.lines() for part in _wrapped(line)]
            replay = [f"  {self.shrunk.replay}"] if self.shrunk.replay else []  # not wrapped
            lines = told + replay + lines
        after = ["", *self.reproduction.lines()] if self.reproduction else []
        head, history, place = self.lane_history()
        room = LINES - len(lines) - len(after)
        branches = steps.constant_branches(history, place)
        printed: set[Place | None] = set()
        if self.trace is not None:
            wanted = len(steps.in_lines(history, place, printed, MOST_STEPS)) + 2 if history else 0
            wanted += bool(branches)
            shown, printed = self.trace.condensed(most=max(8, room - 1 - wanted))
            room -= len(shown.splitlines()) + 1
            lines += ["", *shown.splitlines()]
        if history:
            most = max(LEAST_STEPS, room - 2 - bool(branches))
            told = steps.in_lines(history, place, printed, most) + ([branches] if branches else [])
            lines += ["", head, *(f"  {cut(line, WIDTH - 2)}" for line in told)]
        for each in self.earlier():
            told = steps.in_lines(each.steps, place, set(), MOST_EARLIER)
            lines += ["", *_wrapped(each.heading), *(f"  {cut(line, WIDTH - 2)}" for line in told)]
        return "\n".join(lines + after)

    def lane_history(self) -> tuple[str, list[Step], Place | None]:
        """The origin of the worst element or of the failing lane: a heading, the steps, and the
        place whose file need not be repeated."""
        failure, worst = self.failure, self.wrong[0] if self.wrong else None
        if failure is not None:
            head = "what led there"
            head += f", in lane {list(failure.lane or ())}" if math.prod(failure.shape) > 1 else ""
            return head, failure.lane_history, failure.place
        if worst is None:
            return "", [], None
        history = worst.history
        store, lane = (
            history.last or history.masked,
            history.lane if history.last else history.masked_lane,
        )
        head = f"on the way to {worst.output}[{', '.join(map(str, worst.deviation.index))}]"
        head += f", lane {list(lane)}" if store and store.lanes > 1 else ""
        store = store or (worst.nearest and worst.nearest[1])
        return head, worst.lane_history, store and store.place

    def earlier(self) -> list[Earlier]:
        """The earlier launches that contributed to it, the latest first."""
        told = self.failure or (self.wrong[0] if self.wrong else None)
        return told.earlier if told else []

    def to_dict(self, tiles: bool = False) -> dict[str, Any]:
        """The whole findings; with ``tiles`` including the values of the trace's tiles."""
        return {
            "passed": bool(self),
            "subject": self.subject,
            "verdict": self.verdict,
            "compared": self.compared,
            "partial": self.partial,
            "failure": self.failure and self.failure.to_dict(),
            "wrong": [wrong.to_dict() for wrong in self.wrong],
            "less_accurate": {k: worse._asdict() for k, worse in self.less_accurate.items()},
            "hazards": [hazard.to_dict() for hazard in self.hazards],
            "compiled": self.compiled,
            "compiled_right": self.compiled_right,
            "bisection": self.bisection and self.bisection.to_dict(),
            "notes": self.notes,
            "shrunk": self.shrunk and asdict(self.shrunk),
            "reproduction": self.reproduction and self.reproduction.to_dict(),
            "trace": self.trace and self.trace.to_dict(tiles),
        }

    def hazard_lines(self) -> list[list[str]]:
        """The text of each hazard."""
        return [_hazard(hazard) for hazard in self.hazards]

    def to_html(self) -> str:
        """One HTML file with pictures, which needs no network.

        Raises:
            RuntimeError: Jinja2 is missing; the extra `report` installs it.
        """
        return page.html(self)

    def to_json(self, tiles: bool = False) -> str:
        """The value of to_dict as JSON text."""
        return json.dumps(numerics.json_safe(self.to_dict(tiles)), indent=1)


def _hazard(hazard: Hazard) -> list[str]:
    lines = [f"{hazard.kind}: {hazard.text}"]
    for witness in hazard.witnesses:
        lines += _witness(witness)
    return lines


def _witness(witness: Witness, by: str = "by") -> list[str]:
    lane = f" in lane {list(witness.lane)}" if witness.lane else ""
    named = f"{witness.element or witness.tensor} ".lstrip()
    return [
        f"  {named}{witness.what} {by} program {witness.program}{lane}",
        f"    {place_text(witness.place)}",
    ]


def _wrapped(line: str) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent + "    ") or [""]
