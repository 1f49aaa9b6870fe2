"""The fixture gpu_benchmark of pytest --benchmark: GPU times in pytest-benchmark's statistics.

pytest-benchmark reads times from a clock. This clock advances only by the samples of the engine:
each round of pytest-benchmark is one sample, and all its options work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from compare.timing.engine import Timing

_now = 0.0


def gpu_clock() -> float:
    """The total seconds of the samples recorded so far."""
    return _now


class GpuBenchmark:
    """The value of the fixture; call it with a function and its arguments, as ``benchmark``."""

    def __init__(self, benchmark: Any) -> None:
        self.benchmark = benchmark

    def __call__(
        self,
        function: Callable[..., Any],
        *args: Any,
        check: Callable[[Any], str] | None = None,
        **kwargs: Any,
    ) -> Timing:
        """Time ``function(*args, **kwargs)`` on the GPU with a cold cache, and store it.

        Args:
            function: launches GPU work; its host time is measured separately.
            check: says what is wrong with a result, else ""; called before and after the timing.

        Returns:
            The times: ``.gpu`` samples in microseconds, ``.host``, ``.first_call``, ``.replay``.

        Raises:
            AssertionError: the function raised, its result is wrong, or its launch takes so long
                that the GPU time cannot be measured.
            DeviceLostError: the GPU answers no more calls after an error of the function.
        """
        from compare.timing.engine import Candidate, measure
        from compare.timing.gpu import Gpu
        from compare.timing.nvml import Watch

        name = getattr(function, "__name__", "function")
        candidate = Candidate(name, lambda: function(*args, **kwargs))
        wrong = (lambda c, result, inputs: check(result)) if check else (lambda *_: "")
        watch = Watch()
        (timing,) = measure([candidate], [()], Gpu(), wrong, between=watch.look)
        assert not timing.problem, timing.problem
        assert not timing.host_bound, (
            f"host-bound: launching takes {timing.host:.0f} µs, the GPU {timing.replay:.3g} µs"
        )
        self.store(timing, watch.before, watch.after, sorted(watch.throttling))
        return timing

    def store(
        self,
        timing: Timing,
        before: dict[str, Any] | None = None,
        after: dict[str, Any] | None = None,
        throttling: Sequence[str] = (),
        **extra_info: Any,
    ) -> None:
        """Store the samples in pytest-benchmark. ``extra_info`` gets the other times, the GPU's
        clocks, temperature and power before and after, and what slowed it."""
        samples = iter(timing.gpu.microseconds)

        def advance() -> None:
            global _now
            _now += next(samples) / 1e6

        self.benchmark.extra_info.update(
            host_us=timing.host,
            first_call_s=timing.first_call,
            graph_replay_us=timing.replay,
            gpu_before=before or {},
            gpu_after=after or {},
            throttling=list(throttling),
            **extra_info,
        )
        self.benchmark.pedantic(advance, rounds=len(timing.gpu.microseconds), iterations=1)


@pytest.fixture
def gpu_benchmark(benchmark: Any) -> GpuBenchmark:
    """GPU time in pytest-benchmark: ``gpu_benchmark(function, *args, **kwargs)``.

    Such tests run under ``pytest --benchmark`` and are deselected otherwise.
    """
    return GpuBenchmark(benchmark)


def uses(item: pytest.Item, fixture: str = "gpu_benchmark") -> bool:
    """Whether a test uses a fixture: by default, whether it is a GPU benchmark."""
    return fixture in getattr(item, "fixturenames", ())


LEFT_OUT = pytest.StashKey[int]()  # GPU benchmarks of a run without --benchmark


def prepare(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --benchmark run benchmarks only: those of the GPU, and those with pytest-benchmark's own
    fixture, on its own clock. Otherwise run all tests except GPU benchmarks."""
    wanted = bool(config.getoption("--benchmark"))

    def runs(item: pytest.Item) -> bool:
        return uses(item, "benchmark") if wanted else not uses(item)

    others = [item for item in items if not runs(item)]
    if others:
        items[:] = [item for item in items if runs(item)]
        config.hook.pytest_deselected(items=others)
    if not wanted:
        config.stash[LEFT_OUT] = len(others)
        return
    on_gpu = [item for item in items if uses(item)]
    if not on_gpu:
        return
    import torch

    for item in on_gpu:
        item.add_marker(pytest.mark.benchmark(timer=gpu_clock))
        if not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="a GPU benchmark: no CUDA device"))


def describe(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Add GPU and versions to pytest-benchmark's machine info; it warns if stored times come from
    another machine. Its commit_info has the commit."""
    if config.getoption("--benchmark"):
        from compare.checking.printing import environment

        machine_info["gpu_environment"] = environment()
