"""compare.debug and `python -m compare debug`: planted faults are found where they are."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from typer.testing import CliRunner, Result

import triton_kernels
from compare import debug, numerics, ops
from compare.cases import CPU
from compare.checking import judging, progress, running
from compare.checking.stores import Stores
from compare.cli import app
from compare.commands import debug_choice
from compare.debugging import investigation, subjects
from compare.debugging.compiled import comparison
from compare.debugging.findings import regions, traces
from compare.debugging.findings.findings import LINES, Findings
from compare.debugging.findings.traces import WIDTH
from compare.debugging.observers.tracing import Tracer
from compare.ops import SPECS
from triton_kernels import interpreter

SOURCE = Path(__file__).read_text().splitlines()


def line_of(fault: str) -> int:
    """The number of the line that ends in the comment ``# fault: …``."""
    (found,) = [n for n, line in enumerate(SOURCE, 1) if line.endswith(f"# fault: {fault}")]
    return found


# ---- broken kernels ----


@triton.jit
def dropped_mask(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr + i, x * x)  # fault: dropped mask


@triton.jit
def off_by_one(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr + i, x * x, mask=i < n - 1)  # fault: mask off by one


@triton.jit
def square(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr + i, x * x, mask=i < n)


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
def linear(a_ptr, b_ptr, bias_ptr, out_ptr, M, N, K, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k0 in range(0, K, BLOCK):
        a_mask = m[:, None] < M
        if FAULT != "K tail":
            a_mask &= k[None, :] < K - k0
        a = tl.load(a_ptr + m[:, None] * K + k0 + k[None, :], mask=a_mask, other=0.0)
        b_mask = (k[:, None] < K - k0) & (n[None, :] < N)
        b = tl.load(b_ptr + (k0 + k[:, None]) * N + n[None, :], mask=b_mask, other=0.0)
        if FAULT == "accumulator":
            acc = tl.dot(a, b, acc.to(tl.float16), out_dtype=tl.float16).to(tl.float32)
        else:
            acc = tl.dot(a, b, acc, input_precision="ieee")
    if FAULT == "bias":
        acc += tl.load(bias_ptr + m, mask=m < M, other=0.0)[:, None]
    else:
        acc += tl.load(bias_ptr + n, mask=n < N, other=0.0)[None, :]
    mask = (m[:, None] < M) & (n[None, :] < N)
    tl.store(out_ptr + m[:, None] * N + n[None, :], acc, mask=mask)  # fault: linear


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


X = torch.linspace(-3, 3, 1000)
A, B = torch.randn(40, 24, generator=torch.Generator().manual_seed(0)), torch.randn(24, 50)
BIAS = torch.randn(50)


def flat(kernel: Any, n: int = 1000, grid: int = 4, size: int = 1000) -> Findings:
    out = torch.full((size,), torch.nan)
    want = torch.full((size,), torch.nan)
    want[:n] = X[:n] ** 2
    return debug(kernel, (grid,), (X, out, n), oracle=lambda: want, BLOCK=256)


def linear_with(fault: str, a: torch.Tensor = A, b: torch.Tensor = B) -> Findings:
    a, b, bias = a.contiguous(), b.contiguous(), BIAS.to(a.dtype)
    (M, K), N = a.shape, b.shape[1]
    out = torch.full((M, N), torch.nan, dtype=torch.float32)
    want = a.double() @ b.double() + bias.double()
    return debug(
        linear,
        (triton.cdiv(M, 32), triton.cdiv(N, 32)),
        (a, b, bias, out, M, N, K),
        oracle=lambda: want,
        bound=lambda reference, *_: 1e-4 * (1 + reference.abs()),
        FAULT=fault,
        BLOCK=32,
    )


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


@triton.jit
def add_up(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out_ptr, tl.sum(tl.load(x_ptr + i)))


def test_atomics_are_no_clash() -> None:
    found = debug(
        add_up, (4,), (torch.ones(32), torch.zeros(1)), oracle=lambda: torch.ones(1) * 32, BLOCK=8
    )
    assert found


# ---- the arguments ----


@triton.jit
def in_place(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(y_ptr + i, mask=i < n) + 1, mask=i < n)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)


