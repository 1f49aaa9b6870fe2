"""What each kernel can take, and how fast it is against what would run otherwise.

A score is the expected speed relative to that alternative: 1.1 means ten per cent faster than
eager's kernels, or than Inductor's where Inductor compiles the rest. It comes from one of two:

- Products of 16-bit matrices on compute capability 9.0 by their times, ours and the other's, as
  :mod:`triton_kernels.gemm.rivals` tells them for these very sizes.
- All else by entries in the op files, which are coarse: the least of the measured cases that one
  covers, from docs/benchmarks/h200.json.

What both rest on is measured by :func:`triton_kernels.tune` on this machine, or else ships. On a
GPU that nobody measured scores of products are estimated, and everywhere those of kernels whose
entries say so, of products whose columns are scaled and of activations that a graph composes. What
no entry covers scores 0.
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

# Kernel → what was measured, as its op file has it. The first entry that covers a problem holds.
ENTRIES: dict[str, tuple[Entry, ...]] = {
    kernel: entries for fusion in ops.FUSIONS for kernel, entries in fusion.speeds.items()
}
# The least score at which a kernel is taken. Below it nothing is gained, and an eager call of one
# of these functions takes longer on the host than torch's own.
MIN_SCORE = 1.01

# Sizes that one may have that nobody knows when a graph is planned: a dynamic batch, or what
# replace_modules does not see. Of their scores the mean counts.
USUAL = {"M": (64, 512, 4096, 16384), "N": (1024, 4096), "K": (1024, 4096)}

# Where a score comes from.
MEASURED, SHIPPED, ESTIMATED = "measured here", "shipped", "estimated"


class Verdict(NamedTuple):
    """Whether a kernel is taken. ``score`` is None where the kernel cannot run at all; ``source``
    is one of the three above, or nothing."""

    score: float | None
    refusal: str = ""
    source: str = ""


class Sourced(NamedTuple):
    """An entry, and where its figures come from."""

    entry: Entry
    source: str


def judge(problem: Problem, min_score: float) -> Verdict:
    """Whether the kernel is able to compute the problem, and fast enough to."""
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
            # Nobody measured it. Eager passes over memory for each of its operations; Inductor
            # does once, and the curve may keep an epilogue longer than that pass takes.
            source = ESTIMATED
            if problem.other == "inductor" and not activation.straight:
                score = min(score, 1.0)
        word = ESTIMATED if source == ESTIMATED else "expected"
        what = f"{score:.2f} of {problem.other}'s speed {word} for {_name(problem.dtype)}"
    else:
        score, source = 0.0, ""
        what = f"{_name(problem.dtype)} on capability {gpu.capability}"
        if problem.precision != "ieee":
            what += f" in precision {problem.precision}"
        what = f"not measured for {what}"
    if score < min_score:
        refusal = f"{problem.kernel}: {what}, below min_score {min_score:g}"
        return Verdict(score, refusal, source)
    return Verdict(score, "", source)


def relative(entry: Entry, other: str) -> float:
    """The speed of an entry relative to eager's or to Inductor's."""
    return entry.inductor if other == "inductor" else entry.eager


def timed(problem: Problem, gpu: Gpu) -> float:
    """The time of the other by that of our kernel; the mean over what the unknown sizes may be."""
    rates, _ = rates_of(gpu, problem.device)
    kernels = availability.expected(gpu, problem.device)
    sizes = zip(USUAL.items(), problem[4:7])
    tried = [usual if size is None else (size,) for (_, usual), size in sizes]
    logs = []
    for M, N, K in itertools.product(*tried):
        if not M or not N or not K:
            return 0.0  # there is nothing to gain
        layer = rivals.Layer(M, N, K, problem.dtype, problem.act)
        theirs = rivals.theirs(layer, gpu, rates, problem.other)
        logs.append(math.log(theirs / rivals.ours(layer, gpu, rates, kernels)))
    return math.exp(sum(logs) / len(logs))


def rates_of(gpu: Gpu, device: torch.device) -> tuple[Rates, str]:
    """What the times of products rest on, and where that comes from."""
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
    """What holds for a kernel on a GPU; the first that covers a problem counts."""
    shipped = ENTRIES.get(kernel, ())
    measurement = _measured.measurement(gpu)
    speeds = {} if measurement is None else measurement.speeds.get(kernel, {})
    holding = []
    for place, entry in enumerate(shipped):
        alike = [other for other in shipped if other.dtypes == entry.dtypes]
        if entry.timed and rivals.known(entry.dtypes[0], gpu):
            if entry.aligned is not None:
                continue  # times know that themselves
            eager, inductor = entry.eager, entry.inductor
            _, source = rates_of(gpu, torch.device("meta"))
        elif place in speeds:
            eager, inductor = speeds[place]
            source = MEASURED
        elif _stands_for(entry, gpu):
            eager, inductor = entry.eager, entry.inductor
            source = ESTIMATED if entry.estimated else SHIPPED
        elif not any(_stands_for(other, gpu) for other in alike):
            # Without the epilogue's saving as slow as it ever was, where it was measured.
            eager = min(1.0, *(other.eager for other in alike))
            inductor = min(1.0, *(other.inductor for other in alike))
            source = ESTIMATED
        else:
            continue
        entry = replace(entry, eager=eager, inductor=inductor, capabilities=())
        holding.append(Sourced(entry, source))
    return tuple(holding)


def _stands_for(entry: Entry, gpu: Gpu) -> bool:
    return not entry.capabilities or gpu.capability in entry.capabilities


def saved(problem: Problem, limits: Peaks) -> float:
    """What fusing saves a product, as a part of the time that the product alone takes, both by the
    roofline: the alternative writes the product, reads it for the activation and writes it again.
    What is not known saves nothing."""
    M, N, K = problem.M, problem.N, problem.K
    if not M or not N or not K or problem.act in (None, "none"):
        return 0.0
    size = problem.dtype.itemsize
    moved = (M * K + K * N + M * N) * size
    product = max(2 * M * N * K / limits.flops, moved / limits.bandwidth)
    return 2 * M * N * size / limits.bandwidth / product


def scaling(problem: Problem, limits: Peaks) -> float:
    """What scaling the weight first is worth, by the roofline: a pass over the weight, where eager
    passes over the product. Inductor has that pass with the epilogue's, which scores count."""
    M, N, K = problem.M, problem.N, problem.K
    if not M or not N or not K:
        return 1.0
    size = problem.dtype.itemsize
    moved = (M * K + K * N + M * N) * size
    product = max(2 * M * N * K / limits.flops, moved / limits.bandwidth)
    theirs = 0 if problem.other == "inductor" else 2 * M * N * size / limits.bandwidth
    return (product + theirs) / (product + 2 * N * K * size / limits.bandwidth)


def _unable(problem: Problem) -> str:
    """Why the kernel cannot run at all, or nothing."""
    if problem.dtype not in _arguments.FLOATS:
        return f"dtype {_name(problem.dtype)}"
    device = problem.device.type
    interpreted = _launch.interpreted(_elementwise_kernels.flat_kernel)
    if device not in ("cuda", "cpu", "meta"):  # on meta nothing runs: a plan as for an H200
        return f"on device {device}"
    if device == "cpu" and not interpreted:
        return "on cpu, outside triton_kernels.interpret()"
    return ""


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
