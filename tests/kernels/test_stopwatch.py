"""The stopwatch of tune and of plans, on a simulated stream and on a real GPU."""

from __future__ import annotations

import math
import statistics
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton.runtime.errors import OutOfResources

import triton_kernels as tk
from triton_kernels import _launch
from triton_kernels._gpu import Gpu
from triton_kernels.gemm import Problem, choose
from triton_kernels.tuning import rates, scores, stopwatch
from triton_kernels.tuning.constants import Run

CARD = Gpu(90, 114, 232448, "Some Card")
CPU = torch.device("cpu")


class Stream:
    """A stream on which work takes the time that it says."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def work(self, name: str, microseconds: float) -> None:
        self.log.append(name)
        self.now += microseconds


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    one = Stream()

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at = 0.0

        def record(self) -> None:
            self.at = one.now

        def elapsed_time(self, end: Event) -> float:
            return (end.at - self.at) / 1e3

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return one


def test_calls_are_timed_in_turns_with_a_cold_cache(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulated stream: every third call of the first is slow, and no flush is counted."""
    properties = SimpleNamespace(L2_cache_size=0)
    flush = SimpleNamespace(sum=lambda: stream.work("flush", 70))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda _: stream.work("spin", 200), raising=False)
    monkeypatch.setattr(torch, "ones", lambda *_, **__: flush)
    watch = stopwatch.Stopwatch(CARD, CPU)
    calls = [
        lambda: stream.work("a", 40 if stream.log.count("a") % 3 == 2 else 10),
        lambda: stream.work("b", 20),
    ]
    assert watch.medians(calls) == pytest.approx([10, 20])
    assert stream.log[:4] == ["a", "b", "a", "b"], "compiled, and once more"
    timed = stream.log[4:]
    assert timed[:2] == ["flush", "spin"]
    assert all(timed[i : i + 2] == ["flush", "spin"] for i in range(0, len(timed), 3))
    order = timed[2::3]
    assert order.count("a") == order.count("b") == stopwatch.ROUNDS
    pairs = {tuple(order[i : i + 2]) for i in range(0, len(order), 2)}
    assert pairs == {("a", "b"), ("b", "a")}, "in turns, in either order"


def test_calls_in_a_row(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of about 20 ms, and the first block of all is slow."""
    monkeypatch.setattr(stopwatch.Stopwatch, "__init__", lambda *_: None)
    calls = [
        lambda: stream.work("a", 5000 + 5000 * (len(stream.log) < 4)),
        lambda: stream.work("b", 6000),
    ]
    assert stopwatch.Stopwatch(CARD, CPU).in_a_row(calls, 5000) == pytest.approx([5000, 6000])
    assert stream.log[:16] == [*"aaaabbbb" * 2]


def test_a_run_that_is_out_of_resources_takes_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def configured(run: Run, gpu: Gpu, device: torch.device) -> Any:
        def call() -> None:
            if run.problem.M > 100:
                raise OutOfResources(300_000, 232_448, "shared memory")

        return call

    monkeypatch.setattr(stopwatch, "configured", configured)
    monkeypatch.setattr(stopwatch.Stopwatch, "__init__", lambda *_: None)
    monkeypatch.setattr(stopwatch.Stopwatch, "_gpu", CARD, raising=False)
    monkeypatch.setattr(stopwatch.Stopwatch, "_device", CPU, raising=False)
    monkeypatch.setattr(stopwatch.Stopwatch, "medians", lambda _, calls: [7.0] * len(calls))
    problems = [Problem(M, 64, 64, torch.bfloat16, torch.bfloat16) for M in (200, 64, 300, 32)]
    runs = [Run(problem, choose(problem, CARD)) for problem in problems]
    assert stopwatch.Stopwatch(CARD, CPU).runs(runs) == [math.inf, 7.0, math.inf, 7.0]


@pytest.mark.gpu_only
def test_a_real_stopwatch_tells_a_large_product_from_a_small_one() -> None:
    """Of the chooser's own configurations, and one case of each family."""
    device = torch.device("cuda", torch.cuda.current_device())
    gpu = _launch.gpu(tk.gemm.launch.gemm_bias_act_kernel, device)
    watch = stopwatch.Stopwatch(gpu, device)
    sizes = ((1024, 1024, 1024), (4096, 4096, 4096), (16, 4096, 4096))
    problems = [Problem(*size, torch.bfloat16, torch.bfloat16) for size in sizes]
    small, large, few = watch.runs([Run(p, choose(p, gpu)) for p in problems])
    assert 1 < small < large / 4
    assert 1 < few < large
    cases = scores.cases(gpu, device)
    for kernel in ("relu_scale", "gemm_bias_act"):
        times = watch.case(next(case for case in cases if case.kernels[0] == kernel))
        assert min(times) > 1
        assert statistics.median(times) < 1e5
    for case in rates.cases(gpu, device)[:2]:  # a small layer, alone and with an activation
        assert 1 < min(watch.case(case)) <= max(watch.case(case)) < 100
