"""What the activations' short forms for 16-bit results claim of their errors, in float32."""

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

import triton_kernels
from triton_kernels.activations import half_gelu, half_sigmoid, half_silu, normal_odds

X = torch.linspace(-12, 12, 1 << 16)


@triton.jit
def applied(x_ptr, y_ptr, FUNCTION: tl.constexpr, N: tl.constexpr):
    lane = tl.arange(0, N)
    tl.store(y_ptr + lane, FUNCTION(tl.load(x_ptr + lane)))


@triton.jit
def short_odds(x):
    return normal_odds(x, SHORT=True)


def of(function: object, x: Tensor) -> Tensor:
    """A function's float32 values, in float64."""
    y = torch.empty_like(x)
    with triton_kernels.interpret():
        applied[(1,)](x, y, function, len(x))
    return y.double()


def phi(x: Tensor) -> Tensor:
    """Φ without cancellation."""
    return 0.5 * torch.special.erfc(-x.double() / math.sqrt(2))


def test_gelu() -> None:
    right = X.double() * phi(X)
    assert bool(((of(half_gelu, X) - right).abs() <= 2.2e-4 * right.abs() + 4.3e-7).all())
    odds = of(short_odds, X)
    assert (1 / (1 + torch.exp2(odds)) - phi(X)).abs().max() <= 4.1e-5


def test_gelu_at_the_ends() -> None:
    """As x·Φ(x): −∞·0 is NaN."""
    found = of(half_gelu, torch.tensor([1e30, -1e30, math.inf, -math.inf, math.nan, 40, -40, -0.0]))
    right = torch.tensor([1e30, 0, math.inf, math.nan, math.nan, 40, 0, 0]).double()
    torch.testing.assert_close(found, right, equal_nan=True, atol=1e-30, rtol=1e-6)


@pytest.mark.parametrize(("function", "power"), [(half_silu, 1), (half_sigmoid, 0)])
def test_sigmoid_has_its_digits_where_it_is_small(function: object, power: int) -> None:
    x = torch.linspace(-80, 80, 1 << 15)
    right = x.double() ** power * torch.sigmoid(x.double())
    assert bool(((of(function, x) - right).abs() <= 2.0**-15 * right.abs()).all())
