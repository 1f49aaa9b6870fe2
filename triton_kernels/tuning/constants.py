"""Measures the constants of the choice of tiles.

A constant decides between two configurations. It is determined from the times of products that run
in both. A function gives the times, so that a test can simulate a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from triton_kernels._gpu import H200, Gpu
from triton_kernels._measured import SHIPPED, Constants
from triton_kernels.gemm.choice import TMA_CAPABILITY, TMA_TILES, fitting, tiles_for
from triton_kernels.gemm.configurations import Configuration, Problem


class Run(NamedTuple):
    """A product in a configuration."""

    problem: Problem
    configuration: Configuration


# The times of some runs, measured in turns; infinity for a run that does not fit after all.
Time = Callable[[Sequence[Run]], Sequence[float]]

WAVES = 4  # full waves of tiles, so that the launch itself matters little
SUMS = (1024, 4096)  # values of K, for a short loop and a long one
LENGTHS = (1024, 2048, 3072, 4096, 6144, 8192)  # candidates for the constant ``long``
STEPS = (0.25, 0.5, 1.0, 2.0, 4.0)  # tried multiples of a shipped constant
NEVER, ALWAYS = 1 << 62, 0  # a threshold that nothing reaches, and one that everything reaches


def measure(gpu: Gpu, time: Time) -> Constants:
    """The constants of a GPU. Those that its choices never use keep the shipped figures."""
    if gpu.capability < TMA_CAPABILITY:
        return SHIPPED._replace(large=_large(gpu, time))
    measured = SHIPPED._replace(long=_long(gpu, time))
    return measured._replace(costs=_costs(gpu, time, measured))


def _costs(gpu: Gpu, time: Time, found: Constants) -> tuple[float, ...]:
    """The time of WAVES full waves of each row's tiles, relative to the first row that fits."""
    ratios: list[list[float]] = [[] for _ in TMA_TILES]
    for K in SUMS:
        forms = [_filling(gpu, row.tiles.BLOCK_M, row.tiles.BLOCK_N, K) for row in TMA_TILES]
        wanted = [row.for_problem(form, found) for row, form in zip(TMA_TILES, forms)]
        runs = _fitting(gpu, forms, wanted)
        taken = zip(runs, time(list(runs.values())))
        times = {row: each for row, each in taken if each < math.inf}
        if not times:
            return SHIPPED.costs
        first = min(times)
        for row, each in times.items():
            ratios[row].append(SHIPPED.costs[first] * each / times[first])
    pairs = zip(ratios, SHIPPED.costs)
    return tuple(_rounded(_mean(some)) if some else shipped for some, shipped in pairs)


def _filling(gpu: Gpu, block_m: int, block_n: int, K: int) -> Problem:
    """A product with exactly WAVES full waves of such tiles, as nearly square as possible."""
    tiles = WAVES * gpu.multiprocessors
    rows = next(n for n in range(math.isqrt(tiles), 0, -1) if tiles % n == 0)
    return _product(rows * block_m, tiles // rows * block_n, K)


def _long(gpu: Gpu, time: Time) -> int:
    """The smallest K for which the tiles for long sums are faster."""
    row = next(row for row in TMA_TILES if row.long is not None)
    products = [_filling(gpu, row.tiles.BLOCK_M, row.tiles.BLOCK_N, K) for K in LENGTHS]
    short, long = (
        [row.for_problem(product, SHIPPED._replace(long=value)) for product in products]
        for value in (NEVER, ALWAYS)
    )
    first = _compare(gpu, time, products, short, long)
    return SHIPPED.long if first is None else (*LENGTHS, 2 * LENGTHS[-1])[first]


def _large(gpu: Gpu, time: Time) -> int:
    """The number of results up to which small tiles are faster, scaled to the number of an H200's
    multiprocessors."""
    busy = gpu.multiprocessors / H200.multiprocessors
    sides = [128 * max(1, round(math.sqrt(step * SHIPPED.large * busy) / 128)) for step in STEPS]
    products = [_product(side, side, 2048) for side in sides]
    small, large = (
        [_by_pointers(product, gpu, SHIPPED._replace(large=value)) for product in products]
        for value in (NEVER, ALWAYS)
    )
    first = _compare(gpu, time, products, small, large)
    if first is None:
        return SHIPPED.large
    last = sides[first - 1] if first else sides[0] / 2
    return math.ceil(last**2 / busy)


def _by_pointers(product: Problem, gpu: Gpu, constants: Constants) -> Configuration:
    return Configuration(False, tiles_for(product, gpu, constants))


def _compare(
    gpu: Gpu,
    time: Time,
    products: Sequence[Problem],
    before: Sequence[Configuration],
    after: Sequence[Configuration],
) -> int | None:
    """How many of the growing products should use the configurations ``before``, and the others
    those ``after``, so that the geometric mean of the times is smallest. None if one does not
    fit."""
    runs = [*_fitting(gpu, products, before).values(), *_fitting(gpu, products, after).values()]
    n = len(products)
    times = [math.log(each) for each in time(runs)] if len(runs) == 2 * n else [math.inf]
    if math.inf in times:
        return None
    return min(range(n + 1), key=lambda k: sum(times[:k]) + sum(times[n + k :]))


def _fitting(
    gpu: Gpu, products: Sequence[Problem], wanted: Sequence[Configuration]
) -> dict[int, Run]:
    """Index → product in the wanted configuration, or a smaller one, if that fits."""
    forms = [fitting(each, product, gpu) for product, each in zip(products, wanted)]
    pairs = enumerate(zip(products, forms))
    return {place: Run(product, form) for place, (product, form) in pairs if form is not None}


def _product(M: int, N: int, K: int) -> Problem:
    return Problem(M, N, K, torch.bfloat16, torch.bfloat16)


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
