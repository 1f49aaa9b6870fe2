"""Faults in memory and where they take effect: the state of an observed run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from triton_kernels.interpreter import source_lines
from triton_kernels.interpreter.emulation import Array
from triton_kernels.interpreter.memory import Argument, Pages
from triton_kernels.interpreter.observers import Place, Program
from triton_kernels.interpreter.origins import Log, Origin, lane
from triton_kernels.interpreter.shadows import Shadow


@dataclass
class Reach:
    """A fault that took effect, and the number of lanes in which it did at the same two lines.

    Attributes:
        where: "store", "address", "mask", "atomic", "assertion" or "branch".
        verb: of an access: "load", "store" or "atomic".
        origin: the origin of the first lane's fault.
    """

    where: str
    verb: str
    origin: Origin
    program: Program
    place: Place | None
    lane: tuple[int, ...]
    argument: Argument | None
    address: int | None
    count: int = 1


class _Memory:
    """The shadows of one storage's elements."""

    def __init__(self, argument: Argument) -> None:
        storage = argument.tensor.untyped_storage()
        self.keep = argument.tensor  # so that its addresses are not reused
        self.low, self.itemsize = storage.data_ptr(), argument.itemsize
        self.high = self.low + storage.nbytes()
        size = -(-storage.nbytes() // self.itemsize)
        self.undefined, self.nonfinite = Pages(size, np.int64), Pages(size, np.int64)
        self.unwritten = Pages(size, np.bool_)

    def holds(self, addresses: Array, width: int) -> Array:
        """Which accesses lie inside. Masked lanes may point anywhere, also across its end."""
        inside: Array = (addresses >= self.low) & (addresses <= self.high - width)
        return inside

    def elements(self, addresses: Array, width: int) -> Array:
        """The elements that accesses of a width touch, one row of lanes per step."""
        first = (addresses.astype(np.int64) - self.low) // self.itemsize
        steps = max(1, width // self.itemsize)
        numbers: Array = first + np.arange(steps).reshape(-1, *[1] * first.ndim)
        return numbers


class Shadows:
    """The shadows of a run, and the faults found. An observer passes it to ``interpreting``.

    Attributes:
        reached: the faults that took effect, in order.
    """

    def __init__(self) -> None:
        self.log = Log()
        self._reached: dict[Any, Reach] = {}
        self._memories: dict[int, _Memory] = {}

    @property
    def reached(self) -> list[Reach]:
        return list(self._reached.values())

    # ---- memory ----

    def uninitialize(self, tensor: Any) -> None:
        """Mark the tensor's elements as unwritten."""
        if tensor.numel():
            memory = self._memory(Argument("", tensor))
            memory.unwritten[self._elements(memory, tensor)] = True

    def initialize(self, tensor: Any) -> None:
        """Mark the tensor's elements as written by the host."""
        if tensor.numel() and tensor.untyped_storage().data_ptr() in self._memories:
            memory = self._memories[tensor.untyped_storage().data_ptr()]
            at = self._elements(memory, tensor)
            memory.unwritten[at], memory.undefined[at], memory.nonfinite[at] = False, 0, 0

    @staticmethod
    def _elements(memory: _Memory, tensor: Any) -> Array:
        offsets = np.zeros(tuple(tensor.shape), dtype=np.int64)
        for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
            along = [1] * tensor.dim()
            along[axis] = size
            offsets += (np.arange(size) * stride).reshape(along)
        width = tensor.element_size()
        return memory.elements(tensor.data_ptr() + offsets * width, width)

    def _memory(self, argument: Argument) -> _Memory:
        low = argument.tensor.untyped_storage().data_ptr()
        if low not in self._memories:
            self._memories[low] = _Memory(argument)
        return self._memories[low]

    def loaded(self, pointers: Array, width: int) -> tuple[Array, Array, Array] | None:
        """The layers at some addresses: undefined, non-finite, and unwritten."""
        if not self._memories:
            return None
        shape = pointers.shape
        undefined, nonfinite = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        unwritten = np.zeros(shape, np.bool_)
        for memory in self._memories.values():
            inside = memory.holds(pointers, width)
            if inside.any():
                at = memory.elements(pointers[inside], width)
                undefined[inside] = memory.undefined[at].max(axis=0)
                unwritten[inside] = memory.unwritten[at].any(axis=0)
                if width == memory.itemsize:
                    nonfinite[inside] = memory.nonfinite[at][0]
        return undefined, nonfinite, unwritten

    def stored(
        self, owners: tuple[Argument, ...], pointers: Array, width: int, shadow: Shadow
    ) -> None:
        """Store values with a shadow (of the pointers' shape) to addresses."""
        dirty = [layer for layer in (shadow.undefined, shadow.nonfinite) if layer is not None]
        if any(layer.any() for layer in dirty):
            self.log.escaped = True
            for owner in owners:
                if ((pointers >= owner.low) & (pointers < owner.high)).any():
                    self._memory(owner)
        for memory in self._memories.values():
            inside = memory.holds(pointers, width)
            if not inside.any():
                continue
            at = memory.elements(pointers[inside], width)
            memory.unwritten[at] = False
            for layer, pages in (
                (shadow.undefined, memory.undefined),
                (shadow.nonfinite, memory.nonfinite),
            ):
                pages[at] = 0 if layer is None else np.broadcast_to(layer[inside], at.shape)

    def origin(self, address: int) -> Origin | None:
        """The operation that made the number at an address NaN or infinite."""
        for memory in self._memories.values():
            if memory.low <= address < memory.high:
                at = memory.elements(np.array([address]), 1)
                number = int(memory.nonfinite[at].item())
                return self.log[number] if number else None
        return None

    # ---- where faults take effect ----

    def reach(
        self,
        where: str,
        verb: str,
        layer: Array | None,
        active: Array,
        argument: Argument | None = None,
        pointers: Array | None = None,
    ) -> None:
        """Record the active lanes that have a fault; all shapes are that of ``active``."""
        if layer is None:
            return
        hit = (layer != 0) & active
        if not hit.any():
            return
        first = int(np.flatnonzero(hit)[0])
        origin = self.log[int(np.broadcast_to(layer, active.shape).flat[first])]
        place, count = source_lines.current(), int(hit.sum())
        key = (where, verb, place, origin.kind, origin.operation, origin.place)
        if key in self._reached:
            self._reached[key].count += count
            return
        at = lane(first, active.shape)
        address = None if pointers is None else int(pointers.flat[first])
        self._reached[key] = Reach(
            where, verb, origin, self.log.program, place, at, argument, address, count
        )
