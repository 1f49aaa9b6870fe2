"""python -m compare timing: on a simulated GPU, every sentence is what the simulation was told."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from simulated_gpu import SimulatedGpu
from typer.testing import CliRunner, Result

from compare.cli import app
from compare.commands import timing as command
from compare.timing.tutorial import TECHNIQUES, Technique, teach
from compare.timing.tutorial_text import sentences

CACHE = {"cold": 20.0, "warm": 8.0, "dirty": 26.0}  # µs that the kernel takes
DRIFT = 1e-3  # of the kernel's time, a launch


class Taught(SimulatedGpu):
    """A GPU whose kernel knows the cache, and a host that takes time to wake up."""

    def __init__(
        self,
        kernel: dict[str, float] = CACHE,
        host: float = 10.0,
        wake: float = 7.0,
        first: float = 3e5,
        replay: float | None = 4.0,
        drift: float = 0.0,
    ) -> None:
        super().__init__()
        self.kernel, self.launching, self.wake, self.first = kernel, host, wake, first
        self.replay, self.drift = replay, drift
        self.cache, self.calls = "warm", 0

    def synchronize(self) -> None:
        super().synchronize()
        self.host += self.wake

    def empty_cache_lines(self, passes: int) -> None:
        super().empty_cache_lines(passes)
        self.cache = "cold"

    def dirty_cache_lines(self, passes: int) -> None:
        super().empty_cache_lines(passes)
        self.cache = "dirty"

    def run(self, host: float) -> None:
        self.calls += 1
        self.work(host, self.kernel[self.cache] * (1 + self.drift * self.calls))
        self.cache = "warm"

    def call(self) -> None:
        self.run(self.launching if self.calls else self.first)

    def graph(self, call: Callable[[], Any]) -> Callable[[], Any] | None:
        replay = self.replay
        return None if replay is None else lambda: self.run(replay)


@pytest.fixture
def taught(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Technique]]:
    def run(**words: Any) -> dict[str, Technique]:
        device = Taught(**words)
        monkeypatch.setattr(time, "perf_counter", device.clock)
        return teach(device.call, device, samples=9)

    return run


Teach = Callable[..., dict[str, Technique]]


def test_every_technique_measures_what_it_says(taught: Teach) -> None:
    found = taught()
    assert list(found) == list(TECHNIQUES)
    known = {
        "first": 3e5 + 8 + 7,  # compiling, the kernel on a warm cache, waking up
        "later": 10 + 8 + 7,
        "neither": 10,
        "before": 10,
        "both": 10 + 20 + 7,
        "idle": 10 + 20,
        "cold": 20,
        "warm": 8,
        "dirty": 26,
        "graph": 20,
        "launch": 4,
        "sequential": 1,
        "interleaved": 1,
    }
    for key, value in known.items():
        assert found[key].median == pytest.approx(value), key
    # Two passes of 60 µs are queued, of which the host's 6 µs for queueing them are over.
    assert found["after"].median == pytest.approx(120 - 3 + 20 + 7)
    assert len(found["cold"].samples) == 9
    assert len(found["first"].samples) == 1
    assert len(found["interleaved"].samples) == 5


def test_sentences_of_a_kernel_longer_than_its_launch(taught: Teach) -> None:
    said = {key: technique.says for key, technique in taught().items()}
    stopped = "nothing waited for the kernel, the clock stopped when the launch was queued"
    waiting = "launching it and waking the host are in it"
    assert said == {
        "first": "12001 times a later call: what was compiled or loaded is in it",
        "later": f"5.00 µs more than the kernel takes: {waiting}",
        "neither": f"10.00 µs less than the kernel takes: {stopped}",
        "before": f"10.00 µs less than the kernel takes: {stopped}",
        "after": "107.0 µs more than with both: 120.0 µs of work were queued before, and the clock "
        "waited for them, too",
        "both": f"17.00 µs more than the kernel takes: {waiting}",
        "idle": "10.00 µs more than behind other work: the first event happened at once, the "
        "kernel only when its launch arrived",
        "cold": "the kernel alone: its launch (10.00 µs) was queued during 120.0 µs of other "
        "work; this is what bench measures",
        "warm": "2.50 times as fast as with an emptied cache: the call before left in L2 what "
        "this one reads",
        "dirty": "6.00 µs more than after reading: the kernel paid for writing others' lines back",
        "graph": "as the call between events: no launch was in that",
        "launch": "6.00 µs less than launching the kernel by its call",
        "sequential": "off from 1 by up to 0.0 % in 5 tries",
        "interleaved": "off from 1 by up to 0.0 % in 5 tries: as near as one after the other: "
        "little drifted meanwhile",
    }


def test_the_same_techniques_say_otherwise_of_another_kernel(taught: Teach) -> None:
    """Nothing is told by heart: a short kernel, launched slowly, that the cache does not touch."""
    said = {
        key: technique.says
        for key, technique in taught(
            kernel=dict.fromkeys(CACHE, 5.0), host=30.0, first=30.0, replay=None, wake=0.0
        ).items()
    }
    assert said["first"] == "no more than a later call: nothing was left to compile or load"
    assert said["neither"].startswith("25.00 µs more than the kernel takes: nothing waited")
    assert said["warm"] == "as with an emptied cache: what the call before left in L2 was of no use"
    assert said["dirty"].startswith("as much as after reading: writing others' lines back cost")
    assert said["graph"] == said["launch"] == "this call cannot be captured as a graph"


def test_a_long_kernel_hides_its_launch(taught: Teach) -> None:
    said = {k: v.says for k, v in taught(kernel=dict.fromkeys(CACHE, 9000.0)).items()}
    assert said["both"].startswith("the kernel's time: beside it")
    assert said["idle"].startswith("as much as behind other work: launching does not show")
    assert said["neither"].startswith("8990 µs less than the kernel takes")


def test_a_launch_that_coincides_with_the_kernel(taught: Teach) -> None:
    said = {k: v.says for k, v in taught(host=20.0).items()}
    assert said["before"].startswith("the kernel's 20.00 µs by coincidence: nothing waited")


def test_a_launch_that_outlasts_all_queued_work_is_told(taught: Teach) -> None:
    said = {k: v.says for k, v in taught(host=2000.0).items()}
    assert said["cold"] == "not the kernel's: as a graph it takes 20.00 µs, the rest is launching"
    assert taught(host=2000.0, replay=None)["cold"].says == (
        "launching (2000 µs) outlasts the 960.0 µs of other work: unsure"
    )
    # With the GPU long idle, the work queued before is nothing to wait for.
    assert said["after"].startswith("as much as with both, but that depends")


def test_taking_turns_cancels_a_drift(taught: Teach) -> None:
    found = taught(drift=DRIFT)
    # Nine launches lie between the medians of two blocks, and one between two turns.
    launches = found["sequential"].samples
    assert all(1 - 9 * DRIFT < ratio < 1 - 5 * DRIFT for ratio in launches), launches
    assert any(ratio > 1 for ratio in found["interleaved"].samples)  # neither always comes first
    off = {k: max(abs(r - 1) for r in found[k].samples) for k in ("sequential", "interleaved")}
    assert off["interleaved"] < off["sequential"] / 2
    assert found["interleaved"].says.endswith(
        "nearer than one after the other: what drifted, drifted for both"
    )


@pytest.mark.parametrize(
    ("key", "median", "says"),
    [
        ("warm", 25.0, "5.00 µs more than with an emptied cache: what the call before left"),
        ("dirty", 15.0, "5.00 µs less than after reading: writing others' lines back cost this"),
        ("graph", 15.0, "5.00 µs less than the call between events"),
        ("both", 15.0, "5.00 µs less than the kernel takes with an emptied cache: that cannot be"),
        ("later", 15.0, "5.00 µs less than the kernel takes with an emptied cache: here the call"),
        ("interleaved", 1.01, "off from 1 by up to 1.0 % in 1 tries: further off than one after"),
        ("after", 15.0, "22.00 µs less than with both, but that depends on what is left of it"),
    ],
)
def test_sentences_of_what_seldom_happens(
    taught: Teach, key: str, median: float, says: str
) -> None:
    samples = {name: technique.samples for name, technique in taught().items()} | {key: [median]}
    assert sentences(samples, 120.0)[key].startswith(says)


# ---- the command ----


def timing(*words: str) -> Result:
    return CliRunner().invoke(app, ["timing", *words])


def test_dry_run_names_every_technique() -> None:
    done = timing("--dry-run", "--op", "add", "--dtype", "bfloat16", "--shape", "64,32")
    assert done.exit_code == 0, done.output
    heading, *lines = done.stdout.splitlines()
    assert heading.startswith("add bfloat16 64x32 ")
    assert len(lines) == len(TECHNIQUES)
    for line, (topic, name, how) in zip(lines, TECHNIQUES.values()):
        assert re.fullmatch(rf"  {re.escape(f'{topic}: {name}')} +{re.escape(how)}", line)
    assert "relu_scale float16 2048x2048 " in timing("--dry-run").stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_there_is_nothing_to_time(tmp_path: Path) -> None:
    done = timing("--json", str(tmp_path / "t.json"))
    assert done.exit_code == 3
    assert "nothing to time: no CUDA device (--dry-run shows" in done.stderr
    assert not (tmp_path / "t.json").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--op", "ad"], "no op 'ad'"),
        (["--dtype", "int7"], "--dtype int7: one of "),
        (["--dtype", "int8"], "relu_scale has no dtype int8"),
        (["--shape", "4,x"], "--shape 4,x: sizes with commas"),
        (["--shape", "0,4"], "--shape 0,4: sizes are positive"),
        (["--shape", "4,4,4"], "--shape 4,4,4: relu_scale has 2 sizes, as 1024,1024"),
        (["--json", "."], "cannot write there"),
    ],
)
def test_timing_usage_errors(words: list[str], says: str) -> None:
    done = timing(*words)
    assert done.exit_code == 2
    assert says in re.sub(r"[\s│]+", " ", done.stderr), done.stderr


def test_the_table_and_the_file(
    taught: Teach, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    techniques = taught(replay=None)
    monkeypatch.undo()
    monkeypatch.setattr(command, "need_gpu", lambda what: None)
    monkeypatch.setattr(command, "TeachingGpu", lambda: None)
    monkeypatch.setattr(command, "teach", lambda *words, **more: techniques)
    monkeypatch.setattr(command.bench, "inputs", lambda spec, case, seed: ((), {}))
    file = tmp_path / "t.json"
    done = timing("--json", str(file))
    assert done.exit_code == 0, done.output
    rows = [re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines()]
    assert ["both", "37.00"] not in rows
    assert ["before and after", "37.00", "37.00–37.00"] in [row[:3] for row in rows]
    assert ["the first call", "300015"] in [row[:2] for row in rows]
    assert ["taking turns", "× 1.000", "1.000–1.000"] in [row[:3] for row in rows]
    assert ["between events", "–"] in [row[:2] for row in rows]
    assert [row for row in rows if len(row) == 1 and row[0] in {w[0] for w in TECHNIQUES.values()}]
    found = json.loads(file.read_text())["techniques"]
    assert found["dirty"]["median"] == pytest.approx(26)
    assert found["dirty"]["says"] == techniques["dirty"].says
    assert found["graph"]["samples"] == []


@pytest.mark.gpu_only
def test_on_a_gpu(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    done = timing("--samples", "20", "--json", str(file))
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text())["techniques"]
    assert all(found[key]["samples"] and found[key]["says"] for key in TECHNIQUES)
    assert found["cold"]["says"].startswith("the kernel alone: "), found["cold"]
    assert found["graph"]["median"] <= found["both"]["median"]  # the host's clock sees more
    assert found["after"]["median"] > found["both"]["median"]  # the emptying of L2 is in it
