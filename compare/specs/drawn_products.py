"""Random problems of matrix products, with regime and alignment as strata.

The regimes have equal shares. A problem belongs to the first that it fits: few rows (M ≤ 32),
latency (below 3 µs on the roofline), compute-bound (2·M·N·K ≥ 2³⁴), memory-bound (the rest). In
each regime N and K are multiples of 64 in 60 % of the problems, of 8 in 25 %, and neither in 15 %.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from compare.specs.drawn import log_uniform

REGIMES = ("few rows", "latency", "memory-bound", "compute-bound")
ALIGNED = {"of 64": 0.6, "of 8": 0.25, "odd": 0.15}
STRATA = {
    f"{regime}, {aligned}": share / len(REGIMES)
    for regime, (aligned, share) in itertools.product(REGIMES, ALIGNED.items())
}
MOST_ROWS, LEAST_SIDE, MOST_SIDE = 16384, 64, 16384  # of M; of N and K
MOST_OPERATIONS, BOUND = 2**40, 2**34
FEW, LATENCY = 32, 3.0  # rows; microseconds
# The roofline that divides regimes, on every machine: bytes and operations per microsecond that an
# H200 reaches. A float32 product counts as three of float16.
BYTES, OPERATIONS = 4.3e6, 7e8

ACTIVATIONS = ("gelu_tanh", "relu", "none", "silu", "gelu")
# The layouts of a layer's products: a is by rows except in wgrad, b by columns in forward only.
OPERANDS = {"forward": 0.8, "dgrad": 0.1, "wgrad": 0.1}
WITH_C, WITH_PRE = 0.1, 0.1


def regime(M: int, N: int, K: int, itemsize: int) -> str:
    """The regime of a product."""
    operations, moved = 2 * M * N * K, (M * K + K * N + M * N) * itemsize
    rate = OPERATIONS / (3 if itemsize > 2 else 1)
    if M <= FEW:
        return "few rows"
    if max(operations / rate, moved / BYTES) < LATENCY:
        return "latency"
    return "compute-bound" if operations >= BOUND else "memory-bound"


def alignment(N: int, K: int) -> str:
    """Whether both are multiples of 64 or of 8, else "odd"."""
    return next((f"of {n}" for n in (64, 8) if N % n == 0 == K % n), "odd")


def shape(stratum: str, itemsize: int, random: Random) -> tuple[int, int, int] | None:
    """M, N, K; None if they belong to another stratum, or are too large."""
    wanted, aligned = stratum.split(", ")
    M = log_uniform(random, 1, FEW if wanted == "few rows" else MOST_ROWS)
    step = {"of 64": 64, "of 8": 8, "odd": 1}[aligned]
    N, K = (
        max(1, round(log_uniform(random, LEAST_SIDE, MOST_SIDE) / step)) * step for _ in range(2)
    )
    fits = (regime(M, N, K, itemsize), alignment(N, K)) == (wanted, aligned)
    return (M, N, K) if fits and 2 * M * N * K <= MOST_OPERATIONS else None


def options(
    forms: Sequence[Mapping[str, Any]],
    of_pre: Sequence[Mapping[str, Any]],
    with_c: bool,
    random: Random,
) -> dict[str, Any]:
    """Options: an activation of ``forms``, the operands' layouts, c, and for activations of
    ``of_pre`` a written pre-activation."""
    (operands,) = random.choices(list(OPERANDS), list(OPERANDS.values()))
    c, pre = (random.random() < share for share in (WITH_C, WITH_PRE))
    form = random.choice(of_pre if pre else forms)
    more: dict[str, Any] = {"bias": True, "operands": operands}
    if c and with_c:
        more["c"] = "full"
    return {**form, **more, **({"training": "out"} if pre else {})}
