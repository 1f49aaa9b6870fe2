"""Times of several candidates on the same inputs: GPU time, host time, first call.

One sample of GPU time: reads empty the cache, an event is recorded, the candidate is called,
another event is recorded. Candidates take turns, in a new random order in every round, with another
set of inputs per round. The call is launched while the GPU still empties the cache. If launching
takes longer than that, the events measure the host; so the median is compared with a replay of the
same call as a CUDA graph. Optionally the cache is warm, or replays are timed.

A candidate that raises has no times; the others go on, unless the GPU no longer answers.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from compare.timing.statistics import Samples

CONTROL = "control"  # the name of the candidate that is timed a second time
WARM_UP = 3  # calls
HOST_CALLS = 20  # for the median host time
HEADROOM = 3.0  # the GPU is kept busy before a sample for so many of the slowest median launch
MOST_PASSES = 16  # reads of the buffer that empties the cache
MOST_BUSY = 2000.0  # microseconds before a sample with a warm cache
BETWEEN = 10  # rounds between two looks at the GPU's state
PROBES = 5  # samples of a replay, and of each peer to find the fastest
SLOW = 0.05  # seconds; for a longer call the launch does not matter
HOST_BOUND = 1.25, 2.0  # GPU time may take so many replay medians plus microseconds

T = TypeVar("T")


class DeviceLostError(RuntimeError):
    """The GPU no longer answers: after an error of one call every later call fails."""


@dataclass(frozen=True)
class Candidate:
    """Something to time: a name, and a function that calls it with one set of inputs."""

    name: str
    call: Callable[..., Any]


@dataclass
class Timing:
    """One candidate's times, in microseconds; ``first_call`` is in seconds.

    Attributes:
        gpu: samples between events.
        replay: the median of the same call replayed as a CUDA graph. None if it cannot be captured,
            or if the samples are of replays.
        host: median time until the call returns, with an idle GPU.
        first_call: until the result of the first call exists, with compiling and autotuning.
        slow: whether a call takes so long that its launch does not matter.
        problem: why there are no times, or why they are invalid; else empty.
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
        """Whether the time between the events is the time of the launch."""
        if self.replay is None or not self.gpu.microseconds:
            return False
        factor, more = HOST_BOUND
        return self.gpu.median > factor * self.replay + more


class Device(Protocol):
    """The GPU as the engine uses it; tests replace it by a simulation."""

    def synchronize(self) -> None:
        """Wait for everything that was queued."""

    def empty_cache_lines(self, passes: int) -> None:
        """Queue a read of a buffer that is several times as large as L2."""

    def keep_busy(self, microseconds: float) -> None:
        """Queue work of this duration that leaves the cache as it is."""

    def event(self) -> Any:
        """Record an event."""

    def elapsed(self, start: Any, end: Any) -> float:
        """Microseconds between two events that have happened."""

    def graph(self, call: Callable[[], Any]) -> Callable[[], Any] | None:
        """The call as a graph: replaying it returns its result. None if it cannot be captured."""


@dataclass(frozen=True)
class Budget:
    """The effort for one candidate."""

    samples: int = 60
    seconds: float = 1.0  # of GPU time and of emptying the cache


def measure(
    candidates: Sequence[Candidate],
    inputs: Sequence[Any],
    device: Device,
    check: Callable[[Candidate, Any, Any], str],
    budget: Budget = Budget(),
    cold: bool = True,
    seed: int = 0,
    tick: Callable[[str], None] = lambda name: None,
    graph: bool = False,
    between: Callable[[], None] = lambda: None,
    twice: Container[str] = (),
) -> list[Timing]:
    """Time candidates against each other.

    Args:
        candidates: what to time.
        inputs: sets of inputs, as ``candidate.call(*inputs[i])`` takes them.
        check: says what is wrong with a candidate's result for a set of inputs, else "". It is
            called with the first and with the last timed result. A wrong candidate has no times.
        budget: when to stop.
        cold: whether L2 is emptied before every sample; else the call runs once before, untimed.
        seed: for the order within rounds.
        tick: called with the name of what is done next, for a progress bar.
        graph: whether samples are of replays of a CUDA graph.
        between: called after the first round and every tenth, when the GPU has just worked.
        twice: names of candidates; the fastest of them, by a few samples, is timed a second time as
            "control", the last of the timings.

    Raises:
        DeviceLostError: the GPU answers no more calls after an error.
    """
    timings = [Timing(candidate.name) for candidate in candidates]
    for candidate, timing in zip(candidates, timings):
        tick(candidate.name)
        _guarded(timing, device, lambda: _start(candidate, timing, inputs, device, check))  # noqa: B023
    alive = [(c, t) for c, t in zip(candidates, timings) if not t.problem]
    prepare = _preparation([t for _, t in alive], device, cold)
    running: list[_Running] = []
    for candidate, timing in alive:
        calls = [_bound(candidate, arguments) for arguments in inputs]
        if graph:
            calls = _guarded(timing, device, lambda: _graphs(calls, device)) or []  # noqa: B023
        elif not timing.slow:
            first = calls[0]
            timing.replay = _guarded(timing, device, lambda: _replay(first, device, prepare))  # noqa: B023
        if not timing.problem:
            running.append(_Running(candidate, timing, calls))
    if control := _control(running, twice, device, prepare):
        running.append(control)
        timings.append(control.timing)
    tick("rounds")
    collecting = gc.isenabled()
    gc.disable()  # a collection within a sample would count for the candidate
    try:
        _rounds(running, device, prepare, budget, random.Random(seed), between)
    finally:
        if collecting:
            gc.enable()
    for each in running:
        if each.timing.problem:
            continue
        result, number = each.last
        wrong = _guarded(
            each.timing,
            device,
            lambda: check(each.candidate, result, inputs[number]),  # noqa: B023
        )
        if wrong:
            each.timing.problem = f"after timing: {wrong}"
    return timings


