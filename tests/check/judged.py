"""What the judge's tests share: tensors of special values and outcomes of check."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from compare.cases import Case
from compare.checking import running
from compare.checking.implementations import Implementation
from compare.checking.verdicts import check
from compare.specs import Spec


def tensor(*values: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def outcome_of(spec: Spec, case: Case, change: Any) -> running.Outcome:
    """check's outcome for an implementation that computes the oracle, then changes it."""

    def function(*args: Any, out: Tensor | None = None, **kwargs: Any) -> Tensor:
        result = spec.oracle(*args, **kwargs).to(spec.out_dtype(case))
        change(result)
        if out is None:
            return result
        return out.copy_(result)

    (result,) = check(spec, [case], [Implementation("triton-interpreted", None, function)])
    return result.outcomes[0]
