"""A recorded call of an op, from which only the launches are repeated; and how it is made.

:mod:`triton_kernels._replay` says when a call is recorded, and when it is repeated.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from triton_kernels import _launch, _memory, _starting
from triton_kernels._counts import cdiv
from triton_kernels._launch import divisibility
from triton_kernels._scalars import as_argument

_guards: Any = torch._C._dynamo.guards
# None if this version of torch lacks it: then no call is recorded.
TensorGuards: Any = getattr(_guards, "TensorGuards", None)
empty: Any = getattr(_guards, "_empty_strided_cuda", None)

current_device, current_stream = _launch.current_device, _launch.current_stream


class _Step(NamedTuple):
    """One launch.

    Attributes:
        start: starts the kernel.
        grid: its grid.
        arrange: picks the launch's arguments from (slots, constants, descriptors).
        constants: arguments that are equal in every call.
        maps: descriptors, each with the slot that holds its matrix's address.
    """

    start: _starting.Start
    grid: tuple[int, int, int]
    arrange: Callable[[Any], tuple[Any, ...]]
    constants: tuple[Any, ...]
    maps: tuple[tuple[_starting.Map, int], ...]


class Count(NamedTuple):
    """The place of the number of elements among a launch's arguments, and how many elements a
    program has."""

    place: int
    per_program: int


# Called with a launch's kernel and arguments. None if more than the count depends on the sizes.
Counted = Callable[[Any, Sequence[Any]], Count | None]


class _Number(NamedTuple):
    """A number among a call's arguments: its index, its class, its conversion for the kernel."""

    place: int
    kind: type
    converted: Callable[[Any], Any]


class Plan:
    """A recorded call. Calling the plan with the arguments of an equal call launches its kernels.

    Its slots are the addresses of the tensors, then the numbers, then the addresses of allocated
    tensors, of which the results are first.
    """

    def __init__(
        self,
        tensors: list[Tensor],
        places: list[int],
        absent: list[int],
        rest: tuple[Any, ...],
        take_rest: Callable[[Any], tuple[Any, ...]],
        numbers: list[_Number],
        allocated: list[Tensor],
        results: int | None,
        kernel: Any,
        steps: list[_Step],
        of_stream: list[Tensor],
    ) -> None:
        sizes, strides = self._sizes(tensors)
        guards = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        self._alike = guards.check
        self._guards = guards  # the method does not keep them alive
        self._take, self._absent = getter(places), tuple(absent)
        self._take_rest, self._kinds = take_rest, [*map(type, rest)]
        self._numbers, self._steps = tuple(numbers), tuple(steps)
        self._aligned = tuple(t.data_ptr() % 16 == 0 for t in tensors)
        self._allocated = [(tuple(t.shape), t.stride(), t.dtype) for t in allocated]
        self._results = results
        self._device: int = tensors[0].get_device()
        self._of_stream = of_stream  # kept alive, because their addresses are constants
        self._stream = current_stream(self._device) if of_stream else None
        self.kernel = kernel
        self.requires_grad = any(t.requires_grad for t in tensors)

    def _sizes(self, tensors: list[Tensor]) -> tuple[list[Any], list[Any]]:
        """The sizes and strides that a call must have; None for one that may have any value."""
        return [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]

    def fits(self, args: tuple[Any, ...]) -> bool:
        """Whether a call equals the recorded one, except for alignments and values of numbers."""
        if not self._alike(*self._take(args)):
            return False
        if self._kinds and [*map(type, self._take_rest(args))] != self._kinds:
            return False
        for place in self._absent:
            if args[place] is not None:
                return False
        for place, kind, _ in self._numbers:  # noqa: SIM110 - a generator takes longer
            if type(args[place]) is not kind:
                return False
        return True

    def __call__(self, args: tuple[Any, ...]) -> Any:
        """Launch and return the results; None if this call cannot be replayed."""
        given = self._given(args)
        if given is None:
            return None
        stream, slots = given
        allocated = []
        for shape, strides, dtype in self._allocated:
            t = empty(shape, strides, dtype)
            allocated.append(t)
            slots.append(t.data_ptr())
        for start, grid, arrange, constants, maps in self._steps:
            if maps:
                made = [make(slots[slot]) for make, slot in maps]
                start(*grid, stream, arrange((*slots, *constants, *made)))
            else:
                start(*grid, stream, arrange((*slots, *constants)))
        return allocated[0] if self._results is None else tuple(allocated[: self._results])

    def _given(self, args: tuple[Any, ...]) -> tuple[int, list[Any]] | None:
        """The stream, and the slots of what is given: addresses and numbers. None as above."""
        device = self._device
        if current_device() != device:
            return None
        stream = current_stream(device)
        if self._stream is not None and (
            self._stream != stream or torch.cuda.is_current_stream_capturing()
        ):
            return None
        slots = []
        for t, aligned in zip(self._take(args), self._aligned):
            address = t.data_ptr()
            if (address % 16 == 0) is not aligned or not (
                address >= _memory.LOW or _memory.there(t)
            ):
                return None
            slots.append(address)
        for place, _, converted in self._numbers:
            try:
                slots.append(converted(args[place]))
            except OverflowError:
                return None
        return stream, slots


