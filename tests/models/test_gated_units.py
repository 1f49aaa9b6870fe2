"""act(gate)·up in models: what fuse and torch.compile take, linear_gated, GatedMLP."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from written import Apply, inputs, kernels

import triton_kernels as tk
from compare.specs.activations import ACTIVATIONS
from triton_kernels.graph import capabilities
from triton_kernels.graph.capabilities import Problem

pytestmark = pytest.mark.usefixtures("fresh")


def by_split(m: Apply, x: Tensor, y: Tensor) -> Tensor:
    gate, up = F.linear(x, m.w).split([4, 4], dim=-1)
    return up * F.gelu(gate)


def by_narrow(m: Apply, x: Tensor, y: Tensor) -> Tensor:
    both = x @ m.w
    return both.narrow(-1, 4, 4) * torch.tanh(both.narrow(-1, 0, 4))


# What models write, and the activation.
WRITTEN: dict[str, tuple[Callable[..., Any], str]] = {
    "Llama, Mistral": (lambda m, x, y: F.silu(F.linear(x, m.w)) * F.linear(y, m.w), "silu"),
    "Gemma": (
        lambda m, x, y: F.gelu(F.linear(x, m.w), approximate="tanh") * F.linear(x, m.w, m.b),
        "gelu_tanh",
    ),
    "T5": (lambda m, x, y: F.linear(x, m.w, m.b) * F.gelu(F.linear(x, m.w)), "gelu"),
    "Phi-3": (lambda m, x, y: (lambda g, u: u * F.silu(g))(*(x @ m.w).chunk(2, dim=-1)), "silu"),
    "ModernBERT": (lambda m, x, y: (lambda g, u: F.gelu(g) * u)(*(x @ m.w).chunk(2, -1)), "gelu"),
    "split": (by_split, "gelu"),
    "narrow": (by_narrow, "tanh"),
    "slices": (lambda m, x, y: torch.sigmoid(x[..., :4]) * x[..., 4:], "sigmoid"),
    "method": (lambda m, x, y: x.relu().mul(y), "relu"),
    "torch.mul": (lambda m, x, y: torch.mul(y, F.leaky_relu(x)), "leaky_relu"),
    "both are activations": (lambda m, x, y: torch.sigmoid(x) * torch.tanh(y), "sigmoid"),
    "x·sigmoid(x)": (lambda m, x, y: x * torch.sigmoid(x), "sigmoid"),
    "a row": (lambda m, x, y: F.silu(x) * m.b, "silu"),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_fused_and_right(name: str, device: torch.device) -> None:
    """With gradients; unfused in float64 is right."""
    function, act = WRITTEN[name]
    module = Apply(function).to(device)
    x, y = inputs(device)
    fused = tk.fuse(module, min_score=0)
    x.requires_grad_()
    out = fused(x, y)
    assert ("act_mul", act) in kernels(fused.plan), fused.plan
    assert not [step for step in fused.plan.steps if step.kernel != "act_mul"]
    wide, double = copy.deepcopy(module).double(), x.detach().double().requires_grad_()
    right = wide(double, y.double())
    torch.testing.assert_close(out.double(), right, rtol=1e-5, atol=1e-5)
    weights = torch.linspace(-1, 1, right.numel(), device=device).view(right.shape)
    (found,) = torch.autograd.grad(out, x, weights)
    (expected,) = torch.autograd.grad(right, double, weights.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


LEFT: dict[str, tuple[Callable[..., Any], str]] = {
    "used twice": (lambda m, x, y: (h := F.silu(x)) * y + h, "h has 2 users"),
    "in place": (lambda m, x, y: F.silu(x.clone(), inplace=True) * y, "in place"),
    "mul in place": (lambda m, x, y: x.clone().mul_(F.silu(y)), "in place: mul_"),
    "dtypes": (lambda m, x, y: F.silu(x) * y.double(), "float64"),
}


@pytest.mark.parametrize("name", LEFT)
def test_left(name: str, cpu: torch.device) -> None:
    function, reason = LEFT[name]
    module, (x, y) = Apply(function), inputs(cpu)
    fused = tk.fuse(module, min_score=0)
    torch.testing.assert_close(fused(x, y), module(x, y))
    assert ("act_mul", "silu") not in kernels(fused.plan)
    assert reason in str(fused.plan)


def test_a_smaller_gate_is_left(cpu: torch.device) -> None:
    """As squeeze-and-excitation has it: the activation is of few numbers."""
    x, y = inputs(cpu)
    fused = tk.fuse(Apply(lambda m, x, y: x * torch.sigmoid(y[:, :1])), min_score=0)
    fused(x, y)
    assert str(fused.plan) == "nothing to fuse"


def test_the_backend_trains(cpu: torch.device) -> None:
    module, (x, y) = Apply(WRITTEN["Llama, Mistral"][0]), inputs(cpu)
    compiled = torch.compile(module, backend="triton_kernels", options={"min_score": 0})
    compiled(x, y).square().sum().backward()
    found, module.w.grad = module.w.grad, None
    module(x, y).square().sum().backward()
    torch.testing.assert_close(found, module.w.grad)


def test_the_score_is_estimated(cpu: torch.device) -> None:
    problem = Problem("act_mul", torch.bfloat16, cpu, "eager", act="silu")
    verdict = capabilities.judge(problem, capabilities.MIN_SCORE)
    assert (verdict.score, verdict.refusal, verdict.source) == (1.5, "", "estimated")
    left = capabilities.judge(problem._replace(other="inductor"), capabilities.MIN_SCORE)
    assert "1.00 of inductor's speed estimated for bfloat16, below min_score" in left.refusal
    plan = tk.explain(Apply(WRITTEN["a row"][0]), inputs(cpu)).plans[0]
    assert "act_mul (act silu), score 1.50, estimated" in str(plan)


# ---- linear_gated, GatedMLP ----


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_linear_gated(act: str, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 3, 8), (6, 8), (6, 8), (6,), (6,)
    given = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    x, *weights = (t.to(device).requires_grad_() for t in given)

    def eager(x: Tensor, g: Tensor, u: Tensor, a: Any = None, b: Any = None) -> Tensor:
        return ACTIVATIONS[act].function(F.linear(x, g, a)) * F.linear(x, u, b)

    for chosen in (weights, weights[:2]):
        out, right = tk.nn.linear_gated(x, *chosen, act=act), eager(x, *chosen)
        torch.testing.assert_close(out, right)
        found = torch.autograd.grad(out.square().sum(), (x, *chosen))
        expected = torch.autograd.grad(right.square().sum(), (x, *chosen))
        torch.testing.assert_close(found, expected)


def test_halves_of_one_weight_are_one_product(
    cpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    products: list[tuple[int, ...]] = []
    linear = F.linear

    def noted(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        products.append(tuple(weight.shape))
        return linear(x, weight, bias)

    monkeypatch.setattr(F, "linear", noted)
    weight, x = torch.randn(12, 8), torch.randn(3, 8)
    gate, up = weight.chunk(2)

    def shapes(*weights: Tensor) -> list[tuple[int, ...]]:
        products.clear()
        out = tk.nn.linear_gated(x, *weights, act="silu")
        right = F.silu(linear(x, weights[0])) * linear(x, weights[1])
        torch.testing.assert_close(out, right)
        return list(products)

    two = [(6, 8), (6, 8)]
    assert shapes(gate, up) == [(12, 8)]
    assert shapes(weight[:6], weight[6:]) == [(12, 8)]
    assert shapes(up, gate) == two  # the wrong way round
    assert shapes(gate.clone(), up) == two
    assert shapes(weight[:5], weight[5:10]) == [(5, 8), (5, 8)]
    assert shapes(weight[:6], weight[6:].roll(1, 0)) == two
    assert shapes(*torch.randn(12, 16)[:, ::2].chunk(2)) == two
    gate, up = weight.chunk(2)
    assert shapes(gate, up.requires_grad_()) == two  # whose gradient would be lost
    weight.requires_grad_()
    assert shapes(*weight.chunk(2)) == two
    with torch.no_grad():
        assert shapes(*weight.chunk(2)) == [(12, 8)]


def test_gated_mlp(device: torch.device) -> None:
    module = tk.nn.GatedMLP(8, 12, 6, bias=True, act="gelu", device=device)
    x = torch.randn(2, 3, 8, device=device)
    names = [
        f"{layer}_proj.{what}" for layer in ("gate", "up", "down") for what in ("weight", "bias")
    ]
    assert list(module.state_dict()) == names
    right = module.down_proj(F.gelu(module.gate_proj(x)) * module.up_proj(x))
    torch.testing.assert_close(module(x), right, rtol=1e-5, atol=1e-5)
    called: list[nn.Module] = []
    module.up_proj.register_forward_hook(lambda layer, *_: called.append(layer))
    module(x)
    assert called == [module.up_proj]
    assert "act='gelu'" in repr(module)
    with pytest.raises(ValueError, match=r"GatedMLP\(\): argument 'act'"):
        tk.nn.GatedMLP(8, 12, 6, act="swish")
    with pytest.raises(ValueError, match=r"linear_gated\(\): argument 'act'"):
        tk.nn.linear_gated(x, module.up_proj.weight, module.up_proj.weight, act="swish")
    with pytest.raises(TypeError, match="'bias' must be True or False"):
        tk.nn.GatedMLP(8, 12, 6, bias=1)  # type: ignore[arg-type]
