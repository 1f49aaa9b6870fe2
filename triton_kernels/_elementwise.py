"""Launches of the elementwise ops: two kernels that apply a jit function to every element.

An op provides its formula as a jit function of its operands, from ``ELEMENT(x)`` to
``ELEMENT(x, y, s)``, or with an activation as ``ELEMENT(x, y, ACT)``. It computes in the compute
type C: float32 for float16, bfloat16 and float32; float64 for float64; an integer type itself.
Operands are converted to the result dtype first, as torch promotes, then to C. The result is
rounded once, at the store.

``flat_kernel`` is for dense outputs whose operands have the same layout, or whose operands' offsets
follow from the output's index in up to three dimensions. ``tiled_kernel`` is for everything else,
with any number of dimensions and without copies: for instance operands that are transposed relative
to an output with long rows. Both kernels are in _elementwise_kernels.py.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from triton_kernels._counts import cdiv, next_power_of_2
from triton_kernels._elementwise_kernels import flat_kernel, tiled_kernel
from triton_kernels._launch import REMEMBERED, Launch, divisibility, specialization_key
from triton_kernels._plans import Count
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
BYTES_PER_THREAD = 16  # one 128-bit access per thread and operand
VECTORS = 2  # such accesses per thread if operands have another layout than the output
SIDE = 64  # of a square tile that is transposed
LEAST = 48  # both dimensions have at least this size for a tile of two such squares,
NARROW = 8  # or the second one has at most this size
SPARE = 16  # at most one element in SPARE of a dimension may be overhang
SHORTEST = 32  # the shortest rows of tiles to avoid overhang; the longest rows that walks take

Dims = tuple[tuple[int, ...], ...]  # per dimension (size, stride of x, y, s, out), innermost first
Walk = tuple[int | None, ...]  # the argument ``walk`` of _walked
NONE = None, None, None  # in place of a divisor
Units = tuple[int, int]
ALL: Units = 16, 16
ONCE: Walk = (*NONE, None, *NONE, None, None)
ABSENT = 0  # in place of a number that a formula lacks, or that is a tensor
Y_VALUE, S_VALUE = 4, 5  # positions of the numbers among the kernels' arguments
N_PLACE, WALKS = 6, slice(7, 10)  # and in flat_kernel of the number of elements, and of the walks


def compute_type(dtype: torch.dtype) -> Any:
    """The compute type C for results of ``dtype``."""
    if dtype in (torch.float16, torch.bfloat16):
        return tl.float32
    return TRITON_DTYPE[dtype]


def empty_result(shape: torch.Size, dtype: torch.dtype, like: Tensor) -> Tensor:
    """A new output. If the shapes are equal it has the layout of ``like``, as in torch."""
    if like.shape == shape:
        return (
            torch.empty_like(like) if like.dtype == dtype else torch.empty_like(like, dtype=dtype)
        )
    return torch.empty(shape, dtype=dtype, device=like.device)


def coalesced(dims: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Dimensions (size, stride of each operand), sorted innermost first, without those of size 1.
    Two neighbours become one if every operand goes through both with a single stride."""
    dims = [dim for dim in dims if dim[0] != 1]
    if len(dims) < 2:
        return dims
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
    """The constants and options of launches for results of one dtype, and the elements per block.
    Instances are compared by identity: hashing ``ELEMENT`` would take longer than a launch."""

    meta: dict[str, Any]
    block: int


