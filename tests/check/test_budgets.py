"""What does not fit into memory is left out before it runs, with a count and a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from compare import Function, check, ops
from compare.cases import CPU, Case
from compare.checking import budgets, implementations
from compare.checking.budgets import Budget, LeftOut, summaries
from compare.checking.implementations import Implementation
from compare.cli import app
from compare.user_kernels import checking

SQUARE = ops.SPECS["square"]
SMALL, LARGE = Case("square", "float32", (5,)), Case("square", "float32", (1 << 17,))


def invoke(*words: str) -> Any:
    return CliRunner().invoke(app, ["check", "square", "--dtype", "float32", *words])


@pytest.fixture
def cases(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """square has three large cases and a small one."""
    chosen = [LARGE, SMALL, *(Case("square", "float32", (n,)) for n in ((1 << 17) + 8, 1 << 18))]
    toy = SQUARE.changed(cases=lambda dtype, level: iter(chosen))
    monkeypatch.setitem(ops.SPECS, "square", toy)
    monkeypatch.setattr(implementations, "CPU_LIMIT", 1 << 40)
    return chosen


def test_what_does_not_fit_is_left_out(cases: list[Case], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ["--impl", "triton-interpreted", "--memory", "0.002", "--jobs", "1"]
    done = invoke(*words, "--json", str(report))
    assert done.exit_code == 0, done.output
    assert "3 cases left out on the CPU: need 0.0039 to 0.0079 GB, 0.002 free" in done.output
    assert "all pass but 3 left out: 1 cases" in done.output
    (row,) = json.loads(report.read_text())["rows"]
    left_out = [case for case in cases if case != SMALL]
    assert row["too_large"] == [
        {"case": str(c), "device": "cpu", "needs": SQUARE.memory(c), "free": 2_000_000}
        for c in left_out
    ]


def test_require_all_makes_that_an_error(cases: list[Case]) -> None:
    words = ["--impl", "triton-interpreted", "--require-all", "--jobs", "1"]
    done = invoke(*words, "--memory", "0.002")
    assert done.exit_code == 1, done.output
    assert "all pass but 3 left out, and all are required" in done.output
    done = invoke(*words)
    assert done.exit_code == 0, done.output
    assert "left out" not in done.output


def test_a_case_that_runs_out_of_memory_all_the_same_is_an_error_too(
    cases: list[Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("Tried to allocate 32.00 GiB")

    monkeypatch.setitem(ops.SPECS, "square", ops.SPECS["square"].changed(triton=out_of_memory))
    words = ["--impl", "triton-interpreted", "--shape", "5", "--jobs", "1", "--require-all"]
    done = invoke(*words)
    assert done.exit_code == 1
    assert "out of memory, asked for 32.00 GiB" in done.output
    assert "1 left out, and all are required" in done.output


def test_each_device_has_its_own() -> None:
    able = [
        Implementation(mode, None, SQUARE.triton)
        for mode in ("triton-interpreted", "triton-compiled", "cuda-host")
    ]
    needs = SQUARE.memory(LARGE, CPU)
    assert Budget(needs, needs).fitting(SQUARE, LARGE, able) == (able, [])
    fitting, left_out = Budget(needs - 1, needs).fitting(SQUARE, LARGE, able)
    assert fitting == able[1:2]
    assert left_out == [LeftOut(LARGE, "cpu", needs, needs - 1)]
    fitting, left_out = Budget(needs, 0).fitting(SQUARE, LARGE, able)
    assert fitting == [able[0], able[2]]
    assert left_out == [LeftOut(LARGE, "cuda", needs, 0)]


def test_summaries_count_right() -> None:
    def on(device: str, needs: float) -> LeftOut:
        return LeftOut(SMALL, device, int(needs * 1e9), int(11.2e9))

    assert summaries([]) == []
    assert summaries([on("cuda", 26)]) == ["1 case left out on the GPU: needs 26 GB, 11 free"]
    three = [on("cuda", 26.1), on("cuda", 26), on("cuda", 25.9)]
    assert summaries(three) == ["3 cases left out on the GPU: need 26 GB, 11 free"]
    assert summaries([on("cuda", 34.6), on("cpu", 12), on("cuda", 17.7)]) == [
        "1 case left out on the CPU: needs 12 GB, 11 free",
        "2 cases left out on the GPU: need 18 to 35 GB, 11 free",
    ]


def test_the_budget_is_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a GPU no more than the process's fraction; of the host a part for each worker."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (60, 80))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda: 1.0)
    monkeypatch.setattr(budgets, "free_on_host", lambda: 1000)
    assert Budget.here(None, 4) == Budget(250, 60)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda: 0.25)
    assert Budget.here(None, 1) == Budget(1000, 20)
    assert Budget.here(24, 3) == Budget(8 * 10**9, 24 * 10**9)


@pytest.mark.parametrize(
    "words",
    [
        "CUDA error: out of memory\nCUDA kernel errors might be reported later",
        "out of memory (2)",
        "out of memory",
    ],
)
def test_a_gpu_that_others_fill_leaves_its_cases_out(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even a context fits, so that to ask what is free raises: a line says it, no traceback."""

    def of_driver() -> Any:
        raise RuntimeError(words)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Busy")
    monkeypatch.setattr(torch.cuda, "mem_get_info", of_driver)
    assert Budget.here(None, 1).gpu == 0
    monkeypatch.setattr(checking, "unavailable", lambda: {"cuda-gpu": "not asked for here"})
    twice = Function("twice", triton=lambda x: 2 * x, oracle=lambda x: 2 * x, shapes=[(3,)])
    report = check(twice, level="quick")
    text = str(report)
    assert "not run: the GPU: it is out of memory; other processes may use it" in text
    assert "cases left out on the GPU: need" in text
    assert ", 0 free" in text
    assert set(report.rows[0].runs) == {"triton-interpreted"}

    def broken() -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "mem_get_info", broken)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        Budget.here(None, 1)


def test_memory_of_this_machine_is_a_sensible_number() -> None:
    assert 1 << 20 < budgets.free_on_host() < 1 << 50


@pytest.mark.gpu_only
def test_memory_of_this_gpu() -> None:
    assert 0 < budgets.free_on_gpu() <= torch.cuda.mem_get_info()[1]


def test_a_budget_is_more_than_nothing() -> None:
    assert invoke("--memory", "0").exit_code == 2
