"""An observer of interpreted runs that records, for every element, which stores wrote it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from triton_kernels.interpreter import Access, Argument, Launch, Observer, Pages, Place, Program


class Store(NamedTuple):
    """A store or atomic operation of one program.

    ``lanes`` is the number of its lanes, ``on`` the number of unmasked lanes.
    """

    launch: int
    program: Program
    verb: str
    argument: str
    place: Place | None
    shape: tuple[int, ...]
    lanes: int
    on: int


class History(NamedTuple):
    """The stores to the element at an address. ``lane`` is the lane of the last one.

    Attributes:
        other: the last store to it by a program other than the last writer.
        clash: whether a plain store replaced another program's value with a different one.
        masked: the last store that pointed at it with a masked lane. Padding lanes do not count:
            they point into another row by accident.
    """

    address: int
    last: Store | None = None
    lane: tuple[int, ...] = ()
    other: Store | None = None
    clash: bool = False
    masked: Store | None = None
    masked_lane: tuple[int, ...] = ()


class _Memory:
    """The elements of one storage. Each holds the number of its last store plus one."""

    def __init__(self, low: int, itemsize: int, raw: np.ndarray) -> None:
        self.low, self.itemsize = low, itemsize
        self.raw = raw  # the live elements as unsigned integers
        self.last, self.lane = Pages(raw.size, np.int32), Pages(raw.size, np.int32)
        self.other = Pages(raw.size, np.int32)
        self.masked, self.masked_lane = Pages(raw.size, np.int32), Pages(raw.size, np.int32)
        self.clash = Pages(raw.size, np.bool_)

    def index(self, addresses: np.ndarray) -> np.ndarray:
        return (addresses.astype(np.int64) - self.low) // self.itemsize


class Stores(Observer):
    """Records a run: the launches, and the stores to each element.

    Attributes:
        launches: the launches so far.
        current: the launch and program that runs or ran last; None before the first.
        stores: all stores, in order.
    """

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.current: tuple[int, Program] | None = None
        self.stores: list[Store] = []
        self._first_of_program = 0
        self._memories: dict[int, _Memory] = {}  # by the storage's address

    def launch(self, launch: Launch) -> None:
        self.launches.append(launch)  # keeps its tensors alive, so no address is reused

    def wants(self, program: Program) -> bool:
        self.current = (len(self.launches) - 1, program)
        self._first_of_program = len(self.stores)
        return True

    def access(self, access: Access) -> None:
        if access.verb == "load":
            return
        number, pointers, mask = len(self.stores), access.pointers.reshape(-1), access.mask.ravel()
        known = access.argument
        arguments = self.launches[-1].arguments if known is None else (known,)
        self.stores.append(
            Store(
                len(self.launches) - 1,
                access.program,
                f"atomic {access.operation}" if access.operation else access.verb,
                _name(arguments, pointers[mask]),
                access.place,
                tuple(access.pointers.shape),
                mask.size,
                int(mask.sum()),
            )
        )
        values = np.broadcast_to(access.values, access.pointers.shape).reshape(-1)
        for memory in {id(m): m for m in map(self._memory, arguments)}.values():
            high = memory.low + memory.raw.nbytes
            inside = (pointers >= memory.low) & (pointers < high)
            off = np.flatnonzero(inside & ~mask)
            if off.size and known is not None:
                off = off[~_padding(known, access.pointers, mask)[off]]
            at = memory.index(pointers[off])
            memory.masked[at], memory.masked_lane[at] = number + 1, off
            on = np.flatnonzero(inside & mask)
            self._note(memory, number, pointers[on], on, values[on], access.verb == "store")

    def _note(
        self,
        memory: _Memory,
        number: int,
        pointers: np.ndarray,
        lanes: np.ndarray,
        values: np.ndarray,
        plain: bool,
    ) -> None:
        at = memory.index(pointers)
        width = values.dtype.itemsize
        if plain and width == memory.itemsize:
            before, after = memory.raw[at], values.view(memory.raw.dtype)
            replaced = self._foreign(memory.last[at]) & (before != after)
            memory.clash[at[replaced]] = True
        # A store through a pointer that was cast to a wider type writes several elements per lane.
        for step in range(max(1, width // memory.itemsize)):
            touched = at + step
            before = memory.last[touched]
            foreign = self._foreign(before)
            memory.other[touched[foreign]] = before[foreign]
            memory.last[touched], memory.lane[touched] = number + 1, lanes

    def _foreign(self, numbers: np.ndarray) -> np.ndarray:
        """Which stores are not of the running program."""
        foreign: np.ndarray = (numbers > 0) & (numbers <= self._first_of_program)
        return foreign

    def _memory(self, argument: Argument) -> _Memory:
        storage = argument.tensor.untyped_storage()
        if storage.data_ptr() not in self._memories:
            raw = raw_memory(argument, argument.itemsize)
            self._memories[storage.data_ptr()] = _Memory(storage.data_ptr(), raw.itemsize, raw)
        return self._memories[storage.data_ptr()]

    def _found(self, address: int) -> tuple[_Memory, int] | None:
        for memory in self._memories.values():
            at = (address - memory.low) // memory.itemsize
            if 0 <= at < memory.raw.size:
                return memory, at
        return None

    def history(self, address: int) -> History:
        """The stores to the element at an address."""
        place = self._found(address)
        if place is None:
            return History(address)
        memory, index = place
        at = np.array([index])

        def store(numbers: Pages) -> Store | None:
            number = int(numbers[at][0])
            return self.stores[number - 1] if number else None

        last, masked = store(memory.last), store(memory.masked)
        return History(
            address,
            last,
            _lane(last, memory.lane[at][0]),
            store(memory.other),
            bool(memory.clash[at][0]),
            masked,
            _lane(masked, memory.masked_lane[at][0]),
        )

    def writers(self, tensor: Tensor) -> np.ndarray | None:
        """The number of the last store to each element, −1 for none. None if nothing stored to the
        tensor's memory."""
        numbers = self._map(tensor, "last")
        return None if numbers is None else numbers - 1

    def _map(self, tensor: Tensor, name: str) -> np.ndarray | None:
        place = self._found(tensor.data_ptr())
        if place is None:
            return None
        memory, start = place
        at = np.full(tensor.shape, start, dtype=np.int64)
        for axis, (size, stride) in enumerate(zip(tensor.shape, _steps(tensor, memory.itemsize))):
            along = [1] * tensor.dim()
            along[axis] = size
            at += (np.arange(size) * stride).reshape(along)
        numbers: np.ndarray = getattr(memory, name)[at]
        return numbers

    def stored(self) -> list[Argument]:
        """The tensor arguments that were stored to, in parameter order."""
        names = {(s.launch, s.argument) for s in self.stores if s.on}
        return [
            argument
            for number, launch in enumerate(self.launches)
            for argument in launch.arguments
            if (number, argument.name) in names
        ]


