"""From a tensor to a launcher in a shared library: the C ABI of the CUDA side.

A CUDA tensor goes to the library that nvcc built, on the tensor's device and torch's current
stream there; a CPU tensor goes to the same source built for the host.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cuda_reference import _activations, _memory

MAX_DIMS = 64

# In the order of enum DType in csrc/elementwise.cuh.
DTYPE_CODE = {
    dtype: code
    for code, dtype in enumerate(
        (
            torch.float16,
            torch.bfloat16,
            torch.float32,
            torch.float64,
            torch.uint8,
            torch.int8,
            torch.int16,
            torch.int32,
            torch.int64,
        )
    )
}


class CTensor(ctypes.Structure):
    """struct Tensor of csrc/elementwise.cuh."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("size", ctypes.c_longlong * MAX_DIMS),
        ("stride", ctypes.c_longlong * MAX_DIMS),
    ]


class CScalar(ctypes.Structure):
    """struct Scalar of csrc/elementwise.cuh."""

    _fields_ = [("real", ctypes.c_double), ("integer", ctypes.c_longlong)]


def address(t: Tensor) -> int:
    """That of ``t``'s first element. Arguments and results were found to have memory; a view that
    was made of them inside of a mode, such as FakeTensorMode, may have none."""
    return _memory.check_memory("cuda_reference", "a view of an argument", t).data_ptr()


def tensor(t: Tensor) -> Any:
    """``t`` as a pointer argument of a launcher."""
    return _described(address(t), t.dtype, t.shape, t.stride())


def row(t: Tensor) -> Any:
    """A contiguous argument or result as one dimension."""
    return _described(t.data_ptr(), t.dtype, (t.numel(),), (1,))


def _described(
    data: int, dtype: torch.dtype, sizes: tuple[int, ...], strides: tuple[int, ...]
) -> Any:
    c = CTensor(data, DTYPE_CODE[dtype], len(sizes))
    c.size[: len(sizes)] = sizes
    c.stride[: len(sizes)] = strides
    return ctypes.byref(c)


def pointer(t: Tensor | None) -> ctypes.c_void_p:
    """The address of ``t``'s first element, null for None."""
    return ctypes.c_void_p(None if t is None else address(t))


def scalar(value: int | float) -> CScalar:
    """A Python number; integers beyond 64 bits wrap."""
    integer = value if isinstance(value, int) else 0
    return CScalar(float(value), ctypes.c_longlong(integer & (2**64 - 1)).value)


class Noted(NamedTuple):
    """A launch that succeeded, with the arguments that it had."""

    library: Any  # a ctypes.CDLL, or what has a launcher and crosscheck_error_string as one
    symbol: str
    told: Mapping[str, Any]
    arguments: tuple[Any, ...]

    def shapes(self) -> str:
        """What errors tell of it."""
        return ", ".join(
            f"{name} {list(value.shape) if isinstance(value, Tensor) else value}"
            for name, value in self.told.items()
        )


class _Notes(threading.local):
    launches: list[Noted] | None = None


_NOTES = _Notes()


@contextlib.contextmanager
def noting() -> Iterator[list[Noted]]:
    """The launches of this thread in here."""
    before, _NOTES.launches = _NOTES.launches, []
    try:
        yield _NOTES.launches
    finally:
        _NOTES.launches = before


def launch(
    stem: str,
    symbol: str,
    told: Mapping[str, Any],
    written: tuple[Tensor, ...],
    *arguments: Any,
    act: str = "none",
) -> None:
    """Call ``symbol`` of csrc/<stem>.cu with ``arguments`` and the current stream of the device of
    the tensors that are ``written``; in a library that has the activation ``act``.

    Raises:
        RuntimeError: the launch failed; the text has the variant, the shapes or values of what is
            ``told``, and CUDA's own words.
    """
    device = written[0].device
    on_gpu = device.type == "cuda"
    elsewhere = on_gpu and device.index != torch._C._cuda_getDevice()
    with torch.cuda.device(device) if elsewhere else _HERE:  # the guard alone takes microseconds
        library = _activations.library(stem, act, "cuda" if on_gpu else "host")
        stream = current_stream(device.index) if on_gpu else None
        call(library, symbol, told, written, arguments, ctypes.c_void_p(stream))


def call(
    library: Any,
    symbol: str,
    told: Mapping[str, Any],
    written: tuple[Tensor, ...],
    arguments: tuple[Any, ...],
    stream: ctypes.c_void_p,
) -> None:
    """The same of a library, or what stands for one, and a stream of the current device."""
    count_up(written)
    status = getattr(library, symbol)(*arguments, stream)
    if status:
        noted = Noted(library, symbol, told, arguments)
        raise failure(library, status, symbol, noted.shapes())
    if (launches := _NOTES.launches) is not None:
        launches.append(Noted(library, symbol, told, arguments))


_HERE = contextlib.nullcontext()
# The address of a device's stream; not in a torch without CUDA, where nobody asks.
current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def count_up(written: Sequence[Tensor]) -> None:
    """Count up the versions of tensors that a launch is about to write, so that autograd notices
    if it has saved one of them. Inference tensors have no version; nothing can save them."""
    torch.autograd.graph.increment_version(written)


def failure(library: Any, status: int, symbol: str, shapes: str) -> RuntimeError:
    """The error for a launcher of ``library`` that returned ``status``, in CUDA's own words."""
    words = library.crosscheck_error_string(status).decode()
    return RuntimeError(f"{symbol}() on {shapes}: launch failed: {words}")
