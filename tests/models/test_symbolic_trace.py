"""torch.fx.symbolic_trace records a call of our functions, whose arguments are no tensors then."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Transformer, symbolic_trace

import triton_kernels as tk


class Functions(nn.Module):
    """Public functions, by their names in the package."""

    def forward(self, x: Tensor) -> Tensor:
        rows = tk.sum_to(tk.add(tk.square(x), x, alpha=2), (1, 8))
        weight = torch.full((8, 8), 0.1)
        return rows + tk.nn.linear_gated(x, weight, weight, act="silu")


MODULES: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    "LinearGELU": (lambda: tk.nn.LinearGELU(8, 6), ["linear_gelu"]),
    "LinearAct": (lambda: tk.nn.LinearAct(8, 6, bias=False, act="silu"), ["linear_act"]),
    "MLP": (lambda: tk.nn.MLP(8, 16, 8), ["linear_act", "linear_act"]),
    "GatedMLP": (
        lambda: tk.nn.GatedMLP(8, 16, 8),
        ["0.gate_proj", "0.up_proj", "act_mul", "0.down_proj"],
    ),
    "ReLUScale": (lambda: tk.nn.ReLUScale(nn.Parameter(torch.ones(8))), ["relu_scale"]),
    "functions": (Functions, ["square", "add", "sum_to", "linear_gated", "add"]),
}


def traced(module: nn.Module) -> GraphModule:
    return symbolic_trace(nn.Sequential(module))


@pytest.mark.parametrize("name", MODULES)
def test_calls_are_recorded(name: str, cpu: torch.device) -> None:
    make, calls = MODULES[name]
    torch.manual_seed(0)
    module, x = make(), torch.randn(4, 8)
    graph = traced(module)
    found = [
        getattr(node.target, "__name__", node.target)
        for node in graph.graph.nodes
        if node.op in ("call_function", "call_module")
    ]
    assert found == calls
    assert torch.equal(graph(x), module(x))
    assert [key.removeprefix("0.") for key, _ in graph.named_parameters()] == [
        key for key, _ in module.named_parameters()
    ]


def test_after_replace_modules(cpu: torch.device) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    tk.replace_modules(model, min_score=0)
    x = torch.randn(4, 8)
    assert torch.equal(traced(model)(x), model(x))


AGAIN: dict[str, Callable[[GraphModule], Any]] = {
    "traced": symbolic_trace,
    "transformed": lambda graph: Transformer(graph).transform(),
    "copied": copy.deepcopy,
    "pickled": lambda graph: pickle.loads(pickle.dumps(graph)),
    "fused": lambda graph: tk.fuse(graph, min_score=0),
    "compiled": lambda graph: torch.compile(graph, backend="eager", fullgraph=True),
}


@pytest.mark.parametrize("name", AGAIN)
def test_the_graph_is_one_like_others(name: str, cpu: torch.device) -> None:
    graph, x = traced(tk.nn.MLP(8, 16, 8)), torch.randn(4, 8)
    again = AGAIN[name](graph)
    torch.testing.assert_close(again(x), graph(x))
    again(x).sum().backward()
