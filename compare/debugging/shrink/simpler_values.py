"""Simplifies the input values of a kernel's launch to zeros, ones and small integers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from compare.cases import CPU
from compare.checking.stores import Stores
from compare.copies import copies, tensors
from triton_kernels.interpreter import Access

SMALL = 4  # the largest integer after rounding
CHUNKS = 64  # the most parts of a tensor that are tried one by one


class Roles(Stores):
    """Records stores, and which arguments were loaded from."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: set[str] = set()

    def access(self, access: Access) -> None:
        super().access(access)
        if access.verb != "store":
            known = self.launches[-1].arguments if access.argument is None else (access.argument,)
            self.loaded |= {argument.name for argument in known}


def inputs(held: list[Tensor], roles: Roles) -> tuple[list[int], list[int]]:
    """The indices of the tensors that were loaded from, and of those that were only stored to."""
    read: list[int] = []
    written: list[int] = []
    for launch in roles.launches:
        for argument in launch.arguments:
            at = next((i for i, t in enumerate(held) if t is argument.tensor), None)
            if at is not None and argument.tensor.numel():
                (read if argument.name in roles.loaded else written).append(at)
    return read, written


def replaced(given: Any, values: dict[int, Tensor]) -> Any:
    """Nested arguments with other values in the same geometry; keys are indices of tensors."""
    new = copies(given, CPU)
    for place, t in enumerate(tensors(new)):
        if place in values:
            _assign(t, values[place])
    return new


def digest(values: dict[int, Tensor]) -> str:
    """A hash of a set of values."""
    hasher = hashlib.sha1(usedforsecurity=False)
    for place, t in sorted(values.items()):
        hasher.update(str((place, t.dtype, tuple(t.shape))).encode())
        dense = t.clone(memory_format=torch.contiguous_format).view(-1)  # has stride 1
        hasher.update(dense.view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()


Try = Callable[[dict[int, Tensor]], bool]


def simplify(values: dict[int, Tensor], written: list[int], attempt: Try) -> dict[int, Tensor]:
    """Values that ``attempt`` still accepts, with few and small numbers, by a greedy search: whole
    tensors first, then integers, then ever smaller parts.

    ``attempt`` returns whether values fail in the same way; the first ones did.
    """
    best = dict(values)

    def accepts(place: int, new: Tensor) -> bool:
        if bool(((new == best[place]) | ((new != new) & (best[place] != best[place]))).all()):
            return False
        candidate = {**best, place: new}
        if not attempt(candidate):
            return False
        best[place] = new
        return True

    for place in written:  # their content before the launch, which may not matter
        old = best[place]
        fills = (0.0, torch.nan) if old.is_floating_point() else (0, 77)
        if bool((old != 0).any()):
            any(accepts(place, torch.full_like(old, fill)) for fill in fills)
    read = [place for place in best if place not in written]
    for place in read:
        if not accepts(place, torch.zeros_like(best[place])):
            accepts(place, torch.ones_like(best[place]))
    for place in read:
        accepts(place, _integers(best[place]))
    for place in read:
        for wanted, value in ((_not_zero, 0), (_neither_zero_nor_one, 1)):
            parts = 1
            while parts <= CHUNKS and len(places := wanted(best[place])):
                for where in torch.tensor_split(places, min(parts, len(places))):
                    accepts(place, _filled(best[place], where, value))
                parts *= 2
    return best


def describe(values: dict[int, Tensor], written: list[int]) -> str:
    """How simple the inputs are, in words."""
    each = [t.reshape(-1) for place, t in values.items() if place not in written]
    total = sum(t.numel() for t in each)
    nonzero = sum(int((t != 0).sum()) for t in each)
    finite = [t[t.isfinite()] for t in each]
    whole = all(bool((t == t.round()).all() & (t.abs() <= 99).all()) for t in map(_wide, finite))
    return f"{nonzero} of {total} not 0" + (", integers" if whole and nonzero else "")


def _wide(t: Tensor) -> Tensor:
    return t.double()


def _integers(t: Tensor) -> Tensor:
    """Rounded to small nonzero integers; 0, NaN and infinities stay."""
    wide = t.double()
    low = -SMALL if t.dtype.is_signed else 0
    small = torch.where(wide.abs() < 1, wide.sign(), wide.round()).clamp(low, SMALL)
    return torch.where(wide.isfinite(), small, wide).to(t.dtype)


def _filled(t: Tensor, where: Tensor, value: int) -> Tensor:
    new = t.clone(memory_format=torch.contiguous_format)
    new.reshape(-1)[where] = value
    return new


def _not_zero(t: Tensor) -> Tensor:
    return (t != 0).reshape(-1).nonzero().flatten()


def _neither_zero_nor_one(t: Tensor) -> Tensor:
    return ((t != 0) & (t != 1) & (t - t == 0)).reshape(-1).nonzero().flatten()


def _assign(t: Tensor, values: Tensor) -> None:
    """Write a tensor's elements, once along strides of 0."""
    for axis, stride in enumerate(t.stride()):
        if stride == 0 and t.shape[axis] > 1:
            t, values = t.narrow(axis, 0, 1), values.narrow(axis, 0, 1)
    t.copy_(values)
