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

All addresses of a launch must be those of the call's tensors. A call whose launch has another
address, such as that of a copy, is not kept. The key records which tensors have one address, so
that it does not matter which of them an argument was.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cuda_reference import _compilers, _launch
from cuda_reference._memory import NEVER, has_memory

_ALIGNED = 16  # bytes; the choice of a rung depends on addresses modulo this
_CONSTANTS = frozenset({int, bool, str, type(None), torch.dtype})
_SEQUENCES = frozenset({tuple, list, torch.Size})
_TENSORS = frozenset({Tensor, torch.nn.Parameter})


def ordinary(args: Sequence[Any]) -> tuple[tuple[Any, ...], list[int]] | None:
    """The key of a call, and the addresses of its tensors, those of ``out`` last. None if the call
    cannot be kept: for subclasses, inputs that need a gradient, lazily negated views, tensors
    without memory, and values that may compare equal but differ."""
    grad = torch.is_grad_enabled()
    key: list[Any] = [torch.get_default_dtype()]  # to which Python's floats promote integers
    addresses: list[int] = []
    try:
        for value in args:
            kind = type(value)
            if kind in _TENSORS:
                address = value.data_ptr()
                # A fast test for most tensors; some processes have memory at lower addresses.
                if address <= NEVER and not has_memory(value):
                    return None
                if (grad and value.requires_grad) or value.is_neg():
                    return None
                if value.layout is not torch.strided:
                    return None
                addresses.append(address)
                key += (value.dtype, value.shape, value.stride(), value.device, address % _ALIGNED)
            elif kind in _CONSTANTS:
                key += (kind, value)
            elif kind is float:
                key.append(value.hex())  # tells −0 from 0, and NaN equals NaN
            elif kind in _SEQUENCES and all(type(n) is int for n in value):
                key += (kind, tuple(value))
            else:
                return None
    except (RuntimeError, ValueError):  # a tensor that has no address or no strides
        return None
    if len(set(addresses)) < len(addresses):
        key.append(tuple(map(addresses.index, addresses)))
    return tuple(key), addresses


class _New(NamedTuple):
    """A result that a call allocates."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class Prepared:
    """The launch of one key. It is removed from its table while it runs, so that two threads never
    set addresses at the same time."""

    def __init__(
        self,
        noted: _launch.Noted,
        slots: list[tuple[ctypes.c_void_p, int]],
        tensors: Sequence[Tensor],
        given: int,
        addresses: Sequence[int],
        new: Sequence[_New],
    ) -> None:
        self._library, self._symbol, self._shapes = noted.library, noted.symbol, noted.shapes()
        self._entry = getattr(noted.library, noted.symbol)
        self._slots, self._new = slots, new
        device = tensors[0].device
        self._index = device.index if device.type == "cuda" else None
        self._tool = None if device.type == "cuda" else _compilers._sanitizer()
        self._stream = ctypes.c_void_p(None)
        self._arguments = (*noted.arguments, self._stream)
        self._checked = _relations(tensors, len(tensors) - given, addresses)

    def again(self, addresses: list[int], outs: tuple[Tensor, ...]) -> Any:
        """Launch with new addresses. Returns the result or results, or None if the call must be
        checked from the beginning."""
        for at, other, bytes_at, bytes_other, checked in self._checked:
            apart = addresses[at] - addresses[other]
            if -bytes_at < apart < bytes_other and apart != checked:
                return None
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
                # It takes half the time of torch.empty.
                made = torch.empty_strided(shape, strides, dtype=dtype, device=on)
                address = made.data_ptr()
                if (address <= NEVER and not has_memory(made)) or address % _ALIGNED:
                    return None
                results.append(made)
                addresses = [*addresses, address]
        for pointer, at in self._slots:
            pointer.value = addresses[at]
        status = self._entry(*self._arguments)
        if status:
            raise _launch.failure(self._library, status, self._symbol, self._shapes)
        return tuple(results) if len(results) > 1 else results[0]


def _relations(
    tensors: Sequence[Tensor], inputs: int, addresses: Sequence[int]
) -> list[tuple[int, int, int, int, int]]:
    """For each given ``out`` and every tensor before it: their indices, the bytes from the first to
    the last element of each, and the distance of their addresses, which the checks accepted."""
    extents = [
        (sum((n - 1) * stride for n, stride in zip(t.shape, t.stride())) + 1) * t.element_size()
        for t in tensors
    ]
    return [
        (at, other, extents[at], extents[other], addresses[at] - addresses[other])
        for at in range(inputs, len(tensors))
        for other in range(at)
    ]


def prepared(
    noted: Sequence[_launch.Noted],
    addresses: list[int],
    args: Sequence[Any],
    outs: tuple[Tensor, ...],
    result: Any,
) -> Prepared | None:
    """The prepared launch of a call that has just succeeded. None if the call did not make exactly
    one launch, or if the launch used other memory than its tensors'.

    Args:
        noted: the launches of the call.
        addresses: the addresses of the tensors in ``args`` and of ``outs``.
        args: the call's arguments, without ``outs``.
        outs: the tensors given for its results.
        result: the result of the call.
    """
    inputs = [value for value in args if isinstance(value, Tensor)]
    results = result if isinstance(result, tuple) else (result,)
    every = [*inputs, *results]
    if len(noted) != 1 or not all(t.numel() for t in every):
        return None
    (launch,) = noted
    addresses = addresses + ([] if outs else [t.data_ptr() for t in results])
    slots = []
    for argument in launch.arguments:
        pointer = _pointer(argument)
        if pointer is not None and pointer.value is not None:
            if pointer.value not in addresses:
                return None
            slots.append((pointer, addresses.index(pointer.value)))
    new = () if outs else [_New(t.shape, t.stride(), t.dtype, t.device) for t in results]
    return Prepared(launch, slots, [*inputs, *outs], len(outs), addresses, new)


def _pointer(argument: Any) -> ctypes.c_void_p | None:
    """The address in an argument of a launcher, as an object through which it can be changed; None
    if the argument has no address."""
    if isinstance(argument, ctypes.c_void_p):
        return argument
    described = getattr(argument, "_obj", None)  # of ctypes.byref
    if isinstance(described, _launch.CTensor):
        return ctypes.c_void_p.from_buffer(described, _launch.CTensor.data.offset)
    return None
