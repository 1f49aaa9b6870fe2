"""What every public function checks before anything is launched.

Each check raises one error in torch's manner: it names the function, the argument, and what it
got. TypeError is for a wrong type or dtype, ValueError for a wrong value, RuntimeError for shapes,
devices and memory.
"""

from __future__ import annotations

import math
import numbers
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


def number(op: str, name: str, value: Any, dtype: torch.dtype) -> int | float:
    """Return ``value`` as a float for floating ``dtype``, as a wrapped int for integers."""
    if type(value) is float and dtype.is_floating_point:
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(
            f"{op}(): argument '{name}' must be a number, but got {type(value).__name__}"
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
    if value not in allowed:
        choices = ", ".join(repr(a) for a in allowed)
        raise ValueError(f"{op}(): argument '{name}' must be one of {choices}, but got {value!r}")
    return str(value)


def same_device(op: str, **tensors: Tensor | None) -> torch.device:
    """Return the device all ``tensors`` live on; None entries are skipped."""
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


def join_scalar_tensor(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Let a 0-d CPU tensor join a CUDA tensor, as in torch: it is copied to that device."""
    if x.device != y.device:
        if y.dim() == 0 and y.device.type == "cpu":
            y = y.to(x.device)
        elif x.dim() == 0 and x.device.type == "cpu":
            x = x.to(y.device)
    return x, y


def refuse_gradients(op: str, why: str, values: Iterable[tuple[str, Any]]) -> None:
    """Refuse the tensors of these names that require grad, in words of the caller's."""
    for name, t in values:
        if isinstance(t, Tensor) and t.requires_grad:
            raise RuntimeError(
                f"{op}(): argument '{name}' requires grad, but {why}; "
                "call it under torch.no_grad() or pass a detached tensor"
            )


NO_GRADIENT_WITH_OUT = "a call with out= has no gradient"


def broadcast(op: str, x: Tensor, y: Tensor, names: Sequence[str] = ("x", "y")) -> torch.Size:
    """The shape that ``x`` and ``y`` broadcast to."""
    if x.shape == y.shape:  # torch's function takes as long as a launch
        return x.shape
    try:
        return torch.broadcast_shapes(x.shape, y.shape)
    except RuntimeError:
        raise RuntimeError(
            f"{op}(): the shapes of '{names[0]}' {tuple(x.shape)} and '{names[1]}' "
            f"{tuple(y.shape)} do not broadcast"
        ) from None


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
    """Check a caller's ``out``: exactly the result's shape and dtype, no harmful overlap.

    ``in_place`` allows an ``out`` that is an input, element for element.
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
    if _overlaps_itself(out):
        raise RuntimeError(
            f"{op}(): argument 'out' overlaps itself (shape {tuple(out.shape)}, strides "
            f"{out.stride()}): several elements share one address"
        )
    for name, t in inputs.items():
        if t is None or not _overlap(out, t) or (in_place and _identical(out, t)):
            continue
        allowed = " in another way than element for element" if in_place else ""
        raise RuntimeError(f"{op}(): argument 'out' overlaps '{name}' in memory{allowed}")
    return out


def _identical(a: Tensor, b: Tensor) -> bool:
    return (
        a.data_ptr() == b.data_ptr()
        and a.dtype == b.dtype
        and a.shape == b.shape
        and a.stride() == b.stride()
    )


def _solutions(terms: Sequence[tuple[int, int]], target: int) -> int:
    """How many ways (counted up to 2) Σ coefficient·t = target has with 0 ≤ t ≤ limit.

    Depth first, largest coefficient first: the strides of real tensors nest, so each level leaves
    one or two values to try. What is left to reach must also be near a multiple of the common
    divisor of the next terms, or nothing is tried: that settles interleaved views at once.
    """
    terms = sorted((t for t in terms if t[1] > 0), reverse=True)
    reach = [0]  # the most that the terms from the i-th on can contribute, from the end
    for coefficient, limit in reversed(terms):
        reach.append(reach[-1] + coefficient * limit)
    reach.reverse()
    divisors = [
        [
            (math.gcd(*(c for c, _ in terms[i:j])), reach[j])
            for j in range(i + 1, len(terms) + 1)
            if terms[j - 1][0]
        ]
        for i in range(len(terms))
    ]

    def count(i: int, rest: int) -> int:
        if rest < 0 or rest > reach[i]:
            return 0
        if i == len(terms):
            return 1
        if any(rest % divisor > others for divisor, others in divisors[i]):
            return 0
        coefficient, limit = terms[i]
        if coefficient == 0:
            return 2 if count(i + 1, rest) else 0
        found = 0
        low = max(0, -((reach[i + 1] - rest) // coefficient))
        for t in range(low, min(limit, rest // coefficient) + 1):
            found += count(i + 1, rest - coefficient * t)
            if found > 1:
                break
        return found

    return count(0, target)


def _overlaps_itself(t: Tensor) -> bool:
    """Whether two different indices of ``t`` have one address."""
    if t.is_contiguous():
        return False
    dims = [(stride, size - 1) for size, stride in zip(t.shape, t.stride()) if size > 1]
    # i and j collide when Σ stride·(i−j) = 0; shifted by (size−1) every term is non-negative, and
    # the one solution that is always there is i = j.
    terms = [(stride, 2 * last) for stride, last in dims]
    return t.numel() > 1 and _solutions(terms, sum(stride * last for stride, last in dims)) > 1


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether some byte belongs to an element of both ``a`` and ``b``; meta tensors have none."""
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
        own += [(stride * item, size - 1) for size, stride in zip(t.shape, t.stride())]
        terms += own
        if mirrored:
            target += sum(coefficient * limit for coefficient, limit in own)
    return _solutions(terms, target) > 0
