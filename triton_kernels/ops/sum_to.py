"""sum_to: out = factor·Σx over the dimensions in which x is larger than out: broadcasting, undone.

Shapes: out's shape broadcasts to x's. Dtypes: float16, bfloat16, float32, float64, and out's may be
another of these. The compute type C is float32, or float64 if x or out is float64.

Steps: x → C; the sum in C, in an order that depends on shape and strides only; one multiplication
by factor, which is rounded once to C; one rounding to out's dtype. A sum of no elements is 0.
Reference: factor * x.sum_to_size(shape).

No atomics: where few results have many addends, a first pass leaves partial sums, in C, and a
second one adds those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from triton_kernels import _arguments, _elementwise, _launch
from triton_kernels._operator import Gradient, Like, Operator
from triton_kernels._scalars import as_argument, scalar_value

DTYPES = _arguments.FLOATS
TILE = 2048  # elements a program reads at a time
PROGRAMS = 1024  # that keep a GPU busy: a tall sum is cut into parts until there are as many
SMALLEST_PART = 4  # tiles


@triton.jit(do_not_specialize=["factor"])
def sum_kernel(
    x_ptr,
    out_ptr,
    factor,
    kept,
    reduced,
    part,
    kept_sizes,
    kept_strides,
    out_strides,
    reduced_sizes,
    reduced_strides,
    C: tl.constexpr,
    KEPT_NDIM: tl.constexpr,
    REDUCED_NDIM: tl.constexpr,
    INDEX: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """Program (i, j) adds the j-th part of the addends of its block of results.

    Dimensions come innermost first. The last one needs no remainder, so that of a single dimension
    the compiler sees where it is contiguous.
    """
    k = tl.program_id(0).to(INDEX) * BLOCK_K + tl.arange(0, BLOCK_K)
    x_start = tl.zeros([BLOCK_K], INDEX)
    out_offset = tl.zeros([BLOCK_K], INDEX)
    rest = k
    for d in tl.static_range(KEPT_NDIM):
        i = rest
        if d < KEPT_NDIM - 1:
            i = rest % kept_sizes[d]
            rest = rest // kept_sizes[d]
        x_start += i * kept_strides[d]
        out_offset += i * out_strides[d]
    begin = tl.program_id(1).to(INDEX) * part
    end = tl.minimum(begin + part, reduced)
    total = tl.zeros([BLOCK_K, BLOCK_R], C)
    for start in range(begin, end, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R).to(INDEX)
        x_offset = tl.zeros([BLOCK_R], INDEX)
        left = r
        for d in tl.static_range(REDUCED_NDIM):
            j = left
            if d < REDUCED_NDIM - 1:
                j = left % reduced_sizes[d]
                left = left // reduced_sizes[d]
            x_offset += j * reduced_strides[d]
        mask = (k < kept)[:, None] & (r < end)[None, :]
        x = tl.load(x_ptr + x_start[:, None] + x_offset[None, :], mask=mask, other=0)
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
        shape: the result's shape; each of its dimensions, from the right, is x's or 1.
        factor: Python number, rounded once to the compute type.
        dtype: the result's dtype, one of these; x's by default.
        out: written and returned if given; exactly the result's shape and dtype, apart from x.

    Returns:
        The sums, in float32 (float64 if x or the result is), rounded once. The order of the
        addends depends on shape and strides only: every call gives the same bits.

    Raises:
        TypeError: x is no tensor, factor no number, or a dtype is unsupported.
        RuntimeError: shape does not broadcast to x's, out does not fit or overlaps, the device is
            unsupported, out is given and x requires grad.
    """
    return _sum_to(x, shape, factor, dtype, out=out)


def fitted(grad: Tensor, like: Tensor | Like, factor: int | float = 1) -> Tensor:
    """factor·grad as the gradient of ``like``, which was broadcast and promoted to grad's shape
    and dtype; grad itself where there is nothing to do."""
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
    if dtype not in (None, *DTYPES):
        raise TypeError(f"{op}(): argument 'dtype' must be a floating dtype, but got {dtype!r}")
    dtype = dtype or x.dtype
    shape = _checked_shape(x, shape)
    compute = torch.float64 if torch.float64 in (x.dtype, dtype) else torch.float32
    factor = _arguments.number(op, "factor", factor, compute)
    if torch.is_grad_enabled():
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
    if not isinstance(shape, Sequence):
        raise TypeError(
            f"sum_to(): argument 'shape' must be a sequence of integers, but got "
            f"{type(shape).__name__}"
        )
    aligned = zip(reversed(shape), reversed(x.shape))
    if len(shape) > x.dim() or any(size not in (1, full) for size, full in aligned):
        raise RuntimeError(
            f"sum_to(): the shape {tuple(shape)} does not broadcast to that of 'x' {tuple(x.shape)}"
        )
    return torch.Size(shape)


def _fake(
    x: Tensor, shape: Sequence[int], factor: int | float, dtype: torch.dtype | None
) -> Tensor:
    return x.new_empty(tuple(shape), dtype=dtype or x.dtype)


Dims = list[tuple[int, ...]]  # (size, x's stride, out's stride) of each dimension, innermost first


