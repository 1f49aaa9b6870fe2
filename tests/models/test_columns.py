"""Products whose columns are scaled, as by LayerScale and BatchNorm in eval: the factors go into
the weight, and the rest is one kernel."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from written import Apply, inputs, kernels

import triton_kernels as tk
from compare import check_fused
from triton_kernels import _fusion
from triton_kernels.graph import capabilities, matching

pytestmark = pytest.mark.usefixtures("fresh")


def rows(m: Any, x: Tensor) -> Tensor:
    return F.linear(x.flatten(0, 1), m.w, m.b)


def norm(m: Any, h: Tensor, training: bool = False) -> Tensor:
    """BatchNorm by statistics that are not 0 and 1."""
    mean, variance = m.b.detach() * 0.5, 0.5 + m.b.detach().abs()
    return F.batch_norm(h, mean, variance, m.w[0] + 2, m.b, training, 0.0, 1e-3)


SCALED: dict[str, tuple[Callable[..., Any], str]] = {
    "a row": (lambda m, x, y: F.linear(x, m.w, m.b) * m.b, "none"),
    "a row, before": (lambda m, x, y: m.b.view(1, 1, 8) * F.linear(x, m.w), "none"),
    "a row, then relu": (lambda m, x, y: F.relu(F.linear(x, m.w, m.b) * m.b), "relu"),
    "LayerScale": (lambda m, x, y: F.linear(x, m.w, m.b) * m.b + y, "none"),
    "by columns": (lambda m, x, y: torch.tanh((x @ m.w) * m.b), "tanh"),
    "one element": (lambda m, x, y: F.silu(F.linear(x, m.w, m.b) * m.b[:1]), "silu"),
    "scaled before and after": (
        lambda m, x, y: F.gelu(((x @ m.w) * 0.5 + m.b) * m.v[0] * 3 - m.b + 0.5 * y),
        "gelu",
    ),
    "BatchNorm": (lambda m, x, y: norm(m, rows(m, x)), "none"),
    "BatchNorm without a bias": (
        lambda m, x, y: norm(m, x.flatten(0, 1) @ m.w).sigmoid(),
        "sigmoid",
    ),
    "BatchNorm, a row, an activation": (
        lambda m, x, y: F.relu(norm(m, rows(m, x)) + m.b[:1]),
        "relu",
    ),
    "BatchNorm of a scaled product": (
        lambda m, x, y: F.gelu(norm(m, rows(m, x) * m.v[1])).relu(),
        "relu(gelu(x))",
    ),
    "BatchNorm of rows, in the shape that they had": (
        lambda m, x, y: (lambda h: F.relu(norm(m, h.flatten(0, 1)).reshape_as(h)))(x @ m.w),
        "relu",
    ),
    "behind a view": (
        lambda m, x, y: F.relu((x.flatten(0, 1) @ m.w).view(2, 3, 8) * m.b),
        "relu",
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", SCALED)
def test_fused_and_right(name: str, dtype: torch.dtype, device: torch.device) -> None:
    """With gradients, of what scales, too; about as near to float64 as what is written."""
    function, act = SCALED[name]
    module = Apply(function).to(device, dtype)
    x, y = inputs(device, dtype)
    fused = tk.fuse(module, min_score=0)
    results = {}
    for key, model in (("fused", fused), ("written", module), ("float64", None)):
        model = copy.deepcopy(module).double() if model is None else model
        wide = torch.float64 if key == "float64" else dtype
        lead, other = x.to(wide).clone().requires_grad_(), y.to(wide).clone().requires_grad_()
        out = model(lead, other)
        weights = torch.linspace(-1, 1, out.numel(), device=device).view(out.shape)
        wanted = [lead, other, *(p for _, p in sorted(model.named_parameters()))]
        grads = torch.autograd.grad(out, wanted, weights.to(out.dtype), allow_unused=True)
        results[key] = [out, *grads]
    assert kernels(fused.plan) == [("gemm_bias_act", act)], fused.plan
    eps = torch.finfo(dtype).eps
    for ours, written, right in zip(*results.values()):
        assert (ours is None) == (right is None)
        if right is not None:
            limit = 2 * (written.double() - right).abs().max() + 16 * eps * right.abs().max()
            assert (ours.double() - right).abs().max() <= limit


def test_the_shape_of_another_tensor(cpu: torch.device) -> None:
    """A view that takes it is one like others, with sizes that vary, too."""
    module = Apply(
        lambda m, x, y: F.relu((x.flatten(0, 1) @ m.w).view_as(y)) + y.sum().view_as(y.sum())
    )
    fused = tk.fuse(module, min_score=0)
    for batch in (2, 4, 5):
        x = torch.randn(batch, 3, 8)
        torch.testing.assert_close(fused(x, x), module(x, x), rtol=1e-5, atol=1e-5)
        assert kernels(fused.plan) == [("gemm_bias_act", "relu")], fused.plan


LEFT: dict[str, tuple[Callable[..., Any], str]] = {
    "a residual, scaled": (
        lambda m, x, y: F.relu((F.linear(x, m.w) + y) * m.b),
        "a product with a residual are scaled",
    ),
    "rows, not columns": (lambda m, x, y: F.relu(F.linear(x, m.w) * y[..., :1]), "used by"),
    "each element": (lambda m, x, y: F.relu(F.linear(x, m.w) * y), "used by"),
    "BatchNorm that learns": (lambda m, x, y: norm(m, rows(m, x), True).relu(), "batch_norm"),
    "channels that are not last": (
        lambda m, x, y: F.batch_norm(
            F.linear(x, m.w), m.b[:3].detach(), m.b[:3].detach().abs(), m.b[:3], m.b[:3]
        ),
        "batch_norm",
    ),
    "a new dimension": (lambda m, x, y: F.relu(x[0] @ m.w * m.b.view(1, 1, 8)), "broadcasts"),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_with_a_reason(name: str, cpu: torch.device) -> None:
    function, reason = LEFT[name]
    module, (x, y) = Apply(function), inputs(cpu)
    fused = tk.fuse(module, min_score=0)
    torch.testing.assert_close(fused(x, y.clone()), module(x, y.clone()))
    assert reason in str(fused.plan)


def test_a_model_in_eval_and_in_training(cpu: torch.device) -> None:
    """The training flag is looked at in every call, and statistics are read in every call."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    fused = tk.fuse(model, min_score=0)
    x = torch.randn(6, 8)
    for _ in range(2):
        model.train()
        fused.train()
        again = copy.deepcopy(model)
        torch.testing.assert_close(fused(x), again(x))
        assert kernels(fused.plan) == []
        fused.eval()
        torch.testing.assert_close(fused(x), model(x))
        assert kernels(fused.plan) == [("gemm_bias_act", "relu")]
    report = check_fused(model.eval(), [(x,), (x[:3],)])
    assert report, report


