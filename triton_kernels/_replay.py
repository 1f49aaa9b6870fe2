"""A call like one before: its launches again, and nothing else.

Of an op's call everything but addresses and a few numbers follows from what :class:`Plan` compares:
the tensors' classes, dtypes, shapes, strides, devices, dispatch keys (which tell views that are
lazily negated, wrappers and modes), whether they require grad and how they are aligned, and the
other arguments. So a second call that is alike is recorded, every launch with what each of its
arguments is, and later ones take new memory for the results and start the same kernels. All checks
of the arguments have then been passed: by a call that could only fail as this one would.

What is compared is compared by torch's own C++ (the guards of torch.compile), in less time than it
takes to ask for a shape. Nothing is replayed where somebody looks on: inside of
:func:`triton_kernels.interpret` and ``annotate()``, under hooks of Triton's, dispatch modes and
transforms, and with ``out=``. What is not understood, such as a copy that an op makes of an
argument, is not recorded, and runs as the first call did.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from triton_kernels import _known_calls, _launch, _memory, _modes, _starting
from triton_kernels._launch import REMEMBERED, Launch
from triton_kernels._scalars import as_argument

_guards: Any = torch._C._dynamo.guards
# None where another version of torch has none: then no call is recorded.
TensorGuards: Any = getattr(_guards, "TensorGuards", None)
empty: Any = getattr(_guards, "_empty_strided_cuda", None)
dispatch_modes: Any = getattr(torch._C, "_len_torch_dispatch_stack", None)

DEVICES = ("cuda",)
ALIKE = 8  # calls that one key keeps: with first tensors of one shape and dtype, others of any
_CALL = Launch.__call__  # annotating puts another in its place

current_device, current_stream = _launch.current_device, _launch.current_stream
_wrong: set[tuple[int, bool]] = set()  # devices where a plan has failed; whether by descriptors
_tested: set[tuple[int, bool]] = set()


class Replays:
    """The calls of one op that may come again.

    Args:
        launch: the op on plain tensors.
        count: how many arguments it has.
        tensors: which of them are tensors; the first of these never is None.
        numbers: which are numbers that a kernel takes as they are, and as which of its arguments.
    """

    def __init__(
        self,
        launch: Callable[..., Any],
        count: int,
        tensors: Sequence[int],
        numbers: Mapping[int, int],
    ) -> None:
        self.plans: dict[Any, list[Plan]] = {}
        self._launch, self._tensors, self._numbers = launch, tuple(tensors), numbers
        self._first = tensors[0]
        rest = [i for i in range(count) if i not in (*tensors, *numbers)]
        self._rest = _getter(rest)
        self.seen: dict[Any, int] = {}  # key → how many of its calls were not replayed
        _known_calls.every.add(self)

    def forget(self) -> None:
        """Forget them."""
        self.plans.clear()
        self.seen.clear()

    def again(self, args: tuple[Any, ...]) -> Any:
        """The results of a call like one before; None if it is not, or if nothing may be replayed
        now; ``DIFFERENTIATED`` if it is, but autograd is to follow it."""
        first = args[self._first]
        kind = type(first)
        if (kind is not Tensor and kind is not Parameter) or _known_calls.suspensions:
            return None
        try:
            plans = self.plans.get((first.shape, first.dtype, self._rest(args)))
        except (RuntimeError, TypeError):  # a NestedTensor has no shape; a list has no hash
            return None
        if plans is None:
            return None
        for plan in plans:
            if plan.fits(args):
                if _observed(plan.kernel):
                    return None
                if plan.requires_grad and torch.is_grad_enabled():
                    return DIFFERENTIATED
                results = plan(args)
                if results is not None:
                    return results
        return None

    def __call__(self, args: tuple[Any, ...]) -> Any:
        """The results of a call that is not replayed; one that comes again is recorded, unless it
        is part of another that is."""
        key = self._key(args) if _launch.recorder.now is None else None
        if key is None:
            return self._launch(*args)
        times = self.seen.get(key, 0)
        if len(self.seen) >= REMEMBERED:
            self.seen.clear()
        self.seen[key] = times + 1
        if not 1 <= times <= 2 * ALIKE or torch.cuda.is_current_stream_capturing():
            return self._launch(*args)  # while one is captured, no plan can be tested
        with _launch.recording() as recording:
            results = self._launch(*args)
        plan = _plan(args, results, self._tensors, self._numbers, self._rest, recording)
        if plan is not None and _right(plan, args, results):
            if len(self.plans) >= REMEMBERED:
                self.plans.clear()
            self.plans[key] = [plan, *self.plans.get(key, ())][:ALIKE]
        return results

    def _key(self, args: tuple[Any, ...]) -> Any:
        """What calls are kept by; None of calls that are not."""
        if None in (TensorGuards, empty, dispatch_modes) or _known_calls.suspensions:
            return None
        first = args[self._first]
        if type(first) not in (Tensor, Parameter) or first.device.type not in DEVICES:
            return None
        try:
            key = first.shape, first.dtype, self._rest(args)
            hash(key)
        except (RuntimeError, TypeError):  # as in again()
            return None
        return key


def _observed(kernel: Any) -> bool:
    """Whether somebody follows calls or launches of a kernel, or would have them run otherwise: an
    op that calls this one, and is recorded, would miss what is replayed."""
    return bool(
        dispatch_modes()
        or forward_ad._current_level >= 0
        or Launch.__call__ is not _CALL
        or _modes.interpreting_thread is not None
        or _modes.compiling_thread is not None
        or _launch.recorder.now is not None
        or _starting.watched(kernel)
    )


DIFFERENTIATED = object()


class _Step(NamedTuple):
    """One launch: the start, its grid, which of the slots and constants its arguments are, the
    constants, and descriptors with the slot that each is made of."""

    start: _starting.Start
    grid: tuple[int, int, int]
    arrange: Callable[[Any], tuple[Any, ...]]
    constants: tuple[Any, ...]
    maps: tuple[tuple[_starting.Map, int], ...]


class _Number(NamedTuple):
    """A number among the call's arguments: where, of what class, as what a kernel takes it."""

    place: int
    kind: type
    converted: Callable[[Any], Any]


