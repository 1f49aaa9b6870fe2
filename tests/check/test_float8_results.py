"""Results in float8, where torch has no arithmetic, judged by an oracle in float8."""

from __future__ import annotations

import pytest
import torch

from compare import cross_check
from compare.checking import judging

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_an_oracle_may_be_of_the_dtype_itself(dtype: torch.dtype) -> None:
    right = torch.tensor([1.0, -0.5, float("nan"), 0.0]).to(dtype)
    wrong = torch.tensor([1.25, -0.5, 0.0, 0.0]).to(dtype)
    zero = torch.zeros(4, dtype=torch.float64)
    assert bool(judging.by_ulps(right, right, 0.0).right.all())
    assert bool(judging.by_bound(right, right, zero).right.all())
    assert judging.by_ulps(wrong, right, 0.0).right.tolist() == [False, True, False, True]
    assert judging.by_bound(wrong, right, zero).right.tolist() == [False, True, False, True]
    (by_ulps,) = judging.by_ulps(wrong[:1], right[:1], 3.0).right.tolist()
    assert by_ulps


@pytest.mark.parametrize("dtype", FLOAT8)
def test_cross_check_takes_results_in_float8(dtype: torch.dtype) -> None:
    x = torch.linspace(-4, 4, 20)
    pair = {"triton": lambda x: x.to(dtype), "oracle": lambda x: x.to(dtype)}
    assert cross_check(**pair, cuda=lambda x: x.to(dtype), inputs=[(x,)])
    report = cross_check(**pair, cuda=lambda x: (2 * x).to(dtype), inputs=[(x,)])
    assert report.verdict == "FAIL: the cuda side is wrong"


@pytest.mark.parametrize("dtype", FLOAT8)
def test_a_bound_may_be_of_an_oracle_in_float8(dtype: torch.dtype) -> None:
    x = torch.linspace(-1, 1, 20)
    pair = {"oracle": lambda x: x.to(dtype), "bound": lambda *_: 0.3, "inputs": [(x,)]}
    assert cross_check(**pair, triton=lambda x: (0.9 * x).to(dtype))
    assert not cross_check(**pair, triton=lambda x: (2 * x).to(dtype))


@pytest.mark.parametrize("other", [torch.float8_e5m2, torch.float16, torch.float32])
def test_the_result_of_arguments_in_float8_may_be_wider(other: torch.dtype) -> None:
    x, y = torch.linspace(-4, 4, 20).to(torch.float8_e4m3fn), torch.ones(20).to(other)
    pair = {"oracle": lambda x, y: x.double() * y.double(), "inputs": [(x, y)]}
    for dtype in (torch.float16, torch.float32):
        report = cross_check(triton=lambda x, y, dtype=dtype: x.to(dtype) * y.to(dtype), **pair)
        assert bool(report) == (dtype == torch.float32 or other != torch.float32), report
