"""Named ranges in profiles for every call of an op and for each of its launches.

When it is off, calls take no longer than without this module. When it is on, each call of an op is
in a range of ``torch.profiler.record_function`` and, with a GPU, of NVTX::

    triton_kernels.add(float16[1024, 1024], float16[1024], alpha=2)
      flat_kernel (512, 1, 1) BLOCK=2048 num_warps=4

``TRITON_KERNELS_PROFILE=1``, set before this package is imported, turns it on permanently.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from triton_kernels._launch import Launch
from triton_kernels._operator import Operator

_lock = threading.Lock()
_times = 0  # how often it is turned on at present
_call: Callable[..., Any] = Operator.__call__
_launch: Callable[..., Any] = Launch.__call__


@contextlib.contextmanager
def annotate() -> Iterator[None]:
    """Inside this context calls of the ops are in named ranges, in all threads. Calls that
    torch.compile traces are not: there the profiler shows the compiled code.

    Example:
        >>> with annotate(), torch.profiler.profile() as profile:
        ...     model(x)
    """
    start()
    try:
        yield
    finally:
        _stop()


def start() -> None:
    """Turn the ranges on."""
    global _times, _call, _launch
    with _lock:
        if not _times:
            _call, _launch = Operator.__call__, Launch.__call__
            Operator.__call__ = _annotated_call  # type: ignore[method-assign]
            Launch.__call__ = _annotated_launch  # type: ignore[method-assign]
        _times += 1


def _stop() -> None:
    global _times
    with _lock:
        _times -= 1
        if not _times:
            Operator.__call__ = _call  # type: ignore[method-assign]
            Launch.__call__ = _launch  # type: ignore[method-assign]


def _annotated_call(self: Operator, *args: Any, out: Tensor | None = None) -> Any:
    if torch.compiler.is_compiling():
        return _call(self, *args, out=out)
    with _range(f"triton_kernels.{self.name}({', '.join(map(_told, args))})"):
        return _call(self, *args, out=out)


def _annotated_launch(
    self: Launch, device: torch.device, *args: Any, grid: tuple[int, int, int] | None = None
) -> None:
    shown = {name: value for name, value in self.meta.items() if type(value) in (int, bool)}
    words = [
        self.kernel.fn.__name__,
        str(grid or self.grid),
        *(f"{k}={v}" for k, v in shown.items()),
    ]
    with _range(" ".join(words)):
        _launch(self, device, *args, grid=grid)


@contextlib.contextmanager
def _range(name: str) -> Iterator[None]:
    nvtx = torch.cuda.is_available()
    if nvtx:
        torch.cuda.nvtx.range_push(name)
    try:
        with torch.profiler.record_function(name):
            yield
    finally:
        if nvtx:
            torch.cuda.nvtx.range_pop()


def _told(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return str(value)
