"""The spec of a bench call with given inputs."""

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
    """Functions on given argument tuples; each tuple is a case.

    Without an oracle all results are compared with the first peer's, by the norm of the error.
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
        """The case of ``inputs[number]``, with the dtype and shape of its first tensor."""
        first = tensors_of((self._inputs[number], {}))[0]
        options = {"inputs": number} if len(self._inputs) > 1 else {}
        dtype = str(first.dtype).removeprefix("torch.")
        return Case(self.name, dtype, tuple(first.shape), options=options)

    def inputs(self, case: Case, device: torch.device = CPU) -> Arguments:
        """Copies with the originals' strides."""
        args: tuple[Any, ...] = copies(self._inputs[case.options.get("inputs", 0)], device)
        return args, {}

    def oracle(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._oracle(*args)

    def bound(
        self, name: str, arguments: Arguments, reference: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """The given bound."""
        assert self._bound is not None
        limit = self._bound(reference, *arguments[0])
        return torch.as_tensor(limit, device=reference.device).double()

    def cost(self, case: Case) -> tuple[int, int]:
        """The given cost. By default every input is read once, and a result of the first one's size
        is written."""
        if self._moved is not None:
            return self._flops, self._moved
        read = tensors_of((self._inputs[case.options.get("inputs", 0)], {}))
        sizes = [math.prod(t.shape) * t.element_size() for t in read]
        return self._flops, sum(sizes) + sizes[0]

    def timed(self, dtype: str, options: Mapping[str, Any]) -> Iterator[Case]:
        """Every entry of the inputs."""
        return (self.case(number) for number in range(len(self._inputs)))
