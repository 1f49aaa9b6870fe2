"""Products whose epilogue Inductor has for little, since it passes over their results anyway."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import triton_kernels as tk
from triton_kernels._fusion import Problem
from triton_kernels.graph import capabilities

pytestmark = pytest.mark.usefixtures("fresh")

SIZE = 512


class Layers(nn.Module):
    """Three linear layers, and what a test does with them."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.third = (
            nn.Linear(SIZE, SIZE, device="meta", dtype=torch.bfloat16) for _ in range(3)
        )
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def activated(m: Layers, x: Tensor) -> Tensor:
    return F.gelu(m.first(x))


CASES: dict[str, tuple[Callable[[Layers, Tensor], object], int | None]] = {
    "the graph ends": (activated, None),
    "a product follows": (lambda m, x: m.second(activated(m, x)), None),
    "attention follows, behind views": (
        lambda m, x: F.scaled_dot_product_attention(
            *[activated(m, x).view(-1, 8, 64).transpose(0, 1)] * 3
        ),
        None,
    ),
    "a gate": (lambda m, x: activated(m, x) * m.second(x), 0),
    "a gate behind views": (lambda m, x: activated(m, x).view(-1, 2, SIZE).chunk(2, 1)[0] * 2, 0),
    "a norm": (lambda m, x: F.layer_norm(activated(m, x), (SIZE,)), 0),
    "a gate and a product": (lambda m, x: ((h := activated(m, x)) * x) @ m.second(h).t(), 1),
    "a sum alone": (lambda m, x: m.first(x) + x, None),
    "a sum and a norm": (lambda m, x: F.layer_norm(m.first(x) + x, (SIZE,)), 1),
    "a residual": (lambda m, x: (h := m.first(x) + x) + m.second(F.layer_norm(h, (SIZE,))), 2),
}


@pytest.mark.parametrize("name", CASES)
def test_what_inductor_passes_over_in_any_case(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Problem] = []
    judge = capabilities.judge

    def noted(problem: Problem, least: float) -> capabilities.Verdict:
        asked.append(problem)
        return judge(problem, least)

    monkeypatch.setattr(capabilities, "judge", noted)
    function, extra = CASES[name]
    x = torch.empty(1024, SIZE, device="meta", dtype=torch.bfloat16)
    for rest in ("eager", "inductor"):
        asked.clear()
        tk.explain(Layers(function), x, rest=rest, passes=("epilogue",))  # type: ignore[arg-type]
        first = [p for p in asked if p.M is not None][-1]  # plans begin at the end
        assert first.extra == (extra if rest == "inductor" else None)


def taken(function: Callable[..., Tensor], rest: str) -> int:
    """How many kernels a plan without gradients has."""
    x = torch.empty(8192, SIZE, device="meta", dtype=torch.bfloat16)
    with torch.no_grad():
        (plan,) = tk.explain(Layers(function), x, rest=rest).plans
    return len(plan.steps)


def test_a_gate_is_left_to_inductor() -> None:
    """Its kernel of the multiplication reads the product, or the gate: it takes the same time."""

    def gated(m: Layers, x: Tensor) -> Tensor:
        return m.third(activated(m, x) * m.second(x))

    def alone(m: Layers, x: Tensor) -> Tensor:
        return m.third(activated(m, x))

    assert taken(gated, "eager") >= taken(alone, "eager") == 1
    assert (taken(gated, "inductor"), taken(alone, "inductor")) == (0, 1)
