"""The origin of a wrong value: a dynamic backward slice from one lane of one program.

It follows values through operations and through the program's own stores, including pointers and
masks. Each line leads to the loops and branches around it, the Python numbers that these read, and
the calls of its function.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from compare.checking.stores import holds
from compare.debugging.findings.statements import Statement, deciding, statement, storing
from compare.debugging.findings.steps import Loaded, Step
from compare.debugging.observers.lane_history import Assignment, Assignments
from triton_kernels.interpreter import Argument, Dataflow, Place, Touch, Value

DECISIONS = 64  # the last decisions of a branch or loop that are followed
Sources = Iterable[tuple[Value, np.ndarray]]
Key = tuple[str, int]  # a file, and a statement's first line


class Slice:
    """The origin of some lanes of some values."""

    def __init__(
        self, assignments: Assignments, arguments: tuple[Argument, ...], starts: Iterable[Start]
    ) -> None:
        self._assignments, self._arguments = assignments, arguments
        self._reached: dict[int, tuple[Value, np.ndarray]] = {}
        self._statements: dict[Key, tuple[Place, Statement]] = {}
        self._constant: dict[Key, Place] = {}  # branches decided at compilation
        self._heap: list[int] = []
        self._waiting: dict[int, tuple[Value, list[np.ndarray]]] = {}
        self._plain: dict[tuple[str, str, str], dict[Place, None]] = defaultdict(dict)
        for each in assignments.noted:
            if each.value is None:
                self._plain[each.place.file, each.place.function, each.name][each.place] = None
        self._decided: dict[Key, list[Value]] = defaultdict(list)
        for decision in assignments.flow.decisions:
            if (key := _key(decision.place)) is not None:
                self._decided[key].append(decision.value)
        for start in starts:
            self.meet(start.place)
            self._push(start.sources)
        self._run()

    # ---- what was met ----

    def _push(self, sources: Sources) -> None:
        for value, lanes in sources:
            if value.number not in self._waiting:
                self._waiting[value.number] = value, []
                heapq.heappush(self._heap, -value.number)
            self._waiting[value.number][1].append(lanes)

    def _run(self) -> None:
        while self._heap:
            value, parts = self._waiting.pop(-heapq.heappop(self._heap))
            lanes = np.unique(np.concatenate(parts))
            if value.number in self._reached:
                known = self._reached[value.number][1]
                lanes = np.setdiff1d(lanes, known, assume_unique=True)
                if not lanes.size:
                    continue
                self._reached[value.number] = value, np.union1d(known, lanes)
            else:
                self._reached[value.number] = value, lanes
            self.meet(value.place)
            self._push(value.sources(lanes))

    def meet(self, place: Place | None) -> None:
        """Add a line, with the decisions by which it ran and the numbers that it read."""
        executed = statement(place)
        if place is None or executed is None or (place.file, executed.first) in self._statements:
            return
        self._statements[place.file, executed.first] = place, executed
        for name in executed.reads:
            for assigned in self._plain.get((place.file, place.function, name), ()):
                self.meet(assigned)
        heads = set(executed.heads).union(
            *(deciding(place.file, executed, n) for n in executed.reads)
        )
        for line in sorted(heads - {executed.first}):
            head = Place(place.file, line, place.function)
            values = self._decided.get((place.file, line), [])
            around = statement(head)
            if values or (around is not None and self._computed(head, around)):
                self.meet(head)
                self._push((value, np.zeros(1, dtype=np.int64)) for value in values[-DECISIONS:])
            elif around is not None:
                self._constant[place.file, around.first] = head
        for call in self._assignments.called.get((place.file, place.function), ()):
            self.meet(call)

    def _computed(self, head: Place, found: Statement) -> bool:
        """Whether a branch or loop depends on more than constants of the compilation."""
        names = ((head.file, head.function, name) for name in found.reads)
        return found.kind == "for" or any(name in self._plain for name in names)

    # ---- in words ----

    def steps(self) -> list[Step]:
        """Every line of the slice, in the order of their first execution."""
        for each in self._assignments.noted:
            if each.value is not None and each.value.number in self._reached:
                self.meet(each.place)
        self._run()
        steps: dict[tuple[Key, str], Step] = {}
        for each in self._assignments.noted:
            key = _key(each.place)
            if key not in self._statements or (text := self._text(each)) is None:
                continue
            known = steps.setdefault((key, each.name), Step(each.place, each.name, text, text, 0))
            known.last, known.count = text, known.count + 1
        ordered, others = list(steps.values()), []
        for key, values in self._decided.items():
            kind = self._statements[key][1].kind if key in self._statements else ""
            if kind in ("if", "while"):
                texts = [self._value(value, np.zeros(1, dtype=np.int64)) for value in values]
                place = self._statements[key][0]
                steps[key, kind] = Step(place, kind, texts[0], texts[-1], len(texts))
                others.append(steps[key, kind])
        bare = self._statements.keys() - {key for key, _ in steps}
        others += [Step(self._statements[key][0], "") for key in bare]
        constant = self._constant.keys() - self._statements.keys()
        others += [Step(self._constant[key], "", constant=True) for key in constant]
        for step in sorted(others, key=lambda step: step.place.line):
            ordered.insert(_after(ordered, step.place), step)
        return ordered

    def loaded(self) -> Loaded:
        """The loaded elements of the slice: line and argument → offsets in memory."""
        offsets: dict[tuple[Place | None, str], list[np.ndarray]] = defaultdict(list)
        for value, lanes in self._reached.values():
            touch = value.access
            if touch is None or touch.pointers.shape != value.shape:
                continue
            at = touch.pointers.reshape(-1)[lanes][touch.mask.reshape(-1)[lanes]]
            holder = next((a for a in self._arguments if at.size and holds(a, at)), None)
            if holder is not None:
                offsets[touch.place, holder.name].append(holder.elements(at))
        return {key: np.unique(np.concatenate(parts)) for key, parts in offsets.items()}

    def _text(self, each: Assignment) -> str | None:
        """The assigned value in words; None if it is not in the slice."""
        if each.value is None:
            return f"{each.plain:.6g}" if isinstance(each.plain, float) else str(each.plain)
        if each.value.number not in self._reached:
            return None
        return self._value(*self._reached[each.value.number])

    def _value(self, value: Value, lanes: np.ndarray) -> str:
        numbers = value.numbers(lanes)
        if numbers is None:
            return "…"
        many = f" ({lanes.size} lanes)" if lanes.size > 1 else ""
        if value.width:
            holder = next((a for a in self._arguments if holds(a, numbers)), None)
            if holder is None:
                return "elsewhere"
            numbers = holder.elements(numbers)
            return f"{holder.name} + {_span(numbers)}{many}"
        return _span(numbers) + many


def _span(numbers: np.ndarray) -> str:
    real = numbers[numbers == numbers]  # NaN differs from itself
    if not real.size:
        return "nan"
    low, high = (_number(n) for n in (real.min(), real.max()))
    text = low if low == high else f"{low}…{high}"
    return text if real.size == numbers.size else f"{text}, nan"


def _number(number: Any) -> str:
    value = number.item()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _key(place: Place | None) -> Key | None:
    executed = statement(place)
    return None if place is None or executed is None else (place.file, executed.first)


def _after(steps: list[Step], place: Place) -> int:
    """The position of a line among the lines that ran before and after it."""
    earlier = [
        number
        for number, step in enumerate(steps, 1)
        if step.place[::2] == place[::2] and step.place.line <= place.line
    ]
    return earlier[-1] if earlier else 0


# ---- where a slice begins ----


class Start(NamedTuple):
    """Values with lanes, and the line that used them."""

    sources: list[tuple[Value, np.ndarray]]
    place: Place | None


def of_element(
    flow: Dataflow, argument: Argument, address: int, arguments: Iterable[Argument] = ()
) -> Start:
    """The start for an address: the last store to it, with the later decisions against another one;
    else the last store whose masked lane points at it; else the nearest store to its tensor,
    preferably of an unmasked lane; else the decisions by which the program stores nothing there."""
    stores = list(reversed(flow.stores))
    for touch in stores:
        if (lanes := touch.holding(address)).size:
            others = {each.name for each in arguments} - {argument.name}
            skipped = _skipped(flow, touch, others)
            sources = [*touch.stored(lanes), *touch.addressed(lanes), *skipped]
            return Start(sources, touch.place)
    for touch in stores:
        if (lanes := touch.holding(address, on=False)).size:
            return Start(touch.addressed(lanes), touch.place)
    start = _nearest(stores, address, lambda at: holds(argument, at))
    if start is None:  # masked lanes may point anywhere
        start = _nearest(stores, address, lambda at: True, on=False)
    if start is None:
        decided = flow.decisions[-DECISIONS:]
        start = Start([(each.value, np.zeros(1, dtype=np.int64)) for each in decided], None)
    return start


def _skipped(flow: Dataflow, last: Touch, others: set[str]) -> list[tuple[Value, np.ndarray]]:
    """The conditions, computed after a store, of branches with stores that did not run. Those that
    name other arguments do not count."""
    ran = {touch.place[:2] for touch in flow.stores if touch.place is not None}
    skipped = []
    for place, value in flow.decisions[-DECISIONS:]:
        if place is None or value.number < last.number:
            continue
        for store in storing(place.file, place.line):
            lines = range(store.first, store.last + 1)
            if not (ran & {(place.file, n) for n in lines}) and not (others & store.reads):
                skipped.append((value, np.zeros(1, dtype=np.int64)))
                break
    return skipped


def _nearest(
    stores: list[Touch], address: int, counts: Callable[[np.ndarray], bool], on: bool = True
) -> Start | None:
    """The lane nearest to an address, masked or not as ``on`` says, of the stores that count."""
    best, start = None, None
    for touch in stores:
        lanes = np.flatnonzero(np.broadcast_to(touch.mask, touch.pointers.shape).ravel() == on)
        at = touch.pointers.reshape(-1)[lanes]
        if not at.size or not counts(at):
            continue
        apart = np.abs(at.astype(np.int64) - address)
        if best is None or int(apart.min()) < best:
            best = int(apart.min())
            start = Start(touch.addressed(lanes[[apart.argmin()]]), touch.place)
    return start


def of_failure(flow: Dataflow, lane: tuple[int, ...], shape: tuple[int, ...]) -> Start:
    """The start for a failing access's address, or for a failed assertion."""
    lanes = np.array([np.ravel_multi_index(lane, shape) if shape else 0])
    if flow.asserted is not None:
        return Start([(flow.asserted, lanes)], None)
    if flow.last is None or flow.last.pointers.shape != shape:  # the error is not of this access
        return Start([], None)
    return Start(flow.last.addressed(lanes), flow.last.place)


def of_error(raised: tuple[Place, dict[str, Value]] | None) -> Start:
    """The start for another error: all values that the raising statement read."""
    if raised is None or (executed := statement(raised[0])) is None:
        return Start([], None)
    read = (value for name, value in raised[1].items() if name in executed.reads)
    whole = [(value, np.arange(max(1, int(np.prod(value.shape))))) for value in read]
    return Start(whole, raised[0])
