"""Layouts of elementwise calls for the rungs of csrc/strided.cuh: as few dimensions as possible, in
the order of the result's memory.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

DIMS = 4  # the most dimensions; as in csrc/strided.cuh
REMEMBERED = 256  # walks: several rungs are asked about the same tensors


class Walk(NamedTuple):
    """The common dimensions of a call's tensors, those with the result's longest strides first.

    Attributes:
        sizes: at least one.
        strides: those of each tensor.
    """

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    @property
    def turned(self) -> set[int]:
        """The dimensions along which the elements of some tensor lie side by side, while they do
        not do so along the last dimension, as those of the result do."""
        others = [s for s in self.strides if s[-1] not in (0, 1) and 1 in s]
        return {strides.index(1) for strides in others}

    def with_rows(self, dim: int) -> Walk:
        """The same with this dimension as the last but one."""
        order = [*(d for d in range(len(self.sizes) - 1) if d != dim), dim, len(self.sizes) - 1]
        strides = tuple([tuple([each[d] for d in order]) for each in self.strides])
        return Walk(tuple([self.sizes[d] for d in order]), strides)


def walk(tensors: Sequence[Tensor]) -> Walk:
    """The dimensions of tensors of one shape; the result is the last one. Dimensions of one element
    are left out, and neighbours are one dimension if every tensor goes through them as one."""
    return _walk(tuple(tensors[-1].shape), tuple([t.stride() for t in tensors]))


@functools.lru_cache(REMEMBERED)
def _walk(shape: tuple[int, ...], strides: tuple[tuple[int, ...], ...]) -> Walk:
    order = sorted(range(len(shape)), key=lambda d: -strides[-1][d])
    sizes: list[int] = []
    kept: list[list[int]] = []  # the strides of all tensors in each dimension
    for d in order:
        if shape[d] == 1:
            continue
        here = [each[d] for each in strides]
        if kept and all(outer == each * shape[d] for outer, each in zip(kept[-1], here)):
            sizes[-1] *= shape[d]
            kept[-1] = here
        else:
            sizes.append(shape[d])
            kept.append(here)
    if not sizes:
        return Walk((1,), ((1,),) * len(strides))
    return Walk(tuple(sizes), tuple(zip(*kept)))
