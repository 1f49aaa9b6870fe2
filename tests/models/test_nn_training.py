"""Gradients of the modules, and of fused, replaced and compiled models."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_activations import TORCH

import triton_kernels as tk
from triton_kernels import graph
from triton_kernels.activations import ACTIVATIONS


@pytest.fixture
def device(device: torch.device) -> Iterator[torch.device]:
    """With the backend known, and nothing compiled before."""
    graph.register()
    yield device
    torch._dynamo.reset()


def gradients(module: nn.Module, x: Tensor, weight: Tensor) -> list[Tensor]:
    """Of Σ weight·module(x): x's and the parameters'."""
    x = x.detach().clone().requires_grad_()
    wanted = [x, *module.parameters()]
    return list(torch.autograd.grad((module(x) * weight).sum(), wanted))


def compared(ours: nn.Module, theirs: nn.Module, x: Tensor, columns: int) -> None:
    """Against torch in float64; sums of a few dozen float32 products of numbers around 1."""
    weight = torch.randn(*x.shape[:-1], columns, device=x.device)
    exact = gradients(theirs.double(), x.double(), weight.double())
    found = gradients(ours, x, weight)
    assert len(found) == len(exact)
    for mine, right in zip(found, exact):
        assert mine.dtype == x.dtype
        torch.testing.assert_close(mine.double(), right, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("shape", [(7,), (5, 7), (2, 3, 7)])
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_linear_act(act: str, shape: tuple[int, ...], device: torch.device) -> None:
    torch.manual_seed(0)
    layer = tk.nn.LinearAct(7, 4, bias=len(shape) > 1, act=act, device=device)
    plain = nn.Linear(7, 4, bias=len(shape) > 1, device=device)
    plain.load_state_dict(layer.state_dict())
    compared(layer, nn.Sequential(plain, TORCH[act]), torch.randn(shape, device=device), 4)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_linear_gelu(approximate: str, device: torch.device) -> None:
    torch.manual_seed(0)
    layer = tk.nn.LinearGELU(7, 4, approximate=approximate, device=device)
    plain = nn.Linear(7, 4, device=device)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(2, 3, 7, device=device)
    compared(layer, nn.Sequential(plain, nn.GELU(approximate)), x, 4)


def test_relu_scale(device: torch.device) -> None:
    theirs = nn.Sequential(nn.ReLU(), ReLUTimes(0.7))
    x = torch.randn(3, 5, device=device)
    compared(tk.nn.ReLUScale(0.7), theirs, x, 5)


def test_a_relu_scale_that_is_learned(device: torch.device) -> None:
    scale = torch.tensor([[0.7], [-2.0], [0.0]], device=device)
    theirs = nn.Sequential(nn.ReLU(), ReLUTimes(nn.Parameter(scale.clone())))
    x = torch.randn(3, 5, device=device)
    compared(tk.nn.ReLUScale(nn.Parameter(scale)), theirs, x, 5)


class ReLUTimes(nn.Module):
    def __init__(self, factor: Tensor | float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def sequential(device: torch.device) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 4), nn.SiLU()).to(device)


def test_replaced_model(device: torch.device) -> None:
    model = sequential(device)
    original = copy.deepcopy(model)
    assert len(tk.replace_modules(model, min_score=0).replaced) == 2
    compared(model, original, torch.randn(5, 6, device=device), 4)


class Residual(nn.Module):
    """gelu(fc(x) + x), then relu·scale + x: all patterns that have gradients of several inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.fc(x) + 0.5 * x)
        return torch.relu(h) * 0.3 + x


def compiled(rest: str) -> Callable[[nn.Module], nn.Module]:
    options = {"min_score": 0, "rest": rest}
    return lambda m: torch.compile(m, backend="triton_kernels", options=options, fullgraph=True)


WAYS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "fuse": lambda m: tk.fuse(m, min_score=0),
    "compiled, eager": compiled("eager"),
    "compiled, inductor": compiled("inductor"),
}


@pytest.mark.parametrize("way", WAYS)
def test_rewritten_graph(way: str, device: torch.device) -> None:
    torch.manual_seed(0)
    model = Residual().to(device)
    x = torch.randn(2, 3, 6, device=device)
    (plan,) = tk.explain(model, x, min_score=0).plans
    assert [step.kernel for step in plan.steps] == ["gemm_bias_act", "relu_scale_add"]
    compared(WAYS[way](model), copy.deepcopy(model), x, 6)


@pytest.mark.parametrize("way", ["modules", "fuse", "compiled, eager"])
def test_training_loop(way: str, device: torch.device) -> None:
    """Ten steps of SGD: the loss falls and stays with torch's, parameter by parameter."""
    torch.manual_seed(0)
    x, target = torch.randn(8, 6, device=device), torch.randn(8, 4, device=device)
    theirs = sequential(device)
    ours = copy.deepcopy(theirs)
    if way == "modules":
        tk.replace_modules(ours, min_score=0)
    stepped = ours if way == "modules" else WAYS[way](ours)
    losses = []
    for model, called in ((theirs, theirs), (ours, stepped)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        losses.append([])
        for _ in range(10):
            loss = F.mse_loss(called(x), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[1][-1] < 0.9 * losses[1][0]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    for mine, other in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-5)


def test_mlp_learns(device: torch.device) -> None:
    torch.manual_seed(0)
    mlp = tk.nn.MLP(4, 16, 1, act="tanh", device=device)
    x = torch.randn(32, 4, device=device)
    target = x.prod(1, keepdim=True).sign()
    optimizer = torch.optim.Adam(mlp.parameters(), lr=0.05)
    first = None
    for _ in range(30):
        loss = F.mse_loss(mlp(x), target)
        first = first or loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.5 * first
