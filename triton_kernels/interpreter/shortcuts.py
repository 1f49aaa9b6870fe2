"""Caches for values that Triton computes again in every operation of a program.

An interpreted operation makes several tensors and types, looks for conversions and broadcasts that
it mostly does not need, and passes its arguments through two wrappers. Together that takes several
times as long as the arithmetic. Everything here returns what Triton's own function returns, and
calls that function except in the usual case.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import triton.language as tl

from triton_kernels.interpreter import operators
from triton_kernels.interpreter.builder import MendedBuilder
from triton_kernels.interpreter.handles import upstream

Function = Callable[..., Any]

_types: dict[tuple[Any, ...], dict[str, Any]] = {}  # shape and element name → a type's fields
_tensors: dict[tuple[int, ...], dict[str, Any]] = {}  # shape → a tensor's fields
# id of a shape that types share → the shape, which is kept alive, and its numbers.
_shared: dict[int, tuple[Any, tuple[int, ...]]] = {}
_of_elements: dict[tuple[int, str], Any] = {}  # id of a shared shape and element name → the type


def _block_type(upstreams: Function) -> Function:
    """The constructor of tiles' types. Types of one shape and element have the same fields, except
    for the element type: a pointer type has its argument."""

    def __init__(self: Any, element_ty: Any, shape: Any) -> None:
        if type(self) is not tl.block_type or {*map(type, shape)} != {int}:  # 4.0 equals 4
            upstreams(self, element_ty, shape)
            return
        key = type(shape), tuple(shape), element_ty.name
        fields = _types.get(key)
        if fields is None:
            upstreams(self, element_ty, shape)
            _types[key] = {**vars(self), "element_ty": None}
            _shared[id(self.shape)] = self.shape, key[1]
            return
        vars(self).update(fields)
        self.element_ty = element_ty

    return __init__


def _with_element(upstreams: Function) -> Function:
    """A type of the same shape with other elements; one shared object for types of numbers."""

    def with_element_ty(self: Any, scalar_ty: Any) -> Any:
        if type(scalar_ty) is not tl.dtype or type(self) is not tl.block_type:
            return upstreams(self, scalar_ty)
        key = id(self.shape), scalar_ty.name
        made = _of_elements.get(key)
        if made is None:
            made = upstreams(self, scalar_ty)
            if key[0] in _shared:  # the shape is kept alive, so its id is not reused
                _of_elements[key] = made
        return made

    return with_element_ty


def _tensor(upstreams: Function) -> Function:
    """The constructor of tensors. Tensors of one shape share all fields except the given ones."""

    def __init__(self: Any, handle: Any, type: Any) -> None:
        kind = type.__class__
        if kind is tl.block_type:
            element = type.element_ty
            shared = _shared.get(id(type.shape))
            shape = tuple(type.shape) if shared is None else shared[1]
        elif kind is tl.dtype:
            element, shape = type, ()
        else:
            element, shape = type.scalar, tuple(type.shape) if type.is_block() else ()
        fields = _tensors.get(shape)
        if fields is None:
            upstreams(self, handle, type)
            _tensors[shape] = {**vars(self), "handle": None, "type": None, "dtype": None}
            return
        vars(self).update(fields)
        self.handle, self.type, self.dtype = handle, type, element

    return __init__


def _broadcast(upstreams: Function) -> Function:
    """Broadcasting of two operands. Operands of equal shape, and scalars, are unchanged; a number
    fills a tile of the other's shape."""

    def broadcast_impl_value(self: Any, lhs: Any, rhs: Any) -> Any:
        a, b = lhs.type, rhs.type
        if type(a) is tl.block_type:
            if type(b) is tl.block_type:
                alike = a.shape is b.shape or tuple(a.shape) == tuple(b.shape)
                return (lhs, rhs) if alike else upstreams(self, lhs, rhs)
            if type(b) is tl.dtype:
                return lhs, _filled(self, rhs, a)
        elif type(b) is tl.block_type:
            if type(a) is tl.dtype:
                return _filled(self, lhs, b), rhs
        elif not a.is_block() and not b.is_block():
            return lhs, rhs
        return upstreams(self, lhs, rhs)

    return broadcast_impl_value


