"""The launch path: which way a kernel runs, on which device.

CUDA tensors run compiled on their own device; inside :func:`interpret`, or with
``TRITON_INTERPRET=1`` set before import, kernels run in Triton's interpreter, mended by
:mod:`triton_kernels.interpreter`, and then CPU tensors are welcome too. Inside
:func:`triton_kernels.interpreter.cross_compile.compiling` they are compiled only.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Iterator
from typing import Any

import torch
import triton
from torch import Tensor

from triton_kernels import _modes
from triton_kernels._gpu import H200, Gpu, like


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
    from triton_kernels import interpreter  # not before it is asked for

    with interpreter.interpreting():
        yield


def interpreted(kernel: Any) -> bool:
    """Whether a launch of ``kernel`` would be interpreted now."""
    if _modes.interpreting():
        return True
    return type(kernel) is not triton.JITFunction and _modes.made_interpreted(kernel)


def check_device(op: str, device: torch.device, kernel: Any) -> None:
    """Refuse a device that ``kernel`` cannot run on as things stand."""
    if device.type == "cuda" or (device.type == "cpu" and interpreted(kernel)):
        return
    if _modes.compiling():
        return
    if device.type == "cpu":
        raise RuntimeError(
            f"{op}(): got CPU tensors, but Triton compiles for GPUs only. To run the kernel in "
            "Triton's interpreter, call it inside `with triton_kernels.interpret():`, or set "
            "TRITON_INTERPRET=1 before Python starts; otherwise move the tensors to 'cuda'"
        )
    raise RuntimeError(f"{op}(): device {device} is not supported; tensors must be on cuda or cpu")


_few: contextvars.ContextVar[int | None] = contextvars.ContextVar("multiprocessors", default=None)


@contextlib.contextmanager
def multiprocessors(number: int) -> Iterator[None]:
    """Inside, launches are cut for a GPU of so many multiprocessors, whatever runs them: of few of
    them each has several tiles of a small problem to do."""
    token = _few.set(number)
    try:
        yield
    finally:
        _few.reset(token)


def gpu(kernel: Any, device: torch.device) -> Gpu:
    """The GPU that a launch of ``kernel`` would run on, or is made for. What is interpreted or
    cross-compiled is cut for as many multiprocessors as an H200 has, whatever runs it."""
    if _modes.compiling():
        from triton_kernels.interpreter import cross_compile

        capability = cross_compile.capability()
        properties = Gpu(capability, H200.multiprocessors, like(capability).shared_memory)
    elif interpreted(kernel):
        properties = H200
    else:
        properties = _properties(device)
    few = _few.get()
    return properties if few is None else properties._replace(multiprocessors=few)


@functools.cache
def _properties(device: torch.device) -> Gpu:
    properties: Any = torch.cuda.get_device_properties(device)
    return Gpu(
        10 * properties.major + properties.minor,
        properties.multi_processor_count,
        properties.shared_memory_per_block_optin,
    )


class Launch:
    """A launch that may come again: ``kernel[grid](*args, **meta)`` with arguments of one kind.

    To find the compiled kernel Triton looks at every argument of every launch: its dtype, its
    alignment, whether an integer is 1 or a multiple of 16. That takes several times as long as the
    start itself, so here it is done once a device. All calls of a Launch must have tensors and
    numbers of one :func:`specialization_key` at each place and, where Triton specialises on
    integers, the same integers. Of Triton's settings (``triton.knobs``) those of the first call
    count.

    An empty grid launches nothing.
    """

    __slots__ = ("_ready", "grid", "kernel", "meta")

    def __init__(self, kernel: Any, grid: tuple[int, ...], **meta: Any) -> None:
        self.kernel, self.meta = kernel, meta
        self.grid = (*grid, 1, 1)[:3]
        self._ready: dict[torch.device, tuple[Any, tuple[Any, ...]]] = {}

    def __call__(self, device: torch.device, *args: Any) -> None:
        """Run on ``device``, interpreted or compiled only where that was asked for."""
        if 0 in self.grid:
            return
        if _modes.compiling():
            from triton_kernels.interpreter import cross_compile

            cross_compile.launch(self.kernel, self.grid, *args, **self.meta)
        elif interpreted(self.kernel):
            with interpret():
                self.kernel[self.grid](*args, **self.meta)
        elif device.index == torch.cuda.current_device():  # the guard alone takes microseconds
            self._run(device, args)
        else:
            with torch.cuda.device(device):
                self._run(device, args)

    def _run(self, device: torch.device, args: tuple[Any, ...]) -> None:
        usual = triton.JITFunction.run is _JIT_RUN and not self.kernel.pre_run_hooks
        ready = self._ready.get(device)
        if ready is not None and usual:
            run, constants = ready
            run(*args, *constants)
            return
        compiled = self.kernel[self.grid](*args, **self.meta)
        if compiled is not None and usual:
            constants = tuple(self.meta[name] for name in self.kernel.arg_names[len(args) :])
            self._ready[device] = compiled[self.grid], constants


_JIT_RUN = triton.JITFunction.run  # others put theirs in its place, to see or change every launch
REMEMBERED = 4096  # launches kept by each of the caches of them


def specialization_key(argument: Any) -> Any:
    """What Triton's choice of a compiled kernel depends on, in a tensor or an unspecialised number:
    None, dtype and alignment, float, or whether an integer fits 32 bits."""
    if argument is None:
        return None
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return -(2**31) <= argument < 2**31
    return float
