"""compare.debug finds planted faults where they are, compiled kernels' among them."""

from __future__ import annotations

from typing import Any

import broken_kernels
import marked_lines
import pytest
import torch
import triton
import triton.language as tl
from broken_kernels import BIAS, A, B, X, add_up, dropped_mask, flat, linear, linear_with, square
from typer.testing import CliRunner, Result

from compare import debug
from compare.checking import judging
from compare.cli import app
from compare.debugging import investigation, subjects
from compare.debugging.compiled import comparison

line_of = marked_lines.finder("# fault: ", __file__, broken_kernels.__file__)


# ---- broken kernels ----


@triton.jit
def off_by_one(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr + i, x * x, mask=i < n - 1)  # fault: mask off by one


@triton.jit
def unmasked_load(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Sums rows; lanes past the row's end are undefined."""
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * n + i, mask=i < n)
    tl.store(out_ptr + tl.program_id(0), tl.sum(x))  # fault: undefined lanes summed


@triton.jit
def swapped_strides(
    x_ptr, out_ptr, M, N, stride_xm, stride_xn, stride_om, stride_on, BLOCK: tl.constexpr
):
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = (m < M) & (n < N)
    x = tl.load(x_ptr + m * stride_xn + n * stride_xm, mask=mask, other=0.0)  # fault: strides
    tl.store(out_ptr + m * stride_om + n * stride_on, x, mask=mask)


@triton.jit
def wrong_axis(x_ptr, out_ptr, M, N, BLOCK: tl.constexpr):
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = (m < M) & (n < N)
    x = tl.load(x_ptr + m * N + n, mask=mask, other=0.0)
    tl.store(out_ptr + m * N + n, 2 * x, mask=mask)


