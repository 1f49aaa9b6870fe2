"""Values in the interpreter: handles with raw data, and the numbers that they represent."""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np
import triton.language as tl

from triton_kernels.interpreter import emulation
from triton_kernels.interpreter.emulation import Array
from triton_kernels.interpreter.memory import Argument

upstream: Any
try:
    upstream = importlib.import_module("triton.runtime.interpreter")
except ImportError:  # self_test() reports it when the interpreter is used
    upstream = None

MISSING: Any = object()


_numpy_dtypes: dict[str, np.dtype[Any]] = {}


def numpy_dtype_by_name(upstreams: Any) -> Any:
    """Triton's mapping to numpy dtypes, cached; Triton builds its table for every value."""

    def numpy_dtype(dtype: Any) -> np.dtype[Any]:
        name = dtype.scalar.name
        if name not in _numpy_dtypes:
            _numpy_dtypes[name] = upstreams(dtype)
        return _numpy_dtypes[name]

    return numpy_dtype


class ArgumentPointer(tl.pointer_type):  # type: ignore[misc]
    """A pointer type with the argument that it came from.

    The interpreter passes a handle's dtype through every pointer operation, so the type is the
    cheapest place for the argument.
    """

    argument: Argument


def narrow(handle: Any) -> str:
    """ "bf16" or "fp8…" if the handle holds bits of such a type, else ""."""
    if handle.data.dtype.kind != "u":
        return ""
    name: str = handle.dtype.scalar.name
    return name if name == "bf16" or name.startswith("fp8") else ""


def decode(handle: Any) -> Array:
    """A handle's numbers in a dtype with which numpy computes."""
    return emulation.decoded(np.asarray(handle.data), narrow(handle))


def operand(handle: Any) -> Array:
    """As decode, for arithmetic, which float8 does not have."""
    if narrow(handle).startswith("fp8"):
        raise TypeError(f"no arithmetic in {handle.dtype.scalar}: cast to float32 first")
    return decode(handle)


def encode(data: Array, dtype: Any) -> Any:
    """Numbers as a handle of a Triton dtype, rounded once to nearest even."""
    dtype = dtype.scalar
    data = np.asarray(data)
    if dtype.name == "bf16":
        data = emulation.to_bf16(data)
    elif dtype.name in emulation.FLOAT8:
        data = emulation.FLOAT8[dtype.name].encode(data)
    else:
        data = data.astype(upstream._get_np_dtype(dtype), copy=False)
    return upstream.TensorHandle(data, dtype)


def poison(dtype: Any) -> Any:
    """The value that a masked lane without `other=` loads: NaN, or an implausible integer. With
    CROSSCHECK_MASKED_LOADS=zero it is 0, as often on NVIDIA's GPUs."""
    numpy_dtype = upstream._get_np_dtype(dtype)
    if os.environ.get("CROSSCHECK_MASKED_LOADS") == "zero":
        return 0
    if numpy_dtype.kind == "f":
        return np.nan
    if numpy_dtype.kind == "b":
        return True
    if dtype.name == "bf16":
        return 0x7FFF
    if dtype.name.startswith("fp8"):
        return 0x7F
    return int.from_bytes(b"\x5b" * numpy_dtype.itemsize, "little")


def plain(value: Any) -> Any:
    """A constexpr's value; other values unchanged."""
    return value.value if isinstance(value, tl.constexpr) else value


def in_lane(value: Any, lane: tuple[int, ...], shape: tuple[int, ...]) -> str | None:
    """The text of a kernel's variable in a lane of a tile.

    None for pointers, and for anything but one number or a tile that broadcasts to that shape.
    """
    if isinstance(value, (bool, int, float)):
        return f"{value:.6g}" if isinstance(value, float) else str(value)
    if not isinstance(value, tl.tensor) or value.dtype.is_ptr():
        return None
    data = np.asarray(value.handle.data)
    if data.size == 1:
        at: tuple[int, ...] = (0,) * data.ndim
    elif data.ndim == len(shape) and all(n in (1, m) for n, m in zip(data.shape, shape)):
        at = tuple(i if n > 1 else 0 for i, n in zip(lane, data.shape))
    else:
        return None
    number = decode(value.handle)[at].item()
    return f"{number:.6g}" if isinstance(number, float) else str(number)