def _filled(semantic: Any, number: Any, like: Any) -> Any:
    """A number in every lane of a tile, whose type is Triton's own."""
    kind = like.with_element_ty(number.type)
    return semantic.tensor(semantic.builder.create_splat(kind, number.handle), kind)


def _operands(upstreams: Function) -> Function:
    """The operands of a binary operation. Tensors of one type of numbers are not converted, nor a
    pointer and an offset; a Python number gets the tensor's type."""

    def binary_op_type_checking_impl(
        self: Any, lhs: Any, rhs: Any, *allowed: Any, **options: Any
    ) -> Any:
        if type(lhs) is tl.tensor:
            kind = lhs.dtype
            if type(rhs) is tl.tensor:
                other = rhs.dtype
                if kind.is_ptr():
                    alike = allowed == _POINTERS and type(other) is tl.dtype and other in _OFFSETS
                else:
                    alike = kind is other and kind in _WIDE
                if alike:
                    return self.broadcast_impl_value(lhs, rhs)
                if type(kind) is type(other) is tl.dtype and {kind, other} <= _OFFSETS:
                    wide = self.cast(lhs, tl.int64), self.cast(rhs, tl.int64)
                    return self.broadcast_impl_value(*wide)
            elif (
                not options and (len(allowed) < 3 or allowed == _DIVISION) and _goes_with(rhs, kind)
            ):
                return self.broadcast_impl_value(lhs, self.scalar_constant(rhs, dtype=kind))
        elif (
            type(rhs) is tl.tensor
            and not options
            and (len(allowed) < 3 or allowed == _DIVISION)
            and _goes_with(lhs, rhs.dtype)
        ):
            return self.broadcast_impl_value(self.scalar_constant(lhs, dtype=rhs.dtype), rhs)
        return upstreams(self, lhs, rhs, *allowed, **options)

    return binary_op_type_checking_impl


# Division converts narrower types to float32. Masks are int1.
_WIDE = {tl.int1, tl.int32, tl.int64, tl.uint32, tl.uint64, tl.float32, tl.float64}
_OFFSETS = {tl.int32, tl.int64}
_FLOATS = {tl.float32, tl.float64}
_DIVISION = (False, False, True, True)  # the arguments of divisions and remainders
_POINTERS = (True, True)  # the arguments of an addition: a pointer is allowed on either side


def _goes_with(number: Any, kind: Any) -> bool:
    """Whether a Python number beside a tensor of that type gets this type."""
    if type(kind) is not tl.dtype:  # pointers
        return False
    if type(number) is int:
        return -(2**31) <= number < 2**31 and (kind in _OFFSETS or kind in _FLOATS)
    return type(number) is float and kind in _FLOATS


def _equal(upstreams: Function) -> Function:
    """Whether two types of numbers are equal; mostly each is a single object."""

    def __eq__(self: Any, other: Any) -> Any:
        return other is self or upstreams(self, other)

    return __eq__


# Each of these converts directly to every other one; the 16-bit types only to float32.
_CONVERTED = {id(kind) for kind in (tl.int32, tl.int64, tl.float32, tl.float64)}
_NARROW = {id(kind) for kind in (tl.float16, tl.bfloat16)}


def _cast(upstreams: Function) -> Function:
    """A conversion; to the same type it does nothing."""

    def cast(self: Any, input: Any, dst_ty: Any, *rounding: Any, **named: Any) -> Any:
        kind, old = input.type, input.dtype
        wanted = dst_ty.scalar
        if kind.scalar is wanted:
            return input
        if self.builder.__class__ is MendedBuilder and rounding in ((), (None,)) and not named:
            to = id(wanted)
            if id(old) in _CONVERTED:
                usual = to in _CONVERTED or to in _NARROW
            else:
                usual = id(old) in _NARROW and wanted is tl.float32
            if usual and kind.__class__ is tl.block_type:
                kind = kind.with_element_ty(wanted)
                return self.tensor(self.builder.cast_impl(input.handle, wanted), kind)
            if usual and kind is old and dst_ty is wanted:
                return self.tensor(self.builder.cast_impl(input.handle, wanted), wanted)
        return upstreams(self, input, dst_ty, *rounding, **named)

    return cast