def test_arguments_are_untouched_and_overlap_stays() -> None:
    memory = torch.arange(20.0)
    x, y = memory[:10], memory[5:15]
    before = memory.clone()
    twin = memory.clone()
    twin[:10] = twin[5:15] + 1
    first = twin[:10].clone()
    twin[5:15] = twin[:10] * 2
    assert not torch.equal(first, twin[:10])  # the second store changed the first's result
    want = twin[:10].clone(), twin[5:15].clone()
    found = debug(in_place, (1,), (x, y, 10), oracle=lambda: want, BLOCK=16)
    assert found, found
    assert torch.equal(memory, before)
    assert debug(
        in_place, (1,), (x, y, 10), oracle=lambda: {"y_ptr": want[1], "x_ptr": want[0]}, BLOCK=16
    )


def test_copies_keep_strides_and_alignment_and_copy_no_more_than_needed() -> None:
    storage = torch.arange(100_000, dtype=torch.float16)
    view, other = storage[50_001:50_041].view(4, 10).t(), storage[50_020:50_030:2]
    a, (b, n) = subjects.copies((view, (other, 3)), CPU)
    assert torch.equal(a, view)
    assert torch.equal(b, other)
    assert (a.stride(), b.stride(), n) == (view.stride(), other.stride(), 3)
    assert (a.data_ptr() - view.data_ptr()) % 64 == 0
    assert b.data_ptr() - a.data_ptr() == other.data_ptr() - view.data_ptr()
    assert a.untyped_storage().nbytes() < 300
    a.zero_()
    assert storage[50_001] != 0


def test_tensor_descriptors_are_copied() -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    x, out = torch.randn(16, 16), torch.zeros(16, 16)
    descriptor = TensorDescriptor(out, [16, 16], [16, 1], [16, 16])
    found = debug(through_descriptor, (1,), (x, descriptor), oracle=lambda: 2 * x)
    assert found, found
    assert not out.any()
    assert not debug(through_descriptor, (1,), (x, descriptor), oracle=lambda: x)


@triton.jit
def through_descriptor(x_ptr, out):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    out.store([0, 0], 2 * tl.load(x_ptr + at))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"kernel": len}, TypeError, "'kernel' must be a @triton.jit function"),
        ({"args": X}, TypeError, "'args' must be a tuple"),
        ({"grid": 4}, TypeError, "'grid' must be a tuple or a function"),
        ({"args": (X, X)}, TypeError, "missing a required argument: 'n'"),
        ({"oracle": lambda: None}, TypeError, "must return a tensor"),
        ({"oracle": lambda: (X, X)}, ValueError, "2 tensors, but the kernel stored to out_ptr"),
        ({"oracle": lambda: {"x_ptr": X}}, ValueError, "returned x_ptr, but"),
        ({"oracle": lambda: X[:5]}, ValueError, r"shape \[5\] for out_ptr"),
        ({"oracle": None, "bound": lambda r, *a: r}, ValueError, "needs an oracle"),
        ({"args": (X.to_sparse(), X, 1000)}, TypeError, "must be strided memory"),
        ({"program": (4,)}, ValueError, r"program \(4, 0, 0\) is not in the grid"),
    ],
)  # fmt: skip
def test_bad_arguments(change: dict[str, Any], error: type[Exception], says: str) -> None:
    call = {"kernel": square, "grid": (4,), "args": (X, X.clone(), 1000)} | change
    kernel, grid, args = (call.pop(name) for name in ("kernel", "grid", "args"))
    with pytest.raises(error, match=says):
        debug(kernel, grid, args, BLOCK=256, **call)


@triton.heuristics({"BLOCK": lambda args: 256})
@triton.jit
def heuristic(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n, other=0.0) + 1, mask=i < n)


@triton.autotune([triton.Config({"BLOCK": 512}), triton.Config({"BLOCK": 64})], key=["n"])
@triton.jit
def autotuned(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n, other=0.0) + 1, mask=i < n)


def test_kernels_under_heuristics_and_autotune_and_grid_functions() -> None:
    out = torch.zeros(1000)
    found = debug(heuristic, (4,), (X, out, 1000), oracle=lambda: X)
    assert found.wrong[0].grid == (4, 1, 1)
    assert str(found).startswith("heuristic[4, 1, 1]: WRONG")
    grid = lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)  # noqa: E731
    found = debug(autotuned, grid, (X, out, 1000), oracle=lambda: X + 1)
    assert found
    assert str(found).startswith("autotuned[2, 1, 1]: nothing wrong")
    keyword = debug(square, (4,), (X,), out_ptr=out, n=1000, BLOCK=256, oracle=lambda: X * X)
    assert keyword
    assert not out.any()


