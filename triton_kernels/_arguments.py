"""Argument checks of the public functions, made before anything is launched.

Each check raises an error as torch does, which names the function, the argument, and what it got:
TypeError for a wrong type or dtype, ValueError for a wrong value, RuntimeError for shapes, devices
and memory.
"""

from __future__ import annotations

import functools
import math
import numbers
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from triton_kernels import _memory

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
NUMBERS = FLOATS + INTEGERS


def tensor(op: str, name: str, value: Any, dtypes: Sequence[torch.dtype]) -> Tensor:
    """Return ``value`` if it is a strided tensor of one of ``dtypes``, with memory of its own."""
    if not isinstance(value, Tensor):
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        hint = (
            "; torch.from_dlpack(...) makes a tensor of it" if hasattr(value, "__dlpack__") else ""
        )
        raise TypeError(f"{op}(): argument '{name}' must be a torch.Tensor, but got {kind}{hint}")
    if value.is_nested:
        refuse_nested(op, name, value)
    if value.dtype not in dtypes:
        allowed = ", ".join(str(d).removeprefix("torch.") for d in dtypes)
        raise TypeError(
            f"{op}(): argument '{name}' has dtype {value.dtype}, but must be one of: {allowed}"
        )
    if value.layout is not torch.strided:
        raise TypeError(f"{op}(): argument '{name}' has layout {value.layout}, but must be strided")
    if value.is_neg():  # such as z.conj().imag: its memory holds the values before the negation
        raise RuntimeError(
            f"{op}(): argument '{name}' is a lazily negated view; pass its resolve_neg()"
        )
    if not _memory.there(value):
        raise _memory.refusal(op, f"argument '{name}'", value)
    return value


def refuse_nested(op: str, name: str, value: Any) -> None:
    """Refuse a NestedTensor. One of the strided layout does not even have a shape."""
    if isinstance(value, Tensor) and value.is_nested:
        raise TypeError(
            f"{op}(): argument '{name}' is a NestedTensor, which is not supported; call it on each "
            "of unbind(), or on a padded tensor (torch.nested.to_padded_tensor)"
        )


def number(
    op: str, name: str, value: Any, dtype: torch.dtype, wanted: str = "a number"
) -> int | float:
    """Return ``value`` as a float for a floating ``dtype``. For an integer dtype return an int that
    is wrapped to its width, as a signed number. ``wanted`` is for the error's text."""
    if type(value) is float and dtype.is_floating_point:
        return value
    # float and int come first: isinstance is slow for an abstract class.
    if isinstance(value, bool) or not isinstance(value, (float, int, numbers.Real)):
        raise TypeError(
            f"{op}(): argument '{name}' must be {wanted}, but got {type(value).__name__}"
        )
    if dtype.is_floating_point:
        try:
            return float(value)
        except OverflowError:
            raise ValueError(
                f"{op}(): argument '{name}' is an integer too large for float64"
            ) from None
    if not isinstance(value, numbers.Integral):
        raise TypeError(
            f"{op}(): argument '{name}' must be an integer for a result of dtype {dtype}, "
            f"but got {value!r}"
        )
    bits = torch.iinfo(dtype).bits
    wrapped = int(value) & ((1 << bits) - 1)
    return wrapped if wrapped < 1 << (bits - 1) else wrapped - (1 << bits)


def one_of(op: str, name: str, value: Any, allowed: Sequence[str]) -> str:
    """Return ``value`` if it is one of the ``allowed`` strings."""
    if not isinstance(value, str) or value not in allowed:  # an array has no one truth value
        choices = ", ".join(repr(a) for a in allowed)
        raise ValueError(f"{op}(): argument '{name}' must be one of {choices}, but got {value!r}")
    return str(value)


def boolean(op: str, name: str, value: Any) -> bool:
    """Return ``value`` if it is True or False. Other values with a truth value are refused."""
    if not isinstance(value, bool):
        raise TypeError(
            f"{op}(): argument '{name}' must be True or False, but got {type(value).__name__}"
        )
    return value


