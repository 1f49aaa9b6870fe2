"""Triton's interpreter, mended: the one file that touches private Triton API.

`interpreting()` replaces the interpreter's builder and a few hooks around it for as long as it
is entered, then puts everything back, so that one process can interpret and compile the same
kernels. `self_test()` names every private assumption that a new Triton release breaks. What
the mends compute is in _emulation.py; this file says where Triton must be told so.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import importlib
import inspect
import operator
import os
import re
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import triton

# Not used here, but loaded before anything is patched: the code generator keeps references to the
# language's functions, and one that is first loaded amid the mends would keep the mended ones.
import triton.compiler.code_generator
import triton.language as tl
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from . import _emulation as emulation
from ._emulation import Array
from ._memory import Argument
from ._observer import Access, Dot, Launch, Observer, Place

_it: Any
try:
    _it = importlib.import_module("triton.runtime.interpreter")
except ImportError:  # self_test() says so when the interpreter is asked for
    _it = None

_Builder: Any = getattr(_it, "InterpreterBuilder", object)
_FunctionRewriter: Any = getattr(_it, "FunctionRewriter", object)

# Frames of these files are never the kernel's own line.
_NOT_KERNELS = (
    *(os.path.dirname(str(module.__file__)) + os.sep for module in (triton, np, torch)),
    __file__,
    emulation.__file__,
)
_DOT_PRECISIONS = ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")
_MISSING: Any = object()


# ---- the mended builder ----


class _ArgumentPointer(tl.pointer_type):  # type: ignore[misc]
    """A pointer type that remembers its argument.

    The interpreter hands a handle's dtype on through every pointer operation, so the type is
    the cheapest place to keep where a pointer came from.
    """

    argument: Argument


def _narrow(handle: Any) -> str:
    """ "bf16" or "fp8…" if the handle holds such bits, else ""."""
    if handle.data.dtype.kind != "u":
        return ""
    name: str = handle.dtype.scalar.name
    return name if name == "bf16" or name.startswith("fp8") else ""


def _decode(handle: Any) -> Array:
    """A handle's numbers in a dtype that numpy can compute with."""
    return emulation.decoded(np.asarray(handle.data), _narrow(handle))


def _operand(handle: Any) -> Array:
    """As _decode, for arithmetic: float8 has none."""
    if _narrow(handle).startswith("fp8"):
        raise TypeError(f"no arithmetic in {handle.dtype.scalar}: cast to float32 first")
    return _decode(handle)


def _encode(data: Array, dtype: Any) -> Any:
    """Numbers as a handle of a Triton dtype, rounded once to nearest even."""
    dtype = dtype.scalar
    data = np.asarray(data)
    if dtype.name == "bf16":
        data = emulation.to_bf16(data)
    elif dtype.name in emulation.FLOAT8:
        data = emulation.FLOAT8[dtype.name].encode(data)
    else:
        data = data.astype(_it._get_np_dtype(dtype), copy=False)
    return _it.TensorHandle(data, dtype)


def _poison(dtype: Any) -> Any:
    """What a masked-off lane without `other=` reads: NaN, or an integer nobody means."""
    numpy_dtype = _it._get_np_dtype(dtype)
    if numpy_dtype.kind == "f":
        return np.nan
    if numpy_dtype.kind == "b":
        return True
    if dtype.name == "bf16":
        return 0x7FFF
    if dtype.name.startswith("fp8"):
        return 0x7F
    return int.from_bytes(b"\x5b" * numpy_dtype.itemsize, "little")


def _place() -> Place | None:
    """The line of the kernel that is running, from the Python frames."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_KERNELS):
        if frame.f_code is _launch.__code__:
            return None
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return None
    return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def place_of(error: BaseException) -> Place | None:
    """The kernel's line that raised an error; None if it was raised outside a kernel."""
    found, inside, step = None, False, error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        if code is _launch.__code__:
            found, inside = None, True
        elif code in (_MendedBuilder._tell.__code__, _MendedBuilder.create_dot.__code__):
            return found  # what follows is an observer's
        elif inside and not code.co_filename.startswith(_NOT_KERNELS):
            found = Place(code.co_filename, step.tb_lineno, code.co_name)
        step = step.tb_next
    return found


