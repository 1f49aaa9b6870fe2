"""fuse(precision=): float32 products in another precision, with or without something to fuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import triton_kernels as tk
from triton_kernels._fusion import Problem
from triton_kernels.gemm import parts
from triton_kernels.gemm.arguments import Gemm
from triton_kernels.gemm.configurations import Configuration
from triton_kernels.graph import capabilities, racing
from triton_kernels.graph.matching import Matcher


class Block(nn.Module):
    """Products alone, with an epilogue, by a matrix, as a convolution; none may be a reshape."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(24, 24), nn.Linear(24, 24, bias=False)
        self.up, self.down = nn.Linear(24, 48), nn.Linear(48, 24)
        self.matrix = nn.Parameter(torch.randn(24, 16))
        self.convolution = nn.Conv2d(24, 8, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x + self.gate(x) * self.value(x)
        x = x + self.down(nn.functional.gelu(self.up(x)))
        return x @ self.matrix, self.convolution(x.reshape(2, 5, 1, 24).permute(0, 3, 1, 2))


def model(dtype: torch.dtype = torch.float32) -> tuple[Block, Tensor]:
    torch.manual_seed(0)
    return Block().to(dtype), torch.randn(2, 5, 24, dtype=dtype)


def test_every_product_has_the_precision(cpu: torch.device) -> None:
    module, x = model()
    fused = tk.fuse(module, min_score=0, precision="f16x3")
    with torch.no_grad():
        found, eager = fused(x), module(x)
        right = module.double()(x.double())
    products = {step.nodes[0]: step.precision for step in fused.plan.steps}
    assert len(products) == 6
    assert set(products.values()) == {"f16x3"}
    assert "value → linear_act in f16x3" in str(fused.plan)
    for mine, torchs, wide in zip(found, eager, right):
        errors = [(t.double() - wide).norm() for t in (mine, torchs)]
        assert errors[0] < 2 * errors[1]
    usual = tk.fuse(model()[0], min_score=0)
    usual(x)
    assert not any(step.precision for step in usual.plan.steps)
    assert {line.node for line in usual.plan.left} >= {"value", "matmul", "conv2d"}


def test_gradients_have_it_too(cpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    by_parts = parts.by_parts

    def noted(chosen: Configuration, most: int, gemm: Gemm) -> None:
        asked.append(gemm.shape)
        by_parts(chosen, most, gemm)

    monkeypatch.setattr("triton_kernels.gemm.launch.by_parts", noted)
    layer, x = nn.Linear(8, 6), torch.randn(5, 8, requires_grad=True)
    tk.fuse(layer, min_score=0, precision="f16x3")(x).sum().backward()
    assert asked == [(5, 6, 8), (5, 8, 6), (6, 8, 5)]
    grad, x.grad = x.grad, None
    layer(x).sum().backward()
    torch.testing.assert_close(grad, x.grad)


def test_other_dtypes_are_as_without(cpu: torch.device) -> None:
    """Also under autocast, where float32 operands become 16-bit ones."""
    module, x = model(torch.bfloat16)
    fused = tk.fuse(module, min_score=0, precision="f16x3")
    fused(x)
    assert not any(step.precision for step in fused.plan.steps)
    module, x = model()
    fused = tk.fuse(module, min_score=0, precision="f16x3")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fused(x)
    assert fused.plan.steps
    assert not any(step.precision for step in fused.plan.steps)


def test_the_backend_and_explain(cpu: torch.device) -> None:
    module, x = model()
    options = {"precision": "tf32x3", "min_score": 0}
    torch._dynamo.reset()
    found = torch.compile(module, backend="triton_kernels", options=options)(x)
    for mine, eager in zip(found, module(x)):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4)
    explained = tk.explain(module, x, precision="tf32x3", min_score=0)
    assert all(step.precision == "tf32x3" for step in explained.plans[0].steps)
    # It was not measured, so without a GPU to time it nothing is taken.
    (plan,) = tk.explain(module, x, precision="f16x3").plans
    assert not plan.steps
    assert "not measured for float32 on capability 90 in precision f16x3" in str(plan)


def test_a_wrong_one() -> None:
    with pytest.raises(ValueError, match=r"'precision' must be one of .*'f16x3'.* got 'fp8'"):
        tk.fuse(nn.Linear(2, 2), precision="fp8")


def test_of_a_product_alone_the_product_is_timed(
    cpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor does nothing after it; and in a training step it may save its time."""
    asked: list[Problem] = []

    def speed(match: Any, problem: Problem) -> float:
        assert not racing.hopeless(match, problem)
        asked.append(problem)
        return 3.0

    monkeypatch.setattr(racing, "speed", speed)
    explained = tk.explain(nn.Linear(8, 6), torch.randn(5, 8), precision="f16x3", rest="inductor")
    (step,) = explained.plans[0].steps
    assert (step.kernel, step.score, step.precision) == ("linear_act", 3.0, "f16x3")
    assert (asked[0].precision, asked[0].extra, asked[0].act) == ("f16x3", 0, "none")
    gpu = capabilities._launch.gpu(capabilities._elementwise_kernels.flat_kernel, asked[0].device)
    assert racing._rest(asked[0], gpu, True)(50.0) == pytest.approx(50.0)


def test_sizes_are_known_whatever_others_were_called_with(
    cpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch remembers which sizes changed for code of one name and place."""
    seen: list[int | None] = []
    problem = Matcher.problem

    def noted(*args: Any) -> Problem:
        seen.append(problem(*args).M)
        return problem(*args)

    monkeypatch.setattr(Matcher, "problem", noted)
    for rows in (3, 4, 5):
        fused = tk.fuse(nn.Sequential(nn.Linear(8, 6), nn.ReLU()), min_score=0)
        fused(torch.randn(rows, 8))
    assert seen == [3, 4, 5]
