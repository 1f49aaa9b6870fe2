"""The dataflow of one program: its operations, recorded so that a value can be followed back, lane
by lane, to its sources."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from triton_kernels.interpreter import source_lines
from triton_kernels.interpreter.emulation import Array, decoded
from triton_kernels.interpreter.handles import narrow
from triton_kernels.interpreter.observers import Place

KEPT = 1 << 25  # numbers of all values that are kept
FIRST, LAST = 1 << 16, 1 << 17  # operations that are kept; those in between are dropped

Sources = list[tuple["Value", Array]]
_Back = Callable[[Array], Sources]


class Value:
    """The result of an operation.

    Attributes:
        number: larger than the numbers of its sources.
        place: the kernel's line.
        shape: of the tile.
        data: its raw numbers; None if they were too many to keep.
        width: for pointers the size in bytes of their targets; 0 for numbers.
        access: the load or atomic operation that returned it, if any.
    """

    __slots__ = ("_back", "_narrow", "access", "data", "number", "place", "shape", "width")

    def __init__(self, number: int, place: Place | None, handle: Any, back: _Back | None) -> None:
        self.number, self.place, self._back = number, place, back
        data = getattr(handle, "data", None)
        self.data: Array | None = None if data is None else np.asarray(data)
        self.shape: tuple[int, ...] = () if self.data is None else self.data.shape
        self._narrow = "" if data is None else narrow(handle)
        pointer = data is not None and handle.dtype.is_ptr()
        self.width = max(1, handle.get_element_ty().primitive_bitwidth // 8) if pointer else 0
        self.access: Touch | None = None

    def sources(self, lanes: Array) -> Sources:
        """The sources of these lanes (flat indices): values with their lanes."""
        return [] if self._back is None else self._back(lanes)

    def numbers(self, lanes: Array) -> Array | None:
        """The numbers in these lanes."""
        if self.data is None or not self.data.size:
            return None
        return decoded(self.data, self._narrow).reshape(-1)[lanes]

    def forget(self, everything: bool) -> None:
        """Drop its numbers; with ``everything`` also its sources. The sources of an access are
        always dropped, because they take as much memory."""
        self.data = None
        if everything or self.access is not None:
            self._back = self.access = None


class Touch(NamedTuple):
    """A load, store or atomic operation with its operands, None if their origin is unknown.

    ``made`` are the values of which a block pointer or descriptor was made.
    """

    number: int
    verb: str
    place: Place | None
    pointers: Array
    mask: Array
    operands: dict[str, Value | None]
    made: tuple[Value, ...]
    width: int

    def holding(self, address: int, on: bool = True) -> Array:
        """The active (or masked) lanes that touch a byte."""
        start = self.pointers.reshape(-1)
        there = (start <= np.uint64(address)) & (np.uint64(address) < start + np.uint64(self.width))
        return np.flatnonzero(
            there & (np.broadcast_to(self.mask, self.pointers.shape).ravel() == on)
        )

    def addressed(self, lanes: Array) -> Sources:
        """The sources of these lanes' addresses and masks."""
        return [
            *_same(self.operands.get("pointers"), lanes, self.pointers.shape),
            *_same(self.operands.get("mask"), lanes, self.pointers.shape),
            *((value, np.zeros(1, dtype=np.int64)) for value in self.made),
        ]

    def stored(self, lanes: Array) -> Sources:
        """The sources of the values that these lanes store."""
        operands = (self.operands.get(name) for name in ("value", "compared"))
        return [s for value in operands for s in _same(value, lanes, self.pointers.shape)]


class Decision(NamedTuple):
    """A value on which control flow depended, and the line."""

    place: Place | None
    value: Value


class Dataflow:
    """The operations of the programs for which ``on`` is set. An observer passes it to
    ``interpreting``.

    Attributes:
        stores: stores and atomic operations, in order.
        last: the last access, which may have raised an error.
        decisions: conditions of branches and loops.
        asserted: the condition of the last device_assert.
    """

    def __init__(self) -> None:
        self.on = False
        self.stores: deque[Touch] = deque()
        self.last: Touch | None = None
        self.decisions: list[Decision] = []
        self.asserted: Value | None = None
        self._number = self._size = self._stored = 0
        self._kept: deque[Value] = deque()  # values that still have their numbers
        self._recent: deque[Value] = deque()

    def next(self) -> int:
        """The number of the next operation."""
        self._number += 1
        return self._number

    def made(self, handle: Any, back: _Back | None) -> Value:
        """Record that a handle is an operation's result; ``back`` returns the sources of lanes."""
        value = Value(self.next(), source_lines.current(), handle, back)
        handle.flow = value
        if value.data is not None:
            self._kept.append(value)
            self._size += value.data.size
        while self._size > KEPT:
            old = self._kept.popleft()
            self._size -= 0 if old.data is None else old.data.size
            old.forget(everything=False)
        if value.number > FIRST:
            self._recent.append(value)
            if len(self._recent) > LAST:
                self._recent.popleft().forget(everything=True)
        return value

    def touched(self, touch: Touch) -> None:
        """Record an access before it happens."""
        self.last = touch
        if touch.verb == "load":
            return
        self.stores.append(touch)
        self._stored += touch.pointers.size
        while self._stored > KEPT:
            self._stored -= self.stores.popleft().pointers.size

    def begun(self, handle: Any) -> Value:
        """The value of a handle that no operation made, for example of a Python number."""
        handle.flow = Value(self.next(), None, handle, None)
        value: Value = handle.flow
        return value

    def loaded(self, touch: Touch, lanes: Array) -> tuple[Sources, Array]:
        """The sources that earlier stores of these programs left where these lanes load; and the
        lanes where none of them stored."""
        sources: Sources = []
        addresses = touch.pointers.reshape(-1)[lanes]
        for earlier in reversed(self.stores):
            if not lanes.size:
                break
            if earlier.number >= touch.number:
                continue
            on = np.flatnonzero(earlier.mask)
            written = earlier.pointers.reshape(-1)[on]
            if not on.size or written.min() > addresses.max() or written.max() < addresses.min():
                continue
            order = np.argsort(written, kind="stable")
            at = np.searchsorted(written[order], addresses).clip(max=on.size - 1)
            hit = written[order][at] == addresses
            if hit.any():
                there = np.unique(on[order][at[hit]])
                sources += earlier.stored(there) + earlier.addressed(there)
                lanes, addresses = lanes[~hit], addresses[~hit]
        return sources, lanes


