"""What is known of the operands that a match reads: their shapes, and what errors call them."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node

from triton_kernels._fusion import Operand, Row
from triton_kernels.graph import forms


def is_one(t: Tensor) -> bool:
    """Whether it is a batch of one."""
    return isinstance(t.shape[0], int) and t.shape[0] == 1


def is_row(operand: Operand) -> bool:
    """Whether it is [N] or [1, …, N]."""
    example = forms.value(operand)
    return (
        example is not None
        and example.dim() > 0
        and all(isinstance(n, int) and n == 1 for n in example.shape[:-1])
    )


def fits_as_row(row: Tensor, N: int) -> bool:
    """Whether it is [N] or [1, …, N]."""
    leading = all(isinstance(n, int) and n == 1 for n in row.shape[:-1])
    return bool(row.dim() and leading and row.shape[-1] == N)


def in_rows(operand: Operand | None) -> bool:
    """Whether it is [1, …, N], of more than one dimension."""
    example = forms.value(operand)
    return example is not None and example.dim() > 1


def as_row(operand: Operand | None, result: Tensor | None = None) -> Any:
    """The operand, as [N] if it is a row; of a residual that has the result's shape, itself."""
    example = forms.value(operand)
    if example is None or example.dim() < 2:
        return operand
    if result is not None and example.shape == result.shape:
        return operand
    return Row(operand)  # type: ignore[arg-type]


def turned(operand: Operand) -> bool:
    """Whether it is known that its dimensions lie in another order in memory."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    t = forms.value(operand)
    if t is None:
        return False
    steps = [step for n, step in zip(t.shape, t.stride()) if not statically_known_true(n == 1)]
    return any(statically_known_true(a < b) for a, b in itertools.pairwise(steps))


def is_plain(t: Tensor) -> bool:
    """Whether it is an ordinary tensor in rows and columns: no subclass, not sparse."""
    plain = isinstance(t, FakeTensor) or type(t) in (Tensor, torch.nn.Parameter)
    return plain and t.layout is torch.strided


def size_of(n: Any) -> int | None:
    """A number, not a symbol of a dynamic shape: asking for that one's value would fix it."""
    return n if isinstance(n, int) else None


def shape_text(t: Tensor | None) -> str:
    """Its shape, as errors say it."""
    return "unknown" if t is None else str(tuple(t.shape))


def dtype_text(t: Tensor) -> str:
    """Its dtype, as errors say it."""
    return str(t.dtype).removeprefix("torch.")


def operand_name(operand: Operand) -> str:
    """What errors call an operand."""
    return operand.name if isinstance(operand, Node) else operand.target.rpartition(".")[2]
