"""A model of a product's time in a configuration.

Three things take time: the tensor cores multiply, each multiprocessor loads, and the memory moves
each matrix once. Multiplying and loading overlap. The slower one counts most, but each slows the
other down where both take about as long: their times are combined as (x⁴ + y⁴)^¼. So is a loop
with the epilogue that runs beside it. Loads take longer if rows start within lines of L2. The
memory is shared by all multiprocessors; its time and theirs are combined as √(x² + y²). If K is
split, adding the parts of a tile comes last.

Of kernels by descriptors the fractions in gemm.gluon.forms, OF_ROWS, TURN and HALF_LINES were set
so that the choice takes least time on 820 drawn products of bfloat16 matrices, in configurations
that were near the fastest (H200, triton 3.6). Of what was timed, the chosen take 1.008 times as
long as the best (geometric mean; 1.05 at the 95th percentile); if set by one half, 1.009 times in
the other. Not all forms were there when the first 524 were timed; in the last 296, in all that the
model puts within 22 % of its best, it is 1.008 times, too (1.04). The other constants were fitted
before to the times of 206 products, 140 on an H200 and 66 on H100s. H100s were not timed since. The
bandwidth is an H200's for both cards; an H100's own chose no better. tf32 has the rates of 16 bits,
without times of its own: a step has as many bytes, and takes the tensor cores as long.

The other constants were fitted to 88 products on the H200. MULTIPLY_ADD and LONG_STEP are for tf32
and ieee, of which 12 and 14 problems were examined. LONG_STEP also applies to few rows of odd
length: two problems with one row were timed in 36 and 42 configurations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from triton_kernels._counts import cdiv
from triton_kernels._gpu import Gpu, Peaks, peaks
from triton_kernels.gemm.configurations import (
    ALIGNED,
    DOT_ROWS,
    FEW_ROWS,
    SLOW,
    Configuration,
    Problem,
)

MEMORY = 0.9  # fraction of the peak bandwidth
# Fraction of the tensor cores' peak that all together sustain. Power is limited, so it also counts
# how much is multiplied, padding included, and not only how many waves there are: 12432×832×10624
# took 1.3 times as long in tiles of 128×256 as of 256×128, in the same number of waves (H100).
SUSTAINED = 0.87
BY_DESCRIPTORS = 1.38e11  # bytes/s that one multiprocessor loads by descriptors
THROUGH_POINTERS = 7e10  # and through pointers
UNALIGNED = 3.4  # factor for loads through pointers of 16-bit rows of K that start at no vector
# The same of rows that go across K, by the bytes that divide their pitch: of 8 seven products were
# timed, of fewer six (H100).
PIECES = {16: 1.0, 8: 1.6, 4: 2.4, 2: 3.4}
# Factors for loads of a matrix by its pitch, see Problem. A tile's rows have 128 bytes, as lines of
# L2; if they start within a line they are in two, and with an odd multiple of 16 bytes also within
# a sector. Through pointers only sectors matter.
PITCHES = {128: 1.0, 64: 1.37, 32: 1.37, 16: 2.5, 8: 1.0, 4: 1.0, 2: 1.0}  # below 16: copied
COPYING = 4e-6  # least seconds of the launch that copies operands without a descriptor
# Of one that copies others, for their slow pitch: its least seconds, and the fraction of the peak
# bandwidth. Fitted with PITCHES[16] to 134 drawn products of bfloat16 matrices in all ways of
# copying and about seven configurations each (H200): the chosen ways and configurations take 1.016
# times as long as the best, where a rule by M and N came to 1.05; on 111 others 1.018 times.
ALIGNING, COPIED = 2e-6, 0.7
SECTOR = 32  # bytes
# Factor for loads by descriptors of rows that go across K; and another one if a tile has rows of
# half a line. By the model without them tiles of 160 columns took 1.26 times as long as said with
# such a b, 1.09 times with rows of K (26 and 121 products, H100). With 1.15 for the first the model
# said 7 % too much of products with such a b and few tiles, and 1 % too little of those with rows
# of K (378 drawn ones, H200).
ACROSS, HALF_LINES = 1.05, 1.4
# Of such rows through pointers in tiles of less than a line: eleven times in tiles of 64×32 were
# 1.33 times what the model said, on average (H200).
NARROW_B = 1.7
RESIDENT = 4  # programs of gemm_bias_act_kernel on a multiprocessor at once
MULTIPLY_ADD = 3e11  # float32 operations/s of a multiprocessor without tensor cores
STEP = 2.1e-7  # least seconds of a step of K in one program, until its loads arrive
LONG_STEP = 1.7e-6  # the same with multiply-adds per operand, or if it waits for every load
EPILOGUE = 1e-10  # seconds per element, on one multiprocessor
OF_ROWS = 0.83  # factor for the epilogue of a transpose, whose bias is one of rows
TURN = 1e-7  # seconds between the tiles of two consumers that alternate
ADDEND = 1.6  # factor for the epilogue with an addend c
# The same of a transpose, whose threads load single elements of c. On 37 products with c the chosen
# take 1.006 times as long as the best of what was timed (H200).
TURNED_ADDEND = 3.5
MEETING = 1e-6  # seconds until the last program of a tile knows that it is the last
ADDING = 4e10  # bytes/s at which it adds the parts
# The same of tiles of 128×128 or more, whose parts take long to be stored.
ADDING_LARGE = 1.5e10
# The same two of Gluon's forms on tensor cores, where two programs that meet add a half each. Of
# 569 drawn products of few tiles, each timed in two forms or more, the choice takes 1.017 times as
# long as the best (H200).
HALVING, HALVING_LARGE = 5.5e10, 2.8e10
# Of programs that together reach a multiprocessor's peak, which are those of gemm_gluon_fma_kernel
# and of float64. Fitted to 100 drawn problems in all configurations of the former and their splits:
# the chosen took 1.01 times as long as the best, and 1.02 times if fitted to the other half. For
# float64 only the configurations' rates were fitted.
PEAKS = {4: 4.47e11, 8: 5.07e11}  # bytes of an element → operations/s of a multiprocessor
BUSY = 8.2  # warps on a multiprocessor that reach a configuration's rate
LESS = 0.45  # with fewer warps the rate falls with this power of their number
LEAD = 30  # elements of K that take as long as a program's start
ROUND = 1.4e-6  # seconds until the first loads of programs that start together arrive
# Of gemm_gluon_f16x3_kernel after the split, beside multiply-adds in one launch. Fitted to 48 drawn
# problems on an H100, which were timed in both ways. The faster way was 1.78 times as fast as the
# best peer, and so was the one that the model takes; of another 48 these were 1.79 and 1.78.
IN_PARTS = 0.7  # fraction of the tensor cores' peak that its loop reaches
SPLIT = 4e-6  # seconds that its further launches take
# Of gemm_gluon_cluster_kernel, whose programs load for each other: bytes/s that one loads, and that
# L2 gives to each when all load; the power of PITCHES; the least seconds of a step, and those of
# the start. Of 132 multiprocessors 120 can run clusters of four. Fitted to the times of 240 drawn
# products in four forms each, so that the choice loses least, and those near the best fit (H200).
SHARED, OF_L2, SHARED_PITCH = 1.46e11, 1.14e11, 0.26
SHARED_STEP, SHARED_START = 9.6e-8, 6.8e-7
CLUSTERS_OF_4 = 120 / 132
REGISTERS = 65536  # of a multiprocessor


class FewRows(NamedTuple):
    """What few rows of 16-bit matrices take in programs of one kind. A multiprocessor's time for
    what its programs load is added to that of its programs one after the other, as many at once as
    fit.

    Attributes:
        loads: bytes/s that a multiprocessor loads.
        start: seconds that the launch takes longer than one through pointers.
        program, step: seconds of a program, and of each of its steps.
        meeting, adding: as MEETING and ADDING.
    """

    loads: float
    start: float
    program: float
    step: float
    meeting: float = 1.8e-6
    adding: float = 4.4e10


# Fitted to the times of 210 drawn and named products in all their configurations (H200, triton
# 3.6). The chosen take 1.021 times as long as the best, 1.025 if fitted to the other half. DOT and
# WAITING have tensor cores; the latter's programs wait for the loads of each step.
VECTOR = FewRows(1.33e11, 0.0, 0.62e-6, 0.5e-6)
DOT = FewRows(1.33e11, 0.0, 1.2e-6, 0.18e-6)
WAITING = DOT._replace(step=0.77e-6)
TURNED = FewRows(1.4e11, 1.3e-6, 0.5e-6, 0.0, 1.3e-6, 8.5e10)  # gemm_gluon_kernel
# The same in tiles of 32 rows: with 13 to 55 parts they take 1.04 to 1.1 times as long as tiles
# through pointers (three products, H200).
TURNED_32 = TURNED._replace(adding=6e10)
FEW_PITCHES = {128: 1.0, 64: 1.0, 32: 1.0, 16: 1.75, 8: 3.3, 4: 4.2, 2: 4.2}  # as PITCHES
VECTOR_PITCHES = {**dict.fromkeys(FEW_PITCHES, 1.0), 2: 3.3}  # of VECTOR: loads go to registers
FEW_COPYING = 0.64  # fraction of the usual time for copies: they are still in L2 when loaded


def synchronous(problem: Problem) -> bool:
    """Whether a program waits for its loads through pointers in each step. It does if they go to
    registers: asynchronous copies to shared memory need at least 4 aligned bytes."""
    odd = problem.K * problem.dtype.itemsize % 4 != 0
    (of_a, of_b), (a_across, b_across) = problem.pitches, problem.across
    return (of_a < 4 if a_across else odd) or (of_b < 4 if b_across else odd)


def copying(
    problem: Problem, gpu: Gpu, copies: tuple[bool, bool], peak: Peaks | None = None
) -> float:
    """Seconds of copying operands, as in a Configuration, for their slow pitch. One launch also
    copies what has no descriptor, whose seconds :func:`timed` knows."""
    M, N, K, dtype, *_ = problem
    copied = (M * K if copies[0] else 0) + (K * N if copies[1] else 0)
    if not copied:
        return 0.0
    launch = ALIGNING if min(problem.pitches) >= SLOW else 0.0
    return launch + 2 * copied * dtype.itemsize / ((peak or peaks(gpu)).bandwidth * COPIED)


def timed(problem: Problem, gpu: Gpu, peak: Peaks | None = None) -> Callable[..., list[float]]:
    """A function that gives the seconds of a problem in a configuration, without the launch, for
    several numbers of parts into which K is split.

    Its arguments are the configuration, the fraction of the peak that the loop of a kernel by
    descriptors reaches, or several programs together, 0 for others; and the numbers of parts.
    ``loads`` and ``epilogue`` are factors of the usual times of these. ``peak`` are the GPU's
    rates, if they are better known than by :func:`peaks`.
    """
    M, N, K, dtype, _, _, c, _, (of_a, of_b), (a_across, b_across) = problem
    itemsize, multiprocessors, peak = dtype.itemsize, gpu.multiprocessors, peak or peaks(gpu)
    line = ALIGNED // itemsize
    elements = M * K + K * N + M * N * (2 if c else 1)
    moved = elements * itemsize / (peak.bandwidth * MEMORY)
    addend, turned = (ADDEND, OF_ROWS * TURNED_ADDEND) if c else (1.0, OF_ROWS)
    by_cores, kind = problem.by_cores, problem.of_any_size()
    a_loads = PITCHES[of_a] * (ACROSS if a_across else 1.0)
    b_loads = PITCHES[of_b] * (ACROSS if b_across else 1.0)
    sectors = PITCHES[of_b] if of_b < SECTOR else 1.0
    unaligned = UNALIGNED * 2 / itemsize if K * itemsize % 16 else 1.0
    a_pieces = PIECES[min(of_a, 16)] if a_across else unaligned
    b_pieces = PIECES[min(of_b, 16)] if b_across else unaligned
    copied = (M * K if of_a < 16 else 0) + (K * N if of_b < 16 else 0)
    copying = COPYING + 2 * copied * itemsize / (peak.bandwidth * MEMORY) if copied else 0.0
    step = STEP if by_cores and not synchronous(problem) else LONG_STEP
    if problem.few_rows:
        return _of_few(problem, gpu, moved, copying)

    def seconds(
        form: Configuration,
        reached: float,
        numbers: Sequence[int],
        loads: float = 1.0,
        epilogue: float = 1.0,
    ) -> list[float]:
        if form.cluster[0]:
            shared = _in_clusters(form, problem, gpu, peak, reached)
            return [copying + SHARED_START + math.hypot(shared, moved)]
        tma, (m, n, k, _, warps, _) = form.tma, form.tiles
        # -(-x // y) is cdiv(x, y) without a call: this runs for every form of every new shape.
        tiles, depth = -(-M // m) * -(-N // n), -(-K // k)
        together = reached and not (tma and by_cores)
        if together:
            at_once, rate = _resident(form, kind, gpu), PEAKS[itemsize] * reached
        elif tma:
            flops = peak.flops * 2 / itemsize  # tf32 at half the speed
            multiplied = 2 * m * n * k * multiprocessors / (flops * reached)
            least = 2 * tiles * m * n * k * depth / (flops * SUSTAINED)
            of_rows, of_columns = m * a_loads, n * b_loads  # rows beyond a's end are loaded, too
            if a_across and m % line:
                of_rows *= HALF_LINES
            if b_across and n % line:
                of_columns *= HALF_LINES
            loaded = loads * (of_rows + of_columns) * k * itemsize / BY_DESCRIPTORS
            each = (multiplied**4 + loaded**4) ** 0.25  # seconds of a step
            if form.TURNED:
                last = _stored_rows(form) * n * EPILOGUE * epilogue * turned
            else:
                last = m * n * EPILOGUE * epilogue * addend
        rates = (HALVING, HALVING_LARGE) if form.gluon and by_cores else (ADDING, ADDING_LARGE)
        adding = rates[m * n >= 128 * 128]
        times = []
        for parts in numbers:
            steps = -(-depth // parts)
            waves = -(-tiles * parts // multiprocessors)
            if together:
                alone = (steps * k + LEAD) * 2 * m * n / rate
                busy = _together(alone, warps, waves, at_once)
            elif tma:
                loop = steps * each
                if form.ALTERNATE:  # all epilogues but the last overlap with products
                    of_two = (loop + last) / 2 + TURN
                    busy = waves * (loop**4 + of_two**4) ** 0.25 + last
                else:
                    busy = waves * (loop + last)
                busy = (busy**12 + least**12) ** (1 / 12)
            else:
                narrow = NARROW_B if b_across and n % line else 1.0
                each = (min(m, M) * a_pieces + n * b_pieces * narrow) * k * itemsize
                loop = loads * sectors * steps * each / THROUGH_POINTERS
                if not by_cores:
                    loop = max(loop, steps * 2 * m * n * k / MULTIPLY_ADD)
                busy = max(waves * loop, cdiv(waves, RESIDENT) * steps * step)
            time = (busy**2 + moved**2) ** 0.5  # hypot without a call
            time += copying if tma else 0.0
            if parts > 1:
                time += MEETING + parts * m * n * max(4, itemsize) / adding
            times.append(time)
        return times

    return seconds


@functools.cache
def _stored_rows(form: Configuration) -> int:
    """The rows that the epilogue of a transpose's tile stores, some of them twice."""
    return form.SUBTILES * form.part