class _InlineAsm:
    """The result of an inline assembly call, as the core language unpacks it."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def get_result(self, index: int) -> Any:
        return self.handle


def _elementary(name: str) -> Callable[[Any, Any], Any]:
    def create(self: Any, arg: Any) -> Any:
        return _encode(emulation.elementary(name, _operand(arg)), arg.dtype)

    return create


def _extremum(largest: bool, propagate_nan: bool) -> Callable[[Any, Any, Any], Any]:
    def create(self: Any, lhs: Any, rhs: Any) -> Any:
        out = emulation.extremum(_operand(lhs), _operand(rhs), largest, propagate_nan)
        return _encode(out, lhs.dtype)

    return create


def _logical(operands: tuple[Callable[[], Any], ...], method: str, decisive: bool) -> Any:
    """`and`/`or` as the compiler does it: only what is no tensor can end it early."""
    result = value = None
    for operand in operands:
        value = operand()
        if isinstance(value, tl.tensor):
            result = value if result is None else getattr(result, method)(value)
        elif bool(value) is decisive:
            return value
    return value if result is None else result


class _MendedBuilder(_Builder):  # type: ignore[misc]
    """The interpreter's builder with right arithmetic and with checks on memory.

    The interpreter's one builder instance takes on this class inside interpreting(): everything
    that already refers to the instance then sees the mends.
    """

    arguments: tuple[Argument, ...] = ()
    observer: Observer | None = None

    # arithmetic

    def binary_op(self, lhs: Any, rhs: Any, op: Any) -> Any:
        if _narrow(lhs):
            out = op(_operand(lhs), _operand(rhs))
            if out.dtype != np.bool_:
                return _encode(out, lhs.dtype)
        else:
            out = op(lhs.data, rhs.data)
        if out.dtype == np.bool_:
            return _it.TensorHandle(out, tl.int1)
        if out.dtype.itemsize > lhs.data.dtype.itemsize:
            out = out.astype(_it._get_np_dtype(lhs.dtype.scalar))
        return _it.TensorHandle(out, lhs.dtype.scalar)

    def unary_op(self, arg: Any, op: Any) -> Any:
        if _narrow(arg):
            return _encode(op(_operand(arg)), arg.dtype)
        return super().unary_op(arg, op)

    def create_select(self, cond: Any, lhs: Any, rhs: Any) -> Any:
        out = super().create_select(cond, lhs, rhs)
        if isinstance(out.dtype, _ArgumentPointer) and lhs.dtype is not rhs.dtype:
            # Two arguments' pointers in one tensor: any argument may be meant.
            out.dtype = tl.pointer_type(out.dtype.element_ty, out.dtype.address_space)
        return out

    def create_clampf(self, arg: Any, lo: Any, hi: Any, propagate_nans: Any) -> Any:
        keep = propagate_nans == tl.PropagateNan.ALL
        x, low, high = _operand(arg), _operand(lo), _operand(hi)
        lifted = emulation.extremum(x, low, True, keep)
        return _encode(emulation.extremum(lifted, high, False, keep), arg.dtype)

    create_maximumf = _extremum(largest=True, propagate_nan=True)
    create_maxnumf = _extremum(largest=True, propagate_nan=False)
    create_minimumf = _extremum(largest=False, propagate_nan=True)
    create_minnumf = _extremum(largest=False, propagate_nan=False)

    def create_fma(self, x: Any, y: Any, z: Any) -> Any:
        if z.data.dtype.kind == "f":
            return _it.TensorHandle(emulation.fma(x.data, y.data, z.data), z.dtype.scalar)
        if _narrow(z) == "bf16":
            out = emulation.fma_bf16(x.data, y.data, z.data)
            return _it.TensorHandle(out, z.dtype.scalar)
        if _narrow(z):
            _operand(z)  # raises
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
            x, y, c, result = map(_decode, (a, b, d, out))
            precision, program = input_precision.name.lower(), tuple(self.grid_idx)
            self.observer.dot(Dot(x, y, c, result, precision, program, _place()))
        return out

    def _dot(self, a: Any, b: Any, d: Any, input_precision: Any) -> Any:
        if a.data.dtype.kind in "iu" and not _narrow(a):
            return _it.TensorHandle(emulation.dot_int(a.data, b.data, d.data), d.dtype.scalar)
        x, y, c = _decode(a), _decode(b), _decode(d)
        precision = "ieee"
        if x.dtype == np.float64:
            return _encode(np.matmul(x, y) + c, d.dtype)
        if x.dtype == np.float32 and not _narrow(a):
            precision = input_precision.name.lower()
        # 16- and 8-bit operands: exact products, accumulated in float32.
        x, y, c = (v.astype(np.float32, copy=False) for v in (x, y, c))
        return _encode(emulation.dot_f32(x, y, c, precision), d.dtype)

    # `and`, `or`, `not` on tensors, which the compiler applies to every element (see _Rewriter)

    def logical_and(self, *operands: Callable[[], Any]) -> Any:
        return _logical(operands, "logical_and", decisive=False)

    def logical_or(self, *operands: Callable[[], Any]) -> Any:
        return _logical(operands, "logical_or", decisive=True)

    def logical_not(self, value: Any) -> Any:
        return value.__not__() if isinstance(value, tl.tensor) else not value

    # conversions

    def get_bf16(self, value: Any) -> Any:  # missing before Triton 3.9
        return _encode(np.array([value], dtype=np.float64), tl.bfloat16)

    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        target = dst_type.scalar.name
        if _narrow(src) or target == "bf16" or target in emulation.FLOAT8:
            return _encode(_decode(src), dst_type)
        return super().cast_impl(src, dst_type)

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        names = (_narrow(src), dst_type.scalar.name)
        if any(name.startswith("fp8") and name not in emulation.FLOAT8 for name in names):
            return super().create_fp_to_fp(src, dst_type, rounding_mode)
        out = self.cast_impl(src, dst_type)
        if rounding_mode is not None and rounding_mode.name == "RTZ":
            bits = out.data.view(f"u{out.data.dtype.itemsize}")
            larger = np.abs(_decode(out).astype(np.float64)) > np.abs(_decode(src))
            out.data = np.where(larger, bits - 1, bits).astype(bits.dtype).view(out.data.dtype)
        return out

    # memory

    def _program(self) -> str:
        place = _place()
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
        first = int(active[bad].flat[0])
        lanes = np.broadcast_to(mask, pointers.data.shape)
        where = np.flatnonzero(lanes & (pointers.data == np.uint64(first)))[0]
        lane = [int(i) for i in np.unravel_index(where, pointers.data.shape)]
        nearest = min(owners, key=lambda o: max(o.low - first, first - o.high), default=None)
        raise IndexError(
            f"out-of-bounds {verb}{' through ' + name if name else ''} in {self._program()}: "
            f"{int(bad.sum())} of {active.size} active lanes ({lanes.size} in all); "
            f"the first, lane {lane}, is at "
            + (nearest.describe(first) if nearest else f"address {first:#x}")
        )

    def create_masked_load(
        self, ptrs: Any, mask: Any, other: Any, *policy: Any, **named_policy: Any
    ) -> Any:
        if isinstance(mask, np.ndarray):  # block pointers, descriptors: bare before 3.9
            mask = _it.TensorHandle(mask, tl.int1)
        self._check("load", ptrs, mask.data)
        if other is None and not mask.data.all():
            dtype = ptrs.get_element_ty()
            poison = np.full(ptrs.data.shape, _poison(dtype), dtype=_it._get_np_dtype(dtype))
            other = _it.TensorHandle(poison, dtype)
        out = super().create_masked_load(ptrs, mask, other, *policy, **named_policy)
        self._tell("load", "", ptrs, mask.data, out)
        return out

    def _tell(self, verb: Any, operation: str, ptrs: Any, mask: Array, values: Any) -> None:
        """Tell the observer of an access."""
        if self.observer is None:
            return
        argument = getattr(ptrs.dtype, "argument", None)
        mask = np.broadcast_to(mask, ptrs.data.shape)
        dtype, program = ptrs.get_element_ty().name, tuple(self.grid_idx)
        access = Access(
            verb, operation, argument, ptrs.data, mask, values.data, dtype, program, _place()
        )
        self.observer.access(access)

    def create_masked_store(
        self, ptrs: Any, value: Any, mask: Any, *policy: Any, **named_policy: Any
    ) -> Any:
        if isinstance(mask, np.ndarray):
            mask = _it.TensorHandle(mask, tl.int1)
        self._check("store", ptrs, mask.data)
        self._tell("store", "", ptrs, mask.data, value)
        return super().create_masked_store(ptrs, value, mask, *policy, **named_policy)

    def create_atomic_rmw(
        self, rmw_op: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any
    ) -> Any:
        self._check("atomic", ptr, mask.data)
        self._tell("atomic", rmw_op.name.lower(), ptr, mask.data, val)
        return super().create_atomic_rmw(rmw_op, ptr, val, mask, sem, scope)

    def create_atomic_cas(self, ptr: Any, cmp: Any, val: Any, sem: Any, scope: Any) -> Any:
        mask = np.ones(ptr.data.shape, dtype=bool)
        self._check("atomic", ptr, mask)
        self._tell("atomic", "cas", ptr, mask, val)
        return super().create_atomic_cas(ptr, cmp, val, sem, scope)

    # assertions and assembly

    def create_assert(self, condition: Any, message: Any) -> None:
        wrong = int(np.size(condition.data) - np.count_nonzero(condition.data))
        if wrong:
            raise AssertionError(
                f"{message} (device_assert, {wrong} of {np.size(condition.data)} lanes, "
                f"{self._program()})"
            )

    def create_inline_asm(
        self, asm: str, constraints: str, values: Any, types_: Any, is_pure: Any, pack: Any
    ) -> _InlineAsm:
        if re.fullmatch(r"\s*tanh\.approx\.f32\s+\$0\s*,\s*\$1\s*;?\s*", asm):
            tanh = emulation.elementary("tanh", values[0].data)
            return _InlineAsm(_it.TensorHandle(tanh, tl.float32))
        raise NotImplementedError(
            f"inline assembly is not interpreted, only 'tanh.approx.f32 $0, $1;'; got {asm!r}"
        )


# ---- reductions, scans, libdevice: patched into the language, not the builder ----


def _tensor(data: Array, dtype: Any) -> Any:
    """A language-level tensor of raw (stored) data."""
    if data.ndim == 0:
        return tl.tensor(_it.TensorHandle(data.reshape(1), dtype), dtype)
    return tl.tensor(_it.TensorHandle(data, dtype), tl.block_type(dtype, list(data.shape)))


def _combine(combine_fn: Any, left: list[Array], right: list[Array], dtypes: list[Any]) -> Any:
    """combine_fn over whole arrays; the results as raw data of the inputs' dtypes."""
    operands = [_tensor(x, t) for x, t in zip(left + right, dtypes * 2, strict=True)]
    out = combine_fn(*operands)
    out = out if isinstance(out, (tuple, tl.tuple)) else (out,)
    raw = []
    for value, dtype, like in zip(out, dtypes, left, strict=True):
        data = value.handle.data if isinstance(value, tl.tensor) else np.asarray(value)
        raw.append(np.broadcast_to(data, like.shape).astype(_it._get_np_dtype(dtype)))
    return raw


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value


