"""The rungs of elementwise ops: the kernels of csrc/rungs.cuh, and which of them a call takes.

A rung is a variant of an op. The plain kernel, which takes everything, is no rung; "auto" is the
best rung that takes a call's tensors, else the plain kernel.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cuda_reference import _launch
from cuda_reference._arguments import FLOATING, check_choice, check_flag

RUNGS = ("scalar", "pack64", "pack128", "stream")  # in the order of enum Rung in csrc/rungs.cuh
STREAM = RUNGS[-1]
VARIANTS = dict.fromkeys(RUNGS, FLOATING) | {"pack64": FLOATING[:3]}  # name → dtypes
AUTO = "auto"
PACKED = "pack128"
# Of these the first that suits the tensors. Packs take every alignment, too, but without one they
# go element by element; of large tensors stream is slower than packs (docs/CUDA_LADDER.md).
BEST = (PACKED, STREAM, "scalar")
ALIGNMENT = 16  # bytes: a pack's; stream's tensors all lie as far beside a multiple of it

# Blocks of a grid that walks: what a multiprocessor holds. On the CPU two, so that they walk there.
_BLOCKS_EACH, _BLOCKS_ON_CPU = 8, 2

Variants = Mapping[str, tuple[torch.dtype, ...]]  # name → the dtypes that it takes


class CCall(ctypes.Structure):
    """struct Call of csrc/rungs.cuh."""

    _fields_ = [
        ("rung", ctypes.c_int),
        ("dtype", ctypes.c_int),
        ("most", ctypes.c_int),
        ("n", ctypes.c_longlong),
    ]


class Choice(NamedTuple):
    """What "auto" takes: a rung, or None for the plain kernel, and why."""

    rung: str | None
    why: str

    def told(self, op: str) -> str:
        """The choice in a line."""
        name = "the plain kernel" if self.rung is None else repr(self.rung)
        return f"{op}(): variant 'auto' is {name}: {self.why}"


def misfit(
    variant: str,
    dtypes: Sequence[torch.dtype],
    tensors: Mapping[str, Tensor],
    unfit: str = "",
) -> str:
    """Why a variant that takes such dtypes does not take these tensors; or nothing. ``unfit`` is
    why no rung takes the call."""
    if unfit:
        return unfit
    first = next(iter(tensors.values()))
    for name, t in tensors.items():
        if t.dtype not in dtypes:
            return f"does not take {t.dtype} ('{name}')"
        if not t.is_contiguous() or t.shape != first.shape:
            return (
                f"takes contiguous tensors of one shape, but '{name}' has shape {list(t.shape)} "
                f"and strides {list(t.stride())}"
            )
    if variant == STREAM:
        besides = {name: _launch.address(t) % ALIGNMENT for name, t in tensors.items()}
        if len(set(besides.values())) > 1:
            listed = ", ".join(f"'{name}' {beside}" for name, beside in besides.items())
            return (
                f"takes tensors that lie alike beside multiples of {ALIGNMENT} bytes, but these "
                f"lie so many bytes after one: {listed}"
            )
    return ""


def _unaligned(tensors: Mapping[str, Tensor]) -> str:
    """Why packs would go by single elements; or nothing."""
    for name, t in tensors.items():
        if _launch.address(t) % ALIGNMENT:
            return f"would go by single elements, as '{name}' is not at a multiple of 16 bytes"
    return ""


def best(variants: Variants, tensors: Mapping[str, Tensor], unfit: str = "") -> Choice:
    """The rung that "auto" takes for the tensors, the result among them."""
    reasons: list[str] = []
    for name in BEST:
        reason = misfit(name, variants[name], tensors, unfit)
        if not reason and name == PACKED:
            reason = _unaligned(tensors)
        if not reason:
            why = reasons or ["the tensors are contiguous, of one shape and dtype, and aligned"]
            return Choice(name, "; ".join(why))
        reasons.append(f"'{name}' {reason}")
    return Choice(None, reasons[-1])


def chosen(
    op: str,
    variant: str | None,
    explain: bool,
    variants: Variants,
    tensors: Mapping[str, Tensor],
    unfit: str = "",
) -> str | None:
    """The variant that runs, of those of an op: what was asked for, or what "auto" takes; None is
    the plain kernel. With ``explain`` a line about "auto" is printed.

    Raises:
        TypeError, ValueError: there is no such variant, or it does not take the tensors; there is
            nothing to explain.
    """
    check_flag(op, "explain", explain)
    if variant == AUTO and variants:
        choice = best(variants, tensors, unfit)
        if explain:
            print(choice.told(op))
        return choice.rung
    if explain:
        raise ValueError(f"{op}(): 'explain' is for variant 'auto', not {variant!r}")
    if variant is None:
        return None
    check_choice(op, "variant", variant, (*variants, *([AUTO] if variants else [])))
    if reason := misfit(variant, variants[variant], tensors, unfit):
        raise ValueError(f"{op}(): variant '{variant}' {reason}")
    return variant


def again(variant: str | None) -> str | None:
    """The variant of a backward pass: its tensors need not lie as those of the forward pass."""
    return None if variant is None else AUTO


def launch(
    stem: str,
    op: str,
    rung: str,
    told: Mapping[str, Any],
    inputs: Sequence[Tensor],
    written: tuple[Tensor, ...],
    *numbers: Any,
    act: str = "none",
) -> None:
    """Call the launcher of an op's rungs, <op>_rung, or that of another variant of their form,
    <op>_<variant>, unless there is nothing to compute."""
    out = written[0]
    if not out.numel():
        return
    number = RUNGS.index(rung) if rung in RUNGS else -1
    symbol = f"{op}_{'rung' if rung in RUNGS else rung}"
    call = CCall(number, _launch.DTYPE_CODE[out.dtype], _blocks(out.device), out.numel())
    addresses = [_launch.pointer(t) for t in (*inputs, *written)]
    _launch.launch(stem, symbol, told, written, ctypes.byref(call), *addresses, *numbers, act=act)


@functools.cache
def _blocks(device: torch.device) -> int:
    """The most blocks of a grid that walks through the tensors."""
    if device.type != "cuda":
        return _BLOCKS_ON_CPU
    return _BLOCKS_EACH * torch.cuda.get_device_properties(device).multi_processor_count
