"""pytest --benchmark and tests that use pytest-benchmark's own fixture."""

from __future__ import annotations

import json
from pathlib import Path

import processes
import pytest

pytest.importorskip("pytest_benchmark")

SUITE = """
import pytest

def test_plain():
    pass

def test_of_the_gpu(gpu_benchmark):
    pass

def test_of_pytest_benchmark(benchmark):
    assert benchmark(sum, [1, 2]) == 3

@pytest.fixture
def timed(benchmark):
    return benchmark

def test_by_another_fixture(timed):
    assert timed(sum, [1, 2]) == 3
"""


@pytest.fixture
def suite(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "test_suite.py").write_text(SUITE)
    without = "import torch\ntorch.cuda.is_available = lambda: False\n"
    (tmp_path / "conftest.py").write_text(without)
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    return tmp_path


def run(suite: Path, *words: str) -> str:
    ours = ("-q", "-p", "compare.pytest_plugin", "-p", "no:cacheprovider", "-rA")
    done = processes.python(suite, "-m", "pytest", *ours, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_benchmark_runs_both_kinds(suite: Path) -> None:
    """Those of the GPU are skipped where there is none, the others timed by their own clock."""
    said = run(suite, "--benchmark", "--benchmark-json=found.json")
    assert "2 passed, 1 skipped, 1 deselected" in said
    found = json.loads((suite / "found.json").read_text())["benchmarks"]
    names = ["test_of_pytest_benchmark", "test_by_another_fixture"]
    assert [each["name"] for each in found] == names
    assert all(each["stats"]["median"] > 0 for each in found)
    assert all(each["options"]["timer"] == "perf_counter" for each in found)


def test_other_runs_have_them_as_ever(suite: Path) -> None:
    said = run(suite)
    assert "3 passed, 1 deselected" in said
    assert "1 GPU benchmarks left out" in said
