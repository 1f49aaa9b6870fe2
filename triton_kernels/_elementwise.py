"""The engine under the elementwise ops: two kernels that apply a jit function to every element.

An op brings its formula as a jit function of the operands that it has, ``ELEMENT(x)`` to
``ELEMENT(x, y, s)``, in the compute type C: float32 for
float16, bfloat16 and float32, float64 for float64, an integer type itself. Operands are converted
to the result dtype first (as torch promotes), then to C; the result is rounded once, on the store.

``flat_kernel`` serves operands that share one dense layout, ``strided_kernel`` everything else,
with any number of dimensions and without a copy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from triton_kernels._launch import REMEMBERED, Launch, specialization_key
from triton_kernels._scalars import as_argument, scalar_value

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


@triton.jit
def promoted(v, RESULT: tl.constexpr, C: tl.constexpr):
    """v in the result dtype, then in C. By way of C, so that integers and float64 round once to
    float32 before a 16-bit result dtype rounds them again, as torch does."""
    wide = tl.cast(v, C)
    if v.dtype.is_int() and RESULT.is_floating():
        # Else the compiler makes one conversion of two, which rounds once.
        wide = tl.fma(wide, tl.full(wide.shape, 1.0, C), tl.full(wide.shape, 0.0, C))
    return tl.cast(tl.cast(wide, RESULT), C)


@triton.jit
def applied(x, y, s, ELEMENT: tl.constexpr, HAS_Y: tl.constexpr, HAS_S: tl.constexpr):
    """ELEMENT of the operands that it has."""
    if HAS_Y and HAS_S:
        out = ELEMENT(x, y, s)
    elif HAS_Y:
        out = ELEMENT(x, y)
    elif HAS_S:
        out = ELEMENT(x, s)
    else:
        out = ELEMENT(x)
    return out


def _named(kernel: str) -> Callable[[Any], str]:
    """What profiles call a compiled kernel: the formula's name with the kernel's, add_flat."""

    def name(specialization: Any) -> str:
        element: str = specialization.constants["ELEMENT"].fn.__name__
        return f"{element.removesuffix('_element')}_{kernel}"

    return name


@triton.jit(do_not_specialize=["y_value", "s"], repr=_named("flat"))
def flat_kernel(
    x_ptr,
    y_ptr,
    out_ptr,
    y_value,
    s,
    n,
    ELEMENT: tl.constexpr,
    HAS_Y: tl.constexpr,
    HAS_S: tl.constexpr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out[i] = ELEMENT(x[i], y[i], s) for i < n, less y and s where the formula has none. y_ptr is
    None where y is the scalar y_value."""
    RESULT: tl.constexpr = out_ptr.dtype.element_ty
    start = tl.program_id(0).to(tl.int64) * BLOCK
    lane = tl.arange(0, BLOCK)
    mask = lane < n - start
    x = promoted(tl.load(x_ptr + start + lane, mask=mask, other=0), RESULT, C)
    if y_ptr is None:
        y = scalar_value(y_value, C)
    else:
        y = promoted(tl.load(y_ptr + start + lane, mask=mask, other=0), RESULT, C)
    out = applied(x, y, scalar_value(s, C), ELEMENT, HAS_Y, HAS_S)
    tl.store(out_ptr + start + lane, tl.cast(out, RESULT), mask=mask)


@triton.jit(do_not_specialize=["y_value", "s"], repr=_named("strided"))
def strided_kernel(
    x_ptr,
    y_ptr,
    out_ptr,
    y_value,
    s,
    n,
    sizes,
    x_strides,
    y_strides,
    out_strides,
    ELEMENT: tl.constexpr,
    HAS_Y: tl.constexpr,
    HAS_S: tl.constexpr,
    C: tl.constexpr,
    NDIM: tl.constexpr,
    INDEX: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The same over NDIM dimensions, innermost first; INDEX is wide enough for every offset."""
    RESULT: tl.constexpr = out_ptr.dtype.element_ty
    index = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n
    x_offset = tl.zeros([BLOCK], INDEX)
    y_offset = tl.zeros([BLOCK], INDEX)
    out_offset = tl.zeros([BLOCK], INDEX)
    rest = index
    for d in tl.static_range(NDIM):
        i = rest % sizes[d]
        rest = rest // sizes[d]
        x_offset += i * x_strides[d]
        y_offset += i * y_strides[d]
        out_offset += i * out_strides[d]
    x = promoted(tl.load(x_ptr + x_offset, mask=mask, other=0), RESULT, C)
    if y_ptr is None:
        y = scalar_value(y_value, C)
    else:
        y = promoted(tl.load(y_ptr + y_offset, mask=mask, other=0), RESULT, C)
    out = applied(x, y, scalar_value(s, C), ELEMENT, HAS_Y, HAS_S)
    tl.store(out_ptr + out_offset, tl.cast(out, RESULT), mask=mask)


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
    """The constants and options of launches for results of one dtype. Compared by identity: to
    hash ``ELEMENT`` would take longer than a launch."""

    meta: dict[str, Any]


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
            "BLOCK": THREADS * per_thread,
            "num_warps": NUM_WARPS,
            "enable_fp_fusion": False,  # the formulas say where they fuse
        }
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
    launch, strides = _prepared(how, n, dims, keys)
    launch(out.device, x, y_tensor, out, y_value, s, n, *strides)
    return out


@functools.lru_cache(REMEMBERED)
def _prepared(
    how: Configuration, n: int, dims: tuple[tuple[int, ...], ...], keys: tuple[Any, ...]
) -> tuple[Launch, tuple[tuple[int, ...], ...]]:
    """The launch for arguments of these keys, and its arguments after n."""
    block = how.meta["BLOCK"]
    grid = (-(-n // block),)
    if not dims:
        return Launch(flat_kernel, grid, **how.meta), ()
    sizes, *strides = zip(*dims)
    reach = max(sum((size - 1) * step for size, step in zip(sizes, steps)) for steps in strides)
    wide = max(reach, grid[0] * block) >= 2**31
    index = tl.int64 if wide else tl.int32
    launch = Launch(strided_kernel, grid, NDIM=len(dims), INDEX=index, **how.meta)
    return launch, (sizes, *strides)


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
