"""What users write for a fused kernel, as modules; the kernels that a plan has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Apply(nn.Module):
    """A function of tensors and the parameters w [8, 8], v [6, 8], b [8]."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.w = nn.Parameter(torch.randn(8, 8, generator=generator) / 4)
        self.v = nn.Parameter(torch.randn(6, 8, generator=generator) / 4)
        self.b = nn.Parameter(torch.randn(8, generator=generator))
        self.function = function

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.function(self, x, y)


def inputs(device: torch.device, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(2, 3, 8, generator=generator) for _ in range(2))
    return x.to(device, dtype), y.to(device, dtype)


def kernels(plan) -> list[tuple[str, str]]:
    return [(step.kernel, step.act) for step in plan.steps]


GELU, LINEAR, BIAS_ACT = "linear_gelu", "linear_act", "gemm_bias_act"
# name → what a user writes, the kernels that it becomes, (m, x, y)
FUSED: dict[str, tuple[Callable[..., Any], list[tuple[str, str]]]] = {
    "linear gelu": (lambda m, x, y: F.gelu(F.linear(x, m.v)), [(GELU, "gelu")]),
    "gelu tanh": (
        lambda m, x, y: F.gelu(F.linear(x, m.w, m.b), approximate="tanh"),
        [(GELU, "gelu_tanh")],
    ),
    "relu function": (lambda m, x, y: F.relu(F.linear(x, m.w, m.b)), [(LINEAR, "relu")]),
    "relu method": (lambda m, x, y: F.linear(x, m.v).relu(), [(LINEAR, "relu")]),
    "relu in place": (lambda m, x, y: F.linear(x, m.v).relu_(), [(LINEAR, "relu")]),
    "silu": (lambda m, x, y: F.silu(F.linear(x, m.w, bias=m.b)), [(LINEAR, "silu")]),
    "sigmoid": (lambda m, x, y: torch.sigmoid(F.linear(x, m.w)), [(LINEAR, "sigmoid")]),
    "tanh": (lambda m, x, y: F.linear(x, m.w).tanh(), [(LINEAR, "tanh")]),
    "leaky": (lambda m, x, y: F.leaky_relu(F.linear(x, m.w)), [(LINEAR, "leaky_relu")]),
    "leaky, nearly": (
        lambda m, x, y: F.leaky_relu(F.linear(x, m.w), 0.0101),
        [(LINEAR, "leaky_relu(x, 0.0101)")],
    ),
    "matmul": (lambda m, x, y: torch.relu(x @ m.w), [(BIAS_ACT, "relu")]),
    "matmul bias": (lambda m, x, y: torch.matmul(x, m.v.t()) + m.b[:6], [(BIAS_ACT, "none")]),
    "x @ w.T + b": (lambda m, x, y: F.gelu(x @ m.w.t() + m.b), [(BIAS_ACT, "gelu")]),
    "b + mm": (lambda m, x, y: m.b + torch.mm(x[0], m.w), [(BIAS_ACT, "none")]),
    "addmm bias": (lambda m, x, y: F.relu(torch.addmm(m.b, x[0], m.w)), [(BIAS_ACT, "relu")]),
    "addmm scaled bias": (
        lambda m, x, y: F.relu(torch.addmm(m.b, x[0], m.w, beta=0.5)),
        [(BIAS_ACT, "relu")],
    ),
    "addmm": (
        lambda m, x, y: torch.addmm(y[0], x[0], m.w, beta=0.5, alpha=2).relu(),
        [(BIAS_ACT, "relu")],
    ),
    "residual, then act": (
        lambda m, x, y: F.gelu(F.linear(x, m.w, m.b) + y),
        [(BIAS_ACT, "gelu")],
    ),
    "residual": (lambda m, x, y: y + F.linear(x, m.w, m.b), [(BIAS_ACT, "none")]),
    "scaled residual": (
        lambda m, x, y: torch.add(F.linear(x, m.w, m.b), y, alpha=0.3),
        [(BIAS_ACT, "none")],
    ),
    "scaled row": (
        lambda m, x, y: torch.add(x @ m.w, m.b, alpha=0.3),
        [(BIAS_ACT, "none")],
    ),
    "residual times a number": (
        lambda m, x, y: torch.tanh(F.linear(x, m.w, m.b) + 0.3 * y),
        [(BIAS_ACT, "tanh")],
    ),
    "scaled product": (lambda m, x, y: torch.add(y, x @ m.w, alpha=0.3), [(BIAS_ACT, "none")]),
    "bias and residual": (
        lambda m, x, y: F.silu((x @ m.w + m.b) + y),
        [(BIAS_ACT, "silu")],
    ),
    "product plus product": (
        lambda m, x, y: F.relu(x @ m.w + y @ m.w),
        [(BIAS_ACT, "relu")],
    ),
    "two layers": (
        lambda m, x, y: F.linear(F.gelu(F.linear(x, m.w)), m.w) + x,
        [(GELU, "gelu"), (BIAS_ACT, "none")],
    ),
    "relu scale": (lambda m, x, y: torch.relu(x) * 0.5, [("relu_scale", "none")]),
    "scale relu": (lambda m, x, y: 2 * x.relu(), [("relu_scale", "none")]),
    "relu scale add": (lambda m, x, y: F.relu(x) * 0.5 + y, [("relu_scale_add", "none")]),
    "add relu scale": (lambda m, x, y: y + 0.5 * F.relu(x), [("relu_scale_add", "none")]),
    "relu scale add, broadcast": (
        lambda m, x, y: F.relu(x) * 0.5 + m.b,
        [("relu_scale_add", "none")],
    ),
    "relu times a tensor, add": (
        lambda m, x, y: y + m.b * F.relu(x),
        [("relu_scale_add", "none")],
    ),
    "x + a·y": (lambda m, x, y: x + 0.3 * y, [("add", "none")]),
    "a·x + y": (lambda m, x, y: x.mul(3) + y, [("add", "none")]),
    "add of scaled": (lambda m, x, y: torch.add(x, y * 2, alpha=0.5), [("add", "none")]),
    "x·x": (lambda m, x, y: x * x, [("square", "none")]),
    "x²": (lambda m, x, y: x**2, [("square", "none")]),
    "square": (lambda m, x, y: x.square(), [("square", "none")]),
}
