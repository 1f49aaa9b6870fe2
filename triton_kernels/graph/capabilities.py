"""What each kernel can take, and how fast it is against what would run otherwise.

A score is the expected speed relative to that alternative: 1.1 means ten per cent faster than
eager's kernels, or than Inductor's where Inductor compiles the rest. The figures are coarse: the
least of the measured cases that an entry covers. They are those of :func:`triton_kernels.tune` on
this machine, or else those of the op files, from docs/benchmarks on an H200: h200.json, and the
samples for what is not aligned or fills its last wave badly. For products on a GPU that nobody
measured they are estimated, and for kernels whose entries say so, products whose columns are scaled
and activations that a graph composes. What neither covers scores 0.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import NamedTuple

import torch

from triton_kernels import _arguments, _elementwise_kernels, _launch, _measured, ops
from triton_kernels._fusion import Entry
from triton_kernels._fusion import Problem as Problem
from triton_kernels._gpu import Gpu, Peaks, peaks
from triton_kernels.activations import ACTIVATIONS

# Kernel → what was measured, as its op file has it. The first entry that covers a problem holds.
ENTRIES: dict[str, tuple[Entry, ...]] = {
    kernel: entries for fusion in ops.FUSIONS for kernel, entries in fusion.speeds.items()
}
# The least score at which a kernel is taken. Below it nothing is gained, and an eager call of one
# of these functions takes longer on the host than torch's own.
MIN_SCORE = 1.01

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


@functools.cache
def entries(kernel: str, gpu: Gpu) -> tuple[Sourced, ...]:
    """What holds for a kernel on a GPU; the first that covers a problem counts."""
    shipped = ENTRIES.get(kernel, ())
    measurement = _measured.measurement(gpu)
    speeds = {} if measurement is None else measurement.speeds.get(kernel, {})
    holding = []
    for place, entry in enumerate(shipped):
        alike = [other for other in shipped if other.dtypes == entry.dtypes]
        if place in speeds:
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
