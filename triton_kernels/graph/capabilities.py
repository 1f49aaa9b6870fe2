"""What each kernel can take, and how fast it is against what would run otherwise: one table.

A score is the expected speed relative to that alternative: 1.1 means ten per cent faster than
eager's kernels, or than Inductor's where Inductor compiles the rest. The figures are coarse: the
least of the measured cases that an entry covers, from docs/benchmarks/h200.json (NVIDIA H200,
2026-11-21; shapes that fill their last wave badly: docs/FACTS.md of the same day). What no entry
covers was not measured, and scores 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from triton_kernels import _arguments, _elementwise, _launch
from triton_kernels._gemm import HALVES

SINGLE = (torch.float32,)
# The least score at which a kernel is taken. Below it nothing is gained, and an eager call of one
# of these functions takes longer on the host than torch's own.
MIN_SCORE = 1.01


class Problem(NamedTuple):
    """What a kernel is to compute. M, N and K are None for elementwise kernels, or where unknown.

    ``other`` is who computes it otherwise: "eager" or "inductor".
    """

    kernel: str
    dtype: torch.dtype
    device: torch.device
    other: str
    M: int | None = None
    N: int | None = None
    K: int | None = None


class Verdict(NamedTuple):
    """Whether a kernel is taken. ``score`` is None where the kernel cannot run at all."""

    score: float | None
    refusal: str = ""


@dataclass(frozen=True)
class Entry:
    """Measured: the speed of a kernel relative to eager's and to Inductor's, under conditions.

    Attributes:
        capabilities: compute capabilities for which the figures stand; empty for any, where
            bandwidth decides.
        aligned: whether rows of x and of the weight are multiples of 16 bytes; None: either way.
        filled: whether the last wave of tiles fills most of the GPU; None: either way.
        rows: the least M.
        outputs: the most M·N.
    """

    kernels: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    eager: float
    inductor: float
    capabilities: tuple[int, ...] = ()
    aligned: bool | None = None
    filled: bool | None = None
    rows: int = 0
    outputs: float = math.inf

    def covers(self, problem: Problem, gpu: _launch.Gpu) -> bool:
        return (
            problem.kernel in self.kernels
            and problem.dtype in self.dtypes
            and (not self.capabilities or gpu.capability in self.capabilities)
            and self.aligned in (None, aligned(problem))
            and self.filled in (None, filled(problem, gpu))
            and (problem.M is None or problem.M >= self.rows)
            and (self.outputs == math.inf or outputs(problem) <= self.outputs)
        )


BOTH = ("linear_gelu", "gemm_bias_act")
# The first entry that covers a problem holds. Inductor makes one kernel of an elementwise chain and
# its neighbours, too: there is nothing to gain on it.
ENTRIES = (
    Entry(("relu_scale",), _arguments.FLOATS, eager=1.7, inductor=1.0),
    Entry(("relu_scale_add",), _arguments.FLOATS, eager=2.1, inductor=1.0),
    # Not timed against mul and add apart, which move five tensors where it moves three.
    Entry(("add",), _arguments.FLOATS, eager=1.6, inductor=1.0),
    Entry(("square",), _arguments.FLOATS, eager=1.0, inductor=1.0),
    Entry(BOTH, HALVES, eager=0.8, inductor=0.8, capabilities=(90,), filled=False),
    Entry(("linear_gelu",), HALVES, 1.7, 1.9, capabilities=(90,), aligned=False),
    Entry(("gemm_bias_act",), HALVES, 1.4, 0.9, capabilities=(90,), aligned=False),
    Entry(BOTH, HALVES, eager=1.07, inductor=1.06, capabilities=(90,), outputs=2048**2),
    Entry(BOTH, HALVES, eager=1.02, inductor=1.02, capabilities=(90,)),
    # "ieee" products, by multiply-add.
    Entry(("linear_gelu",), SINGLE, 0.7, 0.7, capabilities=(90,), rows=1024),
    Entry(("gemm_bias_act",), SINGLE, 0.8, 0.8, capabilities=(90,), rows=1024),
    Entry(BOTH, SINGLE, eager=0.1, inductor=0.1, capabilities=(90,)),
)


def judge(problem: Problem, min_score: float) -> Verdict:
    """Whether the kernel is able to compute the problem, and fast enough to."""
    unable = _unable(problem)
    if unable:
        return Verdict(None, unable)
    gpu = _launch.gpu(_elementwise.flat_kernel, problem.device)
    entry = next((entry for entry in ENTRIES if entry.covers(problem, gpu)), None)
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


def aligned(problem: Problem) -> bool:
    """Whether rows of K and of N elements are multiples of 16 bytes; taken so where unknown."""
    step = 16 // problem.dtype.itemsize
    return (problem.K or 0) % step == 0 and (problem.N or 0) % step == 0


def outputs(problem: Problem) -> float:
    """M·N; infinite where unknown."""
    return math.inf if problem.M is None or problem.N is None else problem.M * problem.N


def filled(problem: Problem, gpu: _launch.Gpu) -> bool:
    """Whether tiles of 128 × 256, one a multiprocessor at a time, keep four fifths of them busy.

    Less than half a wave is cut into smaller tiles, and what is unknown is taken to be large.
    """
    waves = outputs(problem) / (128 * 256 * gpu.multiprocessors)
    return waves < 0.5 or math.isinf(waves) or waves / math.ceil(waves) >= 0.8


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