def configuration(
    element: Any,
    dtype: torch.dtype,
    operands: tuple[bool, bool],
    elements_per_thread: int | None = None,
    act: Any = None,
) -> Configuration:
    """The configuration of launches of ``element`` for results of ``dtype``.

    Args:
        operands: whether the formula has a second operand, and whether it has a factor.
        elements_per_thread: by default as many as 16 bytes hold.
        act: the activation in the formula, if it has one.
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
            # Formulas call fma themselves, to be exact. Activations only have an error bound.
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

    ``y`` is None if the formula has no second operand. ``s`` is ignored if it has no factor.
    """
    n = out.numel()
    if n == 0:
        return out
    y_tensor, y_value = (y, ABSENT) if y is None or isinstance(y, Tensor) else (None, y)
    s_tensor, s_value = (s, ABSENT) if isinstance(s, Tensor) else (None, s)
    if out.dtype is torch.float64:
        y_value, s_value = as_argument(y_value, torch.float64), as_argument(s_value, torch.float64)
    # specialization_key of each, here without a call, because a new shape waits for it.
    keys = (
        (x.dtype, x.data_ptr() % 16 == 0),
        None if y_tensor is None else (y_tensor.dtype, y_tensor.data_ptr() % 16 == 0),
        None if s_tensor is None else (s_tensor.dtype, s_tensor.data_ptr() % 16 == 0),
        (out.dtype, out.data_ptr() % 16 == 0),
        # Whether a number is a float, a result's dtype tells.
        y_value is ABSENT or type(y_value) is float or specialization_key(y_value),
        s_value is ABSENT or type(s_value) is float or specialization_key(s_value),
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
    """The launch for arguments of these keys that are all dense in one order. The number of
    elements is free, but its divisibility is ``counted``."""
    return Launch(flat_kernel, (), BLOCK=how.block, **_named_units(ALL, ALL, ALL), **how.meta)


def _named_units(x: Units, y: Units, s: Units) -> dict[str, Units]:
    return {"X_UNITS": x, "Y_UNITS": y, "S_UNITS": s}


@functools.lru_cache(REMEMBERED)
def _along_row(
    how: Configuration, size: int, counted: int, keys: tuple[Any, ...]
) -> tuple[Launch, Walk]:
    """The launch for arguments of these keys where y is a row of ``size`` elements that repeats,
    and y's walk. :func:`_prepared` would give the same, but takes longer."""
    walk = (*divisor(size), 1, *NONE, None, None)
    kinds = (counted, *ONCE, *map(_kind, walk), *ONCE)
    return _walking(how, (ALL, (math.gcd(16, size), 16), ALL), kinds, keys), walk


def counted(kernel: Any, arguments: Sequence[Any]) -> Count | None:
    """The count of a launch of flat_kernel in which nothing else depends on sizes, except for the
    length of rows that repeat: x and s are as dense as the result, and y is, or is such a row."""
    if kernel is not flat_kernel:
        return None
    x_walk, y_walk, s_walk = arguments[WALKS]
    repeats = y_walk[3:] == (1, *ONCE[4:])  # along one dimension, within which it is dense
    if x_walk != ONCE or s_walk != ONCE or not (repeats or y_walk == ONCE):
        return None
    return Count(N_PLACE, arguments[kernel.arg_names.index("BLOCK")])


@functools.lru_cache(REMEMBERED)
def _prepared(
    how: Configuration, n: int, dims: Dims, keys: tuple[Any, ...]
) -> tuple[Launch, int, tuple[Any, ...]]:
    """The launch for arguments of these keys and dimensions, its number of programs, and its
    arguments after the two numbers."""
    walks = _walks(n, dims, how.block * VECTORS)
    if walks:
        each, units = zip(*walks)
        launch = _walking(how, units, tuple(map(_kind, (n, *itertools.chain(*each)))), keys)
        return launch, cdiv(n, how.block * VECTORS), (n, *each)
    two_squares = how.block == THREADS * 8  # elements of 16 bits; others were not measured
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
    """The launch for walks whose numbers have these kinds. The number of elements is free, so that
    calls with ever new shapes need not ask Triton for the kernel."""
    block = how.block * VECTORS
    return Launch(flat_kernel, (), BLOCK=block, **_named_units(*units), **how.meta)


def tiled(
    dims: Dims, numel: int, two_squares: bool = False
) -> tuple[tuple[int], dict[str, Any], tuple[Any, ...]]:
    """A launch in tiles: the grid, the kernel's constants, and its arguments from ``outer`` on.

    Tiles have about ``numel`` elements. Transposed tiles are squares of SIDE instead, or about one
    or two of these. Each of ``dims`` is (size, stride of each operand). The last operand is the
    output, or the last of several outputs.
    """
    dims, turned = _innermost(dims)
    sizes, *strides = zip(*dims)
    outer = math.prod(sizes[2:])
    tile = _tile(sizes, turned, numel, two_squares)
    last = [size - 1 for size in sizes]
    reach = max([sum([n * step for n, step in zip(last, steps)]) for steps in strides])
    tiles = cdiv(sizes[0], tile.BLOCK_I) * cdiv(sizes[1], tile.BLOCK_J) * cdiv(outer, tile.BLOCK_K)
    # Tiles have powers of two as sides, so indices to their ends stay below 2³¹ if offsets do.
    index = tl.int64 if reach >= 2**31 else tl.int32
    constants = {"UNITS": _units(dims), "NDIM": len(dims), "INDEX": index, **tile._asdict()}
    nonzero = [tuple([step or None for step in steps]) for steps in strides]
    return (tiles,), constants, (outer, sizes, *nonzero)


def _walks(n: int, dims: Dims, block: int) -> tuple[tuple[Walk, Units], ...]:
    """The walks and units of x, y and s through a dense output, for flat_kernel; empty if tiles are
    needed, or are faster. Tiles are faster if an operand repeats along rows that fill a block:
    they read it once."""
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
    """An operand's walk through the dense output, and its units, for :func:`_walked`.

    None if the walk needs more than three dimensions, or offsets of more than 32 bits. None also if
    the output's rows are longer than SHORTEST and the operand is not dense along them: a block of
    the output then covers little of each of the operand's own rows, and tiles are faster.
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
    """d, a factor and a shift: for an index below 2³¹, index ÷ d rounded down is the upper 32 bits
    of index · factor, shifted right.

    Let 2ˢ be the least power of two with d ≤ 2ˢ. The factor m = ⌈2³¹⁺ˢ/d⌉ is 2³¹⁺ˢ/d + e/d with
    e < d ≤ 2ˢ. So for i < 2³¹ the product i·m exceeds 2³¹⁺ˢ·i/d by less than 2³¹⁺ˢ/d, which does
    not change the quotient rounded down.
    """
    power = (d - 1).bit_length()
    # The factor as an int32 with the same bits: its highest bit is always set.
    return d, -(-(2 ** (31 + power)) // d) - 2**32, power - 1


def _innermost(dims: Dims) -> tuple[Dims, bool]:
    """At least two dimensions, and whether tiles are transposed. They are if an operand that does
    not repeat along the first dimension, the output's innermost, has its smallest stride along
    another one. That dimension becomes the second; the first such operand decides."""
    dims += ((1, *(0,) * (len(dims[0]) - 1)),) * (2 - len(dims))
    for operand in range(1, len(dims[0]) - 1):
        steps = [dim[operand] or math.inf for dim in dims]
        nearest = steps.index(min(steps))
        if nearest and steps[0] != math.inf:
            return (dims[0], dims[nearest], *dims[1:nearest], *dims[nearest + 1 :]), True
    return dims, False


def _units(dims: Dims) -> tuple[int, ...]:
    """Divisors below 16 of sizes and strides, for the compiler, which itself only sees multiples of
    16: one for each of the first two sizes; then for each operand the dimension d along which it is
    dense, and a divisor of d's size and of the operand's other strides."""
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
    """The blocks of a tile: ``numel`` elements in the longest rows possible, if not transposed.

    A transposed tile is a square of SIDE; two squares if ``two_squares`` and both dimensions are
    large enough, or the second is narrow; of twice the length and half the height if the output's
    rows are not aligned; half a square if threads cannot access whole vectors. If several elements
    are read at once, short pieces cost more than overhang.
    """
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
    """The length of the pieces into which a dimension is cut: a power of two up to ``most``. It is
    the largest one with an overhang of at most 1/``spare`` of the size, or else the one with the
    least overhang."""
    piece = best = min(most, next_power_of_2(size))
    while piece > SHORTEST and -size % best > size // spare:
        piece //= 2
        if -size % piece < -size % best:
            best = piece
    return best


def _alike(x: Tensor, y: Tensor | None, s: Tensor | None, out: Tensor) -> bool:
    """Whether all are contiguous and of one shape, as in most calls; a fast test."""
    shape = out.shape
    return (
        x.shape == shape
        and x.is_contiguous()
        and out.is_contiguous()
        and (y is None or (y.shape == shape and y.is_contiguous()))
        and (s is None or (s.shape == shape and s.is_contiguous()))
    )


def _row(x: Tensor, y: Tensor, s: Tensor | None, out: Tensor) -> bool:
    """Whether y is a dense row that repeats, such as a bias, and x and out are dense."""
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
    """The coalesced dimensions of x, y, s and out; a missing operand counts as having out's layout.
    Empty if all are dense in one order."""
    shape, strides = out.shape, out.stride()
    lying = [
        strides if t is None else t.stride() if t.shape == shape else t.expand(shape).stride()
        for t in (x, y, s)
    ]
    dims = coalesced(list(zip(shape, *lying, strides)))
    dense = len(dims) == 1 and all(stride == 1 for stride in dims[0][1:])
    return () if dense else tuple(dims)
