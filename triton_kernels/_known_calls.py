"""Calls that may be replayed (:mod:`triton_kernels._replay`), for whoever has the same call run
otherwise: for a while, or from now on."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

every: weakref.WeakSet[Any] = weakref.WeakSet()  # of what remembers them
suspensions = 0
_lock = threading.Lock()


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """Inside, nothing is replayed, in no thread: the same call may have to run otherwise."""
    global suspensions
    with _lock:
        suspensions += 1
    try:
        yield
    finally:
        with _lock:
            suspensions -= 1


def forget() -> None:
    """Forget all calls: the same one may run otherwise from now on."""
    for calls in list(every):
        calls.forget()
