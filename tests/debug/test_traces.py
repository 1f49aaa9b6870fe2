"""The trace of a program and the pattern of wrong elements, exact and in few words."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from broken_kernels import add_up, nested, square

import triton_kernels
from compare import debug, numerics
from compare.checking.stores import Stores
from compare.debugging.findings import regions, traces
from compare.debugging.observers.tracing import Tracer
from compare.ops import SPECS
from triton_kernels import interpreter

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


def test_a_program_that_stores_only_after_others_runs_after_them() -> None:
    """Alone it is not the last one, and its trace would end before the store."""
    out, counter = torch.zeros(1), torch.zeros(1, dtype=torch.int32)
    found = debug(last_stores, (3,), (out, counter), oracle=lambda: (torch.ones(1), counter))
    wrong = found.wrong[0]
    assert (wrong.value, wrong.alone, wrong.idle_alone) == (7.0, None, True)
    assert "alone it stores nothing there: it needs what others write" in str(found)
    assert [event.what for event in found.trace.events] == ["atomic add", "store"]
    assert not found.trace.alone


@triton.jit
def last_stores(out_ptr, counter_ptr):
    if tl.atomic_add(counter_ptr, 1) == tl.num_programs(0) - 1:
        tl.store(out_ptr, 7.0)


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
        for observer in (None, Stores(), Tracer(9, (0, 0, 0))):  # after the last launch: all run
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
