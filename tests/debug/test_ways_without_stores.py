"""Ways that begin at no store: at an error of no lane's, at what decided that nothing is stored, at
a tensor that torch copied; and ways that are too long to print."""

from __future__ import annotations

import re

import pytest
import torch
import triton
import triton.language as tl
from marked_lines import finder
from torch import Tensor

from compare import Findings, cross_check, debug
from compare.debugging.findings import steps

line_of = finder("# fault: ", __file__)


def lines_on_the_way(findings: Findings) -> set[int]:
    return {step.place.line for step in findings.lane_history()[1]}


@triton.jit
def tile_of(ptr, rows, columns, stride):
    return tl.load(ptr + rows[:, None] * stride + columns)


@triton.jit
def product_kernel(a_ptr, b_ptr, out_ptr, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    m, k = tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    columns = tl.arange(0, BLOCK)[None, :]
    if FAULT == "shape":
        columns = tl.arange(0, BLOCK // 2)[None, :]  # fault: shape
    a = tile_of(a_ptr, m, columns, BLOCK)
    b = tile_of(b_ptr, k, tl.arange(0, BLOCK)[None, :], BLOCK)
    out_ptrs = out_ptr + m[:, None] * BLOCK + k[None, :]
    if FAULT == "pointer":
        out_ptrs = m[:, None] * BLOCK + k[None, :]  # fault: pointer
    tl.store(out_ptrs, tl.dot(a, b, input_precision="ieee"))


def product(fault: str) -> Findings:
    a, b = torch.eye(16), torch.ones(16, 16)
    args = (a, b, torch.zeros(16, 16), fault)
    return debug(product_kernel, (1,), args, oracle=lambda: a @ b, BLOCK=16)


def test_an_error_of_no_lane_is_followed_to_what_its_statement_read() -> None:
    assert product("")
    shape = product("shape")
    assert shape.failure is not None
    assert "equal reduction dimensions" in shape.failure.error
    assert line_of("shape") in lines_on_the_way(shape)
    text = str(shape)
    assert "\nwhat led there\n" in text
    assert f":{line_of('shape')} columns = tl.arange(0, BLOCK // 2)[None, :]" in text
    assert "a = 0…1 (128 lanes)" in text  # 16 × 8 of 16 × 16
    assert line_of("pointer") in lines_on_the_way(product("pointer"))


@triton.jit
def parts_kernel(x_ptr, out_ptr, N, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    last = tl.minimum(N, (tl.program_id(0) + 1) * BLOCK)
    first = tl.program_id(0) * BLOCK
    if FAULT == "loop":
        last = tl.minimum(N, first)  # fault: loop
    if FAULT == "mask":
        first = first + N  # fault: mask
    parts = tl.where(last > first, 1, 0)
    if FAULT == "mask":
        parts = 1
    for _ in range(0, parts):
        n = first + tl.arange(0, BLOCK)
        tl.store(out_ptr + n, tl.load(x_ptr + n, mask=n < N) + 1, mask=n < N)


def incremented(x: Tensor, fault: str = "") -> Tensor:
    out = torch.zeros(x.shape)
    parts_kernel[(3,)](x, out, x.numel(), fault, BLOCK=8)
    return out


def test_where_nothing_is_stored_it_is_what_decided_that() -> None:
    x = torch.arange(20.0)

    def launch(fault: str) -> Findings:
        args = (x, torch.zeros(20), 20, fault)
        return debug(parts_kernel, (3,), args, oracle=lambda: x + 1, sanitize=False, BLOCK=8)

    assert launch("")
    for fault in ("loop", "mask"):
        findings = launch(fault)
        assert "no program stored anything" in str(findings)
        assert line_of(fault) in lines_on_the_way(findings), findings


def test_a_copy_of_what_nobody_stored_to() -> None:
    """A larger tensor that some kernel did store to is no better guess."""

    def function(x: Tensor) -> Tensor:
        incremented(torch.arange(20.0))  # of its memory nothing is returned
        return incremented(x, "loop").double()

    x = torch.arange(1.0, 21)
    report = cross_check(triton=function, oracle=lambda x: x.double() + 1, inputs=[(x,)])
    findings = report.debug()
    assert "maybe of out_ptr[19], to which none of 3 programs stored" in str(findings)
    assert line_of("loop") in lines_on_the_way(findings)


@triton.jit
def scaled_kernel(x_ptr, out_ptr, n, SCALE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(out_ptr + at, x * SCALE, mask=at < n)


@triton.jit
def corrected_kernel(x_ptr, out_ptr, least_ptr, target, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(out_ptr + at, x, mask=at < n)
    tl.debug_barrier()
    if tl.min(x, axis=0) < 0:  # fault: of another tensor
        tl.store(least_ptr, tl.min(x, axis=0))
    at_target = tl.load(target)
    if at_target < n - 1:  # fault: skipped
        tl.store(out_ptr + at_target, tl.load(out_ptr + at_target) - 1)


def test_a_later_store_that_a_branch_skipped() -> None:
    x = torch.arange(5.0)
    args = (x, torch.zeros(5), torch.zeros(1), torch.tensor([4]), 5)
    expected = torch.tensor([0.0, 1, 2, 3, 3])
    found = debug(corrected_kernel, (1,), args, oracle=lambda: {"out_ptr": expected}, BLOCK=8)
    way = lines_on_the_way(found)
    assert line_of("skipped") in way, found
    assert line_of("of another tensor") not in way, found


def scaled_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = torch.empty(x.shape), torch.empty(x.shape)
    scaled_kernel[(2,)](x, first, x.numel(), 3, BLOCK=8)
    scaled_kernel[(2,)](first, second, x.numel(), 2, BLOCK=8)
    return second, first


def test_what_an_earlier_launch_made_wrong_comes_first() -> None:
    x = torch.ones(10)
    report = cross_check(triton=scaled_twice, oracle=lambda x: (4 * x, 2 * x), inputs=[(x,)])
    wrong = report.debug().wrong
    assert [each.output for each in wrong] == ["result[1]", "result[0]"]
    assert [each.launch for each in wrong] == [0, 1]


def test_wrong_elements_say_more_than_another_outputs_shape() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        second, first = scaled_twice(x)
        return second[:7], first

    x = torch.ones(10)
    report = cross_check(triton=function, oracle=lambda x: (6 * x, 2 * x), inputs=[(x,)])
    assert "returned shape [7], expected [10]" in str(report)
    assert [each.output for each in report.debug().wrong] == ["result[1]"]
    right = cross_check(triton=function, oracle=lambda x: (6 * x, 3 * x), inputs=[(x,)]).debug()
    assert right.failure is not None  # nothing but the shape is wrong
    assert "returned shape [7], expected [10]" in right.failure.error


@triton.jit
def signed_kernel(x_ptr, out_ptr, NEGATE: tl.constexpr, HALVE: tl.constexpr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    if not NEGATE:  # fault: constant
        x = -x
    else:
        x = x + 1
    if HALVE:
        other = x / 2
        tl.store(out_ptr + BLOCK + tl.arange(0, BLOCK), other)
    tl.store(out_ptr + tl.arange(0, BLOCK), x)


def test_branches_that_constants_decided_are_told_in_a_line() -> None:
    x = torch.ones(8)
    findings = debug(
        signed_kernel, (1,), (x, torch.zeros(8), True, False), oracle=lambda: -x, BLOCK=8
    )
    branch = line_of("constant")
    assert str(findings).splitlines()[-1] == f"  branches by constants :{branch}"
    assert [each.place.line for each in findings.lane_history()[1] if each.constant] == [branch]


@triton.jit
def long_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    n = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + n)
    shifted = x + 2  # fault: early
    scaled = shifted * 1.25
    rounded = tl.floor(scaled)
    difference = scaled - rounded
    squared = difference * difference
    total = squared + rounded
    halved = total / 2
    powers = tl.exp2(halved)
    inverse = 1 / powers
    weighed = inverse * scaled
    centred = weighed - tl.sum(weighed) / BLOCK
    tl.store(out_ptr + n, centred)


def test_a_way_that_is_too_long_still_has_all_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some with their code, the earlier ones with values, the first with numbers alone."""
    monkeypatch.setattr(steps, "SHORT", 2)
    x, out = torch.ones(8), torch.zeros(8)
    findings = debug(long_kernel, (1,), (x, out), oracle=lambda: x, BLOCK=8)
    _, history, place = findings.lane_history()
    kernel = range(line_of("early") - 2, line_of("early") + 12)
    bare = {}
    for most in (20, 8, 5, 3):
        lines = steps.in_lines(history, place, set(), most)
        assert len(lines) <= most
        assert [int(n) for n in re.findall(r"(?:^| ):(\d+)", "\n".join(lines), re.M)] == [*kernel]
        first = re.match("first lines (.*), with values in the JSON file$", lines[0])
        bare[most] = first[1].split() if first else []
    assert not bare[20]
    assert f":{line_of('early')}" in bare[5]
    assert len(bare[8]) < len(bare[5]) < len(bare[3]) < len(kernel)