def _in_clusters(
    form: Configuration, problem: Problem, gpu: Gpu, peak: Peaks, reached: float
) -> float:
    """The seconds of the busiest multiprocessor in gemm_gluon_cluster_kernel, or of L2 if all
    together load more than it gives."""
    (rows, columns, k, *_), (below, beside) = form.tiles, form.cluster
    of_a, of_b = (PITCHES[pitch] ** SHARED_PITCH for pitch in problem.pitches)
    multiplied = 2 * rows * columns * k * gpu.multiprocessors / (peak.flops * reached)
    loaded = (rows * of_a / beside + columns * of_b / below) * k * problem.dtype.itemsize
    each = (multiplied**4 + (loaded / SHARED) ** 4 + SHARED_STEP**4) ** 0.25
    tiles, steps = form.tiles_of(problem.M, problem.N), cdiv(problem.K, k)
    busy = steps * each + rows * columns * EPILOGUE
    return math.hypot(busy, tiles * steps * loaded / (gpu.multiprocessors * OF_L2))


def programs_at_once(form: Configuration, gpu: Gpu) -> int:
    """How many programs of a form in clusters run at once."""
    share = CLUSTERS_OF_4 if math.prod(form.cluster) == 4 else 1
    return max(1, int(gpu.multiprocessors * share))


