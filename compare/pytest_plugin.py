"""The pytest plugin: the fixtures cross_check and gpu_benchmark, and two markers, for all tests.

It is installed with the package and does nothing where nobody uses it; torch and triton load with
the first test that does. ``-p no:compare.pytest_plugin`` turns it off.

``@pytest.mark.gpu_only``: the test needs a CUDA device; skipped where there is none.
``@pytest.mark.interpreted_only``: the test function runs inside ``triton_kernels.interpret()`` on
every machine; its Triton kernels take CPU tensors and are never compiled.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

from compare.timing import fixtures
from compare.timing.fixtures import gpu_benchmark  # noqa: F401 - a fixture of this plugin's

if TYPE_CHECKING:
    from compare.own import Report

MARKERS = {
    "gpu_only": "the test needs a CUDA device; it is skipped where there is none.",
    "interpreted_only": (
        "the test runs inside triton_kernels.interpret() on every machine: "
        "its Triton kernels take CPU tensors and are never compiled."
    ),
}


@pytest.fixture(scope="session")
def cross_check() -> Callable[..., Report]:
    """Check a Triton kernel and its CUDA twin against an oracle, or fail with the report.

    cross_check(triton=f, cuda=g, oracle=lambda x: x.double().sin(), inputs=[(x,)])

    The arguments are those of compare.cross_check, and so is the Report that it returns.
    """
    from compare import own

    @functools.wraps(own.cross_check)
    def check(**arguments: Any) -> Report:
        __tracebackhide__ = True
        report = own.cross_check(**arguments)
        if not report:
            pytest.fail(str(report).removeprefix("FAIL: "))
        return report

    return check


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--benchmark``; pytest-benchmark's own options work beside it."""
    group = parser.getgroup("GPU kernels")
    group.addoption(
        "--benchmark",
        action="store_true",
        help="Run the tests that use gpu_benchmark, and nothing else; needs pytest-benchmark.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers: ``--strict-markers`` accepts them, ``--markers`` lists them."""
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def _marked(item: pytest.Item, name: str) -> bool:
    """Whether the test bears the marker, and the marker is ours: a repository that registers one
    of that name itself keeps its own meaning."""
    if item.get_closest_marker(name) is None:
        return False
    registered = [re.split("[:(]", line)[0].strip() for line in item.config.getini("markers")]
    return registered.count(name) == 1


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """gpu_only, as pytest's own skip marker: it reports the test's line, not this file's."""
    fixtures.prepare(config, items)
    for item in items:
        if _marked(item, "gpu_only"):
            import torch

            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="gpu_only: no CUDA device"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """interpreted_only: around the test function, not around its fixtures, which others share."""
    if not _marked(item, "interpreted_only"):
        return (yield)
    import triton_kernels

    with triton_kernels.interpret():
        return (yield)
