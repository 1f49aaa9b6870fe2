"""pytest --benchmark: every provider of every timed case, those of a case timed against each other.

The first test of a case measures all its providers in turn; the others take their part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from compare.cases import Case
from compare.specs import SPECS, Spec
from compare.timing import bench, providers
from compare.timing.bench import CaseResult
from compare.timing.engine import Budget
from compare.timing.fixtures import GpuBenchmark

QUICK = {(4096, 4096), (512, 4096, 1024), (4096, 4096, 4096)}  # shapes of --benchmark-quick
WORK = list(bench.work(list(SPECS.values()), [], []))


def parameters() -> list[Any]:
    found = []
    for spec, case in WORK:
        name = f"{case.op}-{case.dtype}-{'x'.join(map(str, case.shape))}"
        for provider in providers.names(spec, case):
            found.append(pytest.param(spec, case, provider, id=f"{name}-{provider}"))
    return found


Measure = Callable[[Spec, Case], CaseResult]


@pytest.fixture(scope="session")
def measured() -> Measure:
    """A case's results, measured once."""
    known: dict[str, CaseResult] = {}
    state: dict[str, Any] = {}

    def measure(spec: Spec, case: Case) -> CaseResult:
        import torch

        from compare.timing import gpu

        if not state:
            state.update(device=gpu.Gpu(), ceilings=gpu.ceilings())
        if str(case) not in known:
            known[str(case)] = bench.run_case(spec, case, (), *state.values(), Budget())
            torch.cuda.empty_cache()
        return known[str(case)]

    return measure


@pytest.mark.parametrize(("spec", "case", "provider"), parameters())
def test_op(
    gpu_benchmark: GpuBenchmark,
    measured: Measure,
    request: pytest.FixtureRequest,
    spec: Spec,
    case: Case,
    provider: str,
) -> None:
    if request.config.getoption("--benchmark-quick") and case.shape not in QUICK:
        pytest.skip("not among --benchmark-quick's shapes")
    result = measured(spec, case)
    (entry,) = [e for e in result.entries if e.provider == provider]
    if entry.problem.startswith("host-bound"):
        pytest.skip(entry.problem)
    assert not entry.problem, entry.problem
    shape = "x".join(map(str, case.shape))
    gpu_benchmark.benchmark.group = f"{case.op} {case.dtype} {shape}"
    gpu_benchmark.store(
        entry.timing,
        provider=provider,
        rate=entry.rate,
        rate_unit=result.rate_unit,
        percent_of_limit=entry.percent_of_limit,
        best_peer=result.best_peer,
        speedup=entry.speedup and entry.speedup._asdict(),
    )
