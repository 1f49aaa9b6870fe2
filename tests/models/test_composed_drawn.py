"""Drawn expressions of products: whatever of them is fused, values and gradients are torch's."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import triton_kernels as tk

pytestmark = pytest.mark.usefixtures("fresh")

# Of a value h, the row b and the residual y.
STEPS: list[Callable[[Tensor, Tensor, Tensor], Tensor]] = [
    *(lambda h, b, y, f=f: f(h) for f in (torch.relu, F.gelu, F.silu, torch.sigmoid, torch.tanh)),
    *(lambda h, b, y, f=f: f(h) for f in (F.mish, F.hardswish, F.relu6, F.softplus, F.elu, F.selu)),
    *(lambda h, b, y, f=f: f(h) for f in (torch.abs, torch.neg, torch.square, torch.erf)),
    lambda h, b, y: h.clamp(-0.7, 0.9),
    lambda h, b, y: F.leaky_relu(h, 0.2),
    lambda h, b, y: 1.5 - h,
    lambda h, b, y: h / 3,
    lambda h, b, y: h * 0.5 + h.detach(),
    lambda h, b, y: h * b,
    lambda h, b, y: h + b,
    lambda h, b, y: h - y,
    lambda h, b, y: y * h,
    lambda h, b, y: h.view(h.shape),
    lambda h, b, y: h.flip(-1),
    lambda h, b, y: h + 0.1 * h.sum(-1, keepdim=True),
    lambda h, b, y: F.dropout(h, 0.3, False),
]
PAIRS: list[Callable[[Tensor, Tensor], Tensor]] = [
    torch.add,
    torch.sub,
    torch.mul,
    lambda h, g: h / (g.abs() + 1),
]


class Drawn(nn.Module):
    """Up to six steps, of the latest value or of an earlier one; a second value may be seen."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.w, self.v = (nn.Parameter(torch.randn(8, 8).double() / 3) for _ in range(2))
        self.b = nn.Parameter(torch.randn(8).double())
        self.two = draw.random() < 0.3
        self.plan: list[tuple[Any, int, int]] = []
        for _ in range(draw.randint(1, 6)):
            first = -1 if draw.random() < 0.75 else draw.randint(-5, -1)
            step = draw.choice(STEPS if draw.random() < 0.75 else PAIRS)
            self.plan.append((step, first, draw.randint(-4, -1)))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        values = [F.linear(x, self.w, self.b)]
        if self.two:
            values.append(x @ self.v)
        for step, i, j in self.plan:
            first, second = (values[k % len(values)] for k in (i, j))
            values.append(step(first, second) if step in PAIRS else step(first, self.b, y))
        return values[-1], values[len(values) // 2] if self.two else values[-1]


def results(call: Callable[..., Any], module: Drawn, x: Tensor, y: Tensor) -> list[Any]:
    given = [x.clone().requires_grad_(), y.clone().requires_grad_()]
    first, second = call(*given)
    total = (first * torch.linspace(-1, 1, first.numel()).view(first.shape)).sum() + second.sum()
    wanted = [*given, module.w, module.v, module.b]
    return [first, second, *torch.autograd.grad(total, wanted, materialize_grads=True)]


@pytest.mark.parametrize("seed", range(24))
def test_drawn(seed: int, cpu: torch.device) -> None:
    torch.manual_seed(seed)
    module = Drawn(random.Random(seed))
    x, y = torch.randn(3, 8).double(), torch.randn(3, 8).double()
    fused = tk.fuse(module, min_score=0)
    for ours, torchs in zip(results(fused, module, x, y), results(module, module, x, y)):
        torch.testing.assert_close(
            ours, torchs, rtol=1e-9, atol=1e-9, msg=lambda m: m + f"\n{fused.plan}"
        )
