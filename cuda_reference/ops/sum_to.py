"""sum_to: argument checks, launch and gradient. The kernel is in csrc/sum_to.cu."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cuda_reference import _arguments, _build, _forms, _launch, _memory, _sum_rungs
from cuda_reference._arguments import FLOATING
from cuda_reference._forms import COLUMNS, ROWS, Layout
from cuda_reference._registered import Gradients, Registered, TensorMeta, empty

__all__ = ["sum_to"]

VARIANTS = {"sum_to": _sum_rungs.VARIANTS}


def sum_to(
    x: Tensor,
    shape: Sequence[int],
    *,
    factor: int | float = 1,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    variant: str | None = None,
    explain: bool = False,
) -> Tensor:
    """factor·Σx over the dimensions that ``shape`` lacks: the twin of
    :func:`triton_kernels.sum_to`.

    Args:
        x, shape, factor, dtype, out: as in triton_kernels.sum_to.
        variant: a rung ("lanes", "pack128", "two_pass") for float16, bfloat16 and float32, where x
            has at most two dimensions that are kept and two that are added up, after those that lie
            together are merged. "auto" is "two_pass" if it takes x, else None, the plain kernel,
            which takes any x.
        explain: print what "auto" takes, and why.

    Raises:
        TypeError, ValueError, RuntimeError: as triton_kernels.sum_to; ValueError also for an x that
            the variant does not take.
    """
    result: Tensor = _sum_to(x, shape, factor, dtype, variant, explain, out=out)
    return result


def reduced(grad: Tensor, like: Tensor | TensorMeta, factor: int | float = 1) -> Tensor:
    """factor·grad, summed to the shape of ``like`` and in its dtype: the gradient of ``like``."""
    if factor == 1 and (grad.shape, grad.dtype) == (like.shape, like.dtype):
        return grad
    return sum_to(grad, like.shape, factor=factor, dtype=like.dtype)


def _launch_sum_to(
    x: Tensor,
    shape: Sequence[int],
    factor: int | float,
    dtype: torch.dtype | None,
    variant: str | None,
    explain: bool,
    *,
    out: Tensor | None = None,
) -> Tensor:
    op = "sum_to"
    x = _arguments.check_tensor(op, "x", x, FLOATING)
    dtype = _arguments.check_result_dtype(op, "dtype", dtype, x.dtype)
    shape = _arguments.check_shape(op, "shape", shape)
    new = x.dim() - len(shape)
    padded = (*[1] * new, *shape)
    if new < 0 or any(n not in (1, full) for n, full in zip(padded, x.shape)):
        raise RuntimeError(
            f"{op}(): 'x' of shape {list(x.shape)} cannot be summed to {list(shape)}"
        )
    compute = torch.float64 if torch.float64 in (x.dtype, dtype) else torch.float32
    factor = _arguments.check_number(op, "factor", factor, compute)
    device = _arguments.check_device(op, {"x": x})
    if out is None:
        out = _memory.new_result(op, shape, dtype, device)
    else:
        out = _arguments.check_out(op, out, shape, dtype, {"x": x}, in_place=False)
    told = {"x": x, "out": out}
    rung = _sum_rungs.chosen(op, variant, explain, told)
    if out.numel() == 0:
        return out
    scale, form = _launch.scalar(factor), _form((x, out), (x, shape))
    if form is not None:
        arguments = [each.of(t, form.numbers) for each, t in zip(form.layouts, (x, x, out))]
    elif rung is not None:
        kept, reduced = _sum_rungs.dimensions(x, out)
        first = x if x.numel() else out  # of an empty x nothing is read
        arguments = [_sum_rungs.of_dims(first, kept, 1), _sum_rungs.of_dims(x, reduced, 1)]
        arguments.append(_sum_rungs.of_dims(out, kept, 2))
    else:
        summed = [d for d in range(x.dim()) if padded[d] != x.shape[d]]
        steps = [0 if d in summed else x.stride(d) for d in range(x.dim())][new:]
        rest = x.as_strided([x.shape[d] for d in summed], [x.stride(d) for d in summed])
        # An empty x has no first element. Nothing is read then, so out can stand in for it.
        first = x.as_strided(shape, steps) if x.numel() else out
        arguments = [_launch.tensor(t) for t in (first, rest, out)]
    if rung is None:
        _launch.launch(op, op, told, (out,), *arguments, scale, part=_build.PLAIN)
    else:
        _sum_rungs.launch(op, rung, x.dtype, told, (out,), *arguments, scale)
    return out


# The first addends, the rest of a sum, and the sums: of columns, which gives a row, and of rows.
_OF_COLUMNS = Layout((COLUMNS,), (1,)), Layout((ROWS,), (COLUMNS,)), Layout((COLUMNS,), (1,))
_OF_ROWS = Layout((ROWS,), (COLUMNS,)), Layout((COLUMNS,), (1,)), Layout((ROWS,), (1,))


def _form(tensors: Sequence[Tensor], args: tuple[Any, ...]) -> _forms.Form | None:
    """The form of a sum of all rows or columns of a contiguous x, the first of the tensors, to the
    shape in ``args``. The other one is out, if it is given."""
    if not isinstance(args[1], (tuple, list)):  # the checks refuse it, or take another type's sizes
        return None
    for t in tensors:
        if not t.is_contiguous():
            return None
    form = _of_shapes(tensors[0].shape, tuple(args[1]))
    if form is None or (len(tensors) > 1 and tensors[1].shape != form.shape):
        return None
    return form


@functools.lru_cache(_forms.REMEMBERED)
def _of_shapes(whole: tuple[int, ...], shape: tuple[int, ...]) -> _forms.Form | None:
    repeated = _forms.repeats(shape or (1,), whole)
    if repeated is None or 0 in whole:
        return None
    kind, columns = repeated
    layouts = _OF_COLUMNS if kind is _forms.ROW else _OF_ROWS
    numbers = {ROWS: math.prod(whole) // columns, COLUMNS: columns}
    return _forms.formed(layouts, numbers, shape)


def _backward(call: Any, grad: Tensor) -> dict[str, Tensor | None]:
    """factor·grad, repeated along the summed dimensions."""
    small = reduced(grad, TensorMeta(grad.shape, call.x.dtype), call.factor)
    return {"x": small.expand(call.x.shape)}


_sum_to = Registered(
    "sum_to",
    "Tensor x, SymInt[] shape, Scalar factor, ScalarType? dtype, str? variant, bool explain",
    _launch_sum_to,
    lambda x, shape, factor, dtype, *_: empty(tuple(shape), dtype or x.dtype, x),
    gradients=Gradients(_backward, {"x": ()}),
    form=_form,
)
