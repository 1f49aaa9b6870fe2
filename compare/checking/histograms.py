"""Histograms of errors, with powers of two as bins. Histograms of several runs can be added."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

# Upper ends of the bins: 0, then powers of two. "inf" takes larger values, infinities and NaN.
EDGES = (0.0, *(2.0**k for k in range(-8, 17)))
NAMES = (*(f"{edge:g}" for edge in EDGES), "inf")

Histogram = Counter[str]


def counted(values: Tensor) -> Histogram:
    """The number of values per bin, by the bin's inclusive upper end; empty bins are left out."""
    edges = torch.tensor(EDGES, dtype=torch.float64, device=values.device)
    values = values.double().nan_to_num(torch.inf, posinf=torch.inf).flatten()
    counts = torch.bincount(torch.bucketize(values, edges, out_int32=True), minlength=len(NAMES))
    return Histogram({name: n for name, n in zip(NAMES, counts.tolist()) if n})


def spacing(t: Tensor, dtype: torch.dtype) -> Tensor:
    """The ulp of ``dtype`` at each element, in float64; 1 for integers."""
    if not dtype.is_floating_point:
        return torch.ones(t.shape, dtype=torch.float64, device=t.device)
    info = torch.finfo(dtype)
    # A double's exponent field without its fraction is the power of two at or below it.
    power = (t.double().contiguous().view(torch.int64) & 0x7FF0_0000_0000_0000).view(torch.float64)
    return (power * info.eps).clamp(min=info.smallest_normal * info.eps)


def of_exact(right: Tensor, ulps: Tensor) -> dict[str, Histogram]:
    """Errors in ULPs, for results whose bits must agree."""
    if bool(right.all()):  # nearly always, and much cheaper
        return {"exact_ulp": Histogram({NAMES[0]: right.numel()} if right.numel() else {})}
    return {"exact_ulp": counted(ulps)}


def of_bounded(
    error: Tensor, bound: Tensor, fraction: Tensor, reference: Tensor, dtype: torch.dtype
) -> dict[str, Histogram]:
    """Histograms of results that have a bound: the errors and the bounds in ULPs of the result's
    dtype at the oracle's value, and the errors as fractions of the bounds."""
    unit = spacing(reference, dtype)
    return {
        "ulp": counted(error / unit),
        "bound_ulp": counted(bound / unit),
        "fraction": counted(fraction),
    }
