"""Reads a Chrome trace of torch.profiler: each provider's kernels and their times."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

LAUNCHES = ("cuda_runtime", "cuda_driver")  # categories of the host's calls that start GPU work
WORK = ("kernel", "gpu_memcpy", "gpu_memset")  # categories of that work
LONGEST = 60  # characters of a kernel's name


@dataclass
class Kernel:
    """One kernel of a provider: launches and microseconds per call."""

    name: str
    count: float
    microseconds: float


@dataclass
class Profile:
    """Where a provider's time goes, in microseconds.

    Attributes:
        host: host time per call, under the profiler.
        gpu: GPU time per call.
        first: time from the beginning of a step's calls, when the GPU is idle, to the start of the
            first kernel; None without kernels.
        idle: fraction of the time from a step's first kernel to the end of its last one in which
            the GPU does nothing; None without kernels.
        kernels: the kernels, the longest first.
    """

    provider: str
    host: float
    gpu: float = 0.0
    first: float | None = None
    idle: float | None = None
    kernels: list[Kernel] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The entry in the JSON file."""
        return asdict(self)


@dataclass
class _Range:
    """A provider's calls in one step, and the GPU work that they launched: (start, end, name)."""

    provider: str
    begin: float
    end: float
    work: list[tuple[float, float, str]] = field(default_factory=list)


def read(trace: dict[str, Any], providers: Sequence[str], calls: int) -> list[Profile]:
    """The providers' profiles. Each range with a provider's name has ``calls`` calls.

    GPU work belongs to the range in which the host launched it. If the trace lacks the launch, the
    work belongs to the last range that began before it: the GPU is idle when a range begins.

    Raises:
        ValueError: the trace has no range of a provider.
    """
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    ranges = sorted(
        (
            _Range(event["name"], float(event["ts"]), float(event["ts"]) + float(event["dur"]))
            for event in events
            if event.get("cat") == "user_annotation" and event["name"] in providers
        ),
        key=lambda span: span.begin,
    )
    launched = {
        event["args"]["correlation"]: float(event["ts"])
        for event in events
        if event.get("cat") in LAUNCHES and "correlation" in event.get("args", {})
    }
    begins = [span.begin for span in ranges]
    for event in events:
        if event.get("cat") not in WORK:
            continue
        start = float(event["ts"])
        at = launched.get(event.get("args", {}).get("correlation"))
        number = bisect_right(begins, start if at is None else at) - 1
        if number >= 0 and (at is None or at <= ranges[number].end):
            ranges[number].work.append((start, start + float(event["dur"]), event["name"]))
    return [
        _profile(name, [span for span in ranges if span.provider == name], calls)
        for name in providers
    ]


def _profile(provider: str, ranges: list[_Range], calls: int) -> Profile:
    if not ranges:
        raise ValueError(f"the trace has no range {provider!r}")
    profile = Profile(provider, median(each.end - each.begin for each in ranges) / calls)
    worked = [each for each in ranges if each.work]
    if not worked:
        return profile
    total = calls * len(ranges)
    busy = sum(_covered(each.work) for each in worked)
    starts = [min(work[0] for work in each.work) for each in worked]
    span = sum(max(w[1] for w in each.work) - start for each, start in zip(worked, starts))
    profile.gpu = busy / total
    profile.first = median(start - each.begin for each, start in zip(worked, starts))
    profile.idle = 1 - busy / span if span else 0.0
    times: dict[str, list[float]] = {}
    for each in worked:
        for start, end, name in each.work:
            times.setdefault(name, []).append(end - start)
    profile.kernels = sorted(
        (Kernel(name, len(spent) / total, sum(spent) / total) for name, spent in times.items()),
        key=lambda kernel: -kernel.microseconds,
    )
    return profile


def _covered(spans: Iterable[tuple[float, float, str]]) -> float:
    """The total time covered by the spans; time covered twice counts once."""
    covered, reached = 0.0, float("-inf")
    for start, end, _ in sorted(spans):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def short(name: str, longest: int = LONGEST) -> str:
    """A kernel's name without return type, parameters and namespaces. A name that is still too long
    keeps its first template arguments, or its two ends."""
    name = re.sub(r"^void ", "", name.replace("(anonymous namespace)::", ""))
    name = re.sub(r"\(\w[\w ]*\)(?=[\w-])", "", name)  # casts of template arguments: (int)4
    name = _without_parameters(name)
    name = re.sub(r"\b(?:\w+::)+(?=[\w~])", "", name).replace(" >", ">")
    name = re.sub(r"\s*,\s*", ", ", name)
    if len(name) <= longest:
        return name
    stem, angle, inner = name.partition("<")
    if angle and len(stem) + 4 <= longest:  # the first template arguments tell the most
        return f"{stem}<{inner[: longest - len(stem) - 3]}…>"
    half = (longest - 1) // 2
    return f"{name[: longest - 1 - half]}…{name[-half:]}"


def _without_parameters(name: str) -> str:
    """The name up to its parameter list. The list's parenthesis is not nested and follows no
    space."""
    depth = 0
    for place, letter in enumerate(name):
        if letter == "(" and depth == 0 and place and name[place - 1] != " ":
            return name[:place]
        depth += (letter in "<(") - (letter in ">)")
    return name
