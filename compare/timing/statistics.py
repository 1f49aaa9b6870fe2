"""Samples in few numbers: median, percentiles, and ratios with their uncertainty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

RESAMPLES = 1000
SEED = 0  # of the resampling: the same samples give the same interval


@dataclass
class Samples:
    """Times of one candidate, each with the number of the round that it was taken in.

    Rounds are what makes two candidates comparable: within one, the clock and the temperature are
    nearly the same for all.
    """

    rounds: list[int]
    microseconds: list[float]

    @property
    def median(self) -> float:
        return float(np.median(self.microseconds))

    def percentile(self, percent: float) -> float:
        """A percentile of the times, in microseconds."""
        return float(np.percentile(self.microseconds, percent))


class Ratio(NamedTuple):
    """How many times faster something is than something else; a 95 % interval around it."""

    value: float
    low: float
    high: float


def ratio(baseline: Samples, candidate: Samples) -> Ratio | None:
    """Median of the baseline over median of the candidate; None without a round that both ran in.

    The interval is a bootstrap over rounds, both candidates' times of a round drawn together, so
    that a drift they share cancels.
    """
    theirs = dict(zip(baseline.rounds, baseline.microseconds))
    ours = dict(zip(candidate.rounds, candidate.microseconds))
    common = [n for n in ours if n in theirs]
    if not common:
        return None
    a, b = np.array([theirs[n] for n in common]), np.array([ours[n] for n in common])
    drawn = np.random.default_rng(SEED).integers(len(common), size=(RESAMPLES, len(common)))
    ratios = np.median(a[drawn], axis=1) / np.median(b[drawn], axis=1)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return Ratio(float(np.median(a) / np.median(b)), float(low), float(high))
