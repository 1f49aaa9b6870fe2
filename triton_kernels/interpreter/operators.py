"""Operators on numbers of one type, which numpy computes directly.

Triton's path to an addition leads through some ten functions. They promote types that are equal,
fill tiles with single numbers, and broadcast what numpy broadcasts itself; that takes ten times as
long as the arithmetic. An operator here checks whether its operands are of the usual kind. It calls
Triton's own function for others, for all if shadows or the dataflow are kept, and for the first
broadcast of each pair of shapes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import triton.language as tl

from triton_kernels.interpreter.builder import MendedBuilder
from triton_kernels.interpreter.handles import upstream

Function = Callable[..., Any]
Kinds = frozenset[int]  # ids of types that are single objects; other types go to Triton


def _kinds(*names: str) -> Kinds:
    return frozenset(id(getattr(tl, name)) for name in names)


_INTEGERS = _kinds("int32", "int64", "uint32", "uint64")
_FLOATS = _kinds("float32", "float64")
_SIGNED = _kinds("int32", "int64")
_DTYPES = {
    id(getattr(tl, name)): np.dtype(name)
    for name in ("int32", "int64", "uint32", "uint64", "float32", "float64")
} | {id(tl.int1): np.dtype(bool)}


def _quotient(left: Any, right: Any) -> Any:
    """The quotient, rounded towards 0."""
    return (left - np.fmod(left, right)) // right


# Name → numpy's function, its types, and the types beside which a Python integer and a Python float
# become numbers of that type directly. Triton compares with a float32.
_OPERATORS: dict[str, tuple[Function, Kinds, Kinds, Kinds]] = {
    "truediv": (np.divide, _FLOATS, _FLOATS, _FLOATS),
    "floordiv": (_quotient, _SIGNED, _SIGNED, Kinds()),
    "mod": (np.fmod, _SIGNED, _SIGNED, Kinds()),
    "add": (np.add, _INTEGERS | _FLOATS, _SIGNED | _FLOATS, _FLOATS),
    "sub": (np.subtract, _INTEGERS | _FLOATS, _SIGNED | _FLOATS, _FLOATS),
    "mul": (np.multiply, _INTEGERS | _FLOATS, _SIGNED | _FLOATS, _FLOATS),
    "and": (np.bitwise_and, _INTEGERS | _kinds("int1"), Kinds(), Kinds()),
    "or": (np.bitwise_or, _INTEGERS | _kinds("int1"), Kinds(), Kinds()),
    "lt": (np.less, _INTEGERS | _FLOATS, _SIGNED | _FLOATS, Kinds()),
    "le": (np.less_equal, _INTEGERS | _FLOATS, _SIGNED | _FLOATS, Kinds()),
    "gt": (np.greater, _INTEGERS | _FLOATS, _SIGNED | _FLOATS, Kinds()),
    "ge": (np.greater_equal, _INTEGERS | _FLOATS, _SIGNED | _FLOATS, Kinds()),
    "eq": (np.equal, _INTEGERS | _FLOATS, _SIGNED | _FLOATS, Kinds()),
    "ne": (np.not_equal, _INTEGERS | _FLOATS, _SIGNED | _FLOATS, Kinds()),
}
_COMPARISONS = {"lt", "le", "gt", "ge", "eq", "ne"}
NAMES = tuple(_OPERATORS)
# Operators that also have a reflected method, for a number on the left.
SWAPPED = ("add", "sub", "mul", "truediv", "floordiv", "mod")

# The broadcast type of two tiles, by the ids of both shapes, which are kept alive, and of the
# element type.
_broadcast: dict[tuple[int, int, int], Any] = {}


def _operator(upstreams: Function, name: str, swapped: bool, shared: Mapping[int, Any]) -> Function:
    """An operator of tensors. ``shared``: the ids of shapes that are kept alive."""
    compute, kinds, with_integers, with_floats = _OPERATORS[name]
    compares = name in _COMPARISONS
    new, handles, boolean = object.__new__, upstream.TensorHandle, np.dtype(bool)
    tensor, block, number_type, int1 = tl.tensor, tl.block_type, tl.dtype, tl.int1
    builder = upstream.interpreter_builder
    numbers = (block, number_type), (number_type, number_type)

    @functools.wraps(upstreams)
    def apply(self: Any, other: Any) -> Any:
        kind = self.dtype
        address = id(kind)
        if address not in kinds or builder.__class__ is not MendedBuilder:
            return upstreams(self, other)
        out_type, given = self.type, other.__class__
        if given is tensor:
            beside, other_kind = other.type, other.dtype
            if other_kind is not kind:
                if address not in _SIGNED or id(other_kind) not in _SIGNED:
                    return upstreams(self, other)
                kind = tl.int64  # of an int32 and an int64
                address = id(kind)
            if beside is not out_type:
                sorts = out_type.__class__, beside.__class__
                if sorts == (block, block):
                    if beside.shape is not out_type.shape:
                        key = id(out_type.shape), id(beside.shape), address
                        known = _broadcast.get(key)
                        if known is None:
                            first = upstreams(self, other)
                            if key[0] in shared and key[1] in shared:
                                _broadcast[key] = first.type.with_element_ty(kind)
                            return first
                        out_type = known
                elif sorts == (number_type, block):
                    out_type = beside
                elif sorts not in numbers:
                    return upstreams(self, other)
                if other_kind is not self.dtype:
                    out_type = out_type.with_element_ty(kind)
            right = other.handle.data
        elif (given is int and address in with_integers and -(2**31) <= other < 2**31) or (
            # Triton before 3.9 loses the sign of −0.0.
            given is float and address in with_floats and other != 0
        ):
            right = np.array([other], _DTYPES[address])
        else:
            return upstreams(self, other)
        left = self.handle.data
        if left.shape != right.shape and not (
            left.flags.c_contiguous and right.flags.c_contiguous
        ):  # the result would have another memory order than Triton's
            return upstreams(self, other)
        out = compute(right, left) if swapped else compute(left, right)
        if compares:
            kind = int1
            out_type = out_type.with_element_ty(int1) if out_type.__class__ is block else int1
        if out.dtype is not (boolean if compares else _DTYPES[address]):
            return upstreams(self, other)
        handle = new(handles)
        handle.data, handle.dtype, handle.attr = out, kind, {}
        if out_type is not self.type:
            return tensor(handle, out_type)
        made: Any = new(tensor)  # with all fields of this one except the numbers
        vars(made).update(vars(self))
        made.handle = handle
        return made

    return apply


def _addition(adds: Function) -> Function:
    """An addition that also adds offsets to pointers directly: one pointer and many offsets, a tile
    and one offset, or a tile and a tile."""
    tensor, block, builder = tl.tensor, tl.block_type, upstream.interpreter_builder

    @functools.wraps(adds)
    def apply(self: Any, other: Any) -> Any:
        pointer = self.dtype
        if (
            pointer.__class__ is not tl.pointer_type
            or other.__class__ is not tensor
            or id(other.dtype) not in _SIGNED
            or builder.__class__ is not MendedBuilder
            or not other.handle.data.flags.c_contiguous
        ):
            return adds(self, other)
        out_type, beside = self.type, other.type
        if out_type is pointer and beside.__class__ is block:
            out_type = beside.with_element_ty(pointer)
        elif beside.__class__ is not tl.dtype and (
            out_type.__class__ is not block
            or beside.__class__ is not block
            or tuple(beside.shape) != tuple(out_type.shape)
        ):
            return adds(self, other)
        return tensor(builder.create_addptr(self.handle, other.handle), out_type)

    return apply


def patches(
    recorded: Iterable[tuple[Any, str, Any]], shared: Mapping[int, Any]
) -> list[tuple[Any, str, Any]]:
    """Replacements for the recorded operators that tl.tensor has while kernels are interpreted."""
    names = {f"__{name}__": (name, False) for name in _OPERATORS}
    names |= {f"__r{name}__": (name, True) for name in SWAPPED}
    made = []
    for target, name, value in recorded:
        if target is tl.tensor and name in names:
            upstreams = _addition(value) if name == "__add__" else value
            made.append((target, name, _operator(upstreams, *names[name], shared)))
    return made