def raw_memory(argument: Argument, itemsize: int) -> np.ndarray:
    """The storage of an argument as unsigned integers of at most 8 bytes; it shares the memory."""
    storage, unsigned = argument.tensor.untyped_storage(), np.dtype(f"u{min(8, itemsize)}")
    size = storage.nbytes()
    everything = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (size,), (1,))
    return everything.numpy()[: size // unsigned.itemsize * unsigned.itemsize].view(unsigned)


def _steps(tensor: Tensor, itemsize: int) -> list[int]:
    return [st * tensor.element_size() // itemsize for st in tensor.stride()]


def _name(arguments: tuple[Argument, ...], pointers: np.ndarray) -> str:
    """The first argument that contains all the addresses, else "?"."""
    return next((a.name for a in arguments if holds(a, pointers)), "?")


def holds(argument: Argument, pointers: np.ndarray) -> bool:
    """Whether all addresses lie in the argument; true if there are none."""
    return bool(((pointers >= argument.low) & (pointers < argument.high)).all())


def _padding(argument: Argument, pointers: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The lanes of a tile that lie beyond the ends of rows, or beyond the last row.

    Coordinates are extrapolated from the tile's first lanes. If unmasked lanes would lie beyond an
    end, the tile does not follow the rows, and no lane is padding.
    """
    none, shape = np.zeros(pointers.size, dtype=bool), pointers.shape
    tensor = argument.tensor
    if tensor.dim() < 2 or argument.overlaps:
        return none
    first = (0,) * len(shape)
    corners = [first, *((*first[:a], 1, *first[a + 1 :]) for a, n in enumerate(shape) if n > 1)]
    addresses = np.array([pointers[corner] for corner in corners])
    if not holds(argument, addresses):
        return none
    coordinates = argument.coordinates(argument.elements(addresses))
    if coordinates is None:
        return none
    lanes = np.indices(shape).reshape(len(shape), -1)[[n > 1 for n in shape]]
    beyond = none.copy()
    for index, size in zip(coordinates, tensor.shape):
        index = index.astype(np.int64)
        at = index[0] + np.tensordot(index[1:] - index[0], lanes, axes=1)
        beyond |= (at < 0) | (at >= size)
    return none if beyond[mask].any() else beyond


def _lane(store: Store | None, number: Any) -> tuple[int, ...]:
    if store is None:
        return ()
    return tuple(int(i) for i in np.unravel_index(int(number), store.shape))


def address_of(tensor: Tensor, index: tuple[int, ...]) -> int:
    """The memory address of an element."""
    offset = sum(i * s for i, s in zip(index, tensor.stride()))
    return tensor.data_ptr() + offset * tensor.element_size()