def test_under_autocast_what_is_wider_is_left(cpu: torch.device) -> None:
    module, (x, y) = Apply(SCALED["a row, then relu"][0]), inputs(cpu)
    fused = tk.fuse(module, min_score=0)
    with torch.autocast("cpu", torch.bfloat16):
        out, right = fused(x, y), module(x, y)
    assert out.dtype == right.dtype
    torch.testing.assert_close(out, right)


def test_the_score_counts_the_weights_pass() -> None:
    """With few rows scaling the weight costs more than it saves; Inductor saves nothing by it."""
    device = torch.device("meta")
    problem = _fusion.Problem(
        "gemm_bias_act", torch.bfloat16, device, "eager", 16384, 4096, 4096, "relu", scaled=True
    )
    scores = {}
    for M in (256, 16384):
        for other in ("eager", "inductor"):
            given = problem._replace(M=M, other=other)
            scores[M, other] = capabilities.judge(given, 0)
            plain = capabilities.judge(given._replace(scaled=False), 0)
            scores[M, other, "plain"] = plain
    assert scores[16384, "eager"].score > scores[16384, "eager", "plain"].score
    assert scores[16384, "inductor"].score < scores[16384, "inductor", "plain"].score
    assert scores[256, "eager"].score < 0.7 * scores[256, "eager", "plain"].score
    assert scores[256, "eager"].source == "estimated"


@pytest.mark.parametrize("planted", ["order", "mean"])
def test_wrong_steps_are_caught(
    planted: str, cpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = matching.gemm_bias_act_of_columns

    def wrong(*args: Any) -> Tensor:
        *others, steps = args
        if planted == "order":
            steps = steps[::-1]
        else:
            steps = tuple((s, t, f, m if m is None else m * 0, v, e) for s, t, f, m, v, e in steps)
        return real(*others, steps)

    monkeypatch.setattr(matching, "gemm_bias_act_of_columns", wrong)
    module, (x, y) = Apply(SCALED["BatchNorm of a scaled product"][0]), inputs(cpu)
    assert not check_fused(module.eval(), [(x, y)])


def test_by_a_tensor_without_dimensions(cpu: torch.device) -> None:
    """As a learned gate of a whole branch, with its gradient."""
    gate = torch.nn.Parameter(torch.tensor(0.25, dtype=torch.float64))
    module = Apply(lambda m, x, y: y + torch.tanh(gate) * F.linear(x, m.w, m.b)).double()
    x, y = inputs(cpu, torch.float64)
    fused = tk.fuse(module, min_score=0)
    grads = [torch.autograd.grad(model(x, y).sum(), [gate, module.w]) for model in (fused, module)]
    assert kernels(fused.plan) == [("gemm_bias_act", "none")], fused.plan
    torch.testing.assert_close(*grads)
