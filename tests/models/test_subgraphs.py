"""Inside activation checkpoints and branches of torch.cond."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from written import Apply, inputs, kernels

import triton_kernels as tk
from triton_kernels.graph import effects

pytestmark = pytest.mark.usefixtures("fresh")


def block(m: Any, x: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(x, m.w, m.b)), m.w).relu()


BLOCK = [("linear_gelu", "gelu"), ("linear_act", "relu")]


def checkpointed(m: Any, x: Tensor, y: Tensor) -> Tensor:
    x = checkpoint(block, m, x, use_reentrant=False)
    return F.relu(F.linear(checkpoint(block, m, x, use_reentrant=False), m.w))


def branching(m: Any, x: Tensor, y: Tensor) -> Tensor:
    w, b = m.w, m.b
    return torch.cond(  # type: ignore[no-any-return]
        y.sum() > 0,
        lambda x: torch.relu(F.linear(x, w, b)),
        lambda x: F.silu(F.linear(x, w, b)),
        (x,),
    )


def gradients(model: Any, plain: Apply, x: Tensor, y: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    out = model(x, y)
    grads = torch.autograd.grad(out.square().sum(), [x, *plain.parameters()], allow_unused=True)
    return [out, *(grad for grad in grads if grad is not None)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_checkpoints(dtype: torch.dtype, device: torch.device) -> None:
    module = Apply(checkpointed).to(device, dtype)
    x, y = inputs(device, dtype)
    fused = tk.fuse(module, min_score=0)
    found, written = (gradients(model, module, x, y) for model in (fused, module))
    assert kernels(fused.plan) == [("linear_act", "relu"), *BLOCK, *BLOCK]
    wide = copy.deepcopy(module).double()
    right = gradients(wide, wide, x.double(), y.double())
    for ours, theirs, exact in zip(found, written, right, strict=True):
        limit = 2 * (theirs.double() - exact).abs().max()
        limit += 8 * torch.finfo(dtype).eps * exact.abs().max()
        assert (ours.double() - exact).abs().max() <= limit


def test_they_still_keep_less(cpu: torch.device) -> None:
    """What a checkpoint saves is as much, fused or not; some versions of torch save views."""
    module, (x, y) = (
        Apply(lambda m, x, y: checkpoint(block, m, x, use_reentrant=False)),
        inputs(cpu),
    )
    x.requires_grad_()
    saved: dict[str, list[int]] = {}
    for key, passes in (("fused", ("epilogue",)), ("unfused", ())):
        model, sizes = tk.fuse(module, min_score=0, passes=passes), saved.setdefault(key, [])
        model(x, y)
        hooks = torch.autograd.graph.saved_tensors_hooks(partial(noted, sizes), lambda t: t)
        with hooks:
            model(x, y)
    assert sorted(saved["fused"]) == sorted(saved["unfused"])


def noted(sizes: list[int], t: Tensor) -> Tensor:
    sizes.append(t.numel())
    return t


def test_under_autocast(cpu: torch.device) -> None:
    def function(m: Any, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return checkpointed(m, x, y)

    module, (x, y) = Apply(function), inputs(cpu)
    fused = tk.fuse(module, min_score=0)
    found, right = (gradients(model, module, x, y) for model in (fused, module))
    assert kernels(fused.plan) == [("linear_act", "relu"), *BLOCK, *BLOCK]
    for ours, theirs in zip(found, right, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=2**-5, atol=2**-5)


@pytest.mark.usefixtures("no_grad")
def test_branches(cpu: torch.device) -> None:
    module, (x, y) = Apply(branching), inputs(cpu)
    fused = tk.fuse(module, min_score=0)
    for sign in (1, -1):
        y = sign * y.abs()
        torch.testing.assert_close(fused(x, y), module(x, y))
        assert kernels(fused.plan) == [("linear_act", "relu"), ("linear_act", "silu")]


def saving(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if "mm" in str(op) else CheckpointPolicy.PREFER_RECOMPUTE


def dropped(m: Any, x: Tensor, **options: Any) -> Tensor:
    def inside(x: Tensor) -> Tensor:
        return F.linear(F.dropout(F.gelu(F.linear(x, m.w, m.b)), 0.5), m.w)

    return checkpoint(inside, x, use_reentrant=False, **options)  # type: ignore[no-any-return]


DROPPED: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "plain": lambda m, x, y: dropped(m, dropped(m, x)),
    "nested": lambda m, x, y: checkpoint(lambda x: dropped(m, x) * 2, x, use_reentrant=False),
    "with a policy": lambda m, x, y: dropped(
        m, x, context_fn=partial(create_selective_checkpoint_contexts, saving)
    ),
}


@pytest.mark.parametrize("by", ["fuse", "backend"])
@pytest.mark.parametrize("name", DROPPED)
def test_dropout_is_the_same_again(name: str, by: str, cpu: torch.device) -> None:
    """Gradients are those of the numbers that were dropped, though torch's operator, which runs
    as it is, keeps no random numbers."""
    module, (x, y) = Apply(DROPPED[name]), inputs(cpu)
    options: Any = {"min_score": 0}
    compiled = partial(torch.compile, backend="triton_kernels", options=options)
    model = tk.fuse(module, **options) if by == "fuse" else compiled(module)
    results = []
    for each in (model, module):
        torch.manual_seed(2)
        results.append(gradients(each, module, x, y))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_explaining_changes_nothing(cpu: torch.device) -> None:
    module, (x, y) = Apply(checkpointed), inputs(cpu)
    seen = []

    def look(graph: torch.fx.GraphModule, examples: Any) -> Any:
        seen.extend(str(node.target) for m in graph.modules() for node in m.graph.nodes)
        return graph.forward

    plan = tk.explain(module, (x, y), min_score=0).plans[0]
    assert len(plan.steps) == 5
    torch.compile(module, backend=look)(x, y)
    assert not [target for target in seen if "linear_act" in target]


def test_a_policy_means_the_operators_that_are_written(cpu: torch.device) -> None:
    policy = lambda ctx, op, *args, **kwargs: CheckpointPolicy.MUST_SAVE  # noqa: E731
    context = partial(create_selective_checkpoint_contexts, policy)

    def function(m: Any, x: Tensor, y: Tensor) -> Tensor:
        return checkpoint(block, m, x, use_reentrant=False, context_fn=context)

    plan = tk.explain(Apply(function), inputs(cpu), min_score=0).plans[0]
    assert plan.steps == []


def test_other_operators_keep_theirs() -> None:
    assert "flex_attention" not in effects.SUBGRAPHS
    assert "autograd_function_apply" not in effects.SUBGRAPHS