def test_an_empty_grid_stores_nothing() -> None:
    with pytest.raises(ValueError, match="kernel stored to nothing"):
        debug(square, (0,), (X, X.clone(), 1000), BLOCK=256, oracle=lambda: X)
    found = debug(square, (0,), (X, X.clone(), 1000), BLOCK=256)
    assert "note: no program stored anything" in str(found)
    assert found.trace is None


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float64])
def test_outputs_of_other_dtypes(dtype: torch.dtype) -> None:
    x = (torch.arange(300) % 2).to(dtype)
    want = x.clone()
    assert debug(plain_copy, (3,), (x, torch.zeros_like(x), 300), oracle=lambda: want, BLOCK=128)
    want[7] = 1 - int(want[7])
    found = debug(plain_copy, (3,), (x, torch.zeros_like(x), 300), oracle=lambda: want, BLOCK=128)
    assert found.wrong[0].deviation.index == (7,)
    assert found.wrong[0].history.last.program == (0, 0, 0)


@triton.jit
def plain_copy(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n, other=0), mask=i < n)


def test_without_an_oracle() -> None:
    out = torch.full((1000,), torch.nan)
    found = debug(square, (3,), (X, out, 1000), BLOCK=256)
    assert found
    assert "note: out_ptr: 232 of 1000 elements never stored" in str(found)
    assert "note: no oracle" in str(found)
    assert str(found).splitlines()[0] == "square[3, 1, 1]: ran to its end"
    assert found.trace.program == (0, 0, 0)


# ---- patterns ----


class Shape(NamedTuple):
    where: Any
    kind: str
    text: str


@pytest.mark.parametrize(
    "shape",
    [
        Shape(np.s_[:], "all", "all of them"),
        Shape(np.s_[5, 7], "element", "this one only"),
        Shape(np.s_[5], "row", "one row, o[5, 0:60]"),
        Shape(np.s_[:, 7], "column", "one column, o[0:40, 7]"),
        Shape(np.s_[38:], "rows", "the last 2 rows, o[38:40, 0:60]"),
        Shape(np.s_[[1, 5, 6]], "rows", "3 rows, o[{1, 5, 6}, 0:60]"),
        Shape(np.s_[:, 3:9], "columns", "6 columns, o[0:40, 3:9]"),
        Shape(np.s_[::4], "every", "every 4th row, o[0:37:4, 0:60]"),
        Shape(np.s_[16:32, 32:48], "tile", "one tile, o[16:32, 32:48]"),
        Shape(np.s_[5, 8:16], "tile", "a part of one row, o[5, 8:16]"),
        Shape(np.s_[1::2, ::3], "every", "evenly spaced, o[1:40:2, 0:58:3]"),
    ],
    ids=lambda shape: shape.kind,
)
def test_patterns(shape: Shape) -> None:
    wrong = np.zeros((40, 60), dtype=bool)
    wrong[shape.where] = True
    assert regions.pattern(wrong, "o") == (shape.kind, shape.text)


def test_patterns_in_flat_order() -> None:
    def of(part: Any, size: tuple[int, ...] = (40, 60)) -> tuple[str, str]:
        wrong = np.zeros(size, dtype=bool)
        wrong.reshape(-1)[part] = True
        return regions.pattern(wrong, "o")

    assert of(np.s_[1000:]) == ("tail", "the tail in flat order, o.flat[1000:2400]")
    assert of(np.s_[:77]) == ("head", "the head in flat order, o.flat[0:77]")
    assert of(np.s_[::7]) == ("every", "every 7th element in flat order, o.flat[0:2395:7]")
    assert of(np.s_[3:], (9,)) == ("tail", "the tail o[3:9]")
    assert of(np.s_[1::2], (9,)) == ("every", "every 2nd element o[1:8:2]")
    # Some are right by luck.
    mostly = np.r_[1000:1400, 1500:1900, 2300:2400]
    assert of(mostly) == (
        "rows",
        "900 of the 1440 in the last 24 rows, o[16:40, 0:60]",
    )
    ragged = np.r_[1027:1090, 1092:1100]
    assert of(ragged) == ("run", "71 of the 73 in a run in flat order, o.flat[1027:1100]")
    assert of([5, 900, 1833, 2001, 2002]) == ("scattered", "scattered over o[0:34, 0:34]")


