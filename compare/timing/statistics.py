"""Statistics of samples: median, percentiles, and ratios with their uncertainty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

RESAMPLES = 1000
SEED = 0  # of the resampling, so that equal samples give equal intervals


@dataclass
class Samples:
    """Times of one candidate, each with the number of its round.

    Rounds make two candidates comparable: within a round, clock and temperature are nearly the same
    for all.
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
    """A ratio of two times, with its 95 % interval."""

    value: float
    low: float
    high: float


def ratio(baseline: Samples, candidate: Samples) -> Ratio | None:
    """The baseline's median over the candidate's; None if they share no round.

    The interval is a bootstrap over rounds. Both candidates' times of a round are drawn together,
    so a common drift cancels.
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
