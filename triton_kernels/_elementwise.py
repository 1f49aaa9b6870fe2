"""The engine under the elementwise ops: two kernels that apply a jit function to every element.

An op brings its formula as a jit function of the operands that it has, ``ELEMENT(x)`` to
``ELEMENT(x, y, s)``, in the compute type C: float32 for
float16, bfloat16 and float32, float64 for float64, an integer type itself. Operands are converted
to the result dtype first (as torch promotes), then to C; the result is rounded once, on the store.

``flat_kernel`` serves operands that share one dense layout, ``tiled_kernel`` everything else, with
any number of dimensions and without a copy; both stand in _elementwise_kernels.py.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from triton_kernels._elementwise_kernels import flat_kernel, tiled_kernel
from triton_kernels._launch import REMEMBERED, Launch, specialization_key
from triton_kernels._scalars import as_argument

TRITON_DTYPE = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.uint8: tl.uint8,
    torch.int8: tl.int8,
    torch.int16: tl.int16,
    torch.int32: tl.int32,
    torch.int64: tl.int64,
}

NUM_WARPS = 4
THREADS = 32 * NUM_WARPS
BYTES_PER_THREAD = 16  # one 128-bit access a thread and operand
SIDE = 64  # of a tile that is turned
SHORTEST = 32  # elements of a row, where longer ones would hang over


def compute_type(dtype: torch.dtype) -> Any:
    """C for a result of ``dtype``."""
    if dtype in (torch.float16, torch.bfloat16):
        return tl.float32
    return TRITON_DTYPE[dtype]


def empty_result(shape: torch.Size, dtype: torch.dtype, like: Tensor) -> Tensor:
    """A new output; it keeps the layout of ``like`` where the shapes agree, as torch does."""
    if like.shape == shape:
        return (
            torch.empty_like(like) if like.dtype == dtype else torch.empty_like(like, dtype=dtype)
        )
    return torch.empty(shape, dtype=dtype, device=like.device)


def coalesced(dims: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The (size, stride, stride, …) of each dimension, innermost first, with dimensions merged
    wherever every operand walks through both of them with a single stride."""
    dims = [dim for dim in dims if dim[0] != 1]
    dims.sort(key=lambda dim: dim[:0:-1])  # by the output's stride, the last in the tuple
    merged: list[tuple[int, ...]] = []
    for size, *strides in dims:
        if merged and all(
            outer == inner * merged[-1][0] for outer, inner in zip(strides, merged[-1][1:])
        ):
            merged[-1] = (merged[-1][0] * size, *merged[-1][1:])
        else:
            merged.append((size, *strides))
    return merged


@dataclass(frozen=True, eq=False)
class Configuration:
    """The constants and options of launches for results of one dtype, and the elements of a block.
    Compared by identity: to hash ``ELEMENT`` would take longer than a launch."""

    meta: dict[str, Any]
    block: int


