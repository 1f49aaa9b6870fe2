"""Copies of arguments. The copied tensors have the memory layout of the originals."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from triton_kernels.interpreter import Argument


def tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in nested arguments, in order, including those in descriptors and wrappers."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from tensors(each)
    elif isinstance(value, dict):
        yield from tensors(tuple(value.values()))
    elif isinstance(getattr(value, "base", None), Tensor):  # TensorDescriptor, reinterpret()
        yield value.base


ALIGNMENT = 64  # bytes; views in a copy are aligned as the originals are, up to this
POISON = 0xFF  # the byte that marks unused memory: NaN in every float type, −1 in signed integers
WHOLE = 1 << 26  # bytes; memory up to this size is poisoned as a whole, larger only near elements
NEAR = 4 * ALIGNMENT  # bytes before an element's start and after it that count as near


def copies(
    value: Any, device: torch.device | None = None, margin: int = 0, poison: bool = False
) -> Any:
    """Nested arguments with copied tensors. The copies have the originals' strides.

    Each storage is allocated once, from the first byte in use to the last, so that overlapping
    views overlap in the copy, too. Only elements are copied, so that large gaps between them cost
    no time. Tensors without strided memory of their own, such as sparse ones, are cloned.

    Args:
        device: the device of the copies; by default that of each tensor.
        margin: additional bytes before and after each storage, a multiple of ALIGNMENT.
        poison: whether to fill the memory between and around the elements with POISON.
    """
    if poison:
        margin = max(margin, NEAR)
    extents: dict[int, list[Any]] = {}
    for t in filter(_has_memory, tensors(value)):
        start: Any = t.storage_offset() * t.element_size()
        reach = sum((n - 1) * st for n, st in zip(t.shape, t.stride())) + 1 if t.numel() else 0
        part = extents.setdefault(t.untyped_storage().data_ptr(), [start, start])
        part[0] = min(part[0], start - start % ALIGNMENT)
        part[1] = max(part[1], start + reach * t.element_size())
    made: dict[int, Tensor] = {}

    def memory(t: Tensor) -> Tensor:
        """The copy's memory for t's storage; allocated, and poisoned, at the first call."""
        storage = t.untyped_storage().data_ptr()
        if storage not in made:
            low, high = extents[storage]
            size = high - low + 2 * margin
            made[storage] = raw = torch.empty(size, dtype=torch.uint8, device=device or t.device)
            whole = poison and size <= WHOLE
            raw[: size if whole else margin] = raw[size - margin :] = POISON
        return made[storage]

    def moved(t: Tensor) -> Tensor:
        if not _has_memory(t):
            return t.clone()
        raw = memory(t)
        low, _ = extents[t.untyped_storage().data_ptr()]
        offset = t.storage_offset() + (margin - low) // t.element_size()
        new = torch.empty(0, dtype=t.dtype, device=raw.device)
        new.set_(raw.untyped_storage(), offset, t.shape, t.stride())
        copy_elements(new, t)
        return new

    def walk(each: Any) -> Any:
        if isinstance(each, Tensor):
            return moved(each)
        if isinstance(each, tuple) and hasattr(each, "_fields"):
            return type(each)(*map(walk, each))
        if isinstance(each, (tuple, list)):
            return type(each)(map(walk, each))
        if isinstance(each, dict):
            return {key: walk(item) for key, item in each.items()}
        if isinstance(getattr(each, "base", None), Tensor):
            twin = copy.copy(each)
            twin.base = moved(each.base)
            if hasattr(twin, "data"):  # a triton.reinterpret() wrapper also has these
                twin.data, twin.device = twin.base.data, twin.base.device
            return twin
        return each

    if poison:  # before elements are copied: memory near one view may hold another's elements
        for t in filter(_has_memory, tensors(value)):
            raw = memory(t)
            if raw.numel() > WHOLE and t.numel():
                low, _ = extents[t.untyped_storage().data_ptr()]
                _near(raw, t, margin - low - NEAR, 2 * NEAR).fill_(POISON)
    return walk(value)


def damaged(copied: list[Tensor]) -> list[int]:
    """The indices of copies with changed memory between or around their elements. The list must
    have all copies of one call with ``poison``. Overwrites the elements with POISON."""
    known = {i: t.detach() for i, t in enumerate(copied) if _has_memory(t) and t.numel()}
    raws: dict[int, Tensor] = {}
    for i, t in known.items():
        storage = t.untyped_storage()
        raws[i] = torch.empty(0, dtype=torch.uint8, device=t.device).set_(storage)
        _near(raws[i], t, 0, t.element_size()).fill_(POISON)
    return [i for i, t in known.items() if not _poisoned(raws[i], t)]


def _poisoned(raw: Tensor, t: Tensor) -> bool:
    """Whether all bytes near t's elements are poison."""
    if raw.numel() <= WHOLE:
        return bool((raw == POISON).all())
    near = _near(raw, t, -NEAR, 2 * NEAR)
    # In pieces: the comparison makes a result for every byte.
    return all(bool((part == POISON).all()) for part in _parts(near))


def _parts(t: Tensor) -> Iterator[Tensor]:
    """A tensor in pieces of at most WHOLE elements, cut along its leading dimensions."""
    if t.numel() <= WHOLE:
        yield t
    elif t[0].numel() > WHOLE:
        for part in t:
            yield from _parts(part)
    else:
        yield from t.split(WHOLE // t[0].numel())


def _has_memory(t: Tensor) -> bool:
    plain = type(t) in (Tensor, torch.nn.Parameter) and t.layout is torch.strided
    return plain and t.device.type != "meta"


def _near(raw: Tensor, t: Tensor, start: int, width: int) -> Tensor:
    """A view of the storage's bytes ``raw``: for each element of t, ``width`` bytes from ``start``
    bytes after the element's address on. An element that a stride of 0 repeats counts once."""
    once = [(n, s) for n, s in zip(t.shape, t.stride()) if s]
    size = t.element_size()
    shape, strides = [n for n, _ in once], [s * size for _, s in once]
    offset = t.storage_offset() * size + start
    return raw.as_strided((*shape, width), (*strides, 1), offset)


def copy_elements(to: Tensor, source: Tensor) -> None:
    """Copy the elements. Both tensors have equal strides; their elements may share memory."""
    if not source.numel():
        return
    with torch.no_grad():
        to, source = to.detach(), source.detach()
        if Argument("", source).overlaps:  # such as a sliding window: copy its whole span
            span = sum((n - 1) * st for n, st in zip(source.shape, source.stride())) + 1
            to, source = (t.as_strided((span,), (1,)) for t in (to, source))
        for axis, stride in enumerate(source.stride()):
            if stride == 0:
                to, source = to.narrow(axis, 0, 1), source.narrow(axis, 0, 1)
        to.copy_(source)
