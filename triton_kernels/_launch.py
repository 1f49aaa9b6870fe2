"""The launch path: which way a kernel runs, on which device.

CUDA tensors run compiled on their own device; inside :func:`interpret`, or with
``TRITON_INTERPRET=1`` set before import, kernels run in Triton's interpreter, mended by
:mod:`triton_kernels._interpreter`, and then CPU tensors are welcome too. Inside
:func:`triton_kernels._cross_compile.compiling` they are compiled only.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton

from triton_kernels import _cross_compile, _interpreter


@contextlib.contextmanager
def interpret() -> Iterator[None]:
    """Inside this context every Triton kernel runs in Triton's interpreter, on any machine.

    Works in a process that also runs compiled kernels, for this package's kernels and for any
    other ``@triton.jit`` kernel, on CPU tensors (CUDA tensors are copied to the host and back).
    The interpreter is Triton's own, mended where it is silently wrong: bfloat16 arithmetic and
    rounding, fused multiply-add, ``input_precision``, libdevice, ``device_assert``; an access
    outside its tensor raises IndexError, a masked-off lane loaded without ``other=`` reads NaN.

    Example:
        >>> with triton_kernels.interpret():
        ...     triton_kernels.square(torch.tensor([1.0, 2.0, 3.0]))
        tensor([1., 4., 9.])
    """
    with _interpreter.interpreting():
        yield


def interpreted(kernel: Any) -> bool:
    """Whether a launch of ``kernel`` would be interpreted now."""
    if _interpreter.active():
        return True
    return type(kernel) is not triton.JITFunction and _interpreter.made_interpreted(kernel)


def check_device(op: str, device: torch.device, kernel: Any) -> None:
    """Refuse a device that ``kernel`` cannot run on as things stand."""
    if device.type == "cuda" or (device.type == "cpu" and interpreted(kernel)):
        return
    if _cross_compile.active():
        return
    if device.type == "cpu":
        raise RuntimeError(
            f"{op}(): got CPU tensors, but Triton compiles for GPUs only. To run the kernel in "
            "Triton's interpreter, call it inside `with triton_kernels.interpret():`, or set "
            "TRITON_INTERPRET=1 before Python starts; otherwise move the tensors to 'cuda'"
        )
    raise RuntimeError(f"{op}(): device {device} is not supported; tensors must be on cuda or cpu")


class Gpu(NamedTuple):
    """What a kernel is chosen by: compute capability (90 for 9.0) and multiprocessors."""

    capability: int
    multiprocessors: int


# What is interpreted or cross-compiled is cut as on this one, an H200, whatever runs it.
MULTIPROCESSORS = 132


def gpu(kernel: Any, device: torch.device) -> Gpu:
    """The GPU that a launch of ``kernel`` would run on, or is made for."""
    if _cross_compile.active():
        return Gpu(_cross_compile.capability(), MULTIPROCESSORS)
    if interpreted(kernel):
        return Gpu(90, MULTIPROCESSORS)
    return _gpu(device)


@functools.cache
def _gpu(device: torch.device) -> Gpu:
    found = torch.cuda.get_device_properties(device)
    return Gpu(10 * found.major + found.minor, found.multi_processor_count)


def launch(
    kernel: Any, grid: tuple[int, ...], device: torch.device, *args: Any, **meta: Any
) -> None:
    """Run ``kernel[grid](*args, **meta)`` on ``device``, interpreted where that was asked for.

    An empty grid launches nothing.
    """
    if 0 in grid:
        return
    if _cross_compile.active():
        _cross_compile.launch(kernel, grid, *args, **meta)
    elif interpreted(kernel):
        with _interpreter.interpreting():
            kernel[grid](*args, **meta)
    elif device.index == torch.cuda.current_device():  # the guard alone takes microseconds
        kernel[grid](*args, **meta)
    else:
        with torch.cuda.device(device):
            kernel[grid](*args, **meta)
