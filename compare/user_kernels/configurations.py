"""The Triton side in every configuration of its autotuned kernels, one call each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from triton_kernels import interpreter


class InConfiguration:
    """A function whose interpreted, autotuned kernels run in the configuration of a number.

    Attributes:
        most: the largest number of configurations that a kernel of the last call had.
        configuration: the configurations of that call, in words; empty if no kernel is autotuned.
    """

    def __init__(self, function: Callable[..., Any], number: int) -> None:
        self.__name__ = getattr(function, "__name__", "function")
        self._function, self._number = function, number
        self.most, self.configuration = 0, ""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with interpreter.configuration(self._number) as configured:
            try:
                return self._function(*args, **kwargs)
            finally:
                self.most = configured.most
                which = "; ".join(f"{name} {of}" for name, of in configured.chosen.items())
                self.configuration = f"configuration {self._number}: {which}" if which else ""


def configured(function: Callable[..., Any]) -> Iterator[InConfiguration]:
    """The function in every configuration. Each must be called before the next is asked for."""
    first = InConfiguration(function, 0)
    yield first
    for number in range(1, first.most):
        yield InConfiguration(function, number)
