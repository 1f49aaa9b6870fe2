"""Triton's interpreter builder with correct arithmetic and checks of memory accesses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir

from triton_kernels.interpreter import emulation, live_tensors, ptx, scaled_dot, source_lines
from triton_kernels.interpreter.emulation import Array
from triton_kernels.interpreter.handles import (
    ArgumentPointer,
    decode,
    encode,
    narrow,
    operand,
    poison,
    upstream,
)
from triton_kernels.interpreter.loop_index import indices, numbered
from triton_kernels.interpreter.memory import Argument
from triton_kernels.interpreter.observers import Access, Dot, Observer

_Builder: Any = getattr(upstream, "InterpreterBuilder", object)
_WAY_OUT = (
    "to debug the rest, give the kernel a constexpr that puts operations of triton.language there"
)


class NotInterpreted(NotImplementedError, AttributeError):
    """The kernel uses something that only the compiler can do."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} runs only compiled, not interpreted: {_WAY_OUT}")


class _InlineAsm:
    """The results of an inline assembly call, as the core language unpacks them.

    Attributes:
        name: of its one instruction, or "inline PTX".
    """

    def __init__(self, name: str, handles: list[Any]) -> None:
        self.name, self.handles = name, handles

    def get_result(self, index: int) -> Any:
        return self.handles[index]


def _elementary(name: str) -> Callable[[Any, Any], Any]:
    def create(self: Any, arg: Any) -> Any:
        return encode(emulation.elementary(name, operand(arg)), arg.dtype)

    return create


def _extremum(largest: bool, propagate_nan: bool) -> Callable[[Any, Any, Any], Any]:
    def create(self: Any, lhs: Any, rhs: Any) -> Any:
        out = emulation.extremum(operand(lhs), operand(rhs), largest, propagate_nan)
        return encode(out, lhs.dtype)

    return create


def _logical(operands: tuple[Callable[[], Any], ...], method: str, decisive: bool) -> Any:
    """`and`/`or` as the compiler does it: only an operand that is no tensor short-circuits."""
    result = value = None
    for evaluate in operands:
        value = evaluate()
        if isinstance(value, tl.tensor):
            result = value if result is None else getattr(result, method)(value)
        elif bool(value) is decisive:
            return value
    return value if result is None else result


