"""compile for kernels from elsewhere: what their host code asks, and their autotuners."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from typer.testing import CliRunner

from compare import compile_report
from compare.cli import app
from compare.compiling import cross_compile, loaded
from compare.ops import _targets
from cuda_reference import BuildError


@triton.jit
def strided_kernel(x_ptr, out_ptr, N, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr):
    for start in range(tl.program_id(0) * BLOCK, N, PROGRAMS * BLOCK):
        n = start + tl.arange(0, BLOCK)
        tl.store(out_ptr + n, tl.load(x_ptr + n, mask=n < N) * 2, mask=n < N)


def by_torch(x: torch.Tensor) -> int:
    with torch.cuda.device(x.device.index), torch.cuda.device(x.device):
        properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    return int(properties.multi_processor_count) * torch.cuda.get_device_capability()[0]


def by_triton(x: torch.Tensor) -> int:
    driver: Any = triton.runtime.driver.active
    properties = driver.utils.get_device_properties(driver.get_current_device())
    return int(properties["multiprocessor_count"]) * (driver.get_current_target().arch // 10)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU answers for itself")
@pytest.mark.parametrize("ask", [by_torch, by_triton])
def test_host_code_asks_for_the_gpu(ask) -> None:
    """It gets the described one, and only while kernels are compiled."""

    def twice(x: torch.Tensor) -> None:
        strided_kernel[(ask(x),)](x, torch.empty_like(x), x.numel(), PROGRAMS=ask(x), BLOCK=64)

    report = compile_report(twice, (torch.empty(1000, device="meta"),), archs=["sm_80", "sm_90"])
    assert report, report
    assert [kernel.config["PROGRAMS"] for kernel in report.kernels] == [8 * 108, 9 * 132]
    with pytest.raises((AssertionError, RuntimeError, TypeError)):
        ask(torch.empty(0))


REFUSING = """
import compare


def refusing(x):
    raise ValueError("rows only")


oracle = refusing
SPEC = compare.Function("no", triton=refusing, cuda=refusing, oracle=oracle, shapes=[(4,)])
"""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A spec whose functions raise on line 6."""
    (tmp_path / "refusing.py").write_text(REFUSING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield "refusing:SPEC"
    sys.modules.pop("refusing", None)
    _targets.target.cache_clear()


class Broken:
    """A loaded source that nvcc refuses."""

    def machine_code(self, arch: str) -> Any:
        raise BuildError("no such header")


def test_sources_that_do_not_compile_are_called_after_their_spec(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their kernels have no names yet."""
    monkeypatch.setattr(loaded, "of_spec", lambda spec: [Broken()])
    (row,) = cross_compile.compile_op(target, "sm_90", ("cuda",))
    assert (row.label, row.cuda and row.cuda.name) == (f"{target}()", f"{target}()")
    assert [problem for _, problem, _ in row.problems()] == ["does not compile: no such header"]


def test_an_error_of_host_code_has_its_line(target: str, tmp_path: Path) -> None:
    words = ["compile", "--target", target, "--side", "triton", "--arch", "sm_90"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1, done.output
    assert f"ValueError: rows only ({tmp_path}/refusing.py:6)" in done.output


def tuned(*blocks: int) -> Any:
    @triton.autotune([triton.Config({"BLOCK": b}, 1, maxnreg=40) for b in blocks], key=["N"])
    @triton.jit
    def divided_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
        tl.static_assert(BLOCK > 8)
        n = tl.arange(0, BLOCK)
        x = tl.load(x_ptr + n, mask=n < N, other=0.0)
        tl.store(out_ptr + n, x / tl.sum(x), mask=n < N)

    return divided_kernel


def test_an_autotuner_passes_over_what_does_not_fit() -> None:
    """A spill or an error that it catches fails only where no configuration is left."""
    x = torch.empty(64, device="meta")
    report = compile_report(tuned(64, 4096, 8), (x, x, 64))
    assert report, report
    small, spilling, refused = report.kernels
    assert small.figures
    assert spilling.figures
    assert small.figures.spills == 0 < spilling.figures.spills
    assert refused.error == "CompileTimeAssertionFailure: tl.static_assert(BLOCK > 8)"
    spills = f"BLOCK=4096 maxnreg=40 w1 c1 s3: spills {spilling.figures.spills} bytes a thread"
    accepted = "; accepted: the autotuner has other configurations"
    assert f"{spills}{accepted}" in str(report)
    assert not compile_report(tuned(4096, 8), (x, x, 64))
    assert not compile_report(tuned(64, 48), (x, x, 64))  # arange(0, 48) stops the autotuner
