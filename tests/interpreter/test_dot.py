"""tl.dot: exact on a lattice, and each precision's own rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton.language as tl
from small_kernels import dot, same


def run_dot(a: Any, b: Any, c: Any, precision: str = "ieee", out: Any = tl.float32) -> Any:
    dot[(1,)](a, b, c, PRECISION=precision, OUT=out, S=a.shape[0])
    return c


@pytest.mark.parametrize(
    ("dtype", "acc", "out"),
    [
        (torch.bfloat16, torch.float32, tl.float32),
        (torch.float16, torch.float32, tl.float32),
        (torch.float16, torch.float16, tl.float16),
        (torch.float32, torch.float32, tl.float32),
        (torch.float64, torch.float64, tl.float64),
        (torch.int8, torch.int32, tl.int32),
    ],
)
def test_dot_lattice(interpreted: Any, dtype: Any, acc: Any, out: Any) -> None:
    """Integers whose sums are exact: any order of accumulation gives the same bits."""
    generator = torch.manual_seed(5)
    a, b = (torch.randint(-100, 100, (32, 32), generator=generator).to(dtype) for _ in "ab")
    c = torch.randint(-1000, 1000, (32, 32), generator=generator).to(acc)
    want = (a.double() @ b.double() + c.double()).to(acc)
    same(run_dot(a, b, c, out=out), want)


def test_dot_ieee_is_float32_grade(interpreted: Any) -> None:
    a, b = torch.randn(2, 64, 64, generator=torch.manual_seed(6))
    got = run_dot(a, b, torch.zeros(64, 64))
    bound = 64 * 2.0**-24 * (a.double().abs() @ b.double().abs())
    assert ((got.double() - a.double() @ b.double()).abs() <= bound).all()


def dyadic(x: torch.Tensor, bits: int, nearest_away: bool = False) -> torch.Tensor:
    """x cut (or rounded, ties away) to `bits` mantissa bits, in float64 arithmetic."""
    mantissa, exponent = torch.frexp(x.double())
    scaled = mantissa * 2.0 ** (bits + 1)
    whole = (scaled.abs() + 0.5).floor() * scaled.sign() if nearest_away else scaled.trunc()
    return torch.ldexp(whole, exponent - bits - 1)


def selecting(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x as a matrix, and the identity: every product is one exact term."""
    return x.reshape(32, 32).contiguous(), torch.eye(32)


def test_dot_tf32_truncates(interpreted: Any) -> None:
    x = torch.randn(1024, generator=torch.manual_seed(7)) * 2.0 ** torch.arange(-100, 100).repeat(6)[:1024]  # fmt: skip # noqa: E501
    a, eye = selecting(x)
    for left, right in ((a, eye), (eye, a)):
        got = run_dot(left, right, torch.zeros(32, 32), "tf32")
        same(got, dyadic(a, 10).float())
    a[0, 0], a[1, 1] = float("inf"), torch.tensor(0x7F800001, dtype=torch.int32).view(torch.float32)
    got = run_dot(torch.diag(torch.diag(a)), torch.full((32, 32), 1.0), torch.zeros(32, 32), "tf32")
    assert got[0].isinf().all()
    assert got[1].isnan().all()


def test_dot_tf32x3_follows_the_compiler(interpreted: Any) -> None:
    a, eye = selecting(torch.randn(1024, generator=torch.manual_seed(8)))
    big = dyadic(a, 10, nearest_away=True)
    small = dyadic(a.double() - big, 10)
    got = run_dot(a, eye, torch.zeros(32, 32), "tf32x3")
    same(got, (big + small).float())
    a, b = torch.randn(2, 64, 64, generator=torch.manual_seed(9))
    exact = a.double() @ b.double()
    error = {}
    for precision in ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6"):
        got = run_dot(a, b, torch.zeros(64, 64), precision)
        error[precision] = (got.double() - exact).abs().max().item()
    assert max(error["ieee"], error["tf32x3"], error["bf16x6"]) < 2e-5
    assert 1e-3 < error["tf32"] < 0.2
    assert 1e-5 < error["bf16x3"] < 1e-3
    a[0, 0] = float("inf")  # inf - inf in the small part must not reach the result
    assert run_dot(a, b.abs(), torch.zeros(64, 64), "tf32x3")[0].isinf().all()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_dot_float8(interpreted: Any, dtype: torch.dtype) -> None:
    a, b = (torch.randint(-8, 8, (32, 32)).float().to(dtype) for _ in "ab")
    got = run_dot(a, b, torch.zeros(32, 32))
    same(got, (a.double() @ b.double()).float())
