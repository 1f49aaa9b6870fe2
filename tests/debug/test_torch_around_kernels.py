"""debug of whole functions: kernels, and what torch does before and after them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from marked_lines import finder
from torch import Tensor

from compare import cross_check
from compare.debugging import investigation
from compare.debugging.findings.findings import Findings
from compare.user_kernels.cross_checking import Call
from compare.user_kernels.outputs import Expected

line_of = finder("# ", __file__)


@triton.jit
def partial_kernel(x_ptr, partial_ptr, M, N, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    n = tl.arange(0, BLOCK)
    mask = (rows < M) & (n[None, :] < N)
    x = tl.load(x_ptr + rows * N + n[None, :], mask=mask, other=1.0)  # fault: other
    tl.store(partial_ptr + tl.program_id(0) * N + n, tl.sum(x, 0), mask=n < N)


def column_sums(x: Tensor) -> Tensor:
    """As the gradients of norms' weights are made: a part of the sum by each program."""
    M, N = x.shape
    partial = torch.empty(triton.cdiv(M, 4), N)
    partial_kernel[(len(partial),)](x, partial, M, N, ROWS=4, BLOCK=16)
    return partial.sum(0)


@triton.jit
def twice_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(out_ptr + at, x * 3, mask=at < n)  # fault: 3


def twice(x: Tensor) -> Tensor:
    out = torch.empty(x.shape, dtype=torch.float32)
    twice_kernel[(triton.cdiv(x.numel(), 8),)](x, out, x.numel(), BLOCK=8)
    return out.to(x.dtype)


def investigated(function: Any, x: Tensor, right: Tensor) -> Findings:
    return investigation.investigate(Call(function, (x,), {"": Expected(right, (), 1.0)}))


def test_a_sum_that_torch_ends() -> None:
    x = torch.ones(10, 6)
    found = investigated(column_sums, x, x.sum(0))
    text = str(found)
    assert "never stored" not in text
    assert "no kernel stores to it: torch made it, maybe of partial_ptr[0, 0]" in text
    assert found.trace is not None
    assert f":{line_of('fault: other')} x = tl.load" in text  # on the way


def test_other_results_are_no_source() -> None:
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        sums, out = column_sums(x), torch.empty(x.shape)
        twice_kernel[(8,)](x, out, x.numel(), BLOCK=8)
        return out, sums

    x = torch.ones(10, 6)
    expected = {"[0]": Expected(3 * x, (), 1.0), "[1]": Expected(x.sum(0), (), 1.0)}
    found = investigation.investigate(Call(both, (x,), expected))
    assert [wrong.source for wrong in found.wrong] == ["partial_ptr[0, 0]"]


def test_a_result_that_torch_converts() -> None:
    x = torch.arange(20.0).bfloat16()
    found = investigated(twice, x, 2 * x)
    assert "torch made it, maybe of out_ptr[11]" in str(found)
    line = line_of("fault: 3")
    assert f"{Path(__file__).name}:{line} in twice_kernel" in str(found)
    assert found.wrong[0].history.last.program == (1, 0, 0)


def test_an_error_of_the_wrapper_has_its_line() -> None:
    def wrapper(x: Tensor) -> Tensor:
        return x.reshape(7, 7)  # fault: reshape

    found = investigated(wrapper, torch.ones(5), torch.ones(5))
    assert "stopped outside a kernel: RuntimeError: shape '[7, 7]' is invalid" in str(found)
    line = line_of("fault: reshape")
    assert f"{Path(__file__).name}:{line} in wrapper: return x.reshape(7, 7)" in str(found)
    assert found.to_dict()["failure"]["line"] == line
    report = cross_check(triton=wrapper, oracle=torch.clone, inputs=[(torch.ones(5),)])
    assert f"{Path(__file__).name}:{line} in wrapper: return x.reshape(7, 7)" in str(report)


def test_an_error_in_a_kernel_has_one_line() -> None:
    """The error's own text has it."""

    def wrapper(x: Tensor) -> Tensor:
        out = torch.empty(x.shape)
        twice_kernel[(1,)](x, out, x.numel() + 1, BLOCK=8)
        return out

    report = cross_check(triton=wrapper, oracle=torch.clone, inputs=[(torch.ones(5),)])
    assert str(report).count(f"{Path(__file__).name}:") == 1, str(report)


def test_results_and_oracles_with_a_gradient() -> None:
    weight = torch.ones(5, requires_grad=True)
    given = {"inputs": [(torch.ones(5),)], "bound": lambda right, x: 1e-6}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cross_check(cuda=lambda x: x * weight, oracle=lambda x: x * weight, **given)
        assert not cross_check(cuda=lambda x: -x * weight, oracle=torch.clone, **given)


@triton.jit
def total_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)  # masked
    tl.store(out_ptr, tl.sum(x))


def total(x: Tensor) -> Tensor:
    out = torch.empty(())
    total_kernel[(1,)](x, out, x.numel(), BLOCK=8)
    return out


def test_masked_loads_that_rely_on_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undefined, and 0 on GPUs of NVIDIA: what was written for these can be checked for the rest.
    The hazard stays."""
    x = torch.ones(5)
    report = cross_check(triton=total, oracle=torch.sum, inputs=[(x,)])
    assert "got nan" in str(report)
    assert "undefined value: one stored element depends on lanes that a load" in str(report)
    line = line_of("masked")
    assert f":{line} in total_kernel: x = tl.load" in str(report)
    assert "CROSSCHECK_MASKED_LOADS=zero" in str(report)
    monkeypatch.setenv("CROSSCHECK_MASKED_LOADS", "zero")
    assert cross_check(triton=total, oracle=torch.sum, inputs=[(x,)])
    assert investigated(total, x, x.sum()).verdict == "RIGHT BY LUCK"


def test_guards_of_every_dtype() -> None:
    """What functions allocate for themselves may hold booleans or complex numbers."""

    def function(x: Tensor) -> Tensor:
        flags, pairs = torch.empty(3, dtype=torch.bool), torch.empty(3, dtype=torch.complex64)
        return torch.where(flags.fill_(True), x, pairs.fill_(0).real)

    assert cross_check(triton=function, oracle=torch.clone, inputs=[(torch.ones(3),)])


@triton.jit
def add_to_kernel(x_ptr, out_ptr, n, beta, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    out = tl.load(out_ptr + at, mask=at < n, other=0.0)  # reads what nobody wrote
    tl.store(out_ptr + at, x + beta * out, mask=at < n)


def add_to(x: Tensor) -> Tensor:
    """With beta = 0, but 0 times NaN is NaN."""
    assert x.is_cuda, "kernels need a GPU"
    out = torch.empty_like(x)
    add_to_kernel[(1,)](x, out, x.numel(), 0.0, BLOCK=8)
    return out


def test_memory_that_nobody_wrote_in_a_function_that_asserts_is_cuda() -> None:
    report = cross_check(triton=add_to, oracle=torch.clone, inputs=[(torch.ones(5),)])
    told = "uninitialised memory: 5 stored elements depend on memory that nobody wrote"
    assert told in str(report)
    assert f"test_torch_around_kernels.py:{line_of('reads what nobody wrote')}" in str(report)
    findings = report.debug()
    assert "stopped outside a kernel" not in str(findings)
    assert told in str(findings)
