"""debug's orders of programs: results that depend on them, and what is left out."""

from __future__ import annotations

from typing import Any

import marked_lines
import pytest
import racing
import torch
import triton
import triton.language as tl
from racing import column_sums, counts, lines, orders, races

from compare import debug, numerics
from compare.checking import progress
from compare.debugging import investigation
from compare.debugging.observers import deadlock
from compare.debugging.observers.races import Races
from compare.ops import SPECS
from triton_kernels import interpreter

pytestmark = pytest.mark.usefixtures("impatient")
line_of = marked_lines.finder("  # ", __file__, racing.__file__)


def test_an_order_that_is_right_by_luck() -> None:
    """What the oracle wants is what the last program stores: in reverse order it is another."""
    x, out = torch.arange(1.0, 81).view(8, 10), torch.zeros(10)
    want = x[4:].sum(0)
    found = debug(column_sums, (1, 2), (x, out, 8, 10), oracle=lambda: want, ROWS=4, BLOCK=16)
    assert not found.wrong
    assert found.verdict == "RIGHT BY LUCK" or found.compiled_right is False  # luck, on a GPU
    assert len(races(found)) == 1
    (order,) = orders(found)
    assert order.text == "right in forward order, wrong in reverse order: 10 elements of out_ptr"
    wrong, right = order.witnesses
    assert (wrong.program, right.program) == ((0, 0, 0), (0, 1, 0))
    assert lines(order) == [line_of("column store")] * 2
    index = int(wrong.element[len("out_ptr[") : -1])
    assert f"set to {x[:4].sum(0)[index]} (" in wrong.what
    assert f"not {want[index]} (" in wrong.what
    assert wrong.lane == (index,)
    # The other way about.
    want = x[:4].sum(0)
    found = debug(column_sums, (1, 2), (x, out, 8, 10), oracle=lambda: want, ROWS=4, BLOCK=16)
    assert found.verdict == "WRONG"
    (order,) = orders(found)
    assert order.text == "right in reverse order, wrong in forward order: 10 elements of out_ptr"
    # Without an oracle.
    found = debug(column_sums, (1, 2), (x, out, 8, 10), ROWS=4, BLOCK=16)
    (order,) = orders(found)
    assert order.text == ("forward and reverse order give different values: 10 elements of out_ptr")
    assert found.verdict == "HAZARDS"


@triton.jit
def split_k(a_ptr, b_ptr, out_ptr, K, BLOCK: tl.constexpr):
    i, k = tl.arange(0, BLOCK), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + i[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * BLOCK + i[None, :])
    out = tl.dot(a, b, input_precision="ieee")
    tl.atomic_add(out_ptr + i[:, None] * BLOCK + i[None, :], out)


def test_float_atomics_round_differently_and_that_is_no_hazard() -> None:
    g = torch.Generator().manual_seed(0)
    a, b, out = torch.randn(16, 256, generator=g), torch.randn(256, 16, generator=g), [None] * 3
    results = []
    for _, order in zip(out, (lambda p: p, lambda p: p[::-1])):
        result = torch.zeros(16, 16)
        bar = progress.Bar("")
        with interpreter.interpreting(investigation._Watch(bar, order)):
            split_k[(16,)](a, b, result, 256, BLOCK=16)
        results.append(result)
    assert not torch.equal(*results), "else this tests nothing"
    forward = results[0].clone()
    args = (a, b, torch.zeros(16, 16), 256)
    for oracle in (None, lambda: forward):  # the bits of the forward order, no ulp allowed
        found = debug(split_k, (16,), args, oracle=oracle, max_ulps=0.0, BLOCK=16)
        assert not found.wrong, found
        assert not found.hazards, found
        assert found or found.compiled_right is False, found  # a GPU has an order of its own


@triton.jit
def last_word(out_ptr, ATOMIC: tl.constexpr):
    if ATOMIC:
        tl.atomic_xchg(out_ptr, tl.program_id(0))
    else:
        tl.store(out_ptr, 1.0 + tl.program_id(0) * 1e-7)


def test_what_atomics_leave_may_differ_and_nothing_else() -> None:
    assert debug(last_word, (4,), (torch.zeros(1, dtype=torch.int32), True))
    (order,) = orders(debug(last_word, (4,), (torch.zeros(1), False)))
    assert order.text == "forward and reverse order give different values: 1 element of out_ptr"


@triton.jit
def later_ones_fail(x_ptr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    seen = tl.load(x_ptr + pid)
    tl.device_assert(seen == 0, "somebody was here")  # fails in another order
    tl.store(x_ptr + tl.maximum(pid - 1, 0), 1.0)


def test_an_error_in_another_order_only() -> None:
    found = debug(later_ones_fail, (4,), (torch.zeros(4),), BLOCK=1)
    (order,) = orders(found)
    assert "in reverse order it stops: AssertionError: somebody was here" in order.text
    (where,) = order.witnesses
    assert (where.program, where.place.line) == (
        (2, 0, 0),
        line_of("fails in another order"),
    )
    assert found.failure is None
    assert races(found)


def test_no_sanitize_runs_once_and_finds_no_race(monkeypatch: pytest.MonkeyPatch) -> None:
    x, out = torch.arange(1.0, 81).view(8, 10), torch.zeros(10)
    names: list[str] = []
    inner = progress.Bar.__init__
    monkeypatch.setattr(
        progress.Bar, "__init__", lambda self, what: names.append(what) or inner(self, what)
    )
    args, sizes = (x, out, 8, 10), {"ROWS": 4, "BLOCK": 16}
    assert debug(column_sums, (1, 2), args, sanitize=False, **sizes)
    assert names == ["interpreting column_sums", "tracing program (0, 0, 0)"]
    names.clear()
    assert not debug(column_sums, (1, 2), args, **sizes)
    assert names == [
        "interpreting column_sums",
        "interpreting column_sums in reverse order",
        "interpreting column_sums in random order",
        "tracing program (0, 0, 0)",
    ]
    names.clear()
    assert debug(column_sums, (1, 1), args, **sizes), "one program has one order"
    assert len(names) == 2


def test_ctrl_c_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = investigation._Watch.access

    def access(self: Any, access: Any) -> None:
        inner(self, access)
        if self.order(self.launches[-1], [1, 2]) == [2, 1]:
            raise KeyboardInterrupt

    monkeypatch.setattr(investigation._Watch, "access", access)
    found = counts(atomic=True)
    assert found.partial
    assert found.compared
    assert found.verdict == "interrupted"
    assert "interrupted in program (3, 0, 0) at " in found.notes[0]
    assert found.notes[0].endswith("in reverse order")
    assert not interpreter.active()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_watching_changes_nothing(dtype: str) -> None:
    for spec in (SPECS["gemm_bias_act"], SPECS["relu_scale_add"]):
        case = next(iter(spec.cases(dtype, "quick")))
        args, kwargs = spec.inputs(case)
        results = []
        for observer in (None, Races(), deadlock.SpinGuard()):
            with interpreter.interpreting(observer):
                results.append(spec.triton(*args, **kwargs))
        for result in results[1:]:
            assert bool(numerics.same_bits(result, results[0]).all())
