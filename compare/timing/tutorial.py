"""How to time a kernel, taught by every common technique.

Each technique measures the same kernel, and says in one sentence what it measured. tutorial_text.py
makes the sentences from the times.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from compare.timing.engine import HEADROOM, MOST_PASSES
from compare.timing.gpu import Gpu
from compare.timing.tutorial_text import sentences

WARM_UP = 20  # calls
TRIES = 5  # per ratio


class Device(Protocol):
    """The GPU as the techniques use it: the engine's, plus a way to leave the cache dirty."""

    def synchronize(self) -> None:
        """Wait for everything that was queued."""

    def empty_cache_lines(self, passes: int) -> None:
        """Queue a read of a buffer that is several times as large as L2."""

    def dirty_cache_lines(self, passes: int) -> None:
        """Queue a write of the buffer, so that L2 is full of dirty lines."""

    def event(self) -> Any:
        """Record an event."""

    def elapsed(self, start: Any, end: Any) -> float:
        """Microseconds between two events that have happened."""

    def graph(self, call: Callable[[], Any]) -> Callable[[], Any] | None:
        """The call as a graph to replay; None if it cannot be captured."""


class TeachingGpu(Gpu):
    """The current CUDA device."""

    def dirty_cache_lines(self, passes: int) -> None:
        """Write several times the size of L2."""
        for _ in range(passes):
            self._buffer.fill_(1.0)


# Key → (topic, name, how it measures), in the order of the table.
TECHNIQUES = {
    "first": ("first and later calls", "the first call", "until its result is there"),
    "later": ("first and later calls", "a later call", "until its result is there, idle GPU"),
    "neither": ("host clock", "no synchronising", "queued work; clock, call, clock"),
    "before": ("host clock", "only before", "queued work; wait, clock, call, clock"),
    "after": ("host clock", "only after", "queued work; clock, call, wait, clock"),
    "both": ("host clock", "before and after", "queued work; wait, clock, call, wait, clock"),
    "idle": ("events", "idle GPU", "wait, event, call, event"),
    "cold": ("events", "queued behind other work", "L2 emptied by reading, event, call, event"),
    "warm": ("cache", "warm", "L2 emptied, the same call, event, call, event"),
    "dirty": ("cache", "full of written lines", "L2 filled by writing, event, call, event"),
    "graph": ("CUDA graph", "between events", "L2 emptied, event, replay, event"),
    "launch": ("CUDA graph", "launching it", "wait, clock, replay, clock"),
    "sequential": ("the kernel against itself", "one after the other", "ratio of two medians"),
    "interleaved": ("the kernel against itself", "taking turns", "ratio of two medians"),
}


@dataclass
class Technique:
    """One technique: its samples (µs, or ratios), and the sentence about them."""

    topic: str
    name: str
    how: str
    samples: list[float] = field(default_factory=list)
    says: str = ""

    @property
    def median(self) -> float:
        return float(np.median(self.samples))

    def percentile(self, percent: float) -> float:
        """A percentile of the samples."""
        return float(np.percentile(self.samples, percent))

    def to_dict(self) -> dict[str, Any]:
        """The entry of the JSON file."""
        entry: dict[str, Any] = {"topic": self.topic, "name": self.name, "how": self.how}
        if self.samples:
            entry |= {"median": self.median, "p20": self.percentile(20), "p80": self.percentile(80)}
        return {**entry, "samples": self.samples, "says": self.says}


def teach(
    call: Callable[[], Any],
    device: Device,
    samples: int = 50,
    seed: int = 0,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Technique]:
    """Time a call with all techniques, right and wrong ones.

    Args:
        call: launches the kernel; must not have been called in this process before.
        device: the GPU.
        samples: per technique; each try of a ratio takes as many of both candidates.
        seed: for the order in which candidates take turns.
        tick: called with the number of techniques done, and of all.

    Returns:
        The techniques by the keys of TECHNIQUES. One that cannot be measured has no samples.
    """
    measures = _Measures(call, device, samples, random.Random(seed))
    techniques = {key: Technique(*words) for key, words in TECHNIQUES.items()}
    collecting = gc.isenabled()
    gc.disable()  # a collection within a sample would count for the kernel
    try:
        for done, (key, technique) in enumerate(techniques.items()):
            tick(done, len(techniques))
            technique.samples = getattr(measures, key)()
    finally:
        if collecting:
            gc.enable()
    samples_of = {key: technique.samples for key, technique in techniques.items()}
    for key, text in sentences(samples_of, measures.queued).items():
        techniques[key].says = text
    return techniques


