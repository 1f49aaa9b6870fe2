"""The choice of one of a function's several outputs, which specs judge one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor


def pick(returned: Any, names: Sequence[str], output: str) -> Tensor:
    """One output of those that a function returned.

    Raises:
        TypeError: it returned no tuple, list or dict of these outputs.
    """
    if isinstance(returned, Mapping):
        if set(returned) == set(names):
            value = returned[output]
        else:
            raise TypeError(f"returned {', '.join(map(str, returned))}, expected {listed(names)}")
    elif not isinstance(returned, (tuple, list)):
        raise TypeError(f"returned {type(returned).__name__}, expected {listed(names)}")
    elif len(returned) != len(names):
        raise TypeError(f"returned {len(returned)} outputs, expected {listed(names)}")
    else:
        value = returned[names.index(output)]
    if not isinstance(value, Tensor):
        raise TypeError(f"returned {type(value).__name__} as {output}, expected a tensor")
    return value


def listed(names: Sequence[str]) -> str:
    """The outputs in words."""
    return f"{len(names)} outputs: {', '.join(names)}"


class Picking:
    """A function with several outputs as one that takes ``output=`` and returns that one. It has
    the function's attributes: what a loaded CUDA function says of itself."""

    def __init__(self, function: Callable[..., Any], names: Sequence[str]) -> None:
        self.function, self.names = function, names

    def __call__(self, *args: Any, output: str, **kwargs: Any) -> Tensor:
        return pick(self.function(*args, **kwargs), self.names, output)

    def __getattr__(self, name: str) -> Any:
        if name == "function":  # not there yet, while it is copied
            raise AttributeError(name)
        return getattr(self.function, name)
