"""The builder that records the dataflow."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl

from triton_kernels.interpreter import dataflow, source_lines
from triton_kernels.interpreter.builder import MendedBuilder
from triton_kernels.interpreter.dataflow import Dataflow, Sources, Touch, Value, flow_of
from triton_kernels.interpreter.emulation import Array
from triton_kernels.interpreter.handles import upstream
from triton_kernels.interpreter.shadowing import ELEMENTWISE, MOVES, handles_among

_BEGIN = ("create_get_program_id", "create_get_num_programs", "create_make_range")


def _noted(name: str) -> Callable[..., Any]:
    """The method of that name, which also records the sources of its result."""
    inner = getattr(MendedBuilder, name)
    note = _moved if name in MOVES else _elementwise

    @functools.wraps(inner)
    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        if self.within or not self.flow.on:
            return inner(self, *arguments, **named)
        self.within = True
        try:
            out = inner(self, *arguments, **named)
        finally:
            self.within = False
        note(self, arguments, out, inner)
        return out

    return method


def _elementwise(self: Any, arguments: Any, out: Any, _: Any) -> None:
    self.follow("", handles_among(arguments), out)


def _moved(self: Any, arguments: Any, out: Any, inner: Any) -> None:
    inputs = handles_among(arguments)
    for which, handle in enumerate(out if isinstance(out, tuple) else (out,)):
        if any(handle is h for h in inputs):
            continue

        def move(*tiles: Array, which: int = which) -> Array:
            twins = {id(h): upstream.TensorHandle(t, tl.int64) for h, t in zip(inputs, tiles)}
            moved = inner(self, *(twins.get(id(a), a) for a in arguments))
            data: Array = (moved[which] if isinstance(moved, tuple) else moved).data
            return data

        self.flow.made(handle, dataflow.movement(inputs, move))


class FlowBuilder(MendedBuilder):
    """The corrected builder, which also records the operations of a program."""

    within = False
    flow: Dataflow
    _made: tuple[Value, ...] = ()  # the sources of the current access's block pointer or descriptor

    for _name in (*ELEMENTWISE, *MOVES, *_BEGIN):
        if hasattr(MendedBuilder, _name):
            locals()[_name] = _noted(_name)
    del _name

    def follow(self, name: str, inputs: tuple[Any, ...], out: Any) -> None:
        if self.flow.on and all(out is not h for h in inputs):
            self.flow.made(out, dataflow.elementwise(inputs, np.shape(out.data)))

    def follow_reduction(self, name: str, handle: Any, out: Any, axis: int, scan: bool) -> None:
        if self.flow.on:
            self.flow.made(out, dataflow.reduction(handle, axis, scan))

    def follow_move(self, handle: Any, out: Any, move: Callable[[Array], Any]) -> None:
        if self.flow.on:
            size = np.size(handle.data)
            came = np.asarray(move(np.arange(size, dtype=np.int32).reshape(np.shape(handle.data))))
            self.flow.made(out, dataflow.movement((handle,), lambda _: came))

    def follow_selection(self, condition: Array, yes: Any, no: Any, out: Any) -> None:
        if self.flow.on:
            which = upstream.TensorHandle(np.asarray(condition), tl.int1)
            self.flow.made(out, dataflow.selection(which, yes, no, np.shape(out.data)))

    def decides(self, handle: Any) -> None:
        if self.flow.on and (value := flow_of(handle)) is not None:
            self.flow.decisions.append(dataflow.Decision(source_lines.current(), value))

    def create_assert(self, condition: Any, message: Any) -> None:
        self.flow.asserted = flow_of(condition)
        super().create_assert(condition, message)
        self.flow.asserted = None

    # ---- operations with special rules for lanes ----

    def _alone(self, run: Callable[[], Any]) -> Any:
        """Run an operation without recording its parts."""
        outside, self.within = self.within, True
        try:
            return run()
        finally:
            self.within = outside

    def create_select(self, cond: Any, lhs: Any, rhs: Any) -> Any:
        out = self._alone(functools.partial(super().create_select, cond, lhs, rhs))
        if self.flow.on:
            self.flow.made(out, dataflow.selection(cond, lhs, rhs, np.shape(out.data)))
        return out

    def create_gather(self, src: Any, indices: Any, axis: Any) -> Any:
        out = super().create_gather(src, indices, axis)
        if self.flow.on:
            at = indices.data
            moved = dataflow.movement((src,), lambda t: np.take_along_axis(t, at, axis=axis))
            index = dataflow.elementwise((indices,), np.shape(out.data))
            self.flow.made(out, lambda lanes: moved(lanes) + index(lanes))
        return out

    def create_histogram(self, data: Any, bins: Any, mask: Any) -> Any:
        out = super().create_histogram(data, bins, mask)
        if self.flow.on:
            inputs = (data,) if mask is None else (data, mask)
            self.flow.made(out, dataflow.everything(inputs))
        return out

    def create_dot(self, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        out = self._alone(functools.partial(super().create_dot, a, b, d, *rest))
        if self.flow.on:
            self.flow.made(out, dataflow.product(a, b, d, np.shape(out.data)))
        return out

    def create_dot_scaled(self, *arguments: Any) -> Any:
        out = self._alone(functools.partial(super().create_dot_scaled, *arguments))
        if self.flow.on:
            self.flow.made(out, dataflow.everything(handles_among(arguments)))
        return out

    def create_inline_asm(self, asm: str, constraints: str, values: Any, *rest: Any) -> Any:
        out = super().create_inline_asm(asm, constraints, values, *rest)
        for handle in out.handles:
            self.follow("", tuple(values), handle)
        return out

    # ---- block pointers and descriptors ----

    def _behind(self, pointer: Any) -> Value | None:
        """A block pointer or descriptor, possibly an advanced one, as a value."""
        known = flow_of(pointer)
        if known is None and self.flow.on:
            parts = [pointer.base, *pointer.shape, *pointer.strides]
            parts += getattr(pointer, "offsets", ())
            known = self.flow.made(pointer, dataflow.everything(tuple(parts)))
        return known

    def create_make_block_ptr(self, *arguments: Any) -> Any:
        out = super().create_make_block_ptr(*arguments)
        self._behind(out)
        return out

    def create_make_tensor_descriptor(self, *arguments: Any, **named: Any) -> Any:
        out = super().create_make_tensor_descriptor(*arguments, **named)
        self._behind(out)
        return out

    def create_advance(self, ptr: Any, offsets: Any) -> Any:
        out = super().create_advance(ptr, offsets)
        if self.flow.on:
            self.flow.made(out, dataflow.everything((ptr, *offsets)))
        return out

    def _through(self, pointer: Any, indices: Any, run: Callable[[], Any]) -> Any:
        values = (self._behind(pointer), *map(flow_of, indices))
        self._made = tuple(value for value in values if value is not None)
        try:
            return run()
        finally:
            self._made = ()

    def create_tensor_pointer_load(self, ptr: Any, *rest: Any) -> Any:
        run = functools.partial(super().create_tensor_pointer_load, ptr, *rest)
        return self._through(ptr, (), run)

    def create_tensor_pointer_store(self, ptr: Any, *rest: Any) -> Any:
        run = functools.partial(super().create_tensor_pointer_store, ptr, *rest)
        return self._through(ptr, (), run)

    def create_descriptor_load(self, desc: Any, indices: Any, *rest: Any) -> Any:
        run = functools.partial(super().create_descriptor_load, desc, indices, *rest)
        return self._through(desc, indices, run)

    def create_descriptor_store(self, desc: Any, value: Any, indices: Any) -> Any:
        run = functools.partial(super().create_descriptor_store, desc, value, indices)
        return self._through(desc, indices, run)

    def create_descriptor_reduce(self, kind: Any, desc: Any, value: Any, indices: Any) -> None:
        run = functools.partial(super().create_descriptor_reduce, kind, desc, value, indices)
        self._through(desc, indices, run)

    # ---- memory ----

    def _touch(self, verb: str, ptrs: Any, mask: Any, **operands: Any) -> Touch | None:
        """Record an access before it is checked."""
        if not self.flow.on:
            return None
        known = {name: flow_of(handle) for name, handle in operands.items()}
        known |= {"pointers": flow_of(ptrs), "mask": flow_of(mask)}
        on = np.broadcast_to(getattr(mask, "data", True if mask is None else mask), ptrs.data.shape)
        width = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
        place, number = source_lines.current(), self.flow.next()
        touch = Touch(number, verb, place, ptrs.data, on, known, self._made, width)
        self.flow.touched(touch)
        return touch

    def _result(self, touch: Touch | None, out: Any, other: Any = None) -> Any:
        """Record the result of a load or atomic operation."""
        if touch is None:
            return out
        flow, instead = self.flow, None if other is None else flow_of(other)

        def back(lanes: Array) -> Sources:
            on = touch.mask.reshape(-1)[lanes]
            sources = touch.addressed(lanes)
            if touch.operands.get("value") is not None:
                sources += touch.stored(lanes)
            if instead is not None and not on.all():
                at = dataflow.lanes_of(instead.shape, lanes[~on], touch.pointers.shape)
                sources.append((instead, at))
            return sources + flow.loaded(touch, lanes[on])[0]

        self.flow.made(out, back).access = touch
        return out

    def create_masked_load(self, ptrs: Any, mask: Any, other: Any, *rest: Any, **named: Any) -> Any:
        touch = self._touch("load", ptrs, mask)
        out = super().create_masked_load(ptrs, mask, other, *rest, **named)
        return self._result(touch, out, other)

    def create_masked_store(
        self, ptrs: Any, value: Any, mask: Any, *rest: Any, **named: Any
    ) -> Any:
        self._touch("store", ptrs, mask, value=value)
        return super().create_masked_store(ptrs, value, mask, *rest, **named)

    def create_atomic_rmw(
        self, rmw_op: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any
    ) -> Any:
        touch = self._touch("atomic", ptr, mask, value=val)
        return self._result(touch, super().create_atomic_rmw(rmw_op, ptr, val, mask, sem, scope))

    def create_atomic_cas(self, ptr: Any, cmp: Any, val: Any, sem: Any, scope: Any) -> Any:
        touch = self._touch("atomic", ptr, None, value=val, compared=cmp)
        return self._result(touch, super().create_atomic_cas(ptr, cmp, val, sem, scope))