class _Measures:
    """One method per technique. ``queued`` is the duration of the work that is queued before a
    call."""

    def __init__(
        self, call: Callable[[], Any], device: Device, samples: int, order: random.Random
    ) -> None:
        self._call, self._device, self._samples, self._order = call, device, samples, order
        self._passes, self.queued = 1, 0.0
        self._replay: Callable[[], Any] | None = None

    def first(self) -> list[float]:
        self._device.synchronize()
        return [self._clock(self._call, after=True)]

    def later(self) -> list[float]:
        for _ in range(WARM_UP):
            self._call()
        self._device.synchronize()
        self._prepare()
        self._call()
        self._device.synchronize()
        return [self._clock(self._call, after=True) for _ in range(self._samples)]

    def neither(self) -> list[float]:
        return self._host(before=False, after=False)

    def before(self) -> list[float]:
        return self._host(before=True, after=False)

    def after(self) -> list[float]:
        return self._host(before=False, after=True)

    def both(self) -> list[float]:
        return self._host(before=True, after=True)

    def idle(self) -> list[float]:
        def wait() -> None:
            self._empty()
            self._device.synchronize()

        return self._events(wait)

    def cold(self) -> list[float]:
        return self._events(self._empty)

    def warm(self) -> list[float]:
        def same_call() -> None:
            self._empty()
            self._call()

        return self._events(same_call)

    def dirty(self) -> list[float]:
        return self._events(lambda: self._device.dirty_cache_lines(self._passes))

    def graph(self) -> list[float]:
        self._replay = self._device.graph(self._call)
        return self._events(self._empty, self._replay) if self._replay else []

    def launch(self) -> list[float]:
        if self._replay is None:
            return []
        return self._host(before=True, after=False, call=self._replay)

    def sequential(self) -> list[float]:
        return [
            float(np.median(self._events(self._empty)) / np.median(self._events(self._empty)))
            for _ in range(TRIES)
        ]

    def interleaved(self) -> list[float]:
        return [self._in_turns() for _ in range(TRIES)]

    def _in_turns(self) -> float:
        times: dict[str, list[float]] = {"a": [], "b": []}
        for _ in range(self._samples):
            for name in self._order.sample(list(times), 2):
                times[name].append(self._event(self._empty, self._call))
        return float(np.median(times["a"]) / np.median(times["b"]))

    def _prepare(self) -> None:
        """How often to empty the cache so that the launch is queued meanwhile, as in the engine."""
        launch = float(np.median([self._clock(self._call, after=False) for _ in range(WARM_UP)]))
        self._empty()
        start = self._device.event()
        self._device.empty_cache_lines(8)
        end = self._device.event()
        self._device.synchronize()
        one = max(1.0, self._device.elapsed(start, end) / 8)
        self._passes = min(MOST_PASSES, 1 + round(HEADROOM * launch / one + 0.5))
        self.queued = one * self._passes

    def _empty(self) -> None:
        self._device.empty_cache_lines(self._passes)

    def _clock(self, call: Callable[[], Any], after: bool) -> float:
        begin = time.perf_counter()
        call()
        if after:
            self._device.synchronize()
        waited = 1e6 * (time.perf_counter() - begin)
        self._device.synchronize()
        return waited

    def _host(
        self, before: bool, after: bool, call: Callable[[], Any] | None = None
    ) -> list[float]:
        times = []
        for _ in range(self._samples):
            self._empty()
            if before:
                self._device.synchronize()
            times.append(self._clock(call or self._call, after))
        return times

    def _event(self, prepare: Callable[[], None], call: Callable[[], Any]) -> float:
        prepare()
        start = self._device.event()
        call()
        end = self._device.event()
        self._device.synchronize()
        return self._device.elapsed(start, end)

    def _events(
        self, prepare: Callable[[], None], call: Callable[[], Any] | None = None
    ) -> list[float]:
        return [self._event(prepare, call or self._call) for _ in range(self._samples)]
