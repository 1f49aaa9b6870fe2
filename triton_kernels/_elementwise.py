"""The engine under the elementwise ops: two kernels that apply a jit function to every element.

An op brings its formula as a jit function of the operands that it has, ``ELEMENT(x)`` to
``ELEMENT(x, y, s)``, or of an activation, too, ``ELEMENT(x, y, ACT)``, in the compute type C:
float32 for float16, bfloat16 and float32, float64 for float64, an integer type itself. Operands are
converted to the result dtype first (as torch promotes), then to C; the result is rounded once, on
the store.

``flat_kernel`` serves a dense output whose operands lie alike, or are found by an index in up to
three dimensions; ``tiled_kernel`` everything else, with any number of dimensions and without a
copy: operands that are turned against long rows of the output. Both stand in
_elementwise_kernels.py.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from triton_kernels._counts import cdiv, next_power_of_2
from triton_kernels._elementwise_kernels import flat_kernel, tiled_kernel
from triton_kernels._launch import REMEMBERED, Launch, divisibility, specialization_key
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
VECTORS = 2  # of them a thread where operands lie otherwise than the output
SIDE = 64  # of a tile that is turned
LEAST = 48  # of both dimensions, for a tile of two such squares
NARROW = 8  # or of the second one, at most
SPARE = 16  # of what is cut so much may hang over, one in SPARE
SHORTEST = 32  # elements of a tile's row where longer ones hang over; rows up to it are walked

Dims = tuple[tuple[int, ...], ...]  # (size, stride of x, y, s, out) of each, innermost first
Walk = tuple[int | None, ...]  # as _walked takes it
NONE = None, None, None  # in place of a divisor
Units = tuple[int, int]
ALL: Units = 16, 16
ONCE: Walk = (*NONE, None, *NONE, None, None)
Y_VALUE, S_VALUE = 4, 5  # which of the kernels' arguments are numbers


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
    merged = dims[:1]
    for size, *strides in dims[1:]:
        inner, *steps = merged[-1]
        if strides == [step * inner for step in steps]:
            merged[-1] = (inner * size, *steps)
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
    act: Any = None,
) -> Configuration:
    """That of launches of ``element`` for results of ``dtype``; ``operands``: whether it has a
    second operand, and whether a factor.

    ``elements_per_thread`` pins what one thread handles; by default it is 16 bytes' worth.
    ``act`` is the activation in the formula, if it has one.
    """
    per_thread = elements_per_thread or max(1, BYTES_PER_THREAD // dtype.itemsize)
    return Configuration(
        {
            "ELEMENT": element,
            "HAS_Y": operands[0],
            "HAS_S": operands[1],
            "C": compute_type(dtype),
            "ACT": act,
            "num_warps": NUM_WARPS,
            # The formulas say where they fuse; activations are held to a bound, not to bits.
            "enable_fp_fusion": act is not None,
        },
        block=THREADS * per_thread,
    )


def apply(
    how: Configuration,
    x: Tensor,
    y: Tensor | int | float | None,
    s: Tensor | int | float,
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
    s_tensor, s_value = (s, 0) if isinstance(s, Tensor) else (None, s)
    if out.dtype is torch.float64:
        y_value, s_value = as_argument(y_value, torch.float64), as_argument(s_value, torch.float64)
    keys = (
        specialization_key(x),
        specialization_key(y_tensor),
        specialization_key(s_tensor),
        specialization_key(out),
        specialization_key(y_value),
        specialization_key(s_value),
    )
    alike = _alike(x, y_tensor, s_tensor, out)
    rest: tuple[Any, ...]
    if not alike and y_tensor is not None and n < 2**31 and _row(x, y_tensor, s_tensor, out):
        launch, walk = _along_row(how, y_tensor.numel(), divisibility(n), keys)
        programs, rest = cdiv(n, how.block * VECTORS), (n, ONCE, walk, ONCE)
    elif not alike and (dims := _dims(x, y_tensor, s_tensor, out)):
        launch, programs, rest = _prepared(how, n, dims, keys)
    else:
        launch = _dense(how, divisibility(n), keys)
        programs, rest = cdiv(n, how.block), (n, ONCE, ONCE, ONCE)
    launch(out.device, x, y_tensor, s_tensor, out, y_value, s_value, *rest, grid=(programs, 1, 1))
    return out


@functools.lru_cache(REMEMBERED)
def _dense(how: Configuration, counted: int, keys: tuple[Any, ...]) -> Launch:
    """The launch for arguments of these keys that one dense walk goes through, of any number of
    elements whose divisibility is ``counted``."""
    return Launch(flat_kernel, (), BLOCK=how.block, **_named_units(ALL, ALL, ALL), **how.meta)


def _named_units(x: Units, y: Units, s: Units) -> dict[str, Units]:
    return {"X_UNITS": x, "Y_UNITS": y, "S_UNITS": s}


@functools.lru_cache(REMEMBERED)
def _along_row(
    how: Configuration, size: int, counted: int, keys: tuple[Any, ...]
) -> tuple[Launch, Walk]:
    """The launch for arguments of these keys, of which y is a row of so many elements that comes
    again and again, and y's walk: what :func:`_prepared` gives, for less of the host's time."""
    walk = (*divisor(size), 1, *NONE, None, None)
    kinds = (counted, *ONCE, *map(_kind, walk), *ONCE)
    return _walking(how, (ALL, (math.gcd(16, size), 16), ALL), kinds, keys), walk


@functools.lru_cache(REMEMBERED)
def _prepared(
    how: Configuration, n: int, dims: Dims, keys: tuple[Any, ...]
) -> tuple[Launch, int, tuple[Any, ...]]:
    """The launch for arguments of these keys and dimensions, its programs, and its arguments after
    s."""
    walks = _walks(n, dims, how.block * VECTORS)
    if walks:
        each, units = zip(*walks)
        launch = _walking(how, units, tuple(map(_kind, (n, *itertools.chain(*each)))), keys)
        return launch, cdiv(n, how.block * VECTORS), (n, *each)
    two_squares = how.block == THREADS * 8  # of 16 bits, which were measured
    grid, constants, arguments = tiled(dims, how.block * VECTORS, two_squares)
    return Launch(tiled_kernel, grid, **constants, **how.meta), *grid, arguments


def _kind(number: int | None) -> int | None:
    return None if number is None else divisibility(number)


@functools.lru_cache(REMEMBERED)
def _walking(
    how: Configuration,
    units: tuple[Units, Units, Units],
    kinds: tuple[int | None, ...],
    keys: tuple[Any, ...],
) -> Launch:
    """The launch of walks whose numbers are of these kinds, of any number of elements: what comes
    in a new shape every time need not ask Triton for its kernel."""
    block = how.block * VECTORS
    return Launch(flat_kernel, (), BLOCK=block, **_named_units(*units), **how.meta)


def tiled(
    dims: Dims, numel: int, two_squares: bool = False
) -> tuple[tuple[int], dict[str, Any], tuple[Any, ...]]:
    """A launch in tiles of about ``numel`` elements, or where they are turned of a square or two:
    the grid, the kernel's constants, and its arguments from ``outer`` on. Each of the dims is
    (size, stride of each operand), the output, or the last of them, being the last operand."""
    dims, turned = _innermost(dims)
    sizes, *strides = zip(*dims)
    outer = math.prod(sizes[2:])
    tile = _tile(sizes, turned, numel, two_squares)
    last = [size - 1 for size in sizes]
    reach = max([sum([n * step for n, step in zip(last, steps)]) for steps in strides])
    reach = max(reach, sizes[0] + tile.BLOCK_I, sizes[1] + tile.BLOCK_J, outer + tile.BLOCK_K)
    tiles = cdiv(sizes[0], tile.BLOCK_I) * cdiv(sizes[1], tile.BLOCK_J) * cdiv(outer, tile.BLOCK_K)
    index = tl.int64 if reach >= 2**31 else tl.int32
    constants = {"UNITS": _units(dims), "NDIM": len(dims), "INDEX": index, **tile._asdict()}
    nonzero = [tuple([step or None for step in steps]) for steps in strides]
    return (tiles,), constants, (outer, sizes, *nonzero)


def _walks(n: int, dims: Dims, block: int) -> tuple[tuple[Walk, Units], ...]:
    """How x, y and s walk through a dense output in blocks, for flat_kernel; none where tiles are
    needed, or do better: they read once what repeats itself along rows that fill them."""
    size = dims[0][0]
    if size >= block and size % 16 == 0 and 0 in dims[0]:
        return ()
    dense = 1
    for size, *_, step in dims:
        if step != dense:
            return ()
        dense *= size
    if n >= 2**31:
        return ()
    walks = [_walk(dims, operand) for operand in (1, 2, 3)]
    return tuple(walk for walk in walks if walk) if all(walks) else ()


def _walk(dims: Dims, operand: int) -> tuple[Walk, Units] | None:
    """An operand's walk through the dense output, and its units, as :func:`_walked` takes them.

    None if it needs more than three dimensions or 32-bit offsets do not reach; and where its
    neighbours are not the output's in rows longer than SHORTEST: there a block of the output has
    so little of each of the operand's rows that tiles do better.
    """
    merged = coalesced([(dim[0], dim[operand], dim[-1]) for dim in dims])
    if len(merged) == 1 and merged[0][1] == 1:
        return ONCE, ALL
    sizes, strides, _ = zip(*merged)
    span = sum([(size - 1) * stride for size, stride in zip(sizes, strides)])
    if len(merged) > 3 or span >= 2**31 or (strides[0] > 1 and sizes[0] > SHORTEST):
        return None
    units = math.gcd(16, sizes[0]), math.gcd(16, *strides[1:])
    first, second, third = ((stride or None) for stride in (*strides, 0, 0)[:3])
    planes = divisor(sizes[1]) if len(merged) == 3 else NONE
    return (*divisor(sizes[0]), first, *planes, second, third), units


def divisor(d: int) -> tuple[int, int, int]:
    """d, and what an index is multiplied by, and then shifted, for the upper 32 bits of the product
    to be index ÷ d.

    With 2ˢ the next power of two, m = ⌈2³¹⁺ˢ/d⌉ is 2³¹⁺ˢ/d + e/d with e < d ≤ 2ˢ, and so i·m is
    2³¹⁺ˢ·i/d and less than 2³¹⁺ˢ/d more, for an index below 2³¹: the same when rounded down.
    """
    power = (d - 1).bit_length()
    # As an int32 of the same bits: it always has the highest of them.
    return d, -(-(2 ** (31 + power)) // d) - 2**32, power - 1


def _innermost(dims: Dims) -> tuple[Dims, bool]:
    """The dimensions, two at least, the second of them one along which an operand is dense that is
    not dense along the first, the output's; and whether there is one."""
    dims += ((1, *(0,) * (len(dims[0]) - 1)),) * (2 - len(dims))
    for operand in range(1, len(dims[0]) - 1):
        steps = [dim[operand] or math.inf for dim in dims]
        nearest = steps.index(min(steps))
        if nearest and steps[0] != math.inf:
            return (dims[0], dims[nearest], *dims[1:nearest], *dims[nearest + 1 :]), True
    return dims, False


