"""Nested tensors, the jagged batches of torch: nothing is fused, and models compute as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import triton_kernels as tk

pytestmark = pytest.mark.usefixtures("fresh")

WRITTEN: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "activation": lambda m, x: F.gelu(m.l(x)),
    "residual": lambda m, x: x + m.l(x) * m.g,
    "gate": lambda m, x: F.silu(m.l(x)) * m.l(x.sin()),
    "sum": lambda m, x: x + 0.5 * x.sin(),
    "scaled": lambda m, x: F.relu(x) * 2 + x,
}


class Model(nn.Module):
    def __init__(self, name: str, device: torch.device) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.l, self.g = nn.Linear(8, 8, device=device), nn.Parameter(torch.randn(8, device=device))
        self.written = WRITTEN[name]

    def forward(self, x: Tensor) -> Tensor:
        return self.written(self, x)


@pytest.mark.parametrize("name", WRITTEN)
def test_left_with_the_reason(name: str, device: torch.device) -> None:
    """Their length is a size that cannot be compared with others."""
    model = Model(name, device)
    rows = [torch.randn(n, 8, device=device) for n in (3, 5)]
    x = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
    expected = model(x).values()
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    fused = tk.fuse(model, min_score=0)
    backend = torch.compile(model, backend="triton_kernels", options={"min_score": 0})
    for call in (fused, backend):
        out = call(x).values()
        assert torch.equal(out, expected)
        (again,) = torch.autograd.grad(out.sum(), x)
        assert torch.equal(again.values(), gradient.values())
    assert not fused.plan.steps
    assert "is a NestedTensor, layout torch.jagged" in str(fused.plan)
