"""pytest --benchmark: every provider of every timed case, those of a case timed against each other.

The first test of a case measures all its providers in turn; the others take their part of it.
--benchmark-full adds all sweeps and max-autotune everywhere, and keeps what is measured in pytest's
cache, so that another such run goes on; --cache-clear forgets it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compare.ops import SPECS
from compare.timing import bench, providers
from compare.timing.bench import Mode, Work
from compare.timing.engine import Budget, DeviceLostError
from compare.timing.fixtures import GpuBenchmark
from compare.timing.results import CaseResult

QUICK = {(4096, 4096), (512, 4096, 1024), (4096, 4096, 4096)}  # shapes of --benchmark-quick


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for each case and provider."""
    full = metafunc.config.getoption("--benchmark-full")
    found = []
    specs = [spec for spec in SPECS.values() if spec.benchmarked]
    for work in bench.work(specs, [], [], full=full):
        sweep = f"-{work.sweep}" if work.sweep else ""
        case = f"{work.case.op}-{work.case.dtype}-{'x'.join(map(str, work.case.shape))}{sweep}"
        names = providers.names(work.spec, work.case, (), full, bool(work.sweep))
        found += [pytest.param(work, names, name, id=f"{case}-{name}") for name in names]
    metafunc.parametrize(("work", "names", "provider"), found)


Measure = Callable[[Work, list[str]], CaseResult]


@pytest.fixture(scope="session")
def measured(request: pytest.FixtureRequest) -> Measure:
    """A case's results, measured once; in a full run, once for several runs."""
    from compare.timing import saved
    from compare.timing.session import Session

    full, path = request.config.getoption("--benchmark-full"), None
    mode, budget = Mode(), Budget()
    head = saved.head(mode, budget, [], full)
    cache = getattr(request.config, "cache", None)
    if full and cache is not None:
        path = Path(cache.mkdir("kernel-benchmarks")) / f"{saved.identity(head)}.json"
    kept = saved.Saved(path, head)
    kept.resume()
    session = Session(kept, mode, budget)

    def measure(work: Work, names: list[str]) -> CaseResult:
        try:
            return session.known(work) or session.measure(work, names)
        except DeviceLostError:
            pytest.exit(kept.head["ended"], returncode=1)

    return measure


def test_op(
    gpu_benchmark: GpuBenchmark,
    measured: Measure,
    request: pytest.FixtureRequest,
    work: Work,
    names: list[str],
    provider: str,
) -> None:
    case = work.case
    if request.config.getoption("--benchmark-quick") and case.shape not in QUICK:
        pytest.skip("not among --benchmark-quick's shapes")
    result = measured(work, names)
    (entry,) = [e for e in result.entries if e.provider == provider]
    if entry.problem.startswith("host-bound"):
        pytest.skip(entry.problem)
    assert not entry.problem, entry.problem
    place = f"{work.sweep}={work.x}" if work.sweep else "x".join(map(str, case.shape))
    gpu_benchmark.benchmark.group = f"{case.op} {case.dtype} {place}"
    extra: dict[str, Any] = {"sweep": work.sweep, "x": work.x} if work.sweep else {}
    gpu_benchmark.store(
        entry.timing,
        result.state_before,
        result.state_after,
        result.throttling,
        provider=provider,
        **result.rates(entry),
        percent_of_limit=entry.percent_of_limit,
        best_peer=result.best_peer,
        speedup=entry.speedup and entry.speedup._asdict(),
        **extra,
    )
