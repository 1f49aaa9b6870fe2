"""debug of calls that launch several kernels: what an earlier one stored is followed into it."""

from __future__ import annotations

import importlib
import inspect
from functools import partial
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
def parts_kernel(x_ptr, parts_ptr, N, LENGTH: tl.constexpr, BLOCK: tl.constexpr):
    n = tl.program_id(1) * LENGTH + tl.arange(0, BLOCK)
    inside = n < N  # fault: counts
    x = tl.load(x_ptr + tl.program_id(0) * N + n, mask=inside, other=0.0)
    tl.store(parts_ptr + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), tl.sum(x))


@triton.jit
def scale_kernel(parts_ptr, out_ptr, factor, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    scaled = tl.load(parts_ptr + at, mask=at < n) * factor
    tl.store(out_ptr + at, scaled, mask=at < n)


@triton.jit
def total_kernel(parts_ptr, out_ptr, P, BLOCK: tl.constexpr):
    p = tl.arange(0, BLOCK)
    parts = tl.load(parts_ptr + tl.program_id(0) * P + p, mask=p < P, other=0.0)
    tl.store(out_ptr + tl.program_id(0), tl.sum(parts))


def row_sums(
    x: Tensor, scaled: bool = False, in_place: bool = False, first: Any = parts_kernel
) -> Tensor:
    M, N = x.shape
    P = triton.cdiv(N, 6)
    parts, out = torch.empty(M, P), torch.empty(M)
    first[(M, P)](x, parts, N, LENGTH=6, BLOCK=8)
    if scaled:
        target = parts if in_place else torch.empty(M, P)
        scale_kernel[(1,)](parts, target, 1.0, M * P, BLOCK=16)
        parts = target
    total_kernel[(M,)](parts, out, P, BLOCK=4)
    return out


def investigated(function: Any, x: Tensor, right: Tensor) -> Findings:
    return investigation.investigate(Call(function, (x,), {"": Expected(right, (), 1.0)}))


def test_what_the_launch_before_stored() -> None:
    x = torch.arange(30.0).view(2, 15)
    findings = investigated(row_sums, x, x.sum(1))
    (earlier,) = findings.earlier()
    assert earlier.heading == (
        "before that, parts_ptr[0, 2] in program (0, 2, 0) of parts_kernel[2, 3, 1], the rest "
        "in 2 others"
    )
    assert [step.place.line for step in earlier.steps].count(line_of("fault: counts")) == 1
    text = str(findings)
    assert text.index("on the way to result[0]") < text.index("before that, parts_ptr[0, 2]")
    assert f":{line_of('fault: counts')} inside = n < N" in text
    (entry,) = findings.to_dict()["wrong"][0]["earlier"]
    assert entry["elements"] == "parts_ptr[0, 2]"
    assert "Before that, parts_ptr[0, 2] in program" in findings.to_html()


def test_lines_of_another_file_have_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = inspect.getsource(parts_kernel.fn)
    text = f"import triton\nimport triton.language as tl\n\n\n{source}"
    (tmp_path / "first_stage.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    first = importlib.import_module("first_stage").parts_kernel
    x = torch.arange(30.0).view(2, 15)
    findings = investigated(lambda x: row_sums(x, first=first), x, x.sum(1))
    line = text.splitlines().index("    inside = n < N  # fault: counts") + 1
    assert f" first_stage.py:{line} inside = n < N" in str(findings)
    page = findings.to_html()
    assert page.count(f"first_stage.py:{line} inside") == 2  # drawn, and as printed


@pytest.mark.parametrize("in_place", [False, True])
def test_from_launch_to_launch(in_place: bool) -> None:
    """Of memory that is stored to again what was there is gone: a program is followed only to what
    nobody replaced."""
    x = torch.arange(30.0).view(2, 15)
    findings = investigated(lambda x: row_sums(x, True, in_place), x, x.sum(1))
    kernels = [each.kernel for each in findings.earlier()]
    assert kernels == (["scale_kernel"] if in_place else ["scale_kernel", "parts_kernel"])
    if not in_place:
        assert f":{line_of('fault: counts')} inside = n < N" in str(findings)


def test_a_right_launch_before_tells_nothing() -> None:
    x = torch.arange(12.0).view(2, 6)
    assert not investigated(row_sums, x, x.sum(1)).earlier()


@triton.jit
def order_kernel(order_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    reversed_at = n - at  # fault: one too far
    tl.store(order_ptr + at, reversed_at, mask=at < n)


@triton.jit
def gather_kernel(x_ptr, order_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    order = tl.load(order_ptr + at, mask=at < n, other=0)
    tl.store(out_ptr + at, tl.load(x_ptr + order, mask=at < n), mask=at < n)


def flipped(x: Tensor) -> Tensor:
    order, out = torch.empty(len(x), dtype=torch.int32), torch.empty_like(x)
    order_kernel[(1,)](order, len(x), BLOCK=8)
    gather_kernel[(1,)](x, order, out, len(x), BLOCK=8)
    return out


def test_an_index_out_of_bounds_that_an_earlier_launch_stored() -> None:
    x = torch.arange(5.0)
    findings = investigated(flipped, x, x.flip(0))
    assert "out-of-bounds load through x_ptr" in str(findings)
    assert [each.elements for each in findings.earlier()] == ["order_ptr[0]"]
    assert f":{line_of('fault: one too far')} reversed_at = n - at" in str(findings)


@triton.jit
def transposing_kernel(x_ptr, out_ptr, M, N, BLOCK: tl.constexpr):
    m, n = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    x = tl.load(x_ptr + m * N + n, mask=(m < M) & (n < N))
    there = out_ptr + n * (M - 1) + m  # fault: the stride
    tl.store(there, x, mask=(m < M) & (n < N))


def transposed(x: Tensor) -> Tensor:
    out = torch.empty(x.shape[1], x.shape[0])
    transposing_kernel[(1,)](x, out, *x.shape, BLOCK=8)
    return out


def test_the_address_of_a_result_that_is_not_stored() -> None:
    """A function's results have no parameter's name."""
    x = torch.arange(15.0).view(5, 3)
    findings = investigated(transposed, x, x.t())
    assert f":{line_of('fault: the stride')} there = out_ptr" in str(findings)


@triton.jit
def product_kernel(a_ptr, b_ptr, out_ptr, BLOCK: tl.constexpr, OFF: tl.constexpr):
    m, n = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    a, b = tl.load(a_ptr + m * BLOCK + n), tl.load(b_ptr + m * BLOCK + n)
    tl.store(out_ptr + m * BLOCK + n, tl.dot(a, b) + OFF)  # product


def product(a: Tensor, b: Tensor, off: float = 0.0) -> Tensor:
    out = torch.empty_like(a)
    product_kernel[(1,)](a, b, out, BLOCK=16, OFF=off)
    return out


def test_cross_check_says_that_a_dot_rounds() -> None:
    torch.manual_seed(0)
    inputs = [(torch.randn(16, 16), torch.randn(16, 16))]
    for off, said in ((0.0, "right with"), (1.0, "")):
        report = cross_check(
            triton=lambda a, b, off=off: product(a, b, off),
            oracle=lambda a, b: a.double() @ b.double(),
            inputs=inputs,
            bound=lambda right, a, b: 1e-5 * (1 + right.abs()),
        )
        assert not report
        found_out = [line for line in str(report).splitlines() if "input_precision='ieee'" in line]
        assert bool(found_out) == bool(said), str(report)
        if said:
            assert f"{said} input_precision='ieee' instead of 'tf32'" in found_out[0]
            assert f"test_earlier_launches.py:{line_of('product')} in" in found_out[0]


def test_the_report_of_cross_check_goes_on_to_debug() -> None:
    x = torch.arange(30.0).view(2, 15)
    six = x[:, :6].contiguous()
    report = cross_check(triton=row_sums, oracle=lambda x: x.sum(1), inputs=[(six,), (x,)])
    assert not report
    text = str(report.debug())
    assert "worst result[0]: got 143.0" in text
    assert f":{line_of('fault: counts')} inside = n < N" in text
    right = cross_check(triton=row_sums, oracle=lambda x: x.sum(1), inputs=[(six,)])
    assert right
    assert right.debug()
    with pytest.raises(ValueError, match="got no 'triton' to debug"):
        cross_check(cuda=row_sums, oracle=lambda x: x.sum(1), inputs=[(six,)]).debug()


@triton.jit
def counting_kernel(x_ptr, count_ptr):
    if tl.load(x_ptr + tl.program_id(0)) > 0:
        tl.store(count_ptr, tl.load(count_ptr) + 1)  # counted


def positives(x: Tensor) -> Tensor:
    count = torch.zeros(1, dtype=torch.int64)
    counting_kernel[(x.numel(),)](x, count)
    return count


def test_a_report_without_a_wrong_call_goes_on_to_the_hazards() -> None:
    inputs = [(torch.tensor([-1.0, 1.0]),), (torch.ones(2),)]
    report = cross_check(triton=positives, oracle=lambda x: (x > 0).sum(0, True), inputs=inputs)
    assert report
    found = report.debug()  # of the second call: only one program of the first one counts
    assert found.verdict == "RIGHT BY LUCK"
    assert found.hazards[0].kind == "race"
    assert f":{line_of('counted')} in counting_kernel" in str(found)


@triton.jit
def ends_kernel(ends_ptr, out_ptr):
    at = tl.program_id(0)
    end = tl.load(ends_ptr + at)  # first end
    tl.store(out_ptr + at, end - tl.load(ends_ptr + at - 1, mask=at > 0, other=0))  # lengths


def lengths(ends: Tensor, fill) -> Tensor:
    own, out = torch.empty(ends.shape), torch.empty(ends.shape)
    fill(own, ends)
    ends_kernel[(ends.numel(),)](own, out)
    return out


@pytest.mark.parametrize("whole", [True, False])
def test_what_a_call_allocates_is_uninitialised(whole: bool) -> None:
    """torch may write all of it, also through a list; what it leaves out is named."""

    def fill(own: Tensor, ends: Tensor) -> None:
        first = 0 if whole else 1
        torch._foreach_copy_([own[first:]], [ends[first:]])

    report = cross_check(
        triton=partial(lengths, fill=fill),
        oracle=lambda ends: torch.diff(ends, prepend=torch.zeros(1)),
        inputs=[(torch.arange(1.0, 6),)],
    )
    found = report.debug()
    assert bool(report) == bool(found) == whole
    if not whole:
        assert found.hazards[0].kind == "uninitialised memory"
        assert f":{line_of('first end')} in ends_kernel" in str(found)


@triton.jit
def each_kernel(x_ptr, out_ptr, n):
    for i in range(n):
        tl.store(out_ptr + i, tl.load(x_ptr + i) + 1)  # one at a time


@triton.jit
def sum_twice_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    first, again = tl.load(x_ptr + at, mask=at < n), tl.load(x_ptr + at, mask=at < n)
    tl.store(out_ptr, tl.sum(tl.where(at < n, first + again, 0.0)))


def test_of_many_elements_some_are_followed() -> None:
    """One that is loaded twice is told once; to follow each of thousands would take minutes."""

    def function(x: Tensor) -> Tensor:
        parts, out = torch.empty_like(x), torch.empty(())
        each_kernel[(1,)](x, parts, len(x))
        sum_twice_kernel[(1,)](parts, out, len(x), BLOCK=512)
        return out

    x = torch.ones(500)
    (earlier,) = investigated(function, x, x.sum()).earlier()
    assert earlier.elements == "out_ptr[0:500]"
    assert line_of("one at a time") in [step.place.line for step in earlier.steps]