class FlatPlan(Plan):
    """A recorded call of an elementwise op on dense tensors, for calls of every number of elements.

    The first tensor has the result's shape. Another one has it, too, or is a row that repeats: its
    shape, without leading ones, is the result's last dimensions. The number of elements has a slot
    after the other numbers, and decides the grid.
    """

    def __init__(self, tensors: list[Tensor], *args: Any, per_program: int) -> None:
        shape = tensors[0].shape
        self._rows = [() if t.shape == shape else _row(t) for t in tensors[1:]]
        super().__init__(tensors, *args)
        self._per_program, self._kind = per_program, divisibility(tensors[0].numel())

    def _sizes(self, tensors: list[Tensor]) -> tuple[list[Any], list[Any]]:
        sizes, strides = super()._sizes(tensors)
        for i, row in enumerate([(), *self._rows]):
            if not row:
                sizes[i] = strides[i] = [None] * tensors[i].dim()
        return sizes, strides

    def fits(self, args: tuple[Any, ...]) -> bool:
        """Whether a call equals the recorded one, except for sizes and what Plan's does not
        compare."""
        if not super().fits(args):
            return False
        x, *others = self._take(args)
        shape = x.shape
        if not x.is_contiguous():
            return False
        for t, row in zip(others, self._rows):
            if row:
                if shape[-len(row) :] != row:
                    return False
            elif t.shape != shape or not t.is_contiguous():
                return False
        return True

    def __call__(self, args: tuple[Any, ...]) -> Any:
        """Launch and return the result; None if this call cannot be replayed."""
        given = self._given(args)
        x = self._take(args)[0]
        n = x.numel()
        if given is None or not n or divisibility(n) != self._kind:
            return None
        stream, slots = given
        ((_, _, dtype),) = self._allocated
        out = empty(tuple(x.shape), x.stride(), dtype)
        ((start, _, arrange, constants, _),) = self._steps
        arguments = arrange((*slots, n, out.data_ptr(), *constants))
        start(cdiv(n, self._per_program), 1, 1, stream, arguments)
        return out


def _row(t: Tensor) -> torch.Size:
    """The shape without leading ones."""
    leading = next((i for i, size in enumerate(t.shape) if size != 1), t.dim())
    return t.shape[leading:]


def getter(places: Sequence[int]) -> Callable[[Any], tuple[Any, ...]]:
    """operator.itemgetter that returns a tuple for any number of indices, also for none and one."""
    if not places:
        return _nothing
    if len(places) == 1:
        return itemgetter(slice(places[0], places[0] + 1))
    return itemgetter(*places)


def _nothing(args: Any) -> tuple[Any, ...]:
    return ()


# ---- Making a plan from a recording ----


def made_from(
    recording: _launch.Recording,
    args: tuple[Any, ...],
    results: Any,
    positions: tuple[int, ...],
    numbers: Mapping[int, int],
    take_rest: Callable[[Any], tuple[Any, ...]],
    counted: Counted | None,
) -> Plan | None:
    """The plan of a recorded call; None if it cannot be replayed."""
    places = [i for i in positions if args[i] is not None]
    tensors = [args[i] for i in places]
    made = list(results) if isinstance(results, tuple) else [results]
    rest = take_rest(args)
    allocated = [*made, *recording.workspaces]
    if not recording.launches or not all(isinstance(t, Tensor) for t in (*tensors, *allocated)):
        return None
    if any(type(t) is not Tensor for t in allocated) or not all(map(_exact, rest)):
        return None
    device = tensors[0].device
    if any(t.device != device for t in (*tensors, *allocated)):
        return None
    count = _only_counted(tensors, results, recording, counted)
    there = [*tensors, *numbers, *([] if count is None else [count]), *allocated]
    addresses = {i: t.data_ptr() for i, t in enumerate(there) if isinstance(t, Tensor) if t.numel()}
    slots = {address: slot for slot, address in addresses.items()}
    if len(slots) != len(addresses):  # a launch's argument could be either of two slots
        return None
    taken = [_number(args[place], place, made[0].dtype) for place in numbers]
    if any(number is None for number in taken):
        return None
    known = [*numbers.values(), *([] if count is None else [count.place])]
    given = {kernel: len(tensors) + i for i, kernel in enumerate(known)}
    steps = [
        _step(*launched, slots, len(there), given, recording.of_stream)
        for launched in recording.launches
    ]
    if any(step is None for step in steps):
        return None
    kind: Callable[..., Plan] = Plan
    if count is not None:
        kind = functools.partial(FlatPlan, per_program=count.per_program)
    return kind(
        tensors,
        places,
        [i for i in positions if args[i] is None],
        rest,
        take_rest,
        [number for number in taken if number is not None],
        allocated,
        len(made) if isinstance(results, tuple) else None,
        recording.launches[0][0],
        [step for step in steps if step is not None],
        recording.of_stream,
    )


