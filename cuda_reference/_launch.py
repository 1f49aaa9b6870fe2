"""Calls launchers in shared libraries: the C ABI of the CUDA side.

With CUDA tensors a call uses the library built by nvcc, on the tensors' device and torch's current
stream there. With CPU tensors it uses the same source built for the host.
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


# The bytes of a structure where a long long is one of the numbers of a call's form, and the
# number's name (_forms.py).
Marks = Sequence[tuple[int, str]]


class CTensor(ctypes.Structure):
    """struct Tensor of csrc/elementwise.cuh. Without marks its sizes are no numbers of a form."""

    marks: Marks | None = None
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
    """The address of ``t``'s first element. It is checked again, because a view of a checked tensor
    may have no memory if it was made inside a mode such as FakeTensorMode."""
    return _memory.check_memory("cuda_reference", "a view of an argument", t).data_ptr()


def tensor(t: Tensor) -> Any:
    """``t`` as a ``const Tensor*`` argument of a launcher."""
    return described(address(t), t.dtype, t.shape, t.stride())


def described(
    data: int,
    dtype: torch.dtype,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    marks: Marks | None = None,
) -> Any:
    """A tensor of this address, layout and dtype as an argument of a launcher."""
    c = CTensor(data, DTYPE_CODE[dtype], len(sizes))
    c.size[: len(sizes)] = sizes
    c.stride[: len(sizes)] = strides
    c.marks = marks
    return ctypes.byref(c)


def pointer(t: Tensor | None) -> ctypes.c_void_p:
    """The address of ``t``'s first element, null for None."""
    return ctypes.c_void_p(None if t is None else address(t))


def scalar(value: int | float) -> CScalar:
    """A Python number as an argument. Integers of more than 64 bits wrap."""
    integer = value if isinstance(value, int) else 0
    return CScalar(float(value), ctypes.c_longlong(integer & (2**64 - 1)).value)


class Workspace(ctypes.c_void_p):
    """Memory that a launch needs beside its tensors, as an argument of the launcher. It has an
    address only inside of ``with``, in memory of torch's allocator. After the launch that memory is
    returned at once, which is safe: its next user is on the same stream."""

    def __init__(self, floats: int, device: torch.device) -> None:
        super().__init__()
        self._floats, self._device = floats, device
        self._memory: Tensor | None = None

    def __enter__(self) -> None:
        self._memory = torch.empty(self._floats, dtype=torch.float32, device=self._device)
        self.value = address(self._memory)

    def __exit__(self, *_: object) -> None:
        self._memory = self.value = None


class Noted(NamedTuple):
    """A successful launch with its arguments; ``told`` are values for errors."""

    library: Any  # a ctypes.CDLL, or an object with a launcher and crosscheck_error_string
    symbol: str
    told: Mapping[str, Any]
    arguments: tuple[Any, ...]


class _Notes(threading.local):
    launches: list[Noted] | None = None


_NOTES = _Notes()


@contextlib.contextmanager
def noting() -> Iterator[list[Noted]]:
    """A list that collects this thread's launches inside the context."""
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
    part: str | None = None,
) -> None:
    """Call the launcher ``symbol`` of csrc/<stem>.cu on the current stream of its device.

    Args:
        told: name → value, for errors.
        written: the tensors that it writes, which determine the device.
        arguments: its arguments, without the stream.
        act: an activation that the library must have.
        part: the part of the source that has the launcher's kernels (_build.py).

    Raises:
        RuntimeError: the launch failed. The text has the launcher's name, the shapes or values of
            ``told``, and CUDA's message.
    """
    device = written[0].device
    on_gpu = device.type == "cuda"
    elsewhere = on_gpu and device.index != torch._C._cuda_getDevice()
    with torch.cuda.device(device) if elsewhere else _HERE:  # the guard alone takes microseconds
        library = _activations.library(stem, act, "cuda" if on_gpu else "host", part)
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
    """The same with a given library, or an object like one, and a stream of the current device."""
    count_up(written)
    status = getattr(library, symbol)(*arguments, stream)
    if status:
        raise failure(library, status, symbol, shapes(told))
    if (launches := _NOTES.launches) is not None:
        launches.append(Noted(library, symbol, told, arguments))


_HERE = contextlib.nullcontext()
# The address of a device's stream; None in a torch without CUDA, where it is never called.
current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def count_up(written: Sequence[Tensor]) -> None:
    """Increment the versions of tensors that a launch is about to write, so that autograd notices
    if it has saved one of them. Inference tensors have no version, but cannot be saved either."""
    torch.autograd.graph.increment_version(written)


def shapes(told: Mapping[str, Any]) -> str:
    """The shapes of tensors, and other values, for errors."""
    return ", ".join(
        f"{name} {list(value.shape) if isinstance(value, Tensor) else value}"
        for name, value in told.items()
    )


def failure(library: Any, status: int, symbol: str, shapes: str) -> RuntimeError:
    """The error for a launcher of ``library`` that returned ``status``, with CUDA's message."""
    words = library.crosscheck_error_string(status).decode()
    return RuntimeError(f"{symbol}() on {shapes}: launch failed: {words}")