def _is_combine(combine_fn: Any, name: str) -> bool:
    return combine_fn is getattr(tl.standard, name, _MISSING)


def _reduce(input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False, **_: Any) -> Any:
    """tl.reduce: sums, maxima and minima in numpy, anything else as a tree of pairs."""
    inputs = tuple(input) if isinstance(input, (tuple, tl.tuple)) else (input,)
    axis, keep_dims = _plain(axis), _plain(keep_dims)
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
        wide = _operand(inputs[0].handle).reshape(data[0].shape)
        through = np.float32 if wide.dtype == np.float16 else wide.dtype
        data = [_encode(np.sum(wide, axis=axis, dtype=through), dtypes[0]).data]
    elif len(data) == 1 and _is_combine(combine_fn, "_elementwise_max"):
        wide = _operand(inputs[0].handle).reshape(data[0].shape)
        data = [_encode(np.fmax.reduce(wide, axis=axis), dtypes[0]).data]
    elif len(data) == 1 and _is_combine(combine_fn, "_elementwise_min"):
        wide = _operand(inputs[0].handle).reshape(data[0].shape)
        data = [_encode(np.fmin.reduce(wide, axis=axis), dtypes[0]).data]
    else:
        data = [np.moveaxis(x, axis, -1) for x in data]
        while data[0].shape[-1] > 1:  # neighbours pair up: order is kept, as it must be
            left, right = [x[..., 0::2] for x in data], [x[..., 1::2] for x in data]
            data = _combine(combine_fn, left, right, dtypes)
        data = [x[..., 0] for x in data]
    if keep_dims:
        data = [x.reshape(kept) for x in data]
    out = tuple(_tensor(np.asarray(x), t) for x, t in zip(data, dtypes, strict=True))
    return out if isinstance(input, (tuple, tl.tuple)) else out[0]