def _run(x: Tensor, out: Tensor, factor: int | float, compute: torch.dtype) -> None:
    """One launch, or two where the sums are tall."""
    strides = (0,) * (x.dim() - out.dim()) + out.stride()
    shape = (1,) * (x.dim() - out.dim()) + tuple(out.shape)
    dims = list(zip(shape, x.shape, x.stride(), strides))
    kept = _elementwise.merged([(n, xs, os) for m, n, xs, os in dims if m == n])
    reduced = _elementwise.merged([(n, xs, 0) for m, n, xs, os in dims if m != n])
    results, addends = _size(kept), _size(reduced)
    blocks = _blocks(kept, reduced)
    parts = min(addends // (SMALLEST_PART * blocks[1]), -(-PROGRAMS * blocks[0] // results))
    if parts < 2:
        _launch_pass(x, out, factor, kept, reduced, addends, blocks, compute)
        return
    part = blocks[1] * -(-addends // (parts * blocks[1]))
    parts = -(-addends // part)
    partial = torch.empty((parts, results), dtype=compute, device=x.device)
    dense = [1]
    for size, *_ in kept:
        dense.append(dense[-1] * size)
    first: Dims = [(n, xs, at) for (n, xs, _), at in zip(kept, dense)]
    _launch_pass(x, partial, 1.0, first, reduced, part, blocks, compute)
    second = _elementwise.merged([(n, at, os) for (n, _, os), at in zip(kept, dense)])
    rest: Dims = [(parts, results, 0)]
    _launch_pass(partial, out, factor, second, rest, parts, _blocks(second, rest), compute)


def add_rows(partial: Tensor, out: Tensor) -> None:
    """The last pass of sums that another kernel began: out [N] from partial [parts, N], which is
    contiguous and of the compute type."""
    parts, N = partial.shape
    if N:
        kept: Dims = [(N, 1, out.stride(0))]
        reduced: Dims = [(parts, N, 0)]
        blocks = _blocks(kept, reduced)
        _launch_pass(partial, out, 1.0, kept, reduced, parts, blocks, partial.dtype)


def _size(dims: Dims) -> int:
    return math.prod(size for size, *_ in dims)


def _blocks(kept: Dims, reduced: Dims) -> tuple[int, int]:
    """BLOCK_K and BLOCK_R: the tile is long in the direction that is dense in memory."""
    along, across = (triton.next_power_of_2(max(1, _size(dims))) for dims in (kept, reduced))
    nearest_kept, nearest_reduced = (
        min((stride for _, stride, _ in dims if stride), default=math.inf)
        for dims in (kept, reduced)
    )
    if nearest_reduced < nearest_kept:
        block_r = min(across, TILE)
        return min(along, TILE // block_r), block_r
    block_k = min(along, 128)
    return block_k, min(across, TILE // block_k)


def _launch_pass(
    x: Tensor,
    out: Tensor,
    factor: int | float,
    kept: Dims,
    reduced: Dims,
    part: int,
    blocks: tuple[int, int],
    compute: torch.dtype,
) -> None:
    results, addends = _size(kept), _size(reduced)
    grid = (-(-results // blocks[0]), max(1, -(-addends // max(1, part))))
    kept, reduced = kept or [(1, 0, 0)], reduced or [(1, 0, 0)]
    kept_sizes, kept_strides, out_strides = zip(*kept)
    reduced_sizes, reduced_strides, _ = zip(*reduced)
    reach = sum((size - 1) * stride for size, stride, _ in (*kept, *reduced))
    reach = max(reach, sum((size - 1) * stride for size, _, stride in kept), out.numel() + TILE)
    _launch.launch(
        sum_kernel,
        grid,
        x.device,
        x,
        out,
        as_argument(float(factor), compute),
        results,
        addends,
        part,
        kept_sizes,
        kept_strides,
        out_strides,
        reduced_sizes,
        reduced_strides,
        C=_elementwise.compute_type(compute),
        KEPT_NDIM=len(kept),
        REDUCED_NDIM=len(reduced),
        INDEX=tl.int64 if max(reach, addends + part + TILE) >= 2**31 else tl.int32,
        BLOCK_K=blocks[0],
        BLOCK_R=blocks[1],
    )


def _gradient(grad: Tensor, inputs: Any) -> Tensor:
    """factor·grad, expanded: a view where the factor is 1."""
    small = Like(grad.shape, inputs.x.dtype)
    return fitted(grad, small, inputs.factor).expand(inputs.x.shape)


def _batched(
    operator: Operator, in_dims: tuple[Any, ...], args: tuple[Any, ...]
) -> tuple[Tensor, int]:
    """The rule for vmap: the batch dimension first, and kept."""
    x, shape, *others = args
    x = x.movedim(in_dims[0], 0)
    padded = (x.shape[0], *[1] * (x.dim() - 1 - len(shape)), *shape)
    return operator(x, padded, *others).view(x.shape[0], *shape), 0


_sum_to = Operator(
    "sum_to",
    "Tensor x, SymInt[] shape, Scalar factor, ScalarType? dtype",
    _launch_sum_to,
    _fake,
    gradients={"x": Gradient(_gradient)},
    batched=_batched,
)
