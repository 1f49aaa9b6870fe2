"""Replays an op's call that equals an earlier one: only its launches are repeated.

The launches of a call follow from what :class:`Plan` compares, except for addresses and a few
numbers: the tensors' classes, dtypes, shapes, strides, devices, alignments, dispatch keys (which
differ for lazily negated views, wrappers and modes) and whether they require grad; and the other
arguments. So the second of such calls is recorded: every launch, with the origin of each of its
arguments. Later calls allocate new results and start the same kernels. They need no checks, because
these would have the same outcome as for the recorded call.

The comparison is done by torch's C++ code (the guards of torch.compile) and takes less time than
reading a tensor's shape. Nothing is replayed while something observes calls or launches: inside
:func:`triton_kernels.interpret` and ``annotate()``, under Triton's hooks, dispatch modes and
transforms, and with ``out=``. A call with an argument of unknown origin, such as a copy that an op
makes of an input, is not recorded, and runs as the first call did.
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
# None if this version of torch lacks it: then no call is recorded.
TensorGuards: Any = getattr(_guards, "TensorGuards", None)
empty: Any = getattr(_guards, "_empty_strided_cuda", None)
dispatch_modes: Any = getattr(torch._C, "_len_torch_dispatch_stack", None)

DEVICES = ("cuda",)
ALIKE = 8  # plans kept per key; a key has the first tensor's shape and dtype, not the others'
_CALL = Launch.__call__  # annotating replaces it

current_device, current_stream = _launch.current_device, _launch.current_stream
# (device, whether a plan has descriptors): the kinds of plans that failed, and that were tested.
_wrong: set[tuple[int, bool]] = set()
_tested: set[tuple[int, bool]] = set()


class Replays:
    """The recorded calls of one op.

    Args:
        launch: the op on plain tensors.
        count: the number of its arguments.
        tensors: the indices of tensors; the first of these is never None.
        numbers: index of a number that a kernel takes unchanged → its index among the kernel's
            arguments.
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
        self.seen: dict[Any, int] = {}  # key → the number of its calls that were not replayed
        _known_calls.every.add(self)

    def forget(self) -> None:
        """Forget the recorded calls."""
        self.plans.clear()
        self.seen.clear()

    def again(self, args: tuple[Any, ...]) -> Any:
        """Replay a call and return its results. None if no plan fits, or nothing may be replayed
        now. ``DIFFERENTIATED`` if a plan fits, but autograd must record the call."""
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
        """Run a call without replaying it and return its results. A repeated call is recorded,
        unless it is part of another call that is being recorded."""
        key = self._key(args) if _launch.recorder.now is None else None
        if key is None:
            return self._launch(*args)
        times = self.seen.get(key, 0)
        if len(self.seen) >= REMEMBERED:
            self.seen.clear()
        self.seen[key] = times + 1
        if not 1 <= times <= 2 * ALIKE or torch.cuda.is_current_stream_capturing():
            return self._launch(*args)  # during the capture of a CUDA graph no plan can be tested
        with _launch.recording() as recording:
            results = self._launch(*args)
        plan = _plan(args, results, self._tensors, self._numbers, self._rest, recording)
        if plan is not None and _right(plan, args, results):
            if len(self.plans) >= REMEMBERED:
                self.plans.clear()
            self.plans[key] = [plan, *self.plans.get(key, ())][:ALIKE]
        return results

    def _key(self, args: tuple[Any, ...]) -> Any:
        """The key of a call, or None if it cannot be recorded."""
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
    """Whether something observes calls or launches of a kernel, or changes how they run. That
    includes the recording of another op that calls this one."""
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
        sizes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
        guards = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        self._alike = guards.check
        self._guards = guards  # the method does not keep them alive
        self._take, self._absent = _getter(places), tuple(absent)
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
    """operator.itemgetter that returns a tuple for any number of indices, also for none and one."""
    if not places:
        return _nothing
    if len(places) == 1:
        return itemgetter(slice(places[0], places[0] + 1))
    return itemgetter(*places)


def _nothing(args: Any) -> tuple[Any, ...]:
    return ()


# ---- Making a plan from a recording ----


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
    if len(slots) != len(addresses):  # a launch's argument could be either of two slots
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
    arrange = _getter([base[kind] + index for kind, index in where])
    return _Step(start, grid, arrange, tuple(constants), tuple(maps))


def _right(plan: Plan, args: tuple[Any, ...], results: Any) -> bool:
    """Whether a plan may be used. On each device the first plan, and the first one with
    descriptors, is run and compared with the recorded call."""
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
        except Exception as raised:  # noqa: BLE001 - after any error, calls are not replayed
            error = f"{type(raised).__name__}: {raised}"
        if error:
            _wrong.add(kind)
            warnings.warn(
                "repeated calls take longer from now on, because starting a kernel by Triton's C "
                f"launcher fails; please report it: {error}",
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
