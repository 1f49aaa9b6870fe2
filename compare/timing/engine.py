"""Times of several candidates on the same inputs: GPU time, host time, first call.

One sample of GPU time: the cache is emptied by reading, an event is recorded, the candidate is
called, another event is recorded. The candidates take turns in a new random order every round, each
round on another set of inputs. The launch is queued while the GPU still empties the cache; where
launching takes longer than that, the events would time the host, so the median is compared with a
replay of the same call as a CUDA graph.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from compare.timing.statistics import Samples

WARM_UP = 3  # calls
HOST_CALLS = 20  # of which the median host time is taken
HEADROOM = 3.0  # times the slowest median launch that the GPU is kept busy before a sample
MOST_PASSES = 16  # over the memory that empties the cache
PROBES = 5  # samples of the replay
SLOW = 0.05  # seconds: one call is measured without ceremony then
HOST_BOUND = 1.25, 2.0  # times the replay's median, and microseconds more: no GPU time any longer


@dataclass(frozen=True)
class Candidate:
    """Something to time: a name, and what calls it with one set of inputs."""

    name: str
    call: Callable[..., Any]


@dataclass
class Timing:
    """One candidate's times, in microseconds but for ``first_call``, in seconds.

    Attributes:
        gpu: samples between events, with a cold cache.
        replay: the median of the same call replayed as a CUDA graph; None where it has none.
        host: median time until the call returns, with an idle GPU.
        first_call: the first call until its result is there: compiling, autotuning.
        slow: whether one call takes so long that launching it does not matter.
        problem: why there are no times, or why they are not believed; empty if they are.
    """

    name: str
    gpu: Samples = field(default_factory=lambda: Samples([], []))
    replay: float | None = None
    host: float = 0.0
    first_call: float = 0.0
    slow: bool = False
    problem: str = ""

    @property
    def host_bound(self) -> bool:
        """Whether the time between the events is that of launching."""
        if self.replay is None or not self.gpu.microseconds:
            return False
        factor, more = HOST_BOUND
        return self.gpu.median > factor * self.replay + more


class Device(Protocol):
    """What the engine needs of a GPU; a test puts a simulated one in its place."""

    def synchronize(self) -> None:
        """Wait for everything that was queued."""

    def empty_cache_lines(self, passes: int) -> None:
        """Queue the reading of so much memory that nothing of interest stays in L2."""

    def event(self) -> Any:
        """Record an event."""

    def elapsed(self, start: Any, end: Any) -> float:
        """Microseconds between two events that have happened."""

    def graph(self, call: Callable[[], Any]) -> Callable[[], None] | None:
        """The call as a graph to replay; None where it cannot be one."""


@dataclass(frozen=True)
class Budget:
    """How much measuring a candidate is worth."""

    samples: int = 60
    seconds: float = 1.0  # of GPU time and cache emptying a candidate


def measure(
    candidates: Sequence[Candidate],
    inputs: Sequence[Any],
    device: Device,
    check: Callable[[Candidate, Any, Any], str],
    budget: Budget = Budget(),
    cold: bool = True,
    seed: int = 0,
    tick: Callable[[str], None] = lambda name: None,
) -> list[Timing]:
    """Time candidates against each other.

    Args:
        candidates: what to time.
        inputs: sets of inputs, as ``candidate.call(*inputs[i])`` takes them.
        check: what is wrong with a candidate's result for a set of inputs, or "": called with the
            first result and the last that was timed. Of a wrong one there are no times.
        budget: when to stop.
        cold: whether L2 is emptied before every sample.
        seed: of the order within the rounds.
        tick: called with the name of what is done next, for a progress bar.
    """
    timings = [Timing(candidate.name) for candidate in candidates]
    alive: list[tuple[Candidate, Timing]] = []
    for candidate, timing in zip(candidates, timings):
        tick(candidate.name)
        _start(candidate, timing, inputs, device, check)
        if not timing.problem:
            alive.append((candidate, timing))
    passes = _passes(alive, device) if cold else 0
    for candidate, timing in alive:
        if not timing.slow:
            timing.replay = _replay(candidate, inputs[0], device, passes)
    tick("rounds")
    collecting = gc.isenabled()
    gc.disable()  # a collection amid a sample would be the candidate's
    try:
        last = _rounds(alive, inputs, device, passes, budget, random.Random(seed))
    finally:
        if collecting:
            gc.enable()
    for candidate, timing in alive:
        wrong = check(candidate, *last[timing.name])
        timing.problem = f"after timing: {wrong}" if wrong else ""
    return timings


def _start(
    candidate: Candidate,
    timing: Timing,
    inputs: Sequence[Any],
    device: Device,
    check: Callable[[Candidate, Any, Any], str],
) -> None:
    """The first call, the check, the warm-up and the host time."""
    try:
        begin = time.perf_counter()
        result = candidate.call(*inputs[0])
        device.synchronize()
        timing.first_call = time.perf_counter() - begin
        timing.problem = check(candidate, result, inputs[0])
        if timing.problem:
            return
        del result
        begin = time.perf_counter()
        candidate.call(*inputs[0])
        timing.host = 1e6 * (time.perf_counter() - begin)
        device.synchronize()
        timing.slow = time.perf_counter() - begin > SLOW
        if timing.slow:
            return
        for n in range(WARM_UP):
            candidate.call(*inputs[n % len(inputs)])
        device.synchronize()
        timing.host = _host(candidate, inputs[0], device)
    except Exception as error:  # noqa: BLE001 - whatever a peer throws, the others go on
        timing.problem = " ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])


def _host(candidate: Candidate, arguments: Any, device: Device) -> float:
    times = []
    for _ in range(HOST_CALLS):
        begin = time.perf_counter()
        candidate.call(*arguments)
        times.append(1e6 * (time.perf_counter() - begin))
        device.synchronize()
    return sorted(times)[len(times) // 2]


def _passes(alive: list[tuple[Candidate, Timing]], device: Device) -> int:
    """How often to read the buffer, so that the slowest launch is queued while that lasts."""
    device.empty_cache_lines(1)
    start = device.event()
    device.empty_cache_lines(8)
    end = device.event()
    device.synchronize()
    one = max(1.0, device.elapsed(start, end) / 8)
    slowest = max((timing.host for _, timing in alive if not timing.slow), default=0.0)
    return min(MOST_PASSES, 1 + round(HEADROOM * slowest / one + 0.5))


def _sample(device: Device, passes: int, call: Callable[[], Any]) -> tuple[float, Any]:
    """The microseconds of a call, and its result."""
    if passes:
        device.empty_cache_lines(passes)
    start = device.event()
    result = call()
    end = device.event()
    device.synchronize()
    return device.elapsed(start, end), result


def _replay(candidate: Candidate, arguments: Any, device: Device, passes: int) -> float | None:
    graph = device.graph(lambda: candidate.call(*arguments))
    if graph is None:
        return None
    times = sorted(_sample(device, passes, graph)[0] for _ in range(PROBES))
    return times[len(times) // 2]


def _rounds(
    alive: list[tuple[Candidate, Timing]],
    inputs: Sequence[Any],
    device: Device,
    passes: int,
    budget: Budget,
    order: random.Random,
) -> dict[str, tuple[Any, Any]]:
    """Rounds until every candidate has its samples, or has spent its time.

    Returns the last result of each, with its inputs.
    """
    last = {}
    spent = {timing.name: 0.0 for _, timing in alive}
    for number in range(budget.samples):
        running = [
            (candidate, timing)
            for candidate, timing in alive
            if spent[timing.name] < budget.seconds
        ]
        if not running:
            break
        order.shuffle(running)
        for candidate, timing in running:
            arguments = inputs[number % len(inputs)]
            begin = time.perf_counter()
            elapsed, result = _sample(device, passes, lambda: candidate.call(*arguments))  # noqa: B023
            spent[timing.name] += time.perf_counter() - begin
            timing.gpu.rounds.append(number)
            timing.gpu.microseconds.append(elapsed)
            last[timing.name] = result, arguments
    return last
