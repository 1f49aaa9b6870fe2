"""Values as Python source, for a file that needs nothing else."""

from __future__ import annotations

import enum
import math
import textwrap
from collections import Counter
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from compare import numerics

MOST = 20_000  # numbers of a tensor that are written into the file
FEW = 24  # elements that may be assigned one by one to a tensor of equal numbers
WIDTH = 96


class Unwritable(Exception):
    """A value cannot be written into a file that needs nothing else."""


def number(value: Any) -> str:
    """A Python number; the file defines the names inf and nan."""
    return repr(value)


def scalar(value: Any) -> str | None:
    """The source of a value that needs no definition; None for any other."""
    if isinstance(value, enum.Enum):
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, tl.constexpr):
        inner = scalar(value.value)
        return None if inner is None else f"tl.constexpr({inner})"
    if isinstance(value, tl.dtype):
        names = [n for n, each in vars(tl).items() if isinstance(each, tl.dtype) and each == value]
        return f"tl.{names[0]}" if names else None
    return None


def tensor(t: Tensor, device: str = "") -> str:
    """An expression for a new contiguous tensor with these numbers. If most are equal, the others
    follow in :func:`assignments`."""
    where = f", device={device}" if device else ""
    kind = f"dtype={t.dtype}{where}"
    if not t.numel():
        return f"torch.empty({tuple(t.shape)}, {kind})"
    common = _sparse(t)[0]
    if common is not None:
        return f"torch.full({tuple(t.shape)}, {common}, {kind})"
    if t.numel() > MOST:
        raise Unwritable(
            f"a tensor of {t.numel()} different numbers is too long to write out: give "
            "compare.shrink a function that makes smaller ones"
        )
    nested = _nested(t)
    one_line = f"torch.tensor({nested}, {kind})"
    if len(one_line) <= WIDTH - 16:
        return one_line
    body = textwrap.fill(nested, WIDTH - 8, break_long_words=False, break_on_hyphens=False)
    return f"torch.tensor(\n{textwrap.indent(body, '    ')},\n    {kind},\n)"


def assignments(name: str, t: Tensor) -> list[str]:
    """The statements that complete the tensor of :func:`tensor`."""
    return [f"{name}[{', '.join(map(str, index))}] = {text}" for index, text in _sparse(t)[1]]


def _sparse(t: Tensor) -> tuple[str | None, list[tuple[list[int], str]]]:
    """The commonest number, and the elements that differ from it; None if there are many."""
    if not t.numel():
        return None, []
    flat = t.reshape(-1).cpu()
    raw = numerics.bits(flat) if t.dtype != torch.bool else flat
    values, counts = raw.unique(return_counts=True)
    common = values[int(counts.argmax())]
    places = (raw != common).nonzero().flatten().tolist()
    if len(places) > min(FEW, t.numel() // 8):
        return None, []
    shape = tuple(t.shape)
    others = [([int(i) for i in torch.unravel_index(torch.tensor(p), shape)], p) for p in places]
    first = int((raw == common).nonzero()[0])
    return _number(flat[first]), [(index, _number(flat[p])) for index, p in others]


def _nested(t: Tensor) -> str:
    if t.dim() == 0:
        return _number(t)
    return "[" + ", ".join(_nested(part) for part in t) + "]"


def _number(element: Tensor) -> str:
    """The shortest text of which the element can be made again."""
    value = element.item()
    if not isinstance(value, float) or not math.isfinite(value):
        return number(value)
    for digits in (3, 5, 9):
        short = float(f"{value:.{digits}g}")
        fits = abs(short) <= torch.finfo(element.dtype).max
        if fits and bool(torch.tensor(short, dtype=element.dtype) == element.cpu()):
            return repr(short)
    return repr(value)


def letters(names: Counter[str], wanted: str) -> str:
    """A new name like the wanted one, which is then taken."""
    clean = "".join(c if c.isalnum() else "_" for c in wanted).strip("_") or "value"
    names[clean] += 1
    return clean if names[clean] == 1 else letters(names, f"{clean}_{names[clean]}")
