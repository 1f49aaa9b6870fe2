"""Suspends replays (:mod:`triton_kernels._replay`), or forgets all recorded calls.

Code uses this if an equal call must run in another way: for a while, or from now on.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

every: weakref.WeakSet[Any] = weakref.WeakSet()  # the Replays of all ops
suspensions = 0
_lock = threading.Lock()


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """Inside, no thread replays calls: an equal call may have to run in another way."""
    global suspensions
    with _lock:
        suspensions += 1
    try:
        yield
    finally:
        with _lock:
            suspensions -= 1


def forget() -> None:
    """Forget all recorded calls: an equal call may run in another way from now on."""
    for calls in list(every):
        calls.forget()
