"""An observer that runs one program again and records its loads, stores and dots."""

from __future__ import annotations

import re

import numpy as np

from compare.checking.stores import holds
from compare.debugging.findings import regions
from compare.debugging.findings.failure import Failure
from compare.debugging.findings.placed import placed
from compare.debugging.findings.traces import Event, Tile, Trace
from triton_kernels.interpreter import Access, Argument, Dataflow, Dot, Launch, Observer, Program

KEPT = 1 << 26  # numbers in all tiles that a trace keeps


class Tracer(Observer):
    """Runs one program of one launch and records its accesses. Earlier launches run whole, so that
    memory is as it was; later ones do not run.

    ``alone``: whether the launch's other programs are skipped; else the ones before it run, too.
    ``watched`` is an element, as an argument's name and the bytes from its start. ``flow`` records
    the program's operations.

    Attributes:
        target: the number of the launch, and the program.
        arguments: of the launch.
        trace: None until the launch begins.
        stored_there: the program's last store to the watched element.
    """

    def __init__(
        self,
        launch: int,
        program: Program,
        watched: tuple[str, int] | None = None,
        alone: bool = True,
        flow: Dataflow | None = None,
    ) -> None:
        self.trace: Trace | None = None
        self.stored_there: float | None = None
        self.target, self._watched, self.flow = (launch, program), watched, flow
        self._launch, self._alone, self._reached, self._on = -1, alone, False, False
        self.arguments: tuple[Argument, ...] = ()
        self._kept = 0
        self._places: dict[str, Argument] = {}

    def launch(self, launch: Launch) -> None:
        self._launch += 1
        if self._launch == self.target[0]:
            self.arguments = launch.arguments
            self.trace = Trace(launch.kernel, self.target[1], launch.grid, self._alone)

    def wants(self, program: Program) -> bool:
        self._on = (self._launch, program) == self.target
        self._reached |= self._on
        if self.flow is not None:
            self.flow.on = self._on
        before = self._launch == self.target[0] and not self._alone and not self._reached
        return self._on or before or self._launch < self.target[0]

    def access(self, access: Access) -> None:
        if self.trace is None or not self._on:
            return
        active = access.pointers[access.mask]
        argument = access.argument
        if argument is None and active.size:
            argument = next((a for a in self.arguments if holds(a, active)), None)
        numbers = access.numbers
        low, high, nans = _range(numbers[access.mask])
        event = Event(
            f"atomic {access.operation}" if access.operation else access.verb,
            argument.name if argument else "",
            regions.touched(argument, access.pointers, access.mask) if argument else None,
            _tile(access.pointers),
            access.mask.size,
            active.size,
            low,
            high,
            nans,
            access.place,
        )
        self._keep(event, numbers, access.mask)
        if argument and event.mask is not None:
            event.tile = self._lanes(argument, access.pointers, event.mask)
        self.trace.events.append(event)
        if self._watched and argument and argument.name == self._watched[0]:
            address = np.uint64(argument.low + self._watched[1])
            if access.verb == "store" and (hit := access.mask & (access.pointers == address)).any():
                self.stored_there = numbers[hit][-1].item()

    def _lanes(self, argument: Argument, pointers: np.ndarray, mask: np.ndarray) -> Tile:
        """The elements of the lanes, without the argument's memory, which a trace need not keep."""
        if argument.name not in self._places:
            self._places[argument.name] = placed(argument.name, argument.tensor)
        elements = argument.elements(pointers)
        if (np.abs(elements) < 1 << 31).all():
            elements = elements.astype(np.int32)
        return Tile(self._places[argument.name], elements, mask)

    def failing(self, failure: Failure) -> Event | None:
        """The access that raised an error; None if the error has another cause."""
        touch = self.flow and self.flow.last
        through = re.match(r"IndexError: out-of-bounds \w+ through (\w+)", failure.error)
        if not touch or not through or touch.pointers.shape != failure.shape:
            return None
        argument = next((a for a in self.arguments if a.name == through[1]), None)
        if argument is None:
            return None
        mask = np.broadcast_to(touch.mask, touch.pointers.shape)
        lanes = _tile(touch.pointers), mask.size, int(mask.sum())
        event = Event(touch.verb, argument.name, None, *lanes, None, None, 0, touch.place)
        event.tile = self._lanes(argument, touch.pointers, mask.copy())
        return event

    def end(self, reason: str) -> None:
        """Record why the program stopped early."""
        if self.trace is not None:
            self.trace.ended = reason

    def dot(self, dot: Dot) -> None:
        if self.trace is None or not self._on:
            return
        shape = (*dot.result.shape, dot.a.shape[-1])
        low, high, nans = _range(dot.result)
        operands, lanes = (_range(dot.a), _range(dot.b)), dot.result.size
        event = Event("dot", "", None, shape, lanes, lanes, low, high, nans, dot.place)
        event.operands, event.precision = operands, dot.precision
        self._keep(event, dot.result, np.ones(dot.result.shape, dtype=bool))
        self.trace.events.append(event)

    @property
    def watched_at(self) -> tuple[Argument, int] | None:
        """The watched element's argument and address in this run."""
        for argument in self.arguments if self._watched else ():
            if self._watched and argument.name == self._watched[0]:
                return argument, argument.low + self._watched[1]
        return None

    def _keep(self, event: Event, values: np.ndarray, mask: np.ndarray) -> None:
        self._kept += values.size
        if self._kept <= KEPT:
            event.values, event.mask = values.copy(), mask.copy()


def _tile(pointers: np.ndarray) -> tuple[int, ...]:
    return () if pointers.size == 1 else tuple(pointers.shape)


def _range(values: np.ndarray) -> tuple[float | None, float | None, int]:
    """The smallest and the largest number, and the number of NaNs."""
    real = values[values == values]  # NaN differs from itself
    if not real.size:
        return None, None, int(values.size)
    return real.min().item(), real.max().item(), int(values.size - real.size)