def _scan(input: Any, axis: Any, combine_fn: Any, reverse: Any = False, **_: Any) -> Any:
    """tl.associative_scan: sums in numpy, anything else by doubling steps."""
    inputs = tuple(input) if isinstance(input, (tuple, tl.tuple)) else (input,)
    axis, dtypes = _plain(axis), [x.dtype for x in inputs]
    data = [np.moveaxis(x.handle.data, axis, -1) for x in inputs]
    if _plain(reverse):
        data = [np.flip(x, axis=-1) for x in data]
    if len(data) == 1 and _is_combine(combine_fn, "_sum_combine"):
        wide = _operand(_it.TensorHandle(data[0], dtypes[0]))
        through = np.float32 if wide.dtype == np.float16 else wide.dtype
        data = [_encode(np.cumsum(wide, axis=-1, dtype=through), dtypes[0]).data]
    else:
        length, step = data[0].shape[-1], 1
        while step < length:
            # Whole blocks every time: a Triton block has a power of two elements.
            earlier = [np.roll(x, step, axis=-1) for x in data]
            joined = _combine(combine_fn, earlier, data, dtypes)
            first = np.arange(length) < step
            data = [np.where(first, old, new) for old, new in zip(data, joined, strict=True)]
            step *= 2
    if _plain(reverse):
        data = [np.flip(x, axis=-1) for x in data]
    data = [np.ascontiguousarray(np.moveaxis(x, -1, axis)) for x in data]
    out = tuple(_tensor(x, t) for x, t in zip(data, dtypes, strict=True))
    return out if isinstance(input, (tuple, tl.tuple)) else out[0]


