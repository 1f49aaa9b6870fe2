"""The rungs of elementwise ops: the kernels of csrc/rungs.cuh, for dense tensors, and of
csrc/strided.cuh, for other layouts; and the choice between them.

A rung is a variant of an op. The plain kernel, which takes all tensors, is not a rung. "auto" is
the best rung that takes a call's tensors, or else the plain kernel.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cuda_reference import _build, _forms, _launch
from cuda_reference._arguments import FLOATING, check_choice, check_flag
from cuda_reference._walks import DIMS, Walk, walk

ELEMENTS, STRIDED, TILE = NOT_DENSE = ("elements", "strided", "tile")
DENSE = ("scalar", "pack64", "pack128", "stream")  # in the order of enum Rung in csrc/rungs.cuh
RUNGS = (*NOT_DENSE, *DENSE)
STREAM = DENSE[-1]
# name → dtypes
VARIANTS = dict.fromkeys(RUNGS, FLOATING) | dict.fromkeys((*NOT_DENSE, "pack64"), FLOATING[:3])
AUTO = "auto"
PACKED = "pack128"
# "auto" takes the first of these that suits the tensors. Packs take every alignment, but process
# unaligned tensors element by element. For large tensors stream is slower than packs
# (docs/CUDA_LADDER.md).
BEST = (PACKED, STREAM, TILE, ELEMENTS, STRIDED, "scalar")
# What is launched for ELEMENTS or STRIDED of "auto": a kept call is for other sizes, too, so the
# launcher compares them. So many elements are few for it where a variant is pinned.
BY_SIZE = "elements or strided"
_FEW = {ELEMENTS: 2**31 - 1, STRIDED: 0, TILE: 0}
ALIGNMENT = 16  # bytes of a pack; stream's tensors have equal addresses modulo this
# "auto" does not turn tiles along dimensions of fewer elements, or where rows of the result have no
# more bytes: there a block of strided has so many rows that it uses all that it loads of operands
# along another dimension. Nor does it where elements are few.
NARROW, SHORT = 8, 256

# Blocks per multiprocessor of a grid-stride loop; two blocks on the CPU, so that blocks loop there.
_BLOCKS_EACH, _BLOCKS_ON_CPU = 8, 2
_THREADS = 256  # of a block, as in csrc/elementwise.cuh

Variants = Mapping[str, tuple[torch.dtype, ...]]  # name → the dtypes that it takes


class CCall(ctypes.Structure):
    """struct Call of csrc/rungs.cuh."""

    marks: _launch.Marks

    _fields_ = [
        ("rung", ctypes.c_int),
        ("dtype", ctypes.c_int),
        ("most", ctypes.c_int),
        ("few", ctypes.c_int),
        ("n", ctypes.c_longlong),
    ]


CCall.marks = ((CCall.n.offset, _forms.N),)


class Choice(NamedTuple):
    """The choice of "auto": a rung, or None for the plain kernel, and the reason."""

    rung: str | None
    why: str

    def told(self, op: str) -> str:
        """The choice in one line."""
        name = "the plain kernel" if self.rung is None else repr(self.rung)
        return f"{op}(): variant 'auto' is {name}: {self.why}"


def misfit(
    variant: str,
    dtypes: Sequence[torch.dtype],
    tensors: Mapping[str, Tensor],
    unfit: str = "",
) -> str:
    """Why a variant for these dtypes does not take these tensors, of which the result is last, or
    "". ``unfit`` is the reason if no rung takes the call."""
    if unfit:
        return unfit
    for name, t in tensors.items():
        if t.dtype not in dtypes:
            return f"does not take {t.dtype} ('{name}')"
    first = next(iter(tensors.values()))
    for name, t in tensors.items():
        if t.dtype != first.dtype:
            return f"takes tensors of one dtype, but '{name}' has {t.dtype} beside {first.dtype}"
    if variant in NOT_DENSE:
        return _strided_misfit(variant, _walk(list(tensors.values())))
    for name, t in tensors.items():
        if t.is_contiguous() and t.shape == first.shape:
            continue
        if variant in DENSE and _dense_alike(list(tensors.values())):
            break
        dense = "dense in one order" if variant in DENSE else "contiguous"
        return (
            f"takes tensors of one shape that are {dense}, but '{name}' has shape "
            f"{list(t.shape)} and strides {list(t.stride())}"
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


def _dense_alike(tensors: Sequence[Tensor]) -> bool:
    """Whether tensors have one shape, and the n-th element in memory is the same one in all."""
    shape = tensors[0].shape
    return all(t.shape == shape for t in tensors) and set(_walk(tensors).strides) == {(1,)}


def _walk(tensors: Sequence[Tensor]) -> Walk:
    """The walk through tensors that broadcast to the last one, the result."""
    shape = tensors[-1].shape
    return walk([t if t.shape == shape else t.expand(shape) for t in tensors])


def _strided_misfit(variant: str, each: Walk) -> str:
    if len(each.sizes) > DIMS:
        return (
            f"takes tensors of at most {DIMS} dimensions, but these have {len(each.sizes)} that "
            "are not one in all of them"
        )
    if variant == TILE and len(each.turned) != 1:
        dims = "no dimension" if not each.turned else f"{len(each.turned)} dimensions"
        return (
            "takes tensors of which some go along another dimension than the result, one for all "
            f"of them, but these go along {dims}"
        )
    return ""


def _narrow(tensors: Sequence[Tensor]) -> str:
    """Why turning tiles does not pay, or ""."""
    each = _walk(tensors)
    (rows,) = each.turned
    columns = each.sizes[-1]
    if (least := min(each.sizes[rows], columns)) < NARROW:
        return f"would turn tiles of {least} elements"
    row = columns * tensors[-1].element_size()
    if row <= SHORT:
        return f"would turn rows of only {row} bytes"
    return "" if _many(tensors[-1]) else f"would turn only {tensors[-1].numel()} elements"


def _many(out: Tensor) -> str:
    """Why a thread per element does not pay, or ""."""
    n, few = out.numel(), _few(out.device)
    return f"would need {n} threads, and {few} run at a time" if n > few else ""


def _unaligned(tensors: Mapping[str, Tensor]) -> str:
    """Why packs would process single elements, or ""."""
    for name, t in tensors.items():
        if _launch.address(t) % ALIGNMENT:
            return f"would go by single elements, as '{name}' is not at a multiple of 16 bytes"
    return ""


def best(variants: Variants, tensors: Mapping[str, Tensor], unfit: str = "") -> Choice:
    """The rung that "auto" takes for the tensors, which include the result."""
    reasons: list[str] = []
    for name in [name for name in BEST if name in variants]:
        reason = misfit(name, variants[name], tensors, unfit)
        if not reason and name == PACKED:
            reason = _unaligned(tensors)
        if not reason and name == TILE:
            reason = _narrow(list(tensors.values()))
        if not reason and name == ELEMENTS:
            reason = _many(list(tensors.values())[-1])
        if not reason:
            why = reasons or ["the tensors have one shape, order and dtype, are dense and aligned"]
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
    """The variant to run: the requested one, or the choice of "auto"; None is the plain kernel.
    With ``explain`` the choice of "auto" is printed.

    Raises:
        TypeError, ValueError: there is no such variant, or it does not take the tensors; there is
            nothing to explain.
    """
    check_flag(op, "explain", explain)
    if variant == AUTO and variants:
        choice = best(variants, tensors, unfit)
        if explain:
            print(choice.told(op))
        return BY_SIZE if choice.rung in (ELEMENTS, STRIDED) else choice.rung
    if explain:
        raise ValueError(f"{op}(): 'explain' is for variant 'auto', not {variant!r}")
    if variant is None:
        return None
    check_choice(op, "variant", variant, (*variants, *([AUTO] if variants else [])))
    if reason := misfit(variant, variants[variant], tensors, unfit):
        raise ValueError(f"{op}(): variant '{variant}' {reason}")
    return variant


def again(variant: str | None) -> str | None:
    """The variant for a backward pass: "auto" instead of a pinned one, because its tensors may have
    other layouts."""
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
    """Call the launcher of an op's rungs, <op>_rung or <op>_strided, or that of another variant
    with <op>_rung's parameters, <op>_<variant>, unless the result is empty."""
    out, tensors = written[0], [*inputs, *written]
    if not out.numel():
        return
    dtype = _launch.DTYPE_CODE[out.dtype]
    if rung in (*NOT_DENSE, BY_SIZE):
        symbol, arguments = f"{op}_strided", _described(rung, tensors)
        # The tensors have the sizes.
        few = _FEW[rung] if rung in _FEW else _few(out.device)
        call = CCall(int(rung == TILE), dtype, _blocks(out.device), few)
        call.marks = ()
    else:
        symbol = f"{op}_{'rung' if rung in DENSE else rung}"
        arguments = [_launch.pointer(t) for t in tensors]
        number = DENSE.index(rung) if rung in DENSE else -1
        call = CCall(number, dtype, _blocks(out.device), 0, out.numel())
    part = _build.rungs_of(dtype) if rung in (*RUNGS, BY_SIZE) else _build.PLAIN
    every = (ctypes.byref(call), *arguments, *numbers)
    _launch.launch(stem, symbol, told, written, *every, act=act, part=part)


def _described(rung: str, tensors: Sequence[Tensor]) -> list[Any]:
    """The tensors as arguments of a launcher of csrc/strided.cuh."""
    form = _forms.elementwise(tensors)
    if form is not None:
        return [layout.of(t, form.numbers) for layout, t in zip(form.layouts, tensors)]
    each = _walk(tensors)
    if rung == TILE:
        each = each.with_rows(*each.turned)
    return [
        _launch.described(_launch.address(t), t.dtype, each.sizes, strides)
        for t, strides in zip(tensors, each.strides)
    ]


@functools.cache
def _blocks(device: torch.device) -> int:
    """The largest number of blocks for a grid-stride loop: those that a GPU holds at a time."""
    if device.type != "cuda":
        return _BLOCKS_ON_CPU
    return _BLOCKS_EACH * torch.cuda.get_device_properties(device).multi_processor_count


def _few(device: torch.device) -> int:
    """The threads that a GPU holds at a time."""
    return _blocks(device) * _THREADS
