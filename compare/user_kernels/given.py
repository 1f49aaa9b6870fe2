"""The spec of a bench call: functions with inputs that are given, not drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from compare.cases import CPU, Arguments, Case, tensors_of
from compare.copies import copies
from compare.specs import Spec


class Given(Spec):
    """Functions on the argument tuples that somebody gave; a case is one of them.

    Without an oracle the first peer's result is what all others are compared with, by the norm of
    the error, as peers are.
    """

    bounded = True
    random_inputs = False
    has_eager = False

    def __init__(
        self,
        name: str,
        inputs: Sequence[tuple[Any, ...]],
        oracle: Callable[..., Tensor] | None,
        max_ulps: float,
        bound: Callable[..., Tensor | float] | None,
        flops: int,
        moved: int | None,
        **own: Any,
    ) -> None:
        super().__init__(name, "", **own)
        self.by_norm = oracle is None
        self._oracle = oracle or next(iter(self.peers.values()))
        self.max_ulps, self._bound = None if bound else max_ulps, bound
        self._inputs, self._flops, self._moved = list(inputs), flops, moved

    def case(self, number: int) -> Case:
        """The case of ``inputs[number]``: it is named after the first tensor."""
        first = tensors_of((self._inputs[number], {}))[0]
        options = {"inputs": number} if len(self._inputs) > 1 else {}
        dtype = str(first.dtype).removeprefix("torch.")
        return Case(self.name, dtype, tuple(first.shape), options=options)

    def inputs(self, case: Case, device: torch.device = CPU) -> Arguments:
        """Copies that lie in memory as the originals do."""
        args: tuple[Any, ...] = copies(self._inputs[case.options.get("inputs", 0)], device)
        return args, {}

    def oracle(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._oracle(*args)

    def bound(
        self, name: str, arguments: Arguments, reference: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """The caller's."""
        assert self._bound is not None
        limit = self._bound(reference, *arguments[0])
        return torch.as_tensor(limit, device=reference.device).double()

    def cost(self, case: Case) -> tuple[int, int]:
        """The given cost; by default every input is read once, and a result like the first
        written."""
        if self._moved is not None:
            return self._flops, self._moved
        read = tensors_of((self._inputs[case.options.get("inputs", 0)], {}))
        sizes = [math.prod(t.shape) * t.element_size() for t in read]
        return self._flops, sum(sizes) + sizes[0]

    def timed(self, dtype: str, options: Mapping[str, Any]) -> Iterator[Case]:
        """Every entry of the inputs."""
        return (self.case(number) for number in range(len(self._inputs)))