def _units(dims: Dims) -> tuple[int, ...]:
    """What the compiler shall know that sizes and strides are multiples of, where by itself it sees
    which are of 16: of the first two sizes, then for each operand the dimension d along which it is
    dense, and a divisor of d's size and of the strides along the others."""
    sizes, *strides = zip(*dims)
    units = []
    largest = [1, 1]
    for steps in strides:
        dense = steps[:2].index(1) if 1 in steps[:2] else 0
        others = (*steps[:dense], *steps[dense + 1 :])
        unit = math.gcd(16, sizes[dense], *others) if steps[dense] == 1 else 1
        unit = unit if unit < 16 else 1
        units += [dense, unit]
        largest[dense] = max(largest[dense], unit)
    return (*largest, *units)


class _Tile(NamedTuple):
    BLOCK_I: int
    BLOCK_J: int
    BLOCK_K: int


def _tile(sizes: tuple[int, ...], turned: bool, numel: int, two_squares: bool) -> _Tile:
    """A square where tiles are turned, half of one where threads cannot access whole vectors, two
    of them where that is much of both dimensions, or one is narrow, and one of twice the length
    where the output's rows begin anywhere; else ``numel`` elements, as long as can be. Where
    several elements are read at once short pieces cost more than overhang."""
    longest, spare = numel, SPARE
    if turned:
        longest, numel = SIDE, SIDE * SIDE
        even = sizes[0] % 4 == sizes[1] % 4 == 0
        spare = 2 if even else SPARE
        if two_squares and even and (min(sizes[:2]) >= LEAST or sizes[1] <= NARROW):
            longest, numel = 2 * SIDE, 2 * numel
        elif sizes[0] % 4:
            longest = 2 * SIDE
        elif sizes[0] % 16 or sizes[1] % 16:
            numel //= 2
    i = cut(sizes[0], longest, spare)
    j = cut(sizes[1], numel // i, spare)
    return _Tile(i, j, cut(math.prod(sizes[2:]), numel // (i * j)))


def cut(size: int, most: int, spare: int = SPARE) -> int:
    """Into pieces of how many elements a dimension is cut: a power of two up to ``most``, as large
    as it can be with little overhang, one piece in ``spare``, or with the least."""
    piece = best = min(most, next_power_of_2(size))
    while piece > SHORTEST and -size % best > size // spare:
        piece //= 2
        if -size % piece < -size % best:
            best = piece
    return best


def _alike(x: Tensor, y: Tensor | None, s: Tensor | None, out: Tensor) -> bool:
    """Whether all are contiguous and of one shape: what most calls are, told quickly."""
    shape = out.shape
    return (
        x.shape == shape
        and x.is_contiguous()
        and out.is_contiguous()
        and (y is None or (y.shape == shape and y.is_contiguous()))
        and (s is None or (s.shape == shape and s.is_contiguous()))
    )


def _row(x: Tensor, y: Tensor, s: Tensor | None, out: Tensor) -> bool:
    """Whether y is a dense row that comes again and again, and the others are dense: a bias."""
    shape, whole = y.shape, out.shape
    return (
        s is None
        and whole[-len(shape) :] == shape
        and x.shape == whole
        and y.is_contiguous()
        and x.is_contiguous()
        and out.is_contiguous()
        and 1 < y.numel() < out.numel()
    )


def _dims(x: Tensor, y: Tensor | None, s: Tensor | None, out: Tensor) -> Dims:
    """The coalesced dimensions of x, y, s and out, as which those lie that are not there; none
    where one dense walk goes through all."""
    shape, strides = out.shape, out.stride()
    lying = [
        strides if t is None else t.stride() if t.shape == shape else t.expand(shape).stride()
        for t in (x, y, s)
    ]
    dims = coalesced(list(zip(shape, *lying, strides)))
    dense = len(dims) == 1 and all(stride == 1 for stride in dims[0][1:])
    return () if dense else tuple(dims)
