"""Reductions, scans and libdevice, which are patched in the language, not in the builder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl

from triton_kernels.interpreter import emulation
from triton_kernels.interpreter.builder import NotInterpreted
from triton_kernels.interpreter.handles import (
    MISSING,
    decode,
    encode,
    operand,
    plain,
    upstream,
)
from triton_kernels.interpreter.shadows import moved, selected


def _combine(combine_fn: Any, left: list[Any], right: list[Any]) -> list[Any]:
    """combine_fn of whole handles; the results have their dtypes and shapes."""
    operands = [_tensor(handle) for handle in left + right]
    out = combine_fn(*operands)
    out = out if isinstance(out, (tuple, tl.tuple)) else (out,)
    handles = []
    for value, like in zip(out, left, strict=True):
        handle = value.handle if isinstance(value, tl.tensor) else None
        if handle is None:
            handle = upstream.TensorHandle(np.asarray(value), like.dtype)
        handle = moved(handle, lambda x: np.broadcast_to(x, like.data.shape))  # noqa: B023
        handle.data = handle.data.astype(upstream._get_np_dtype(like.dtype))
        handle.dtype = like.dtype
        handles.append(handle)
    return handles


def _tensor(handle: Any) -> Any:
    """A language-level tensor of a handle."""
    shape = handle.data.shape
    if not shape:
        return tl.tensor(moved(handle, lambda x: x.reshape(1)), handle.dtype)
    return tl.tensor(handle, tl.block_type(handle.dtype, list(shape)))


def _is_combine(combine_fn: Any, name: str) -> bool:
    return combine_fn is getattr(tl.standard, name, MISSING)


def _handle(tensor: Any) -> Any:
    """A tensor's handle, with the tensor's dtype."""
    handle = tensor.handle
    if handle.dtype != tensor.dtype:
        handle = moved(handle, lambda x: x)
        handle.dtype = tensor.dtype
    return handle


_IN_NUMPY = {
    "_sum_combine": "tl.sum",
    "_elementwise_max": "tl.max",
    "_elementwise_min": "tl.min",
}


def _reduced(name: str, handle: Any, axis: int) -> Any:
    """A reduction in numpy; a sum's accumulator is as wide as the compiler's."""
    wide = operand(handle)
    if name == "tl.sum":
        through = np.float32 if wide.dtype == np.float16 else wide.dtype
        out = encode(np.sum(wide, axis=axis, dtype=through), handle.dtype)
    else:
        extremum = np.fmax if name == "tl.max" else np.fmin
        out = encode(extremum.reduce(wide, axis=axis), handle.dtype)
    upstream.interpreter_builder.follow_reduction(name, handle, out, axis, False)
    return out


def _checked_axis(axis: int, rank: int) -> int:
    """An axis counted from the first. As in the compiler, it must exist in the tile."""
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} of a tile of {rank} dimension{'s' * (rank != 1)}")
    return axis % rank


def reduce(input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False, **_: Any) -> Any:
    """tl.reduce: sums, maxima and minima in numpy, others as a tree of pairs."""
    inputs = tuple(input) if isinstance(input, (tuple, tl.tuple)) else (input,)
    axis, keep_dims = plain(axis), plain(keep_dims)
    handles = [_handle(x) for x in inputs]
    shape = handles[0].data.shape
    if axis is None:
        handles, axis = [moved(h, lambda x: x.reshape(-1)) for h in handles], 0
        kept: tuple[int, ...] = (1,) * len(shape)
    else:
        axis = _checked_axis(axis, len(shape))
        kept = (*shape[:axis], 1, *shape[axis + 1 :])
    known = [text for name, text in _IN_NUMPY.items() if _is_combine(combine_fn, name)]
    if len(handles) == 1 and known:
        handles = [_reduced(known[0], handles[0], axis)]
    else:
        handles = [moved(h, lambda x: np.moveaxis(x, axis, -1)) for h in handles]
        while handles[0].data.shape[-1] > 1:  # pairs of neighbours, which keeps the order
            left = [moved(h, lambda x: x[..., 0::2]) for h in handles]
            right = [moved(h, lambda x: x[..., 1::2]) for h in handles]
            handles = _combine(combine_fn, left, right)
        handles = [moved(h, lambda x: x[..., 0]) for h in handles]
    if keep_dims:
        handles = [moved(h, lambda x: x.reshape(kept)) for h in handles]
    out = tuple(_tensor(h) for h in handles)
    return out if isinstance(input, (tuple, tl.tuple)) else out[0]


def scan(input: Any, axis: Any, combine_fn: Any, reverse: Any = False, **_: Any) -> Any:
    """tl.associative_scan: sums in numpy, others by doubling steps."""
    inputs = tuple(input) if isinstance(input, (tuple, tl.tuple)) else (input,)
    handles = [_handle(x) for x in inputs]
    axis = _checked_axis(plain(axis), handles[0].data.ndim)
    handles = [moved(h, lambda x: np.moveaxis(x, axis, -1)) for h in handles]
    if plain(reverse):
        handles = [moved(h, lambda x: np.flip(x, axis=-1)) for h in handles]
    if len(handles) == 1 and _is_combine(combine_fn, "_sum_combine"):
        (handle,) = handles
        wide = operand(handle)
        through = np.float32 if wide.dtype == np.float16 else wide.dtype
        out = encode(np.cumsum(wide, axis=-1, dtype=through), handle.dtype)
        upstream.interpreter_builder.follow_reduction("tl.cumsum", handle, out, -1, True)
        handles = [out]
    else:
        length, step = handles[0].data.shape[-1], 1
        while step < length:
            # Always whole blocks: a Triton block has a power of two elements.
            earlier = [moved(h, lambda x: np.roll(x, step, axis=-1)) for h in handles]  # noqa: B023
            combined = _combine(combine_fn, earlier, handles)
            first = np.arange(length) < step
            pairs = zip(handles, combined, strict=True)
            handles = [selected(first, old, new) for old, new in pairs]
            step *= 2
    if plain(reverse):
        handles = [moved(h, lambda x: np.flip(x, axis=-1)) for h in handles]
    back = [moved(h, lambda x: np.ascontiguousarray(np.moveaxis(x, -1, axis))) for h in handles]
    tensors = tuple(_tensor(h) for h in back)
    return tensors if isinstance(input, (tuple, tl.tuple)) else tensors[0]


def map_elementwise(scalar_fn: Any, *args: Any, pack: Any = 1, **_: Any) -> Any:
    """tl.map_elementwise: a call for every ``pack`` neighbours, whose control flow is their own."""
    pack, tensors = plain(pack), [upstream.interpreter_semantic.to_tensor(x) for x in args]
    shape = np.broadcast_shapes(*(t.handle.data.shape for t in tensors))
    handles = [moved(_handle(t), lambda x: np.broadcast_to(x, shape)) for t in tensors]
    outs: list[Any] = []
    single = False
    for start in range(0, int(np.prod(shape)), pack):
        lanes = range(start, start + pack)
        scalars = [
            _tensor(moved(h, lambda x: x.reshape(-1)[at].reshape(())))  # noqa: B023
            for h in handles
            for at in lanes
        ]
        results = scalar_fn(*scalars)
        single = isinstance(results, tl.tensor)
        made = [_handle(r) for r in ((results,) if single else results)]
        for i, handle in enumerate(made):
            whole = moved(handle, lambda x: np.broadcast_to(x.reshape(-1)[:1], shape))
            if i % pack == 0 and start == 0:
                outs.append(whole)
            here = np.arange(int(np.prod(shape))).reshape(shape) == lanes[i % pack]
            outs[i // pack] = selected(here, whole, outs[i // pack])
    tensors = [_tensor(h) for h in outs]
    return tensors[0] if single else tuple(tensors)


def flip(x: Any, dim: Any = None) -> Any:
    """tl.flip. Triton's own is made of sums of pairs, which would mix the lanes' sources."""
    axis = -1 if plain(dim) is None else plain(dim)
    return _tensor(moved(x.handle, lambda data: np.flip(data, axis=axis)))


def transposed(self: Any) -> Any:
    """tl.tensor.T"""
    order = list(range(len(self.shape)))
    order[-2:] = order[:-3:-1]
    return tl.trans(self, *order)


def to_bool(self: Any) -> bool:
    """tl.tensor.__bool__. A tile is no condition: it counts as true."""
    if self.handle.data.size > 1:
        return True
    upstream.interpreter_builder.decides(self.handle)
    return bool(self.handle.data.item())


_OPERATORS = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift"),
    *("lt", "le", "gt", "ge", "eq", "ne"),
)


def constexpr_operators() -> list[tuple[Any, str, Any]]:
    """tl.constexpr's operators, which defer to a tensor on their right: for the compiler a
    module's constexpr times a tensor is a tensor."""

    def deferring(operator: Callable[..., Any]) -> Callable[..., Any]:
        def apply(self: Any, other: Any) -> Any:
            return NotImplemented if isinstance(other, tl.tensor) else operator(self, other)

        return apply

    named = [f"__{name}__" for name in _OPERATORS]
    return [(tl.constexpr, name, deferring(getattr(tl.constexpr, name))) for name in named]


