"""What works in place on a value that nobody else sees is fused; what others see is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from written import Apply, inputs, kernels

import triton_kernels as tk

pytestmark = pytest.mark.usefixtures("fresh")


def linear(m: Any, x: Tensor) -> Tensor:
    return F.linear(x, m.w, m.b)


def residual(m: Any, x: Tensor, y: Tensor) -> Tensor:
    h = linear(m, x)
    h += y
    return F.relu(h)


def scale(m: Any, x: Tensor, y: Tensor) -> Tensor:
    h = linear(m, x)
    h *= m.b
    return h


def gate(m: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.silu(linear(m, x)).mul_(y)


def swish(m: Any, x: Tensor, y: Tensor) -> Tensor:
    h = linear(m, x)
    return h.mul_(torch.sigmoid(h))


def numbers(m: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.gelu(linear(m, x).mul_(0.5).div_(4))


def module(m: Any, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.hardswish(linear(m, x), inplace=True)


def through_a_view(m: Any, x: Tensor, y: Tensor) -> Tensor:
    return linear(m, x).view(6, 8).clamp_(-0.5, 0.5)


FUSED: dict[str, tuple[Callable[..., Tensor], str, str]] = {
    "residual": (residual, "gemm_bias_act", "relu"),
    "scale": (scale, "gemm_bias_act", "none"),
    "gate": (gate, "act_mul", "silu"),
    "swish": (swish, "linear_act", "silu"),
    "numbers": (numbers, "gemm_bias_act", "gelu"),
    "module": (module, "linear_act", "hardswish(x)"),
    "through a view": (through_a_view, "linear_act", "clamp(x, -0.5, 0.5)"),
}


@pytest.mark.usefixtures("no_grad")
@pytest.mark.parametrize("name", FUSED)
def test_nobody_else_sees_it(name: str, device: torch.device) -> None:
    function, kernel, act = FUSED[name]
    model = Apply(function).to(device)
    x, y = inputs(device)
    kept = y.clone()
    fused = tk.fuse(model, min_score=0)
    found = fused(x, y)
    torch.testing.assert_close(found, model(x, y))
    assert found.shape == model(x, y).shape
    assert torch.equal(y, kept)
    assert kernels(fused.plan) == [(kernel, act)], fused.plan


def an_input(m: Any, x: Tensor, y: Tensor) -> Any:
    y += linear(m, x)
    return y


def the_gate_itself(m: Any, x: Tensor, y: Tensor) -> Any:
    h = F.silu(y, inplace=True) * linear(m, x)
    return h, y


def read_afterwards(m: Any, x: Tensor, y: Tensor) -> Any:
    h = linear(m, x)
    g = h.clamp_(0, 1)
    return torch.tanh(h) * g  # of what was overwritten


def by_a_view(m: Any, x: Tensor, y: Tensor) -> Any:
    h = linear(m, x)
    g = h.detach().mul_(0.5)
    return torch.tanh(h) + g


def another_product(m: Any, x: Tensor, y: Tensor) -> Any:
    h, g = linear(m, x), linear(m, y)
    h += g
    return F.relu(h), g


LEFT: dict[str, Callable[..., Any]] = {
    "an input": an_input,
    "the gate itself": the_gate_itself,
    "read afterwards": read_afterwards,
    "by a view": by_a_view,
    "another product": another_product,
}


@pytest.mark.usefixtures("no_grad")
@pytest.mark.parametrize("name", LEFT)
def test_somebody_sees_it(name: str, cpu: torch.device) -> None:
    """The result, and what was overwritten, are what they are unfused."""
    model, (x, y) = Apply(LEFT[name]), inputs(cpu)
    fused = tk.fuse(model, min_score=0)
    ours, theirs = (x.clone(), y.clone()), (x.clone(), y.clone())
    torch.testing.assert_close(fused(*ours), model(*theirs))
    torch.testing.assert_close(ours, theirs)


def test_in_a_sequential(cpu: torch.device) -> None:
    """replace_modules takes activations in place, as before."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8))
    x, _ = inputs(cpu)
    before = model(x)
    report = tk.replace_modules(model, min_score=0)
    assert len(report.replaced) == 1, report
    torch.testing.assert_close(model(x), before)


def test_a_note_of_what_is_used_overwrites_nothing(cpu: torch.device) -> None:
    """torch notes modules that are made in a forward."""

    def function(m: Any, x: Tensor, y: Tensor) -> Tensor:
        h = linear(m, x)
        torch._C._log_api_usage_once("python.nn_module")
        return torch.sigmoid(h)

    module, (x, y) = Apply(function), inputs(cpu)
    fused = tk.fuse(module, min_score=0)
    torch.testing.assert_close(fused(x, y), module(x, y))
    assert kernels(fused.plan) == [("linear_act", "sigmoid")], fused.plan
