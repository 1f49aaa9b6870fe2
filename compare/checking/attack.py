"""A seeded local search over a case's inputs for those whose error is largest against its bound.

Each step changes some elements of one tensor: by a few ULPs, in the mantissa, by powers of two, to
another element's opposite, or to a new number. They stay finite, and a tensor without negative
numbers keeps none. Integer tensors beside floating-point ones may be indices, and stay.

Where a dimension of the tensor is as long as one of the result, only the rows (or elements) are
kept whose results got worse, since one row of the result usually depends on one of the tensor; then
the whole is judged again. What is kept has the largest error of all, as a fraction of the bound, or
with equal ones the largest mean.

An op whose bits must agree has no error to climb: there the steps are a walk over inputs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from compare import cases
from compare.cases import Arguments, Case
from compare.checking import running
from compare.checking.implementations import Implementation
from compare.checking.oracles import Oracle
from compare.checking.running import Outcome
from compare.specs import Spec

MOST = 4  # cases of an op and dtype, where the command asks for no number
FARTHEST = 256.0  # times a tensor's first largest magnitude: as far as its values may go
SHARES = 8  # a step changes all elements, or one of 2, 4, ..., of so many powers of two


def attacked(case: Case) -> bool:
    """Whether the case can be searched from: its tensors may be written to, one element a place."""
    return case.values == "normal" and case.layout in ("contiguous", "functional")


class _Judged(NamedTuple):
    """An outcome, and the score of every element; None if the implementation failed."""

    outcome: Outcome
    scores: Tensor | None

    @property
    def height(self) -> tuple[float, float]:
        """What the search climbs: the largest score, then the mean."""
        if self.scores is None or self.outcome.mismatch is not None:
            return math.inf, math.inf
        if not self.scores.numel():
            return 0.0, 0.0
        return float(self.scores.max()), float(self.scores.mean())


def attack(
    spec: Spec, case: Case, implementation: Implementation, arguments: Arguments, steps: int
) -> Outcome:
    """The worst outcome of a search of so many steps, which ends at a mismatch. Its replay line
    repeats the steps up to it. ``arguments`` are changed."""
    g = torch.Generator().manual_seed(case.seed)
    tensors = [_Searched(t) for t in cases.tensors_of(arguments) if _takes_numbers(t, case)]
    best, reached = _judged(spec, case, implementation, arguments), 0
    for step in range(1, steps + 1 if tensors else 1):
        if best.outcome.mismatch is not None:
            break
        searched = tensors[_below(len(tensors), g)]
        t, old, new = searched.tensor, searched.tensor.clone(), searched.changed(g)
        t.copy_(new)
        tried = [(best, old), (_judged(spec, case, implementation, arguments), new)]
        if (merged := _merged(old, new, best.scores, tried[-1][0].scores, g)) is not None:
            t.copy_(merged)
            tried.append((_judged(spec, case, implementation, arguments), merged))
        before = best.height[0]
        best, kept = max(reversed(tried), key=lambda each: each[0].height)
        t.copy_(kept)
        if best.height[0] > before:
            reached = step
    outcome = best.outcome
    replay = running.replayed(case, implementation.name, reached)
    if outcome.mismatch is not None:
        outcome.mismatch = replace(outcome.mismatch, attack=reached)
    # Implementations are judged on inputs of their own, so that their bits are not to be compared.
    return replace(outcome, bits=None, replay=replay)


def _judged(
    spec: Spec, case: Case, implementation: Implementation, arguments: Arguments
) -> _Judged:
    oracle = Oracle(spec, arguments)
    outcome = running.run(spec, case, implementation, arguments, oracle)
    if outcome.result is None or outcome.mismatch is not None:
        return _Judged(outcome, None)
    scores, along = [], 0
    for part in oracle.parts():
        own = part.arguments, part.of(outcome.result), part.reference
        scores.append(running.compare(spec, case, implementation.name, *own).score)
        along = part.along or 0
    outcome.result = None
    return _Judged(outcome, torch.cat(scores, along) if len(scores) > 1 else scores[0])


def _below(end: int, g: torch.Generator) -> int:
    return int(torch.randint(end, (1,), generator=g))


def _takes_numbers(t: Tensor, case: Case) -> bool:
    """Whether any finite numbers may stand in the tensor."""
    plain = not t.is_complex() and t.dtype != torch.bool and bool(t.numel())
    number = t.element_size() > 1 if t.is_floating_point() else t.dtype == case.torch_dtype
    apart = all(stride or size == 1 for stride, size in zip(t.stride(), t.shape))
    return plain and number and apart


class _Searched:
    """A tensor whose values are searched, and the range in which they stay."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        drawn = tensor.double().nan_to_num(0.0, 0.0, 0.0)
        self.most = FARTHEST * float(drawn.abs().max())
        self.least = 0.0 if bool((drawn >= 0).all()) else -self.most

    def changed(self, g: torch.Generator) -> Tensor:
        """The values with a share of them changed, all in one of several ways."""
        x = self.tensor.detach().cpu()
        hit = torch.rand(x.shape, generator=g) < 2.0 ** -_below(SHARES, g)
        ways = [_near, _opposite_of_another, _new]
        if x.is_floating_point():
            ways += [_mantissa, _scaled]
        y = ways[_below(len(ways), g)](x, g)
        hit &= (y.double() >= self.least) & (y.double() <= self.most)
        return torch.where(hit, y, x).to(self.tensor.device)


