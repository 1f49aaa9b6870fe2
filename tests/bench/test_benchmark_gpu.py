"""On a GPU: kernels of known duration have that duration, and a slower kernel is found out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("pytest_benchmark")
pytest_plugins = ["pytester"]
pytestmark = pytest.mark.gpu_only

SPIN = 200.0  # µs, by the GPU's own clock
SUITE = f"""
import os
import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer
import triton_kernels as tk


@triton.jit
def spin_kernel(nanoseconds, elapsed_ptr):
    begin = globaltimer()
    now = begin
    while now - begin < nanoseconds:
        now = globaltimer()
    tl.store(elapsed_ptr, (now - begin).to(tl.int64))


@triton.jit
def empty_kernel(elapsed_ptr):
    pass


def test_spin(gpu_benchmark):
    elapsed = torch.zeros(1, dtype=torch.int64, device="cuda")
    gpu_benchmark(lambda: spin_kernel[(1,)](int(1e3 * {SPIN}), elapsed))
    gpu_benchmark.benchmark.extra_info["own_us"] = int(elapsed) / 1e3


def test_empty(gpu_benchmark):
    elapsed = torch.zeros(1, dtype=torch.int64, device="cuda")
    gpu_benchmark(lambda: empty_kernel[(1,)](elapsed))


def test_square(gpu_benchmark):
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)

    def square(x):
        out = tk.square(x)
        return tk.square(x, out=out) if os.environ.get("SLOWED") else out

    gpu_benchmark(square, x, check=lambda out: "" if torch.equal(out, x * x) else "wrong")
"""


@pytest.fixture
def suite(
    pytester: pytest.Pytester, root: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., pytest.RunResult]:
    """Runs the tests above under pytest --benchmark."""
    pytester.makepyfile(test_suite=SUITE)
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    words = ("-p", "compare.pytest_plugin", "--benchmark")
    return lambda *more: pytester.runpytest_subprocess(*words, *more)


def test_known_durations(suite: Callable[..., pytest.RunResult], pytester: pytest.Pytester) -> None:
    done = suite("-k", "spin or empty", "--benchmark-json=found.json")
    done.assert_outcomes(passed=2, deselected=1)
    found = json.loads((pytester.path / "found.json").read_text())
    spin, empty = found["benchmarks"]
    # Launching and ending a kernel is a few µs of the time between two events.
    assert SPIN - 2 <= spin["stats"]["median"] * 1e6 <= 1.03 * SPIN + 2
    assert SPIN <= spin["extra_info"]["own_us"] <= 1.03 * SPIN + 2
    assert 0 <= empty["stats"]["min"]
    assert empty["stats"]["median"] * 1e6 < 6
    assert found["machine_info"]["gpu_environment"]["gpu"] == torch.cuda.get_device_name()


def test_a_slowed_kernel_fails_pytest_benchmark_s_comparison(
    suite: Callable[..., pytest.RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert suite("-k", "square", "--benchmark-save=before").ret == 0
    compared = ("-k", "square", "--benchmark-compare", "--benchmark-compare-fail")
    assert suite(*compared[:-1], f"{compared[-1]}=median:20%").ret == 0  # noise does not
    monkeypatch.setenv("SLOWED", "1")
    slower = suite(*compared[:-1], f"{compared[-1]}=median:5%")
    assert slower.ret != 0
    slower.stderr.fnmatch_lines(["*Performance has regressed*"])


# Runs `compare` with another square: SLOWED takes one more pass over memory, LOST breaks the GPU.
SCRIPT = """
import sys
import torch
from compare import ops
from compare.cli import app

square, which = ops.SPECS["square"], sys.argv.pop(1)
calls = []

def other(x, *, out=None):
    found = square.triton(x)
    calls.append(x.shape)
    if which == "SLOWED":
        square.triton(x, out=found)
    if which == "LOST" and calls.count((4096, 4096)) > 40:
        table = torch.zeros(4, device="cuda")
        found = found + table[torch.full((1,), 10**6, device="cuda")]
        torch.cuda.synchronize()
    return found

if which != "as it is":
    ops.SPECS["square"] = square.changed(triton=other)
app()
"""
SQUARE = ("square", "--dtype", "float16", "--providers", "triton,eager")


@pytest.fixture
def bench(tmp_path: Path, root: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``python -m compare bench`` with the op as the first word says."""
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(root)}

    def run(which: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(script), which, "bench", *SQUARE, *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=root,
            env=environment,
        )

    return run


def entry(file: Path, provider: str, number: int = 0) -> dict[str, Any]:
    case = json.loads(file.read_text())["cases"][number]
    (found,) = [e for e in case["entries"] if e["provider"] == provider]
    assert not found["problem"], found
    return found


Bench = Callable[..., subprocess.CompletedProcess[str]]
SHAPE = ("--shapes", "4096,4096")


def test_a_slowed_kernel_is_a_regression_of_bench(bench: Bench, tmp_path: Path) -> None:
    before = tmp_path / "before.json"
    done = bench("as it is", *SHAPE, "--json", str(before))
    assert done.returncode == 0, done.stdout + done.stderr
    compared = (*SHAPE, "--baseline", str(before))
    done = bench("as it is", *compared, "--threshold", "20")
    assert done.returncode == 0, done.stdout + done.stderr
    done = bench("SLOWED", *compared)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "square float16 4096×4096, triton: " in done.stdout
    assert "slower than the baseline" in done.stdout


def test_warm_caches_and_graphs(bench: Bench, tmp_path: Path) -> None:
    """8 MB in L2 come faster than out of memory; a graph's replay takes as long as the call."""
    medians = {}
    for way in ("", "--warm", "--graph"):
        file = tmp_path / "found.json"
        done = bench("as it is", "--shapes", "1024,2048", *way.split(), "--json", str(file))
        assert done.returncode == 0, done.stdout + done.stderr
        medians[way] = entry(file, "triton")["median"]
    assert medians["--warm"] < medians[""]
    assert abs(medians["--graph"] - medians[""]) < 0.25 * medians[""] + 2


def test_a_lost_gpu_ends_bench_with_what_is_measured(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    done = bench("LOST", "--json", str(file))
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads(file.read_text())
    assert "the GPU no longer answers; square float16 (4096, 4096), triton" in found["ended"]
    assert [case["shape"][0] for case in found["cases"]] == [1024, 2048]
    assert "2 of 4 cases are timed" in " ".join(done.stdout.split())
    done = bench("as it is", "--json", str(file), "--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(json.loads(file.read_text())["cases"]) == 4


def test_nvml_knows_the_device() -> None:
    from compare.timing import nvml

    if reason := nvml.missing():
        pytest.skip(reason)
    found = nvml.state()
    assert 100 <= found["sm_clock_mhz"] <= 5000
    assert 10 <= found["temperature_c"] <= 110
    assert 10 <= found["power_w"] <= 2000
    assert isinstance(found["throttling"], list)