def _index(self: Any) -> int:
    """tl.tensor.__index__: Triton 3.6's own fails on numpy 2.4 (one-element arrays)."""
    return int(self.handle.data.item())


def _libdevice(name: str) -> Callable[..., Any]:
    """A libdevice function as the interpreter runs it."""

    def call(*arguments: Any, **_: Any) -> Any:
        tensors = [_it.interpreter_semantic.to_tensor(x) for x in arguments]
        dtype = max((t.dtype for t in tensors), key=lambda t: t.primitive_bitwidth)
        if dtype.name not in ("fp32", "fp64"):
            raise TypeError(f"libdevice.{name} takes float32 or float64, got {dtype}")
        wide = [x.astype(_it._get_np_dtype(dtype)) for x in (_decode(t.handle) for t in tensors)]
        if name in emulation.PREDICATES:
            out, dtype = emulation.PREDICATES[name](*wide), tl.int1
        elif name in ("fma", "fma_rn"):
            out = emulation.fma(*np.broadcast_arrays(*wide))
        elif name in emulation.FUNCTIONS:
            out = emulation.elementary(name, *wide)
        else:
            raise NotImplementedError(f"libdevice.{name} is not emulated in the interpreter")
        if any(t.type.is_block() for t in tensors):
            return _tensor(np.asarray(out), dtype)
        return tl.tensor(_it.TensorHandle(np.asarray(out), dtype), dtype)

    return call


# ---- rewriting kernels ----


class _Logic(ast.NodeTransformer):
    """Sends `and`, `or` and `not` through the builder: Python's own take a tensor for true."""

    def _call(self, node: ast.expr, method: str, operands: list[ast.expr]) -> ast.expr:
        builder = ast.Attribute(ast.Name("interpreter_semantic", ast.Load()), "builder", ast.Load())
        call = ast.Call(ast.Attribute(builder, method, ast.Load()), operands, [])
        return ast.fix_missing_locations(ast.copy_location(call, node))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        if any(isinstance(n, ast.NamedExpr) for n in ast.walk(node)):
            return node  # its name would end up in the lambda's scope
        none = ast.arguments([], [], None, [], [], None, [])
        method = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
        return self._call(node, method, [ast.Lambda(none, value) for value in node.values])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not):
            return self._call(node, "logical_not", [node.operand])
        return node


class _Rewriter(_FunctionRewriter):  # type: ignore[misc]
    """Triton's rewriter, with tensor logic and without leaving `np`, `ast`, … in the module."""

    def _compile_and_exec(self, tree: Any) -> Any:
        module = self.fn.__globals__
        before = set(module)
        rewritten = super()._compile_and_exec(_Logic().visit(tree))
        needed = _names(rewritten.__code__) - _names(self.fn.__code__)
        for name in set(module) - before - needed:
            del module[name]
        return rewritten


def _names(code: types.CodeType) -> set[str]:
    inner = (_names(c) for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*inner)


@functools.cache
def _rewrite(fn: Callable[..., Any]) -> Callable[..., Any]:
    rewritten: Callable[..., Any] = _Rewriter(fn).rewrite_ast()
    return rewritten


# ---- launching ----


@dataclasses.dataclass
class _Parameters:
    """What a launch must know of a kernel's signature."""

    signature: inspect.Signature
    constexprs: frozenset[str]
    scalars: dict[str, Any]  # parameter -> its annotated scalar type


@functools.cache
def _parameters(fn: Callable[..., Any]) -> _Parameters:
    signature = inspect.signature(fn)
    constexprs, scalars = [], {}
    for name, parameter in signature.parameters.items():
        if parameter.annotation is inspect.Parameter.empty:
            continue
        annotation = parameter.annotation
        text = annotation if isinstance(annotation, str) else str(annotation)
        if "constexpr" in text or getattr(annotation, "__name__", "") == "constexpr":
            constexprs.append(name)
            continue
        short = triton.runtime.jit._normalize_ty(annotation)
        if re.fullmatch(r"i\d+|u\d+|fp16|bf16|fp32|fp64", short):
            scalars[name] = tl.str_to_ty("i1" if short == "u1" else short, None)
    return _Parameters(signature, frozenset(constexprs), scalars)


