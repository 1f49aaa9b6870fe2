"""What is added to products: behind views of them, to sums that lie turned in memory, and to values
that are products themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from models.written import BIAS_ACT, GELU, Apply, inputs, kernels
from torch import Tensor

import triton_kernels as tk

SUM = (BIAS_ACT, "none")


def turned(y: Tensor) -> Tensor:
    """As patches that a convolution made: [B, N, C] with the strides of [B, C, N]."""
    return y.transpose(1, 2).contiguous().transpose(1, 2)


def normed(h: Tensor) -> Tensor:
    return F.layer_norm(h, (8,))


def block(m: Any, h: Tensor) -> Tensor:
    return h + F.linear(F.gelu(F.linear(normed(h), m.w)), m.w)


def of_rows(m: Any, x: Tensor) -> Tensor:
    return torch.addmm(m.b, x.view(-1, 8), m.w).view(x.shape)


TAKEN: dict[str, tuple[Callable[..., Any], list[tuple[str, str]]]] = {
    "GPT-2": (lambda m, x, y: y + of_rows(m, x), [SUM]),
    "GPT-2, then an activation": (lambda m, x, y: F.relu(of_rows(m, x) + y), [(BIAS_ACT, "relu")]),
    "views that undo each other": (
        lambda m, x, y: y + (F.linear(x, m.w).flatten(0, 1) * m.b).view(2, 3, 8),
        [SUM],
    ),
    "turned, then normalised": (lambda m, x, y: normed(turned(y) + F.linear(x, m.w)), [SUM]),
    "turned, through blocks": (
        lambda m, x, y: normed(block(m, block(m, turned(y)))),
        [(GELU, "gelu"), SUM, (GELU, "gelu"), SUM],
    ),
    "turned, then concatenated": (
        lambda m, x, y: torch.cat([x[:, :1], turned(y) + F.linear(x, m.w)], 1),
        [SUM],
    ),
    "turned, then averaged": (
        lambda m, x, y: normed((turned(y) + F.linear(x, m.w)).mean(1)),
        [SUM],
    ),
    "turned, then its first row": (
        lambda m, x, y: F.linear((turned(y) + F.linear(x, m.w))[:, 0], m.v),
        [SUM],
    ),
    "turned, then images of fewer pixels": (
        lambda m, x, y: F.linear(
            block(m, turned(y) + F.linear(x, m.w)).view(2, 1, 3, 8)[:, ::2, ::2].reshape(2, -1, 8),
            m.v,
        ),
        [SUM, (GELU, "gelu"), SUM],
    ),
    "turned, then multiplied": (
        lambda m, x, y: F.linear(turned(y) + F.linear(x, m.w), m.v),
        [SUM],
    ),
    "of a product": (
        lambda m, x, y: block(m, F.linear(x, m.v[:8].repeat(2, 1)[:8])),
        [(GELU, "gelu"), SUM],
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", TAKEN)
def test_taken(name: str, dtype: torch.dtype, cpu: torch.device) -> None:
    """With gradients, and with the strides that the written model's result has."""
    function, found = TAKEN[name]
    module = Apply(function).to(dtype)
    fused = tk.fuse(module, min_score=0)
    results = []
    for called in (fused, module):
        x, y = (t.requires_grad_() for t in inputs(cpu, dtype))
        module.zero_grad()
        out = called(x, y)
        out.square().sum().backward()
        results.append([out, x.grad, y.grad, module.w.grad])
    assert kernels(fused.plan) == found, fused.plan
    assert results[0][0].stride() == results[1][0].stride()
    for ours, written in zip(*results):
        torch.testing.assert_close(ours, written, rtol=1e-4, atol=1e-5)


