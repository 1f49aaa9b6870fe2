"""explain and the backend of torch.compile: what becomes a kernel, what does not and why."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from written import FUSED, Apply, inputs, kernels

import triton_kernels as tk
from triton_kernels import graph
from triton_kernels._gpu import GPUS
from triton_kernels.graph import capabilities
from triton_kernels.graph.capabilities import Problem

pytestmark = pytest.mark.usefixtures("no_grad", "fresh")


GELU, LINEAR, BIAS_ACT = "linear_gelu", "linear_act", "gemm_bias_act"


@pytest.mark.parametrize("name", FUSED)
def test_fused_and_right(name: str, device: torch.device) -> None:
    """The number of kernels, and the numbers; unfused in float64 is right."""
    function, expected = FUSED[name]
    module = Apply(function).to(device)
    x, y = inputs(device)
    fused = tk.fuse(module, min_score=0)
    out = fused(x, y)
    assert kernels(fused.plan) == expected, fused.plan
    lone = ["matmul_1"] if name == "product plus product" else []
    assert [line.node for line in fused.plan.left] == lone
    right = copy.deepcopy(module).double()(x.double(), y.double())
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["residual times a number", "relu scale add", "two layers"])
def test_the_backend_agrees(name: str, device: torch.device) -> None:
    function, expected = FUSED[name]
    module, arguments = Apply(function).to(device), inputs(device)
    assert [kernels(p) for p in tk.explain(module, arguments, min_score=0).plans] == [expected]
    compiled = torch.compile(module, backend="triton_kernels", options={"min_score": 0})
    assert torch.equal(compiled(*arguments), tk.fuse(module, min_score=0)(*arguments))


def test_explaining_often_uses_nothing_up(cpu: torch.device) -> None:
    """torch.compile gives up on code that it has compiled for eight backends."""
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    x, _ = inputs(cpu)
    plans = {str(tk.explain(net, x, min_score=0)) for _ in range(10)}
    assert len(plans) == 1
    assert "linear_act (act relu)" in plans.pop()
    ran: list[torch.fx.GraphModule] = []

    def backend(module: torch.fx.GraphModule, examples: list[Tensor]) -> Callable[..., Any]:
        ran.append(module)
        return module.forward

    torch.compile(net, backend=backend)(x)
    assert len(ran) == 1


def test_explaining_several_graphs_too_often_is_an_error(cpu: torch.device) -> None:
    def function(m: Apply, x: Tensor, y: Tensor) -> Tensor:
        h = F.relu(F.linear(x, m.w))
        torch._dynamo.graph_break()
        return F.relu(F.linear(h, m.w))

    module, arguments = Apply(function), inputs(cpu)
    for _ in range(torch._dynamo.config.recompile_limit):
        found = tk.explain(module, arguments, min_score=0)
        assert [len(plan.steps) for plan in found.plans] == [1, 1]
    with pytest.raises(RuntimeError, match=r"call torch\._dynamo\.reset\(\) first"):
        tk.explain(module, arguments, min_score=0)


def test_explaining_what_has_no_graph(cpu: torch.device) -> None:
    assert str(tk.explain(lambda x: x, inputs(cpu)[0])) == "torch.compile made no graph of it"


def promoted(m: Apply, x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x) * 0.5 + y.double()


def mutated_between(m: Apply, x: Tensor, y: Tensor) -> Tensor:
    product = F.linear(x, m.w)
    x.add_(1)
    return F.relu(product)


def residual_mutated(m: Apply, x: Tensor, y: Tensor) -> Tensor:
    product = F.linear(x, m.w)
    z = y * 1.5
    total = product + z
    z.zero_()
    return F.relu(total) + z


def setitem_between(m: Apply, x: Tensor, y: Tensor) -> Tensor:
    product = F.linear(x, m.w)
    x[0] = 0
    return F.relu(product)


def out_between(m: Apply, x: Tensor, y: Tensor) -> Tensor:
    product = F.linear(x, m.w)
    torch.mul(y, 2, out=x)
    return F.relu(product)


def relu_in_place(m: Apply, x: Tensor, y: Tensor) -> Tensor:
    return x.relu_() * 0.5


def add_in_place(m: Apply, x: Tensor, y: Tensor) -> Tensor:
    y += F.linear(x, m.w)
    return y


def aliased(m: Apply, x: Tensor, y: Tensor) -> Tensor:
    h = y
    h += x @ m.w
    return y * 1


def used_twice(m: Apply, x: Tensor, y: Tensor) -> Tensor:
    product = F.linear(x, m.w)
    return F.relu(product) - product.flip(-1)


# name → what is written, and words of the reason
REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "used twice": (used_twice, "has 2 users"),
    "returned, too": (
        lambda m, x, y: (lambda p: (F.relu(p), p))(F.linear(x, m.w)),
        "has 2 users",
    ),
    "scaled, to itself": (lambda m, x, y: (lambda p: p + p)(x * 3), "mul is used twice"),
    "relu scaled, to itself": (
        lambda m, x, y: (lambda p: p + p)(x.relu() * 3),
        "mul is used twice",
    ),
    "relu used twice": (lambda m, x, y: (lambda r: r * 2 - r)(torch.relu(x)), "relu has 2 users"),
    "mutated between": (mutated_between, "between its nodes may overwrite an operand"),
    "setitem between": (setitem_between, "between its nodes may overwrite an operand"),
    "out= between": (out_between, "between its nodes may overwrite an operand"),
    "residual mutated": (residual_mutated, "between its nodes may overwrite an operand"),
    "relu in place": (relu_in_place, "in place"),
    "add in place": (add_in_place, "in place"),
    "in place through another name": (aliased, "in place"),
    "promoted": (promoted, "is float64"),
    "integers": (lambda m, x, y: x.int() * x.int(), ""),
    "integer relu": (lambda m, x, y: torch.relu(x.int()) * 0.5, "is int32"),
    "batched": (lambda m, x, y: torch.relu(x @ y.mT), "a batch of matrices"),
    "vector": (lambda m, x, y: torch.relu(x[0, 0] @ m.w), "or a vector"),
    "bias of one": (lambda m, x, y: F.relu(x @ m.w + m.b[:1]), "a bias of shape (1,)"),
    "row per batch": (lambda m, x, y: F.relu(x @ m.w + y[:1]), "(1, 3, 8), broadcasts"),
    "two residuals": (lambda m, x, y: F.relu(F.linear(x, m.w, m.b) + y + x), "more than one"),
    "slope": (
        lambda m, x, y: F.leaky_relu(F.linear(x, m.w), math.inf),
        "slope inf, not 0.01",
    ),
    "scaled with bias": (
        lambda m, x, y: torch.add(y[0], torch.addmm(y[0], x[0], m.w) + m.b, alpha=2),
        "scaled by 2, too",
    ),
    "lone": (lambda m, x, y: F.linear(x, m.w), "nothing to fuse with it"),
    "unknown follows": (
        lambda m, x, y: F.hardshrink(F.linear(x, m.w)),
        "fuse with it, used by hardshrink",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_reason(name: str, cpu: torch.device) -> None:
    """And the numbers, and what is written to the inputs, are those of the unfused module."""
    function, reason = REFUSED[name]
    module = Apply(function)
    fused = tk.fuse(module, min_score=0)
    ours, theirs = inputs(cpu), inputs(cpu)
    out, right = fused(*ours), module(*theirs)
    if name == "integers":  # nothing of it is a pattern: each conversion is a value of its own
        assert not fused.plan.steps
    else:
        assert any(reason in line.reason for line in fused.plan.left), fused.plan
    for mine, other in zip((out, *ours), (right, *theirs)):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


def test_residual_after_an_activation_is_no_epilogue(cpu: torch.device) -> None:
    module = Apply(lambda m, x, y: F.gelu(F.linear(x, m.w)) + y)
    fused = tk.fuse(module, min_score=0)
    close = torch.testing.assert_close
    close(fused(*inputs(cpu)), module(*inputs(cpu)), rtol=1e-5, atol=1e-5)
    assert kernels(fused.plan) == [(GELU, "gelu")]


def test_a_division_that_rounds_is_no_factor(cpu: torch.device) -> None:
    module, (x, y) = Apply(lambda m, x, y: (F.relu(x) / 3, F.relu(y) / 4)), inputs(cpu)
    fused = tk.fuse(module, min_score=0)
    torch.testing.assert_close(fused(x, y), module(x, y), rtol=0, atol=0)
    assert kernels(fused.plan) == [("relu_scale", "none")], fused.plan


def test_inductor_compiles_the_rest(device: torch.device) -> None:
    module, arguments = Apply(FUSED["two layers"][0]).to(device), inputs(device)
    options = {"min_score": 0, "rest": "inductor"}
    compiled = torch.compile(module, backend="triton_kernels", options=options)
    wide = copy.deepcopy(module).double()(*(t.double() for t in arguments))
    torch.testing.assert_close(compiled(*arguments).double(), wide, rtol=1e-5, atol=1e-5)


def test_dynamic_shapes_stay_dynamic(cpu: torch.device) -> None:
    module = Apply(lambda m, x, y: F.relu(F.linear(x, m.w, m.b) + y))
    compiled = torch.compile(
        module, backend="triton_kernels", options={"min_score": 0}, dynamic=True, fullgraph=True
    )
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (2, 3, 5):
            x = torch.randn(rows, 4, 8)
            torch.testing.assert_close(compiled(x, x), module(x, x), rtol=1e-5, atol=1e-5)


# ---- what decides ----


def problem(kernel: str, dtype: torch.dtype, *sizes: int, other: str = "eager") -> Problem:
    return Problem(kernel, dtype, torch.device("cpu"), other, *sizes)


def test_scores_follow_the_benchmarks(cpu: torch.device) -> None:
    """The measured cases fall on their side of the default threshold."""

    def taken(*args: Any, **kwargs: Any) -> bool:
        return not capabilities.judge(problem(*args, **kwargs), capabilities.MIN_SCORE).refusal

    half, single = torch.bfloat16, torch.float32
    for sizes in ((4096, 4096, 4096), (4096, 16384, 4096), (32, 3072, 768), (1, 16384, 4096)):
        assert taken(GELU, half, *sizes)
        assert taken(BIAS_ACT, half, *sizes, other="inductor")
        assert not taken(GELU, single, *sizes)
        assert not taken(BIAS_ACT, single, *sizes)
    assert taken(GELU, half, 2365, 9219, 7691)  # unaligned and long
    for other in ("eager", "inductor"):
        assert not taken(GELU, half, 2666, 1552, 7272, other=other)  # of a slow pitch
        assert taken(GELU, half, 688, 3904, 192, other=other)  # the memory decides
        assert taken(BIAS_ACT, half, 333, 4097, 1023, other=other)  # unaligned
        assert taken(GELU, half, 1543, 3281, 382, other=other)
    assert taken("relu_scale", single)
    assert not taken("relu_scale", single, other="inductor")
    assert not taken("square", single)
    assert not taken(GELU, torch.float64, 64, 64, 64)


def test_products_were_not_measured_on_other_gpus(
    cpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = GPUS["sm_80"]
    monkeypatch.setattr("triton_kernels._launch.gpu", lambda kernel, device: gpu)
    verdict = capabilities.judge(problem(GELU, torch.float16, 64, 64, 64), 1)
    refusal = f"{GELU}: 0.80 of eager's speed estimated for float16, below min_score 1"
    assert verdict == (0.8, refusal, "estimated")
    double = capabilities.judge(problem(GELU, torch.float64, 64, 64, 64), 1)
    refusal = f"{GELU}: not measured for float64 on capability 80, below min_score 1"
    assert double == (0, refusal, "")
    assert not capabilities.judge(problem("relu_scale", torch.float16), 1).refusal


def test_default_leaves_what_gains_nothing(cpu: torch.device) -> None:
    module = Apply(lambda m, x, y: (F.relu(F.linear(x, m.w)), x * x, F.relu(x) * 2))
    fused = tk.fuse(module)
    fused(*inputs(cpu))
    assert kernels(fused.plan) == [("relu_scale", "none")]
    scores = [line.score for line in fused.plan.left]
    assert scores == [0.8, 1.0]
    assert "0.80 of eager's speed expected for float32, below min_score 1.01" in str(fused.plan)
    fused = tk.fuse(module.bfloat16())
    fused(*inputs(cpu, torch.bfloat16))
    assert kernels(fused.plan) == [(LINEAR, "relu"), ("relu_scale", "none")]


def test_switches(cpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(**options: Any) -> list[str]:
        module = Apply(lambda m, x, y: (F.relu(F.linear(x, m.w)), F.relu(x) * 2))
        fused = tk.fuse(module, min_score=0, **options)
        fused(*inputs(cpu))
        (plan,) = tk.explain(module, inputs(cpu), min_score=0, **options).plans
        assert [step.kernel for step in plan.steps] == [step.kernel for step in fused.plan.steps]
        return [step.kernel for step in plan.steps]

    assert found() == [LINEAR, "relu_scale"]
    assert found(passes=["elementwise"]) == ["relu_scale"]
    monkeypatch.setenv("TRITON_KERNELS_FUSE_OFF", "elementwise, nothing")
    assert found() == [LINEAR]
    monkeypatch.setenv("TRITON_KERNELS_FUSE_OFF", "elementwise,epilogue")
    assert found() == []
    monkeypatch.delenv("TRITON_KERNELS_FUSE_OFF")
    monkeypatch.setenv("TRITON_KERNELS_FUSE", "0")
    assert found() == []


def test_backend_says_what_it_cannot(cpu: torch.device) -> None:
    x, _ = inputs(cpu)
    with pytest.raises(ValueError, match="unknown option 'minscore'"):
        graph.backend(None, [x], options={"minscore": 0})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no backend 'nope'"):
        tk.explain(torch.relu, x, rest="nope")
