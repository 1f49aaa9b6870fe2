"""The order of cases in which the first few cover the most."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from compare.cases import Case
from compare.specs import Spec


def telling_first(cases: list[tuple[Spec, Case]]) -> list[tuple[Spec, Case]]:
    """Cases with a new coordinate first, then cases with it in another op or dtype, then new pairs
    of coordinates, then the rest."""
    # Tiny cases hide faults that others show; large ones take long.
    wanted = sorted(
        cases, key=lambda each: (math.prod(each[1].shape) < 16, each[0].cost(each[1])[1])
    )
    ordered: list[tuple[Spec, Case]] = []
    for shown_by in (_alone, _with_op_and_dtype, _in_pairs):
        seen: set[tuple[Any, ...]] = set()
        late: list[tuple[Spec, Case]] = []
        for spec, case in wanted:
            shown = set(shown_by(coordinates(case)))
            (late if shown <= seen else ordered).append((spec, case))
            seen |= shown
        wanted = late
    return ordered + wanted


Coordinates = list[tuple[str, str]]


def coordinates(case: Case) -> Coordinates:
    """A case's op and dtype, and all other coordinates except the seed."""
    options = [(name, str(value)) for name, value in sorted(case.options.items())]
    size = str(math.prod(case.shape).bit_length() // 4)
    plain = {"op": case.op, "dtype": case.dtype, "layout": case.layout, "values": case.values}
    return [*plain.items(), ("size", size), *options]


def _alone(coordinates: Coordinates) -> Iterator[tuple[Any, ...]]:
    return itertools.combinations(coordinates, 1)


def _with_op_and_dtype(coordinates: Coordinates) -> Iterator[tuple[Any, ...]]:
    op, dtype, *rest = coordinates
    yield from itertools.product((op,), (dtype, *rest))
    yield from itertools.product((dtype,), rest)


def _in_pairs(coordinates: Coordinates) -> Iterator[tuple[Any, ...]]:
    return itertools.combinations(coordinates, 2)
