"""Keeps repeated calls: their checks and the arguments of their launch are reused.

Checking a call and describing its tensors for a launcher takes Python many times as long as torch
takes for a whole op. Nearly all of that depends only on dtypes, shapes, strides and other
arguments. So a call that succeeded twice is kept under a key of these (:func:`ordinary`), as its
only launch with the argument objects (:class:`Prepared`). A later call with this key sets the
addresses and launches. Of the first call only the key is kept, because keeping a call takes as long
as checking it, and with ever new shapes no call is repeated. Some conditions are not part of the
key and are checked in every call: memory, gradients, negated views, the position of ``out``
relative to the inputs, the current device and stream. If one of them differs, the call is checked
from the beginning.

If the tensors have a form (_forms.py), the key has the form instead of shapes and strides. Then a
call with new shapes also is a repeated one: the numbers of its form are set with the addresses.

All addresses of a launch must be those of the call's tensors, or a workspace, which is allocated
anew for every launch. A call whose launch has another address, such as that of a copy, is not kept.
The key records which tensors have one address, so
that it does not matter which of them an argument was.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cuda_reference import _compilers, _launch
from cuda_reference._forms import Form
from cuda_reference._memory import NEVER, has_memory

_ALIGNED = 16  # bytes; the choice of a rung depends on addresses modulo this
_CONSTANTS = frozenset({int, bool, str, type(None), torch.dtype})
_SEQUENCES = frozenset({tuple, list, torch.Size})
TENSORS = frozenset({Tensor, torch.nn.Parameter})

# Called with the tensors among a call's arguments, those of ``out`` last, and all arguments.
FormOf = Callable[[Sequence[Tensor], tuple[Any, ...]], Form | None]


# A call that may be kept: its key, which it has in common with calls for which the same launch is
# right; the tensors among its arguments, those of ``out`` last; their addresses, and their form.
Call = tuple[tuple[Any, ...], list[Tensor], list[int], Form | None]


def ordinary(args: tuple[Any, ...], form_of: FormOf | None = None) -> Call | None:
    """A call, of whose arguments those for ``out`` are last. None if it cannot be kept: for
    subclasses, inputs that need a gradient, lazily negated views, tensors without memory, and
    values that may compare equal but differ."""
    grad = torch.is_grad_enabled()
    key: list[Any] = [torch.get_default_dtype()]  # to which Python's floats promote integers
    tensors: list[Tensor] = []
    addresses: list[int] = []
    sequences: list[Any] = []
    try:
        for value in args:
            kind = type(value)
            if kind in TENSORS:
                address = value.data_ptr()
                # A fast test for most tensors; some processes have memory at lower addresses.
                if address <= NEVER and not has_memory(value):
                    return None
                if (grad and value.requires_grad) or value.is_neg():
                    return None
                if value.layout is not torch.strided:
                    return None
                tensors.append(value)
                addresses.append(address)
                key += (value.dtype, value.device, address % _ALIGNED)
            elif kind in _CONSTANTS:
                key += (kind, value)
            elif kind is float:
                key.append(value.hex())  # tells −0 from 0, and NaN equals NaN
            elif kind in _SEQUENCES and all(type(n) is int for n in value):
                key.append(kind)
                sequences.append(tuple(value))
            else:
                return None
        form = None if form_of is None else form_of(tensors, args)
        if form is None:
            for value in tensors:
                key += (value.shape, value.stride())
            key += sequences
        else:
            key.append(form.layouts)
    except (RuntimeError, ValueError):  # a tensor that has no address or no strides
        return None
    if len(set(addresses)) < len(addresses):
        key.append(tuple(map(addresses.index, addresses)))
    return tuple(key), tensors, addresses, form


class _New(NamedTuple):
    """A result that a call allocates. With a form, the form has its shape and strides."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class _Slots(NamedTuple):
    """What a later call changes in the arguments of a launch.

    Attributes:
        addresses: pointers, each with the index of its tensor.
        numbers: numbers of the form, each with its name.
    """

    addresses: list[tuple[ctypes.c_void_p, int]]
    numbers: list[tuple[ctypes.c_longlong, str]]


