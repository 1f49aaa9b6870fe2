"""Specs of functions with several outputs: every case judges each output by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from processes import python
from torch import Tensor

import compare

BOTH = ("lo", "hi")


def both(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.amin(1), x.amax(1)


def where(x: Tensor) -> dict[str, Tensor]:
    values, indices = x.max(1)
    return {"values": values, "indices": indices}


def spec(cuda: Any = both, oracle: Any = both, **given: Any) -> compare.Function:
    given = {"outputs": BOTH, "shapes": [(1, 1), (3, 5)], "values": ["normal"], **given}
    return compare.Function("both", cuda=cuda, oracle=oracle, **given)


def test_each_output_is_judged() -> None:
    report = compare.check(spec())
    assert report, report
    one = compare.check(spec(outputs=(), cuda=lambda x: x.amin(1), oracle=lambda x: x.amin(1)))
    assert report.rows[0].cases == 2 * one.rows[0].cases


def test_the_wrong_output_is_named() -> None:
    report = compare.check(spec(cuda=lambda x: (x.amin(1), x.amax(1) + 1)))
    wrong = report.rows[0].mismatches
    assert {mismatch.case.options["output"] for mismatch in wrong} == {"hi"}
    assert len(wrong) == report.rows[0].cases / 2


def test_outputs_of_other_dtypes_in_a_dict() -> None:
    names = ["values", "indices"]
    given = {"oracle": where, "outputs": names, "out_dtype": {"indices": torch.int64}}
    assert compare.check(spec(where, **given))
    assert not compare.check(spec(lambda x: where(x)["values"], **given))
    off = compare.check(spec(lambda x: where(x) | {"indices": where(x)["indices"] + 1}, **given))
    assert {each.case.options["output"] for each in off.rows[0].mismatches} == {"indices"}


def test_a_bound_each() -> None:
    off = lambda x: (x.amin(1) + 0.1, x.amax(1) + 0.1)  # noqa: E731
    bounds = {"lo": lambda right, x: 0.2, "hi": lambda right, x: 0.01}
    wrong = compare.check(spec(off, bound=bounds)).rows[0].mismatches
    assert {mismatch.case.options["output"] for mismatch in wrong} == {"hi"}
    assert compare.check(spec(off, bound=lambda right, x: 0.2))


@pytest.mark.parametrize(
    ("cuda", "says"),
    [
        (lambda x: x.amin(1), "returned Tensor, expected 2 outputs: lo, hi"),
        (lambda x: (x, x, x), "returned 3 outputs, expected 2 outputs: lo, hi"),
        (lambda x: {"lo": x, "high": x}, "returned lo, high, expected 2 outputs: lo, hi"),
        (lambda x: (None, x), "returned NoneType as lo, expected a tensor"),
    ],
)
def test_other_results_are_wrong(cuda: Any, says: str) -> None:
    report = compare.check(spec(cuda))
    assert not report
    assert says in str(report)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"outputs": "lo"}, "'outputs' must be a list of names"),
        ({"outputs": ["lo", "lo"]}, "names must differ"),
        ({"out_dtype": {"low": "int64"}}, "'out_dtype': it names 'low'; the outputs are: lo, hi"),
        ({"bound": {"lo": lambda right, x: 0}}, "argument 'bound': it lacks 'hi'"),
        ({"outputs": (), "bound": {"lo": None}}, "it names 'lo'"),
        ({"max_ulps": {"lo": 1.0}}, "'max_ulps' is one number for all outputs"),
    ],
)
def test_arguments(given: dict[str, Any], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        spec(**given)


KERNEL = """
import torch
import triton
import triton.language as tl

import compare


@triton.jit
def both_kernel(x_ptr, lo_ptr, hi_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.store(lo_ptr + i, x - 1)
    tl.store(hi_ptr + i, x + 1)


def both(x):
    lo, hi = torch.empty_like(x), torch.empty_like(x)
    both_kernel[(1,)](x, lo, hi, BLOCK=8)
    return lo, hi


BOTH = compare.Function(
    "both", triton=both, oracle=lambda x: (x - 1, x + 1), outputs=["lo", "hi"], shapes=[(8,)],
    layouts=["contiguous"], values=["normal"],
)
"""


def test_mutate_kills_what_the_last_output_shows(tmp_path: Path) -> None:
    (tmp_path / "several.py").write_text(KERNEL)
    done = python(tmp_path, "-m", "compare", "mutate", "--target", "several:BOTH")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed: several.py:14 both_kernel" in done.stderr
    assert "score 100.0 %" in done.stdout
