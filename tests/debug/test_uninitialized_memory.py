"""Memory that nobody wrote: read, reported, and made good by a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import marked_lines
import pytest
import torch
import triton
import triton.language as tl
from sanitized import X, lines, only

from compare import debug
from compare.cases import Case
from compare.debugging import investigation
from compare.debugging.findings.hazards import Hazard
from compare.debugging.subjects import Op
from compare.ops import SPECS
from triton_kernels import interpreter

line_of = marked_lines.finder("# ", __file__)


@triton.jit
def accumulates(x_ptr, out_ptr, n, ATOMIC: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    if ATOMIC:
        tl.atomic_add(out_ptr + i, x, mask=i < n)  # atomic on nothing
    else:
        old = tl.load(out_ptr + i, mask=i < n, other=0.0)  # load of nothing
        tl.store(out_ptr + i, x + old, mask=i < n)  # store of nothing


def test_reading_memory_that_nobody_wrote() -> None:
    args = (X, torch.zeros(24), 24)
    for atomic in (False, True):
        assert debug(accumulates, (2,), args, oracle=lambda: X, ATOMIC=atomic, BLOCK=16)
    found = debug(
        accumulates, (2,), args, oracle=lambda: X, uninitialized=["out_ptr"], ATOMIC=False, BLOCK=16
    )
    assert found.verdict == "RIGHT BY LUCK"
    hazard = only(found, "uninitialised memory")
    assert lines(hazard) == [line_of("store of nothing"), line_of("load of nothing")]
    assert hazard.text == "24 stored elements depend on memory that nobody wrote"
    assert [w.element for w in hazard.witnesses] == ["out_ptr[0]", "out_ptr[0]"]
    found = debug(
        accumulates, (2,), args, oracle=lambda: X, uninitialized=["out_ptr"], ATOMIC=True, BLOCK=16
    )
    hazard = only(found, "uninitialised memory")
    assert lines(hazard) == [line_of("atomic on nothing")]


@triton.jit
def in_two_steps(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n, other=0.0), mask=i < n)
    tl.debug_barrier()
    y = tl.load(out_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr + i, 2 * y, mask=i < n)


def test_a_store_makes_memory_good() -> None:
    found = debug(
        in_two_steps, (1,), (X, torch.empty(24), 24), oracle=lambda: 2 * X,
        uninitialized=["out_ptr"], BLOCK=32,
    )  # fmt: skip
    assert found, found


def test_a_view_is_uninitialised_without_its_neighbours() -> None:
    memory = torch.arange(48.0).view(24, 2)
    x, out = memory[:, 0], memory[:, 1]
    pairs = {"uninitialized": ["out_ptr"], "n": 24, "BLOCK": 32}
    assert debug(strided_copy, (1,), (x, out), **pairs)
    hazard = only(debug(strided_copy, (1,), (out, x), **{**pairs, "uninitialized": ["x_ptr"]}),
                  "uninitialised memory")  # fmt: skip
    assert hazard.witnesses[1].element == "x_ptr[0]"


@triton.jit
def masked_across_the_end(out_ptr, n):
    wide = (out_ptr + n - 1).to(tl.pointer_type(tl.float32))
    tl.store(out_ptr, tl.load(wide, mask=n < 0, other=0.0).to(tl.float16))
    tl.store(wide, 1.0, mask=n < 0)


def test_lanes_that_are_off_may_point_across_the_end() -> None:
    """As those past the end of one tensor may, where another of another dtype begins or ends."""
    args = (torch.ones(1, dtype=torch.float16), 1)
    found = debug(masked_across_the_end, (1,), args, uninitialized=["out_ptr"])
    assert found, found


@triton.jit
def strided_copy(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + 2 * i, tl.load(x_ptr + 2 * i, mask=i < n), mask=i < n)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["nobody"], "'nobody', which is no parameter; the tensors are x_ptr, out_ptr"),
        (["n"], "'n', which is no tensor; the tensors are x_ptr, out_ptr"),
        ("out", "'out', which is no parameter"),
    ],
)
def test_names_of_uninitialised_tensors_are_checked(names: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        debug(strided_copy, (1,), (X, X.clone(), 12), uninitialized=names, BLOCK=16)


def with_workspace(
    fill: Callable[[Any], Any], loaded: int, stored: int
) -> Callable[..., torch.Tensor]:
    """An op of two launches by way of memory of its own."""

    def run(x: torch.Tensor, y: Any = None, *, out: torch.Tensor | None = None) -> torch.Tensor:
        out = torch.empty_like(x) if out is None else out
        space = fill(torch.empty(x.numel() + 5))
        with interpreter.interpreting():
            copy_part[(1,)](x, space, loaded, stored, BLOCK=64)
            copy_part[(1,)](space, out, x.numel(), x.numel(), BLOCK=64)
        return out

    return run


@triton.jit
def copy_part(x_ptr, out_ptr, n, keep, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)  # copied load
    tl.store(out_ptr + i, x, mask=i < keep)  # copied store


@pytest.mark.parametrize("layout", ["contiguous", "functional", "transposed"])
def test_what_an_op_allocates_is_uninitialised(layout: str) -> None:
    spec = SPECS["square"]
    case = next(c for c in spec.cases("float32", "quick") if c.layout == layout)
    case = type(case)(**{**vars(case), "shape": (5, 8)})

    def hazards(fill: Callable[[Any], Any], loaded: int, stored: int) -> list[Hazard]:
        subject = Op(spec, case, None, with_workspace(fill, loaded, stored))
        return investigation.investigate(subject).hazards

    assert not hazards(lambda t: t, 40, 40)
    assert not hazards(lambda t: t.zero_(), 30, 30)
    assert not hazards(lambda t: t.copy_(torch.ones(45)), 30, 30)
    assert not hazards(lambda t: torch.zeros(45, out=t), 30, 30)
    (hazard,) = hazards(lambda t: t, 30, 30)
    assert hazard.kind == "uninitialised memory"
    assert lines(hazard) == [line_of("copied store"), line_of("copied load")]
    assert hazard.count == 10
    # An undefined value stays one on its way through memory: both stores count.
    (hazard,) = hazards(lambda t: t, 37, 40)
    assert (hazard.kind, hazard.count) == ("undefined value", 6)
    assert hazard.witnesses[1].lane == (37,)


def test_an_ops_given_output_is_uninitialised_unless_it_is_an_input() -> None:
    def adds_to_out(x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        with interpreter.interpreting():
            accumulates[(2,)](x, out, x.numel(), ATOMIC=False, BLOCK=16)
        return out

    for layout, count in (("contiguous", 24), ("inplace", 0)):
        case = Case("square", "float32", (4, 6), layout)
        found = investigation.investigate(Op(SPECS["square"], case, None, adds_to_out))
        assert sum(h.count for h in found.hazards) == count
        assert all(h.kind == "uninitialised memory" for h in found.hazards)
