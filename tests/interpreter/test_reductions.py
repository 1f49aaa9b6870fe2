"""Reductions and scans, with combine functions of our own, in every dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from small_kernels import reductions, same


@triton.jit
def affine(a1, b1, a2, b2):  # composition of x -> a*x + b: associative, not commutative
    return a1 * a2, b1 * a2 + b2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_reductions(interpreted: Any, dtype: torch.dtype) -> None:
    m, n = 8, 32
    x = torch.randint(-64, 64, (m, n), generator=torch.manual_seed(4)).to(dtype)
    x[:, 0] = torch.tensor([1000.0, 3, 5, 7, 9, 11, 13, 15])
    out, index = torch.empty(5 * m + n, dtype=dtype), torch.empty(2 * m, dtype=torch.int32)
    reductions[(1,)](x, out, index, M=m, N=n)
    exact = x.double()
    same(out[:m], exact.sum(1).to(dtype))
    same(out[m : 2 * m], x.max(1).values)
    same(out[2 * m : 3 * m], x.min(1).values)
    magnitude = out[3 * m : 4 * m]
    assert torch.equal(magnitude.abs(), x.abs().max(1).values)
    same(out[4 * m : 4 * m + 1], exact.sum().to(dtype)[None])
    same(out[5 * m :], exact.sum(0).to(dtype))
    assert index[:m].tolist() == [int((r == r.max()).nonzero()[0]) for r in x]
    assert index[m:].tolist() == [int((r == r.min()).nonzero()[0]) for r in x]


@triton.jit
def scans(x_ptr, out_ptr, a_ptr, N: tl.constexpr, REVERSE: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, tl.cumsum(x, axis=0, reverse=REVERSE))
    a, b = tl.associative_scan((x * 0 + 2, x), 0, affine, reverse=REVERSE)
    tl.store(out_ptr + N + i, b)
    tl.store(a_ptr + i, a)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_scans(interpreted: Any, dtype: torch.dtype, reverse: bool) -> None:
    x = torch.tensor([1, -1, 2, 0, -3, 1, 1, 2], dtype=dtype)
    out, factor = torch.empty(16, dtype=dtype), torch.empty(8, dtype=dtype)
    scans[(1,)](x, out, factor, N=8, REVERSE=reverse)
    order = x.flip(0) if reverse else x
    sums, steps, carry = order.double().cumsum(0).to(dtype), [], 0.0
    for i, value in enumerate(order.tolist()):
        carry = carry * 2 + value if i else value
        steps.append(carry)
    affine_sums = torch.tensor(steps, dtype=dtype)
    powers = (2.0 ** torch.arange(1, 9)).to(dtype)
    if reverse:
        sums, affine_sums, powers = sums.flip(0), affine_sums.flip(0), powers.flip(0)
    same(out[:8], sums)
    same(out[8:], affine_sums)
    same(factor, powers)


@triton.jit
def along(x_ptr, out_ptr, AXIS: tl.constexpr, SCAN: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, 8))
    if SCAN:
        x = tl.cumsum(x, axis=AXIS)
        tl.store(out_ptr + tl.arange(0, 8), x)
    else:
        tl.store(out_ptr, tl.max(x, axis=AXIS))


@pytest.mark.parametrize("scan", [False, True])
def test_a_tile_has_no_other_axes_than_its_own(interpreted: Any, scan: bool) -> None:
    """The compiler refuses them, too."""
    x, out = torch.arange(8.0), torch.zeros(8)
    along[(1,)](x, out, AXIS=-1, SCAN=scan)
    assert out[0] == (0 if scan else 7)
    for axis in (1, -2):
        with pytest.raises(Exception, match=rf"axis {axis} of a tile of 1 dimension"):
            along[(1,)](x, out, AXIS=axis, SCAN=scan)
