"""A debugger's view of an interpreted run: a kernel's frames, tensors and errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, NamedTuple

import numpy as np
import triton.language as tl

from triton_kernels.interpreter import emulation, launching, source_lines
from triton_kernels.interpreter.emulation import Array
from triton_kernels.interpreter.handles import narrow, upstream
from triton_kernels.interpreter.memory import Argument
from triton_kernels.interpreter.observers import Program
from triton_kernels.interpreter.patching import interpreting


def is_program(frame: FrameType) -> bool:
    """Whether a frame is the outermost of a program, which ends with it."""
    return frame.f_code is source_lines.run.__code__


def is_kernel(frame: FrameType) -> bool:
    """Whether a frame runs a kernel, or one of its own jit functions."""
    caller = frame.f_back
    return (
        caller is not None
        and caller.f_code in (source_lines.run.__code__, launching.call_jit.__code__)
        and not source_lines.not_kernels(frame.f_code)
    )


class Stopped(NamedTuple):
    """The launch and program that an error ended."""

    kernel: str
    grid: tuple[int, ...]
    program: Program
    arguments: tuple[Argument, ...]


def stopped(traceback: TracebackType | None) -> Stopped | None:
    """The place where an interpreted run ended; None if that was outside a kernel."""
    stop, reached = None, False
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code is launching.launch.__code__:
            known, reached = frame.f_locals, False
            if "program" in known:
                stop = Stopped(
                    known["function"].fn.__name__,
                    tuple(known["sizes"]),
                    known["program"],
                    tuple(known["arguments"]),
                )
        elif is_program(frame):
            reached = True
        traceback = traceback.tb_next
    return stop if reached else None


@contextlib.contextmanager
def resumed(where: Stopped) -> Iterator[None]:
    """The language works as in that program."""
    with interpreting():
        builder = upstream.interpreter_builder
        builder.arguments = where.arguments
        builder.set_grid_dim(*where.grid)
        builder.set_grid_idx(*where.program)
        with np.errstate(all="ignore"):
            yield


@contextlib.contextmanager
def prompting(show: Callable[[Any], str]) -> Iterator[None]:
    """No observer is called for what is typed at a prompt, and ``show`` prints tensors."""
    builder, before = upstream.interpreter_builder, tl.tensor.__repr__
    observer = getattr(builder, "observer", None)
    builder.observer, tl.tensor.__repr__ = None, show
    try:
        yield
    finally:
        builder.observer, tl.tensor.__repr__ = observer, before


class Contents(NamedTuple):
    """A tensor of the language: numbers, or addresses with their known arguments."""

    dtype: str
    shape: tuple[int, ...]
    values: Array
    width: int  # for pointers the bytes of a target element; 0 for numbers
    arguments: tuple[Argument, ...]


def contents(tensor: Any) -> Contents:
    """The content of a tensor, as numbers for numpy."""
    handle, scalar = tensor.handle, tensor.dtype.scalar
    block = tensor.type.is_block()
    shape = tuple(handle.data.shape) if block else ()
    if scalar.is_ptr():
        known = getattr(handle.dtype, "argument", None)
        arguments = upstream.interpreter_builder.arguments if known is None else (known,)
        width = max(1, scalar.element_ty.primitive_bitwidth // 8)
        name = f"pointer<{scalar.element_ty}>"
        return Contents(name, shape, handle.data.reshape(shape), width, arguments)
    values = emulation.decoded(np.asarray(handle.data), narrow(handle)).reshape(shape)
    return Contents(str(scalar), shape, values, 0, ())
