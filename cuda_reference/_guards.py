"""Copies of a call's CPU tensors, which end at a page without access rights.

Without them, a user's kernel that writes outside its tensors would damage the process's heap.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

_ALIGNMENT = 64  # bytes; a copy's address has the same remainder
_FORBIDDEN = 1 << 20  # bytes without access rights before and after the memory
ROOM = 1 << 16  # accessible bytes after the tensors, if accesses are watched
_NEAR = 1 << 16  # bytes that are checked at each end of a gap between tensors
_CANARY = (
    b"\xfb\xff"  # NaN in every type from two bytes on; nothing that a kernel is likely to write
)
_NORESERVE = 0x4000  # of Linux: untouched pages of a gap need no memory

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


class Given(NamedTuple):
    """A tensor argument of a call.

    Attributes:
        name: the parameter's name.
        tensor: contiguous; for an argument with gaps the memory from its first to its last element.
        written: whether the call may write it; False for a pointer to const.
        view: an argument with gaps between its elements, else None.
    """

    name: str
    tensor: Tensor
    written: bool
    view: Tensor | None = None

    @property
    def argument(self) -> Tensor:
        """The caller's argument."""
        return self.tensor if self.view is None else self.view

    @property
    def bytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()


class Group(NamedTuple):
    """Tensors that share a storage or overlap, and the range of their addresses."""

    low: int
    high: int
    members: list[int]  # their indices in the call


def grouped(given: Sequence[Given]) -> list[Group]:
    """The tensors in groups; each is in exactly one."""
    groups: list[Group] = []
    storages: dict[int, int] = {}  # address → the group
    for place in sorted(range(len(given)), key=lambda i: given[i].tensor.data_ptr()):
        low = given[place].tensor.data_ptr()
        high = low + given[place].bytes
        storage = given[place].tensor.untyped_storage().data_ptr()
        at = storages.get(storage, len(groups) - 1 if groups and low < groups[-1].high else None)
        if low == high or at is None:
            groups.append(Group(low, high, [place]))
            at = len(groups) - 1
        else:
            old = groups[at]
            groups[at] = Group(old.low, max(old.high, high), [*old.members, place])
        if low < high:
            storages[storage] = at
    return groups


