"""The calls of registered ops that are kept, and how to forget those of earlier tests."""

from __future__ import annotations

import functools
import gc

from cuda_reference import _registered


@functools.cache
def registered() -> list[_registered.Registered]:
    """All ops. By type: to ask a weak reference's proxy for its class may raise."""
    return [each for each in gc.get_objects() if type(each) is _registered.Registered]


def forget() -> None:
    """Keep none."""
    for each in registered():
        each._known.clear()
