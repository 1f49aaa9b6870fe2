"""Whether this thread interprets kernels, or only compiles them.

:mod:`triton_kernels.interpreter` sets these flags. They are not in that package, because every
launch reads them, and must not import the interpreter for that.
"""

from __future__ import annotations

import sys
import threading
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
