"""sum_to: out = factor·Σx over the dimensions in which x is larger than out; undoes broadcasting.

Shapes: out's shape broadcasts to x's. Dtypes: float16, bfloat16, float32, float64; x and out may
differ. The compute type C is float32, or float64 if x or out is float64.

Steps: x → C; the sum in C, in an order that depends on dtype, shape, strides and alignment only;
one multiplication by factor, which is rounded once to C; one rounding to out's dtype. An empty sum
is 0.
Reference: factor * x.sum_to_size(shape).

No atomics: where few results have many addends, a first pass stores partial sums in C, and a second
pass adds them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait

from triton_kernels import _arguments, _elementwise, _launch
from triton_kernels._counts import cdiv
from triton_kernels._launch import REMEMBERED, Launch, divisibility, specialization_key
from triton_kernels._operator import Gradient, Operator, TensorMeta
from triton_kernels._placements import P, R, Rule, Shard, Sharding
from triton_kernels._scalars import as_argument, scalar_value
from triton_kernels.ops import _sum_to_tiles as tiles
from triton_kernels.ops._row_sums import VECTOR, row_sum_kernel
from triton_kernels.ops._sum_to_tiles import Dims, Sums, Tile

__all__ = ["sum_to"]

DTYPES = _arguments.FLOATS


@triton.jit
def _addends(
    x_ptr,
    x_start,
    kept_mask,
    start,
    end,
    limit,
    reduced_sizes,
    reduced_strides,
    REDUCED_NDIM: tl.constexpr,
    INDEX: tl.constexpr,
    KEPT_UNIT: tl.constexpr,
    REDUCED_UNIT: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """A tile of x, [BLOCK_K, BLOCK_R]. Lanes from addend ``end`` on, or from element ``limit`` of x
    on, are 0. Each is None where the whole tile lies before it."""
    r = start + tl.arange(0, BLOCK_R).to(INDEX)
    offset = tl.zeros([BLOCK_R], INDEX)
    rest = r
    for d in tl.static_range(REDUCED_NDIM):
        j = rest
        if d < REDUCED_NDIM - 1:
            size = reduced_sizes[d] if d > 0 else reduced_sizes[d] * REDUCED_UNIT
            j = rest % size
            rest = rest // size
        offset += j * reduced_strides[d] * (KEPT_UNIT if d == 0 else KEPT_UNIT * REDUCED_UNIT)
    mask = kept_mask[:, None]
    if end is not None:
        mask = mask & (r < end)[None, :]
    if limit is not None:
        mask = mask & (x_start[:, None] + offset[None, :] < limit)
    return tl.load(x_ptr + x_start[:, None] + offset[None, :], mask=mask, other=0)


@triton.jit(do_not_specialize=["factor"])
def sum_kernel(
    x_ptr,
    out_ptr,
    factor,
    kept,
    reduced,
    part,
    limit,
    kept_sizes,
    kept_strides,
    out_strides,
    reduced_sizes,
    reduced_strides,
    C: tl.constexpr,
    KEPT_NDIM: tl.constexpr,
    REDUCED_NDIM: tl.constexpr,
    INDEX: tl.constexpr,
    KEPT_UNIT: tl.constexpr,
    REDUCED_UNIT: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_R: tl.constexpr,
    STAGES: tl.constexpr,
    UNROLL: tl.constexpr,
    OUT_UNIT: tl.constexpr,
    WAITS: tl.constexpr,
):
    """Program (i, j) adds the j-th part of the addends of its block of results. It loads STAGES − 1
    tiles ahead, or UNROLL at once. WAITS: whether the launch that writes x may still run.

    Dimensions come innermost first. The last one is indexed without a remainder, so the compiler
    sees that a single dimension is contiguous. ``kept``, its first size and all strides but the
    first are passed divided by KEPT_UNIT; multiplied here, they show the compiler that they are
    multiples of it. REDUCED_UNIT does the same for ``reduced``, OUT_UNIT for out's strides. Only
    the last tile of a part masks addends: masked loads are wide only if the end is a multiple of
    their width, and each element costs a comparison. If x ends at ``limit``, within the last
    addends, the last tile of every part is masked.
    """
    if WAITS:
        gdc_wait()
    if KEPT_UNIT > 1:
        kept = tl.cast(kept, INDEX) * KEPT_UNIT
    if REDUCED_UNIT > 1:
        reduced = tl.cast(reduced, INDEX) * REDUCED_UNIT
    k = tl.program_id(0).to(INDEX) * BLOCK_K + tl.arange(0, BLOCK_K)
    x_start = tl.zeros([BLOCK_K], INDEX)
    out_offset = tl.zeros([BLOCK_K], INDEX)
    rest = k
    for d in tl.static_range(KEPT_NDIM):
        i = rest
        if d < KEPT_NDIM - 1:
            size = kept_sizes[d] if d > 0 else kept_sizes[d] * KEPT_UNIT
            i = rest % size
            rest = rest // size
        x_start += i * kept_strides[d] * (REDUCED_UNIT if d == 0 else KEPT_UNIT * REDUCED_UNIT)
        out_offset += i * (out_strides[d] if d == 0 else out_strides[d] * OUT_UNIT)
    begin = tl.program_id(1).to(INDEX) * part
    end = tl.minimum(begin + part, reduced)
    certain = end if limit is None else end - 1
    whole = begin + (certain - begin) // BLOCK_R * BLOCK_R
    total = tl.zeros([BLOCK_K, BLOCK_R], C)
    for start in tl.range(begin, whole, BLOCK_R, num_stages=STAGES, loop_unroll_factor=UNROLL):
        x = _addends(
            x_ptr, x_start, k < kept, start, None, None, reduced_sizes, reduced_strides,
            REDUCED_NDIM, INDEX, KEPT_UNIT, REDUCED_UNIT, BLOCK_R,
        )  # fmt: skip
        total += tl.cast(x, C)
    if whole < end:
        x = _addends(
            x_ptr, x_start, k < kept, whole, end, limit, reduced_sizes, reduced_strides,
            REDUCED_NDIM, INDEX, KEPT_UNIT, REDUCED_UNIT, BLOCK_R,
        )  # fmt: skip
        total += tl.cast(x, C)
    out = tl.sum(total, axis=1) * scalar_value(factor, C)
    out_ptrs = out_ptr + tl.program_id(1).to(INDEX) * kept + out_offset
    tl.store(out_ptrs, tl.cast(out, out_ptr.dtype.element_ty), mask=k < kept)


def sum_to(
    x: Tensor,
    shape: Sequence[int],
    *,
    factor: int | float = 1,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """factor·x, summed to a shape that broadcasts to x's: the gradient of broadcasting.

    Args:
        x: tensor of float16, bfloat16, float32 or float64.
        shape: the result's shape; counted from the right, each size is x's or 1.
        factor: Python number, rounded once to the compute type.
        dtype: the result's dtype, one of these; x's by default.
        out: written and returned if given; exactly the result's shape and dtype, not overlapping x.

    Returns:
        The sums, added in float32 (float64 if x or the result is float64) and rounded once. The
        order of additions depends only on dtype, shape, strides and whether x is aligned to 16
        bytes, so equal calls give equal bits.

    Raises:
        TypeError: x is no tensor, factor no number, or a dtype is unsupported.
        RuntimeError: shape does not broadcast to x's, out does not fit or overlaps, the device is
            unsupported, out is given and x requires grad.
    """
    if type(shape) is tuple and {*map(type, shape)} == {int}:
        shape = torch.Size(shape)
    return _sum_to(x, shape, factor, dtype, out=out)


def reduce_to(grad: Tensor, like: Tensor | TensorMeta, factor: int | float = 1) -> Tensor:
    """factor·grad, summed to the shape of ``like``, in its dtype: the gradient of ``like``, which
    was broadcast and promoted. Returns grad itself if there is nothing to do."""
    if grad.shape == like.shape and grad.dtype == like.dtype and factor == 1:
        return grad
    return sum_to(grad, like.shape, factor=factor, dtype=like.dtype)


def _launch_sum_to(
    x: Tensor,
    shape: Sequence[int],
    factor: int | float,
    dtype: torch.dtype | None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    op = "sum_to"
    x = _arguments.tensor(op, "x", x, DTYPES)
    dtype = x.dtype if dtype is None else _arguments.floating_dtype(op, "dtype", dtype, x.dtype)
    shape = _checked_shape(x, shape)
    compute = torch.float64 if torch.float64 in (x.dtype, dtype) else torch.float32
    factor = _arguments.number(op, "factor", factor, compute)
    if x.requires_grad and torch.is_grad_enabled():
        _arguments.refuse_gradients(op, _arguments.NO_GRADIENT_WITH_OUT, [("x", x)])
    _launch.check_device(op, x.device, sum_kernel)
    if out is None:
        out = torch.empty(shape, dtype=dtype, device=x.device)
    else:
        _arguments.check_out(op, out, shape, dtype, x.device, {"x": x}, in_place=False)
    if out.numel():
        _run(x, out, factor, compute)
    return out


def _checked_shape(x: Tensor, shape: Any) -> torch.Size:
    sizes = shape if type(shape) is torch.Size else _arguments.sizes("sum_to", "shape", shape)
    missing = len(x.shape) - len(sizes)
    others = [size for size, full in zip(sizes, x.shape[missing:]) if size != full]
    if missing < 0 or others.count(1) < len(others):
        raise RuntimeError(
            f"sum_to(): the shape {tuple(sizes)} does not broadcast to that of 'x' {tuple(x.shape)}"
        )
    return sizes


def _fake(
    x: Tensor, shape: Sequence[int], factor: int | float, dtype: torch.dtype | None
) -> Tensor:
    return x.new_empty(tuple(shape), dtype=dtype or x.dtype)


def _run(
    x: Tensor, out: Tensor, factor: int | float, compute: torch.dtype, follows: bool = False
) -> None:
    """One launch, or two where few results have many addends. ``follows``: the launch just before
    writes x."""
    number = as_argument(float(factor), compute)
    shapes = x.shape, x.stride(), out.shape, out.stride()
    partial, first, second = _passes(*shapes, specialization_key(x), compute)
    steps = [(first, x, out, number, follows)]
    if second is not None:
        sums = _launch.workspace(partial, compute, x.device)
        one = as_argument(1.0, compute)
        steps = [(first, x, sums, one, follows), (second, sums, out, number, True)]
    overlaps = steps[-1][-1] and _launch.overlaps(sum_kernel, x.device)
    for each, source, target, by, after in steps:
        keys = specialization_key(source), specialization_key(target), specialization_key(by)
        launch = _launching(each.how, (*keys, *each.kinds), after and overlaps)
        launch(x.device, source, target, by, *each.rest, grid=each.grid)


def add_rows(partial: Tensor, out: Tensor) -> None:
    """Add the partial sums of the kernel launched just before: out [N] = Σ partial [parts, N],
    which is contiguous and of the compute type."""
    if out.numel():
        _run(partial, out, 1.0, partial.dtype, follows=True)


class _How(NamedTuple):
    """The constants of a launch: the compute type, whether offsets need 64 bits, the three units
    (KEPT_UNIT, REDUCED_UNIT, OUT_UNIT), and the tile."""

    compute: torch.dtype
    far: bool
    units: tuple[int, int, int]
    tile: Tile

    def launch(self, kinds: tuple[Any, ...], waits: bool) -> Launch:
        """The launch of sum_kernel for arguments of these kinds."""
        kept_unit, reduced_unit, out_unit = self.units
        *_, kept, _, _, reduced, _ = kinds
        return Launch(
            sum_kernel,
            (),
            C=_elementwise.compute_type(self.compute),
            KEPT_NDIM=len(kept),
            REDUCED_NDIM=len(reduced),
            INDEX=tl.int64 if self.far else tl.int32,
            KEPT_UNIT=kept_unit,
            REDUCED_UNIT=reduced_unit,
            **self.tile._asdict(),
            OUT_UNIT=out_unit,
            **_launch.waiting(waits),
        )


class _Rows(NamedTuple):
    """The constants of a launch of row_sum_kernel: the compute type, the elements of a vector, and
    the tile."""

    compute: torch.dtype
    vector: int
    tile: Tile

    def launch(self, kinds: tuple[Any, ...], waits: bool) -> Launch:
        """The launch. It waits for no other, since partial sums are no such rows."""
        return Launch(
            row_sum_kernel,
            (),
            C=_elementwise.compute_type(self.compute),
            V=self.vector,
            BLOCK_R=self.tile.BLOCK_R,
            UNROLL=self.tile.UNROLL,
            num_warps=self.tile.num_warps,
        )


class _Pass(NamedTuple):
    """A launch: its grid, its arguments after x, out and factor, and their kinds."""

    how: _How | _Rows
    grid: tuple[int, int, int]
    rest: tuple[Any, ...]
    kinds: tuple[Any, ...]


@functools.lru_cache(REMEMBERED)
def _passes(
    x_shape: torch.Size,
    x_strides: tuple[int, ...],
    out_shape: torch.Size,
    out_strides: tuple[int, ...],
    x_key: tuple[torch.dtype, bool],
    compute: torch.dtype,
) -> tuple[tuple[int, int], _Pass, _Pass | None]:
    """The shape of the partial sums, the pass that stores them and the pass that adds them. With
    one pass the last is None."""
    missing, results = len(x_shape) - len(out_shape), math.prod(out_shape)
    shape, strides = (1,) * missing + tuple(out_shape), (0,) * missing + out_strides
    dims = list(zip(shape, x_shape, x_strides, strides))
    kept = _elementwise.coalesced([(n, xs, os) for m, n, xs, os in dims if m == n])
    reduced = _elementwise.coalesced([(n, xs, 0) for m, n, xs, os in dims if m != n])
    sums = Sums(kept, reduced, results, math.prod(x_shape) // results)
    if kept[1:] and reduced[1:] and (inner := tiles.within(sums, x_key[0])) is not None:
        return _rows_first(sums, inner, x_key, compute)
    if (tile := tiles.unaligned_rows(sums, *x_key)) is not None:
        return (1, results), _by_row(sums, tile, x_key[0], compute), None
    tile = tiles.tile_of(sums, x_key)
    parts = tiles.parts_of(sums, tile)
    if parts == 1:
        return (1, results), _pass(sums, 1, tile, compute), None
    rows = tiles.rows_at_once(sums, *x_key)
    if rows > 1:  # a wider matrix: the second pass adds its columns of one result
        width, height = rows * results, cdiv(sums.addends, rows)
        first = Sums([(width, 1, 1)], [(height, width, 0)], width, height)
        tile = tiles.tile_of(first, x_key)
        parts = tiles.parts_of(first, tile)
        limit = results * sums.addends if sums.addends % rows else None
        leaving = _pass(first, parts, tile, compute, limit)
    else:
        partial: Dims = [(n, xs, at) for (n, xs, _), at in zip(kept, _dense(kept))]
        leaving = _pass(sums._replace(kept=partial), parts, tile, compute)
    parts = leaving.grid[1] * rows
    return (parts, results), leaving, _adding(tuple(kept), results, parts, compute)


def _dense(kept: Sequence[tuple[int, ...]]) -> list[int]:
    """The strides of partial sums of these dimensions, which lie densely."""
    strides = [1]
    for size, *_ in kept:
        strides.append(strides[-1] * size)
    return strides


@functools.lru_cache(REMEMBERED)
def _adding(
    kept: tuple[tuple[int, ...], ...], results: int, parts: int, compute: torch.dtype
) -> _Pass:
    """The pass that adds partial sums. It is cached apart, because sums of many shapes have as many
    parts."""
    rest = _elementwise.coalesced([(n, at, os) for (n, _, os), at in zip(kept, _dense(kept))])
    second = Sums(rest, [(parts, results, 0)], results, parts)
    return _pass(second, 1, tiles.tile_of_parts(second, compute), compute)


def _rows_first(
    sums: Sums, inner: Sums, x_key: tuple[torch.dtype, bool], compute: torch.dtype
) -> tuple[tuple[int, int], _Pass, _Pass]:
    """The same if the first pass adds whole rows of x, and the second ``inner``, the addends within
    a row."""
    width = inner.results * inner.addends
    first = Sums.of([(width, 1, 1)], [sums.reduced[-1]])
    tile = tiles.tile_of(first, x_key)
    leaving = _pass(first, tiles.parts_of(first, tile), tile, compute)
    parts = leaving.grid[1]
    second = Sums.of(inner.kept, _elementwise.coalesced([*inner.reduced, (parts, width, 0)]))
    adding = _pass(second, 1, tiles.tile_of_parts(second, compute), compute)
    return (parts, width), leaving, adding


def _by_row(sums: Sums, tile: Tile, dtype: torch.dtype, compute: torch.dtype) -> _Pass:
    """The launch of row_sum_kernel, a program for each result."""
    ((_, pitch, step),) = sums.kept
    rest = sums.addends, pitch, step
    how = _Rows(compute, VECTOR // dtype.itemsize, tile)
    return _Pass(how, (sums.results, 1, 1), rest, tuple(map(divisibility, rest)))


def _pass(
    sums: Sums,
    parts: int,
    tile: Tile,
    compute: torch.dtype,
    limit: int | None = None,
) -> _Pass:
    """A launch that cuts the sums of x's first ``limit`` elements into at most ``parts`` parts."""
    kept, reduced, results, addends = sums
    units = tiles.unit(kept, reduced), tiles.unit(reduced, kept)
    out_unit = tiles.out_unit(kept) if units[0] > 1 else 1
    # Where addends are vectors, a part must end at a multiple of 16 for the compiler to see it.
    whole = max(16, tile.BLOCK_R) if units[1] > 1 else tile.BLOCK_R
    part = whole * cdiv(addends, parts * whole)
    grid = (cdiv(results, tile.BLOCK_K), max(1, cdiv(addends, max(1, part))), 1)
    kept, reduced = kept or [(1, 0, 0)], reduced or [(1, 0, 0)]
    reach = sum([(size - 1) * stride for size, stride, _ in (*kept, *reduced)])
    # The largest offset in out or in the partial sums, and the largest index counted to.
    reach = max(reach, sum([(size - 1) * step for size, _, step in kept]), grid[1] * results)
    reach = max(reach, addends + part) + tile.STAGES * tile.BLOCK_K * tile.BLOCK_R
    kept_sizes, kept_strides, out_strides = zip(*kept)
    reduced_sizes, reduced_strides, _ = zip(*reduced)
    counts = results // units[0], addends // units[1], part
    sizes = (
        _divided(kept_sizes, units[0], 1),
        _divided(kept_strides, units[1], units[0] * units[1]),
        _divided(out_strides, 1, out_unit),
        _divided(reduced_sizes, units[1], 1),
        _divided(reduced_strides, units[0], units[0] * units[1]),
    )
    # As _launch.kinds gives them, which asks each for its type first.
    first, *others = [tuple(map(divisibility, each)) for each in (counts, *sizes)]
    kinds = *first, *_launch.kinds((limit,)), *others
    how = _How(compute, reach >= 2**31, (*units, out_unit), tile)
    return _Pass(how, grid, (*counts, limit, *sizes), kinds)


