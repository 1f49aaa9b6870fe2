"""python -m compare models --time: models in processes of their own, on a GPU that is this CPU."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import triton_kernels as tk
from compare.cli import app
from compare.commands import models as command
from compare.models import processes, timing
from compare.models.making import Made
from compare.models.processes import race
from compare.models.timing import Request

pytestmark = pytest.mark.usefixtures("fresh")

OTHERS = ("triton", "compile", "eager", "control")


class Clock:
    """The CPU as a device to time on."""

    def synchronize(self) -> None: ...
    def empty_cache_lines(self, passes: int) -> None: ...
    def keep_busy(self, microseconds: float) -> None: ...

    def event(self) -> float:
        return time.perf_counter()

    def elapsed(self, start: float, end: float) -> float:
        return 1e6 * (end - start)

    def graph(self, call: Callable[[], Any]) -> None: ...


class Model(nn.Module):
    """Returns a dict, as models of transformers do; ``wrong`` is added to its results."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"ids": x.argmax(-1), "y": self.layers(x)}


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    torch.manual_seed(0)
    one = Model().to(torch.bfloat16)

    def make(request: Request) -> Made:
        return Made(one.train(request.training), (torch.randn(4, 8).bfloat16(),), {})

    monkeypatch.setattr(Request, "make", make)
    monkeypatch.setattr(timing, "_NoGraphs", Clock)
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    return one


@pytest.mark.parametrize("training", [False, True])
def test_one_model(training: bool, model: Model) -> None:
    waited = []
    before = [p.clone() for p in model.parameters()]
    with tk.interpret():
        request = Request("mine", training=training, min_score=0.0)
        done = timing.timed(request, lambda: waited.append(1))
    assert waited == [1]
    assert done["kernels"] >= 1
    assert {each["name"] for each in done["timings"]} == set(OTHERS)
    assert not any(each["problem"] for each in done["timings"])
    assert all(each["gpu"]["microseconds"] for each in done["timings"])
    assert all(p.grad is None for p in model.parameters())
    moved = [not torch.equal(old, new) for old, new in zip(before, model.parameters())]
    assert any(moved) == training, "a step of the optimizer"


@pytest.mark.parametrize("training", [False, True])
def test_a_wrong_model_is_not_timed(
    training: bool, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = torch.compile

    def wrong(module: nn.Module, **options: Any) -> Any:
        if "backend" not in options:
            return compiled(module)
        return lambda x: {"y": 1.2 * model(x)["y"]}

    monkeypatch.setattr(torch, "compile", wrong)
    done = timing.timed(Request("mine", training=training), lambda: None)
    timings = {each["name"]: each for each in done["timings"]}
    assert timings["triton"]["problem"].startswith("wrong: ")
    assert not timings["triton"]["gpu"]["microseconds"]
    assert not timings["compile"]["problem"]


# ---- processes ----

PROGRAM = """
import json, pathlib, sys
request = json.loads(sys.argv[1])
here = pathlib.Path(sys.argv[0]).parent
name = request["name"]
with (here / "log").open("a") as log:
    log.write(f"compiled {name}\\n")
sys.stderr.write("chatter " * 20000)
if name == "broken":
    raise MemoryError("too large")
print("some model prints\\nready", flush=True)
sys.stdin.readline()
with (here / "log").open("a") as log:
    log.write(f"timed {name}\\n")
if name == "killed":
    import os
    os._exit(7)
speed = {"half": 0.5, "equal": 1.0}[name]
rounds = list(range(5))
times = {"eager": 30.0, "compile": 10.0, "triton": 10.0 / speed, "control": 10.0}
timings = [
    {"name": n, "gpu": {"rounds": rounds, "microseconds": [t] * 5}, "problem": ""}
    for n, t in times.items()
]
print(json.dumps({"kernels": 3, "timings": timings}))
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.setattr(processes, "PROGRAM", (sys.executable, str(program)))
    return tmp_path / "log"


def test_all_compile_before_one_is_timed(log: Path) -> None:
    requests = [Request(name) for name in ("half", "broken", "killed", "equal")]
    ticks: list[str] = []
    models = race(requests, 2, 3, lambda so_far, name: ticks.append(name))
    assert ticks == ["half", "broken", "killed", "equal"] * 2
    lines = log.read_text().split()
    first = [lines[i : i + 2] for i in range(0, len(lines), 2)][:7]
    assert sorted(map(tuple, first[:3])) == [
        *(("compiled", "broken"), ("compiled", "half"), ("compiled", "killed"))
    ]
    assert first[3:] == [
        *(["timed", "half"], ["timed", "killed"], ["compiled", "equal"], ["timed", "equal"])
    ]
    half, broken, killed, equal = models
    assert half.speeds["triton"] == [0.5, 0.5]
    assert half.microseconds["triton"] == [20, 20]
    assert (half.kernels, half.problems) == (3, [])
    assert broken.problems == ["MemoryError: too large"]
    assert len(killed.problems) == 1
    assert equal.speed() == 1.0


def test_the_command(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "need_gpu", lambda *args, **more: None)
    monkeypatch.setattr(command, "ARCHITECTURES", dict.fromkeys(("half", "equal", "broken")))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)  # transformers
    file = tmp_path / "t.json"
    words = ["models", "half", "equal", "--time", "--processes", "2", "--json", str(file)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "fused: 0.707 of torch.compile's speed, 0.500 at least" in done.output
    assert "torch.compile again: 1.000" in done.output
    rows = json.loads(file.read_text())["rows"]
    assert [row["speeds"]["triton"] for row in rows] == [[0.5, 0.5], [1.0, 1.0]]
    assert rows[0]["request"]["min_score"] == 1.01
    done = CliRunner().invoke(app, ["models", "broken", "half", "--time", "--processes", "1"])
    assert done.exit_code == 1
    assert "broken: MemoryError: too large" in done.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what there is without a GPU")
def test_without_a_gpu() -> None:
    done = CliRunner().invoke(app, ["models", "--target", "module:make", "--time"])
    assert done.exit_code == 3
    assert "nothing to time: no CUDA device\n" in done.output