@dataclass
class _Running:
    """A candidate in the rounds: a call per set of inputs; the last result and its set."""

    candidate: Candidate
    timing: Timing
    calls: list[Callable[[], Any]]
    last: tuple[Any, int] = (None, 0)
    spent: float = 0.0


def _guarded(timing: Timing, device: Device, action: Callable[[], T]) -> T | None:
    """The action's result. An exception becomes the timing's problem."""
    try:
        return action()
    except Exception as error:  # noqa: BLE001 - a candidate may raise anything; the rest go on
        words = [type(error).__name__, *str(error).strip().splitlines()[:1]]
        timing.problem = " ".join(words)
    timing.gpu = Samples([], [])
    try:  # after the error is freed, together with the tensors in its frames
        device.synchronize()
    except Exception:  # noqa: BLE001 - any error now concerns all candidates
        raise DeviceLostError(f"{timing.name}: {timing.problem}") from None
    return None


def _bound(candidate: Candidate, arguments: Any) -> Callable[[], Any]:
    return lambda: candidate.call(*arguments)


def _start(
    candidate: Candidate,
    timing: Timing,
    inputs: Sequence[Any],
    device: Device,
    check: Callable[[Candidate, Any, Any], str],
) -> None:
    """The first call, its check, the warm-up and the host time."""
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


def _host(candidate: Candidate, arguments: Any, device: Device) -> float:
    times = []
    for _ in range(HOST_CALLS):
        begin = time.perf_counter()
        candidate.call(*arguments)
        times.append(1e6 * (time.perf_counter() - begin))
        device.synchronize()
    return sorted(times)[len(times) // 2]


def _control(
    running: list[_Running], names: Container[str], device: Device, prepare: Preparation
) -> _Running | None:
    """The fastest of these candidates again, with its own times."""
    medians: list[tuple[float, _Running]] = []
    for each in running:
        if each.candidate.name in names:
            median = _guarded(each.timing, device, lambda: _probed(each.calls[0], device, prepare))  # noqa: B023
            if median is not None:
                medians.append((median, each))
    if not medians:
        return None
    _, first = min(medians, key=lambda pair: pair[0])
    same = first.timing
    timing = Timing(CONTROL, replay=same.replay, host=same.host, slow=same.slow)
    return _Running(Candidate(CONTROL, first.candidate.call), timing, first.calls)


Preparation = Callable[[Callable[[], Any]], None]


def _preparation(alive: list[Timing], device: Device, cold: bool) -> Preparation:
    """The preparation of a sample: the cache is emptied or filled, and the GPU gets work to do
    while the call is launched."""
    slowest = max((timing.host for timing in alive if not timing.slow), default=0.0)
    if cold:
        passes = _passes(slowest, device)
        return lambda call: device.empty_cache_lines(passes)

    def warm(call: Callable[[], Any]) -> None:
        call()
        device.keep_busy(min(MOST_BUSY, HEADROOM * slowest))

    return warm


def _passes(slowest: float, device: Device) -> int:
    """The number of reads of the buffer during which the slowest launch is queued."""
    device.empty_cache_lines(1)
    start = device.event()
    device.empty_cache_lines(8)
    end = device.event()
    device.synchronize()
    one = max(1.0, device.elapsed(start, end) / 8)
    return min(MOST_PASSES, 1 + round(HEADROOM * slowest / one + 0.5))


def _sample(device: Device, prepare: Preparation, call: Callable[[], Any]) -> tuple[float, Any]:
    """The microseconds of a call, and its result."""
    prepare(call)
    start = device.event()
    result = call()
    end = device.event()
    device.synchronize()
    return device.elapsed(start, end), result


def _graphs(calls: list[Callable[[], Any]], device: Device) -> list[Callable[[], Any]]:
    graphs = [graph for graph in map(device.graph, calls) if graph is not None]
    if len(graphs) < len(calls):
        raise RuntimeError("no CUDA graph can be made of it")
    return graphs


def _replay(call: Callable[[], Any], device: Device, prepare: Preparation) -> float | None:
    graph = device.graph(call)
    return None if graph is None else _probed(graph, device, prepare)


def _probed(call: Callable[[], Any], device: Device, prepare: Preparation) -> float:
    """The median of a few samples."""
    times = sorted(_sample(device, prepare, call)[0] for _ in range(PROBES))
    return times[len(times) // 2]


def _rounds(
    alive: list[_Running],
    device: Device,
    prepare: Preparation,
    budget: Budget,
    order: random.Random,
    between: Callable[[], None],
) -> None:
    """Rounds until every candidate has its samples, has spent its time, or has failed."""
    for number in range(budget.samples):
        running = [e for e in alive if e.spent < budget.seconds and not e.timing.problem]
        if not running:
            break
        order.shuffle(running)
        for each in running:
            which = number % len(each.calls)
            begin = time.perf_counter()
            timed = _guarded(
                each.timing,
                device,
                lambda: _sample(device, prepare, each.calls[which]),  # noqa: B023
            )
            each.spent += time.perf_counter() - begin
            if timed is not None:
                each.timing.gpu.rounds.append(number)
                each.timing.gpu.microseconds.append(timed[0])
                each.last = timed[1], which
        if number % BETWEEN == 0:
            between()
