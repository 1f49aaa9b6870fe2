"""What the bound of products lets an activation make of its argument's error, and of its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from compare.specs import product_bounds
from compare.specs.activations import ACTIVATIONS
from compare.specs.product_bounds import bound

CURVES = [name for name, act in ACTIVATIONS.items() if act.curvature is not None]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_no_error_of_an_argument_is_amplified_further(name: str) -> None:
    act = ACTIVATIONS[name]
    pre = torch.cat((torch.linspace(-40, 40, 8001), torch.logspace(1, 30, 30))).double()
    for size in (1e-12, 1e-6, 1e-3, 0.1, 1.0, 10.0):
        error = torch.full_like(pre, size)
        limit = act.amplified(pre, error) * (1 + 1e-12) + 1e-15 * (1 + pre.abs())
        for share in (-1.0, -0.5, 0.5, 1.0):
            off = (act.function(pre + share * error) - act.function(pre)).abs()
            assert (off <= limit).all(), (size, share, pre[(off > limit).nonzero()[0]])


@pytest.mark.parametrize("name", CURVES)
def test_tails_damp_errors(name: str) -> None:
    far = torch.tensor([-30.0], dtype=torch.float64)
    damped = ACTIVATIONS[name].amplified(far, torch.full_like(far, 1e-3))
    assert damped < 1e-6


def off(act: str, formula: Tensor, x: Tensor) -> float:
    """The error of a formula's values, as a fraction of the bound of the activation alone."""
    a, b = x.new_zeros(len(x), 0), x.new_zeros(0, 1)
    options = {"act": act, "c": x[:, None], "beta": 1.0}
    reference = ACTIVATIONS[act].function(x.double())[:, None]
    limit = bound("triton-compiled", ((a, b, None), options), reference, torch.float32)
    return ((formula.double()[:, None] - reference).abs() / limit).max().item()


def test_a_sigmoid_without_digits_where_it_is_small_is_refused() -> None:
    x = torch.linspace(-60, 60, 4001)
    assert off("sigmoid", torch.sigmoid(x), x) < 1
    assert off("silu", torch.nn.functional.silu(x), x) < 1
    assert off("sigmoid", 0.5 + 0.5 * torch.tanh(0.5 * x), x) > 10
    assert off("silu", x * (0.5 + 0.5 * torch.tanh(0.5 * x)), x) > 10


def test_a_saved_pre_activation_has_no_error_of_an_activation() -> None:
    """Its bound is that of a product without one; gelu's evaluation alone has four roundings."""
    a, b, bias = torch.randn(4, 8), torch.randn(8, 5), torch.randn(5)
    plain = {"act": "none"}
    reference = product_bounds.oracle(a, b, bias, **plain)
    limits = [
        bound("cuda-host", ((a, b, bias), options), reference, torch.float32)
        for options in (plain, {"act": "gelu", "training": "pre"}, {"act": "gelu"})
    ]
    assert torch.equal(limits[0], limits[1])
    assert not torch.equal(limits[0], limits[2])
