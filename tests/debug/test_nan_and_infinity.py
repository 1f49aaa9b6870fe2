"""NaN and infinity: the operation that made the first is named."""

from __future__ import annotations

import math
from pathlib import Path

import marked_lines
import pytest
import torch
import triton
import triton.language as tl
from sanitized import dropout

from compare import debug
from compare.debugging.observers.values import Values
from triton_kernels import interpreter

line_of = marked_lines.finder("# ", __file__)


@triton.jit
def nonfinite(x_ptr, y_ptr, out_ptr, HOW: tl.constexpr):
    i = tl.program_id(0) * 8 + tl.arange(0, 8)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    if HOW == "exp":
        z = tl.exp(x)  # makes exp
    elif HOW == "divide":
        z = y / x  # makes divide
    elif HOW == "zero by zero":
        z = x / x  # makes zero by zero
    elif HOW == "difference":
        big = tl.exp(x)
        z = big - big  # makes difference
    elif HOW == "product":
        z = tl.exp(x) * 0.0  # makes product
    elif HOW == "quotient":
        z = tl.exp(x) / tl.exp(x)  # makes quotient
    elif HOW == "cast":
        z = (x * y).to(tl.float16).to(tl.float32)  # makes cast
    elif HOW == "sqrt":
        z = tl.sqrt(x)  # makes sqrt
    elif HOW == "fma":
        z = tl.fma(x, y, y)  # makes fma
    elif HOW == "other":
        z = x
    elif HOW == "sum":
        z = tl.sum(x) + y  # makes sum
    elif HOW == "cumsum":
        z = tl.cumsum(x)  # makes cumsum
    else:
        at = tl.arange(0, 16)
        a = tl.full((16, 16), 1.0, tl.float32) * tl.max(x)
        c = tl.dot(a, a, input_precision="ieee")  # makes dot
        z = tl.sum(tl.where(at[:, None] == 3, c, 0.0)) + y
    tl.store(out_ptr + i, z)


@pytest.mark.parametrize(
    ("how", "x", "y", "says"),
    [
        ("exp", 89.25, 1, "made inf by exp(89.25)"),
        ("divide", 0, 1, "made inf by 1 / 0"),
        ("zero by zero", 0, 1, "made nan by 0 / 0"),
        ("difference", 100, 1, "made nan by inf - inf"),
        ("product", 100, 1, "made nan by inf * 0"),
        ("quotient", 100, 1, "made nan by inf / inf"),
        ("cast", 256, 300, "made inf by casting 76800 to fp16"),
        ("sqrt", -4, 1, "made nan by sqrt(-4)"),
        ("fma", 3e30, -3e30, "made -inf by fma(3e+30, -3e+30, -3e+30)"),
        ("sum", 3e38, 1, "made inf by tl.sum"),
        ("cumsum", 3e38, 1, "made inf by tl.cumsum"),
        ("dot", 3e38, 1, "made inf by tl.dot"),
    ],
)
def test_the_operation_that_made_it(how: str, x: float, y: float, says: str) -> None:
    xs, ys = torch.full((16,), 1.0), torch.full((16,), float(y))
    xs[10:12] = x
    found = debug(nonfinite, (2,), (xs, ys, torch.zeros(16)), oracle=lambda: ys, HOW=how)
    assert found.hazards == []
    made = found.wrong[0].made
    assert made is not None, str(found)
    assert made.what == says
    assert made.program == (1, 0, 0)
    assert made.lane == {"cumsum": (3,), "sum": (), "dot": (3, 0)}.get(how, (2,))
    assert made.place is not None
    assert made.place.line == line_of(f"makes {how}")
    assert says in str(found)


def test_numbers_that_were_not_finite_before_have_no_maker() -> None:
    xs = torch.full((16,), 1.0)
    xs[5] = math.inf
    found = debug(nonfinite, (2,), (xs, xs, torch.zeros(16)), oracle=lambda: 0 * xs, HOW="exp")
    assert found.wrong[0].made is None


def test_without_an_oracle_a_note_names_the_operation() -> None:
    xs = torch.full((16,), 1.0)
    xs[3], xs[10] = math.nan, -1
    found = debug(nonfinite, (2,), (xs, xs, torch.zeros(16)), HOW="sqrt")
    assert found
    (note,) = [n for n in found.notes if "NaN" in n]
    assert note.startswith(
        "out_ptr: 2 of 16 elements are NaN; out_ptr[10] was made nan by sqrt(-1)"
    )
    assert f"{Path(__file__).name}:{line_of('makes sqrt')}" in note


def test_what_nothing_refers_to_is_forgotten() -> None:
    """Else a long run with masked-off lanes in every program would fill the memory."""
    x, out = torch.randn(100), torch.zeros(100)
    watch = Values()
    with interpreter.interpreting(watch):
        dropout[(50,)](x, out, 100, 3, BLOCK=64)
    assert len(watch.shadows.log) <= 3  # one load and two products
    x[3] = 1000
    watch = Values()
    with interpreter.interpreting(watch):
        nonfinite[(12,)](x, x, out, HOW="exp")
        nonfinite[(1,)](out, x, out, HOW="other")
    made = watch.made(out.data_ptr() + 3 * 4)
    assert made is not None
    assert made.what == "made inf by exp(1000)"
