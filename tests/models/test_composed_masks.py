"""Composed activations drop a gradient where torch's backward passes do, even an infinite one or
NaN, and multiply it where those do."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from written import Apply, kernels

import triton_kernels as tk
from triton_kernels.graph import composing

pytestmark = pytest.mark.usefixtures("fresh")

NUMBERS = [-math.inf, -7.0, -3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 6.0, 7.0, math.inf]
GRADS = [math.inf, -math.inf, math.nan, 2.0, 0.0]
COMPOSED: dict[str, Callable[[Tensor], Tensor]] = {
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "clamp": lambda h: h.clamp(-1, 1),
    "clamp below": lambda h: h.clamp(min=0),
    "clamp above": lambda h: h.clamp_max(1),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "softshrink": F.softshrink,
    "relu, scaled": lambda h: F.relu(h * 2) * 3,
    "relu, squared": lambda h: F.relu(h).square(),
    "relu of a curve": lambda h: F.relu(torch.sin(h)),
    "a curve of a clamp": lambda h: torch.sin(h.clamp(-1, 1)),
    "a root of a relu": lambda h: torch.sqrt(F.relu(h)),
    "a logarithm of a relu": lambda h: torch.log(F.relu(h)),
    # Dropped after an infinite slope: 0·∞.
    "a clamp of a logarithm": lambda h: torch.log(h).clamp(min=-5),
    "a clamp of a root": lambda h: torch.sqrt(h).clamp(min=0.5),
    "twice": lambda h: F.relu6(F.hardswish(h)),
    "all ways drop": lambda h: F.relu(h) * h.clamp(min=-1),
    "one way drops": lambda h: h * F.relu(h),
    "beside its value": lambda h: h.detach() * F.relu(h),
    "a value of its own": lambda h: h * torch.sigmoid(h).detach(),
    # Multiplied everywhere.
    "leaky, slope 0": lambda h: F.leaky_relu(h, 0.0),
    "abs": lambda h: torch.abs(h),
    "times 0": lambda h: torch.sin(h) * 0.0,
    "elu": F.elu,
    "softplus": F.softplus,
}  # fmt: skip


def close(found: Tensor, expected: Tensor) -> None:
    tolerance = 8 * max(torch.finfo(found.dtype).eps, 2.0**-23)  # of torch's sixth in hardsigmoid
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", COMPOSED)
def test_of_a_product(name: str, dtype: torch.dtype, device: torch.device) -> None:
    module = Apply(lambda m, x, y: COMPOSED[name](F.linear(x, y)))
    x = torch.tensor(NUMBERS, dtype=dtype, device=device).repeat_interleave(len(GRADS))[:, None]
    grad = torch.tensor(GRADS, dtype=dtype, device=device).repeat(len(NUMBERS))[:, None]
    one = torch.ones(1, 1, dtype=dtype, device=device)
    x.requires_grad_()
    fused = tk.fuse(module, min_score=0)
    found, expected = (torch.autograd.grad(f(x, one), x, grad)[0] for f in (fused, module))
    assert [kernel for kernel, _ in kernels(fused.plan)] == ["linear_act"], fused.plan
    close(found, expected)


STEPS: dict[str, composing.Written] = {
    "relu6": (("hardtanh", (0,), (0.0, 6.0)),),
    "hardswish": (("hardswish", (0,), ()),),
    "relu, squared": (("relu", (0,), ()), ("square", (1,), ())),
    "one way drops": (("relu", (0,), ()), ("mul", (0, 1), ())),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", STEPS)
def test_of_a_gate(name: str, dtype: torch.dtype, device: torch.device) -> None:
    """Where the gate drops the gradient, what it multiplies may be infinite, too."""
    gate, grad, up = (
        each.contiguous()
        for each in torch.broadcast_tensors(
            torch.tensor(NUMBERS, dtype=dtype, device=device)[:, None, None],
            torch.tensor(GRADS, dtype=dtype, device=device)[:, None],
            torch.tensor([1.0, math.inf], dtype=dtype, device=device),
        )
    )
    gate.requires_grad_()
    (expected,) = torch.autograd.grad(COMPOSED[name](gate) * up, gate, grad)
    out = tk.act_mul(gate, up, composing._registered(STEPS[name]))
    close(torch.autograd.grad(out, gate, grad)[0], expected)
