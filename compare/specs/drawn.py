"""Random problems for bench --sample: strata, quotas, sizes.

Every problem belongs to one stratum of its op. Strata have fixed shares, so all samples are
comparable mixtures. Within a stratum sizes are log-uniform.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple, Protocol

from compare.cases import Case

TRIES = 10_000  # draws for one new problem of a stratum
LEAST, MOST = 1 << 10, 1 << 30  # bytes of a tensor
WIDEST = 1 << 14  # elements of a row
VECTOR = 16  # the length of dense rows is a multiple of it


class Drawn(NamedTuple):
    """A problem and its stratum."""

    stratum: str
    case: Case


class Drawable(Protocol):
    """The part of a spec that is needed here."""

    name: str

    @property
    def strata(self) -> Mapping[str, float]:
        """Strata and their shares, which add up to 1."""

    def draw(self, stratum: str, dtype: str, random: Random) -> Case | None:
        """A problem of the stratum, or None if the draw does not fit the stratum."""


def drawn(spec: Drawable, count: int, seed: int, dtypes: Sequence[str]) -> list[Drawn]:
    """``count`` different problems of an op, equal for equal seeds. Strata have their shares, with
    as many of every dtype. The order is random, so an interrupted run has some of every stratum."""
    random = Random(f"{spec.name} {seed}")
    problems: list[Drawn] = []
    known: set[str] = set()
    for stratum, quota in quotas(spec.strata, count).items():
        for number in range(quota):
            dtype = dtypes[number % len(dtypes)]
            case = _new(spec, stratum, dtype, random, known)
            known.add(str(case))
            problems.append(Drawn(stratum, case))
    random.shuffle(problems)
    return problems


def _new(spec: Drawable, stratum: str, dtype: str, random: Random, known: set[str]) -> Case:
    for _ in range(TRIES):
        case = spec.draw(stratum, dtype, random)
        if case is not None and str(case) not in known:
            return case
    raise RuntimeError(f"{spec.name}: no (further) problem was drawn for the stratum {stratum!r}")


def quotas(shares: Mapping[str, float], count: int) -> dict[str, int]:
    """Whole numbers that add up to ``count``: the shares rounded down, plus one for those with the
    largest remainders."""
    exact = {name: share * count for name, share in shares.items()}
    given = {name: math.floor(value + 1e-9) for name, value in exact.items()}
    lost = sorted(exact, key=lambda name: given[name] - exact[name])
    for name in lost[: count - sum(given.values())]:
        given[name] += 1
    return given


def equal(*names: str) -> dict[str, float]:
    """Strata of equal shares."""
    return dict.fromkeys(names, 1 / len(names))


def log_uniform(random: Random, least: int, most: int) -> int:
    """A whole number from ``least`` to ``most``; every octave is equally likely."""
    return min(most, int(math.exp(random.uniform(math.log(least), math.log(most + 1)))))


# ---- shapes of tensors of so many elements ----


def elements(random: Random, itemsize: int) -> int:
    """A random number of elements that take LEAST to MOST bytes."""
    return log_uniform(random, LEAST, MOST) // itemsize


def matrix(random: Random, numel: int) -> tuple[int, int]:
    """A matrix with rows of whole vectors and about ``numel`` elements, no more."""
    columns = VECTOR * log_uniform(random, 1, min(WIDEST, numel) // VECTOR)
    return numel // columns, columns


def odd_matrix(random: Random, numel: int) -> tuple[int, int]:
    """A matrix with an odd number of elements, in rows of odd length."""
    columns = log_uniform(random, 2, min(WIDEST, numel) // 2) | 1
    return (numel // columns - 1) | 1, columns


def images(random: Random, numel: int) -> tuple[int, int, int, int]:
    """[N, C, H, W] with H = W and C a multiple of 8."""
    side = log_uniform(random, 2, min(128, math.isqrt(numel // 8)))
    channels = 8 * log_uniform(random, 1, max(1, min(2048, numel // side**2) // 8))
    return max(1, numel // (channels * side**2)), channels, side, side
