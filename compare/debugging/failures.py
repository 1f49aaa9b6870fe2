"""What failed in a test and can be run again in a debugger, should the test fail by it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from compare.debugging.stepping import Session
from compare.debugging.stores import Stores
from compare.debugging.subjects import Kernel, Result
from compare.own import Expected

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


class Call(Kernel):
    """A call that launches kernels, and the right result."""

    outside_is_usage = False

    def __init__(
        self,
        function: Callable[..., Tensor],
        arguments: tuple[Any, ...],
        expected: Expected,
    ) -> None:
        super().__init__(function, (), arguments, {}, None, expected.max_ulps, None)
        self._wanted = expected
        self.in_ulps = expected.bound is None

    def prepare(self, device: torch.device) -> Any:
        return {"arguments": super().prepare(device)[0]}

    def launch(self, state: Any, shadows: Any = None) -> None:
        state["result"] = self._kernel(*state["arguments"])

    def judge(self, state: Any, stores: Stores | None) -> list[Result]:
        result = state["result"]
        self._wanted.refuse(result)
        return [Result("result", result, self._wanted.reference, self._wanted.compare(result))]

    def compilable(self) -> bool:
        """Not from here: it is run for its interpreted programs."""
        return False