def _of_few(problem: Problem, gpu: Gpu, moved: float, copying: float) -> Callable[..., list[float]]:
    """What :func:`timed` gives for few rows of 16-bit matrices: programs only load, so ``reached``
    and the factors change nothing. ``moved`` and ``copying``: the memory's seconds, and those of
    copies for descriptors."""
    M, N, K, *_, (of_a, of_b), _ = problem
    waits, kind = synchronous(problem), problem.of_any_size()

    def seconds(
        form: Configuration, reached: float, numbers: Sequence[int], *factors: float
    ) -> list[float]:
        tma, (m, n, k, _, warps, _) = form.tma, form.tiles
        if tma:
            few, at_once = TURNED if m < FEW_ROWS else TURNED_32, 1
        elif m < DOT_ROWS:  # registers of a program by those of some compiled kernels
            few, at_once = VECTOR, max(1, int(REGISTERS / (1280 * warps + 1.6 * m * n * k)))
        elif waits:
            few, at_once = WAITING, RESIDENT
        else:
            few, at_once = DOT, min(RESIDENT, _resident(form, kind, gpu))
        pitches = VECTOR_PITCHES if few is VECTOR else FEW_PITCHES
        a_loads = pitches[ALIGNED if tma and of_a < 16 else of_a]
        b_loads = pitches[ALIGNED if tma and of_b < 16 else of_b]
        loaded = 2 * k * (min(m, M) * a_loads + n * b_loads) / few.loads
        start = few.start + (FEW_COPYING * copying if tma else 0.0)
        tiles, depth = form.tiles_of(M, N), -(-K // k)
        times = []
        for parts in numbers:
            steps, waves = -(-depth // parts), -(-tiles * parts // gpu.multiprocessors)
            rounds = -(-waves // at_once)
            busy = waves * steps * loaded + rounds * (few.program + steps * few.step)
            adding = few.meeting + parts * m * n * 4 / few.adding if parts > 1 else 0.0
            times.append(start + math.hypot(busy, moved) + adding)
        return times

    return seconds


def in_parts(problem: Problem, gpu: Gpu, tiles: float) -> float:
    """The seconds of a product in precision "f16x3", comparable with :func:`timed` of a float32
    one. ``tiles``: how many tiles of 128×128 the busiest multiprocessor computes."""
    M, N, K, *_, c, _, _, _ = problem
    peak = peaks(gpu)
    bandwidth = peak.bandwidth * MEMORY
    operands = 4 * (M + N) * K / bandwidth
    result = 4 * M * N * (2 if c else 1) / bandwidth
    flops = peak.flops / gpu.multiprocessors * IN_PARTS
    busy = tiles * 3 * 2 * 128 * 128 * K / flops
    return SPLIT + 2 * operands + math.hypot(busy, operands + result)


def _together(alone: float, warps: int, programs: int, at_once: int) -> float:
    """The seconds of so many programs on one multiprocessor, of which ``at_once`` run at the same
    time. At the full rate one takes ``alone`` seconds for each."""
    rounds, rest = divmod(programs, at_once)
    busy = 0.0
    for number, times in ((at_once, rounds), (rest, 1)):
        if number and times:
            busy += times * (ROUND + number * alone * max(1.0, BUSY / (number * warps)) ** LESS)
    return busy


@functools.lru_cache(1024)
def _resident(form: Configuration, kind: Problem, gpu: Gpu) -> int:
    """How many programs have shared memory on one multiprocessor at once, of a problem of any
    size."""
    return gpu.shared_memory // form.shared_memory(kind, gpu.capability)