def _convert(name: str, value: Any, scalar_type: Any, arguments: list[Argument]) -> Any:
    """A launch argument as the kernel sees it; tensors are noted in `arguments`."""
    if isinstance(value, tuple):
        parts = [_convert(f"{name}[{i}]", v, None, arguments) for i, v in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if hasattr(value, "block_shape") and hasattr(value, "base"):  # TensorDescriptor
        descriptor = _it._implicit_cvt(value)
        _remember(descriptor.handle.base, name, value.base, arguments)
        return descriptor
    if hasattr(value, "data_ptr"):
        pointer = _it._implicit_cvt(value)
        _remember(pointer.handle, name, value, arguments)
        return pointer
    if scalar_type is None and isinstance(value, bool):
        scalar_type = tl.int1
    if scalar_type is None and isinstance(value, float):
        scalar_type = tl.float32  # what the compiler makes of a Python float
    if scalar_type is not None and isinstance(value, (bool, int, float)):
        with np.errstate(over="ignore"):  # 1e300 is inf in float32
            return tl.tensor(_encode(np.array([value]), scalar_type), scalar_type)
    return _it._implicit_cvt(value)


def _remember(handle: Any, name: str, tensor: Any, arguments: list[Argument]) -> None:
    argument = Argument(name, tensor)
    arguments.append(argument)
    old = handle.dtype
    handle.dtype = _ArgumentPointer(old.element_ty, old.address_space, old.const)
    handle.dtype.argument = argument


def _tensors(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield from _tensors(value)
        elif hasattr(value, "block_shape") and hasattr(value, "base"):
            yield value.base
        elif hasattr(value, "data_ptr"):
            yield value


def _launch(function: Any, args: Any, kwargs: dict[str, Any], grid: Any) -> None:
    """Run every program of a launch, in order."""
    parameters = _parameters(function.fn)
    names = parameters.signature.parameters
    bound = parameters.signature.bind(*args, **{k: v for k, v in kwargs.items() if k in names})
    bound.apply_defaults()
    values = dict(bound.arguments)
    kernel = _rewrite(function.fn)
    given, host, transfer = list(values.values()), list(values.values()), None
    if any(t.device.type != "cpu" for t in _tensors(given)):
        transfer = _it.GridExecutor(kernel, list(values), grid)
        host, _ = transfer._init_args_hst(given, {})
        values = dict(zip(values, host, strict=True))
    for hook in function.pre_run_hooks:
        hook(**values)
    if callable(grid):
        grid = grid(values)
    sizes = [operator.index(_plain(n)) for n in (*grid, 1, 1, 1)[: max(3, len(grid))]]

    arguments: list[Argument] = []
    converted = {
        name: value
        if name in parameters.constexprs
        else _convert(name, value, parameters.scalars.get(name), arguments)
        for name, value in values.items()
    }
    builder = _it.interpreter_builder
    builder.arguments = tuple(arguments)
    builder.set_grid_dim(*sizes)
    observer = builder.observer
    if observer is not None:
        observer.launch(Launch(function.fn.__name__, tuple(sizes), builder.arguments))
    with np.errstate(all="ignore"):
        for x in range(sizes[0]):
            for y in range(sizes[1]):
                for z in range(sizes[2]):
                    if observer is not None and not observer.wants((x, y, z)):
                        continue
                    builder.set_grid_idx(x, y, z)
                    try:
                        kernel(**converted)
                    except Exception as error:
                        error.add_note(f"in program {(x, y, z)} of kernel {function.fn.__name__}")
                        raise
    if transfer is not None:
        transfer._restore_args_dev(given, host, {}, {})


def _run_jit(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    if not warmup:
        _launch(self, args, kwargs, grid)


def _call_jit(self: Any, *args: Any, **kwargs: Any) -> Any:
    return _rewrite(self.fn)(*args, **kwargs)


def _run_autotuner(self: Any, *args: Any, **kwargs: Any) -> Any:
    """The first configuration that pruning leaves: nothing is timed, no driver is asked."""
    named = dict(zip(self.arg_names, args, strict=False))
    configs = self.configs
    if self.early_config_prune:
        configs = self.early_config_prune(configs, named, **kwargs)
    config = configs[0]
    if config.pre_hook is not None:
        config.pre_hook({**named, **kwargs, **config.all_kwargs()})
    return self.fn.run(*args, **kwargs, **config.all_kwargs())


# ---- patching ----


class _Patches:
    """Attribute changes that can be undone exactly; has the shape of Triton's own scope."""

    def __init__(self) -> None:
        self._changes: list[tuple[Any, str, Any, Any]] = []

    def set_attr(self, target: Any, name: str, value: Any) -> None:
        self._changes.append((target, name, vars(target).get(name, _MISSING), value))
        setattr(target, name, value)

    def restore(self) -> None:
        while self._changes:
            target, name, old, _ = self._changes.pop()
            if old is _MISSING:
                delattr(target, name)
            else:
                setattr(target, name, old)

    def values(self) -> list[tuple[Any, str, Any]]:
        return [(target, name, value) for target, name, _, value in self._changes]


@functools.cache
def _language_patches() -> list[tuple[Any, str, Any]]:
    """Every patch on triton.language: Triton's own, once recorded, then ours on top."""
    patches, scope = _Patches(), _it._LangPatchScope
    try:
        _it._LangPatchScope = lambda: patches
        _it._patch_lang(types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
        recorded = patches.values()
    finally:
        _it._LangPatchScope = scope
        patches.restore()
    for module in (tl, tl.core):
        recorded += [(module, "reduce", _reduce), (module, "associative_scan", _scan)]
    recorded.append((tl.tensor, "__index__", _index))
    for path in ("triton.language.extra.libdevice", "triton.language.extra.cuda.libdevice"):
        libdevice = importlib.import_module(path)
        for name, member in vars(libdevice).items():
            if inspect.isfunction(member) and not name.startswith("_"):
                recorded.append((libdevice, name, _libdevice(name)))
    return recorded


def _apply(patches: _Patches) -> None:
    for target, name, value in _language_patches():
        patches.set_attr(target, name, value)
    # The language is patched for the whole context: no need to do it again at every call.
    patches.set_attr(_it, "_patch_lang", lambda fn: _Patches())
    patches.set_attr(_it, "InterpreterBuilder", _MendedBuilder)  # 3.6 makes one per descriptor
    for kind in (JITFunction, _it.InterpretedFunction):
        patches.set_attr(kind, "run", _run_jit)
        patches.set_attr(kind, "__call__", _call_jit)
    patches.set_attr(Autotuner, "run", _run_autotuner)


@contextlib.contextmanager
def _mended_builder() -> Iterator[None]:
    builder = _it.interpreter_builder
    kind, state = type(builder), dict(vars(builder))
    builder.__class__ = _MendedBuilder
    builder.options = dataclasses.replace(
        builder.options,
        debug=True,  # device_assert does nothing otherwise
        sanitize_overflow=False,  # integers wrap, as on the GPU
        allowed_dot_input_precisions=_DOT_PRECISIONS,
    )
    try:
        yield
    finally:
        builder.__class__ = kind
        vars(builder).clear()
        vars(builder).update(state)


# ---- the public face ----

_lock = threading.RLock()
_owner: int | None = None


def active() -> bool:
    """Whether this thread is inside interpreting()."""
    return _owner == threading.get_ident()


def made_interpreted(kernel: Any) -> bool:
    """Whether a kernel was decorated under TRITON_INTERPRET=1: it can only be interpreted."""
    while hasattr(kernel, "configs") or hasattr(kernel, "values"):  # Autotuner, Heuristics
        kernel = kernel.fn
    return isinstance(kernel, getattr(_it, "InterpretedFunction", ()))


@contextlib.contextmanager
def interpreting(observer: Observer | None = None) -> Iterator[None]:
    """Inside: kernel[grid](...) runs in the mended interpreter, however the kernel was made.

    That is JITFunction or (TRITON_INTERPRET=1 at import) InterpretedFunction, bare or inside
    Heuristics or Autotuner, of which the first configuration runs. Re-entrant. The interpreter
    is one per process, so a lock makes other threads wait; nothing can be compiled meanwhile.

    ``observer`` is told of every launch, access and dot, and chooses the programs that run. Entered
    again without an observer, the outer one stays: a launch inside may enter for itself.
    """
    global _owner
    with _lock:
        if _owner is not None:
            builder = _it.interpreter_builder
            outer = builder.observer
            builder.observer = outer if observer is None else observer
            try:
                yield
            finally:
                builder.observer = outer
            return
        if missing := _missing_names():
            raise RuntimeError(
                f"this Triton ({triton.__version__}) cannot be mended:\n" + "\n".join(missing)
            )
        patches = _Patches()
        try:
            _apply(patches)
            with _mended_builder():
                _it.interpreter_builder.observer = observer
                _owner = threading.get_ident()
                yield
        finally:
            _owner = None
            patches.restore()


# ---- self-test ----

_ESSENTIAL = {
    "FunctionRewriter": ("rewrite_ast", "_compile_and_exec"),
    "GridExecutor": ("_init_args_hst", "_restore_args_dev"),
    "InterpretedFunction": ("run", "__call__"),
    "InterpreterBuilder": ("set_grid_dim", "set_grid_idx"),
    "TensorHandle": ("get_element_ty",),
    "_LangPatchScope": (),
    "_get_np_dtype": (),
    "_implicit_cvt": (),
    "_patch_lang": (),
    "interpreter_builder": ("options", "codegen_fns"),
    "interpreter_semantic": ("to_tensor",),
}
# Ours alone, or supplied where the base has none.
_OPTIONAL = {"get_bf16", "logical_and", "logical_or", "logical_not"}


@functools.cache
def _missing_names() -> list[str]:
    """Names that interpreting() cannot do without and this Triton lacks."""
    if _it is None:
        return ["triton.runtime.interpreter cannot be imported"]
    broken = []
    for name, members in _ESSENTIAL.items():
        if not hasattr(_it, name):
            broken.append(f"triton.runtime.interpreter.{name} is gone")
            continue
        for member in members:
            if not hasattr(getattr(_it, name), member):
                broken.append(f"{name}.{member} is gone")
    if not hasattr(triton.runtime.jit, "_normalize_ty"):
        broken.append("triton.runtime.jit._normalize_ty is gone")
    for kind, member in ((JITFunction, "run"), (JITFunction, "__call__"), (Autotuner, "run")):
        if not hasattr(kind, member):
            broken.append(f"{kind.__name__}.{member} is gone")
    return broken


def _positional(function: Any) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in _signature(function) if p.kind in kinds]


@triton.jit
def _probe(x_ptr, y_ptr, out_ptr, n, alpha, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0)
    tl.device_assert(tl.sum(mask.to(tl.int32)) > 0, "a program without work")
    tl.store(out_ptr + offsets, tl.fma(x, alpha.to(x.dtype), y), mask=mask)


def _run_probe() -> str:
    """A small bfloat16 kernel, end to end; what is wrong with it, or ""."""
    x = torch.tensor([1.0, 257.0, -3.0, 2.0**-133, 5.0], dtype=torch.bfloat16)
    y = torch.tensor([2.0**-8, 1.0, 0.5, 0.0, float("nan")], dtype=torch.bfloat16)
    want = (x.double() * 3.0 + y.double()).to(torch.bfloat16)
    out = torch.zeros_like(x)
    with interpreting():
        _probe[(2,)](x, y, out, 5, 3.0, BLOCK=4)
        if not torch.equal(out.nan_to_num(), want.nan_to_num()):
            return f"a bfloat16 kernel gives {out.tolist()} instead of {want.tolist()}"
        try:
            _probe[(2,)](x, y, out[:4], 5, 3.0, BLOCK=4)
        except IndexError as error:
            if "out_ptr" in str(error):
                return ""
        return "an out-of-bounds store was not found, or not laid to its argument"


def self_test() -> list[str]:
    """One sentence for every private assumption that does not hold; empty when all do."""
    broken = list(_missing_names())
    if broken:
        return broken
    for name, ours in vars(_MendedBuilder).items():
        if not callable(ours) or name.startswith("_") or name in _OPTIONAL:
            continue
        theirs = getattr(_Builder, name, None)
        if theirs is None:
            broken.append(f"InterpreterBuilder.{name} is gone: its mend is never called")
            continue
        variadic = any(p.kind is p.VAR_POSITIONAL for p in _signature(ours))
        wanted, have = _positional(ours), _positional(theirs)
        if len(have) != len(wanted) and not (variadic and len(have) >= len(wanted)):
            broken.append(f"InterpreterBuilder.{name} takes {have}, not {wanted}")
    options = {field.name for field in dataclasses.fields(_it.InterpreterOptions)}
    for name in ("debug", "sanitize_overflow", "allowed_dot_input_precisions"):
        if name not in options:
            broken.append(f"InterpreterOptions.{name} is gone")
    for name in ("_sum_combine", "_elementwise_max", "_elementwise_min"):
        if not hasattr(tl.standard, name):
            broken.append(f"triton.language.standard.{name} is gone: reductions run slowly")
    if not broken:
        try:
            problem = _run_probe()
        except Exception as error:  # noqa: BLE001 (whatever it is, it is the finding)
            problem = f"a small kernel fails with {error!r}"
        broken += [problem] if problem else []
    return broken


def _signature(function: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())
