"""What failed in a test and can be run again in a debugger, should the test fail by it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from compare.debugging.stepping.sessions import Session

Again = Callable[[Session], Any]  # runs it in a debugger


_noted: list[Again] | None = None


@contextlib.contextmanager
def noting() -> Iterator[list[Again]]:
    """Inside, what compare.debug and cross_check find wrong is added to the list."""
    global _noted
    before, _noted = _noted, []
    try:
        yield _noted
    finally:
        _noted = before


def note(again: Again) -> None:
    """Something failed that could be run again. Forgotten at once unless someone takes notes."""
    if _noted is not None:
        _noted.append(again)