def configuration(
    element: Any,
    dtype: torch.dtype,
    operands: tuple[bool, bool],
    elements_per_thread: int | None = None,
) -> Configuration:
    """That of launches of ``element`` for results of ``dtype``; ``operands``: whether it has a
    second operand, and whether a factor.

    ``elements_per_thread`` pins what one thread handles; by default it is 16 bytes' worth.
    """
    per_thread = elements_per_thread or max(1, BYTES_PER_THREAD // dtype.itemsize)
    return Configuration(
        {
            "ELEMENT": element,
            "HAS_Y": operands[0],
            "HAS_S": operands[1],
            "C": compute_type(dtype),
            "num_warps": NUM_WARPS,
            "enable_fp_fusion": False,  # the formulas say where they fuse
        },
        block=THREADS * per_thread,
    )


def apply(
    how: Configuration,
    x: Tensor,
    y: Tensor | int | float | None,
    s: int | float,
    out: Tensor,
) -> Tensor:
    """out = element(x, y, s), elementwise; operands broadcast to ``out``.

    ``y`` is None where the formula has no second operand, and ``s`` means nothing where it has no
    factor.
    """
    n = out.numel()
    if n == 0:
        return out
    y_tensor, y_value = (y, 0) if y is None or isinstance(y, Tensor) else (None, y)
    if out.dtype is torch.float64:
        y_value, s = as_argument(y_value, torch.float64), as_argument(s, torch.float64)
    dims = () if _alike(x, y_tensor, out) else _dims(x, y_tensor, out)
    keys = (
        specialization_key(x),
        specialization_key(y_tensor),
        specialization_key(out),
        specialization_key(y_value),
        specialization_key(s),
    )
    shift, singly = 0, (False, False)
    if not dims and not (keys[0][1] and keys[2][1] and (y_tensor is None or keys[1][1])):
        shift = out.data_ptr() % 16 // out.itemsize
        singly = _unlike(x, shift), _unlike(y_tensor, shift)
    launch, rest = _prepared(how, n, dims, keys, shift, singly)
    launch(out.device, x, y_tensor, out, y_value, s, *rest)
    return out


def _unlike(t: Tensor | None, shift: int) -> bool:
    """Whether ``shift`` elements before the operand is no multiple of 16 bytes."""
    return t is not None and (t.data_ptr() - shift * t.itemsize) % 16 != 0


@functools.lru_cache(REMEMBERED)
def _prepared(
    how: Configuration,
    n: int,
    dims: tuple[tuple[int, ...], ...],
    keys: tuple[Any, ...],
    shift: int,
    singly: tuple[bool, bool],
) -> tuple[Launch, tuple[Any, ...]]:
    """The launch for arguments of these keys, and its arguments after s; shift and what is read
    singly are those of a dense walk."""
    if not dims:
        grid = (triton.cdiv(n + shift, how.block),)
        constants = {
            "BLOCK": how.block,
            "EVEN": not shift and n % 16 == 0,
            "X_SINGLY": singly[0],
            "Y_SINGLY": singly[1],
        }
        return Launch(flat_kernel, grid, **how.meta, **constants), (n, shift or None)
    dims, turned = _innermost(dims)
    sizes, *strides = zip(*dims)
    outer = math.prod(sizes[2:])
    tile = _tile(sizes, turned, how.block)
    reach = max(sum((size - 1) * step for size, step in zip(sizes, steps)) for steps in strides)
    reach = max(reach, sizes[0] + tile.BLOCK_I, sizes[1] + tile.BLOCK_J, outer + tile.BLOCK_K)
    even = sizes[0] % 16 == 0
    tiles = (
        triton.cdiv(sizes[0], tile.BLOCK_I)
        * triton.cdiv(sizes[1], tile.BLOCK_J)
        * triton.cdiv(outer, tile.BLOCK_K)
    )
    launch = Launch(
        tiled_kernel,
        (tiles,),
        NDIM=len(dims),
        INDEX=tl.int64 if reach >= 2**31 else tl.int32,
        X_SINGLY=even and not _in_vectors(strides[0], keys[0]),
        Y_SINGLY=even and not _in_vectors(strides[1], keys[1]),
        **tile._asdict(),
        **how.meta,
    )
    return launch, (outer, sizes, *(tuple(step or None for step in steps) for steps in strides))


def _in_vectors(strides: tuple[int, ...], kind: Any) -> bool:
    """Whether the compiler sees that an operand may be read by whole vectors, if it is dense along
    the first dimension at all; ``kind`` is its key, None for none."""
    if kind is None or strides[0] != 1:
        return True
    return bool(kind[1]) and all(stride % 16 == 0 for stride in strides[1:])


Dims = tuple[tuple[int, ...], ...]


def _innermost(dims: Dims) -> tuple[Dims, bool]:
    """The dimensions, two at least, the second of them one along which an operand is dense that is
    not dense along the first, the output's; and whether there is one."""
    dims += ((1, 0, 0, 0),) * (2 - len(dims))
    for operand in (1, 2):
        steps = [dim[operand] or math.inf for dim in dims]
        nearest = steps.index(min(steps))
        if nearest and steps[0] != math.inf:
            return (dims[0], dims[nearest], *dims[1:nearest], *dims[nearest + 1 :]), True
    return dims, False


class _Tile(NamedTuple):
    BLOCK_I: int
    BLOCK_J: int
    BLOCK_K: int


def _tile(sizes: tuple[int, ...], turned: bool, block: int) -> _Tile:
    """A square where tiles are turned, else as long as a block is."""
    numel, longest = (SIDE * SIDE, SIDE) if turned else (block, block)
    i = _cut(sizes[0], longest)
    j = _cut(sizes[1], numel // i)
    return _Tile(i, j, _cut(math.prod(sizes[2:]), numel // (i * j)))


def _cut(size: int, most: int) -> int:
    """Into pieces of how many elements a dimension is cut: a power of two up to ``most``, as large
    as it can be with little overhang, one piece in sixteen, or with the least."""
    piece = best = min(most, triton.next_power_of_2(size))
    while piece > SHORTEST and -size % best > size // 16:
        piece //= 2
        if -size % piece < -size % best:
            best = piece
    return best


def _alike(x: Tensor, y: Tensor | None, out: Tensor) -> bool:
    """Whether all are contiguous and of one shape: what most calls are, told quickly."""
    shape = out.shape
    return (
        x.shape == shape
        and x.is_contiguous()
        and out.is_contiguous()
        and (y is None or (y.shape == shape and y.is_contiguous()))
    )


def _dims(x: Tensor, y: Tensor | None, out: Tensor) -> tuple[tuple[int, ...], ...]:
    """The merged dimensions of x, y and out; none where one dense walk goes through all."""
    x = x.expand(out.shape)
    y = out if y is None else y.expand(out.shape)
    dims = coalesced(list(zip(out.shape, x.stride(), y.stride(), out.stride())))
    dense = len(dims) == 1 and all(stride == 1 for stride in dims[0][1:])
    return () if dense else tuple(dims)
