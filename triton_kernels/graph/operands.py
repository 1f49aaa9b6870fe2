"""Properties of a match's operands: shapes, layouts, and their names in messages."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node

from triton_kernels._fusion import Operand, Row, Rows
from triton_kernels.graph import forms


def is_one(t: Tensor) -> bool:
    """Whether the first dimension is known to have size 1."""
    return isinstance(t.shape[0], int) and t.shape[0] == 1


def is_row(operand: Operand) -> bool:
    """Whether the operand is known to be [N] or [1, …, N]."""
    example = forms.value(operand)
    return (
        example is not None
        and example.dim() > 0
        and all(isinstance(n, int) and n == 1 for n in example.shape[:-1])
    )


def fits_as_row(row: Tensor, N: int) -> bool:
    """Whether the tensor is [N] or [1, …, N] with this N."""
    leading = all(isinstance(n, int) and n == 1 for n in row.shape[:-1])
    return bool(row.dim() and leading and row.shape[-1] == N)


def in_rows(operand: Operand | None) -> bool:
    """Whether the operand has more than one dimension."""
    example = forms.value(operand)
    return example is not None and example.dim() > 1


def as_row(operand: Operand | None, result: Tensor | None = None) -> Any:
    """The operand, to be passed as [N] if it has more dimensions. An operand of the result's shape
    is a residual and stays as it is."""
    example = forms.value(operand)
    if example is None or example.dim() < 2:
        return operand
    if result is not None and example.shape == result.shape:
        return operand
    return Row(operand)  # type: ignore[arg-type]


def as_residual(operand: Operand | None, result: Tensor | None) -> Any:
    """The operand, to be passed in the shape of the product: as a row, or as the rows of a matrix
    if the product is one."""
    example = forms.value(operand)
    if example is None or result is None or is_row(operand):  # type: ignore[arg-type]
        return as_row(operand, result)
    if is_of_rows(example, result):
        return Rows(operand)  # type: ignore[arg-type]
    return as_row(operand, result)


def is_of_rows(addend: Tensor, result: Tensor) -> bool:
    """Whether an addend is passed as the rows of a matrix: it stands behind a view of a product
    that is one."""
    return result.dim() == 2 and addend.dim() > 2


def turned(operand: Operand) -> bool:
    """Whether the dimensions are known to be in another order in memory: strides increase."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    t = forms.value(operand)
    if t is None:
        return False
    steps = [step for n, step in zip(t.shape, t.stride()) if not statically_known_true(n == 1)]
    return any(statically_known_true(a < b) for a, b in itertools.pairwise(steps))


def same_order(first: Tensor, second: Tensor) -> bool:
    """Whether tensors of one shape have their dimensions in the same order in memory, as far as
    that is known."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    dims = [i for i, n in enumerate(first.shape) if not statically_known_true(n == 1)]
    return all(
        statically_known_true(first.stride(i) < first.stride(j))
        == statically_known_true(second.stride(i) < second.stride(j))
        for i, j in itertools.combinations(dims, 2)
    )


def is_plain(t: Tensor) -> bool:
    """Whether the tensor is an ordinary strided one: neither a subclass nor sparse."""
    plain = isinstance(t, FakeTensor) or type(t) in (Tensor, torch.nn.Parameter)
    return plain and t.layout is torch.strided


def size_of(n: Any) -> int | None:
    """The size, or None for a symbol of a dynamic shape. Reading its value would specialise the
    graph on it."""
    return n if isinstance(n, int) else None


def shape_text(t: Tensor | None) -> str:
    """The tensor's shape in messages."""
    return "unknown" if t is None else str(tuple(t.shape))


def dtype_text(t: Tensor) -> str:
    """The tensor's dtype in messages."""
    return str(t.dtype).removeprefix("torch.")


def operand_name(operand: Operand) -> str:
    """The operand's name in messages."""
    return operand.name if isinstance(operand, Node) else operand.target.rpartition(".")[2]
