"""The builder with shadow values: the rules by which faults spread from operands to results."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl

from triton_kernels.interpreter.accesses import ShadowedAccesses
from triton_kernels.interpreter.builder import MendedBuilder
from triton_kernels.interpreter.emulation import Array
from triton_kernels.interpreter.handles import decode, upstream
from triton_kernels.interpreter.origins import NONFINITE, OVERFLOW
from triton_kernels.interpreter.shadows import (
    CLEAN,
    Shadow,
    chosen,
    give,
    joined,
    pruned,
    shadow_of,
)

SYMBOLS = {
    "create_add": "+",
    "create_sub": "-",
    "create_mul": "*",
    "create_shl": "<<",
    "create_fadd": "+",
    "create_fsub": "-",
    "create_fmul": "*",
    "create_fdiv": "/",
    "create_precise_divf": "/",
    "create_approx_divf": "/",
    "create_frem": "%",
}


def _named(words: str) -> tuple[str, ...]:
    return tuple(f"create_{word}" for word in words.split())


# Elementwise operations. One in no list is found through the last four, which it calls; otherwise
# its result has no shadow, and nothing is reported.
CASTS = _named("fp_ext fp_trunc fp_to_fp fp_to_si fp_to_ui si_to_fp ui_to_fp")
ELEMENTWISE = (
    *SYMBOLS,
    *CASTS,
    *_named("addptr int_cast bitcast int_to_ptr ptr_to_int and or xor ashr lshr umulhi idiv sdiv"),
    *_named("udiv srem urem iabs minsi minui maxsi maxui minimumf minnumf maximumf maxnumf clampf"),
    *_named("fma fabs fneg floor ceil cos erf exp exp2 log log2 sin sqrt precise_sqrt rsqrt"),
    *("binary_op", "unary_op", "ternary_op", "cast_impl"),
)
MOVES = _named("broadcast cat expand_dims join reshape splat split trans unsplat")
NEWER = {"create_fneg", "create_approx_divf", "create_dot_scaled"}  # than Triton 3.6

# A legal wrap-around ends here: hashes and random numbers are reduced by these operations.
_ENDS_OVERFLOW = frozenset(_named("and or xor sdiv udiv idiv srem urem lshr ashr umulhi"))
_WRAPS: dict[str, Any] = {
    "create_add": operator.add,
    "create_sub": operator.sub,
    "create_mul": operator.mul,
    "create_shl": operator.lshift,
}
_UNSIGNED_WRAPS = ("create_mul", "create_shl")  # the others wrap legally when a number decreases
_DECISIVE = {"create_and": 0, "create_mul": 0, "create_or": -1}  # decides whatever the other is


def handles_among(arguments: Any) -> tuple[Any, ...]:
    """The values among the arguments of a builder method."""
    return tuple(a for a in arguments if isinstance(a, upstream.TensorHandle))


def _follows(name: str) -> Callable[..., Any]:
    """The method of that name, which also gives its result a shadow."""
    inner = getattr(MendedBuilder, name)
    rule = dict.fromkeys(MOVES, _moved).get(name, _elementwise)

    @functools.wraps(inner)
    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        if self.within:  # the outer method does it
            return inner(self, *arguments, **named)
        self.within = True
        try:
            out = inner(self, *arguments, **named)
            rule(self, name, arguments, out, inner)
        finally:
            self.within = False
        return out

    return method


def _elementwise(self: Any, name: str, arguments: Any, out: Any, _: Any) -> None:
    self.follow(name, handles_among(arguments), out)


def _moved(self: Any, name: str, arguments: Any, out: Any, inner: Any) -> None:
    """Move the numbers of origins as the values move: with the same method."""
    inputs = handles_among(arguments)
    if all(shadow_of(h) is CLEAN for h in inputs):
        return
    outs = out if isinstance(out, tuple) else (out,)
    layers: list[list[Array | None]] = [[] for _ in outs]
    for fault in range(len(CLEAN)):
        if all(shadow_of(h)[fault] is None for h in inputs):
            moved: Any = (None,) * len(outs)
        else:
            twins = {id(h): _twin(h, fault) for h in inputs}
            moved = inner(self, *(twins.get(id(a), a) for a in arguments))
            moved = [h.data for h in (moved if isinstance(out, tuple) else (moved,))]
        for each, layer in zip(layers, moved, strict=True):
            each.append(layer)
    for handle, of_handle in zip(outs, layers, strict=True):
        give(handle, Shadow(*of_handle))


def _twin(handle: Any, fault: int) -> Any:
    """A handle of one layer, in the shape of the values."""
    layer = shadow_of(handle)[fault]
    numbers = np.broadcast_to(np.int64(0) if layer is None else layer, handle.data.shape)
    return upstream.TensorHandle(numbers, tl.int64)


class ShadowedBuilder(ShadowedAccesses):
    """The corrected builder, with a shadow beside every value; results are the same."""

    within = False

    for _name in (*ELEMENTWISE, *MOVES):
        if hasattr(MendedBuilder, _name):
            locals()[_name] = _follows(_name)
    del _name

    # ---- operations ----

    def follow(self, name: str, inputs: tuple[Any, ...], out: Any) -> None:
        """Give the result of an elementwise operation its shadow."""
        undefined = overflow = nonfinite = None
        dtype = out.dtype.scalar
        shadows = [shadow_of(h) for h in inputs]
        if any(s is not CLEAN for s in shadows):
            undefined = functools.reduce(joined, (s.undefined for s in shadows))
            if undefined is not None and name in _DECISIVE:
                undefined = _absorbed(undefined, _DECISIVE[name], inputs)
            if name not in _ENDS_OVERFLOW and not dtype.is_floating() and dtype.name != "int1":
                overflow = functools.reduce(joined, (s.overflow for s in shadows))
        if dtype.is_floating():
            nonfinite = self._nonfinite(name, inputs, out)
        elif name in _WRAPS and dtype.is_int():
            overflow = joined(overflow, self._overflow(name, inputs, dtype))
        if all(out is not h for h in inputs):
            give(out, Shadow(undefined, overflow, nonfinite))

    def _overflow(self, name: str, inputs: tuple[Any, ...], dtype: Any) -> Array | None:
        """Where an integer operation's result differs from the exact one."""
        bits, signed = dtype.primitive_bitwidth, dtype.is_int_signed()
        if bits == 1 or not (signed or name in _UNSIGNED_WRAPS):
            return None
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        (a, b), operation = (h.data for h in inputs), _WRAPS[name]
        if not a.size or not b.size:
            return None
        if name == "create_shl":
            b = np.clip(b, 0, bits - 1)  # a larger shift has no exact result
        corners = [
            operation(x, y)
            for x in (int(a.min()), int(a.max()))
            for y in (int(b.min()), int(b.max()))
        ]
        if low <= min(corners) and max(corners) <= high:
            return None
        wide: Any = np.int64 if bits <= 32 else object
        exact = operation(a.astype(wide), b.astype(wide))
        wrong = (exact < low) | (exact > high)
        if not wrong.any():
            return None
        return self.shadows.log.add(OVERFLOW, wrong.astype(bool), dtype, SYMBOLS[name], inputs)

    def _nonfinite(self, name: str, inputs: tuple[Any, ...], out: Any) -> Array | None:
        """The origins of a result's NaNs and infinities; 0 for those of the kernel's inputs."""
        values = decode(out)
        bad = ~np.isfinite(values)
        if not bad.any():
            return None
        nan, old, layer = np.isnan(values), np.zeros(bad.shape, dtype=bool), None
        for h in inputs:
            if not h.dtype.scalar.is_floating():
                continue
            x = decode(h)
            cause = np.where(nan, np.isnan(x), ~np.isfinite(x))
            old |= cause
            if (numbers := shadow_of(h).nonfinite) is not None:
                layer = joined(layer, np.where(cause, numbers, 0))
        if name == "create_bitcast":
            old |= bad
        if (fresh := bad & ~old).any():
            operation = SYMBOLS.get(name, name.removeprefix("create_"))
            operation = "cast" if name in CASTS else operation
            new = self.shadows.log.add(NONFINITE, fresh, out.dtype, operation, inputs, out)
            layer = joined(layer, new)
        return chosen(bad, layer, None)

    def create_select(self, cond: Any, lhs: Any, rhs: Any) -> Any:
        self.within = True
        try:
            out = super().create_select(cond, lhs, rhs)
        finally:
            self.within = False
        which, yes, no = shadow_of(cond), shadow_of(lhs), shadow_of(rhs)
        undefined = chosen(cond.data, yes.undefined, no.undefined)
        return give(
            out,
            Shadow(
                joined(undefined, which.undefined),
                chosen(cond.data, yes.overflow, no.overflow),
                chosen(cond.data, yes.nonfinite, no.nonfinite),
            ),
        )

    def create_gather(self, src: Any, indices: Any, axis: Any) -> Any:
        out = super().create_gather(src, indices, axis)
        layers = []
        for fault, layer in enumerate(shadow_of(src)):
            if layer is not None:
                layer = super().create_gather(_twin(src, fault), indices, axis).data
            layers.append(layer)
        undefined, overflow, nonfinite = layers
        return give(
            out, Shadow(joined(undefined, shadow_of(indices).undefined), overflow, nonfinite)
        )

    def create_histogram(self, data: Any, bins: Any, mask: Any) -> Any:
        out = super().create_histogram(data, bins, mask)
        undefined = joined(
            chosen(np.True_ if mask is None else mask.data, shadow_of(data).undefined, None),
            None if mask is None else shadow_of(mask).undefined,
        )
        if (undefined := pruned(undefined)) is not None:
            give(out, Shadow(undefined=undefined[undefined != 0][:1]))
        return out

    def create_dot(self, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        out = super().create_dot(a, b, d, *rest)
        self._dotted(a, b, d, out)
        return out

    def create_dot_scaled(self, *arguments: Any) -> Any:
        out = super().create_dot_scaled(*arguments)
        a, _, _, b, *_, d = arguments
        if a.data.shape[:-1] == out.data.shape[:-1] and b.data.shape[-1] == out.data.shape[-1]:
            self._dotted(a, b, d, out)  # unless they are packed along M or N
        return out

    def _dotted(self, a: Any, b: Any, d: Any, out: Any) -> None:
        """Every element of the result depends on a row of a and a column of b."""
        left, right, add = shadow_of(a), shadow_of(b), shadow_of(d)
        undefined = joined(
            joined(_along(left.undefined, a, -1), _along(right.undefined, b, -2)), add.undefined
        )
        nonfinite, values = None, decode(out)
        bad = ~np.isfinite(values)
        if bad.any():
            x, y, z = (~np.isfinite(decode(h)) for h in (a, b, d))
            old = x.any(axis=-1, keepdims=True) | y.any(axis=-2, keepdims=True) | z
            nonfinite = joined(
                joined(_along(left.nonfinite, a, -1), _along(right.nonfinite, b, -2)),
                add.nonfinite,
            )
            if (fresh := bad & ~old).any():
                new = self.shadows.log.add(NONFINITE, fresh, out.dtype, "tl.dot", (), out)
                nonfinite = joined(nonfinite, new)
            nonfinite = chosen(bad, nonfinite, None)
        give(out, Shadow(undefined, None, nonfinite))

    def follow_reduction(self, name: str, handle: Any, out: Any, axis: int, scan: bool) -> None:
        """Give the result of a reduction or scan its shadow."""
        source, finite = shadow_of(handle), None
        if out.dtype.scalar.is_floating() and not np.isfinite(decode(out)).all():
            finite = np.isfinite(decode(handle))
        layers = [
            _along(layer, handle, axis, scan, keep=False)
            for layer in (source.undefined, source.overflow, source.nonfinite)
        ]
        if finite is None:
            layers[2] = None
        else:
            along = np.logical_and.accumulate if scan else np.logical_and.reduce
            fresh = ~np.isfinite(decode(out)) & along(finite, axis=axis)
            if fresh.any():
                new = self.shadows.log.add(NONFINITE, np.asarray(fresh), out.dtype, name, (), out)
                layers[2] = joined(layers[2], new)
        give(out, Shadow(*layers))

    def create_inline_asm(self, asm: str, constraints: str, values: Any, *rest: Any) -> Any:
        out = super().create_inline_asm(asm, constraints, values, *rest)
        for handle in out.handles:
            self.follow(out.name, tuple(values), handle)
        return out


def _absorbed(undefined: Array, decisive: int, inputs: tuple[Any, ...]) -> Array | None:
    """Remove the lanes that one operand alone decides, as False does in `and`."""
    for handle in inputs:
        if handle.data.dtype.kind not in "biu":
            return undefined
        value = True if handle.data.dtype.kind == "b" and decisive else decisive
        clean, layer = True, shadow_of(handle).undefined
        if layer is not None:
            clean = layer == 0
        undefined = np.where(clean & (handle.data == value), 0, undefined)
    return pruned(undefined)


def _along(
    layer: Array | None, handle: Any, axis: int, scan: bool = False, keep: bool = True
) -> Array | None:
    """The first fault along an axis; in a scan the last one up to each lane."""
    if layer is None:
        return None
    full = np.moveaxis(np.broadcast_to(layer, handle.data.shape), axis, -1)
    at = (full != 0).argmax(axis=-1, keepdims=True)
    if scan:
        at = np.maximum.accumulate(np.where(full != 0, np.arange(full.shape[-1]), 0), axis=-1)
    taken: Array = np.moveaxis(np.take_along_axis(full, at, axis=-1), -1, axis)
    return taken if keep or scan else taken.squeeze(axis)
