"""Measures the speeds of kernels relative to eager's and to Inductor's.

Each entry of the op files is measured by a few problems that it covers; the lowest speed counts.
Entries that are replaced by the model of times are left to rates.py. bfloat16 is measured for both
16-bit floats; float64 is not measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from triton_kernels import ops
from triton_kernels._fusion import Fusion, Probe, Problem
from triton_kernels._gpu import Gpu
from triton_kernels.gemm import rivals

CASES = 3  # cases per entry
DTYPES = (torch.bfloat16, torch.float32)
ACTS = ("gelu_tanh", "relu")  # an expensive one and a cheap one
ELEMENTS = 1 << 25  # elements for an elementwise kernel: more than a cache can hold
# M, N, K: common sizes, unaligned sizes, few rows.
SIZES = (
    *((1024, 1024, 1024), (4096, 4096, 4096), (512, 4096, 1024), (8192, 3072, 768)),
    *((333, 4097, 1023), (77, 4097, 1023), (3000, 4097, 1023), (50, 2047, 777)),
    *((32, 3072, 768), (16, 4096, 4096)),
)


class Case(NamedTuple):
    """A problem that measures an entry: the one with index ``place`` of each of the kernels."""

    kernels: tuple[str, ...]
    place: int
    probe: Probe
    problem: Problem

    def __str__(self) -> str:
        dtype = str(self.problem.dtype).removeprefix("torch.")
        if self.problem.act is None:
            return f"{self.kernels[0]} {dtype}"
        size = "×".join(map(str, self.problem[4:7]))
        return f"{self.kernels[0]} {dtype} {size} {self.problem.act}"


class Times(NamedTuple):
    """Times of the kernel, of eager and of Inductor, measured in turns."""

    ours: float
    eager: float
    inductor: float


def cases(gpu: Gpu, device: torch.device) -> list[Case]:
    """The first case of each entry, then the second ones, and so on, because time may run out."""
    groups: dict[tuple[tuple[str, ...], int], list[Case]] = {}
    for case in _candidates(gpu, device):
        alike = groups.setdefault((case.kernels, case.place), [])
        if len(alike) < CASES:
            alike.append(case)
    return [alike[i] for i in range(CASES) for alike in groups.values() if i < len(alike)]


def _candidates(gpu: Gpu, device: torch.device) -> Iterator[Case]:
    for fusion in ops.FUSIONS:
        for kernel, probe in fusion.probes.items():
            anywhere = [replace(entry, capabilities=()) for entry in fusion.speeds[kernel]]
            for problem in _problems(kernel, probe, device):
                places = (i for i, entry in enumerate(anywhere) if entry.covers(problem, gpu))
                place = next(places, None)
                timed = place is not None and anywhere[place].timed
                if place is not None and not (timed and rivals.known(problem.dtype, gpu)):
                    yield Case(_sharing(fusion, kernel), place, probe, problem)


def _sharing(fusion: Fusion, kernel: str) -> tuple[str, ...]:
    """The kernel, and the other kernels with the same entries."""
    entries = fusion.speeds[kernel]
    return (kernel, *(k for k, e in fusion.speeds.items() if e is entries and k != kernel))


def _problems(kernel: str, probe: Probe, device: torch.device) -> Iterator[Problem]:
    product = any("K" in shape for shape in probe.shapes)
    for dtype in DTYPES:
        if not product:
            yield Problem(kernel, dtype, device, "eager")
            continue
        for size in SIZES:
            for act in ACTS:
                yield Problem(kernel, dtype, device, "eager", *size, act)


def measure(
    cases: Sequence[Case], time: Callable[[Case], Times], left: Callable[[], bool]
) -> dict[str, dict[int, tuple[float, float]]]:
    """Kernel → index of an entry → its speeds, from the cases for which time was left."""
    speeds: dict[str, dict[int, tuple[float, float]]] = {}
    for case in cases:
        if not left():
            break
        times = time(case)
        now = times.eager / times.ours, times.inductor / times.ours
        for kernel in case.kernels:
            entries = speeds.setdefault(kernel, {})
            before = entries.get(case.place, (math.inf, math.inf))
            entries[case.place] = min(before[0], now[0]), min(before[1], now[1])
    return {
        kernel: {place: (_down(eager), _down(other)) for place, (eager, other) in entries.items()}
        for kernel, entries in speeds.items()
    }


def _down(speed: float) -> float:
    """The speed rounded down to two decimals, at least 0.01."""
    return max(0.01, math.floor(100 * speed) / 100)
