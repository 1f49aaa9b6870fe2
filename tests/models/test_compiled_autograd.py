"""torch's compiled autograd: the backward pass of a training step is traced, too."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import triton_kernels as tk

pytestmark = pytest.mark.usefixtures("fresh")

MODELS: dict[str, Callable[[], nn.Module]] = {
    "torch's layers": lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)),
    "MLP": lambda: tk.nn.MLP(8, 16, 8, act="silu"),
    "GatedMLP": lambda: tk.nn.GatedMLP(8, 16, 8),
}


@pytest.mark.parametrize("rest", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", MODELS)
def test_a_step(name: str, rest: str, device: torch.device) -> None:
    """It calls the Functions' backward passes, and registers modules of torch's while they are
    half made, which the hook that watches for adapters is told of."""
    tk.nn.LinearGELU(8, 8)  # from here on that hook is there
    torch.manual_seed(0)
    model = MODELS[name]().to(device)
    same = copy.deepcopy(model)

    def step(x: Tensor) -> Tensor:
        loss: Tensor = model(x).square().sum()
        loss.backward()
        return loss

    options = {"min_score": 0, "rest": rest}
    with torch._dynamo.config.patch(compiled_autograd=True):
        compiled = torch.compile(step, backend="triton_kernels", options=options)
        x = torch.randn(4, 8, device=device)
        loss = compiled(x)
    expected = same(x).square().sum()
    expected.backward()
    torch.testing.assert_close(loss, expected)
    for p, q in zip(model.parameters(), same.parameters()):
        torch.testing.assert_close(p.grad, q.grad)
