"""The variable of a loop over a range: a Python number with attributes of a tensor."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import triton.language as tl

from triton_kernels.interpreter.handles import upstream

_FIELDS = ("dtype", "shape", "type")  # without a handle, which would make it a tensor


class LoopIndex(int):
    """A loop variable. The compiler makes it a tensor: kernels write ``i.to(…)``, ``i.dtype``.

    Arithmetic with Python numbers returns a LoopIndex, too.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not (hasattr(tl.tensor, name) or name in _FIELDS):
            raise AttributeError(f"'int' object has no attribute {name!r}")
        return getattr(upstream.interpreter_semantic.to_tensor(int(self)), name)


def _kept(operation: Callable[..., Any], swapped: bool = False) -> Callable[..., Any]:
    def method(self: int, other: Any) -> Any:
        if type(other) is not int and type(other) is not LoopIndex:
            return NotImplemented
        pair = (int(other), int(self)) if swapped else (int(self), int(other))
        return LoopIndex(operation(*pair))

    return method


for _name in ("add", "sub", "mul", "floordiv", "mod"):
    setattr(LoopIndex, f"__{_name}__", _kept(getattr(operator, _name)))
    setattr(LoopIndex, f"__r{_name}__", _kept(getattr(operator, _name), True))


def indices(numbers: Iterable[int]) -> Iterator[Any]:
    """The variable of a loop over a range, for each iteration."""
    return (LoopIndex(i) if type(i) is int else i for i in numbers)


def numbered(kind: Callable[..., Any], *bounds: Any, **named: Any) -> Any:
    """A loop's range with keyword arguments. The compiler uses those of tl.range, and silently
    drops those of Python's range."""
    if kind is not range:
        return kind(*bounds, **named)
    dropped = ", ".join(f"{name}=" for name in named)
    warnings.warn(
        f"the compiler ignores {dropped} of Python's range: the loop's step is "
        f"{bounds[2] if len(bounds) > 2 else 1}; give it by place, or use tl.range",
        stacklevel=2,
    )
    return range(*bounds)