def floating_dtype(op: str, name: str, value: Any, default: torch.dtype) -> torch.dtype:
    """Return ``value`` if it is a floating dtype, ``default`` if it is None."""
    if value is None:
        return default
    if not isinstance(value, torch.dtype) or value not in FLOATS:
        raise TypeError(f"{op}(): argument '{name}' must be a floating dtype, but got {value!r}")
    return value


def sizes(op: str, name: str, value: Any) -> torch.Size:
    """Return ``value`` as a shape if it is a sequence of integers. As in torch these may be
    Python's, numpy's or integer tensors, but not booleans."""
    if not isinstance(value, Sequence):
        raise TypeError(
            f"{op}(): argument '{name}' must be a sequence of integers, but got "
            f"{type(value).__name__}"
        )
    if type(value) is torch.Size:  # as in every backward pass
        return value
    checked = []
    for i, size in enumerate(value):
        try:
            if isinstance(size, bool) or (isinstance(size, Tensor) and size.dtype == torch.bool):
                raise TypeError
            checked.append(operator.index(size))
        except TypeError:
            raise TypeError(
                f"{op}(): argument '{name}' must be a sequence of integers, but its element {i} "
                f"is {size!r:.60}, of type {type(size).__name__}"
            ) from None
    return torch.Size(checked)


def same_device(op: str, **tensors: Tensor | None) -> torch.device:
    """Return the device of all ``tensors``; None entries are skipped."""
    first, device = "", torch.device("cpu")
    for name, t in tensors.items():
        if t is None:
            continue
        if not first:
            first, device = name, t.device
        elif t.device != device:
            raise RuntimeError(
                f"{op}(): all tensors must be on one device, but '{first}' is on {device} "
                f"and '{name}' on {t.device}"
            )
    return device


