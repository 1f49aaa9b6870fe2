"""What each kernel can take, and how fast it is against what would run otherwise.

A score is the expected speed relative to that alternative: 1.1 means ten per cent faster than
eager's kernels, or than Inductor's where Inductor compiles the rest. The figures are coarse: the
least of the measured cases that an entry covers, from docs/benchmarks/h200.json (NVIDIA H200,
2026-11-21; shapes that fill their last wave badly: docs/FACTS.md of the same day). What no entry
covers was not measured, and scores 0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from triton_kernels import _arguments, _elementwise, _launch, ops
from triton_kernels._fusion import Entry, Problem

# Kernel → what was measured, as its op file has it. The first entry that covers a problem holds.
ENTRIES: dict[str, tuple[Entry, ...]] = {
    kernel: entries for fusion in ops.FUSIONS for kernel, entries in fusion.speeds.items()
}
# The least score at which a kernel is taken. Below it nothing is gained, and an eager call of one
# of these functions takes longer on the host than torch's own.
MIN_SCORE = 1.01


class Verdict(NamedTuple):
    """Whether a kernel is taken. ``score`` is None where the kernel cannot run at all."""

    score: float | None
    refusal: str = ""


def judge(problem: Problem, min_score: float) -> Verdict:
    """Whether the kernel is able to compute the problem, and fast enough to."""
    unable = _unable(problem)
    if unable:
        return Verdict(None, unable)
    gpu = _launch.gpu(_elementwise.flat_kernel, problem.device)
    entries = ENTRIES.get(problem.kernel, ())
    entry = next((entry for entry in entries if entry.covers(problem, gpu)), None)
    if entry is None:
        score, what = 0.0, f"not measured for {_name(problem.dtype)} on capability {gpu.capability}"
    else:
        score = entry.inductor if problem.other == "inductor" else entry.eager
        what = f"{score:.2f} of {problem.other}'s speed expected for {_name(problem.dtype)}"
    if score < min_score:
        return Verdict(score, f"{problem.kernel}: {what}, below min_score {min_score:g}")
    return Verdict(score)


def _unable(problem: Problem) -> str:
    """Why the kernel cannot run at all, or nothing."""
    if problem.dtype not in _arguments.FLOATS:
        return f"dtype {_name(problem.dtype)}"
    device = problem.device.type
    interpreted = _launch.interpreted(_elementwise.flat_kernel)
    if device not in ("cuda", "cpu"):
        return f"on device {device}"
    if device == "cpu" and not interpreted:
        return "on cpu, outside triton_kernels.interpret()"
    return ""


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