def flow_of(handle: Any) -> Value | None:
    """The recorded value of a handle, if there is one."""
    value: Value | None = getattr(handle, "flow", None)
    return value


def made_by(variable: Any, flow: Dataflow) -> Value | None:
    """The value of a kernel's variable; None if it is no value of the language."""
    handle = getattr(variable, "handle", None)
    known = flow_of(handle)
    if known is None and isinstance(getattr(handle, "data", None), np.ndarray):
        return flow.begun(handle)
    return known


def _same(value: Value | None, lanes: Array, shape: tuple[int, ...]) -> Sources:
    """The lanes of an operand of an elementwise operation."""
    return [] if value is None else [(value, lanes_of(value.shape, lanes, shape))]


def lanes_of(shape: tuple[int, ...], lanes: Array, of: tuple[int, ...]) -> Array:
    """Flat lanes of ``of``, as lanes of a tile of ``shape`` that broadcasts to it."""
    size = int(np.prod(shape))
    if shape == of or (size == int(np.prod(of)) and size != 1):
        return lanes
    if size == 1:
        return np.zeros(1, dtype=np.int64)
    return np.broadcast_to(np.arange(size).reshape(shape), of).reshape(-1)[lanes]


def elementwise(inputs: tuple[Any, ...], shape: tuple[int, ...]) -> _Back:
    """Every lane comes from the same lane of all operands."""
    values = [v for v in map(flow_of, inputs) if v is not None]
    return lambda lanes: [s for v in values for s in _same(v, lanes, shape)]


def selection(condition: Any, yes: Any, no: Any, shape: tuple[int, ...]) -> _Back:
    """Every lane comes from the condition and the chosen operand."""
    cond, sides = flow_of(condition), (flow_of(yes), flow_of(no))
    chosen = np.asarray(condition.data)

    def back(lanes: Array) -> Sources:
        which = chosen.reshape(-1)[lanes_of(chosen.shape, lanes, shape)].astype(bool)
        which = np.broadcast_to(which, lanes.shape)
        sources = _same(cond, lanes, shape)
        for side, here in zip(sides, (lanes[which], lanes[~which]), strict=True):
            sources += _same(side, here, shape) if here.size else []
        return sources

    return back


def movement(inputs: tuple[Any, ...], move: Callable[..., Array]) -> _Back:
    """Lanes move: ``move`` moves numbers of lanes as the operation moved the values."""
    values = [flow_of(h) for h in inputs]
    shapes = [np.shape(h.data) for h in inputs]

    def back(lanes: Array) -> Sources:
        starts = np.cumsum([0, *(int(np.prod(s)) for s in shapes)])
        tiles = (np.arange(a, b).reshape(s) for a, b, s in zip(starts, starts[1:], shapes))
        came = np.asarray(move(*tiles)).reshape(-1)[lanes]
        sources: Sources = []
        for value, a, b in zip(values, starts, starts[1:]):
            here = came[(came >= a) & (came < b)]
            if value is not None and here.size:
                sources.append((value, np.unique(here - a)))
        return sources

    return back


def reduction(handle: Any, axis: int, scan: bool) -> _Back:
    """A lane comes from all lanes along an axis; in a scan from those up to it."""
    value, shape = flow_of(handle), np.shape(handle.data)

    def back(lanes: Array) -> Sources:
        if value is None:
            return []
        rows = np.moveaxis(np.arange(int(np.prod(shape))).reshape(shape), axis, -1)
        if not scan:
            return [(value, np.unique(rows.reshape(-1, shape[axis])[lanes]))]
        at = np.unravel_index(lanes, shape)
        along = at[axis % len(shape)]
        others = np.ravel_multi_index(
            [i for n, i in enumerate(at) if n != axis % len(shape)] or [np.zeros_like(lanes)],
            [n for i, n in enumerate(shape) if i != axis % len(shape)] or [1],
        )
        rows = rows.reshape(-1, shape[axis])
        return [
            (value, np.unique(np.concatenate([rows[o, : i + 1] for o, i in zip(others, along)])))
        ]

    return back


def product(a: Any, b: Any, d: Any, shape: tuple[int, ...]) -> _Back:
    """A lane of a @ b + d comes from a row of a, a column of b, and d."""
    left, right, add = flow_of(a), flow_of(b), flow_of(d)

    def back(lanes: Array) -> Sources:
        sources = _same(add, lanes, shape)
        *batch, m, n = np.unravel_index(lanes, shape)
        for value, axis, index in ((left, -2, m), (right, -1, n)):
            if value is None:
                continue
            numbers = np.arange(int(np.prod(value.shape))).reshape(value.shape)
            rows = np.moveaxis(numbers, axis, len(batch))[(*batch, index)]
            sources.append((value, np.unique(rows)))
        return sources

    return back


def everything(inputs: tuple[Any, ...]) -> _Back:
    """A lane may come from any lane of all operands."""
    values = [v for v in map(flow_of, inputs) if v is not None]
    return lambda lanes: [(v, np.arange(max(1, int(np.prod(v.shape))))) for v in values]
