"""The eager rule: beside its bound, a result must not be far less accurate than eager's.

The bound is that of the unluckiest rounding; a kernel that accumulates worse than it should lies
within it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from compare.cases import Case
from compare.checking.oracles import Oracle
from compare.specs import Spec

FEWEST = 64  # results from which a mean says something


class LessAccurate(NamedTuple):
    """The root mean square errors of a result that breaks the rule, and of eager's."""

    error: float
    eager: float

    def __str__(self) -> str:
        return (
            f"less accurate than eager: root mean square error {self.error:.3g}, eager's "
            f"{self.eager:.3g}; at most twice that is allowed, and one rounding"
        )


def answers_to_eager(spec: Spec, case: Case, side: str, variant: str | None, results: int) -> bool:
    """Whether the eager rule holds for a run, beside the op's bound: Triton's default kernels and
    those that it chooses between, on normal values. Exact ops need no such rule; float64 has no
    wider oracle; plain loops on the CUDA side, the narrower products of other precisions, and
    kernels from elsewhere answer to the bound alone."""
    return (
        spec.bounded
        and not spec.own
        and side == "triton"
        and (variant is None or variant in spec.pinned())
        and case.values == "normal"
        and case.dtype in ("float16", "bfloat16", "float32")
        and case.options.get("precision", "ieee") == "ieee"
        and results >= FEWEST
    )


def less_accurate(spec: Spec, result: Tensor, oracle: Oracle) -> LessAccurate | None:
    """Whether the root mean square of the errors is more than twice that of eager's result and the
    rounding of one result. As a maximum, kernels rightly written would fail by bad luck."""
    ours = eager = size = 0.0
    for part in oracle.parts():
        reference, (args, kwargs) = part.reference, part.arguments
        ours += _squares(part.of(result).double() - reference)
        eager += _squares(spec.eager(*args, **kwargs).double() - reference)
        size += _squares(reference.clone())
    ours, eager, size = (math.sqrt(each / result.numel()) for each in (ours, eager, size))
    rounding = torch.finfo(result.dtype).eps / 2 * size
    # Where eager itself overflowed, there is nothing to keep to.
    return LessAccurate(ours, eager) if ours > 2 * eager + rounding else None


def _squares(errors: Tensor) -> float:
    return float(errors.square_().sum())
