"""What a spec's cases choose of a function: one of its outputs, and its kernels' configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from triton_kernels import interpreter


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


class WithOptions:
    """A function with the options of a spec's cases: ``output`` chooses one of several outputs,
    ``configuration`` that of autotuned kernels if they are interpreted. It has the function's
    attributes: what a loaded CUDA function says of itself."""

    def __init__(
        self, outputs: Sequence[str], configurations: int, function: Callable[..., Any]
    ) -> None:
        self.function, self.outputs, self.configurations = function, outputs, configurations

    def __call__(
        self, *args: Any, output: str = "", configuration: int = 0, **kwargs: Any
    ) -> Tensor:
        returned = self._in(configuration)(*args, **kwargs)
        return pick(returned, self.outputs, output) if self.outputs else returned

    def _in(self, configuration: int) -> Callable[..., Any]:
        if self.configurations == 1:
            return self.function

        def function(*args: Any, **kwargs: Any) -> Any:
            with interpreter.configuration(configuration) as configured:
                returned = self.function(*args, **kwargs)
            if configured.most > self.configurations:
                raise RuntimeError(
                    f"its kernels have {configured.most} configurations, but the spec says "
                    f"configurations={self.configurations}"
                )
            return returned

        return function

    def __getattr__(self, name: str) -> Any:
        if name == "function":  # not there yet, while it is copied
            raise AttributeError(name)
        return getattr(self.function, name)
