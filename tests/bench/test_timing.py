"""The timing engine, on a simulated GPU: what it measures is what the simulation was told."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from simulated_gpu import SimulatedGpu
from typer.testing import CliRunner, Result

from compare.cli import app
from compare.timing.baseline import regressions
from compare.timing.engine import Budget, Candidate, DeviceLostError, Timing, measure
from compare.timing.results import Entry
from compare.timing.statistics import Samples, ratio


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimulatedGpu:
    simulated = SimulatedGpu()
    monkeypatch.setattr(time, "perf_counter", simulated.clock)
    return simulated


def candidate(gpu: SimulatedGpu, name: str, kernel: float, host: float = 10.0) -> Candidate:
    return Candidate(name, lambda *arguments: gpu.launch(f"{name}{arguments[0]}", host, kernel))


def right(candidate: Candidate, result: Any, arguments: Any) -> str:
    return ""


INPUTS = [(0,), (1,), (2,)]


def test_times_are_the_kernels(gpu: SimulatedGpu) -> None:
    known = {"fast": 10.0, "medium": 25.0, "empty": 0.0}
    found = measure([candidate(gpu, n, t) for n, t in known.items()], INPUTS, gpu, right)
    for timing in found:
        assert timing.gpu.median == pytest.approx(known[timing.name])
        assert timing.host == pytest.approx(10.0)
        assert timing.replay == pytest.approx(known[timing.name])
        assert not timing.host_bound
        assert not timing.problem
        assert len(timing.gpu.microseconds) == Budget().samples


def test_candidates_take_turns_in_changing_order_on_changing_inputs(gpu: SimulatedGpu) -> None:
    found = measure([candidate(gpu, n, 9.0) for n in "abc"], INPUTS, gpu, right, Budget(12))
    rounds = gpu.log[-36:]
    turns = [rounds[i : i + 3] for i in range(0, 36, 3)]
    assert all(sorted(turn) == sorted(f"{n}{i % 3}" for n in "abc") for i, turn in enumerate(turns))
    assert len({tuple(name[0] for name in turn) for turn in turns}) > 3
    assert all(timing.gpu.rounds == list(range(12)) for timing in found)


def test_a_slow_launch_is_hidden_behind_more_flushing(gpu: SimulatedGpu) -> None:
    (timing,) = measure([candidate(gpu, "a", 10.0, host=150.0)], INPUTS, gpu, right)
    assert timing.gpu.median == pytest.approx(10.0)
    assert timing.host == pytest.approx(150.0)


def test_a_launch_that_cannot_be_hidden_is_called_host_bound(gpu: SimulatedGpu) -> None:
    slow, fast = measure(
        [candidate(gpu, "slow", 10.0, host=2000.0), candidate(gpu, "fast", 10.0)],
        INPUTS,
        gpu,
        right,
    )
    assert slow.host_bound
    assert slow.gpu.median > 1000
    assert slow.replay == pytest.approx(10.0)
    assert not fast.host_bound


def test_a_slow_candidate_stops_early_and_the_others_go_on(gpu: SimulatedGpu) -> None:
    slow, fast = measure(
        [candidate(gpu, "slow", 400e3), candidate(gpu, "fast", 10.0)], INPUTS, gpu, right
    )
    assert len(slow.gpu.microseconds) == 3  # 0.4 s each: the third passes one second
    assert slow.replay is None
    assert len(fast.gpu.microseconds) == Budget().samples


def test_warm_cache_on_request(gpu: SimulatedGpu) -> None:
    """The same call comes before the sample; its launch is hidden behind work all the same."""
    them = [candidate(gpu, "a", 10.0, host=50.0), candidate(gpu, "b", 30.0, host=50.0)]
    for timing, known in zip(measure(them, INPUTS, gpu, right, Budget(9), cold=False), (5, 15)):
        assert timing.gpu.microseconds == pytest.approx([known] * 9)
        assert not timing.host_bound
    assert gpu.seen[-36:] == [False, True] * 18  # before a sample, and in it
    gpu.seen.clear()
    for timing, known in zip(measure(them, INPUTS, gpu, right, Budget(9)), (10, 30)):
        assert timing.gpu.microseconds == pytest.approx([known] * 9)
    assert not any(gpu.seen[-18:])


def test_graphs_on_request(gpu: SimulatedGpu) -> None:
    """The samples are of replays: a launch that takes the host long does not matter."""
    checked = []

    def check(candidate: Candidate, result: Any, arguments: Any) -> str:
        checked.append((result, arguments))
        return ""

    slow = candidate(gpu, "a", 10.0, host=5000.0)
    (timing,) = measure([slow], INPUTS, gpu, check, Budget(8), graph=True)
    assert timing.gpu.microseconds == pytest.approx([10.0] * 8)
    assert timing.host == pytest.approx(5000.0)
    assert not timing.host_bound
    assert gpu.log[-8:] == ["replay"] * 8
    assert checked[-1] == ("a1", (1,))  # the eighth: the second set's result


def test_what_cannot_be_a_graph_has_no_graph_times(
    gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "graph", lambda call: None)
    (timing,) = measure([candidate(gpu, "a", 10.0)], INPUTS, gpu, right, graph=True)
    assert timing.problem == "RuntimeError no CUDA graph can be made of it"
    (timing,) = measure([candidate(gpu, "a", 10.0)], INPUTS, gpu, right)
    assert not timing.problem
    assert timing.replay is None


def failing(gpu: SimulatedGpu, after: int, sticky: bool = False) -> Candidate:
    """It raises in a call long after the first, as when memory runs out amid the samples."""
    calls = []

    def call(argument: int) -> str:
        calls.append(argument)
        if len(calls) > after:
            gpu.broken = sticky
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")
        return gpu.launch("failing", 10.0, 20.0)

    return Candidate("failing", call)


def test_what_fails_amid_its_samples_leaves_the_others_alone(gpu: SimulatedGpu) -> None:
    them = [candidate(gpu, "a", 10.0), failing(gpu, after=40), candidate(gpu, "b", 30.0)]
    a, bad, b = measure(them, INPUTS, gpu, right)
    assert bad.problem == "OutOfMemoryError CUDA out of memory. Tried to allocate 2 GiB"
    assert not bad.gpu.microseconds
    assert (a.gpu.median, b.gpu.median) == pytest.approx((10.0, 30.0))
    assert len(a.gpu.microseconds) == len(b.gpu.microseconds) == Budget().samples


@pytest.mark.parametrize("after", [0, 10, 24, 40])  # first call, host time, replay, rounds
def test_a_gpu_that_no_longer_answers_ends_it(gpu: SimulatedGpu, after: int) -> None:
    them = [candidate(gpu, "a", 10.0), failing(gpu, after, sticky=True)]
    with pytest.raises(DeviceLostError, match="failing: OutOfMemoryError CUDA out of memory"):
        measure(them, INPUTS, gpu, right)


def test_a_check_that_cannot_be_made_is_a_problem_of_one(gpu: SimulatedGpu) -> None:
    asked = []

    def check(candidate: Candidate, result: Any, arguments: Any) -> str:
        asked.append(candidate.name)
        if asked.count(candidate.name) == 2 and candidate.name == "a":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return ""

    a, b = measure([candidate(gpu, n, 10.0) for n in "ab"], INPUTS, gpu, check)
    assert a.problem == "OutOfMemoryError CUDA out of memory"
    assert not b.problem


def test_the_state_is_looked_at_amid_the_rounds(gpu: SimulatedGpu) -> None:
    looks: list[int] = []

    def look() -> None:
        looks.append(len(gpu.log))

    measure([candidate(gpu, "a", 9.0)], INPUTS, gpu, right, Budget(25), between=look)
    assert [n - looks[0] for n in looks] == [0, 10, 20]


def test_wrong_results_have_no_times(gpu: SimulatedGpu) -> None:
    calls = {"late": 0}

    def check(candidate: Candidate, result: Any, arguments: Any) -> str:
        if candidate.name == "late":
            calls["late"] += 1
        wrong = candidate.name == "wrong" or (calls["late"] > 1 and candidate.name == "late")
        return "wrong: 3 elements" if wrong else ""

    def broken(argument: int) -> None:
        raise RuntimeError("no such kernel\nsecond line")

    them = [candidate(gpu, n, 5.0) for n in ("right", "wrong", "late")]
    found = {t.name: t for t in measure([*them, Candidate("broken", broken)], INPUTS, gpu, check)}
    assert found["right"].gpu.microseconds
    assert found["wrong"].problem == "wrong: 3 elements"
    assert not found["wrong"].gpu.microseconds
    assert found["late"].problem == "after timing: wrong: 3 elements"
    assert found["broken"].problem == "RuntimeError no such kernel"


def test_first_call_is_kept_apart(gpu: SimulatedGpu) -> None:
    calls = []

    def call(argument: int) -> None:
        gpu.launch("a", 10.0 if calls else 3e6, 20.0)
        calls.append(argument)

    (timing,) = measure([Candidate("a", call)], INPUTS, gpu, right)
    assert timing.first_call == pytest.approx(3.0, rel=1e-3)
    assert timing.host == pytest.approx(10.0)


# ---- statistics ----


def test_a_ratio_cancels_the_drift_that_both_share() -> None:
    rng = np.random.default_rng(0)
    drift = np.linspace(1.0, 1.5, 60)  # a clock that falls
    noise = [rng.normal(1, 0.01, 60) for _ in range(2)]
    slow = Samples(list(range(60)), list(30 * drift * noise[0]))
    fast = Samples(list(range(60)), list(20 * drift * noise[1]))
    found = ratio(slow, fast)
    assert found is not None
    assert found.low < 1.5 < found.high
    assert found.high - found.low < 0.1
    assert ratio(slow, fast) == found  # no luck in it
    assert ratio(fast, Samples([60], [1.0])) is None


def test_samples_in_numbers() -> None:
    samples = Samples(list(range(5)), [5.0, 1.0, 2.0, 4.0, 3.0])
    assert (samples.median, samples.percentile(20), samples.percentile(80)) == (3.0, 1.8, 4.2)


def test_host_bound_needs_more_than_noise() -> None:
    timing = Timing("a", Samples([0], [12.0]), replay=10.0)
    assert not timing.host_bound
    timing.gpu.microseconds[0] = 15.0
    assert timing.host_bound


# ---- regressions ----


def saved(median: float, peer: float, shape: tuple[int, ...] = (8, 8)) -> dict[str, Any]:
    entries = [{"provider": "triton", "problem": "", "median": median}]
    entries.append({"provider": "eager", "problem": "", "median": peer})
    return {"op": "add", "dtype": "float16", "shape": shape, "options": {}, "best_peer": "eager",
            "entries": entries}  # fmt: skip


def test_a_case_is_compared_with_itself_only() -> None:
    """One of a sweep is not the fixed case of its shape: other providers may be there."""
    before = saved(10.0, 10.0)
    swept = {**saved(20.0, 10.0), "sweep": "numel", "x": 64}
    assert regressions([swept], [before], 0.05) == []
    assert len(regressions([swept], [before, {**before, "sweep": "numel", "x": 64}], 0.05)) == 1
    assert regressions([{**saved(20.0, 10.0), "options": {"act": "relu"}}], [before], 0.05) == []


def test_regressions_are_of_the_ratio_to_the_best_peer() -> None:
    before = [saved(10.0, 10.0)]
    assert regressions([saved(10.3, 10.0)], before, 0.05) == []
    assert regressions([saved(20.0, 20.0)], before, 0.05) == []  # a slower machine
    (line,) = regressions([saved(10.6, 10.0)], before, 0.05)
    assert line == "add float16 8×8, triton: 6 % slower than the baseline"
    assert regressions([saved(99.0, 1.0, (9, 9))], before, 0.05) == []


def test_regressions_without_the_peer_of_the_baseline() -> None:
    """A run of --providers triton against a full one: medians, not a median against a ratio."""
    alone = saved(20.3, 0.0)
    alone.update(entries=alone["entries"][:1], best_peer="")
    assert regressions([alone], [saved(20.0, 10.0)], 0.05) == []
    alone["entries"][0]["median"] = 22.0
    (line,) = regressions([alone], [saved(20.0, 10.0)], 0.05)
    assert "triton: 10 % slower" in line


def test_a_slower_peer_is_no_regression_of_ours() -> None:
    before, now = saved(10.0, 10.0), saved(10.0, 10.0)
    for case, median in ((before, 12.0), (now, 24.0)):
        case["entries"].append({"provider": "compile", "problem": "", "median": median})
    assert regressions([now], [before], 0.05) == []


@pytest.mark.parametrize(
    ("provider", "problem", "replay", "failed"),
    [
        ("triton", "", 10.0, False),
        ("triton", "wrong: 3 elements", 10.0, True),
        ("cuda", "after timing: wrong: 3 of 9 elements", 10.0, True),
        ("triton/f16", "RuntimeError no such kernel", 10.0, True),
        ("triton", "host-bound: launching takes 90 µs", 1.0, False),
        ("eager", "OutOfMemoryError", 10.0, False),
        ("eager", "after timing: wrong: off by 1e-1 of its norm", 10.0, True),
    ],
)
def test_what_fails_a_bench(provider: str, problem: str, replay: float, failed: bool) -> None:
    timing = Timing(provider, Samples([0], [10.0]), replay=replay)
    assert Entry(provider, timing, problem).failed is failed


def test_garbage_is_collected_between_the_cases_not_amid_samples(gpu: SimulatedGpu) -> None:
    import gc

    seen = []

    def call(argument: int) -> None:
        seen.append(gc.isenabled())
        gpu.launch("a", 1.0, 1.0)

    measure([Candidate("a", call)], INPUTS, gpu, right, Budget(5))
    assert not any(seen[-5:])
    assert gc.isenabled()


# ---- the command ----


def bench(*words: str) -> Result:
    return CliRunner().invoke(app, ["bench", *words])


def test_dry_run_says_what_would_be_timed() -> None:
    done = bench("add", "linear_gelu", "--dry-run", "--dtype", "float32,bfloat16")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert len(lines) == 2 * (4 + 10) + 1
    assert lines[0].startswith("add float32 1024x1024 ")
    assert lines[0].endswith(": triton, cuda, triton/f32, triton/f32x4, cuda/f32, cuda/f32x4, "
                             "cuda/auto, eager, compile")  # fmt: skip
    assert sum("max-autotune" in line for line in lines) == 6  # bfloat16, but for LONG_TO_TUNE
    assert all("cublaslt" in line for line in lines[8:-1])
    assert lines[-1] == "not installed: flag_gems, quack"
    done = bench("add", "--dry-run", "--shapes", "64,64", "--providers", "triton,peers")
    assert [line.split(": ")[1] for line in done.stdout.splitlines()[:-1]] == [
        "triton, eager, compile"
    ] * 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_there_is_nothing_to_time(tmp_path: Path) -> None:
    done = bench("--json", str(tmp_path / "b.json"))
    assert done.exit_code == 3
    assert "no CUDA device" in done.stderr
    assert not (tmp_path / "b.json").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["ad"], "no op 'ad'"),
        (["--providers", "cudnn"], "--providers cudnn: "),
        (["--dtype", "int8"], "--dtype int8: one of float32"),
        (["add", "--shapes", "4x"], "--shapes 4x: sizes with commas"),
        (["add", "--shapes", "8,8,8"], "other numbers of sizes"),
        (["--baseline", "nowhere.json"], "no file of bench --json"),
        (["--json", "."], "cannot write there"),
        (["--resume"], "--resume goes on with a file: --json FILE"),
        (["--sweep", "--full"], "only one of --shapes, --sweep, --full"),
        (["--shapes", "8,8", "--sweep"], "only one of --shapes, --sweep, --full"),
        (["add", "numl", "--sweep"], "no op or sweep 'numl'; the ops are add, "),
        (["add", "M", "--sweep"], "these ops have other sweeps"),
        (["--providers", "quack"], "--providers quack: it is not installed"),
    ],
)
def test_bench_usage_errors(words: list[str], says: str) -> None:
    done = bench(*words)
    assert done.exit_code == 2
    assert says in re.sub(r"[\s│]+", " ", done.stderr), done.stderr
