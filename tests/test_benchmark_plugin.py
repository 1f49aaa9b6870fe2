"""pytest --benchmark, in a repository of its own: what is run, and what pytest-benchmark stores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pytest_benchmark")
pytest_plugins = ["pytester"]

SUITE = """
import pytest
from compare.timing.engine import Timing
from compare.timing.statistics import Samples

def test_plain():
    pass

@pytest.mark.parametrize("factor", [1, 3])
def test_kernel(gpu_benchmark, factor):
    samples = [factor * t for t in (10.0, 12.0, 11.0, 30.0)]
    timing = Timing("kernel", Samples([0, 1, 2, 3], samples), replay=9.5, host=21.0)
    gpu_benchmark.benchmark.group = "kernels"
    gpu_benchmark.store(timing, provider="ours")
"""
A_GPU = "import torch\ntorch.cuda.is_available = lambda: True\n"


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(test_suite=SUITE)
    pytester.makeconftest(A_GPU)
    return pytester


@pytest.fixture(autouse=True)
def found(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child runs elsewhere, and the package need not be installed."""
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # pytest-benchmark turns itself off


def run(suite: pytest.Pytester, *words: str) -> pytest.RunResult:
    return suite.runpytest_subprocess("-p", "compare.pytest_plugin", *words)


def test_plain_pytest_leaves_benchmarks_out(suite: pytest.Pytester) -> None:
    done = run(suite, "-rs")
    done.assert_outcomes(passed=1, skipped=2)
    done.stdout.fnmatch_lines(["*a GPU benchmark: pytest --benchmark runs it"])


def test_benchmark_runs_them_and_nothing_else(suite: pytest.Pytester) -> None:
    done = run(suite, "--benchmark", "--benchmark-json=found.json")
    done.assert_outcomes(passed=2, deselected=1)
    found = json.loads((suite.path / "found.json").read_text())["benchmarks"]
    for benchmark, factor in zip(found, (1, 3)):
        data = [1e6 * seconds for seconds in benchmark["stats"]["data"]]
        assert data == pytest.approx([factor * t for t in (10.0, 12.0, 11.0, 30.0)])
        assert benchmark["stats"]["median"] * 1e6 == pytest.approx(factor * 11.5)
        assert benchmark["stats"]["rounds"] == 4
        assert benchmark["group"] == "kernels"
        assert benchmark["extra_info"] == {
            "host_us": 21.0,
            "first_call_s": 0.0,
            "graph_replay_us": 9.5,
            "provider": "ours",
        }


def test_a_slower_kernel_fails_the_comparison(suite: pytest.Pytester) -> None:
    done = run(suite, "--benchmark", "--benchmark-save=before")
    assert done.ret == 0
    unchanged = run(
        suite, "--benchmark", "--benchmark-compare", "--benchmark-compare-fail=median:5%"
    )
    assert unchanged.ret == 0
    suite.makepyfile(test_suite=SUITE.replace("factor * t", "1.06 * factor * t"))
    slower = run(suite, "--benchmark", "--benchmark-compare", "--benchmark-compare-fail=median:5%")
    assert slower.ret != 0
    slower.stderr.fnmatch_lines(["*Performance has regressed*"])


def test_without_a_gpu_the_reason_is_told(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_suite=SUITE)
    pytester.makeconftest("import torch\ntorch.cuda.is_available = lambda: False\n")
    done = run(pytester, "--benchmark", "-rs")
    done.assert_outcomes(skipped=2, deselected=1)
    done.stdout.fnmatch_lines(["*a GPU benchmark: no CUDA device"])
