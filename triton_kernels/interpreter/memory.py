"""A tensor argument as memory: the addresses of its elements, and their coordinates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from triton_kernels.interpreter.emulation import Array

PAGE = 1 << 24  # elements


class Pages:
    """Numbers for the elements of a memory, zero until set; untouched pages take no memory."""

    def __init__(self, size: int, dtype: Any) -> None:
        self._size, self._dtype = size, np.dtype(dtype)
        self._pages: dict[int, Array] = {}

    def __getitem__(self, at: Array) -> Array:
        values: Array = np.zeros(at.shape, dtype=self._dtype)
        for number, here in self._split(at):
            if number in self._pages:
                values[here] = self._pages[number][at[here] - number * PAGE]
        return values

    def __setitem__(self, at: Array, values: Any) -> None:
        plain = not isinstance(values, np.ndarray) or not values.ndim
        for number, here in self._split(at):
            if number not in self._pages:
                if plain and not values:
                    continue
                length = min(PAGE, self._size - number * PAGE)
                self._pages[number] = np.zeros(length, dtype=self._dtype)  # calloc, also lazy
            self._pages[number][at[here] - number * PAGE] = values if plain else values[here]

    def _split(self, at: Array) -> Iterator[tuple[int, Any]]:
        """The pages of some indices, and which indices lie in each."""
        if not at.size:
            return
        numbers = at // PAGE
        first = int(numbers.flat[0])
        if self._size <= PAGE or bool((numbers == first).all()):
            yield first, ...
            return
        for number in np.unique(numbers):
            yield int(number), numbers == number


class Argument:
    """A tensor argument's name and addresses.

    Attributes:
        name: of the kernel's parameter.
        tensor: as the kernel got it, on the host.
        low, high: the address of its first byte, and of the byte after its last.
        itemsize: bytes per element.
    """

    def __init__(self, name: str, tensor: Any) -> None:
        self.name = name
        self.tensor = base = getattr(tensor, "base", tensor)  # a triton.reinterpret() wrapper
        self.itemsize: int = base.element_size()
        self.low: int = base.data_ptr()
        sizes = sorted(
            ((st, n) for n, st in zip(base.shape, base.stride(), strict=True) if n != 1 and st),
            reverse=True,
        )
        span = 1 + sum((n - 1) * st for st, n in sizes) if base.numel() else 0
        self.high: int = self.low + span * self.itemsize
        self.gaps: list[tuple[int, int]] = []  # (stride, size) if the view has gaps
        merged: list[tuple[int, int]] = []
        for stride, size in sizes:
            if merged and merged[-1][0] == stride * size:
                merged[-1] = (stride, merged[-1][1] * size)
            else:
                merged.append((stride, size))
        reach, self.overlaps = 0, False
        for stride, size in reversed(merged):
            self.overlaps |= stride <= reach
            reach += stride * (size - 1)
        # Overlapping elements have no unique coordinates, so only the whole span is checked.
        if base.numel() and not self.overlaps and merged and merged != [(1, merged[-1][1])]:
            self.gaps = merged

    def outside(self, addresses: Array, width: int) -> Array:
        """Which addresses are not those of an element of the tensor."""
        offset = addresses.astype(np.int64) - self.low
        bad: Array = (offset < 0) | (offset + width > self.high - self.low)
        if self.gaps:
            element, rest = np.divmod(offset, self.itemsize)
            bad |= rest != 0
            for stride, size in self.gaps:
                index = element // stride
                bad |= index >= size
                element = element - index * stride
            bad |= element != 0
        return bad

    def elements(self, addresses: Array) -> Array:
        """The element offsets of addresses, from the tensor's first element."""
        return (addresses.astype(np.int64) - self.low) // self.itemsize

    def coordinates(self, elements: Array) -> list[Array] | None:
        """The index along each dimension of element offsets; 0 along a dimension of stride 0.

        None if elements overlap in another way, because then they have no unique index.
        """
        if self.overlaps:
            return None
        return self._split(elements, [n != 1 for n in self.tensor.shape])[0]

    def _split(self, element: Any, counts: list[bool]) -> tuple[list[Any], Any]:
        """Element offsets as an index along some dimensions, and the remainder."""
        strides = self.tensor.stride()
        index, rest = [element * 0] * len(strides), element
        for axis in sorted(range(len(strides)), key=lambda i: -strides[i]):
            if strides[axis] and counts[axis]:
                index[axis], rest = divmod(rest, strides[axis])
        return index, rest

    def describe(self, address: int) -> str:
        """An address in words: element offset, coordinates, shape, dtype."""
        shape, strides = tuple(self.tensor.shape), tuple(self.tensor.stride())
        element = (address - self.low) // self.itemsize
        text = f"element offset {element} of {self.name}"
        if len(shape) > 1 and element >= 0:
            index, rest = self._split(element, [True] * len(shape))
            if rest == 0:
                text += f", which would be {index}"
        if 0 <= address - self.low < self.high - self.low:
            text += ", between the elements of the view"
        dtype = str(self.tensor.dtype).removeprefix("torch.")
        return f"{text} (shape {shape}, strides {strides}, {dtype})"
