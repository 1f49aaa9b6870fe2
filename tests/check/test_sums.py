"""compare.Sum: any right order of additions passes, and what is no such sum does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import compare

F32 = torch.float32


def summed(**more: Any) -> compare.Sum:
    """A sum of rows, by a loop in float32 from the first column to the last."""
    return compare.Sum("row_sum", dim=1, cuda=more.pop("cuda", forwards), **more)


def forwards(x: Tensor) -> Tensor:
    wide = torch.float64 if x.dtype == torch.float64 else F32
    total = torch.zeros(x.shape[0], dtype=wide, device=x.device)
    for column in x.unbind(1):
        total += column
    return total.to(x.dtype)


def backwards(x: Tensor) -> Tensor:
    return forwards(x.flip(1))


def in_blocks(x: Tensor) -> Tensor:
    """Sums of 64 columns, added."""
    parts = [forwards(block.to(F32)) for block in x.split(64, 1)]
    total = torch.stack(parts, 1) if parts else x.new_zeros(len(x), 1)
    return forwards(total).to(x.dtype)


def in_16_bits(x: Tensor) -> Tensor:
    total = torch.zeros_like(x[:, :1]).sum(1)
    for column in x.unbind(1):
        total = total + column
    return total


def without_the_last(x: Tensor) -> Tensor:
    return forwards(x[:, :-1] if x.shape[1] > 64 else x)


def as_tf32(x: Tensor) -> Tensor:
    return forwards((x.view(torch.int32) & ~0x1FFF).view(F32))


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (forwards, "float16"),
        (backwards, "bfloat16"),
        (backwards, "float32"),
        (in_blocks, "float32"),
        (forwards, "float64"),
    ],
)
def test_any_order_is_right(function: Callable[..., Tensor], dtype: str) -> None:
    report = compare.check(summed(cuda=function, dtypes=[dtype]), level="quick")
    assert report, report
    (row,) = report.rows
    assert row.runs["cuda-host"] >= 7 * 9
    assert 0 < row.worst["cuda-host"] <= 1


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (in_16_bits, "float16"),
        (in_16_bits, "bfloat16"),
        (without_the_last, "float32"),
        (lambda x: forwards(x) * (1 + 2**-22), "float32"),
    ],
)
def test_what_is_wrong(function: Callable[..., Tensor], dtype: str) -> None:
    assert not compare.check(summed(cuda=function, dtypes=[dtype]), level="quick")


def test_a_few_bits_less_show_where_sums_are_short() -> None:
    """The bound grows with the sums' length, and so would hide operands cut off to tf32."""
    report = compare.check(summed(cuda=as_tf32, shapes=[(3, 5), (3, 4099)]), level="quick")
    shapes = {mismatch.case.shape for mismatch in report.rows[0].mismatches}
    assert shapes == {(3, 5)}


def test_on_integers_bits_are_demanded() -> None:
    """Where terms are integers and float32 has all their sums."""
    cases = {case.shape: case for case in summed().cases("float32", "quick")}
    integers = [c for c in summed().cases("float32", "quick") if c.values == "integers"]
    assert {case.shape for case in integers} == set(cases)
    exact = {
        "elements": summed(),
        "products": summed(terms=lambda x: x * x),
        "halves": summed(factor=0.5),
    }
    not_exact = {
        "a third": summed(factor=1 / 3),
        "powers": summed(terms=lambda x: x**9),  # 2¹⁸ times 4099 terms
        "halves": summed(terms=lambda x: x / 2),
        "roots": summed(terms=lambda x: x.abs().sqrt()),
    }
    long = next(case for case in integers if case.shape == (3, 4099))
    assert all(spec.exact(long) for spec in exact.values())
    assert not any(spec.exact(long) for spec in not_exact.values())
    assert not summed().exact(cases[3, 4099].__class__("row_sum", "float32", (3, 4099)))


def mean_square(x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
    return (x.to(F32) * y.to(F32) * scale).mean((0, 2)).to(x.dtype)


def test_terms_factors_and_numbers() -> None:
    """A scaled mean of products of two tensors, of which one is a row, along two dimensions."""
    spec = compare.Sum(
        "mean_product",
        terms=lambda x, y, scale: x * y * scale,
        dim=(0, -1),
        factor=lambda n: 1 / n,
        roundings=3,
        numbers={"scale": (1.0, 0.3)},
        operands=lambda B, M, N: [(B, M, N), (N,)],
        shapes=[(3, 5, 33), (0, 2, 3), (1, 1, 1)],
        dtypes=["float16", "float32"],
        cuda=mean_square,
    )
    report = compare.check(spec, level="quick")
    assert report, report
    assert sum(report.rows[0].runs.values()) > 40
    wrong = spec.changed(cuda=lambda x, y, scale: mean_square(x, y, scale) * (1 + 2**-9))
    assert not compare.check(wrong, level="quick")
    case = next(spec.cases("float32", "quick"))
    flops, moved = spec.cost(case)
    assert (flops, moved) == (4 * 3 * 5 * 33, 4 * (3 * 5 * 33 + 33 + 5))


def test_special_values_are_for_float16() -> None:
    """Where the largest numbers overflow no sum: NaN and infinities must come through."""
    values = {d: {c.values for c in summed().cases(d, "quick")} for d in ("float16", "float32")}
    assert values == {
        "float16": {"normal", "special", "integers"},
        "float32": {"normal", "integers"},
    }
    quiet = summed(cuda=lambda x: forwards(x.nan_to_num()), dtypes=["float16"])
    report = compare.check(quiet, level="quick")
    assert {mismatch.case.values for mismatch in report.rows[0].mismatches} == {"special"}


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"Sum\(\): argument 'dtypes': sums are of float16"):
        summed(dtypes=["int32"])
    with pytest.raises(ValueError, match=r"Sum\(\): argument 'layouts': 'sideways' is not in"):
        summed(layouts=["sideways"])
