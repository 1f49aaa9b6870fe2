"""Failures in a test that can be run again in a debugger."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from compare.debugging.stepping.sessions import Session

Again = Callable[[Session], Any]  # runs it in a debugger


_noted: list[Again] | None = None


@contextlib.contextmanager
def noting() -> Iterator[list[Again]]:
    """Collects in a list what compare.debug and cross_check find wrong."""
    global _noted
    before, _noted = _noted, []
    try:
        yield _noted
    finally:
        _noted = before


def note(again: Again) -> None:
    """Record a failure that can be run again. Ignored outside of :func:`noting`."""
    if _noted is not None:
        _noted.append(again)
