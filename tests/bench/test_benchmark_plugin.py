"""pytest --benchmark, in a repository of its own: what is run, and what pytest-benchmark stores."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import processes
import pytest
import torch

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
    states = [{"sm_clock_mhz": clock} for clock in (1980.0, 1755.0)]
    gpu_benchmark.store(timing, *states, ["power cap"], provider="ours")
"""
A_GPU = """
import torch
torch.cuda.is_available = lambda: True
torch.cuda.get_device_name = lambda: "Simulated"
"""


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


def pytest_in(where: Path, *words: str) -> pytest.RunResult:
    done = processes.python(where, "-m", "pytest", *words)
    lines = (text.splitlines() for text in (done.stdout, done.stderr))
    return pytest.RunResult(done.returncode, *lines, duration=0.0)


def run(suite: pytest.Pytester, *words: str) -> pytest.RunResult:
    return pytest_in(suite.path, "-p", "compare.pytest_plugin", *words)


def test_plain_pytest_leaves_benchmarks_out(suite: pytest.Pytester) -> None:
    done = run(suite)
    done.assert_outcomes(passed=1, deselected=2)
    done.stdout.fnmatch_lines(["2 GPU benchmarks left out: pytest --benchmark runs them"])


def test_benchmark_runs_them_and_nothing_else(suite: pytest.Pytester) -> None:
    done = run(suite, "--benchmark", "--benchmark-json=found.json")
    done.assert_outcomes(passed=2, deselected=1)
    stored = json.loads((suite.path / "found.json").read_text())
    for benchmark, factor in zip(stored["benchmarks"], (1, 3), strict=True):
        data = [1e6 * seconds for seconds in benchmark["stats"]["data"]]
        assert data == pytest.approx([factor * t for t in (10.0, 12.0, 11.0, 30.0)])
        assert benchmark["stats"]["median"] * 1e6 == pytest.approx(factor * 11.5)
        assert benchmark["stats"]["rounds"] == 4
        assert benchmark["group"] == "kernels"
        assert benchmark["extra_info"] == {
            "host_us": 21.0,
            "first_call_s": 0.0,
            "graph_replay_us": 9.5,
            "gpu_before": {"sm_clock_mhz": 1980.0},
            "gpu_after": {"sm_clock_mhz": 1755.0},
            "throttling": ["power cap"],
            "provider": "ours",
        }
    assert stored["machine_info"]["gpu_environment"]["gpu"] == "Simulated"
    assert stored["machine_info"]["gpu_environment"]["torch"] == torch.__version__


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


# ---- this repository's benchmarks, on a simulated GPU ----

SIMULATED = """
import os
from simulated_gpu import Rig

RIG = Rig()


def pytest_sessionstart():  # pytest-benchmark has found its own timer
    for target, name, value in RIG.replaced():
        setattr(target, name, value)


def before(name, case):
    if str(case.shape[0]) == os.environ.get("BREAKS_AT"):
        RIG.gpu.broken = True
        raise RuntimeError("an illegal memory access")


RIG.before = before


def pytest_sessionfinish():
    with open("timed", "w") as file:
        file.write("\\n".join(RIG.timed))
"""


@pytest.fixture
def speed(
    pytester: pytest.Pytester, root: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[pytest.RunResult, list[str]]]:
    """Runs tests/benchmarks/test_speed.py; what of it was really measured."""
    pytester.makepyfile(simulated=SIMULATED)
    path = (root, root / "tests", pytester.path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, path)))

    def run(which: str, *words: str) -> tuple[pytest.RunResult, list[str]]:
        done = pytest_in(
            pytester.path,
            *("-p", "simulated", "--rootdir", str(root), "-c", str(root / "pyproject.toml")),
            *("-o", f"cache_dir={pytester.path / 'cache'}", str(root / "tests" / "benchmarks")),
            *("--benchmark", "--benchmark-full", "-k", f"square-float16 and {which}", *words),
        )
        return done, (pytester.path / "timed").read_text().splitlines()

    return run


def test_a_full_run_goes_on_where_another_ended(
    speed: Callable[..., tuple[pytest.RunResult, list[str]]],
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BREAKS_AT", "65536")
    sizes = "numel and (-4096- or -16384- or -65536-)"
    done, timed = speed(sizes)
    assert done.ret == 1
    done.stdout.fnmatch_lines(["*the GPU no longer answers; square float16 (65536,), triton: *"])
    assert timed == [f"square float16 {n}" for n in (4096, 16384, 65536)]
    monkeypatch.delenv("BREAKS_AT")
    done, timed = speed(sizes, "--benchmark-json=found.json")
    assert done.ret == 0
    assert timed == ["square float16 65536"]
    found = json.loads((pytester.path / "found.json").read_text())["benchmarks"]
    by = {each["name"]: each for each in found}
    assert len(by) == len(found) == 3 * len({each["extra_info"]["provider"] for each in found})
    for n in (4096, 16384, 65536):
        each = by[f"test_op[square-float16-{n}-numel-triton]"]
        assert each["group"] == f"square float16 numel={n}"
        assert each["stats"]["median"] * 1e6 == pytest.approx(1.25 * 4 * n / 4e6, abs=1e-3)
        extra = each["extra_info"]
        assert (extra["sweep"], extra["x"]) == ("numel", n)
        assert extra["GB/s"] == pytest.approx(3200, rel=0.05)  # of times in whole nanoseconds
        assert "TFLOP/s" not in extra
        assert extra["percent_of_limit"] == pytest.approx(80)
        assert extra["gpu_before"]["sm_clock_mhz"] == 1980.0
    done, timed = speed(sizes, "--cache-clear")
    assert len(timed) == 3
