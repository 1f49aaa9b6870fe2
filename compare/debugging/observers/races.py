"""Races between the programs of one launch, found by their happens-before relation.

The interpreter runs one program after another, so no race goes wrong there. But the accesses are
recorded, and the atomics by which programs synchronise. Two accesses of different programs that no
chain of atomics orders may occur in the other order on a GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from compare.cases import CPU, untouched
from compare.checking.stores import holds, raw_memory
from compare.debugging.findings.hazards import Hazard, Sanitizer, Witness
from compare.debugging.findings.regions import touched
from compare.debugging.observers.clocks import Clocks
from triton_kernels.interpreter import Access, Argument, Launch, Place, Program

KINDS = {  # broken synchronisation first, because it may cause the other races
    "atomic": "a plain access against an atomic operation of another program",
    "load": "one program loads what another stores",
    "store": "two programs store different values",
    "volatile": "one program waits for what another stores",
}
SHOWN_FIRST = ("load", "store", "atomic")  # the order of a pair in print

# A mark is the number of an access and its lane; 0 is none. A tile has at most 2²⁰ lanes.
LANE_BITS = 24


class _Note(NamedTuple):
    """A recorded access. ``argument`` is None if it is unknown."""

    verb: str
    what: str  # in words
    argument: Argument | None
    program: Program
    place: Place | None
    shape: tuple[int, ...]


@dataclass
class _Shadow:
    """The elements of a storage, with the marks of accesses that may still be part of a race.

    Attributes:
        raw: the live elements as unsigned integers.
        marks: "store": the last plain store; "change": the last access that changed the element;
            "load", "volatile" (a volatile load), "atomic": the last one; "other load" and so on:
            the last one by another program. "clock": the clock of the last releasing atomic.
    """

    low: int
    raw: np.ndarray
    marks: dict[str, np.ndarray] = field(default_factory=dict)

    def of(self, name: str) -> np.ndarray:
        """The marks of that name; zero at first, so only touched pages take memory."""
        if name not in self.marks:
            self.marks[name] = untouched(max(1, self.raw.size), torch.int64, CPU).numpy()
        return self.marks[name]

    def refine(self, width: int) -> None:
        """Split the elements, because a pointer was cast to a narrower type."""
        parts = self.raw.itemsize // width
        self.raw = self.raw.view(f"u{width}")
        self.marks = {name: np.repeat(marks, parts) for name, marks in self.marks.items()}


@dataclass
class _Race:
    """Races of one kind between two lines; the witnesses are those of the first race."""

    kind: str
    tensor: str
    witnesses: tuple[Witness, ...]
    elements: np.ndarray


class Races(Sanitizer):
    """Finds unordered accesses to one element by two programs of a launch.

    An atomic with acquire semantics learns what was released at that address before. A store that
    does not change an element does not race with loads and plain stores.
    """

    every_order = True

    def __init__(self) -> None:
        self._found: dict[Any, _Race] = {}

    def launch(self, launch: Launch) -> None:
        """Launches are ordered, so earlier accesses cannot race any more."""
        self._arguments = launch.arguments
        self._shadows: dict[int, _Shadow] = {}
        self._notes = [_Note("", "", None, (0, 0, 0), None, ())]  # so that no access has number 0
        self._clocks = Clocks()

    def wants(self, program: Program) -> bool:
        self._clocks.begin(len(self._notes))
        return True

    def access(self, access: Access) -> None:
        shape = tuple(access.pointers.shape)
        known, what = access.argument, {"load": "loaded", "store": "stored to"}.get(access.verb)
        if what is None:
            weak = "" if access.semantics == "acquire_release" else f"{access.semantics} "
            what = f"{weak}atomic {access.operation}"
        self._notes.append(_Note(access.verb, what, known, access.program, access.place, shape))
        lanes = np.flatnonzero(access.mask)
        pointers = access.pointers.reshape(-1)[lanes]
        values = np.broadcast_to(access.values, shape).reshape(-1)[lanes]
        arguments = self._arguments if known is None else (known,)
        for shadow in {id(s): s for s in map(self._shadow, arguments)}.values():
            if known is not None:
                self._touch(access, shadow, pointers, lanes, values)
                continue
            high = shadow.low + shadow.raw.nbytes
            on = (pointers >= shadow.low) & (pointers < high)
            if on.any():
                self._touch(access, shadow, pointers[on], lanes[on], values[on])

    def _shadow(self, argument: Argument) -> _Shadow:
        at = argument.tensor.untyped_storage().data_ptr()
        if at not in self._shadows:
            views = [a for a in self._arguments if a.tensor.untyped_storage().data_ptr() == at]
            narrowest = min((view.itemsize for view in views), default=argument.itemsize)
            self._shadows[at] = _Shadow(at, raw_memory(argument, narrowest))
        return self._shadows[at]

    def _touch(
        self,
        access: Access,
        shadow: _Shadow,
        pointers: np.ndarray,
        lanes: np.ndarray,
        values: np.ndarray,
    ) -> None:
        width = values.dtype.itemsize
        if width < shadow.raw.itemsize:
            shadow.refine(width)
        at = (pointers.astype(np.int64) - shadow.low) // shadow.raw.itemsize
        marks = (len(self._notes) - 1 << LANE_BITS) + lanes
        # A pointer that was cast to a wider type touches several elements per lane.
        if (parts := width // shadow.raw.itemsize) > 1:
            at, marks = (at[:, None] + np.arange(parts)).ravel(), np.repeat(marks, parts)
        if access.verb == "atomic":
            self._atomic(shadow, at, marks, access.semantics)
            return
        self._meet("atomic", shadow, ("atomic", "other atomic"), at, marks)
        if access.verb == "load":
            # A single word that is loaded in a loop holds either the old value or all of the new
            # one.
            kind = "volatile" if access.semantics == "volatile" and parts <= 1 else "load"
            if "store" in shadow.marks:
                # The program's own last store is what it loads in every order.
                others = shadow.of("store")[at] < self._clocks.first << LANE_BITS
                self._meet(kind, shadow, ("change",), at[others], marks[others])
            self._remember(kind, shadow, at, marks)
            return
        new = np.ascontiguousarray(values).view(shadow.raw.dtype)
        changes = shadow.raw[at] != new
        changed, by = at[changes], marks[changes]
        self._meet("store", shadow, ("store",), changed, by, new[changes])
        self._meet("load", shadow, ("load", "other load"), changed, by)
        self._meet("volatile", shadow, ("volatile", "other volatile"), changed, by)
        shadow.of("store")[at] = marks
        shadow.of("change")[changed] = by

    def _atomic(self, shadow: _Shadow, at: np.ndarray, marks: np.ndarray, semantics: str) -> None:
        if "acquire" in semantics:
            self._clocks.acquire(shadow.of("clock")[at])
        self._meet("atomic", shadow, ("store", "load", "other load"), at, marks)
        self._remember("atomic", shadow, at, marks)
        if "release" in semantics:
            self._clocks.release(shadow.of("clock"), at, len(self._notes) - 1)

    def _remember(self, name: str, shadow: _Shadow, at: np.ndarray, marks: np.ndarray) -> None:
        last = shadow.of(name)[at]
        foreign = self._foreign(last)
        if foreign.any():
            shadow.of(f"other {name}")[at[foreign]] = last[foreign]
        shadow.of(name)[at] = marks

    def _foreign(self, marks: np.ndarray) -> np.ndarray:
        """Which marks belong to other programs than the running one."""
        foreign: np.ndarray = (marks > 0) & (marks < self._clocks.first << LANE_BITS)
        return foreign

    def _meet(
        self,
        kind: str,
        shadow: _Shadow,
        others: tuple[str, ...],
        at: np.ndarray,
        marks: np.ndarray,
        new: np.ndarray | None = None,
    ) -> None:
        """Report the elements that another program accessed without order.

        ``new``: the values about to be stored, if values shall be shown.
        """
        for other in (name for name in others if name in shadow.marks):
            before = shadow.of(other)[at]
            racing = np.flatnonzero(self._foreign(before))
            if racing.size:
                racing = racing[~self._clocks.known(before[racing] >> LANE_BITS)]
            if not racing.size:
                continue
            numbers, which = np.unique(before[racing] >> LANE_BITS, return_inverse=True)
            for n in range(len(numbers)):
                mine = racing[which == n]
                first = mine[0]
                values: tuple[np.ndarray, ...] = ()
                if new is not None:
                    values = shadow.raw[at[first]], new[first]
                addresses = (shadow.low + at[mine] * shadow.raw.itemsize).astype(np.uint64)
                self._report(kind, addresses, (int(before[first]), int(marks[first])), values)

    def _report(
        self,
        kind: str,
        addresses: np.ndarray,
        pair: tuple[int, int],
        values: tuple[np.ndarray, ...],
    ) -> None:
        """Record a race at the first address, with the two marks and stored raw values, if any."""
        notes = [self._notes[mark >> LANE_BITS] for mark in pair]
        words = [_value(value, self._holder(addresses[:1])) for value in values] or ["", ""]
        both = sorted(zip(notes, pair, words), key=lambda one: SHOWN_FIRST.index(one[0].verb))
        argument = both[1][0].argument or self._holder(addresses[:1])  # the one that is written
        elements = np.unique(argument.elements(addresses))
        key = (kind, argument.name, frozenset((note.verb, note.place) for note in notes))
        if (known := self._found.get(key)) is not None:
            if not np.isin(elements, known.elements, assume_unique=True).all():
                known.elements = np.union1d(known.elements, elements)
            return
        witnesses = tuple(self._witness(*one, addresses[:1]) for one in both)
        self._found[key] = _Race(kind, argument.name, witnesses, elements)

    def _witness(self, note: _Note, mark: int, value: str, address: np.ndarray) -> Witness:
        argument = note.argument or self._holder(address)
        lane = np.unravel_index(mark & ((1 << LANE_BITS) - 1), note.shape)
        return Witness(
            f"set to {value}" if value else note.what,
            note.program,
            note.place,
            argument.name,
            touched(argument, address, np.ones(1, dtype=bool)).of(argument.name),
            tuple(int(i) for i in lane) if math.prod(note.shape) > 1 else (),
        )

    def _holder(self, address: np.ndarray) -> Argument:
        return next(argument for argument in self._arguments if holds(argument, address))

    def waits(self) -> list[tuple[Witness, ...]]:
        return [race.witnesses for race in self._found.values() if race.kind == "volatile"]

    def hazards(self) -> list[Hazard]:
        """One hazard per kind and pair of lines."""
        reported = []
        races = [race for race in self._found.values() if race.kind != "volatile"]
        for race in sorted(races, key=lambda one: list(KINDS).index(one.kind)):
            count = len(race.elements)
            text = f"{KINDS[race.kind]}, and nothing orders them: {count} element"
            text += f"{'s' if count > 1 else ''} of {race.tensor}"
            reported.append(Hazard("race", text, race.witnesses, count))
        return reported


def _value(raw: np.ndarray, argument: Argument) -> str:
    """An element's bits as a number of its dtype; in hex if pointers were cast."""
    if raw.itemsize != argument.itemsize:
        return hex(int(raw))
    return repr(torch.frombuffer(bytearray(raw.tobytes()), dtype=argument.tensor.dtype).item())
