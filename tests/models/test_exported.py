"""Programs of torch.export: their operators of aten count as the functions that people write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from written import Apply, inputs, kernels

import triton_kernels as tk
from triton_kernels.graph.callees import called

pytestmark = pytest.mark.usefixtures("fresh", "no_grad")


def linear(m: Any, x: Tensor) -> Tensor:
    return F.linear(x, m.w, m.b)


def tanh_gelu(h: Tensor) -> Tensor:
    return h * 0.5 * (1.0 + torch.tanh(0.79788456 * h * (1 + 0.044715 * h * h)))


def steps(m: Any, x: Tensor) -> Tensor:
    h = F.dropout(linear(m, x), 0.1, training=False)
    h += m.b
    return h


WRITTEN: dict[str, tuple[Callable[..., Tensor], tuple[str, str]]] = {
    "spelled": (lambda m, x, y: tanh_gelu(linear(m, x)), ("linear_gelu", "gelu_tanh")),
    "composed": (lambda m, x, y: F.mish(linear(m, x)), ("linear_act", "mish(x)")),
    "in place": (
        lambda m, x, y: F.hardswish(linear(m, x), inplace=True),
        ("linear_act", "hardswish(x)"),
    ),
    "quick gelu": (
        lambda m, x, y: (lambda h: h * torch.sigmoid(1.702 * h))(linear(m, x)),
        ("linear_act", "(x * sigmoid(x * 1.702))"),
    ),
    "a slope": (
        lambda m, x, y: F.leaky_relu(linear(m, x), 0.2),
        ("linear_act", "leaky_relu(x, 0.2)"),
    ),
    "squared": (lambda m, x, y: F.relu(linear(m, x)) ** 2, ("linear_act", "square(relu(x))")),
    "wider": (lambda m, x, y: F.gelu(linear(m, x).float()).to(x.dtype), ("linear_gelu", "gelu")),
    "a view": (lambda m, x, y: F.relu(linear(m, x).view(-1, 8)), ("linear_act", "relu")),
    "dropout, +=": (lambda m, x, y: F.silu(steps(m, x)), ("gemm_bias_act", "silu")),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", WRITTEN)
def test_fused_as_what_was_written(name: str, dtype: torch.dtype, cpu: torch.device) -> None:
    function, kernel = WRITTEN[name]
    model = Apply(function).to(dtype).eval()
    x, y = inputs(cpu, dtype)
    exported = torch.export.export(model, (x, y), strict=False).module()
    fused = tk.fuse(exported, min_score=0)
    found, right = fused(x, y), model.double()(x.double(), y.double())
    assert kernels(fused.plan) == [kernel], fused.plan
    limit = 16 * torch.finfo(dtype).eps * right.abs().max()
    assert (found.double() - right).abs().max() <= limit


def test_names_that_a_user_gave_are_no_callees() -> None:
    """A submodule, an attribute or an argument may be called like a method of a tensor."""
    graph = torch.fx.Graph()
    x = graph.placeholder("sigmoid")
    module = graph.call_module("relu", (x,))
    attribute = graph.get_attr("half")
    assert [called(node) for node in (x, module, attribute)] == [None, None, None]
    assert called(graph.call_method("relu_", (x,))) == "relu"
