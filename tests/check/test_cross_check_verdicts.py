"""cross_check has the judge's verdicts, on the caller's tensors as they lie in memory."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from judged import tensor
from torch import Tensor

import compare
from compare import cross_check

INF, NAN = math.inf, math.nan


@triton.jit
def rows_kernel(x_ptr, y_ptr, out_ptr, N, stride_x, stride_y, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    n = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + n, mask=n < N, other=0.0)
    y = tl.load(y_ptr + row * stride_y + n, mask=n < N, other=0.0)
    tl.store(out_ptr + row * N + n, x + y, mask=n < N)


def add_rows(x: Tensor, y: Tensor, swapped: bool = False) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    strides = (y.stride(0), x.stride(0)) if swapped else (x.stride(0), y.stride(0))
    rows_kernel[(x.shape[0],)](x, y, out, x.shape[1], *strides, BLOCK=64)
    return out


def verdict(function: Any, oracle: Any, *inputs: Tensor, **tolerance: Any) -> compare.Report:
    """Of the same function on both sides."""
    return cross_check(triton=function, cuda=function, oracle=oracle, inputs=[inputs], **tolerance)


def set_first(value: float) -> Any:
    def function(x: Tensor) -> Tensor:
        out = x.clone()
        out[0] = value
        return out

    return function


@pytest.mark.parametrize("value", [NAN, -5.0, -INF, 3e38])
def test_cross_check_wants_the_oracles_infinity(value: float) -> None:
    x = tensor(INF, 1.0)
    for tolerance in ({}, {"max_ulps": 1e9}, {"bound": lambda ref, x: 1e-3 * ref.abs()}):
        report = verdict(set_first(value), lambda x: x.double(), x, **tolerance)
        assert not report, str(report)
    report = verdict(lambda x: x.clone(), lambda x: x.double(), x, **tolerance)
    assert report
    assert "inf ulp" not in str(report)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"max_ulps": INF}, "max_ulps must be a finite number"),
        ({"max_ulps": NAN}, "max_ulps must be a finite number"),
        ({"max_ulps": -1}, "max_ulps must be a finite number"),
        ({"bound": lambda ref, x: INF * ref.abs()}, r"argument 'bound': the bound is inf at"),
        ({"bound": lambda ref, x: -1.0}, r"argument 'bound': the bound is -1 at element \(0,\)"),
        ({"bound": lambda ref, x: torch.ones(7)}, "argument 'bound': "),
    ],
)
def test_cross_check_refuses_tolerances_before_anything_runs(arguments: Any, says: str) -> None:
    def never(x: Tensor) -> Tensor:
        raise AssertionError("ran")

    with pytest.raises(ValueError, match=says):
        verdict(never, lambda x: x.double(), tensor(1.0, 2.0), **arguments)


def test_cross_check_takes_a_number_as_bound() -> None:
    x = tensor(1.0, 2.0)
    assert verdict(lambda x: x + 0.1, lambda x: x.double(), x, bound=lambda ref, x: 0.2)
    assert not verdict(lambda x: x + 0.3, lambda x: x.double(), x, bound=lambda ref, x: 0.2)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float16, torch.bfloat16])
def test_cross_check_refuses_a_wrong_dtype_on_both_sides(dtype: torch.dtype) -> None:
    x = tensor(1.0, 2.0)  # exact in every dtype: by its values nothing is wrong
    report = verdict(lambda x: x.to(dtype), lambda x: x.double(), x)
    assert not report
    assert f"returned {dtype}, expected torch.float32 or torch.float64" in str(report)
    assert f"dtype={dtype}" in str(report)
    assert not verdict(lambda x: x.to(dtype), lambda x: x.clone(), x)
    if dtype.is_floating_point:
        assert verdict(lambda x: x.to(dtype), lambda x: x.double(), x, dtype=dtype)


def test_cross_check_takes_wider_results_of_an_oracle_in_float64() -> None:
    """As statistics of 16-bit rows are; the oracle does not say which dtype it should be."""
    x = tensor(1.0, 2.0).bfloat16()
    assert verdict(lambda x: x.float() / 3, lambda x: x.double() / 3, x)
    assert not verdict(lambda x: x.half(), lambda x: x.double(), x)


def test_cross_check_wants_one_dtype_of_both_sides() -> None:
    x = tensor(1.0, 2.0)
    report = cross_check(
        triton=lambda x: x.clone(),
        cuda=lambda x: x.double(),
        oracle=lambda x: x.double(),
        inputs=[(x,)],
    )
    assert not report
    assert "the other side returned torch.float64" in str(report)


def test_cross_check_integers() -> None:
    x = torch.tensor([2**60 + 1, 5])
    assert verdict(lambda x: x.clone(), lambda x: x.clone(), x)
    assert not verdict(lambda x: x - 1, lambda x: x.clone(), x, max_ulps=5)
    assert not verdict(lambda x: x.double().long(), lambda x: x.clone(), x)


def test_cross_check_keeps_strides() -> None:
    """Rows that lie further apart than they are long: swapped strides read the wrong rows."""
    x, y = torch.randn(5, 40)[:, :33], torch.randn(5, 50)[:, :33]
    both: Any = {"cuda": torch.add, "oracle": torch.add, "inputs": [(x, y)]}
    assert cross_check(triton=add_rows, **both)
    report = cross_check(triton=lambda x, y: add_rows(x, y, swapped=True), **both)
    assert "the triton side is wrong" in report.verdict


def test_cross_check_keeps_offset_alignment_and_shared_memory() -> None:
    base = torch.arange(40.0)
    views = base[3:20], base[4:21], base.as_strided((3, 4), (8, 2), 5), base[:1].expand(4)
    seen: list[Any] = []

    def look(*given: Tensor) -> Tensor:
        assert [t.stride() for t in given] == [t.stride() for t in views]
        assert all(torch.equal(a, b) for a, b in zip(given, views))
        assert [t.data_ptr() % 64 for t in given] == [t.data_ptr() % 64 for t in views]
        first, second, *_ = given
        assert second.data_ptr() - first.data_ptr() == 4
        before = first.as_strided((1,), (1,), first.storage_offset() - 2)
        seen.append(first.data_ptr() != base.data_ptr() and bool(before.isnan().all()))
        return given[0].clone()

    assert verdict(look, lambda *given: given[0].double(), *views)
    assert seen == [True, True]


def test_cross_check_poisons_the_gaps() -> None:
    x = torch.zeros(4, 8)[:, :3]

    def beyond(x: Tensor) -> Tensor:
        return x.as_strided((4, 4), x.stride(), x.storage_offset())[:, 1:].clone()

    assert not verdict(beyond, lambda x: x.double(), x)
    assert not verdict(
        lambda x: x.as_strided((4, 3), (8, 1), x.storage_offset() - 1).clone(),
        lambda x: x.double(),
        x,
    )


def test_cross_check_poisons_what_nobody_writes() -> None:
    """Memory that was just freed may hold the right values."""

    def leaves_the_last(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        out[:-1] = x[:-1]
        return out

    def beside(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        out.as_strided((4,), (1,), out.storage_offset()).copy_(torch.cat((x, x[:1])))
        return out

    x = tensor(0.0, 0.0, 0.0)
    assert not verdict(leaves_the_last, lambda x: x.double(), x)
    assert "wrote outside memory that it allocated" in str(verdict(beside, lambda x: x.double(), x))


def test_cross_check_copies_only_what_is_there() -> None:
    """Gigabytes between two elements cost nothing; near the elements there is poison."""
    memory = torch.empty(3 * 2**30, dtype=torch.float16)  # nobody touches most of it
    x = memory.as_strided((2, 3), (2**31, 1), 7)
    x.copy_(torch.arange(6).view(2, 3))

    def after(x: Tensor) -> Tensor:
        near = x.as_strided((2, 5), x.stride(), x.storage_offset() - 1)
        assert bool(near[:, 0].isnan().all() and near[:, 4].isnan().all())
        return near[:, 1:4].clone()

    assert verdict(after, lambda x: x.double(), x)


def test_cross_check_keeps_what_requires_grad() -> None:
    def gradient(x: Tensor) -> Tensor:
        (found,) = torch.autograd.grad((x * x).sum(), x)
        return found

    x = tensor(1.0, 2.0).requires_grad_()
    assert verdict(gradient, lambda x: 2 * x.detach().double(), x)


def test_reports_are_json(monkeypatch: pytest.MonkeyPatch) -> None:
    report = verdict(set_first(NAN), lambda x: x.double(), tensor(INF, 1.0))
    found = json.loads(report.to_json())
    assert found["passed"] is False
    assert found["findings"][0]["deviation"]["got"].startswith("nan")