def _only_counted(
    tensors: list[Tensor], results: Any, recording: _launch.Recording, counted: Counted | None
) -> Count | None:
    """The count, if nothing in the call but its number of elements depends on its sizes."""
    if (
        counted is None
        or len(recording.launches) != 1
        or recording.workspaces
        or not isinstance(results, Tensor)
    ):
        return None
    kernel, _, _, arguments = recording.launches[0]
    count = counted(kernel, arguments)
    shape = tensors[0].shape
    if count is None or results.shape != shape:
        return None
    rows = [_row(t) for t in tensors if t.shape != shape]
    if not all(row and shape[-len(row) :] == row for row in rows):
        return None
    if not all(t.is_contiguous() for t in tensors):
        return None
    return count


def _exact(value: Any) -> bool:
    """Whether a value of the same class that compares equal has the same meaning to an op."""
    if isinstance(value, float):
        return value != 0 and not math.isnan(value)  # 0.0 equals −0.0
    return not isinstance(value, (tuple, list)) or type(value) is torch.Size


def _number(value: Any, place: int, dtype: torch.dtype) -> _Number | None:
    """A number among the arguments, for results of a dtype; None if it cannot be replayed."""
    kind = type(value)
    if kind not in (int, float):
        return None
    if dtype == torch.float64:
        return _Number(place, kind, _bits)
    if dtype.is_floating_point:
        return _Number(place, kind, float)
    return _Number(place, kind, _small) if _fits_all(value) else None


def _bits(value: int | float) -> int | float:
    return as_argument(float(value), torch.float64)


def _small(value: int) -> int:
    """An integer that every dtype can hold. Raises OverflowError for others, which the op wraps."""
    if not _fits_all(value):
        raise OverflowError
    return value


def _fits_all(value: int) -> bool:
    return -128 <= value < 128


def _step(
    kernel: Any,
    grid: tuple[int, int, int],
    compiled: Any,
    args: tuple[Any, ...],
    slots: Mapping[int, int],
    count: int,
    numbers: Mapping[int, int],
    of_stream: Sequence[Tensor],
) -> _Step | None:
    """A launch whose arguments are slots, constants and descriptors of slots; None if one is of
    unknown origin."""
    start, taken = _starting.start(compiled), _starting.pieces(compiled, args)
    if start is None or taken is None:
        return None
    constants: list[Any] = []
    maps: list[tuple[_starting.Map, int]] = []
    where: list[tuple[str, int]] = []
    shared = {t.data_ptr() for t in of_stream}
    for place, value in enumerate(taken):
        if place in numbers:
            where.append(("slot", numbers[place]))
        elif isinstance(value, _starting.Map):
            where.append(("map", len(maps)))
            maps.append((value, slots.get(value.address, -1)))
        elif isinstance(value, Tensor) and value.data_ptr() in shared:
            where.append(("constant", len(constants)))
            constants.append(value.data_ptr())
        elif isinstance(value, Tensor):
            where.append(("slot", slots.get(value.data_ptr(), -1)))
        else:
            where.append(("constant", len(constants)))
            constants.append(value)
    # A tensor at no known address is a copy, or another view.
    if ("slot", -1) in where or any(slot < 0 for _, slot in maps):
        return None
    base = {"slot": 0, "constant": count, "map": count + len(constants)}
    arrange = getter([base[kind] + index for kind, index in where])
    return _Step(start, grid, arrange, tuple(constants), tuple(maps))
