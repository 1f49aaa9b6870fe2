"""Whether a kernel can compute a problem, and how fast it is relative to the alternative.

A score is the expected speed relative to what would run otherwise: 1.1 means ten per cent faster
than eager's kernels, or than Inductor's if Inductor compiles the rest. It has one of two sources:

- For products of 16-bit matrices on compute capability 9.0, the times of our kernel and of the
  alternative for these sizes, by the models of :mod:`triton_kernels.gemm.rivals`.
- For everything else, entries of the op files. These are coarse: an entry has the lowest speed of
  the measured cases that it covers, from docs/benchmarks/h200.json.

The figures behind both were measured by :func:`triton_kernels.tune` on this machine, or ship.
Scores of products are estimated on GPUs that were not measured. On all GPUs these scores are
estimated: those of kernels whose entries say so, of products with scaled columns, and of
activations that a graph composes. A problem that no entry covers has score 0.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace
from typing import NamedTuple

import torch

from triton_kernels import _arguments, _elementwise_kernels, _launch, _measured, ops
from triton_kernels._fusion import Entry
from triton_kernels._fusion import Problem as Problem
from triton_kernels._gpu import Gpu, Peaks, peaks
from triton_kernels._measured import Rates
from triton_kernels.activations import ACTIVATIONS
from triton_kernels.gemm import model, rivals
from triton_kernels.gemm.gluon import availability

# Kernel → the entries of its op file. The first entry that covers a problem counts.
ENTRIES: dict[str, tuple[Entry, ...]] = {
    kernel: entries for fusion in ops.FUSIONS for kernel, entries in fusion.speeds.items()
}
# The least score at which a kernel is taken. Below it there is no gain on the GPU, and an eager
# call of one of these functions takes longer on the host than torch's own.
MIN_SCORE = 1.01

# Assumed values of sizes that are unknown when a graph is planned: of a dynamic batch, or of inputs
# that replace_modules does not see. The mean of their scores counts.
USUAL = {"M": (64, 512, 4096, 16384), "N": (1024, 4096), "K": (1024, 4096)}

# The sources of a score; of the last one, :mod:`triton_kernels.graph.racing`.
MEASURED, SHIPPED, ESTIMATED, TIMED = "measured here", "shipped", "estimated", "timed"


class Verdict(NamedTuple):
    """Whether a kernel is taken.

    Attributes:
        score: its score; None if the kernel cannot run at all.
        refusal: why it is not taken; "" if it is.
        source: one of the sources, or "".
    """

    score: float | None
    refusal: str = ""
    source: str = ""


class Sourced(NamedTuple):
    """An entry, and the source of its figures."""

    entry: Entry
    source: str


def judge(problem: Problem, min_score: float) -> Verdict:
    """Whether the kernel can compute the problem, with a score of at least ``min_score``."""
    unable = _unable(problem)
    if unable:
        return Verdict(None, unable)
    gpu = _launch.gpu(_elementwise_kernels.flat_kernel, problem.device)
    holding = entries(problem.kernel, gpu)
    covering = next((each for each in holding if each.entry.covers(problem, gpu)), None)
    if covering is not None:
        if covering.entry.timed and rivals.known(problem.dtype, gpu):
            score, source = timed(problem, gpu), covering.source
        else:
            score, source = relative(covering.entry, problem.other), covering.source
            if source == ESTIMATED:
                score *= 1 + saved(problem, peaks(gpu, _launch.bandwidth(problem.device)))
        if problem.scaled:
            score *= scaling(problem, peaks(gpu, _launch.bandwidth(problem.device)))
            source = ESTIMATED
        if (activation := ACTIVATIONS.get(problem.act or "")) and activation.written:
            # It was not measured. Eager passes over memory for each of its operations. Inductor
            # passes once, and this pass may take less time than the curve in an epilogue.
            source = ESTIMATED
            if problem.other == "inductor" and not activation.straight:
                score = min(score, 1.0)
        return verdict(problem, score, source, min_score)
    what = f"{_name(problem.dtype)} on capability {gpu.capability}"
    if problem.precision != "ieee":
        what += f" in precision {problem.precision}"
    if min_score > 0:
        return Verdict(0.0, _refused(problem, f"not measured for {what}", min_score))
    return Verdict(0.0)


def verdict(problem: Problem, score: float, source: str, min_score: float) -> Verdict:
    """Whether a kernel with this score is taken."""
    if score >= min_score:
        return Verdict(score, "", source)
    word = source if source in (ESTIMATED, TIMED) else "expected"
    what = f"{score:.2f} of {problem.other}'s speed {word} for {_name(problem.dtype)}"
    return Verdict(score, _refused(problem, what, min_score), source)


def _refused(problem: Problem, what: str, min_score: float) -> str:
    return f"{problem.kernel}: {what}, below min_score {min_score:g}"


def relative(entry: Entry, other: str) -> float:
    """The speed of an entry relative to eager's or to Inductor's."""
    return entry.inductor if other == "inductor" else entry.eager


def timed(problem: Problem, gpu: Gpu) -> float:
    """The alternative's time divided by our kernel's; the geometric mean over the assumed values of
    unknown sizes."""
    rates, _ = rates_of(gpu, problem.device)
    kernels = availability.expected(gpu, problem.device)
    sizes = zip(USUAL.items(), problem[4:7])
    tried = [usual if size is None else (size,) for (_, usual), size in sizes]
    logs = []
    for M, N, K in itertools.product(*tried):
        if not M or not N or not K:
            return 0.0  # there is nothing to gain
        layer = rivals.Layer(M, N, K, problem.dtype, problem.act)
        theirs = rivals.theirs(layer, gpu, rates, problem.other, problem.extra)
        logs.append(math.log(theirs / rivals.ours(layer, gpu, rates, kernels)))
    return math.exp(sum(logs) / len(logs))


def rates_of(gpu: Gpu, device: torch.device) -> tuple[Rates, str]:
    """The rates behind products' times on a GPU, and their source."""
    rates = _measured.rates(gpu)
    if rates is not None:
        measured = _measured.measurement(gpu)
        return rates, SHIPPED if measured is None or measured.rates is None else MEASURED
    limits = peaks(gpu, _launch.bandwidth(device))
    other = _measured.RATES[_measured.SHIPPED_OF]
    bandwidth = model.MEMORY * limits.bandwidth
    return other._replace(flops=limits.flops, bandwidth=bandwidth), ESTIMATED