def test_patterns_with_elements_that_are_right_by_luck() -> None:
    luck = np.random.default_rng(0).random((40, 60)) < 0.8
    tile = np.zeros((40, 60), dtype=bool)
    tile[16:32, 32:48] = True
    kind, text = regions.pattern(tile & luck, "o")
    assert kind == "tile"
    assert text.endswith("of the 256 in one tile, o[16:32, 32:48]")
    assert regions.pattern(luck, "o")[0] == "most"
    assert regions.pattern(luck & (np.arange(60) == 9), "o").kind == "column"
    few = np.random.default_rng(0).random((40, 60)) < 0.01
    assert regions.pattern(few, "o").kind == "scattered"


# ---- the trace ----


@triton.jit
def tile_copy(x_ptr, out_ptr, M, N, stride_xm, stride_xn, BLOCK: tl.constexpr):
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = (m < M) & (n < N)
    x = tl.load(
        x_ptr + m * stride_xm + n * stride_xn,
        mask=mask,
        other=0.0,
    )
    tl.store(out_ptr + m * N + n, x, mask=mask)


def views() -> dict[str, torch.Tensor]:
    base = torch.arange(40.0 * 60).reshape(40, 60)
    return {
        "contiguous": base[:20, :30].contiguous(),
        "transposed": base[:30, :20].contiguous().t(),
        "strided": base[::2, ::2],
        "offset": base[7:27, 11:41],
        "expanded": base[3, :30].expand(20, 30),
    }


@pytest.mark.parametrize("layout", list(views()))
def test_trace_is_exact(layout: str) -> None:
    x = views()[layout]
    assert x.shape == (20, 30)
    out = torch.zeros(20, 30)
    args = (x, out, 20, 30, *x.stride())
    found = debug(tile_copy, (2, 2), args, oracle=lambda: x, BLOCK=16, program=(1, 1))
    assert found, found
    load, store = found.trace.events
    rows = "0:20" if layout == "expanded" else "16:20"
    assert load.region.of("x") == f"x[{rows}, 16:30]"
    assert store.region.of("out") == "out[16:20, 16:30]"
    for event in (load, store):
        assert (event.shape, event.lanes, event.on, event.nans) == ((16, 16), 256, 4 * 14, 0)
        tile = x[16:20, 16:30]
        assert (event.low, event.high) == (tile.min(), tile.max())
        assert np.array_equal(event.values[event.mask].reshape(4, 14), tile.numpy())
    assert (load.what, load.tensor, store.what, store.tensor) == (
        *("load", "x_ptr"),
        *("store", "out_ptr"),
    )
    assert "x = tl.load(x_ptr + m * stride_xm + n * stride_xn, mask=mask, other=0.0)" == (
        traces.source_line(load.place)
    )


def test_a_dimension_of_size_one_counts_for_nothing() -> None:
    x = torch.arange(30.0).as_strided((1, 30), (1, 1))
    found = debug(square, (2,), (x, torch.zeros(30), 30), BLOCK=16, program=(1,))
    assert found.trace.events[0].region.of("x") == "x[0, 16:30]"


def test_regions_that_are_no_boxes() -> None:
    x = torch.arange(4.0 * 9).reshape(4, 9)
    found = debug(square, (4,), (x, torch.zeros(36), 36), BLOCK=16, program=(1,))
    load, store = found.trace.events
    assert load.region.of("x") == "x.flat[16:32]"
    assert store.region.of("out") == "out[16:32]"
    found = debug(square, (4,), (x.t(), torch.zeros(36), 36), BLOCK=16, program=(1,))
    assert found.trace.events[0].region.of("x") == "x + 16:32"
    found = debug(square, (1,), (x, torch.zeros(36), 0), BLOCK=16, program=(0,))
    assert found.trace.events[0].region.of("x") == "x: nothing"
    assert found.trace.events[0].low is None


def test_a_transposed_tile_says_so() -> None:
    def region(x: torch.Tensor, *strides: int) -> str:
        out = torch.zeros(20, 30)
        found = debug(tile_copy, (2, 2), (x, out, 20, 30, *strides), BLOCK=16, program=(0, 0))
        return found.trace.events[0].region.of("x")

    x = torch.randn(30, 20)
    assert region(x, 1, 20) == "x[0:16, 0:16].T"
    assert region(x.t(), 1, 20) == "x[0:16, 0:16]"
    assert region(x.t().contiguous(), 30, 1) == "x[0:16, 0:16]"
    assert region(torch.randn(20, 1), 1, 0) == "x[0:16, 0]"


@triton.jit
def nested(x_ptr, out_ptr, n, m):
    total = 0.0
    for i in range(n):
        for j in range(m):
            total += tl.load(x_ptr + j)
        tl.store(out_ptr + i, total)


