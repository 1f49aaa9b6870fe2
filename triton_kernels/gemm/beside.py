"""Products whose result two configurations compute side by side, each a part of it.

The tiles of one configuration seldom fill the last wave. So the first configuration computes whole
rows or columns of its tiles, about as many as fill some waves, and another one the rest, which has
tiles that fit there. The second launch need not wait for the first: its programs start on each
multiprocessor as soon as that is free, and so also fill what the first one leaves of its last wave.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from triton_kernels._counts import cdiv
from triton_kernels._gpu import Gpu, peaks
from triton_kernels.gemm import model
from triton_kernels.gemm.configurations import Configuration, Problem, Rest

# Fitted to 120 such launches of 46 drawn products of bfloat16 matrices, compute-bound and of
# multiples of 64, in three pairs each (H200, triton 3.6). Since tiles may have any multiple of 8
# rows, 70 others were timed in their best pairs and in one configuration. A pair wherever the model
# says that it is faster, 39 times, makes all 1.012 times as fast; only where it says 0.985 of the
# time, 1.005 times; where it says up to 1.03 of the time, 1.006 times.
STARTING = 5e-6  # seconds of another program on a multiprocessor, beside those of its tile
SHORT = 25e-6  # seconds of products from which on pairs are considered
STEP = 64  # what the first row or column of the rest is a multiple of, so that rows are aligned


def beside(
    problem: Problem, gpu: Gpu, forms: Sequence[tuple[Configuration, float]], alone: float
) -> Configuration | None:
    """The fastest pair of configurations by the model, or None if one alone is as fast.
    Products with operands that have no descriptor were not measured, and get None.

    Args:
        problem: the problem, of 16-bit matrices.
        gpu: the GPU.
        forms: configurations of gemm_gluon_kernel, with the fraction of the peak of their loops.
        alone: seconds of the fastest single configuration.
    """
    M, N, K, dtype, *_ = problem
    if min(problem.pitches) < 16:
        return None
    count, peak = gpu.multiprocessors, peaks(gpu)
    bandwidth, flops = peak.bandwidth * model.MEMORY, peak.flops * model.SUSTAINED
    elements = M * K + K * N + M * N * (2 if problem.c else 1)
    tiles: list[tuple[Configuration, int, int, float]] = []
    for form, reached in forms:
        m, n, *_ = form.tiles
        (each,) = model.timed(problem._replace(M=m, N=n), gpu)(form, reached, [1])
        tiles.append((form, m, n, each))
    fastest = min((each + STARTING) / (m * n) for _, m, n, each in tiles)  # of the rest
    # Busy for longer, multiprocessors cannot be faster: beside that counts what is moved and
    # multiplied, which is at least this.
    reads = (elements + min(M * K, K * N)) * dtype.itemsize / bandwidth
    multiplies = 2 * M * N * K / flops
    time, best = alone, None
    most = _without(alone, reads, multiplies)
    for first, m, n, each in tiles:
        for across, begin in _cuts(first, M, N, count):
            rest = (M, N - begin) if across else (M - begin, N)
            number = first.tiles_of(*((M, begin) if across else (begin, N)))
            whole, late = divmod(number, count)
            if not whole:  # 8 such pairs took 1.01 times as long as one alone, up to 1.26 times
                continue
            ready = whole * each
            last = ready + each if late else ready
            used = number * each
            if max(last, (used + rest[0] * rest[1] * fastest) / count) >= most:
                continue
            # Both read all of one operand, at different times.
            moved = elements + (M * K if across else K * N)
            for second, rows, columns, other in tiles:
                # -(-x // y) is cdiv(x, y) without a call: this runs for every pair of forms.
                more = -(-rest[0] // rows) * -(-rest[1] // columns)
                longer = other + STARTING
                if max(ready + longer, (used + more * longer) / count) >= most:
                    continue
                busy = _end(ready, last, count - late, late, longer, more)
                power = 2 * K * (number * m * n + more * rows * columns) / flops
                busy = (busy**12 + power**12) ** (1 / 12)
                both = math.hypot(busy, moved * dtype.itemsize / bandwidth)
                if both < time:
                    time, best = both, first._replace(rest=Rest(across, begin, second))
                    most = _without(time, reads, multiplies)
    return best


def _without(time: float, reads: float, multiplies: float) -> float:
    """The seconds that multiprocessors may be busy in a pair that takes less than ``time``."""
    busy = math.sqrt(max(0.0, time**2 - reads**2))
    return max(0.0, busy**12 - multiplies**12) ** (1 / 12)


def _cuts(first: Configuration, M: int, N: int, count: int) -> Iterator[tuple[bool, int]]:
    """Whether the rest is of columns, and where it begins: after about as many rows or columns of
    tiles as fill all but the last wave, or all but the last two."""
    m, n, *_ = first.tiles
    rows, columns = cdiv(M, m), cdiv(N, n)
    waves = (rows * columns - 1) // count
    for across, side, number, other in ((False, m, rows, columns), (True, n, columns, rows)):
        fitting = {w * count // other - less for w in (waves, waves - 1) for less in (0, 1)}
        for each in fitting:
            if 0 < each < number and each * side % STEP == 0:
                yield across, each * side


def _end(ready: float, last: float, early: int, late: int, each: float, number: int) -> float:
    """When ``number`` more programs are done, which take ``each`` seconds: ``early``
    multiprocessors are ready for them at ``ready``, ``late`` ones at ``last``."""
    between = last - ready
    rounds = 1
    while True:  # of the early ones
        if early * rounds + late * max(0, math.floor(rounds - between / each)) >= number:
            end = ready + rounds * each
            break
        rounds += 1
    if not late:
        return end
    rounds = 0
    while True:  # or of the late ones
        if late * rounds + early * math.floor(rounds + between / each) >= number:
            return max(last, min(end, last + rounds * each))
        rounds += 1