def on_one_device(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors, with 0-d CPU tensors copied to the device of the others, as torch does."""
    device = next((t.device for t in tensors if t.device.type != "cpu"), tensors[0].device)
    lone = [t.dim() == 0 and t.device.type == "cpu" for t in tensors]
    return tuple(t.to(device) if alone else t for t, alone in zip(tensors, lone))


def promoted(*tensors: Any, ranks: Sequence[int] = ()) -> torch.dtype:
    """torch.result_type of any number of floating tensors: 0-d tensors count only if all are 0-d.
    ``ranks`` are the numbers of dimensions, if not the tensors' own."""
    ranks = ranks or [t.dim() for t in tensors]
    counting = [t for t, rank in zip(tensors, ranks) if rank] or tensors
    return functools.reduce(torch.promote_types, {t.dtype for t in counting})


def refuse_gradients(op: str, why: str, values: Iterable[tuple[str, Any]]) -> None:
    """Raise RuntimeError for a tensor that requires grad. ``why`` is part of the error's text."""
    for name, t in values:
        if isinstance(t, Tensor) and t.requires_grad:
            raise RuntimeError(
                f"{op}(): argument '{name}' requires grad, but {why}; "
                "call it under torch.no_grad() or pass a detached tensor"
            )


NO_GRADIENT_WITH_OUT = "a call with out= has no gradient"


def broadcast(op: str, x: Tensor, y: Tensor, names: Sequence[str] = ("x", "y")) -> torch.Size:
    """The shape to which ``x`` and ``y`` broadcast."""
    short, long = (x.shape, y.shape) if x.dim() < y.dim() else (y.shape, x.shape)
    new = len(long) - len(short)
    if short == long[new:]:
        return long
    sizes = list(long)  # torch.broadcast_shapes takes longer than a launch
    for i, size in enumerate(short, new):
        if sizes[i] == 1:
            sizes[i] = size
        elif size not in (1, sizes[i]):
            raise RuntimeError(
                f"{op}(): the shapes of '{names[0]}' {tuple(x.shape)} and '{names[1]}' "
                f"{tuple(y.shape)} do not broadcast"
            )
    return torch.Size(sizes)


def broadcast_all(op: str, names: Sequence[str], tensors: Sequence[Tensor]) -> torch.Size:
    """The shape to which all tensors broadcast."""
    shapes = [t.shape for t in tensors]
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError:
        each = [f"'{name}' {tuple(shape)}" for name, shape in zip(names, shapes)]
        listed = f"{', '.join(each[:-1])} and {each[-1]}"
        raise RuntimeError(f"{op}(): the shapes of {listed} do not broadcast") from None


def check_out(
    op: str,
    out: Any,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    inputs: dict[str, Tensor | None],
    *,
    in_place: bool,
) -> Tensor:
    """Return a caller's ``out`` if it can hold the result: it has the result's shape, dtype and
    device, requires no grad, and overlaps neither itself nor an input in memory.

    ``in_place`` allows an ``out`` with the same elements at the same addresses as an input.
    """
    out = tensor(op, "out", out, FLOATS + INTEGERS)
    if out.dtype != dtype:
        raise TypeError(f"{op}(): argument 'out' has dtype {out.dtype}, but the result is {dtype}")
    if tuple(out.shape) != tuple(shape):
        raise RuntimeError(
            f"{op}(): argument 'out' has shape {tuple(out.shape)}, but the result has "
            f"{tuple(shape)}; out is never resized"
        )
    if out.device != device:
        raise RuntimeError(f"{op}(): argument 'out' is on {out.device}, but the inputs on {device}")
    if torch.is_grad_enabled():
        refuse_gradients(op, NO_GRADIENT_WITH_OUT, [("out", out)])
    overlaps = _overlaps_itself(out)
    if overlaps is not False:
        raise RuntimeError(
            f"{op}(): argument 'out' {_claim(overlaps, 'overlaps itself')} (shape "
            f"{tuple(out.shape)}, strides {out.stride()}): several elements share one address"
        )
    for name, t in inputs.items():
        if t is None or (in_place and _identical(out, t)):
            continue
        overlaps = _overlap(out, t)
        if overlaps is not False:
            allowed = " in another way than element for element" if in_place else ""
            claim = _claim(overlaps, f"overlaps '{name}' in memory{allowed}")
            raise RuntimeError(f"{op}(): argument 'out' {claim}")
    return out


def _claim(known: bool | None, claim: str) -> str:
    """The claim if it is known to be true; else that the strides are too irregular to tell."""
    if known:
        return claim
    return f"has strides too irregular to tell whether it {claim}; pass another one"


def _identical(a: Tensor, b: Tensor) -> bool:
    return (
        a.data_ptr() == b.data_ptr()
        and a.dtype == b.dtype
        and a.shape == b.shape
        and a.stride() == b.stride()
    )


# Limits of the overlap tests: a few hundredths of a second. Views that are made by slicing,
# permuting and expanding a dense tensor take a few steps. With arbitrary strides it is NP-hard.
STEPS = 4096
SUMS = 1 << 15


class _OutOfStepsError(Exception):
    pass


def _solutions(terms: Sequence[tuple[int, int]], target: int) -> int | None:
    """The number of solutions, counted up to 2, of Σ coefficient·t = target with 0 ≤ t ≤ limit in
    each term. None if it takes too much work. Coefficients are positive.

    The search goes depth first, with the largest coefficient first: the strides of real tensors
    nest, so each level has one or two values to try. A branch ends if the rest is out of reach of
    the other terms, or too far from a multiple of the common divisor of the next terms. The latter
    decides interleaved views at once. If the search takes too many steps, the sums of one half of
    the terms are compared with those of the other half.
    """
    terms = sorted((t for t in terms if t[1] > 0), reverse=True)
    reach = [0]  # the largest sum of the terms from the i-th on; filled from the end
    for coefficient, limit in reversed(terms):
        reach.append(reach[-1] + coefficient * limit)
    reach.reverse()
    divisors: list[list[tuple[int, int]]] = []
    for i in range(len(terms)):
        divisor, row = 0, []
        for j in range(i, len(terms)):
            divisor = math.gcd(divisor, terms[j][0])
            row.append((divisor, reach[j + 1]))
        divisors.append(row)
    steps = 0

    def count(i: int, rest: int) -> int:
        nonlocal steps
        steps += 1
        if steps > STEPS:
            raise _OutOfStepsError
        if rest < 0 or rest > reach[i]:
            return 0
        if i == len(terms):
            return 1
        if any(rest % divisor > others for divisor, others in divisors[i]):
            return 0
        coefficient, limit = terms[i]
        solutions = 0
        low = max(0, -((reach[i + 1] - rest) // coefficient))
        for t in range(low, min(limit, rest // coefficient) + 1):
            solutions += count(i + 1, rest - coefficient * t)
            if solutions > 1:
                break
        return min(solutions, 2)

    try:
        return count(0, target)
    except _OutOfStepsError:
        return _solutions_by_halves(terms, target)


def _solutions_by_halves(terms: Sequence[tuple[int, int]], target: int) -> int | None:
    """The number of solutions, from all sums of each half of the terms; None if there are too many
    sums."""
    halves: list[dict[int, int]] = [{0: 1}, {0: 1}]  # sum → the number of ways to it, up to 2
    for coefficient, limit in sorted(terms, key=lambda term: term[1], reverse=True):
        halves.sort(key=len)
        if len(halves[0]) * (limit + 1) > SUMS:
            return None
        grown: dict[int, int] = {}
        for total, ways in halves[0].items():
            for part in range(total, total + coefficient * limit + 1, coefficient):
                grown[part] = min(2, grown.get(part, 0) + ways)
        halves[0] = grown
    few, many = halves
    return min(2, sum(ways * many.get(target - total, 0) for total, ways in few.items()))


def _overlaps_itself(t: Tensor) -> bool | None:
    """Whether two different indices of ``t`` have one address; None if it is too hard to decide."""
    if t.is_contiguous() or t.numel() <= 1:
        return False
    dims = [(stride, size - 1) for size, stride in zip(t.shape, t.stride()) if size > 1]
    last = sum(stride * limit for stride, limit in dims)
    if t.numel() > last + 1 or any(stride == 0 for stride, _ in dims):
        return True  # more elements than addresses, or a repeated one
    # Indices i and j have one address if Σ stride·(i−j) = 0. Shifted by size−1 no difference is
    # negative. i = j is always a solution; a second one is an overlap.
    solutions = _solutions([(stride, 2 * limit) for stride, limit in dims], last)
    return None if solutions is None else solutions > 1


def _overlap(a: Tensor, b: Tensor) -> bool | None:
    """Whether some byte belongs to an element of both ``a`` and ``b``; None if it is too hard to
    decide. Meta tensors do not overlap."""
    if a.device != b.device or a.is_meta or not a.numel() or not b.numel():
        return False
    if a.is_contiguous() and b.is_contiguous():
        first, second = a.data_ptr(), b.data_ptr()
        return first < second + b.nbytes and second < first + a.nbytes
    terms: list[tuple[int, int]] = []
    target = b.data_ptr() - a.data_ptr()  # address(a) = address(b), with b's indices mirrored
    for t, mirrored in ((a, False), (b, True)):
        item = t.element_size()
        own = [(1, item - 1)]
        own += [(stride * item, size - 1) for size, stride in zip(t.shape, t.stride()) if stride]
        terms += own
        if mirrored:
            target += sum(coefficient * limit for coefficient, limit in own)
    solutions = _solutions(terms, target)
    return None if solutions is None else solutions > 0