def test_loops_are_condensed() -> None:
    found = debug(nested, (1,), (torch.ones(20), torch.zeros(30), 30, 20), program=(0,))
    assert len(found.trace.events) == 30 * 21
    text = found.trace.show(most=20)
    assert len(text.splitlines()) <= 20
    assert "… 28 more iterations of this loop" in text
    full = str(found.trace)
    assert full.count("… 16 more iterations of this loop") == 4  # in the outer iterations shown
    assert full.count("… 26 more iterations of this loop") == 1
    assert "out_ptr[0]" in full
    assert "out_ptr[2]" in full
    assert "out_ptr[3]" not in full
    assert "out_ptr[29]" in full


def test_replay_has_the_memory_of_the_start() -> None:
    """Program 1 adds to what program 0 would have stored, were it not alone."""
    out = torch.tensor([5.0])
    found = debug(add_up, (2,), (torch.ones(16), out), oracle=lambda: out, BLOCK=8, program=(1,))
    _, atomic = found.trace.events
    assert atomic.what == "atomic fadd"
    assert (found.wrong[0].value, found.wrong[0].alone) == (21.0, None)
    assert "last changed (atomic fadd) by program (1, 0, 0)" in str(found)

    x = torch.tensor([1.0, 0, 0, 0])
    want = torch.tensor([1.0, 2, 3, 9])
    found = debug(chain, (3,), (x,), oracle=lambda: want, program=(2,))
    assert found.trace.events[0].low == 0.0
    assert (found.wrong[0].value, found.wrong[0].alone) == (4.0, 1.0)
    assert "alone it gives 1.0: it needs what others write" in str(found)


