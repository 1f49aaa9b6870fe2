"""The line of a kernel that runs, or that raised an error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, Literal

import numpy as np
import torch
import triton

from triton_kernels.interpreter import emulation
from triton_kernels.interpreter.observers import Place

# Frames of these files never hold the kernel's own line.
_NOT_KERNELS = (
    *(os.path.dirname(str(module.__file__)) + os.sep for module in (triton, np, torch)),
    os.path.dirname(__file__) + os.sep,
    emulation.__file__,
)
Lane = tuple[int, ...]

kernels: set[CodeType] = set()  # rewritten code of kernels and their jit functions


def not_kernels(code: CodeType) -> bool:
    """Whether the code belongs to Triton, numpy, torch or the interpreter."""
    return code.co_filename.startswith(_NOT_KERNELS)


def run(kernel: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """Run one program. Frames outside of this one are not the kernel's."""
    kernel(**arguments)


def tell(observe: Callable[[Any], None], what: Any) -> None:
    """Call an observer. Frames inside this one are not the kernel's."""
    observe(what)


def role(code: CodeType) -> Literal["program", "observer", "kernel", ""]:
    """The role of a function's frame: a program's outermost, an observer's, or a kernel's own."""
    if code is run.__code__:
        return "program"
    if code is tell.__code__:
        return "observer"
    library = code.co_filename.startswith(_NOT_KERNELS)  # tl.sigmoid is a jit function, too
    return "kernel" if code in kernels and not library else ""


def current() -> Place | None:
    """The line of the running kernel, from the Python frames."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_KERNELS):
        if frame.f_code is run.__code__:
            return None
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return None
    return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def of_lane(error: Exception, lane: Lane, shape: tuple[int, ...]) -> Exception:
    """The error, with its lane in a tile of this shape for :func:`lane_of`."""
    error.lane = lane, shape  # type: ignore[attr-defined]
    return error


def lane_of(error: BaseException) -> tuple[Lane, tuple[int, ...]] | None:
    """The (first) lane in which an error occurred, and its tile's shape."""
    return getattr(error, "lane", None)


def place_of(error: BaseException) -> Place | None:
    """The kernel's line that raised an error; None if it was raised outside a kernel."""
    place, inside, step = None, False, error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        if code is run.__code__:
            place, inside = None, True
        elif code is tell.__code__:
            return place  # the rest belongs to an observer
        elif inside and not code.co_filename.startswith(_NOT_KERNELS):
            place = Place(code.co_filename, step.tb_lineno, code.co_name)
        step = step.tb_next
    return place
