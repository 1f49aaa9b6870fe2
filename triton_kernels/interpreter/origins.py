"""The log of the origins of faults."""

from __future__ import annotations

import bisect
from typing import Any, NamedTuple

import numpy as np

from triton_kernels.interpreter import source_lines
from triton_kernels.interpreter.emulation import Array
from triton_kernels.interpreter.handles import decode
from triton_kernels.interpreter.memory import Argument
from triton_kernels.interpreter.observers import Place, Program

MASKED, UNWRITTEN, OVERFLOW, NONFINITE = "masked", "unwritten", "overflow", "non-finite"


class Origin(NamedTuple):
    """The origin of one lane's fault.

    Attributes:
        kind: MASKED and UNWRITTEN loads, OVERFLOW and NONFINITE operations.
        operation: "+", "exp", …; empty for loads.
        operands: those in the lane; empty if they are many, as in a reduction.
        result: for NONFINITE, that of the lane.
        dtype: of the loaded value or the result.
        argument, address: of a load.
    """

    kind: str
    operation: str
    operands: tuple[Any, ...]
    result: float | None
    dtype: str
    program: Program
    place: Place | None
    lane: tuple[int, ...]
    argument: Argument | None = None
    address: int | None = None


class _Event(NamedTuple):
    """Origins of one operation: lane ``lanes[i]`` of a tile has the number ``first + i``."""

    first: int
    kind: str
    operation: str
    operands: tuple[Array, ...]  # one value per listed lane
    result: Array | None
    dtype: str
    program: Program
    place: Place | None
    shape: tuple[int, ...]
    lanes: Array
    argument: Argument | None
    addresses: Array | None


class Log:
    """The origins. Those that nothing refers to after their program are dropped."""

    def __init__(self) -> None:
        self.program: Program = (0, 0, 0)
        self._events: list[_Event] = []
        self._next = 1
        self._kept = (0, 1)  # events, and the next number, at the start of the program
        self.escaped = False  # whether numbers of this program are in memory

    def begin(self, program: Program) -> None:
        """Begin a program; the values of the last one are gone."""
        if not self.escaped:
            del self._events[self._kept[0] :]
            self._next = self._kept[1]
        self.program, self.escaped = program, False
        self._kept = (len(self._events), self._next)

    def add(
        self,
        kind: str,
        where: Array,
        dtype: Any,
        operation: str = "",
        inputs: tuple[Any, ...] = (),
        result: Any = None,
        argument: Argument | None = None,
        pointers: Array | None = None,
    ) -> Array:
        """The layer of a fault whose origin is ``where`` a boolean tile is true."""
        lanes = np.flatnonzero(where)
        values = (np.broadcast_to(decode(h), where.shape).flat[lanes] for h in inputs)
        addresses = None if pointers is None else pointers.flat[lanes]
        self._events.append(
            _Event(
                self._next,
                kind,
                operation,
                tuple(values),
                None if result is None else decode(result).flat[lanes],
                dtype.scalar.name,
                self.program,
                source_lines.current(),
                where.shape,
                lanes,
                argument,
                addresses,
            )
        )
        layer = np.zeros(where.shape, dtype=np.int64)
        layer.flat[lanes] = np.arange(self._next, self._next + lanes.size)
        self._next += lanes.size
        return layer

    def __len__(self) -> int:
        return len(self._events)

    def __getitem__(self, number: int) -> Origin:
        event = self._events[bisect.bisect(self._events, number, key=lambda e: e.first) - 1]
        at = number - event.first
        return Origin(
            event.kind,
            event.operation,
            tuple(v[at].item() for v in event.operands),
            None if event.result is None else float(event.result[at]),
            event.dtype,
            event.program,
            event.place,
            lane(int(event.lanes[at]), event.shape),
            event.argument,
            None if event.addresses is None else int(event.addresses[at]),
        )


def lane(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A lane's coordinates in its tile; none for a scalar."""
    if shape in ((), (1,)):
        return ()
    return tuple(int(i) for i in np.unravel_index(number, shape))
