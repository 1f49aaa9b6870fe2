"""Whether capability scores are right in sign: bench --sample says it of what graphs could take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from benched import bench, entries
from simulated_gpu import Rig

from compare.cases import Case
from compare.timing import bench as bench_inputs
from compare.timing import scores
from compare.timing.scores import CLOSE
from triton_kernels._fusion import Problem
from triton_kernels.graph import capabilities, racing
from triton_kernels.graph.capabilities import MIN_SCORE, Verdict

OPTIONS: dict[str, dict[str, Any]] = {
    "linear_act": {"act": "silu", "bias": True},
    "linear_gelu": {"approximate": "tanh"},
}
PRODUCTS = ("linear_act", "--sample", "24", "--seed", "7", "--dtype", "bfloat16")


@pytest.mark.parametrize(
    ("score", "speed", "right"),
    [
        (MIN_SCORE, 1.3, True),
        (MIN_SCORE, 1 - CLOSE, True),  # as good as equal: either will do
        (MIN_SCORE, 0.97, False),
        (1.0, 0.9, True),
        (1.0, 1 + CLOSE, True),
        (1.0, 1.03, False),
        (0.0, 1.5, False),
    ],
)
def test_a_score_is_right_if_what_it_decides_costs_nothing(
    score: float, speed: float, right: bool
) -> None:
    assert scores.Judged(score, speed, None).right is right  # type: ignore[arg-type]


def test_only_what_a_graph_could_take_is_judged(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Problem] = []

    def judge(problem: Problem, least: float) -> Verdict:
        assert least == MIN_SCORE
        asked.append(problem)
        return Verdict(0.9 if problem.other == "eager" else 1.1)

    monkeypatch.setattr(capabilities, "judge", judge)
    rig.factor = {"triton": 1.0, "eager": 1.5, "compile": 0.9}
    file = tmp_path / "s.json"
    done = bench(*PRODUCTS, "--json", str(file))
    found = json.loads(file.read_text())

    def could_be_taken(case: dict[str, Any]) -> bool:
        options = case["options"]
        plain = options["operands"] == "forward" and not options.keys() & {"c", "training"}
        return plain and options["act"] != "none"

    problems = [case for case in found["cases"] if could_be_taken(case)]
    assert 5 < len(problems) < len(found["cases"])
    beside = {
        name: [
            case for case in problems if not entries(case).get(name, {"problem": "no"})["problem"]
        ]
        for name in ("eager", "compile")
    }
    assert {(p.M, p.N, p.K) for p in asked} == {tuple(case["shape"]) for case in problems}
    assert {p.act for p in asked} == {case["options"]["act"] for case in problems}
    # Left beside eager, than which it is faster; taken beside torch.compile, than which it is not.
    assert [(s["other"], s["problems"], s["right"]) for s in found["scores"]] == [
        ("eager", len(beside["eager"]), 0),
        ("compile", len(beside["compile"]), 0),
    ]
    eager, inductor = found["scores"]
    assert (eager["wrong"][0]["score"], eager["wrong"][0]["speed"]) == (0.9, pytest.approx(1.5))
    assert inductor["wrong"][0]["speed"] == pytest.approx(0.9)
    assert "--shapes" in inductor["wrong"][0]["replay"]
    said = f"linear_act, capability scores against eager: 0 of {len(beside['eager'])} are right"
    assert said in done.output
    assert "  score 1.10, measured 0.90: python -m compare bench linear_act" in done.output


def test_what_has_no_score_is_not_judged(rig: Rig, tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    bench("sum_to", "--sample", "7", "--dtype", "float16", "--json", str(file))
    assert json.loads(file.read_text())["scores"] == []


def test_an_elementwise_op_has_one_score_for_all_sizes(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.factor = {"triton": 1.0, "eager": 2.0, "compile": 1.0}
    monkeypatch.setattr(capabilities, "judge", lambda problem, least: Verdict(1.7))
    file = tmp_path / "s.json"
    bench("relu_scale", "--sample", "7", "--dtype", "float16", "--json", str(file))
    for standing in json.loads(file.read_text())["scores"]:
        assert (standing["problems"], standing["right"]) == (7, 7)


def test_the_dearest_mistake_comes_first() -> None:
    case = Case("relu_scale", "float16", (4,))
    made = [scores.Judged(1.1, speed, None) for speed in (0.9, 0.5, 1.2)]  # type: ignore[arg-type]
    standing = scores._standing(case.op, "eager", made)
    assert [each.speed for each in standing.wrong] == [0.5, 0.9]
    assert standing.problems == 3


@pytest.mark.parametrize("op", ["linear_act", "linear_gelu"])
def test_a_doubtful_score_is_a_plans(
    op: str, cpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of eager's function for the case, on its inputs."""
    inputs, case = bench_inputs.inputs, Case(op, "bfloat16", (33, 65, 70), options=OPTIONS[op])
    monkeypatch.setattr(bench_inputs, "inputs", lambda *given: inputs(*given, device="cpu"))
    monkeypatch.setattr(racing, "doubtful", lambda verdict, least, trained: True)
    for speed in (1.23, 0.9):
        monkeypatch.setattr(racing, "speed", lambda match, problem, speed=speed: speed)
        assert scores.planned(case, "eager") == scores.planned(case, "inductor") == speed
