"""The expected content of launches' tensors, and the two functions that check it in a file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from compare.debugging.shrink.literals import Unwritable
from compare.debugging.subjects import Result
from triton_kernels.interpreter import Launch

# ---- the checks in the file, which contains these two functions ----


def check(name: str, got: Tensor, expected: Tensor, allowed: Tensor | float | None) -> None:
    """``allowed``: how far off an element may be; None: no bit may differ."""
    got = got.cpu()
    right = got == expected
    if got.is_floating_point():
        if allowed is None:
            right &= got.signbit() == expected.signbit()
        else:
            right |= (got.double() - expected.double()).abs() <= allowed
        right |= got.isnan() & expected.isnan()
    wrong = (~right).nonzero()
    if len(wrong):
        at = tuple(wrong[0].tolist())
        raise AssertionError(
            f"{name}{list(at)} is {got[at].item()}, expected {expected[at].item()}; "
            f"{len(wrong)} of {right.numel()} elements wrong"
        )


def check_around(name: str, memory: Tensor, tensor: Tensor) -> None:
    """Memory around a tensor was filled with 77."""
    changed = memory.cpu() != torch.full((), 77).to(memory.dtype)
    changed.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(False)
    if changed.any():
        raise AssertionError(f"{int(changed.sum())} elements around {name} were overwritten")


class Expected(NamedTuple):
    """A tensor argument after the launches, with its actual and expected content."""

    name: str
    argument: Tensor
    got: Tensor
    expected: Tensor
    allowed: Tensor | None

    def message(self) -> str:
        """The error text of the check in the file; empty if all is right."""
        try:
            check(self.name, self.got, self.expected, self.allowed)
        except AssertionError as error:
            return f"AssertionError: {error}"
        return ""


def expectations(
    results: Iterable[Result], launches: list[Launch], in_ulps: bool
) -> list[Expected]:
    """The expected results, as content of the launches' arguments that hold them."""
    arguments = [a for launch in launches for a in launch.arguments]
    expected = []
    for result in results:
        tensor, reference = result.tensor, result.reference.cpu()
        places = _addresses(tensor)
        held = next((a for a in reversed(arguments) if _is_same(a.tensor, tensor)), None)
        if held is None:
            raise Unwritable(f"{result.name} is not an argument of a launch as it stands")
        order = np.argsort(places)
        at = order[np.searchsorted(places, _addresses(held.tensor), sorter=order)]
        shape, picked = held.tensor.shape, torch.from_numpy(at)
        allowed = _allowed(result, in_ulps)
        wanted = reference.to(tensor.dtype) if in_ulps or allowed is None else reference.double()
        wanted = wanted.reshape(-1)[picked].reshape(shape)
        if allowed is not None:
            allowed = allowed.expand(tensor.shape).reshape(-1)[picked].reshape(shape)
        expected.append(Expected(held.name, held.tensor, held.tensor.clone(), wanted, allowed))
    return expected


def _is_same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors consist of the same elements, in any order."""
    same = a.dtype == b.dtype and a.numel() == b.numel()
    return same and np.array_equal(np.sort(_addresses(a)), np.sort(_addresses(b)))


def _addresses(t: Tensor) -> np.ndarray:
    """Every element's address, in row-major order."""
    where = np.full(tuple(t.shape), t.data_ptr(), dtype=np.int64)
    for axis, (size, stride) in enumerate(zip(t.shape, t.stride())):
        steps = np.arange(size, dtype=np.int64) * stride * t.element_size()
        where += steps.reshape([-1 if i == axis else 1 for i in range(t.dim())])
    return where.reshape(-1)


def _allowed(result: Result, in_ulps: bool) -> Tensor | None:
    """The tolerance of each element; None if bits must agree."""
    tensor, bound = result.tensor.cpu(), result.comparison.bound.cpu().double()
    if not tensor.is_floating_point():
        return None
    rounded = result.reference.cpu().to(tensor.dtype)
    info = torch.finfo(tensor.dtype)
    if in_ulps:
        if bool((bound < 0.5).all()):  # −0 against 0 counts as half an ULP
            return None
        size = rounded.double().abs().nan_to_num(0.0, posinf=info.max)
        exponent = torch.frexp(size * (1 + bound * info.eps))[1]
        spacing = torch.ldexp(torch.full_like(size, info.eps), exponent - 1)
        return _rounded_up(bound * spacing.clamp(min=info.smallest_normal * info.eps))
    if not bool(bound.any()):
        signs = result.comparison.right.cpu() & (rounded == 0)
        signs &= tensor.signbit() != rounded.signbit()
        return bound if bool(signs.any()) else None
    overflow = result.reference.cpu().double().abs() + bound >= info.max
    return torch.where(overflow, torch.inf, _rounded_up(bound))


def _rounded_up(t: Tensor) -> Tensor:
    """Rounded up to two digits, so that nothing right becomes wrong."""
    return torch.tensor(
        [float(f"{v * 1.05:.1e}") for v in t.reshape(-1).tolist()], dtype=torch.float64
    ).reshape(t.shape)