class Plan:
    """What calls that are alike have in common; called with the arguments of another one, it
    launches.

    Its slots are the addresses of the tensors, the numbers, then the addresses of what is
    allocated, results first.
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
        sizes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
        guards = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        self._alike = guards.check
        self._guards = guards  # which the method does not keep alive
        self._take, self._absent = _getter(places), tuple(absent)
        self._take_rest, self._kinds = take_rest, [*map(type, rest)]
        self._numbers, self._steps = tuple(numbers), tuple(steps)
        self._aligned = tuple(t.data_ptr() % 16 == 0 for t in tensors)
        self._allocated = [(tuple(t.shape), t.stride(), t.dtype) for t in allocated]
        self._results = results
        self._device: int = tensors[0].get_device()
        self._of_stream = of_stream  # whose addresses are constants: not to be freed
        self._stream = current_stream(self._device) if of_stream else None
        self.kernel = kernel
        self.requires_grad = any(t.requires_grad for t in tensors)

    def fits(self, args: tuple[Any, ...]) -> bool:
        """Whether a call is alike, but for its alignment and what its numbers are."""
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
        """The results; None if the call is not alike after all."""
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


def _getter(places: Sequence[int]) -> Callable[[Any], tuple[Any, ...]]:
    """operator.itemgetter for any number of places, none and one included."""
    if not places:
        return _nothing
    if len(places) == 1:
        return itemgetter(slice(places[0], places[0] + 1))
    return itemgetter(*places)


def _nothing(args: Any) -> tuple[Any, ...]:
    return ()


# ---- From a recording to a plan ----


def _plan(
    args: tuple[Any, ...],
    results: Any,
    positions: tuple[int, ...],
    numbers: Mapping[int, int],
    take_rest: Callable[[Any], tuple[Any, ...]],
    recording: _launch.Recording,
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
    there = [*tensors, *numbers, *allocated]
    addresses = {i: t.data_ptr() for i, t in enumerate(there) if isinstance(t, Tensor) if t.numel()}
    slots = {address: slot for slot, address in addresses.items()}
    if len(slots) != len(addresses):  # which of two a launch means cannot be told
        return None
    taken = [_number(args[place], place, made[0].dtype) for place in numbers]
    if any(number is None for number in taken):
        return None
    given = {kernel: len(tensors) + i for i, kernel in enumerate(numbers.values())}
    steps = [
        _step(*launched, slots, len(there), given, recording.of_stream)
        for launched in recording.launches
    ]
    if any(step is None for step in steps):
        return None
    return Plan(
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


def _exact(value: Any) -> bool:
    """Whether what is equal to a value and of its class is the same to an op."""
    if isinstance(value, float):
        return value != 0 and not math.isnan(value)  # there are two zeros
    return not isinstance(value, (tuple, list)) or type(value) is torch.Size


def _number(value: Any, place: int, dtype: torch.dtype) -> _Number | None:
    """How a kernel takes a number, for results of a dtype."""
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
    """An integer that every dtype holds; others are wrapped by the op itself."""
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
    """A launch, of whose arguments each is a slot, a constant or made of a slot."""
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
    if ("slot", -1) in where or any(slot < 0 for _, slot in maps):  # a copy, or another view
        return None
    base = {"slot": 0, "constant": count, "map": count + len(constants)}
    arrange = _getter([base[kind] + index for kind, index in where])
    return _Step(start, grid, arrange, tuple(constants), tuple(maps))


def _right(plan: Plan, args: tuple[Any, ...], results: Any) -> bool:
    """Whether a plan may be used. The first on each device, and the first of descriptors there, is
    held against the call that it was made of."""
    by_maps = any(step.maps for step in plan._steps)
    kind = plan._device, by_maps
    if kind not in _tested:
        _tested.add(kind)
        try:
            with torch.no_grad():
                again = plan(args)
                pairs = zip(*(r if isinstance(r, tuple) else (r,) for r in (again, results)))
                same = again is not None and all(_same(a, b) for a, b in pairs)
            error = "" if same else "it gives another result"
        except torch.OutOfMemoryError:
            _tested.discard(kind)
            return False
        except Exception as raised:  # noqa: BLE001 - whatever it is, there is the other way
            error = f"{type(raised).__name__}: {raised}"
        if error:
            _wrong.add(kind)
            warnings.warn(
                "calls that come again take longer from now on, since to start a kernel by "
                f"Triton's C launcher fails; please report it: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
    return kind not in _wrong


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two dense tensors have the same bits."""
    if a.stride() != b.stride():
        return False
    first, second = (t.clone(memory_format=torch.contiguous_format).view(-1) for t in (a, b))
    return torch.equal(first.view(torch.uint8), second.view(torch.uint8))