class _Mapping:
    """Memory between pages without access rights. The tensors end as close to the second one as
    their alignment allows."""

    def __init__(self, group: Group, number: int, room: int) -> None:
        # A signaling NaN in float32 and bfloat16. Arithmetic changes it, so a kernel that reads a
        # canary and writes a result over it is noticed. Each mapping has another one, so that a
        # kernel that copies canaries is noticed, too.
        self._canary = bytes([0x81 + 7 * number % 63, 0xFF])
        size, page = group.high - group.low, mmap.PAGESIZE
        # One more page: bytes shortly before a tensor are canaries, those farther away forbidden.
        self.bytes = -(-(size + _ALIGNMENT + room) // page) * page + page
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        self.map = mmap.mmap(-1, self.bytes + 2 * _FORBIDDEN, flags=flags)
        self.low = ctypes.addressof(ctypes.c_char.from_buffer(self.map)) + _FORBIDDEN
        start = self.bytes - size - room
        self.start = start - (start - group.low) % _ALIGNMENT  # offset of the group's first byte
        self.protect(self.low - _FORBIDDEN, _FORBIDDEN, 0)
        self.protect(self.low + self.bytes, _FORBIDDEN, 0)

    def protect(self, address: int, size: int, protection: int) -> None:
        if _libc.mprotect(address, size, protection):
            raise MemoryError(f"mprotect: errno {ctypes.get_errno()}")

    def fill(self, start: int, end: int) -> None:
        """Fill a range with canaries. Both ends are offsets from ``low``."""
        self.map[_FORBIDDEN + start : _FORBIDDEN + end] = self._canaries(start, end)

    def first_damaged(self, start: int, end: int) -> int | None:
        """The address of the first changed byte in a range of canaries; None if there is none."""
        there, filled = self.map[_FORBIDDEN + start : _FORBIDDEN + end], self._canaries(start, end)
        if there == filled:
            return None
        return self.low + start + next(i for i, (a, b) in enumerate(zip(there, filled)) if a != b)

    def _canaries(self, start: int, end: int) -> bytes:
        return (self._canary * ((end - start) // 2 + 2))[start % 2 :][: end - start]


class Guards:
    """The guarded copies of one call's tensors.

    Args:
        room: accessible bytes after the tensors, so that a watched call reports all accesses
            outside its tensors, and does not end at the first.

    Attributes:
        given: the tensors.
        addresses: the addresses of the copies, in the same order.
        mappings: one per group.
    """

    def __init__(self, given: Sequence[Given], room: int = 0) -> None:
        self.given = given
        self.addresses = [0] * len(given)
        self.mappings: list[_Mapping] = []
        self._gaps: list[tuple[_Mapping, int, int]] = []
        for group in grouped(given):
            mapping = _Mapping(group, len(self.mappings), room)
            self.mappings.append(mapping)
            elements = []
            for place in group.members:
                each = given[place]
                start = mapping.start
                start += each.tensor.data_ptr() - group.low
                self.addresses[place] = mapping.low + start
                elements.append((start, start + each.bytes))
            for start, end in _between(elements, mapping.bytes):
                mapping.fill(start, end)
                self._gaps.append((mapping, start, end))
            for place in group.members:
                each = given[place]
                ctypes.memmove(self.addresses[place], each.tensor.data_ptr(), each.bytes)
            if not any(given[place].written for place in group.members):
                mapping.protect(mapping.low, mapping.bytes, mmap.PROT_READ)

    def damaged(self) -> int | None:
        """The address of a changed byte outside the tensors; None if there is none."""
        first_damaged = (mapping.first_damaged(start, end) for mapping, start, end in self._gaps)
        return next((address for address in first_damaged if address is not None), None)

    def changed(self) -> list[Tensor]:
        """The tensors whose copies have changed."""
        return [
            each.tensor
            for address, each in zip(self.addresses, self.given)
            if _libc.memcmp(address, each.tensor.data_ptr(), each.bytes)
        ]

    def copy_back(self) -> None:
        """Copy the tensors back that may have been written."""
        for address, each in zip(self.addresses, self.given):
            if each.written:
                ctypes.memmove(each.tensor.data_ptr(), address, each.bytes)

    def text(self, address: int) -> str:
        """A description of an address; see :func:`place_text`."""
        return place_text(address, self.addresses, self.given)


def place_text(address: int, addresses: Sequence[int], given: Sequence[Given]) -> str:
    """A description of an address: the element of the nearest tensor, inside or outside of it."""

    def distance(place: int) -> int:
        low, high = addresses[place], addresses[place] + given[place].bytes
        return max(low - address, address - high + 1, 0)

    nearest = min(range(len(given)), key=distance)
    name, _, written, _ = given[nearest]
    tensor = given[nearest].argument
    if distance(nearest) > _FORBIDDEN:
        return f"address {address:#x}, which is near no tensor"
    element = (address - addresses[nearest]) // tensor.element_size()
    text = f"element {element} of {name}"
    index = _index(element, tensor)
    if index is not None:
        text = f"{name}[{', '.join(map(str, index))}]"
    beside = distance(nearest) > 0
    if index is not None and any(not 0 <= i < n for i, n in zip(index, tensor.shape)):
        beside = True  # in a gap between the elements
    if not beside:
        return text if written else f"{text}, which is declared const"
    strides = "" if given[nearest].view is None else f", strides {tensor.stride()}"
    return f"{text}, outside of {name}'s shape {tuple(tensor.shape)}{strides}"


def _index(element: int, tensor: Tensor) -> tuple[int, ...] | None:
    """The index of the element ``element`` places after the first. Outside of the tensor the index
    along the largest stride exceeds its size. None if there is no unique index."""
    if not tensor.shape or not math.prod(tensor.shape[1:]):
        return None
    index = [0] * tensor.dim()
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    for d in order:
        if tensor.stride(d) and (tensor.shape[d] > 1 or d == order[0]):
            index[d], element = divmod(element, tensor.stride(d))
    return None if element else tuple(index)


def _between(elements: list[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """The gaps beside the elements; only the ends of long gaps."""
    gaps, at = [], 0
    for start, end in [*sorted(elements), (size, size)]:
        if start - at > 2 * _NEAR:
            gaps += [(at, at + _NEAR), (start - _NEAR, start)]
        elif start > at:
            gaps.append((at, start))
        at = max(at, end)
    return gaps


def buffer(mapping: Any) -> Tensor:
    """The accessible memory of a mapping as a tensor of bytes."""
    import torch

    return torch.frombuffer(mapping.map, dtype=torch.uint8, count=mapping.bytes, offset=_FORBIDDEN)
