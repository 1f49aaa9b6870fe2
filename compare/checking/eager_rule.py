"""The eager rule: a result must not be much less accurate than eager's.

The bound allows for the worst rounding errors. A kernel that accumulates badly can stay within the
bound; this rule finds it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from compare.cases import Case
from compare.checking.oracles import Oracle
from compare.specs import Spec

FEWEST = 64  # results that a mean needs


class LessAccurate(NamedTuple):
    """The root mean square errors of a result that breaks the rule and of eager's result."""

    error: float
    eager: float

    def __str__(self) -> str:
        return (
            f"less accurate than eager: root mean square error {self.error:.3g}, eager's "
            f"{self.eager:.3g}; at most twice that is allowed, and one rounding"
        )


def answers_to_eager(spec: Spec, case: Case, side: str, variant: str | None, results: int) -> bool:
    """Whether the eager rule applies to a run. It applies to Triton's default kernels, and to those
    that the default chooses between, on normal values. It does not apply to exact ops, to float64,
    which has no wider oracle, to the CUDA side's plain loops, to product precisions that are not
    float32's, and to kernels from elsewhere."""
    return (
        spec.bounded
        and not spec.own
        and side == "triton"
        and (variant is None or variant in spec.pinned())
        and case.values == "normal"
        and case.dtype in ("float16", "bfloat16", "float32")
        and case.options.get("precision", "ieee") in ("ieee", "f16x3")
        and results >= FEWEST
    )


def less_accurate(spec: Spec, result: Tensor, oracle: Oracle) -> LessAccurate | None:
    """The two errors if the root mean square error exceeds twice eager's plus the rounding of one
    result, else None. A maximum would fail correct kernels by chance."""
    ours = eager = size = 0.0
    for part in oracle.parts():
        reference, (args, kwargs) = part.reference, part.arguments
        ours += _squares(part.of(result).double() - reference)
        eager += _squares(spec.eager(*args, **kwargs).double() - reference)
        size += _squares(reference.clone())
    ours, eager, size = (math.sqrt(each / result.numel()) for each in (ours, eager, size))
    rounding = torch.finfo(result.dtype).eps / 2 * size
    # Where eager overflowed there is nothing to compare with.
    return LessAccurate(ours, eager) if ours > 2 * eager + rounding else None


def _squares(errors: Tensor) -> float:
    return float(errors.square_().sum())
