"""The rungs of sums: the kernels of csrc/sums.cuh, and what they take.

A rung is a variant of an op. The launcher of the rungs takes a sum of at most two dimensions of
each kind, kept and added up, and chooses grid, access width and parts itself, from sizes and
addresses. So a kept call is right for other sizes, too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from cuda_reference import _build, _launch
from cuda_reference._arguments import FLOATING, check_choice, check_flag
from cuda_reference._rungs import AUTO, Choice, Variants

RUNGS = ("lanes", "pack128", "two_pass")  # in the order of enum SumRung in csrc/sum_kernels.cuh
DTYPES = FLOATING[:3]
VARIANTS: Variants = dict.fromkeys(RUNGS, DTYPES)  # name → dtypes
MOST = 2  # dimensions of each kind
MOST_RESULTS = 2**31 - 1  # in two dimensions: a row of blocks has no more
BEST = RUNGS[-1]  # what "auto" takes if it fits; it has the others' kernels, too

# Blocks per multiprocessor at which sums are not cut into more parts; so many in all on the CPU.
_BLOCKS_EACH, _BLOCKS_ON_CPU = 4, 12
# The floats of the workspace per block: the most results of a block, whatever its sum is. What
# needs more is not cut.
_FLOATS = 256

# (size, stride in the first tensor, strides in others), innermost first.
Dims = list[tuple[int, ...]]


def coalesced(dims: Iterable[tuple[int, ...]]) -> Dims:
    """The same dimensions, from the smallest stride in the first tensor to the largest. Those that
    are one dimension in all tensors are merged, and those of size 1 are gone."""
    merged: Dims = []
    for dim in sorted((dim for dim in dims if dim[0] != 1), key=lambda dim: dim[1] or math.inf):
        if merged:
            size, *strides = merged[-1]
            if [size * stride for stride in strides] == list(dim[1:]):
                merged[-1] = (size * dim[0], *strides)
                continue
        merged.append(dim)
    return merged


def dimensions(x: Tensor, out: Tensor) -> tuple[Dims, Dims]:
    """The dimensions of a sum of x as rungs see them: those that are kept, with strides in x and
    out, and those that are added up."""
    new = x.dim() - out.dim()
    padded, strides = (*[1] * new, *out.shape), (*[0] * new, *out.stride())
    kept, reduced = [], []
    for size, n, stride, of_out in zip(x.shape, padded, x.stride(), strides):
        if size == n:
            kept.append((size, stride, of_out))
        else:
            reduced.append((size, stride))
    if 0 in x.shape:
        reduced = [(0, 1)]
    return coalesced(kept), coalesced(reduced)


def misfit(op: str, tensors: Mapping[str, Tensor]) -> str:
    """Why no rung takes these tensors, of which the first is added up and the last is the result,
    or "". Of act_backward's results that is dx."""
    first, *_, last = tensors.values()
    for name, t in tensors.items():
        if t.dtype not in DTYPES:
            return f"does not take {t.dtype} ('{name}')"
        if t.dtype != first.dtype and not (op == "sum_to" and t is last):
            return f"takes one dtype, but '{name}' is {t.dtype}"
    kept, reduced = dimensions(first, last)
    for dims, are in ((kept, "kept"), (reduced, "added up")):
        if len(dims) > MOST:
            return (
                f"takes at most {MOST} dimensions that are {are}, after those that lie together "
                f"are merged, but {next(iter(tensors))!r} has {len(dims)}"
            )
    if len(kept) > 1 and last.numel() > MOST_RESULTS:
        return f"takes at most {MOST_RESULTS} results in two dimensions, not {last.numel()}"
    return ""


def chosen(
    op: str, variant: str | None, explain: bool, tensors: Mapping[str, Tensor]
) -> str | None:
    """The variant to run: the requested one, or the choice of "auto"; None is the plain kernel.
    With ``explain`` the choice of "auto" is printed.

    Raises:
        TypeError, ValueError: there is no such variant, or it does not take the tensors; there is
            nothing to explain.
    """
    check_flag(op, "explain", explain)
    if variant == AUTO:
        reason = misfit(op, tensors)
        if explain:
            why = f"{BEST!r} {reason}" if reason else "the sums and their dtypes fit"
            print(Choice(None if reason else BEST, why).told(op))
        return None if reason else BEST
    if explain:
        raise ValueError(f"{op}(): 'explain' is for variant 'auto', not {variant!r}")
    if variant is None:
        return None
    check_choice(op, "variant", variant, (*RUNGS, AUTO))
    if reason := misfit(op, tensors):
        raise ValueError(f"{op}(): variant '{variant}' {reason}")
    return variant


def launch(
    op: str,
    rung: str,
    dtype: torch.dtype,
    told: Mapping[str, Any],
    written: tuple[Tensor, ...],
    *arguments: Any,
    act: str = "none",
) -> None:
    """Call the launcher of an op's rungs, <op>_rung, for addends of this dtype."""
    blocks = _blocks(written[0].device)
    floats = blocks * _FLOATS
    workspace = _launch.Workspace(floats, written[0].device)
    means = RUNGS.index(rung), blocks, workspace, floats
    part = _build.rungs_of(_launch.DTYPE_CODE[dtype])
    with workspace:
        _launch.launch(op, f"{op}_rung", told, written, *arguments, *means, act=act, part=part)


def described(t: Tensor) -> Any:
    """A matrix as an argument of a launcher. The stride of a dimension of one element, which torch
    leaves open, is that of a dense row."""
    rows, columns = t.shape
    strides = t.stride(0) if rows > 1 else 0, t.stride(1) if columns > 1 else 1
    return _launch.described(_launch.address(t), t.dtype, (rows, columns), strides)


def of_dims(t: Tensor, dims: Dims, strides: int) -> Any:
    """``t`` with the dimensions, as an argument of a launcher. ``strides`` is the index of the
    strides in the dimensions."""
    outermost_first = dims[::-1]
    return _launch.described(
        _launch.address(t),
        t.dtype,
        tuple([dim[0] for dim in outermost_first]),
        tuple([dim[strides] for dim in outermost_first]),
    )


@functools.cache
def _blocks(device: torch.device) -> int:
    """The number of blocks that fill the device."""
    if device.type != "cuda":
        return _BLOCKS_ON_CPU
    return _BLOCKS_EACH * torch.cuda.get_device_properties(device).multi_processor_count
