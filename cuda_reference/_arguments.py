"""Argument checks of the CUDA side, with errors like torch's; independent of the Triton side."""

from __future__ import annotations

import collections
import itertools
import math
import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cuda_reference import _memory

FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGRAL = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def check_tensor(op: str, name: str, value: Any, dtypes: Sequence[torch.dtype]) -> Tensor:
    """``value`` if it is a strided tensor of an allowed dtype that has memory of its own and needs
    no gradient."""
    if not isinstance(value, Tensor):
        text = f"{op}(): argument '{name}' must be a torch.Tensor, but got {_type_name(value)}"
        if hasattr(value, "__dlpack__"):
            text += "; make a tensor of it with torch.from_dlpack(...)"
        raise TypeError(text)
    if value.is_nested:
        raise TypeError(
            f"{op}(): argument '{name}' is a nested tensor; pass the tensors of its unbind() "
            "one at a time"
        )
    if value.layout != torch.strided:
        raise TypeError(f"{op}(): argument '{name}' must be strided, but is {value.layout}")
    _memory.check_memory(op, f"argument '{name}'", value)
    if value.dtype not in dtypes:
        names = ", ".join(str(d)[6:] for d in dtypes)
        raise TypeError(f"{op}(): argument '{name}' is {value.dtype}, but must be one of: {names}")
    if value.is_neg():
        raise RuntimeError(
            f"{op}(): argument '{name}' is a lazily negated view, which has other values than its "
            "memory; call resolve_neg() on it first"
        )
    if value.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            f"{op}(): argument '{name}' requires grad, but a launch has no gradient; call it under "
            "torch.no_grad()"
        )
    return value


def check_number(
    op: str, name: str, value: Any, dtype: torch.dtype, kinds: str = "a number"
) -> int | float:
    """``value`` as a Python number for a result of ``dtype``. ``kinds`` names the allowed arguments
    in the error's text."""
    # float and int come first: isinstance is slow for an abstract class.
    if isinstance(value, bool) or not isinstance(value, (int, float, numbers.Real)):
        raise TypeError(f"{op}(): argument '{name}' must be {kinds}, but got {_type_name(value)}")
    if not dtype.is_floating_point:
        if not isinstance(value, numbers.Integral):
            raise TypeError(
                f"{op}(): argument '{name}' must be an integer for a result of dtype {dtype}, "
                f"but got {value}"
            )
        return int(value) % 2**64  # the kernels wrap it to the dtype
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{op}(): argument '{name}' is too large for float64") from None


