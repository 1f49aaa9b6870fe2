"""Whether this thread interprets kernels, or only compiles them.

:mod:`triton_kernels.interpreter` sets these flags. They are not in that package, because every
launch reads them, and must not import the interpreter for that.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import sys
import threading
from collections.abc import Iterator
from typing import Any

interpreting_thread: int | None = None
compiling_thread: int | None = None


def interpreting() -> bool:
    """Whether this thread is inside interpreter.interpreting()."""
    return interpreting_thread == threading.get_ident()


def compiling() -> bool:
    """Whether this thread is inside interpreter.cross_compile.compiling()."""
    return compiling_thread == threading.get_ident()


def made_interpreted(kernel: Any) -> bool:
    """Whether a kernel was decorated under TRITON_INTERPRET=1: it can only be interpreted."""
    upstream = sys.modules.get("triton.runtime.interpreter")  # imported by such a kernel
    if upstream is None:
        return False
    while hasattr(kernel, "configs") or hasattr(kernel, "values"):  # Autotuner, Heuristics
        kernel = kernel.fn
    return isinstance(kernel, getattr(upstream, "InterpretedFunction", ()))


@dataclasses.dataclass
class Configured:
    """The configuration in which interpreted kernels with an autotuner run.

    Attributes:
        number: of those that differ for the interpreter; past their end it begins again.
        most: the largest number of them that a launch had to choose from.
        chosen: kernel → the configuration that it last ran in, in words.
    """

    number: int = 0
    most: int = 0
    chosen: dict[str, str] = dataclasses.field(default_factory=dict)


_configured: contextvars.ContextVar[Configured | None] = contextvars.ContextVar(
    "configured", default=None
)


def configured() -> Configured | None:
    """The configuration that was asked for; None means the first one."""
    return _configured.get()


@contextlib.contextmanager
def configuration(number: int) -> Iterator[Configured]:
    """Inside, interpreted kernels with an autotuner run in the configuration of that number."""
    asked = Configured(number)
    token = _configured.set(asked)
    try:
        yield asked
    finally:
        _configured.reset(token)