@triton.jit
def asserts(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.device_assert(x < 12, "x too large")  # fault: assertion
    tl.store(out_ptr + i, x)


@triton.jit
def raises(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, x.nonsense)  # fault: Python error


@triton.jit
def all_write_the_first(out_ptr):
    tl.store(out_ptr, tl.program_id(0) + 1)  # fault: two writers


def test_dropped_mask() -> None:
    """Out of bounds where the tensor ends there; wrong values where it does not."""
    found = flat(dropped_mask)
    assert found.failure.program == (3, 0, 0)
    assert found.failure.place.line == line_of("dropped mask")
    assert "out-of-bounds store through out_ptr" in found.failure.error
    assert "24 of 256 active lanes" in found.failure.error
    assert [e.what for e in found.trace.events] == ["load"]
    assert found.trace.ended == "by the error above"
    found = flat(dropped_mask, n=1000, size=1024)
    (wrong,) = found.wrong
    assert (wrong.pattern.kind, wrong.pattern.text) == ("tail", "the tail out_ptr[1000:1024]")
    assert wrong.history.last.program == (3, 0, 0)
    assert wrong.history.last.place.line == line_of("dropped mask")
    assert (wrong.history.last.on, wrong.history.last.lanes) == (256, 256)
    assert wrong.history.lane == (1000 - 3 * 256,)
    assert wrong.alone == 0.0
    assert found.trace.program == (3, 0, 0)


def test_mask_off_by_one() -> None:
    (wrong,) = flat(off_by_one).wrong
    assert wrong.pattern.kind == "element"
    assert wrong.deviation.index == (999,)
    assert wrong.unwritten == 1
    assert wrong.all_nan
    assert wrong.history.last is None
    masked = wrong.history.masked
    assert (masked.program, masked.place.line) == ((3, 0, 0), line_of("mask off by one"))
    assert wrong.history.masked_lane == (999 - 3 * 256,)
    assert masked.on == 231
    text = str(flat(off_by_one))
    assert (
        "addressed by program (3, 0, 0) in lane [231] of [256]: 231 of 256 lanes on, not " in text
    )
    assert "tl.store(out_ptr + i, x * x, mask=i < n - 1)" in text
    assert "inf ulp, 1 allowed" in text


@triton.jit
def with_a_hole(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr + i, 0 * x, mask=(i < n) & (i != 300))
    tl.store(out_ptr + i, x * x, mask=(i < n) & (i != 300))  # fault: hole


def test_the_program_that_masked_the_element_runs_again() -> None:
    found = flat(with_a_hole)
    (wrong,) = found.wrong
    assert wrong.history.masked.place.line == line_of("hole")
    assert found.trace.program == (1, 0, 0)
    assert found.trace.events[2].region.of("out") == "in out[256:512]"
    right = debug(with_a_hole, (4,), (X, X * X, 1000), oracle=lambda: X * X, BLOCK=256)
    assert right, "a program that overwrites its own values is no news"


def test_grid_one_block_short() -> None:
    found = flat(square, grid=3)
    (wrong,) = found.wrong
    assert wrong.pattern.text == "the tail out_ptr[768:1000]"
    assert (wrong.unwritten, wrong.programs) == (232, [])
    assert wrong.history.last is wrong.history.masked is None
    assert "never stored by any of 3 programs: 232 of them" in str(found)
    assert found.trace.program == (2, 0, 0)


def test_undefined_lanes_that_are_summed() -> None:
    x, out = torch.randn(5, 24), torch.zeros(5)
    found = debug(unmasked_load, (5,), (x, out, 24), oracle=lambda: x.sum(1), BLOCK=32)
    (wrong,) = found.wrong
    assert wrong.pattern.kind == "all"
    assert wrong.all_nan
    assert wrong.history.last.place.line == line_of("undefined lanes summed")
    assert wrong.history.last.lanes == 1


def test_swapped_strides() -> None:
    x, out = torch.randn(64, 64), torch.zeros(64, 64)
    args = (x, out, 64, 64, *x.stride(), *out.stride())
    found = debug(swapped_strides, (2, 2), args, oracle=lambda: x, BLOCK=32, program=(0, 1))
    (wrong,) = found.wrong
    assert wrong.pattern.kind == "most"  # the diagonal is right
    assert wrong.deviation.wrong == 64 * 63
    assert len(wrong.programs) == 4
    load, store = found.trace.events
    assert load.region.of("x_ptr") == "x_ptr[32:64, 0:32].T"
    assert load.place.line == line_of("strides")
    assert store.region.of("out_ptr") == "out_ptr[0:32, 32:64]"


def test_wrong_program_axis() -> None:
    x, out = torch.randn(64, 96), torch.zeros(64, 96)
    found = debug(wrong_axis, (2, 3), (x, out, 64, 96), oracle=lambda: 2 * x, BLOCK=32)
    (wrong,) = found.wrong
    assert wrong.unwritten == wrong.deviation.wrong == 4 * 32 * 32
    assert wrong.programs == []


def test_bias_by_row() -> None:
    found = linear_with("bias")
    (wrong,) = found.wrong
    assert wrong.pattern.kind in ("all", "most")
    x, y, _ = wrong.history.last.program
    row, column = wrong.deviation.index
    assert (x, y) == (row // 32, column // 32)
    assert wrong.history.lane == (row % 32, column % 32)
    assert wrong.history.last.place.line == line_of("linear")
    loads = [e for e in found.trace.events if e.tensor == "bias_ptr"]
    assert loads[0].region.ranges == ((32 * x, min(40, 32 * x + 32), 1),)


def test_k_tail_unmasked() -> None:
    """The lanes past K read the next row, and in the last row what lies behind the tensor."""
    found = linear_with("K tail", A[:, :20], B[:20])
    assert found.failure.program == (1, 0, 0)
    assert "load through a_ptr" in found.failure.error
    assert "element offset 800 of a_ptr, which would be [40, 0]" in found.failure.error
    # Where memory goes on, b's masked zeros hide the fault, until it meets a NaN.
    a, b = A.clone(), B.clone()
    a[1:, 0] = torch.nan
    longer = torch.cat([a.flatten(), a[0, :8]])
    out, want = torch.zeros(40, 50), a.double() @ b.double() + BIAS.double()
    found = debug(
        linear,
        (2, 2),
        (longer, b, BIAS, out, 40, 50, 24),
        oracle=lambda: want,
        max_ulps=1e6,
        FAULT="K tail",
        BLOCK=32,
    )
    (wrong,) = found.wrong
    assert wrong.all_nan
    assert wrong.pattern.text == "one row, out_ptr[0, 0:50]"
    assert [e.region.of("a") for e in found.trace.events if e.tensor == "a_ptr"] == ["a[0:776]"]


def test_float16_accumulator() -> None:
    g = torch.Generator().manual_seed(1)
    a, b = (4 * torch.randn(n, m, generator=g).half() for n, m in ((40, 96), (96, 50)))
    assert linear_with("none", a, b)
    found = linear_with("accumulator", a, b)
    (wrong,) = found.wrong
    assert wrong.history.last.place.line == line_of("linear")
    assert wrong.deviation.error < 1  # rounding, nothing worse
    assert wrong.deviation.wrong > 1500
    dots = [e for e in found.trace.events if e.what == "dot"]
    assert [e.shape for e in dots] == [(32, 32, 32)] * 3


def test_assertion_and_python_error() -> None:
    x, out = torch.arange(32.0), torch.zeros(32)
    found = debug(asserts, (4,), (x, out), oracle=lambda: x, BLOCK=8)
    assert not found
    assert found.failure.program == (1, 0, 0)
    assert found.failure.place.line == line_of("assertion")
    assert "x too large (device_assert, 4 of 8 lanes, the first is lane [4])" in found.failure.error
    assert [e.region.of("x") for e in found.trace.events] == ["x[8:16]"]
    found = debug(raises, (4,), (x, out), BLOCK=8)
    assert (found.failure.program, found.failure.place.line) == (
        (0, 0, 0),
        line_of("Python error"),
    )
    assert "nonsense" in found.failure.error


def test_two_writers_are_named() -> None:
    out = torch.zeros(3)
    found = debug(all_write_the_first, (4,), (out,), oracle=lambda: torch.ones(3))
    (wrong,) = found.wrong
    assert wrong.unwritten == 2
    found = debug(all_write_the_first, (4,), (out,), oracle=lambda: torch.tensor([9.0, 0, 0]))
    history = found.wrong[0].history
    assert (history.last.program, history.other.program) == ((3, 0, 0), (2, 0, 0))
    assert history.clash
    assert history.other.place.line == line_of("two writers")
    assert "before that by program (2, 0, 0), which had stored another value" in str(found)
    lucky = debug(all_write_the_first, (4,), (out,), oracle=lambda: torch.tensor([4.0, 0, 0]))
    assert not lucky.wrong
    assert lucky.verdict == "RIGHT BY LUCK" or lucky.compiled_right is False  # luck, on a GPU
    assert "out_ptr[0] set to 1.0 by program (0, 0, 0)" in str(lucky)


def test_atomics_are_no_clash() -> None:
    found = debug(
        add_up, (4,), (torch.ones(32), torch.zeros(1)), oracle=lambda: torch.ones(1) * 32, BLOCK=8
    )
    assert found


def command(*words: str) -> Result:
    return CliRunner().invoke(app, ["debug", *words])


# ---- the compiled kernel ----


def test_the_compiled_result_in_words() -> None:
    yes, no = torch.tensor([True, True, False]), torch.tensor([False, False, False])
    assert comparison._against(yes, yes) == "the same 2 elements wrong"
    assert comparison._against(yes, no) == "right: suspect the interpreter's emulation"
    assert comparison._against(no, no) == "right"
    assert comparison._against(no, yes) == "2 of 3 elements wrong: suspect compiler or precision"
    third = torch.tensor([False, True, True])
    assert comparison._against(yes, third) == "2 of 3 elements wrong, 1 of them the same"
    only = torch.tensor([False, False, True])
    assert comparison._against(yes, only) == "1 of 3 elements wrong, none of them the same"


class Twofold:
    """A subject that computes other things interpreted and compiled; the latter in torch."""

    title, outside_is_usage = "twofold", False

    def __init__(self, interpreted: float, compiled: float | Exception) -> None:
        self.interpreted, self.compiled = interpreted, compiled

    def compilable(self) -> bool:
        return True

    def prepare(self, device: torch.device) -> Any:
        return {"device": device.type, "out": torch.zeros(5)}

    def launch(self, state: Any, shadows: Any = None) -> None:
        value = self.interpreted if state["device"] == "cpu" else self.compiled
        if isinstance(value, Exception):
            raise value
        state["out"][:] = value

    def judge(self, state: Any, stores: Any) -> list[subjects.Result]:
        out, want = state["out"], torch.ones(5)
        error = (out - want).abs()
        found = judging.Comparison(error == 0, error, torch.zeros(5), error)
        return [subjects.Result("out", out, want, found)]


def test_a_compiled_result_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    found = investigation.investigate(Twofold(1, 2))
    assert not found
    assert found.verdict == "WRONG"
    assert found.compiled == (
        "5 of 5 elements wrong: suspect compiler or precision; worst out[0]: got 2.0 (0x40000000), "
        "expected 1.0 (0x3f800000)"
    )
    assert f"compiled: {found.compiled[:60]}" in str(found)
    assert investigation.investigate(Twofold(1, 1))
    assert "compiled: the same 5 elements wrong" in str(investigation.investigate(Twofold(2, 2)))
    found = investigation.investigate(Twofold(1, RuntimeError("no such instruction")))
    assert not found
    assert "compiled: RuntimeError: no such instruction" in str(found)
    found = investigation.investigate(Twofold(RuntimeError("early"), 1))
    assert "stopped outside a kernel: RuntimeError: early" in str(found)
    assert "compiled: not run" in str(found)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_compiled_kernel_takes_part() -> None:
    found = flat(off_by_one)
    assert (found.compiled, found.compiled_right) == ("the same element wrong", False)
    found = flat(square)
    assert found, found
    assert (found.compiled, found.compiled_right) == ("right", True)
    assert "could break" in flat(dropped_mask).compiled
    x, out = X.cuda(), torch.zeros(1000, device="cuda")
    assert debug(square, (4,), (x, out, 1000), oracle=lambda: x * x, BLOCK=256)
    assert not out.any()
    assert "compiled: right" in command("gemm_bias_act", "--dtype", "float16").output