def _expand(upstreams: Function) -> Function:
    """A tile with another dimension of size 1."""
    types: dict[tuple[int, int, str], Any] = {}

    def expand_dims(self: Any, input: Any, axis: Any) -> Any:
        kind = input.type
        if (
            kind.__class__ is not tl.block_type
            or type(kind.element_ty) is not tl.dtype
            or self.builder.__class__ is not MendedBuilder
        ):
            return upstreams(self, input, axis)
        key = id(kind.shape), axis, kind.element_ty.name
        wider = types.get(key)
        if wider is None:
            made = upstreams(self, input, axis)
            if key[0] in _shared and type(axis) is int:
                types[key] = made.type
            return made
        data = input.handle.data.reshape(wider.shape)
        return self.tensor(upstream.TensorHandle(data, input.handle.dtype), wider)

    return expand_dims


def _full(upstreams: Function) -> Function:
    """A tile of one number."""

    def full(self: Any, shape: Any, value: Any, dtype: Any) -> Any:
        if (
            type(value) not in (int, float)
            or id(dtype) not in _CONVERTED
            or self.builder.__class__ is not MendedBuilder
        ):
            return upstreams(self, shape, value, dtype)
        number = self.scalar_constant(value, dtype)
        if not shape:
            return number
        kind = tl.block_type(dtype, shape)
        return self.tensor(self.builder.create_splat(kind, number.handle), kind)

    return full


def _handle(upstreams: Function) -> Function:
    """The constructor of handles, whose numbers must not be wider than their type."""
    bytes_of = {id(kind): max(1, kind.primitive_bitwidth // 8) for kind in _NUMBERS}

    def __init__(self: Any, data: Any, dtype: Any, *attr: Any) -> None:
        if attr or data.itemsize > bytes_of.get(id(dtype), 0):
            upstreams(self, data, dtype, *attr)
            return
        self.data, self.dtype, self.attr = data, dtype, {}

    return __init__


_NUMBERS = (tl.int1, tl.int32, tl.int64, tl.float16, tl.bfloat16, tl.float32, tl.float64)


def _value(upstreams: Function) -> Function:
    """A constexpr's value; other values, such as tensors, unchanged."""

    def _unwrap_if_constexpr(o: Any) -> Any:
        return o if type(o) in _BARE else upstreams(o)

    return _unwrap_if_constexpr


_BARE = {tl.tensor, int, float, bool, type(None)}


def _unwrapped(patch: Function) -> Function:
    """The interpreter's replacement of a builtin, without the wrappers."""
    builtin = (getattr(patch, "__kwdefaults__", None) or {}).get("member")
    function = getattr(builtin, "__wrapped__", None)
    if (
        not inspect.isfunction(function)
        or "_semantic" not in inspect.signature(function).parameters
    ):
        return patch

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = upstream.interpreter_semantic
        return function(*args, **kwargs)

    return call


def patches(recorded: list[tuple[Any, str, Any]]) -> list[tuple[Any, str, Any]]:
    """The replacements while kernels are interpreted, made from those of Triton's own
    interpreter."""
    semantic = type(upstream.interpreter_semantic)
    replaced = [(target, name, _unwrapped(value)) for target, name, value in recorded]
    for target, name, shortcut in (
        (tl.block_type, "__init__", _block_type),
        (tl.block_type, "with_element_ty", _with_element),
        (tl.dtype, "__eq__", _equal),
        (tl.tensor, "__init__", _tensor),
        (tl.core, "_unwrap_if_constexpr", _value),
        (semantic, "broadcast_impl_value", _broadcast),
        (semantic, "binary_op_type_checking_impl", _operands),
        (semantic, "cast", _cast),
        (semantic, "expand_dims", _expand),
        (semantic, "full", _full),
        (upstream.TensorHandle, "__init__", _handle),
    ):
        replaced.append((target, name, shortcut(getattr(target, name))))
    return replaced + operators.patches(replaced, _shared)
