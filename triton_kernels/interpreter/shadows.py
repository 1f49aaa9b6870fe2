"""Shadow values: faults of the lanes of a value, kept beside its numbers.

A shadow has three faults per lane: the value is undefined (the load's mask was off, or the memory
was never written), an integer overflowed on its way, or it is NaN or infinite. A fault is the
number of its origin in a log, 0 for none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from triton_kernels.interpreter.emulation import Array
from triton_kernels.interpreter.handles import upstream


class Shadow(NamedTuple):
    """Numbers of origins, one array per fault that broadcasts to the value's shape, or None."""

    undefined: Array | None = None
    overflow: Array | None = None
    nonfinite: Array | None = None


CLEAN = Shadow()


def shadow_of(handle: Any) -> Shadow:
    """A handle's shadow."""
    shadow: Shadow = getattr(handle, "shadow", CLEAN)
    return shadow


def give(handle: Any, shadow: Shadow) -> Any:
    """The handle, with this shadow instead of its own."""
    handle.shadow = shadow if any(layer is not None for layer in shadow) else CLEAN
    return handle


def moved(handle: Any, move: Callable[[Array], Any]) -> Any:
    """A handle with the same values in another order or shape, and with their shadow."""
    new = upstream.TensorHandle(np.asarray(move(handle.data)), handle.dtype)
    shape, shadow = handle.data.shape, shadow_of(handle)
    upstream.interpreter_builder.follow_move(handle, new, move)
    if shadow is CLEAN:
        return new
    full = (None if a is None else np.broadcast_to(a, shape) for a in shadow)
    return give(new, Shadow(*(None if a is None else np.asarray(move(a)) for a in full)))


def selected(condition: Array, yes: Any, no: Any) -> Any:
    """np.where of two handles of one dtype, with their shadows."""
    new = upstream.TensorHandle(np.where(condition, yes.data, no.data), yes.dtype)
    pairs = zip(shadow_of(yes), shadow_of(no), strict=True)
    upstream.interpreter_builder.follow_selection(condition, yes, no, new)
    return give(new, Shadow(*(chosen(condition, *pair) for pair in pairs)))


def chosen(condition: Any, yes: Array | None, no: Array | None) -> Array | None:
    """np.where of layers."""
    if yes is None and no is None:
        return None
    return pruned(np.where(condition, 0 if yes is None else yes, 0 if no is None else no))


def joined(first: Array | None, second: Array | None) -> Array | None:
    """The faults of both layers; where both have one, the first's."""
    if first is None or second is None:
        return second if first is None else first
    return np.where(first != 0, first, second)


def pruned(layer: Array | None) -> Array | None:
    """The layer, or None if it has no fault."""
    return layer if layer is not None and layer.any() else None