class MendedBuilder(_Builder):  # type: ignore[misc]
    """The interpreter's builder with correct arithmetic and checks of memory accesses.

    Inside interpreting() the interpreter's single builder instance gets this class, so that all
    references to the instance see the corrections.
    """

    arguments: tuple[Argument, ...] = ()
    alive: list[Argument] | None = None  # all live tensors, if this launch needed them
    observer: Observer | None = None
    other_given = False  # whether the current load has ``other``

    # arithmetic

    def binary_op(self, lhs: Any, rhs: Any, op: Any) -> Any:
        if narrow(lhs):
            out = op(operand(lhs), operand(rhs))
            if out.dtype != np.bool_:
                return encode(out, lhs.dtype)
        else:
            out = op(lhs.data, rhs.data)
        if out.dtype == np.bool_:
            return upstream.TensorHandle(out, tl.int1)
        if out.dtype.itemsize > lhs.data.dtype.itemsize:
            out = out.astype(upstream._get_np_dtype(lhs.dtype.scalar))
        return upstream.TensorHandle(out, lhs.dtype.scalar)

    def unary_op(self, arg: Any, op: Any) -> Any:
        if narrow(arg):
            return encode(op(operand(arg)), arg.dtype)
        return super().unary_op(arg, op)

    def create_select(self, cond: Any, lhs: Any, rhs: Any) -> Any:
        out = super().create_select(cond, lhs, rhs)
        if isinstance(out.dtype, ArgumentPointer) and lhs.dtype is not rhs.dtype:
            # Pointers of two arguments into one tensor: the access may go through any argument.
            out.dtype = ArgumentPointer(out.dtype.element_ty, out.dtype.address_space)
        return out

    def create_clampf(self, arg: Any, lo: Any, hi: Any, propagate_nans: Any) -> Any:
        keep = propagate_nans == tl.PropagateNan.ALL
        x, low, high = operand(arg), operand(lo), operand(hi)
        lifted = emulation.extremum(x, low, True, keep)
        return encode(emulation.extremum(lifted, high, False, keep), arg.dtype)

    create_maximumf = _extremum(largest=True, propagate_nan=True)
    create_maxnumf = _extremum(largest=True, propagate_nan=False)
    create_minimumf = _extremum(largest=False, propagate_nan=True)
    create_minnumf = _extremum(largest=False, propagate_nan=False)

    def create_fma(self, x: Any, y: Any, z: Any) -> Any:
        if z.data.dtype.kind == "f":
            return upstream.TensorHandle(emulation.fma(x.data, y.data, z.data), z.dtype.scalar)
        if narrow(z) == "bf16":
            out = emulation.fma_bf16(x.data, y.data, z.data)
            return upstream.TensorHandle(out, z.dtype.scalar)
        if narrow(z):
            operand(z)  # raises
        return super().create_fma(x, y, z)

    create_cos = _elementary("cos")
    create_erf = _elementary("erf")
    create_exp = _elementary("exp")
    create_exp2 = _elementary("exp2")
    create_log = _elementary("log")
    create_log2 = _elementary("log2")
    create_precise_sqrt = _elementary("sqrt")
    create_rsqrt = _elementary("rsqrt")
    create_sin = _elementary("sin")
    create_sqrt = _elementary("sqrt")

    def create_dot(self, a: Any, b: Any, d: Any, input_precision: Any, imprecise: Any) -> Any:
        out = self._dot(a, b, d, input_precision)
        if self.observer is not None:
            self._tell_dot(decode(a), decode(b), d, out, self._precision(a, input_precision))
        return out

    def _tell_dot(self, x: Array, y: Array, d: Any, out: Any, precision: str) -> None:
        assert self.observer is not None
        program, place = tuple(self.grid_idx), source_lines.current()
        dot = Dot(x, y, decode(d), decode(out), precision, program, place)
        source_lines.tell(self.observer.dot, dot)

    if not hasattr(_Builder, "create_dot_scaled"):  # as that of Triton 3.7

        def create_dot_scaled(
            self, a: Any, a_scale: Any, _: Any, b: Any, b_scale: Any, __: Any, *rest: Any
        ) -> Any:
            _, a_k_pack, b_k_pack, d = rest
            x = scaled_dot.values(a, a_scale, -1, a_k_pack)
            y = scaled_dot.values(b, b_scale, -2, b_k_pack)
            out = encode(emulation.dot_f32(x, y, decode(d), "ieee"), d.dtype)
            if self.observer is not None:
                self._tell_dot(x, y, d, out, "")
            return out

    def _dot(self, a: Any, b: Any, d: Any, input_precision: Any) -> Any:
        if a.data.dtype.kind in "iu" and not narrow(a):
            return upstream.TensorHandle(emulation.dot_int(a.data, b.data, d.data), d.dtype.scalar)
        x, y, c = decode(a), decode(b), decode(d)
        if x.dtype == np.float64:
            return encode(np.matmul(x, y) + c, d.dtype)
        # 16- and 8-bit operands: exact products, accumulated in float32.
        precision = self._precision(a, input_precision) or "ieee"
        x, y, c = (v.astype(np.float32, copy=False) for v in (x, y, c))
        return encode(emulation.dot_f32(x, y, c, precision), d.dtype)

    def _precision(self, a: Any, input_precision: Any) -> str:
        """The input precision of a dot; "" if it does not apply, as for 16-bit operands."""
        if narrow(a) or a.data.dtype != np.float32:
            return ""
        asked = self.observer.dot_precision if self.observer is not None else ""
        name: str = asked or input_precision.name.lower()
        return name

    loop_indices = staticmethod(indices)
    loop_range = staticmethod(numbered)

    # `and`, `or`, `not` on tensors, which the compiler applies to every element (see _Rewriter)

    def logical_and(self, *operands: Callable[[], Any]) -> Any:
        return _logical(operands, "logical_and", decisive=False)

    def logical_or(self, *operands: Callable[[], Any]) -> Any:
        return _logical(operands, "logical_or", decisive=True)

    def logical_not(self, value: Any) -> Any:
        return value.__not__() if isinstance(value, tl.tensor) else not value

    # conversions

    def get_bf16(self, value: Any) -> Any:  # missing before Triton 3.9
        return encode(np.array([value], dtype=np.float64), tl.bfloat16)

    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        target = dst_type.scalar.name
        if narrow(src) or target == "bf16" or target in emulation.FLOAT8:
            return encode(decode(src), dst_type)
        return super().cast_impl(src, dst_type)

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        names = (narrow(src), dst_type.scalar.name)
        if any(name.startswith("fp8") and name not in emulation.FLOAT8 for name in names):
            return super().create_fp_to_fp(src, dst_type, rounding_mode)
        out = self.cast_impl(src, dst_type)
        if rounding_mode is not None and rounding_mode.name == "RTZ":
            bits = out.data.view(f"u{out.data.dtype.itemsize}")
            larger = np.abs(decode(out).astype(np.float64)) > np.abs(decode(src))
            out.data = np.where(larger, bits - 1, bits).astype(bits.dtype).view(out.data.dtype)
        return out

    # memory

    def _program(self) -> str:
        place = source_lines.current()
        return f"program {tuple(self.grid_idx)}" + (f", {place}" if place else "")

    def _check(self, verb: str, pointers: Any, mask: Array) -> None:
        """Raise IndexError unless every active lane is in bounds."""
        argument = getattr(pointers.dtype, "argument", None)
        name = argument.name if argument else ""
        active = pointers.data
        if not mask.all():
            active = active[np.broadcast_to(mask, active.shape)]
        if not active.size:
            return
        width = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        low, high = int(active.min()), int(active.max()) + width
        owners = (argument,) if argument else self.arguments
        if any(o.low <= low and high <= o.high and not o.gaps for o in owners):
            return
        bad = np.ones(active.shape, dtype=bool)
        for owner in owners:
            bad &= owner.outside(active, width)
        if not bad.any():
            return
        elsewhere = not isinstance(pointers.dtype, ArgumentPointer)
        if elsewhere:  # addresses from a table of pointers, or made from a number
            if self.alive is None:
                self.alive = list(live_tensors.alive())
            owners = tuple(live_tensors.holding(active, self.alive))
            for owner in owners:
                bad &= owner.outside(active, width)
            if not bad.any():
                self.arguments = (*self.arguments, *owners)  # found faster next time
                return
        first = int(active[bad].flat[0])
        lanes = np.broadcast_to(mask, pointers.data.shape)
        where = np.flatnonzero(lanes & (pointers.data == np.uint64(first)))[0]
        lane = [int(i) for i in np.unravel_index(where, pointers.data.shape)]
        nearest = min(owners, key=lambda o: max(o.low - first, first - o.high), default=None)
        error = IndexError(
            f"out-of-bounds {verb}{' through ' + name if name else ''} in {self._program()}: "
            f"{int(bad.sum())} of {active.size} active lanes ({lanes.size} in all); "
            f"the first, lane {lane}, is at "
            + (nearest.describe(first) if nearest else f"address {first:#x}")
            + (", in no tensor that is alive" if elsewhere and not nearest else "")
        )
        raise source_lines.of_lane(error, tuple(lane), pointers.data.shape)

    def create_masked_load(
        self, ptrs: Any, mask: Any, other: Any, *policy: Any, **named_policy: Any
    ) -> Any:
        if isinstance(mask, np.ndarray):  # block pointers, descriptors: bare before 3.9
            mask = upstream.TensorHandle(mask, tl.int1)
        self._check("load", ptrs, mask.data)
        if other is None and not self.other_given and not mask.data.all():
            dtype = ptrs.get_element_ty()
            wanted = upstream._get_np_dtype(dtype)
            undefined = np.full(ptrs.data.shape, poison(dtype), dtype=wanted)
            other = upstream.TensorHandle(undefined, dtype)
        out = super().create_masked_load(ptrs, mask, other, *policy, **named_policy)
        volatile = named_policy.get("is_volatile", policy[-1] if len(policy) > 1 else False)
        self._tell("load", "", ptrs, mask.data, out, "volatile" if volatile else "")
        return out

    def create_descriptor_store(self, desc: Any, value: Any, indices: Any) -> Any:
        """Whole 16 bytes are stored, as in hardware, even beyond the end of a row."""
        columns, step = desc.shape[-1], 128 // desc.base.dtype.element_ty.primitive_bitwidth
        wider = copy.copy(desc)
        whole = -(-columns.data // step) * step
        wider.shape = [*desc.shape[:-1], upstream.TensorHandle(whole, columns.dtype)]
        try:
            return super().create_descriptor_store(wider, value, indices)
        except IndexError as error:
            if (whole != columns.data).any():
                told = "a descriptor stores whole 16 bytes, beyond the end of a row, too"
                error.args = (f"{error.args[0]} ({told})",)
            raise

    def create_descriptor_reduce(self, kind: Any, desc: Any, value: Any, indices: Any) -> None:
        """A descriptor's atomic_add and its kin, which are relaxed and return nothing."""
        dtype = desc.base.dtype.element_ty
        name = kind.name
        if dtype.is_floating() and name == "ADD":
            name = "FADD"
        elif name in ("MIN", "MAX") and dtype.is_int_unsigned():
            name = f"U{name}"
        pointers, mask = desc.materialize_pointers(indices)
        mask = upstream.TensorHandle(mask, tl.int1) if isinstance(mask, np.ndarray) else mask
        operation = getattr(ir.ATOMIC_OP, name)
        relaxed, scope = ir.MEM_SEMANTIC.RELAXED, ir.MEM_SYNC_SCOPE.GPU
        self.create_atomic_rmw(operation, pointers, value, mask, relaxed, scope)

    def _tell(
        self, verb: Any, operation: str, ptrs: Any, mask: Array, values: Any, order: str = ""
    ) -> None:
        """Report an access to the observer."""
        if self.observer is None:
            return
        argument = getattr(ptrs.dtype, "argument", None)
        mask = np.broadcast_to(mask, ptrs.data.shape)
        dtype, program = ptrs.get_element_ty().name, tuple(self.grid_idx)
        place = source_lines.current()
        access = Access(
            verb, operation, argument, ptrs.data, mask, values.data, dtype, program, place, order
        )
        source_lines.tell(self.observer.access, access)

    def create_masked_store(
        self, ptrs: Any, value: Any, mask: Any, *policy: Any, **named_policy: Any
    ) -> Any:
        if isinstance(mask, np.ndarray):
            mask = upstream.TensorHandle(mask, tl.int1)
        self._check("store", ptrs, mask.data)
        self._tell("store", "", ptrs, mask.data, value)
        return super().create_masked_store(ptrs, value, mask, *policy, **named_policy)

    def create_atomic_rmw(
        self, rmw_op: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any
    ) -> Any:
        self._check("atomic", ptr, mask.data)
        self._tell("atomic", rmw_op.name.lower(), ptr, mask.data, val, sem.name.lower())
        if narrow(val) == "bf16" and rmw_op.name == "FADD":
            return self._add_bf16(ptr, val, mask)
        return super().create_atomic_rmw(rmw_op, ptr, val, mask, sem, scope)

    def _add_bf16(self, ptr: Any, val: Any, mask: Any) -> Any:
        """Atomic add of bfloat16, which Triton's interpreter lacks. Lanes with one address add one
        after another, with a rounding each."""
        shape = ptr.data.shape
        before = np.zeros(shape, dtype=np.uint16)
        left = np.broadcast_to(mask.data, shape).copy()
        while left.any():
            now = np.zeros(shape, dtype=bool)
            _, first = np.unique(np.where(left, ptr.data, 0), return_index=True)
            now.reshape(-1)[first] = True
            now &= left
            # Not with the builder's loads and stores, whose arguments depend on Triton's version.
            bits = upstream._interpreter.load(ptr.data, now, before, np.dtype(np.uint16))
            before[now] = bits[now]
            held = upstream.TensorHandle(bits, tl.bfloat16)
            added = encode(decode(held) + decode(val), tl.bfloat16)
            upstream._interpreter.store(ptr.data, added.data, now)
            left &= ~now
        return upstream.TensorHandle(before, val.dtype.scalar)

    def create_atomic_cas(self, ptr: Any, cmp: Any, val: Any, sem: Any, scope: Any) -> Any:
        mask = np.ones(ptr.data.shape, dtype=bool)
        self._check("atomic", ptr, mask)
        self._tell("atomic", "cas", ptr, mask, val, sem.name.lower())
        return super().create_atomic_cas(ptr, cmp, val, sem, scope)

    # hooks for the builders that keep shadow values or the dataflow

    def follow(self, name: str, inputs: tuple[Any, ...], out: Any) -> None:
        """An elementwise operation that no other method of this builder did has its result."""

    def follow_reduction(self, name: str, handle: Any, out: Any, axis: int, scan: bool) -> None:
        """A reduction or a scan along an axis has its result."""

    def follow_move(self, handle: Any, out: Any, move: Callable[[Array], Any]) -> None:
        """Values have moved to other lanes."""

    def follow_selection(self, condition: Array, yes: Any, no: Any, out: Any) -> None:
        """Values have been chosen from two handles."""

    def decides(self, handle: Any) -> None:
        """The kernel's control flow depends on a scalar."""

    # assertions and assembly

    def create_assert(self, condition: Any, message: Any) -> None:
        failed = np.argwhere(np.logical_not(condition.data))
        if len(failed):
            lanes, lane = condition.data.size, tuple(map(int, failed[0]))
            first = f", the first is lane {list(lane)}" if lanes > 1 else ""
            error = AssertionError(
                f"{message} (device_assert, {len(failed)} of {lanes} lanes{first}, "
                f"{self._program()})"
            )
            raise source_lines.of_lane(error, lane, condition.data.shape)

    def create_inline_asm(
        self, asm: str, constraints: str, values: Any, types_: Any, is_pure: Any, pack: Any
    ) -> _InlineAsm:
        shape = np.broadcast_shapes(*(each.data.shape for each in values)) if values else (1,)
        packed = [ptx.packed(np.broadcast_to(each.data, shape), pack) for each in values]
        inputs = [register for registers in packed for register in registers]
        dtypes = [each.scalar for each in types_]
        wanted = [upstream._get_np_dtype(each) for each in dtypes]
        counts = [ptx.registers_of(each, pack) for each in wanted]
        try:
            out = ptx.run(asm, sum(counts), inputs, len(inputs[0]) if inputs else 1)
        except ptx.Unknown as unknown:
            raise NotInterpreted(f"the inline PTX {str(unknown)!r}") from None
        handles = []
        for dtype, numbers, count in zip(dtypes, wanted, counts, strict=True):
            data = ptx.unpacked(out[:count], numbers, pack, shape)
            handles.append(upstream.TensorHandle(data, dtype))
            out = out[count:]
        steps = list(ptx.statements(asm))
        return _InlineAsm(steps[0].split()[0] if len(steps) == 1 else "inline PTX", handles)

    def create_grid_dependency_wait(self) -> None:
        """From Triton 3.9 on gdc_wait() is no inline PTX. Launches run one after the other."""

    def create_grid_dependency_launch_dependents(self) -> None:
        """The same of gdc_launch_dependents()."""

    def create_extern_elementwise(self, library: str, path: str, symbol: str, *_: Any) -> Any:
        raise NotInterpreted(f"the function {symbol} of an external library")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("create_"):  # an operation that this Triton's interpreter lacks
            raise NotInterpreted(f"the operation {name.removeprefix('create_')}")
        raise AttributeError(name)