class Prepared:
    """The launch of one key. It is removed from its table while it runs, so that two threads never
    set addresses at the same time.

    Args:
        noted: the launch.
        slots: what differs in a later call.
        results: what the call returned.
        call: the call that made the launch.
        given: how many of its tensors are ``out``.
        new: the results that it allocates.
    """

    def __init__(
        self,
        noted: _launch.Noted,
        slots: _Slots,
        results: Sequence[Tensor],
        call: Call,
        given: int,
        new: Sequence[_New],
    ) -> None:
        _, tensors, _, form = call
        self._library, self._symbol = noted.library, noted.symbol
        inputs = tensors[: len(tensors) - given]
        self._told = _places(noted.told, [*inputs, *results])
        self._entry = getattr(noted.library, noted.symbol)
        self._slots, self._numbers, self._new = slots.addresses, slots.numbers, new
        device = tensors[0].device
        self._index = device.index if device.type == "cuda" else None
        self._tool = None if device.type == "cuda" else _compilers._sanitizer()
        self._stream = ctypes.c_void_p(None)
        self._arguments = (*noted.arguments, self._stream)
        lent = [each for each in noted.arguments if isinstance(each, _launch.Workspace)]
        assert len(lent) < 2, "a launch has one workspace"
        self._workspace = lent[0] if lent else None
        self._checked = _relations(call, given)
        # Of a form, whose tensors are contiguous, the bytes of an element; else of all.
        self._bytes = [t.element_size() if form else _extent(t) for t in tensors]

    def again(self, call: Call, outs: tuple[Tensor, ...]) -> Any:
        """Launch with new addresses. Returns the result or results, or None if the call must be
        checked from the beginning."""
        _, tensors, addresses, form = call
        if self._checked:
            extents = self._bytes
            if form is not None:
                extents = [t.numel() * size for t, size in zip(tensors, extents)]
            for at, other, accepted in self._checked:
                apart = addresses[at] - addresses[other]
                if -extents[at] < apart < extents[other] and apart != accepted:
                    return None  # the checks must decide
        if self._index is not None:
            if torch._C._cuda_getDevice() != self._index:
                return None
            self._stream.value = _launch.current_stream(self._index)
        elif _compilers._sanitizer() != self._tool:  # another library is needed
            return None
        results: list[Tensor] | tuple[Tensor, ...] = outs
        if outs:
            _launch.count_up(outs)
        else:
            results = []
            for shape, strides, dtype, on in self._new:
                if form is not None:
                    shape, strides = form.shape, form.strides
                # It takes half the time of torch.empty.
                made = torch.empty_strided(shape, strides, dtype=dtype, device=on)
                address = made.data_ptr()
                if (address <= NEVER and not has_memory(made)) or address % _ALIGNED:
                    return None
                results.append(made)
                addresses = [*addresses, address]
        for pointer, at in self._slots:
            pointer.value = addresses[at]
        if form is not None:
            numbers = form.numbers
            for number, name in self._numbers:
                number.value = numbers[name]
        if self._workspace is None:
            status = self._entry(*self._arguments)
        else:
            with self._workspace:
                status = self._entry(*self._arguments)
        if status:
            every = tensors if outs else [*tensors, *results]
            told = {name: value if at is None else every[at] for name, at, value in self._told}
            raise _launch.failure(self._library, status, self._symbol, _launch.shapes(told))
        return tuple(results) if len(results) > 1 else results[0]


def _extent(t: Tensor) -> int:
    """The bytes from a tensor's first to its last element."""
    last = sum([(n - 1) * stride for n, stride in zip(t.shape, t.stride())])
    return (last + 1) * t.element_size()


def _relations(call: Call, given: int) -> list[tuple[int, int, int]]:
    """For each given ``out`` and every tensor before it: their indices, and the distance of their
    addresses, which the checks accepted. With other numbers of a form only 0 would be accepted,
    which the key records."""
    _, _, addresses, form = call
    count = len(addresses)
    return [
        (at, other, 0 if form is not None else addresses[at] - addresses[other])
        for at in range(count - given, count)
        for other in range(at)
    ]


def _places(told: Mapping[str, Any], tensors: list[Tensor]) -> list[tuple[str, int | None, Any]]:
    """What an error tells: names, each with the index of its tensor, which is not kept, or with
    another value."""
    places = {id(t): at for at, t in enumerate(tensors)}
    return [
        (name, places.get(id(value)), list(value.shape) if isinstance(value, Tensor) else value)
        for name, value in told.items()
    ]


def prepared(
    noted: Sequence[_launch.Noted], call: Call, outs: tuple[Tensor, ...], result: Any
) -> Prepared | None:
    """The prepared launch of a call that has just succeeded. None if the call did not make exactly
    one launch, or if the launch used other memory than its tensors', or numbers that are not known
    to be those of its form.

    Args:
        noted: the launches of the call.
        outs: the tensors given for its results.
        result: the result of the call.
    """
    _, tensors, addresses, form = call
    results = result if isinstance(result, tuple) else (result,)
    if len(noted) != 1 or not all(t.numel() for t in (*tensors, *results)):
        return None
    (launch,) = noted
    if not outs:
        addresses = [*addresses, *[t.data_ptr() for t in results]]
    slots = _Slots([], [])
    for argument in launch.arguments:
        if isinstance(argument, _launch.Workspace):
            continue
        pointer = _pointer(argument)
        if pointer is not None and pointer.value is not None:
            if pointer.value not in addresses:
                return None
            slots.addresses.append((pointer, addresses.index(pointer.value)))
        described = getattr(argument, "_obj", None)  # of ctypes.byref
        if form is not None and described is not None:
            marks = getattr(described, "marks", None)
            if marks is None:
                return None
            for offset, name in marks:
                slots.numbers.append((ctypes.c_longlong.from_buffer(described, offset), name))
    new = () if outs else [_New(t.shape, t.stride(), t.dtype, t.device) for t in results]
    return Prepared(launch, slots, results, call, len(outs), new)


def _pointer(argument: Any) -> ctypes.c_void_p | None:
    """The address in an argument of a launcher, as an object through which it can be changed; None
    if the argument has no address."""
    if isinstance(argument, ctypes.c_void_p):
        return argument
    described = getattr(argument, "_obj", None)  # of ctypes.byref
    if isinstance(described, _launch.CTensor):
        return ctypes.c_void_p.from_buffer(described, _launch.CTensor.data.offset)
    return None
