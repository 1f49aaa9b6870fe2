"""torch.func's transforms: in torch.compile, of our layers and of models that it fuses; nested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, functionalize, grad, jacrev, jvp, vjp, vmap
from torch.utils._pytree import tree_leaves

import triton_kernels as tk

pytestmark = pytest.mark.usefixtures("fresh")

DOUBLE = torch.float64


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


PLAIN: dict[str, Callable[[], nn.Module]] = {
    "gelu": lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU()),
    "gated": Gated,
}
OURS: dict[str, Callable[[], nn.Module]] = {
    "LinearGELU": lambda: tk.nn.LinearGELU(8, 16),
    "MLP": lambda: tk.nn.MLP(8, 16, 8, act="relu"),
    "GatedMLP": lambda: tk.nn.GatedMLP(8, 16, 8),
    "ReLUScale": lambda: tk.nn.ReLUScale(nn.Parameter(torch.rand(8) + 0.5)),
}


def transformed(module: nn.Module) -> dict[str, Callable[[dict[str, Tensor], Tensor], Any]]:
    def call(p: dict[str, Tensor], x: Tensor) -> Any:
        return functional_call(module, p, (x,))

    def loss(p: dict[str, Tensor], x: Tensor) -> Tensor:
        return call(p, x).square().sum()  # type: ignore[no-any-return]

    return {
        "grad": grad(loss),
        "vmap": lambda p, x: vmap(lambda row: call(p, row))(x),
        "gradients of each sample": vmap(grad(loss), (None, 0)),
        "vjp": lambda p, x: vjp(lambda x: call(p, x).sum(0), x)[1](torch.ones_like(call(p, x)[0])),
        "jacrev": lambda p, x: jacrev(lambda x: call(p, x).sum(0))(x),
    }


def inputs(module: nn.Module) -> tuple[dict[str, Tensor], Tensor]:
    return {name: p.detach() for name, p in module.named_parameters()}, torch.randn(4, 8)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", OURS)
def test_layers(name: str, backend: str, cpu: torch.device) -> None:
    torch.manual_seed(0)
    module = OURS[name]()
    given = inputs(module)
    for function in transformed(module).values():
        found = torch.compile(function, backend=backend, fullgraph=True)(*given)
        same(found, function(*given))


@pytest.mark.parametrize("rest", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", PLAIN)
def test_fused_by_the_backend(name: str, rest: str, cpu: torch.device) -> None:
    torch.manual_seed(0)
    module = PLAIN[name]()
    given = inputs(module)
    options: Any = {"min_score": 0, "rest": rest}
    for function in transformed(module).values():
        found = torch.compile(function, backend="triton_kernels", options=options)(*given)
        same(found, function(*given))


def same(found: Any, right: Any) -> None:
    for mine, theirs in zip(tree_leaves(found), tree_leaves(right), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


# ---- nested, in eager mode ----


def ours(x: Tensor, w: Tensor) -> Tensor:
    return tk.square(tk.linear_act(x, w, act="leaky_relu"))


def theirs(x: Tensor, w: Tensor) -> Tensor:
    return F.leaky_relu(F.linear(x, w)).square()


NESTED: dict[str, Callable[[Callable[..., Tensor], Tensor, Tensor], Any]] = {
    "a weight from outside": lambda f, x, w: torch.autograd.grad(
        grad(lambda x: f(x, w).sum())(x).square().sum(), w
    ),
    "the weight's gradient of x's": lambda f, x, w: grad(
        lambda w: grad(lambda x: f(x, w).sum())(x).square().sum()
    )(w.detach()),
    "forward over reverse": lambda f, x, w: jvp(grad(lambda x: f(x, w).sum()), (x,), (x,)),
    "hessian": lambda f, x, w: jacrev(jacrev(lambda x: f(x, w).sum()))(x),
    "functionalize inside": lambda f, x, w: grad(functionalize(lambda x: f(x, w).sum()))(x),
    "functionalize outside": lambda f, x, w: functionalize(grad(lambda x: f(x, w).sum()))(x),
}


@pytest.mark.parametrize("name", NESTED)
def test_nested(name: str, cpu: torch.device) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(3, 5, dtype=DOUBLE), torch.randn(4, 5, dtype=DOUBLE, requires_grad=True)
    torch.testing.assert_close(NESTED[name](ours, x, w), NESTED[name](theirs, x, w))