LEFT: dict[str, Callable[..., Any]] = {
    "a result": lambda m, x, y: turned(y) + F.linear(x, m.w),
    "a sum that is a result": lambda m, x, y: turned(y) + F.linear(x, m.w) + x,
    "a view of a later sum": lambda m, x, y: (
        (turned(y) + F.linear(x, m.w) + x).transpose(1, 2).view(16, 3)
    ),
    "one user of two": lambda m, x, y: (
        (h := turned(y) + F.linear(x, m.w)).transpose(1, 2).view(16, 3).sum() + normed(h)
    ),
    "a view of a part": lambda m, x, y: F.layer_norm(
        (turned(y) + F.linear(x, m.w))[:, :1].view(16), (16,)
    ),
    "a turned activation": lambda m, x, y: normed(
        F.relu((turned(y) + F.linear(x, m.w)).transpose(1, 2)).view(6, 8)
    ),
    "a mean that is a result": lambda m, x, y: (turned(y) + F.linear(x, m.w)).mean(0),
    "images that are concatenated": lambda m, x, y: torch.cat(
        2
        * [
            F.linear(x, m.w).view(2, 3, 1, 8)
            + y.view(2, 3, 1, 8).to(memory_format=torch.channels_last)
        ]
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_where_the_layout_is_seen(name: str, cpu: torch.device) -> None:
    module, (x, y) = Apply(LEFT[name]), inputs(cpu)
    fused = tk.fuse(module, min_score=0)
    out, right = fused(x, y), module(x, y)
    assert out.stride() == right.stride()
    torch.testing.assert_close(out, right)
    assert SUM not in kernels(fused.plan), fused.plan


def test_rows_of_varying_number(cpu: torch.device) -> None:
    module = Apply(TAKEN["GPT-2"][0])
    fused = tk.fuse(module, min_score=0)
    for length in (3, 5, 7, 9):
        x = torch.randn(2, length, 8)
        torch.testing.assert_close(fused(x, x), module(x, x))
        assert kernels(fused.plan) == [SUM]


MIXED: dict[str, Callable[..., Any]] = {
    "act_mul": lambda m, x, y: turned(y) * F.silu(x),
    "act_mul, in rows": lambda m, x, y: y * F.silu(turned(x)),
    "relu_scale_add": lambda m, x, y: turned(y) + 0.5 * F.relu(x),
    "add": lambda m, x, y: 0.3 * x + turned(y),
    "add of a broadcast": lambda m, x, y: x[:, :1] + 0.3 * turned(y),
}


@pytest.mark.parametrize("name", MIXED)
def test_elementwise_results_lie_as_written(name: str, cpu: torch.device) -> None:
    """A view of them may be one that only works for how the model's result lies."""
    module, (x, y) = Apply(MIXED[name]), inputs(cpu)
    fused = tk.fuse(module, min_score=0)
    out, right = fused(x, y), module(x, y)
    assert out.stride() == right.stride()
    torch.testing.assert_close(out, right)


@pytest.mark.parametrize(("first", "second"), [(turned, turned), (torch.clone, torch.clone)])
def test_elementwise_of_one_layout_is_fused(
    first: Callable[..., Tensor], second: Callable[..., Tensor], cpu: torch.device
) -> None:
    module, (x, y) = Apply(lambda m, x, y: F.silu(first(x)) * second(y)), inputs(cpu)
    fused = tk.fuse(module, min_score=0)
    out, right = fused(x, y), module(x, y)
    assert out.stride() == right.stride()
    torch.testing.assert_close(out, right)
    assert kernels(fused.plan) == [("act_mul", "silu")]


def test_detached_products_have_no_gradient(cpu: torch.device) -> None:
    """Zeros for None would let an optimiser with weight decay change the weight."""
    module, (x, y) = Apply(lambda m, x, y: F.linear(x, m.w).detach() + m.b), inputs(cpu)
    fused = tk.fuse(module, min_score=0)
    fused(x, y).sum().backward()
    assert module.w.grad is None
    torch.testing.assert_close(module.b.grad, torch.full((8,), 6.0))
    alone = tk.fuse(Apply(lambda m, x, y: F.linear(x, m.w).detach()), min_score=0)
    assert not alone(x, y).requires_grad


def test_a_product_that_is_left_is_named_with_what_it_is_added_to(cpu: torch.device) -> None:
    """As LoRA on GPT-2's linear layers. Its rows are an argument, by a node that no plan names."""
    module = Apply(lambda m, x, y: of_rows(m, x) + 0.5 * F.linear(y, m.w))
    x, y = inputs(cpu)
    fused = tk.fuse(module, min_score=0)
    torch.testing.assert_close(fused(x, y), module(x, y))
    assert kernels(fused.plan) == [SUM]
    assert "left: linear: nothing to fuse with it, used by addmm" in str(fused.plan)
