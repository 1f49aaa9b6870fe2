"""The results of a case: every provider's times, ratios and problems."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from compare.cases import Case
from compare.timing import nvml, providers
from compare.timing.engine import CONTROL, Timing
from compare.timing.statistics import Ratio, Samples, ratio

# The beginnings of configuration names, when configurations are timed.
CANDIDATE = "triton "
CHOSEN = f"{CANDIDATE}chosen "
HOST_BOUND = "host-bound"  # the beginning of such an entry's problem


@dataclass
class Entry:
    """One provider on one case.

    Attributes:
        problem: why there is no time; else empty.
        speedup: relative to the fastest peer; None for that peer, and if there is none.
    """

    provider: str
    timing: Timing
    problem: str = ""
    percent_of_limit: float | None = None
    rate: float | None = None
    speedup: Ratio | None = None
    first_values: Sequence[float] = ()  # of its result, for printing; not saved

    @property
    def is_peer(self) -> bool:
        return providers.is_peer(self.provider)

    @property
    def failed(self) -> bool:
        """Whether its result is wrong, or it is ours and did not run."""
        other = self.provider.startswith(CANDIDATE) and not self.provider.startswith(CHOSEN)
        if self.is_peer or other or self.provider == CONTROL:
            return "wrong: " in self.problem
        return bool(self.problem) and not self.problem.startswith(HOST_BOUND)

    def to_dict(self) -> dict[str, Any]:
        """The entry of the JSON file; in microseconds unless the name says otherwise."""
        entry: dict[str, Any] = {"provider": self.provider, "problem": self.problem}
        if self.problem:
            return entry
        gpu = self.timing.gpu
        return {
            **entry,
            "median": gpu.median,
            "p20": gpu.percentile(20),
            "p80": gpu.percentile(80),
            "samples": len(gpu.microseconds),
            "microseconds": [round(t, 3) for t in gpu.microseconds],
            "replay": self.timing.replay,
            "host": self.timing.host,
            "first_call_seconds": self.timing.first_call,
            "rate": self.rate,
            "percent_of_limit": self.percent_of_limit,
            "speedup": self.speedup and self.speedup._asdict(),
        }

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Entry:
        """The object of an entry of the JSON file."""
        name, problem = saved["provider"], saved["problem"]
        if problem:
            return cls(name, Timing(name, problem=problem), problem)
        times = saved["microseconds"]
        timing = Timing(
            name,
            Samples(list(range(len(times))), times),  # no candidate skips rounds, so they count up
            saved["replay"],
            saved["host"],
            saved["first_call_seconds"],
        )
        speedup = saved["speedup"] and Ratio(**saved["speedup"])
        return cls(name, timing, "", saved["percent_of_limit"], saved["rate"], speedup)


@dataclass
class CaseResult:
    """The times of all providers on one case.

    Attributes:
        limit: the fewest microseconds for the case, by the device's measured rates.
        rate_unit: TFLOP/s if arithmetic is the limit, else GB/s.
        flops, moved: operations, and the fewest bytes moved.
        matrix: whether the operations are a matrix product's.
        sweep, x: the sweep that the case belongs to, and its size there.
        stratum: in a sample, the case's stratum.
        again: whether its times are from the second, longer measurement.
        throttling: what slowed the GPU meanwhile.
        state_before, state_after: of the GPU.
    """

    case: Case
    limit: float
    rate_unit: str
    flops: int = 0
    moved: int = 0
    matrix: bool = False
    entries: list[Entry] = field(default_factory=list)
    best_peer: str = ""
    seconds: float = 0.0
    sweep: str = ""
    x: int = 0
    stratum: str = ""
    again: bool = False
    throttling: list[str] = field(default_factory=list)
    state_before: dict[str, Any] = field(default_factory=dict)
    state_after: dict[str, Any] = field(default_factory=dict)

    @property
    def throttled(self) -> list[str]:
        """What slowed the GPU abnormally; the power cap is normal for large products."""
        return [reason for reason in self.throttling if reason != nvml.POWER_CAP]

    def rates(self, entry: Entry) -> dict[str, float]:
        """The rates of a timed entry's median: unit → value."""
        median = entry.timing.gpu.median
        figures = {"GB/s": self.moved / median / 1e3}
        return {"TFLOP/s": self.flops / median / 1e6, **figures} if self.matrix else figures

    def rank(self) -> None:
        """Find the fastest peer, and the ratio of every other entry to it."""
        timed = [entry for entry in self.entries if not entry.problem]
        peers = [entry for entry in timed if entry.is_peer]
        if not peers:
            return
        best = min(peers, key=lambda entry: entry.timing.gpu.median)
        self.best_peer = best.provider
        for entry in timed:
            if entry is not best:
                entry.speedup = ratio(best.timing.gpu, entry.timing.gpu)

    def to_dict(self) -> dict[str, Any]:
        """The entry of the JSON file."""
        place: dict[str, Any] = {"sweep": self.sweep, "x": self.x} if self.sweep else {}
        if self.case.layout != "contiguous":
            place["layout"] = self.case.layout
        if self.stratum:
            place |= {"stratum": self.stratum, "again": self.again}
        return {
            "op": self.case.op,
            "dtype": self.case.dtype,
            "shape": list(self.case.shape),
            "options": dict(self.case.options),
            **place,
            "flops": self.flops,
            "bytes": self.moved,
            "matrix": self.matrix,
            "limit": self.limit,
            "rate_unit": self.rate_unit,
            "best_peer": self.best_peer,
            "seconds": round(self.seconds, 2),
            "throttling": self.throttling,
            "state_before": self.state_before,
            "state_after": self.state_after,
            "entries": [entry.to_dict() for entry in self.entries],
        }

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> CaseResult:
        """The object of an entry of the JSON file."""
        shape, layout = tuple(saved["shape"]), saved.get("layout", "contiguous")
        case = Case(saved["op"], saved["dtype"], shape, layout, options=saved["options"])
        return cls(
            case,
            saved["limit"],
            saved["rate_unit"],
            saved["flops"],
            saved["bytes"],
            saved["matrix"],
            [Entry.from_dict(entry) for entry in saved["entries"]],
            saved["best_peer"],
            saved["seconds"],
            saved.get("sweep", ""),
            saved.get("x", 0),
            saved.get("stratum", ""),
            saved.get("again", False),
            saved["throttling"],
            saved["state_before"],
            saved["state_after"],
        )


def key(case: dict[str, Any]) -> str:
    """The identity of a case in the JSON file."""
    place = case.get("sweep", ""), case.get("x", 0), case.get("layout", "contiguous")
    options = sorted(case["options"].items())
    return json.dumps([case["op"], case["dtype"], list(case["shape"]), options, *place])


def geometric_mean(values: list[float]) -> float:
    """The geometric mean of ratios."""
    return math.exp(sum(map(math.log, values)) / len(values))