@functools.lru_cache(REMEMBERED)
def _launching(how: _How | _Rows, kinds: tuple[Any, ...], waits: bool) -> Launch:
    """The launch for arguments of these kinds, cached: a new shape need not ask Triton again."""
    return how.launch(kinds, waits)


def _divided(numbers: tuple[int, ...], first: int, others: int) -> tuple[int, ...]:
    """The first number divided by ``first``, the rest by ``others``."""
    if first == others == 1:
        return numbers
    return (numbers[0] // first, *[number // others for number in numbers[1:]])


def _gradient(grad: Tensor, inputs: Any) -> Tensor:
    """factor·grad, expanded to x's shape; a view if factor is 1."""
    small = TensorMeta(grad.shape, inputs.x.dtype)
    return reduce_to(grad, small, inputs.factor).expand(inputs.x.shape)


def _batched(
    operator: Operator, in_dims: tuple[Any, ...], args: tuple[Any, ...]
) -> tuple[Tensor, int]:
    """The vmap rule: the batch dimension is first, and kept."""
    x, shape, *others = args
    x = x.movedim(in_dims[0], 0)
    padded = (x.shape[0], *[1] * (x.dim() - 1 - len(shape)), *shape)
    return operator(x, padded, *others).view(x.shape[0], *shape), 0


def _rules(x: Any, shape: Sequence[int], factor: Any, dtype: Any) -> Iterator[Rule]:
    """Sharding: a kept dimension stays sharded; shards of a reduced one give partial sums."""
    yield (R,), (R,)
    yield (P,), (P,)
    added = len(x.shape) - len(shape)
    for dim, size in enumerate(x.shape):
        kept = dim >= added and shape[dim - added] == size
        yield (Shard(dim - added) if kept else P,), (Shard(dim),)


_sum_to = Operator(
    "sum_to",
    "Tensor x, SymInt[] shape, Scalar factor, ScalarType? dtype",
    _launch_sum_to,
    _fake,
    gradients={"x": Gradient(_gradient)},
    batched=_batched,
    sharding=Sharding(_rules, decisive="shape", shape="shape"),
)
