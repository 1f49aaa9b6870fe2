"""Every configuration of autotuned kernels is checked if that is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from processes import python
from torch import Tensor

import compare
import triton_kernels


def _prune(configs: Any, named: Any, **more: Any) -> Any:
    return [config for config in configs if config.kwargs["BLOCK"] <= named["N"]]


# The second one differs only for the compiler; the third one is wrong; the fourth is for large N.
CONFIGS = [
    triton.Config({"BLOCK": 16, "STEP": 16}),
    triton.Config({"BLOCK": 16, "STEP": 16}, num_warps=8),
    triton.Config({"BLOCK": 32, "STEP": 31}),
    triton.Config({"BLOCK": 64, "STEP": 64}),
]


@triton.autotune(CONFIGS, key=["N"], prune_configs_by={"early_config_prune": _prune})
@triton.jit
def row_sum_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr, STEP: tl.constexpr):
    m = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, STEP):
        n = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + m * N + n, mask=n < N, other=0.0)
    tl.store(out_ptr + m, tl.sum(total, axis=0))


def row_sum(x: Tensor) -> Tensor:
    out = torch.empty(len(x), device=x.device)
    row_sum_kernel[(len(x),)](x, out, x.shape[1])
    return out


def run(configuration: int | None, N: int = 50) -> dict[str, int]:
    x = torch.ones(1, N)
    with triton_kernels.interpret(configuration=configuration):
        assert (row_sum(x).item() == N) == (row_sum_kernel.best_config.kwargs["BLOCK"] != 32)
    return dict(row_sum_kernel.best_config.kwargs)


def test_interpret_takes_its_number() -> None:
    blocks = [run(number, 70)["BLOCK"] for number in (None, 0, 1, 2, 3)]
    assert blocks == [16, 16, 32, 64, 16]
    assert [run(number)["BLOCK"] for number in (1, 2)] == [32, 16], "the last one is pruned"
    with triton_kernels.interpret(configuration=1):
        assert run(None)["BLOCK"] == 32, "that of the context outside"
    with (
        pytest.raises(ValueError, match="counts from 0"),
        triton_kernels.interpret(configuration=-1),
    ):
        pass


def cross(**more: Any) -> compare.Report:
    given: dict[str, Any] = {"triton": row_sum, "oracle": lambda x: x.double().sum(1)}
    return compare.cross_check(**given, inputs=[(torch.ones(2, 50),)], **more)


def test_cross_check_names_the_configuration() -> None:
    assert cross()
    report = cross(every_configuration=True, cuda=lambda x: x.sum(1))
    assert [finding.passed for finding in report.findings if finding.side == "triton"] == [1, 0]
    assert "configuration 1: row_sum_kernel BLOCK=32, STEP=31: wrong values" in str(report)
    assert "the triton side is wrong" in str(report)
    assert "STEP = 31" in str(report.debug()) or "range(0, N, STEP)" in str(report.debug())


def test_cross_check_of_what_is_not_autotuned() -> None:
    report = compare.cross_check(
        triton=triton_kernels.square,
        oracle=lambda x: x * x,
        inputs=[(torch.ones(3),)],
        every_configuration=True,
    )
    assert report
    assert [finding.configuration for finding in report.findings] == [""]


def spec(**more: Any) -> compare.Function:
    given: dict[str, Any] = {"shapes": [(2, 50)], "layouts": ["contiguous"], "values": ["normal"]}
    given |= {"oracle": lambda x: x.double().sum(1), "max_ulps": 64}
    return compare.Function("row_sum", triton=row_sum, **given | more)


def test_a_spec_says_how_many_there_are() -> None:
    assert compare.check(spec())
    report = compare.check(spec(configurations=len(CONFIGS)))
    wrong = report.rows[0].mismatches
    assert {each.case.options["configuration"] for each in wrong} == {1, 3}, "3 begins again"
    both = spec(configurations=4, cuda=lambda x: x.sum(1))
    rows = compare.check(both).rows
    assert rows[0].runs == {"triton-interpreted": 4, "cuda-host": 1}
    with pytest.raises(ValueError, match="must be at least 1"):
        spec(configurations=0)


def test_a_spec_that_says_too_few_is_told() -> None:
    report = compare.check(spec(configurations=2, shapes=[(2, 70)]))
    assert "its kernels have 3 configurations, but the spec says configurations=2" in str(report)


def test_debug_runs_that_of_the_case(root: Path, tmp_path: Path) -> None:
    text = Path(__file__).read_text()
    (tmp_path / "tuned.py").write_text(text + "\n\nROW_SUM = spec(configurations=3)\n")
    words = ("--target", "tuned:ROW_SUM", "--arg", "configuration=1", "--shape", "2,50")
    done = python(tmp_path, "-m", "compare", "debug", *words)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "in row_sum_kernel: tl.store(out_ptr + m, tl.sum(total, axis=0))" in done.stdout