def check_choice(op: str, name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise ValueError unless ``value`` is one of the ``choices``."""
    if not (isinstance(value, str) and value in choices):
        listed = ", ".join(map(repr, choices))
        raise ValueError(f"{op}(): argument '{name}' must be one of {listed}, but got {value!r}")


def check_flag(op: str, name: str, value: Any) -> None:
    """Raise TypeError unless ``value`` is True or False; other values with a truth value, such as
    "no", are refused."""
    if value is not True and value is not False:
        raise TypeError(f"{op}(): argument '{name}' must be a bool, but got {_type_name(value)}")


def check_result_dtype(op: str, name: str, value: Any, default: torch.dtype) -> torch.dtype:
    """``value`` if it is a floating dtype; ``default`` if it is None."""
    if value is None:
        return default
    if not (isinstance(value, torch.dtype) and value in FLOATING):
        raise TypeError(f"{op}(): argument '{name}' must be a floating dtype, not {value}")
    return value


def check_shape(op: str, name: str, value: Any) -> tuple[int, ...]:
    """``value`` as a tuple of ints. Elements that torch refuses as a size, such as True, are
    refused."""
    if not isinstance(value, Sequence):
        raise TypeError(
            f"{op}(): argument '{name}' must be a sequence of integers, not {_type_name(value)}"
        )
    for at, size in enumerate(value):
        truth = isinstance(size, bool) or getattr(size, "dtype", None) == torch.bool
        integral = isinstance(size, numbers.Integral)
        if isinstance(size, Tensor):
            integral = size.numel() == 1 and not (size.is_floating_point() or size.is_complex())
        if truth or not integral:
            raise TypeError(
                f"{op}(): argument '{name}' must be a sequence of integers, but its element {at} "
                f"is {str(size)[:60]} ({_type_name(size)})"
            )
    return tuple(int(size) for size in value)


def check_device(op: str, tensors: Mapping[str, Tensor]) -> torch.device:
    """The common device of all ``tensors``, a GPU or the CPU."""
    name, lead = next(iter(tensors.items()))
    for other, t in tensors.items():
        if t.device != lead.device:
            raise RuntimeError(
                f"{op}(): '{name}' is on {lead.device}, but '{other}' on {t.device}; "
                "all tensors must be on one device"
            )
    if lead.device.type not in ("cuda", "cpu"):
        raise RuntimeError(f"{op}(): device {lead.device} is not supported, only cuda and cpu")
    return lead.device


def check_out(
    op: str,
    out: Any,
    shape: Sequence[int],
    dtype: torch.dtype,
    inputs: Mapping[str, Tensor],
    in_place: bool,
) -> Tensor:
    """``out`` if it has exactly the result's shape and dtype, and overlaps neither itself nor an
    input. With ``in_place`` it may have the same elements as an input."""
    out = check_tensor(op, "out", out, FLOATING + INTEGRAL)
    if out.dtype != dtype:
        raise TypeError(f"{op}(): argument 'out' is {out.dtype}, but the result is {dtype}")
    if list(out.shape) != list(shape):
        raise RuntimeError(
            f"{op}(): argument 'out' has shape {list(out.shape)}, but the result has "
            f"{list(shape)}; out is never resized"
        )
    check_device(op, {**inputs, "out": out})
    _refuse(op, _overlaps_itself(out), "overlaps itself", out)
    for name, t in inputs.items():
        same = (out.data_ptr(), out.dtype, out.shape, out.stride()) == (
            t.data_ptr(),
            t.dtype,
            t.shape,
            t.stride(),
        )
        if not (in_place and same):
            _refuse(op, _share_memory(out, t), f"overlaps '{name}' in memory", out)
    return out


def _refuse(op: str, overlaps: bool | None, what: str, out: Tensor) -> None:
    """Raise if ``out`` overlaps something, or if that is unknown (None)."""
    if overlaps is False:
        return
    where = f"shape {list(out.shape)}, strides {list(out.stride())}"
    if overlaps:
        raise RuntimeError(f"{op}(): argument 'out' {what}: {where}")
    raise RuntimeError(
        f"{op}(): argument 'out' may be one that {what}: its strides, or the other's, are too "
        f"irregular to tell; pass a simpler one: {where}"
    )


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _dims(t: Tensor) -> list[tuple[int, int]]:
    return [(n, s) for n, s in zip(t.shape, t.stride()) if n > 1]


def _steps(t: Tensor, both_ways: bool = False) -> list[tuple[int, int]]:
    """(stride, largest index) per dimension. ``both_ways`` doubles the index, for differences."""
    return [(s, (n - 1) * (2 if both_ways else 1)) for n, s in _dims(t)]


# Limits of an overlap test's work: the problem is NP-hard in general.
MAX_STEPS = 3000
MAX_SUMS = 1 << 15


class _TooIrregularError(Exception):
    """A search took MAX_STEPS steps without an end."""


def _collides(steps: list[tuple[int, int]], target: int, skip: bool = False) -> bool | None:
    """Whether Σ stride·index = ``target`` has a solution; with ``skip`` whether it has two.

    None if neither a search of MAX_STEPS steps nor MAX_SUMS partial sums can decide it.
    """
    steps = sorted((step for step in steps if step[1]), reverse=True)
    wanted = 2 if skip else 1
    try:
        return len(list(itertools.islice(_ways(steps, target), wanted))) == wanted
    except _TooIrregularError:
        hits = _hits(steps, target)
        return None if hits is None else hits >= wanted


def _ways(steps: list[tuple[int, int]], target: int) -> Iterator[None]:
    """Yields one item per solution. The search chooses the index of the first step, then of the
    later ones."""
    reach = [sum(s * most for s, most in steps[k:]) for k in range(len(steps) + 1)]
    taken = itertools.count()

    def ways(k: int, left: int) -> Iterator[None]:
        if next(taken) >= MAX_STEPS:
            raise _TooIrregularError
        if k == len(steps):
            if left == 0:
                yield None
            return
        # A sum of the steps k to j is a multiple of their common divisor; the later ones can make
        # up for a remainder as large as they reach. This rules out interleaved views.
        divisor = 0
        for j in range(k, len(steps)):
            divisor = math.gcd(divisor, steps[j][0])
            if left % divisor > reach[j + 1]:
                return
        stride, most = steps[k]
        first = max(0, -((reach[k + 1] - left) // stride))
        last = min(most, left // stride)
        for index in range(first, last + 1):
            yield from ways(k + 1, left - stride * index)

    return ways(0, target)


def _hits(steps: list[tuple[int, int]], target: int) -> int | None:
    """The number of pairs of a sum of one half of the steps and a sum of the other half that add up
    to ``target``; None if there are too many sums."""
    left, right = [0], [0]
    for stride, most in sorted(steps, key=lambda step: -step[1]):
        if len(left) > len(right):
            left, right = right, left
        if len(left) * (most + 1) > MAX_SUMS:
            return None
        left = [total + stride * index for total in left for index in range(most + 1)]
    often = collections.Counter(right)
    return sum(often[target - total] for total in left)


def _overlaps_itself(t: Tensor) -> bool | None:
    """Whether two elements of ``t`` have one address; None if it is too hard to decide."""
    dims = _dims(t)
    middle = sum(s * (n - 1) for n, s in dims)
    if t.numel() <= 1:
        return False
    if any(s == 0 for _, s in dims) or t.numel() > middle + 1:
        return True  # fewer addresses than elements
    return _collides(_steps(t, both_ways=True), middle, skip=True)


def _share_memory(a: Tensor, b: Tensor) -> bool | None:
    """Whether any byte belongs to both tensors; None if it is too hard to decide."""
    if not a.numel() or not b.numel() or a.device != b.device:
        return False
    steps = [(1, a.element_size() - 1), (1, b.element_size() - 1)]
    target = b.data_ptr() + b.element_size() - 1 - a.data_ptr()
    for t in (a, b):
        steps += [(s * t.element_size(), m) for s, m in _steps(t) if s]
    target += sum(s * m * b.element_size() for s, m in _steps(b))
    return _collides(steps, target)
