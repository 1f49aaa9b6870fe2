"""Accesses out of bounds and failed assertions, with the lane."""

from __future__ import annotations

import marked_lines
import pytest
import torch
import triton
import triton.language as tl

from compare import debug

line_of = marked_lines.finder("# ", __file__)


@triton.jit
def touch(x_ptr, out_ptr, m, n, stride_m, stride_n, HOW: tl.constexpr):
    """One access of a 4 by 4 tile, of which lane [1, 2] is element [m, n]."""
    i = tl.arange(0, 4)
    at = x_ptr + (m - 1 + i[:, None]) * stride_m + (n - 2 + i[None, :]) * stride_n
    mask = (i[:, None] == 1) & (i[None, :] == 2)
    if HOW == "load":
        y = tl.load(at, mask=mask, other=0.0)  # touches load
        tl.store(out_ptr, tl.sum(y))
    elif HOW == "store":
        tl.store(at, 1.0, mask=mask)  # touches store
    elif HOW == "atomic":
        tl.atomic_add(at, 1.0, mask=mask)  # touches atomic
    else:
        tl.atomic_cas(x_ptr + m * stride_m + n * stride_n, 0.0, 1.0)  # touches cas


def views() -> dict[str, torch.Tensor]:
    """6 by 5 elements each, amid others of the same storage."""
    base = torch.zeros(40, 40)
    return {
        "contiguous": base.view(-1)[:30].view(6, 5),
        "strided": base[::3, ::7][:6, :5],
        "offset": base[7:13, 9:14],
        "transposed": base[3:8, 2:8].t(),
    }


@pytest.mark.parametrize("how", ["load", "store", "atomic", "cas"])
@pytest.mark.parametrize("layout", list(views()))
def test_accesses_out_of_bounds(layout: str, how: str) -> None:
    view, out = views()[layout], torch.zeros(1)
    assert debug(touch, (1,), (view, out, 5, 4, *view.stride()), HOW=how)
    outside = {"past the rows": (6, 0), "before the rows": (-1, 0), "beside": (2, 5)}
    for m, n in outside.values():
        if layout == "contiguous" and n == 5:
            continue  # the next row's first element
        found = debug(touch, (1,), (view, out, m, n, *view.stride()), HOW=how)
        assert found.failure is not None, (m, n)
        assert found.failure.place is not None
        assert found.failure.place.line == line_of(f"touches {how}")
        offset = m * view.stride(0) + n * view.stride(1)
        error, verb = found.failure.error, "atomic" if how == "cas" else how
        assert f"IndexError: out-of-bounds {verb} through x_ptr" in error
        assert f"element offset {offset} of x_ptr" in error
        assert f"shape (6, 5), strides {view.stride()}, float32" in error
        assert ("lane [1, 2]" in error) == (how != "cas")
        if (m, n) == (6, 0) and view.stride(0) > view.stride(1):
            assert "which would be [6, 0]" in error


@triton.jit
def asserts(x_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0) * BLOCK * BLOCK + i[:, None] * BLOCK + i[None, :]
    tl.device_assert(tl.load(x_ptr + at) < 10, "too large")  # assertion


def test_an_assertion_names_a_lane() -> None:
    x = torch.zeros(2, 4, 4)
    x[1, 2, 1] = x[1, 3, 0] = 11
    found = debug(asserts, (2,), (x,), BLOCK=4)
    assert found.failure is not None
    assert found.failure.program == (1, 0, 0)
    assert found.failure.place is not None
    assert found.failure.place.line == line_of("assertion")
    assert (
        "too large (device_assert, 2 of 16 lanes, the first is lane [2, 1])" in found.failure.error
    )


@triton.jit
def one_element(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    block = tl.load(x_ptr + i, mask=i < n, other=0.0)
    scalar = tl.load(x_ptr + tl.program_id(0), mask=tl.program_id(0) < n, other=0.0)
    tl.store(out_ptr + i, block + scalar)


def test_other_of_one_element_is_other() -> None:
    """Triton calls the builder without an other that is one zero: `if other` denies it."""
    x = torch.ones(2)
    expected = torch.tensor([2.0, 2.0, 0.0])
    found = debug(one_element, (3,), (x, torch.empty(3), 2), oracle=lambda: expected, BLOCK=1)
    assert found, found
