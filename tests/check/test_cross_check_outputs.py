"""cross_check of functions that return several tensors: each is judged for itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

import compare
from compare import cross_check

X = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))


@triton.jit
def norm_kernel(x_ptr, out_ptr, mean_ptr, rstd_ptr, N, eps, BLOCK: tl.constexpr):
    row, n = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * N + n, mask=n < N, other=0.0).to(tl.float32)
    mean = tl.sum(x) / N
    centred = tl.where(n < N, x - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred) / N + eps)
    tl.store(out_ptr + row * N + n, centred * rstd, mask=n < N)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)


def norm(x: Tensor, eps: float = 1e-5) -> tuple[Tensor, dict[str, Tensor]]:
    """A layer norm as authors write it: the result, and statistics in float32 for backward."""
    out = torch.empty_like(x)
    mean, rstd = (torch.empty(len(x), dtype=torch.float32) for _ in range(2))
    norm_kernel[(len(x),)](x, out, mean, rstd, x.shape[1], eps, BLOCK=64)
    return out, {"mean": mean, "rstd": rstd}


def oracle(x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    x = x.double()
    mean, rstd = x.mean(1), 1 / (x.var(1, correction=0) + 1e-5).sqrt()
    return (x - mean[:, None]) * rstd[:, None], {"mean": mean, "rstd": rstd}


def eager(x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    out, statistics = oracle(x)
    return out.to(x.dtype), {name: t.float() for name, t in statistics.items()}


def spoilt(x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    out, statistics = eager(x)
    statistics["rstd"][3] += 1
    return out, statistics


def check(triton: Any = norm, cuda: Any = eager, **options: Any) -> compare.Report:
    x = options.pop("x", X)
    return cross_check(triton=triton, cuda=cuda, oracle=oracle, inputs=[(x,)], **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_output_has_its_dtype_and_verdict(dtype: torch.dtype) -> None:
    bounds = (lambda ref, x: 1e-2 * ref.abs() + 1e-5, {"mean": lambda ref, x: 1e-6})
    report = check(x=X.to(dtype), bound=bounds, max_ulps=(1.0, {"rstd": 16}))
    assert report, report
    names = [finding.output for finding in report.findings]
    assert names == ["[0]", "[1]['mean']", "[1]['rstd']"] * 2
    assert "triton on inputs[0] [[5, 40]], output [1]['rstd']: right, worst" in str(report)


def test_the_wrong_one_is_named() -> None:
    report = check(cuda=spoilt, max_ulps=1e4)
    assert report.verdict == "FAIL: the cuda side is wrong"
    assert [f.output for f in report.findings if not f.passed] == ["[1]['rstd']"]
    assert "cuda on inputs[0] [[5, 40]], output [1]['rstd']: wrong values" in str(report)
    assert "element (3,)" in str(report)
    written = json.loads(report.to_json())["findings"]
    assert [each["output"] for each in written if each["deviation"]] == ["[1]['rstd']"]


def test_a_tolerance_is_for_its_output_alone() -> None:
    assert check(triton=spoilt, bound=(None, {"rstd": lambda ref, x: 2.0}), max_ulps=1e4)
    assert not check(triton=spoilt, bound=(lambda ref, x: 2.0, None), max_ulps=1e4)
    assert not check(triton=spoilt, bound=(None, {"mean": lambda ref, x: 2.0}), max_ulps=1e4)


def test_dtypes_by_output() -> None:
    def halves(x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        out, statistics = eager(x)
        return out, {name: t.bfloat16() for name, t in statistics.items()}

    report = check(halves, halves)
    assert "output [1]['mean']: TypeError: returned torch.bfloat16, expected" in str(report)
    assert check(halves, halves, dtype=(None, torch.bfloat16))


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (lambda x: eager(x)[0], "returned one tensor, but the oracle returned [0], [1]['mean'],"),
        (lambda x: (*eager(x), x), "returned [0], [1]['mean'], [1]['rstd'], [2], but the oracle"),
        (lambda x: (eager(x)[0], {}), "returned [0], but the oracle returned [0], [1]['mean']"),
        (lambda x: (None, eager(x)[1]), "output [0]: TypeError: returned NoneType, expected a"),
    ],
)
def test_other_outputs_than_the_oracles(returned: Any, says: str) -> None:
    report = check(returned)
    assert report.verdict == "FAIL: the triton side is wrong"
    assert says in str(report)


def test_what_the_oracle_does_not_know() -> None:
    """Locks and scratch memory: it says None, and whatever is there is right."""

    def with_scratch(x: Tensor) -> tuple[Any, ...]:
        return (*norm(x), [torch.empty(3), None])

    options = {"inputs": [(X,)], "max_ulps": 1e4}
    assert cross_check(triton=with_scratch, oracle=lambda x: (*oracle(x), None), **options)
    with pytest.raises(TypeError, match="the oracle returned no tensor: nothing would be checked"):
        cross_check(triton=norm, oracle=lambda x: (None, None), inputs=[(X,)])


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        (
            {"max_ulps": (1, {"rts": 2})},
            ValueError,
            r"'max_ulps' has .* for output \[1\]\['rts",
        ),
        (
            {"dtype": [None] * 3},
            ValueError,
            r"'dtype' has a value for output \[2\], but",
        ),
        ({"max_ulps": (1, -1)}, ValueError, "max_ulps must be a finite number"),
        (
            {"bound": (None, {"mean": lambda ref, x: -1})},
            ValueError,
            r"for output \[1\]\['mean'\]: ",
        ),
    ],
)
def test_options_that_do_not_suit(options: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        check(**options)


def test_outputs_that_are_no_tensors() -> None:
    with pytest.raises(TypeError, match=r"returned a float for output \[1\]: it must be a tensor,"):
        cross_check(triton=norm, oracle=lambda x: (x, 1.0), inputs=[(X,)])


def test_a_write_outside_is_of_no_output() -> None:
    def beside(x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        out, statistics = eager(x)
        own = torch.empty(4)
        own.as_strided((5,), (1,))[4] = 0
        return out, statistics

    report = check(triton=beside, max_ulps=1e4)
    (wrong,) = (finding for finding in report.findings if not finding.passed)
    assert (wrong.side, wrong.output) == ("triton", "")
    assert wrong.error == "wrote outside memory that it allocated"


def test_one_side_alone() -> None:
    report = cross_check(triton=norm, oracle=oracle, inputs=[(X,)], max_ulps=1e4)
    assert report.verdict == "pass: within the tolerance"
    with pytest.raises(TypeError, match="needs the argument 'triton' or 'cuda'"):
        cross_check(oracle=oracle, inputs=[(X,)])
