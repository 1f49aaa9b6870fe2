"""Reductions, scans and libdevice: patched into the language, not the builder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl

from triton_kernels import _emulation as emulation
from triton_kernels._emulation import Array
from triton_kernels._interpreter.handles import (
    MISSING,
    decode,
    encode,
    operand,
    plain,
    tensor_of,
    upstream,
)


def _combine(combine_fn: Any, left: list[Array], right: list[Array], dtypes: list[Any]) -> Any:
    """combine_fn over whole arrays; the results as raw data of the inputs' dtypes."""
    operands = [tensor_of(x, t) for x, t in zip(left + right, dtypes * 2, strict=True)]
    out = combine_fn(*operands)
    out = out if isinstance(out, (tuple, tl.tuple)) else (out,)
    raw = []
    for value, dtype, like in zip(out, dtypes, left, strict=True):
        data = value.handle.data if isinstance(value, tl.tensor) else np.asarray(value)
        raw.append(np.broadcast_to(data, like.shape).astype(upstream._get_np_dtype(dtype)))
    return raw


def _is_combine(combine_fn: Any, name: str) -> bool:
    return combine_fn is getattr(tl.standard, name, MISSING)


def reduce(input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False, **_: Any) -> Any:
    """tl.reduce: sums, maxima and minima in numpy, anything else as a tree of pairs."""
    inputs = tuple(input) if isinstance(input, (tuple, tl.tuple)) else (input,)
    axis, keep_dims = plain(axis), plain(keep_dims)
    dtypes = [x.dtype for x in inputs]
    data = [x.handle.data for x in inputs]
    shape = data[0].shape
    if axis is None:
        data, axis = [x.reshape(-1) for x in data], 0
        kept: tuple[int, ...] = (1,) * len(shape)
    else:
        axis %= len(shape)
        kept = (*shape[:axis], 1, *shape[axis + 1 :])
    if len(data) == 1 and _is_combine(combine_fn, "_sum_combine"):
        wide = operand(inputs[0].handle).reshape(data[0].shape)
        through = np.float32 if wide.dtype == np.float16 else wide.dtype
        data = [encode(np.sum(wide, axis=axis, dtype=through), dtypes[0]).data]
    elif len(data) == 1 and _is_combine(combine_fn, "_elementwise_max"):
        wide = operand(inputs[0].handle).reshape(data[0].shape)
        data = [encode(np.fmax.reduce(wide, axis=axis), dtypes[0]).data]
    elif len(data) == 1 and _is_combine(combine_fn, "_elementwise_min"):
        wide = operand(inputs[0].handle).reshape(data[0].shape)
        data = [encode(np.fmin.reduce(wide, axis=axis), dtypes[0]).data]
    else:
        data = [np.moveaxis(x, axis, -1) for x in data]
        while data[0].shape[-1] > 1:  # neighbours pair up: order is kept, as it must be
            left, right = [x[..., 0::2] for x in data], [x[..., 1::2] for x in data]
            data = _combine(combine_fn, left, right, dtypes)
        data = [x[..., 0] for x in data]
    if keep_dims:
        data = [x.reshape(kept) for x in data]
    out = tuple(tensor_of(np.asarray(x), t) for x, t in zip(data, dtypes, strict=True))
    return out if isinstance(input, (tuple, tl.tuple)) else out[0]


def scan(input: Any, axis: Any, combine_fn: Any, reverse: Any = False, **_: Any) -> Any:
    """tl.associative_scan: sums in numpy, anything else by doubling steps."""
    inputs = tuple(input) if isinstance(input, (tuple, tl.tuple)) else (input,)
    axis, dtypes = plain(axis), [x.dtype for x in inputs]
    data = [np.moveaxis(x.handle.data, axis, -1) for x in inputs]
    if plain(reverse):
        data = [np.flip(x, axis=-1) for x in data]
    if len(data) == 1 and _is_combine(combine_fn, "_sum_combine"):
        wide = operand(upstream.TensorHandle(data[0], dtypes[0]))
        through = np.float32 if wide.dtype == np.float16 else wide.dtype
        data = [encode(np.cumsum(wide, axis=-1, dtype=through), dtypes[0]).data]
    else:
        length, step = data[0].shape[-1], 1
        while step < length:
            # Whole blocks every time: a Triton block has a power of two elements.
            earlier = [np.roll(x, step, axis=-1) for x in data]
            joined = _combine(combine_fn, earlier, data, dtypes)
            first = np.arange(length) < step
            data = [np.where(first, old, new) for old, new in zip(data, joined, strict=True)]
            step *= 2
    if plain(reverse):
        data = [np.flip(x, axis=-1) for x in data]
    data = [np.ascontiguousarray(np.moveaxis(x, -1, axis)) for x in data]
    out = tuple(tensor_of(x, t) for x, t in zip(data, dtypes, strict=True))
    return out if isinstance(input, (tuple, tl.tuple)) else out[0]


def load_with_other(inner: Callable[..., Any]) -> Callable[..., Any]:
    """tl.load. Triton asks whether other is true, which one element of 0 is not: the
    builder must know that it was given all the same."""

    def load(self: Any, ptr: Any, mask: Any, other: Any, *rest: Any, **named: Any) -> Any:
        self.builder.other_given = other is not None
        try:
            return inner(self, ptr, mask, other, *rest, **named)
        finally:
            self.builder.other_given = False

    return load


def to_index(self: Any) -> int:
    """tl.tensor.__index__: Triton 3.6's own fails on numpy 2.4 (one-element arrays)."""
    return int(self.handle.data.item())


def emulated(name: str) -> Callable[..., Any]:
    """A libdevice function as the interpreter runs it."""

    def call(*arguments: Any, **_: Any) -> Any:
        tensors = [upstream.interpreter_semantic.to_tensor(x) for x in arguments]
        dtype = max((t.dtype for t in tensors), key=lambda t: t.primitive_bitwidth)
        if dtype.name not in ("fp32", "fp64"):
            raise TypeError(f"libdevice.{name} takes float32 or float64, got {dtype}")
        wanted = upstream._get_np_dtype(dtype)
        wide = [decode(t.handle).astype(wanted) for t in tensors]
        if name in emulation.PREDICATES:
            out, dtype = emulation.PREDICATES[name](*wide), tl.int1
        elif name in ("fma", "fma_rn"):
            out = emulation.fma(*np.broadcast_arrays(*wide))
        elif name in emulation.FUNCTIONS:
            out = emulation.elementary(name, *wide)
        else:
            raise NotImplementedError(f"libdevice.{name} is not emulated in the interpreter")
        if any(t.type.is_block() for t in tensors):
            return tensor_of(np.asarray(out), dtype)
        return tl.tensor(upstream.TensorHandle(np.asarray(out), dtype), dtype)

    return call
