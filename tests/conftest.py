"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import sys

# One thread a test process, its children included: pytest-xdist already keeps every core busy, and
# the matrices are small. Before torch and numpy read it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The suite interprets what it means to, and compiles the rest. Before triton reads it. The test of
# kernels that were imported under it starts tests with the second variable.
if "SUITE_INTERPRETED" not in os.environ:
    os.environ.pop("TRITON_INTERPRET", None)

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import processes
import pytest
import torch
from long_runs import LongRun

import triton_kernels
from compare.checking.implementations import MODES, unavailable
from compare.debugging.cuda import side
from cuda_reference import _replay
from triton_kernels._launch import Launch

# Over a hundred processes import the packages, here and in copies: compiled once, not by each.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Each collection goes through all that torch and triton made, and finds next to nothing.
gc.set_threshold(10_000, 20, 50)

# Where the package is installed its entry point has loaded this already, under the same name.
pytest_plugins = ["compare.pytest_plugin"]

try:
    from hypothesis import HealthCheck, Phase, settings
except ImportError:  # then test_properties.py is skipped, with this reason
    pass
else:
    # Slow machines are no finding. "quick" draws the same examples every time, so that a red run
    # is the change's fault; "few" are for tests of tests; "thorough" draws many new ones.
    patient: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    patient["phases"] = set(Phase) - {Phase.explain}  # which lists lines of compare
    settings.register_profile("quick", max_examples=50, derandomize=True, **patient)
    settings.register_profile("few", max_examples=10, derandomize=True, **patient)
    settings.register_profile("thorough", max_examples=2000, **patient)
    settings.load_profile("quick")

ROOT = Path(__file__).parent.parent
# Without a GPU hundreds of tests would be skipped for the same reason: the header says it once.
TRIED = [mode for mode, (_, on) in MODES.items() if on != "cuda" or torch.cuda.is_available()]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--benchmark-quick", action="store_true", help="Benchmarks: a few shapes only."
    )
    parser.addoption(
        "--benchmark-full",
        action="store_true",
        help="Benchmarks: all sweeps and max-autotune everywhere, going on where one ended.",
    )
    parser.addoption(
        "--gallery",
        action="store_true",
        help="The gallery's kernels in the dtypes that runs without this leave out.",
    )
    parser.addoption(
        "--long",
        type=Path,
        metavar="FILE",
        help="Tests that can run for long do so, and write figures there, as JSON.",
    )


def pytest_sessionstart() -> None:
    """Of pytests that tests start none is a worker of this one's, as pytest-benchmark would take
    it to be."""
    os.environ.pop("PYTEST_XDIST_WORKER", None)


def pytest_report_header() -> list[str]:
    return [f"not run here: {mode}: {reason}" for mode, reason in unavailable().items()]


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="module")
def own_library_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of CUDA libraries of a file's own, whatever the environment says."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_REFERENCE_CACHE", str(folder))
        for name in ("CXX", "CROSSCHECK_SANITIZE", "CUDA_REFERENCE_LIBRARIES"):
            patch.delenv(name, raising=False)
        yield folder


@pytest.fixture
def forked_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes in which debug and guarded calls run their tools have torch loaded before."""
    for module in (side, _replay):
        monkeypatch.setattr(module, "subprocess", SimpleNamespace(run=processes.forked))


@pytest.fixture(scope="session")
def long_run(request: pytest.FixtureRequest) -> Iterator[LongRun]:
    """Whether this run is a long one; its figures are written if nothing failed."""
    run = LongRun(request.config.getoption("--long"))
    yield run
    run.end(failed=bool(request.session.testsfailed))


@pytest.fixture(params=TRIED)
def mode(request: pytest.FixtureRequest) -> str:
    """Each way to run an op; those that this machine lacks are skipped with the reason, those that
    need a GPU left out where there is none."""
    reason = unavailable().get(request.param)
    if reason:
        pytest.skip(f"{request.param}: {reason}")
    return request.param


@pytest.fixture(params=[mode for mode in TRIED if MODES[mode][0] == "triton"])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Where tensors live for the Triton side, in each way it runs: interpreted or on a GPU."""
    reason = unavailable().get(request.param)
    if reason:
        pytest.skip(f"{request.param}: {reason}")
    interpreted = request.param == "triton-interpreted"
    with triton_kernels.interpret() if interpreted else contextlib.nullcontext():
        yield torch.device(MODES[request.param][1])


@pytest.fixture
def cpu() -> Iterator[torch.device]:
    """The interpreter alone, for what no GPU changes."""
    with triton_kernels.interpret():
        yield torch.device("cpu")


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """The launches made since it was last cleared, in order."""
    made: list[Launch] = []
    launch = Launch.__call__

    def noted(self: Launch, *args: Any, grid: Any = None) -> None:
        made.append(Launch(self.kernel, grid or self.grid, **self.meta))
        launch(self, *args, grid=grid)

    monkeypatch.setattr(Launch, "__call__", noted)
    return made