def in_named_formats(dot_scaled: Callable[..., Any]) -> Callable[..., Any]:
    """A semantic.dot_scaled that takes formats as strings, which the compiler has as constexprs."""

    def called(
        self: Any, lhs: Any, scale: Any, form: Any, rhs: Any, other: Any, rhs_form: Any, *rest: Any
    ) -> Any:
        forms = (f if isinstance(f, tl.constexpr) else tl.constexpr(f) for f in (form, rhs_form))
        left, right = forms
        return dot_scaled(self, lhs, scale, left, rhs, other, right, *rest)

    return called


def load_with_other(inner: Callable[..., Any]) -> Callable[..., Any]:
    """tl.load. Triton tests whether ``other`` is true, which a single 0 is not; the builder must
    know that it was given."""

    def load(self: Any, ptr: Any, mask: Any, other: Any, *rest: Any, **named: Any) -> Any:
        self.builder.other_given = other is not None
        try:
            return inner(self, ptr, mask, other, *rest, **named)
        finally:
            self.builder.other_given = False

    return load


def to_index(self: Any) -> int:
    """tl.tensor.__index__; that of Triton 3.6 fails with numpy 2.4 (one-element arrays)."""
    upstream.interpreter_builder.decides(self.handle)
    return int(self.handle.data.item())


def with_semantic(builtin: Callable[..., Any]) -> Callable[..., Any]:
    """A builtin that only the compiler gives its semantic: one of triton.language.extra.cuda."""

    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return builtin(*arguments, **named, _semantic=upstream.interpreter_semantic)
        except AttributeError:  # an option of the compiler
            raise NotInterpreted(f"tl.extra.cuda.{builtin.__name__}") from None

    return call


def emulated(name: str) -> Callable[..., Any]:
    """A libdevice function for the interpreter."""

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
            raise NotInterpreted(f"libdevice.{name}")
        handle = upstream.TensorHandle(np.asarray(out), dtype)
        inputs = tuple(t.handle for t in tensors)
        upstream.interpreter_builder.follow(f"libdevice.{name}", inputs, handle)
        if any(t.type.is_block() for t in tensors):
            return _tensor(handle)
        return tl.tensor(handle, dtype)

    return call
