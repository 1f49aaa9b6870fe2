"""profile where Nsight Compute cannot count: one line says why, and the rest is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from profiled import RAW, Ncu
from typer.testing import CliRunner

from compare.cli import app
from compare.commands import profile as command
from compare.profiling import counters
from compare.timing.engine import Candidate
from compare.user_kernels import profiling

MISSING = "no counters: ncu is neither on PATH nor in CUDA_HOME's bin"


@pytest.fixture
def no_ncu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "find", lambda: None)


def lines_about_counters(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("no counters: ")]


def a_profile() -> profiling.CallProfile:
    x = torch.ones(4)
    return profiling._recorded(Candidate("double", lambda: x * 2), None, 1, 1, device="cpu")


def test_a_call_without_ncu(no_ncu: None) -> None:
    (line,) = lines_about_counters(str(a_profile()))
    assert line.startswith(MISSING)
    assert line.endswith("CUDA_HOME to the toolkit's folder")


def test_a_call_with_ncu(ncu: Ncu) -> None:
    """Which counts in a process of its own, for which there is a command."""
    (line,) = lines_about_counters(str(a_profile()))
    assert "python -m compare profile --target MODULE:SPEC asks ncu" in line
    assert not ncu.log.exists()


@pytest.mark.parametrize(("words", "told"), [((), 1), (("--no-ncu",), 0)])
def test_the_command_without_ncu(
    words: tuple[str, ...], told: int, no_ncu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def profiled(*_: Any) -> bool:
        return True

    monkeypatch.setattr(command, "need_gpu", lambda what: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(command, "_profiled", profiled)
    monkeypatch.setattr(command.bench, "inputs", lambda spec, case, seed: spec.inputs(case))
    given = ["relu_scale", "--providers", "eager", "--shape", "8,8", "--out", str(tmp_path / "o")]
    done = CliRunner().invoke(app, ["profile", *given, *words])
    assert done.exit_code == 0, done.output
    assert len(lines_about_counters(done.stdout)) == told


@pytest.mark.parametrize("kept", [1, 2], ids=["names", "names and units"])
def test_a_report_without_launches_is_a_problem(ncu: Ncu, tmp_path: Path, kept: int) -> None:
    """It is no error of ours to read one."""
    lines = RAW.splitlines()
    header = next(n for n, line in enumerate(lines) if line.startswith('"ID"'))
    ncu.answers(csv="\n".join(lines[header : header + kept]))
    found = counters.count("ncu", "triton", ["python"], tmp_path / "a.ncu-rep")
    assert found.kernels == []
    assert len(found.problem.splitlines()) == 1
