"""What Triton computes anew for every operation of a program, remembered.

An interpreted operation makes several tensors and types, looks for conversions and broadcasting
that it mostly does not need, and passes its arguments on through two wrappers: together that takes
several times as long as the arithmetic. Everything here gives what Triton's own function gives, and
asks that where the usual case is not there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import triton.language as tl

from triton_kernels.interpreter.handles import upstream

Function = Callable[..., Any]

_types: dict[tuple[Any, ...], dict[str, Any]] = {}  # of a shape and an element's name: fields
_tensors: dict[tuple[int, ...], dict[str, Any]] = {}  # of a shape: fields


def _block_type(upstreams: Function) -> Function:
    """The constructor of tiles' types. Of one shape and element all have the same fields, but for
    the element's type itself: a pointer's knows its argument."""

    def __init__(self: Any, element_ty: Any, shape: Any) -> None:
        if type(self) is not tl.block_type or {*map(type, shape)} != {int}:  # 4.0 equals 4
            upstreams(self, element_ty, shape)
            return
        key = type(shape), tuple(shape), element_ty.name
        fields = _types.get(key)
        if fields is None:
            upstreams(self, element_ty, shape)
            _types[key] = {**vars(self), "element_ty": None}
            return
        vars(self).update(fields)
        self.element_ty = element_ty

    return __init__


def _tensor(upstreams: Function) -> Function:
    """The constructor of tensors. Of one shape all have the same fields, but for the given ones."""

    def __init__(self: Any, handle: Any, type: Any) -> None:
        shape = tuple(type.shape) if type.is_block() else ()
        fields = _tensors.get(shape)
        if fields is None:
            upstreams(self, handle, type)
            _tensors[shape] = {**vars(self), "handle": None, "type": None, "dtype": None}
            return
        vars(self).update(fields)
        self.handle, self.type, self.dtype = handle, type, type.scalar

    return __init__


def _broadcast(upstreams: Function) -> Function:
    """Broadcasting of two operands: of one shape, or without any, they stay as they are."""

    def broadcast_impl_value(self: Any, lhs: Any, rhs: Any) -> Any:
        a, b = lhs.type, rhs.type
        if type(a) is tl.block_type:
            alike = type(b) is tl.block_type and tuple(a.shape) == tuple(b.shape)
        else:
            alike = not a.is_block() and not b.is_block()
        return (lhs, rhs) if alike else upstreams(self, lhs, rhs)

    return broadcast_impl_value


def _operands(upstreams: Function) -> Function:
    """The operands of an operation on two: tensors of one type of numbers are not converted."""

    def binary_op_type_checking_impl(
        self: Any, lhs: Any, rhs: Any, *allowed: Any, **options: Any
    ) -> Any:
        if type(lhs) is tl.tensor and type(rhs) is tl.tensor:
            kind = lhs.dtype
            if kind is rhs.dtype and kind in _WIDE:
                return self.broadcast_impl_value(lhs, rhs)
        return upstreams(self, lhs, rhs, *allowed, **options)

    return binary_op_type_checking_impl


# Division makes float32 of narrower ones.
_WIDE = {tl.int32, tl.int64, tl.uint32, tl.uint64, tl.float32, tl.float64}


def _unwrapped(patch: Function) -> Function:
    """What Triton's interpreter puts in the place of a builtin, without the wrappers."""
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
    """What stands in the place of what while kernels are interpreted, from what Triton's own
    interpreter puts there."""
    semantic = type(upstream.interpreter_semantic)
    found = [(target, name, _unwrapped(value)) for target, name, value in recorded]
    for target, name, shortcut in (
        (tl.block_type, "__init__", _block_type),
        (tl.tensor, "__init__", _tensor),
        (semantic, "broadcast_impl_value", _broadcast),
        (semantic, "binary_op_type_checking_impl", _operands),
    ):
        found.append((target, name, shortcut(getattr(target, name))))
    return found