def _integers_like(x: Tensor) -> Tensor:
    """The bits of the values, as integers."""
    return x if not x.is_floating_point() else x.view(_BITS[x.element_size()])


_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _near(x: Tensor, g: torch.Generator) -> Tensor:
    """A few ULPs away."""
    bits = _integers_like(x)
    return (bits + torch.randint(-8, 9, x.shape, generator=g).to(bits.dtype)).view(x.dtype)


def _opposite_of_another(x: Tensor, g: torch.Generator) -> Tensor:
    """Other elements, negated: sums cancel."""
    return -x.flatten()[torch.randperm(x.numel(), generator=g)].view(x.shape)


def _new(x: Tensor, g: torch.Generator) -> Tensor:
    """New numbers, of either sign."""
    if x.is_floating_point():
        return torch.randn(x.shape, generator=g).to(x.dtype)
    return torch.randint(-1000, 1001, x.shape, generator=g).to(x.dtype)


def _mantissa(x: Tensor, g: torch.Generator) -> Tensor:
    """The same signs and exponents with new mantissas."""
    fraction, exponent = torch.frexp(x.double())
    drawn = 0.5 + torch.rand(x.shape, generator=g, dtype=torch.float64) / 2
    return torch.ldexp(drawn * fraction.sign(), exponent).to(x.dtype)


def _scaled(x: Tensor, g: torch.Generator) -> Tensor:
    """Times a power of two."""
    powers = torch.randint(-4, 5, x.shape, generator=g)
    return torch.ldexp(x.double(), powers).to(x.dtype)


def _merged(
    old: Tensor, new: Tensor, before: Tensor | None, after: Tensor | None, g: torch.Generator
) -> Tensor | None:
    """The new elements where they made results worse, else the old ones; None if nothing tells
    which results depend on which elements."""
    if before is None or after is None:
        return None
    if old.shape == before.shape and _below(2, g):
        return torch.where(after > before, new, old)
    pairs = [
        (d, e)
        for d, size in enumerate(old.shape)
        for e, length in enumerate(before.shape)
        if size == length > 1
    ]
    if not pairs:
        return None
    d, e = pairs[_below(len(pairs), g)]
    others = [i for i in range(before.ndim) if i != e]
    if others:
        before, after = before.amax(others), after.amax(others)
    worse = (after > before).view([-1 if i == d else 1 for i in range(old.ndim)])
    return torch.where(worse, new, old)