@functools.cache
def entries(kernel: str, gpu: Gpu) -> tuple[Sourced, ...]:
    """The entries in use for a kernel on a GPU. The first that covers a problem counts."""
    shipped = ENTRIES.get(kernel, ())
    measurement = _measured.measurement(gpu)
    speeds = {} if measurement is None else measurement.speeds.get(kernel, {})
    holding = []
    for place, entry in enumerate(shipped):
        alike = [other for other in shipped if other.dtypes == entry.dtypes]
        if entry.timed and rivals.known(entry.dtypes[0], gpu):
            if entry.aligned is not None:
                continue  # the models of times consider alignment themselves
            eager, inductor = entry.eager, entry.inductor
            _, source = rates_of(gpu, torch.device("meta"))
        elif place in speeds:
            eager, inductor = speeds[place]
            source = MEASURED
        elif _stands_for(entry, gpu):
            eager, inductor = entry.eager, entry.inductor
            source = ESTIMATED if entry.estimated else SHIPPED
        elif not any(_stands_for(other, gpu) for other in alike):
            # Not measured for this GPU: the lowest speed measured elsewhere, at most 1.
            eager = min(1.0, *(min(other.eager, other.elsewhere) for other in alike))
            inductor = min(1.0, *(min(other.inductor, other.elsewhere) for other in alike))
            source = ESTIMATED
        else:
            continue
        entry = replace(entry, eager=eager, inductor=inductor, capabilities=())
        holding.append(Sourced(entry, source))
    return tuple(holding)


def _stands_for(entry: Entry, gpu: Gpu) -> bool:
    return not entry.capabilities or gpu.capability in entry.capabilities


def saved(problem: Problem, limits: Peaks) -> float:
    """The time that fusing saves, as a fraction of the product's own time, both by the roofline
    model: the alternative reads the product for the activation and writes it again, unless it
    passes over the result in any case. 0 if sizes or the activation are unknown."""
    M, N, K = problem.M, problem.N, problem.K
    if not M or not N or not K or problem.act in (None, "none"):
        return 0.0
    size = problem.dtype.itemsize
    moved = (M * K + K * N + M * N) * size
    product = max(2 * M * N * K / limits.flops, moved / limits.bandwidth)
    tensors = 2 if problem.extra is None else problem.extra
    return tensors * M * N * size / limits.bandwidth / product


def scaling(problem: Problem, limits: Peaks) -> float:
    """The factor of a score for scaling the weight first, by the roofline model: we pass over the
    weight, eager over the product. In Inductor that is part of the epilogue's pass, which the score
    includes."""
    M, N, K = problem.M, problem.N, problem.K
    if not M or not N or not K:
        return 1.0
    size = problem.dtype.itemsize
    moved = (M * K + K * N + M * N) * size
    product = max(2 * M * N * K / limits.flops, moved / limits.bandwidth)
    theirs = 0 if problem.other == "inductor" else 2 * M * N * size / limits.bandwidth
    return (product + theirs) / (product + 2 * N * K * size / limits.bandwidth)


def _unable(problem: Problem) -> str:
    """Why the kernel cannot run at all, or ""."""
    if problem.dtype not in _arguments.FLOATS:
        return f"dtype {_name(problem.dtype)}"
    device = problem.device.type
    interpreted = _launch.interpreted(_elementwise_kernels.flat_kernel)
    if device not in ("cuda", "cpu", "meta"):  # on meta nothing runs; plans are made as for an H200
        return f"on device {device}"
    if device == "cpu" and not interpreted:
        return "on cpu, outside triton_kernels.interpret()"
    return ""


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
