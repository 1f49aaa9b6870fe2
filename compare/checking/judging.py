"""The judge decides which elements of a result are right, by one rule everywhere in compare.

Where the oracle is NaN the result must be NaN; where it is infinite, the same infinity. Where it is
finite, the error must be within a finite bound. An infinite result then passes only if the oracle's
value before rounding exceeds the largest number of the result's dtype. Exact results have the
oracle's bits, and integers are exact.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from compare import numerics

# From the oracle's result and the call's arguments: the largest right error of each element.
Tolerance = Callable[..., Tensor | float]


class Comparison(NamedTuple):
    """A result compared with the oracle's, element by element.

    ``score`` is the number in reports: ULPs, or the fraction of the bound. A right infinity has
    error 0.
    """

    right: Tensor
    error: Tensor
    bound: Tensor
    score: Tensor


def by_bits(result: Tensor, reference: Tensor, *, zeros_alike: bool = False) -> Comparison:
    """Right is: the oracle's bits, rounded once to the result's dtype. All NaNs are equal.

    ``zeros_alike``: −0 and 0 are equal, too. The error is in ULPs.
    """
    rounded = reference.to(result.dtype)
    right = numerics.same_bits(result, rounded)
    if zeros_alike:
        right |= (result == 0) & (rounded == 0)
    # Expanded from one number: eight bytes per element would dominate the memory of a check.
    zero = torch.zeros((), device=right.device, dtype=torch.float64).expand(right.shape)
    if bool(right.all()):  # nearly always, and much cheaper
        return Comparison(right, zero, zero, zero)
    error = torch.where(right, 0.0, numerics.ulps(result, rounded))
    return Comparison(right, error, zero, error)


def by_ulps(result: Tensor, reference: Tensor, max_ulps: float) -> Comparison:
    """Right is: at most ``max_ulps`` from the oracle's value rounded to the result's dtype.

    Raises:
        ValueError: ``max_ulps`` is negative, infinite or NaN.
    """
    check_max_ulps(max_ulps)
    if not result.is_floating_point():
        error = numerics.difference(result, reference)
        bound = torch.zeros_like(error)
        return Comparison(error == 0, error, bound, error)
    reference = _with_arithmetic(reference)
    rounded = reference.to(result.dtype)
    error = numerics.ulps(result, rounded)
    finite, wide = reference.isfinite(), result.double()
    # A finite value that rounds to infinity is not one ulp from the largest number: its distance is
    # the true difference.
    saturated = finite & wide.isfinite() & ~rounded.double().isfinite()
    if bool(saturated.any()):
        spacing = numerics.ulp_of(torch.finfo(result.dtype).max, result.dtype)
        error = torch.where(saturated, numerics.difference(result, reference) / spacing, error)
    overflow = (wide.sign() == reference.sign()) & _past(reference, result.dtype)
    near = (error <= max_ulps) & (wide.isfinite() | overflow)
    right = torch.where(finite, near, numerics.same_bits(result, rounded))
    return Comparison(right, error, torch.full_like(error, max_ulps), error)


def by_bound(result: Tensor, reference: Tensor, bound: Tensor) -> Comparison:
    """Right is: |result − reference| ≤ bound, in float64; differences of integers are exact.

    Raises:
        ValueError: the bound is infinite, NaN or negative where the oracle is finite.
    """
    check_bound(bound, reference)
    reference = _with_arithmetic(reference)
    error = numerics.difference(result, reference)
    alike = (error == 0) | (result.isnan() & reference.isnan())
    infinite = result.is_floating_point() & error.isinf() & ~result.isnan()
    if bool(infinite.any()):  # rare, and the code below needs memory
        largest = torch.finfo(result.dtype).max
        end = largest + numerics.ulp_of(largest, result.dtype) / 2
        wide = result.double()
        overflow = _past(reference, result.dtype) & (reference.abs() + bound >= end)
        alike |= wide.isinf() & (wide.sign() == reference.sign()) & (overflow | reference.isinf())
    right = torch.where(reference.isfinite(), alike | (error <= bound), alike)
    error.masked_fill_(alike, 0.0)
    return Comparison(right, error, bound, numerics.fraction(error, bound))


def _with_arithmetic(reference: Tensor) -> Tensor:
    """The same values in a dtype with arithmetic in torch; float8 has none."""
    narrow = reference.is_floating_point() and reference.element_size() == 1
    return reference.double() if narrow else reference


def _past(reference: Tensor, dtype: torch.dtype) -> Tensor:
    """Where the oracle's value exceeds the largest number of a dtype."""
    return reference.double().abs() > torch.finfo(dtype).max


def check_max_ulps(max_ulps: float) -> None:
    """Refuse a tolerance that accepts everything or nothing."""
    if not (math.isfinite(max_ulps) and max_ulps >= 0):
        raise ValueError(f"max_ulps must be a finite number and not negative, but is {max_ulps}")


def check_bound(bound: Tensor, reference: Tensor) -> None:
    """Refuse a bound that proves nothing: it must be finite wherever the oracle is finite."""
    reference = _with_arithmetic(reference)
    useless = reference.isfinite() & ~(bound.isfinite() & (bound >= 0))
    if bool(useless.any()):
        index = tuple(useless.nonzero()[0].tolist())
        raise ValueError(
            f"the bound is {bound.expand_as(useless)[index].item():g} at element {index}, where "
            f"the oracle is {reference[index].item():g}: it must be finite there, and not negative"
        )


@dataclass
class Deviation:
    """How a result differs from the oracle's: the number of wrong elements, and the worst one."""

    wrong: int
    total: int
    index: tuple[int, ...]
    got: str
    expected: str
    ulps: float
    error: float
    bound: float

    @property
    def rank(self) -> tuple[float, float]:
        """Sort key: the error relative to its bound, or without a bound the error."""
        error = math.inf if math.isnan(self.error) else self.error
        return error / self.bound if self.bound else math.inf, error

    def __str__(self) -> str:
        return (
            f"element {self.index}: got {self.got}, expected {self.expected}\n"
            f"{self.ulps:.3g} ulp, |error| {self.error:.3g} against a bound of {self.bound:.3g}; "
            f"{self.wrong} of {self.total} elements wrong"
        )


def worst(parts: Sequence[Deviation], total: int) -> Deviation:
    """The deviation of a whole result, from those of its parts."""
    deviation = max(parts, key=lambda part: part.rank)
    return dataclasses.replace(deviation, wrong=sum(each.wrong for each in parts), total=total)


def deviation(
    result: Tensor, reference: Tensor, right: Tensor, error: Tensor, bound: Tensor
) -> Deviation:
    """Count the wrong elements and describe the worst: the largest error relative to its bound."""
    excess = numerics.fraction(error, bound).nan_to_num(math.inf, posinf=math.inf)
    excess = torch.where(right, -1.0, excess)
    infinite = excess.isinf()
    if bool(infinite.any()):  # the bound is 0, as for exact results: the error itself decides
        excess = torch.where(infinite, error.nan_to_num(math.inf, posinf=math.inf), -1.0)
    flat = int(excess.flatten().argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), result.shape))
    got, expected = result[index], reference[index].to(result.dtype)
    return Deviation(
        wrong=int((~right).sum()),
        total=right.numel(),
        index=index,
        got=f"{got.item()!r} ({numerics.hex_of(got)})",
        expected=f"{reference[index].item()!r} ({numerics.hex_of(expected)})",
        ulps=float(numerics.ulps(got, expected)),
        error=float(error[index]),
        bound=float(bound[index]),
    )
