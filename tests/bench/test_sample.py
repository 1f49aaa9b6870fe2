"""bench --sample from end to end, on a simulated GPU: what is timed, how often, what is told."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benched import bench, entries, flat
from simulated_gpu import FLUSH, Rig

from compare.cases import Case
from compare.ops import SPECS
from compare.timing import distributions, engine, providers, sampling
from compare.timing.bench import Work
from compare.timing.engine import CONTROL, Candidate
from compare.timing.results import CaseResult, Entry

SAMPLE = ("square", "--sample", "14", "--seed", "5", "--dtype", "float16")
PRODUCTS = ("gemm_bias_act", "--sample", "24", "--dtype", "bfloat16")


def cases(file: Path) -> list[dict[str, Any]]:
    return list(json.loads(file.read_text())["cases"])


def speed(case: dict[str, Any], provider: str) -> float:
    return float(entries(case)[provider]["speedup"]["value"])


def by_size(name: str, case: Case) -> float:
    """Ours is slower here and faster there; torch.compile is always the best peer."""
    return {"triton": 1 + case.numel % 9973 / 9973, "eager": 3.0}.get(name, 1.25)


class Sized(Rig):
    """Providers whose times depend on the case."""

    def candidates(self, spec: Any, case: Any, wanted: Any) -> Any:
        self.factor = {name: by_size(name, case) for name in wanted}
        yield from super().candidates(spec, case, wanted)


@pytest.fixture
def sized(monkeypatch: pytest.MonkeyPatch) -> Rig:
    rig = Sized()
    for owner, name, value in rig.replaced():
        monkeypatch.setattr(owner, name, value)
    return rig


def test_every_problem_is_timed_and_stands_in_its_stratum(sized: Rig, tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    done = bench(*SAMPLE, "--json", str(file))
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text())
    assert (found["sample"], found["seed"], found["ended"]) == (14, 5, "")
    assert Counter(case["stratum"] for case in found["cases"]) == dict.fromkeys(
        (
            *("dense", "odd count", "offset view", "every second element", "padded rows"),
            *("transposed", "permuted 4-D"),
        ),
        2,
    )
    for case in found["cases"]:
        assert [entry["provider"] for entry in case["entries"]] == [
            *("triton", "eager", "compile", CONTROL)
        ]
        assert case["best_peer"] == "compile"
        numel = math.prod(case["shape"])
        assert speed(case, "triton") == pytest.approx(1.25 / (1 + numel % 9973 / 9973))
        again = CaseResult.from_dict(case).to_dict()
        medians = [each.pop("entries")[0]["median"] for each in (again, dict(case))]
        assert medians[0] == pytest.approx(medians[1], abs=1e-3)
        assert again == {name: value for name, value in case.items() if name != "entries"}


def test_the_control_is_the_best_peer_and_judged_like_ours(sized: Rig, tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    bench(*SAMPLE, "--json", str(file))
    for case in cases(file):
        by = entries(case)
        assert by[CONTROL]["median"] == pytest.approx(by["compile"]["median"])
        assert speed(case, CONTROL) == pytest.approx(1)
        assert by[CONTROL]["samples"] == by["triton"]["samples"]
    strata = json.loads(file.read_text())["strata"]
    assert {s["provider"] for s in strata} == {"triton", CONTROL}
    assert len(strata) == 2 * 7
    for each in strata:
        own = [speed(c, each["provider"]) for c in cases(file) if c["stratum"] == each["stratum"]]
        assert each["problems"] == len(own) == 2
        assert each["geometric_mean"] == pytest.approx(math.exp(sum(map(math.log, own)) / 2))
        assert each["percentile_5"] == pytest.approx(np.percentile(own, 5))
        assert [w["ratio"] for w in each["worst"]] == pytest.approx(sorted(own))


def test_the_worst_of_every_stratum_are_timed_again(sized: Rig, tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    bench("square", "--sample", "70", "--dtype", "float16", "--json", str(file))
    for stratum in {case["stratum"] for case in cases(file)}:
        own = [case for case in cases(file) if case["stratum"] == stratum]
        assert len(own) == 10
        worst = sorted(own, key=lambda case: speed(case, "triton"))[:3]
        assert all(case["again"] for case in worst)
        for case in own:
            assert entries(case)["triton"]["samples"] == (60 if case["again"] else 20)
        assert sum(case["again"] for case in own) <= 6  # ours and the control's


def result(case: Case, ratio: float, again: bool = False) -> CaseResult:
    """A problem on which ours is so many times as fast as the best peer."""
    made = CaseResult(case, 1.0, "GB/s", stratum="dense", again=again)
    for name, time in (("triton", 1 / ratio), ("eager", 1.0), (CONTROL, 1.0)):
        timing = engine.Timing(name)
        timing.gpu.rounds, timing.gpu.microseconds = [0], [time]
        made.entries.append(Entry(name, timing))
    made.rank()
    return made


def test_what_becomes_the_worst_is_timed_again_too() -> None:
    """The short looks at the three worst are off; then the next is the worst, and is off, too."""
    first, second = (0.5, 0.7, 0.6, 0.8, 0.9, 0.95, 0.99), (1.0, 1.0, 1.0, 0.92, 0.91, 0.1, 0.1)
    cases = [Case("square", "float16", (n + 1,)) for n in range(7)]
    order: list[tuple[int, bool]] = []

    class Looks:
        def known(self, work: Work) -> None:
            return None

        def measure(self, work: Work, names: Any, tick: Any, budget: Any) -> CaseResult:
            (n,) = work.case.shape
            order.append((n - 1, budget is None))
            ratio = (second if budget is None else first)[n - 1]
            return result(work.case, ratio, again=budget is None)

    jobs: list[sampling.Job] = [(Work(SPECS["square"], c, stratum="dense"), []) for c in cases]
    results: list[CaseResult] = []
    left: list[int] = []
    looks: Any = Looks()
    sampling.run(jobs, looks, results, distributions.doubtful, lambda work, name: None, left.append)
    assert order[:7] == [(n, False) for n in range(7)]
    # The three worst, which are also the control's first three; what is the worst then; the next.
    assert order[7:] == [(0, True), (1, True), (2, True), (3, True), (4, True)]
    assert [each.again for each in results] == [True] * 5 + [False] * 2
    assert left == [6, 5, 4, 3, 2, 1, 0, 2, 1, 0, 0, 0]


def test_the_table_and_its_replay_lines(sized: Rig, tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    done = bench(*PRODUCTS, "--json", str(file))
    lines = done.output.splitlines()
    (title,) = [line for line in lines if line.startswith("gemm_bias_act: × best peer")]
    assert "control" in title
    rows = {line.split("  ")[0]: line for line in lines}
    assert "few rows, of 64" in rows
    ratios = [speed(case, "triton") for case in cases(file)]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    assert rows["all"].split()[1:3] == ["24", f"{mean:.3f}"]
    replays = [line.split(": ", 1)[1] for line in lines if "python -m compare bench" in line]
    drawn = {str(CaseResult.from_dict(case).case) for case in cases(file)}
    named = set()
    for line in replays:
        words = shlex.split(line)
        assert words[:4] == ["python", "-m", "compare", "bench"]
        again = bench(*words[4:], "--dry-run")
        assert again.exit_code == 0, again.output
        named.add(again.stdout.splitlines()[0].split(": ")[0])
    assert named <= drawn
    assert len(named) >= 12


def test_a_replay_line_times_the_same_problem(sized: Rig, tmp_path: Path) -> None:
    file, other = tmp_path / "s.json", tmp_path / "o.json"
    bench(*PRODUCTS, "--json", str(file))
    for case in cases(file)[:6]:
        made = CaseResult.from_dict(case).case
        words = shlex.split(distributions.replay(made))[4:]
        assert bench(*words, "--json", str(other)).exit_code == 0
        (again,) = cases(other)
        assert CaseResult.from_dict(again).case == made
        names = [entry["provider"] for entry in case["entries"]]
        assert [entry["provider"] for entry in again["entries"]] == names[:-1]


def test_dry_run_needs_no_gpu_and_says_the_strata() -> None:
    done = bench("add", "--sample", "22", "--dry-run")
    assert done.exit_code == 0, done.output
    assert done.stdout.count("\nadd, outer: 2\n") == 1
    assert done.stdout.count("triton, eager, compile") == 22
    assert done.stdout == bench("add", "--sample", "22", "--dry-run").stdout
    assert done.stdout != bench("add", "--sample", "22", "--seed", "1", "--dry-run").stdout


def test_options_of_what_is_drawn() -> None:
    """The same problems otherwise."""
    words = ("linear_act", "--sample", "6", "--seed", "3", "--dtype", "float32", "--dry-run")
    plain, changed = bench(*words), bench(*words, "--arg", "precision=tf32")
    assert changed.exit_code == 0, changed.output
    lines = [flat(done.output) for done in (plain, changed)]
    assert lines[1].count("--arg precision=tf32 ") == 6
    for each in ("--arg precision=tf32 ", "precision=tf32 "):
        lines[1] = lines[1].replace(each, "")
    assert lines[0] == lines[1]


def test_torch_runs_in_the_case_s_precision() -> None:
    """And in what was set before again afterwards, whatever happened."""

    def now() -> str:
        return str(torch.backends.cuda.matmul.fp32_precision)

    coarse = Case("linear_act", "float32", (4, 4, 4), options={"precision": "tf32"})
    before = now()
    with providers.torchs_precision(coarse):
        assert now() == "tf32"
        with providers.torchs_precision(dataclasses.replace(coarse, options={})):
            assert now() != "tf32"
        assert now() == "tf32"
    with pytest.raises(ZeroDivisionError), providers.torchs_precision(coarse):
        raise ZeroDivisionError
    assert (now() == "tf32") is (before == "tf32")


def test_a_sample_goes_on_where_it_ended(rig: Rig, tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    words = (*SAMPLE, "--json", str(file), "--resume")
    whole = bench(*SAMPLE, "--json", str(tmp_path / "whole.json"))
    assert whole.exit_code == 0
    seen = rig.timed[:]
    rig.timed, calls = [], Counter[str]()

    def before(name: str, case: Case) -> None:
        calls[str(case)] += 1
        if len(calls) == 5:
            raise KeyboardInterrupt

    rig.before = before
    done = bench(*words)
    assert "interrupted: 4 of 14 cases are timed" in flat(done.output)
    rig.before, rig.timed = (lambda name, case: None), []
    done = bench(*words)
    assert done.exit_code == 0, done.output
    assert "going on after 4 cases" in flat(done.output)
    assert rig.timed[:10] == seen[4:14]
    assert len(cases(file)) == 14
    rig.timed = []
    assert bench(*words).exit_code == 0  # all is there, the second looks too
    assert rig.timed == []
    other = bench(*words[:4], "6", *words[5:])
    assert other.exit_code == 2
    assert "seed was 5 and is 6" in flat(other.stderr)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--sample", "3", "--sweep"), "only one of --sample"),
        (("--sample", "3", "--shapes", "4,4"), "only one of --sample"),
        (("--layout", "padded"), "--layout says what the cases of --shapes are"),
        (("add", "--arg", "y=row"), "--arg also those of --sample"),
        (("linear_act", "--sample", "3", "--layout", "padded"), "--layout says what the cases"),
        (("linear_act", "--sample", "3", "--arg", "y=row"), "NAME=VALUE with one of"),
        (("linear_act", "--sample", "3", "--arg", "precision=tf32"), "are for float32"),
        (("add", "square", "--shapes", "4,4", "--layout", "padded"), "are for one op"),
        (("add", "--shapes", "4,4", "--arg", "y=channel"), "3 sizes or more"),
        (("add", "--shapes", "4,0", "--layout", "padded"), "sizes are positive"),
        (("add", "--shapes", "4,4", "--layout", "odd"), "one of contiguous"),
    ],
)
def test_what_does_not_go_together(words: tuple[str, ...], says: str) -> None:
    done = bench(*words, "--dry-run")
    assert done.exit_code == 2
    assert says in flat(done.stderr)


def test_one_of_ours_that_raises_is_missing_and_told(rig: Rig, tmp_path: Path) -> None:
    def before(name: str, case: Case) -> None:
        if name == "triton" and case.layout == "padded":
            raise torch.OutOfMemoryError("out of resource: shared memory")

    rig.before = before
    done = bench(*SAMPLE, "--seed", "2", "--json", str(tmp_path / "s.json"))
    padded = [case for case in cases(tmp_path / "s.json") if case.get("layout") == "padded"]
    assert padded
    assert done.exit_code == 1
    (row,) = re.findall(r"^padded rows +(\d) of 2", done.output, re.M)
    assert int(row) == 2 - len(padded)
    assert "out of resource: shared memory" in done.output
    assert "--layout padded" in done.output


def test_a_control_costs_no_first_call_and_has_its_twin_s_calls() -> None:
    calls: list[str] = []

    class Still:
        now = 0.0

        def synchronize(self) -> None: ...
        def empty_cache_lines(self, passes: int) -> None: ...
        def keep_busy(self, microseconds: float) -> None: ...
        def graph(self, call: Any) -> None: ...

        def event(self) -> float:
            return self.now

        def elapsed(self, start: float, end: float) -> float:
            return end - start or FLUSH

    device = Still()

    def timed(name: str, time: float) -> Candidate:
        def call(_: Any) -> str:
            calls.append(name)
            device.now += time
            return name

        return Candidate(name, call)

    judged: list[tuple[str, str]] = []

    def check(candidate: Candidate, result: Any, inputs: Any) -> str:
        judged.append((candidate.name, result))
        return ""

    found = engine.measure(
        [timed("ours", 1.0), timed("a", 3.0), timed("b", 2.0)],
        [(0,)],
        device,
        check,
        engine.Budget(samples=10),
        twice=("a", "b"),
    )
    assert [each.name for each in found] == ["ours", "a", "b", CONTROL]
    assert found[-1].gpu.microseconds == [2.0] * 10
    assert found[-1].first_call == 0
    assert judged[-1] == (CONTROL, "b")  # the result of the last sample is checked, too


def test_a_baseline_compares_strata_and_not_single_problems(rig: Rig, tmp_path: Path) -> None:
    before = tmp_path / "before.json"
    words = ("square", "--sample", "70", "--dtype", "float16")
    assert bench(*words, "--json", str(before)).exit_code == 0
    assert bench(*words, "--baseline", str(before)).exit_code == 0
    slow = {"dense": 1.2, "odd count": 1.04}
    strata = {str(CaseResult.from_dict(c).case): c["stratum"] for c in cases(before)}
    simulated = rig.gpu.launch

    def launch(name: str, host: float, gpu: float) -> str:
        return simulated(name, host, gpu * here.get(name, 1.0))

    here: dict[str, float] = {}

    def entered(name: str, case: Case) -> None:
        here.clear()
        here[name] = slow.get(strata[str(case)], 1.0) if name == "triton" else 1.0

    rig.before, rig.gpu.launch = entered, launch  # type: ignore[method-assign]
    done = bench(*words, "--baseline", str(before))
    assert done.exit_code == 1
    (line,) = [line for line in done.output.splitlines() if "slower than the baseline" in line]
    assert line.startswith("square, dense, triton: 2")
    assert "over 10 problems" in flat(done.output)