@triton.jit
def chain(x_ptr):
    i = tl.program_id(0)
    tl.store(x_ptr + i + 1, tl.load(x_ptr + i) + 1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_tracing_changes_nothing(dtype: str) -> None:
    for spec in (SPECS["gemm_bias_act"], SPECS["relu_scale_add"]):
        case = next(iter(spec.cases(dtype, "quick")))
        case = type(case)(case.op, dtype, spec.default_shape, options=case.options)
        args, kwargs = spec.inputs(case)
        results = []
        for observer in (None, Stores(), Tracer(1, (0, 0, 0))):  # after the only launch: all run
            with interpreter.interpreting(observer):
                results.append(spec.triton(*args, **kwargs))
        with interpreter.interpreting():
            whole = spec.triton(*args, **kwargs)
        for result in results:
            assert bool(numerics.same_bits(result, whole).all())
    tracer = Tracer(0, (0, 0, 0))
    x, out = torch.randn(256, dtype=getattr(torch, dtype)), torch.zeros(256)
    with interpreter.interpreting(tracer):
        square[(1,)](x, out, 256, BLOCK=256)
    plain = torch.zeros(256)
    with triton_kernels.interpret():
        square[(1,)](x, plain, 256, BLOCK=256)
    assert torch.equal(out, plain)
    assert [e.what for e in tracer.trace.events] == ["load", "store"]


# ---- interruption ----


def test_ctrl_c_keeps_the_trace_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = Tracer.access

    def access(self: Tracer, access: Any) -> None:
        inner(self, access)
        if len(self.trace.events) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(Tracer, "access", access)
    args = (torch.ones(20), torch.zeros(30), 30, 20)
    found = debug(nested, (1,), args, program=(0,))
    assert found.partial
    assert not found
    assert len(found.trace.events) == 5
    assert "stopped: by Ctrl-C, this is the trace so far" in str(found)
    assert "interrupted" in str(found).splitlines()[0]
    assert json.loads(found.to_json())["partial"] is True
    assert not interpreter.active()


def test_ctrl_c_in_the_run_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = investigation._Watch.access

    def access(self: Any, access: Any) -> None:
        inner(self, access)
        if access.program == (2, 0, 0):
            raise KeyboardInterrupt

    monkeypatch.setattr(investigation._Watch, "access", access)
    found = flat(square)
    assert found.partial
    assert found.trace is None
    assert "interrupted in program (2, 0, 0) at " in found.notes[0]
    assert "in square" in found.notes[0]


def test_progress_shows_on_stderr_and_goes_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress.Bar("interpreting square") as bar:
        bar.timer.join()
        with interpreter.interpreting(investigation._Watch(bar)):
            square[(4,)](X, torch.zeros(1000), 1000, BLOCK=256)
        assert bar.progress.tasks[0].fields["done"] == "3 of 4 programs"
        assert bar.progress.live.is_started
    assert not bar.progress.live.is_started
    captured = capsys.readouterr()
    assert "interpreting square" in captured.err
    assert not captured.out


def test_a_quick_run_shows_no_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for patience, terminal in ((600.0, "1"), (600.0, ""), (0.0, "")):  # never into a file
        monkeypatch.setattr(progress, "PATIENCE", patience)
        monkeypatch.setenv("FORCE_COLOR", terminal)
        assert flat(square)
    captured = capsys.readouterr()
    assert captured.err == captured.out == ""


# ---- the findings ----


def test_findings_fit_a_screen_and_json_holds_everything() -> None:
    for fault in ("bias", "K tail", "none"):
        found = linear_with(fault, torch.randn(40, 500), torch.randn(500, 50))
        lines = str(found).splitlines()
        assert len(lines) <= LINES
        assert max(map(len, lines)) <= WIDTH
        text = found.to_json()
        assert json.loads(text) == json.loads(json.dumps(numerics.json_safe(found.to_dict())))
    found = linear_with("bias", torch.randn(40, 500), torch.randn(500, 50))
    data = json.loads(found.to_json(tiles=True), parse_constant=pytest.fail)
    events = data["trace"]["events"]
    assert len(events) == len(found.trace.events) == 3 * 16 + 2
    assert [e["what"] for e in events[:3]] == ["load", "load", "dot"]
    assert np.array_equal(events[0]["values"], found.trace.events[0].values)
    assert events[-1]["line"] == line_of("linear")
    assert data["wrong"][0]["worst"]["stored_by"]["line"] == line_of("linear")
    assert data["passed"] is False
    assert "values" not in json.loads(found.to_json())["trace"]["events"][0]


def test_tiles_are_printed() -> None:
    found = debug(square, (1,), (X, torch.zeros(8), 5), BLOCK=8, program=(0,))
    text = found.trace.tiles()
    assert "1 load  x_ptr[0:5]  8  5/8 on" in text
    assert "[-3.0 -2.99" in text
    assert "-- -- --]" in text


# ---- the command ----


def command(*words: str) -> Result:
    return CliRunner().invoke(app, ["debug", *words])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("op", list(SPECS))
def test_healthy_catalogue(op: str, dtype: str) -> None:
    done = command(op, "--dtype", dtype)
    assert done.exit_code == 0, done.output
    assert "nothing wrong found" in " ".join(done.output.split())


def broken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The op stores one element wrongly, by a kernel of its own."""
    right = SPECS[name].triton

    def wrong(*args: Any, **kwargs: Any) -> torch.Tensor:
        out = right(*args, **kwargs)
        spoil[(2,)](out)
        return out

    monkeypatch.setitem(ops.SPECS, name, SPECS[name].changed(triton=wrong))


@triton.jit
def spoil(out_ptr):
    i = tl.program_id(0)
    if i == 1:
        tl.store(out_ptr + 7, 99)  # fault: second launch


def test_findings_exit_1_and_a_checks_debug_line_works(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken("square", monkeypatch)
    words = ["check", "square", "--dtype", "int32", "--shape", "10", "--impl", "triton"]
    checked = CliRunner().invoke(app, [*words, "--jobs", "1"]).output
    assert "on the Triton side program (1, 0, 0) writes it" in checked
    line = next(x for x in checked.splitlines() if x.strip().startswith("debug: "))
    replay = next(x for x in checked.splitlines() if x.strip().startswith("replay: "))
    assert line.split("compare debug ")[1] == replay.split("compare check ")[1]
    report = tmp_path / "findings.json"
    done = command(*line.split("compare debug ")[1].split(), "--tiles", "--json", str(report))
    assert done.exit_code == 1, done.output
    assert f"test_debug.py:{line_of('second launch')} in spoil" in done.output
    assert "worst out[7]: got 99 (0x00000063)" in done.output
    found = json.loads(report.read_text())
    assert found["trace"]["program"] == [1, 0, 0]
    (event,) = found["trace"]["events"]  # of the second launch only
    assert (event["region"]["text"], event["values"]) == ("out_ptr[7]", [99])


def test_a_cuda_mismatch_has_a_debug_line() -> None:
    case = next(SPECS["add"].cases("float16", "quick"))
    said = str(running.Mismatch(case, "cuda-host", "wrong values"))
    assert f"debug: {case.command('cuda-host', 'debug')}" in said
    mismatch = running.Mismatch(case, "triton-compiled/f16", "wrong values")
    assert "--impl triton-compiled/f16" in str(mismatch).splitlines()[-1]
    assert " compare debug add " in str(mismatch).splitlines()[-1]


def test_variant_and_program() -> None:
    done = command("add", "--impl", "triton-interpreted/f16x2", "--program", "1")
    assert done.exit_code == 0, done.output
    assert "add float16 33x129 contiguous normal seed=0, variant f16x2" in done.output
    assert "x_ptr.flat[256:512]" in done.output
    assert command("add", "--variant", "f16x2").exit_code == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "Missing argument"),
        (["cube"], "no op 'cube'"),
        (["add", "--dtype", "float8"], "one of float16"),
        (["relu_scale", "--dtype", "int32"], "has no dtype int32"),
        (["add", "--shape", "7,a"], "sizes with commas"),
        (["add", "--layout", "odd"], "one of contiguous"),
        (["add", "--arg", "gamma=1"], "one of x, y, y_dtype, alpha"),
        (["add", "--impl", "opencl"], "use triton, cuda"),
        (["add", "--variant", "f99"], "add has f32"),
        (["square", "--variant", "f32"], "square has no variants"),
        (["add", "--variant", "f16", "--impl", "triton/f32"], "exclude each other"),
        (["add", "--variant", "f16", "--dtype", "float32"], "not made for this case"),
        (["add", "--program", "a"], "up to three numbers"),
        (["add", "--program", "1,2,3,4"], "up to three numbers"),
        (["add", "--program", "99"], "program (99, 0, 0) is not in the grid, which is (9, 1, 1)"),
        (["add", "--json", "no/such/folder/x.json"], "cannot write there"),
    ],
)
def test_usage_errors_exit_2(words: list[str], says: str) -> None:
    done = command(*words)
    assert done.exit_code == 2, done.output
    assert says in " ".join(done.output.replace("│", " ").split()), done.output


# Every option of the table of contradictions, as it is written.
WRITTEN = {
    **{
        f"--{name} {side}": [f"--{name}", side]
        for name in ("side", "impl")
        for side in ("triton", "cuda")
    },
    debug_choice.OTHER_VARIANT: ["--impl", "triton/f32"],
    "--variant": ["--variant", "f16"],
    "--tool": ["--tool", "values"],
    "--program": ["--program", "0"],
    "--break": ["--break", "add.py:1"],
    "--output": ["--output", "x.py"],
    **{name: [name] for name in ("--tiles", "--pdb", "--bisect", "--shrink")},
}


@pytest.mark.parametrize(
    ("one", "other"), [(row.one, row.other) for row in debug_choice.CONTRADICTIONS]
)
def test_options_that_contradict_each_other_cannot_meet(
    one: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One error that names both, before a case is made, let alone run."""

    def never(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("got so far")

    monkeypatch.setattr(debug_choice, "one_case", never)
    for pair in ((one, other), (other, one)):
        done = command("add", *WRITTEN[pair[0]], *WRITTEN[pair[1]])
        assert done.exit_code == 2, done.output
        said = " ".join(done.output.replace("│", " ").split())
        valued = ("--side", "--impl", "--variant")
        named = [" ".join(WRITTEN[x]) if x.startswith(valued) else x for x in (one, other)]
        assert f"{named[0]} and {named[1]} exclude each other" in said


def test_options_that_agree_may_meet() -> None:
    case = ["add", "--shape", "7"]
    same = ["--side", "triton", "--impl", "triton/f16", "--variant", "f16", "--no-bisect"]
    assert command(*case, *same, "--program", "0", "--tiles").exit_code == 0
    spec, nothing = SPECS["add"], dict.fromkeys(("--tool", *debug_choice.TRITON_ONLY))

    def side(side: str | None, impl: str | None, tool: Any = None) -> str:
        return debug_choice.side_to_debug(spec, side, impl, None, {**nothing, "--tool": tool})

    assert side(None, None) == side("triton", "triton-compiled/f16") == "triton"
    assert side(None, "cuda-host/f16") == side("cuda", "cuda", ["values"]) == "cuda"
    assert side(None, None, ["values"]) == side("cuda", None) == "cuda"


@pytest.mark.parametrize(("side", "variant"), [("triton", "f16x2"), ("cuda", "f16x8")])
def test_the_case_that_is_debugged_is_one_the_variant_is_made_for(side: str, variant: str) -> None:
    """float32 where that will do, on both sides."""
    spec, one = SPECS["add"], dict.fromkeys(("shape", "layout", "values", "arg"))

    def chosen(impl: str | None, dtype: str | None = None) -> tuple[str | None, str]:
        named, case = debug_choice.case_to_debug(spec, side, impl, None, dtype, 3, one)
        assert case.seed == 3
        return named, case.dtype

    assert chosen(None) == chosen(side) == (None, "float32")
    assert chosen(f"{side}/{variant}") == (variant, "float16")
    assert chosen(None, "bfloat16") == (None, "bfloat16")


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


# ---- the way of the worst element ----


@triton.jit
def cube_half(v):
    cubed = v * v * v
    return cubed * 0.5


@triton.jit
def way_kernel(x_ptr, w_ptr, out_ptr, M, N, BLOCK: tl.constexpr):
    m, n = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    x = tl.load(x_ptr + m * N + n)
    w = tl.load(w_ptr + m * N + n)
    acc = tl.dot(x, w, input_precision="ieee")
    row = tl.sum(x, axis=1)
    for i in range(3):
        acc = acc + i
    out = cube_half(acc) + row[:, None]
    tl.store(out_ptr + m * N + n, out)


def test_the_way_of_the_worst_element() -> None:
    """Every variable that goes with the element's lane, with its value there; loops condensed."""
    x = torch.zeros(16, 16)
    x[3, 5], w, out = 2.0, torch.eye(16), torch.empty(16, 16)
    expected = torch.full((16, 16), 13.5).double() + x.sum(1, keepdim=True)  # (0 + 0 + 1 + 2)³ / 2
    found = debug(way_kernel, (1,), (x, w, out, 16, 16), oracle=lambda: expected, BLOCK=16)
    assert found.wrong[0].deviation.index == (3, 5)
    way = {(step.place.function, step.name): step for step in found.wrong[0].lane_history}
    assert set(way) == {
        *(("way_kernel", name) for name in ("acc", "i", "out", "m", "n")),
        *(("cube_half", name) for name in ("cubed", "return")),
    }
    assert str(way["cube_half", "cubed"]) == "cubed = 125"
    assert str(way["cube_half", "return"]) == "returns 62.5"
    assert str(way["way_kernel", "i"]) == "i = 0, …, 2 (3 times)"
    accumulated = [str(s) for s in found.wrong[0].lane_history if s.name == "acc"]
    assert accumulated == ["acc = 2", "acc = 2, …, 5 (3 times)"]
    text = str(found)
    assert "on the way to out_ptr[3, 5], lane [3, 5]" in text
    line = way_kernel.fn.__code__.co_firstlineno
    assert re.search(rf"out = 64\.5 +:{line + 9} out = cube_half\(acc\) \+ row", text)
    assert found.to_dict()["wrong"][0]["lane_history"][-1]["name"] == "out"
    assert sys.gettrace() is None


def test_a_tracer_from_elsewhere_is_put_back() -> None:
    """A debugger's, or a coverage tool's."""
    x, out = torch.ones(4), torch.empty(4)
    ours = sys.gettrace()
    events = []
    sys.settrace(lambda *event: events.append(event))
    tracer = sys.gettrace()
    try:
        debug(nothing_right, (1,), (x, out), oracle=lambda: x, BLOCK=4)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(ours)


@triton.jit
def nothing_right(x_ptr, out_ptr, BLOCK: tl.constexpr):
    n = tl.arange(0, BLOCK)
    tl.store(out_ptr + n, tl.load(x_ptr + n) + 1.0)


def test_the_variables_in_the_lane_of_an_error() -> None:
    """Out of bounds and device_assert know the lane that they happened in."""
    x, out = torch.zeros(20), torch.empty(20)
    found = debug(doubled, (1,), (x, out, 19), BLOCK=32)
    assert found.failure is not None
    assert (found.failure.lane, found.failure.shape) == ((20,), (32,))
    assert "the variables in lane [20]\n" in str(found)
    assert [str(step) for step in found.failure.lane_history] == ["offsets = 20", "inside = False"]
    x[3] = -1.0
    found = debug(doubled, (1,), (x[:16], out, 19), BLOCK=16)
    assert found.failure is not None
    assert found.failure.lane == (3,)
    assert [step.last for step in found.failure.lane_history if step.name == "x"] == ["-1"]
    assert found.to_dict()["failure"]["lane_history"][-1]["last"] == "-1"


@triton.jit
def doubled(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    inside = offsets < N
    x = tl.load(x_ptr + offsets)
    tl.device_assert(x >= 0)
    tl.store(out_ptr + offsets, 2 * x, mask=inside)
