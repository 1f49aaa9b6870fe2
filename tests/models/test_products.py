"""Other ways to write a product: einsum, a batch of one, 1×1 convolutions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from written import Apply, kernels

import triton_kernels as tk
from compare import check_fused
from triton_kernels.graph import matching

pytestmark = pytest.mark.usefixtures("fresh")

BIAS_ACT, LINEAR, GELU = "gemm_bias_act", "linear_act", "linear_gelu"


def images(x: Tensor) -> Tensor:
    """[2, 3, 8] as images of 8 channels, which lie together."""
    return x.unflatten(1, (3, 1)).permute(0, 3, 1, 2)


def convolved(m: Any, x: Tensor, **options: Any) -> Tensor:
    return F.conv2d(images(x), m.v[:, :, None, None], m.b[:6], **options)


# x is [2, 3, 8], w [8, 8], v [6, 8], b [8].
WRITTEN: dict[str, tuple[Callable[..., Any], tuple[str, str]]] = {
    "bsk,nk": (lambda m, x, y: F.gelu(torch.einsum("bsk,nk->bsn", x, m.v)), (GELU, "gelu")),
    "bsk,kn": (
        lambda m, x, y: F.relu(torch.einsum("bsk, kn -> bsn", x, m.w) + m.b),
        (BIAS_ACT, "relu"),
    ),
    "...k,nk": (lambda m, x, y: F.silu(torch.einsum("...k,nk->...n", x, m.v)), (LINEAR, "silu")),
    "nk,bsk": (lambda m, x, y: torch.einsum("nk,bsk->bsn", m.v, x).tanh(), (LINEAR, "tanh")),
    "bmm of one": (
        lambda m, x, y: F.relu(torch.bmm(x[:1], m.w.unsqueeze(0))),
        (BIAS_ACT, "relu"),
    ),
    "matmul of one": (
        lambda m, x, y: torch.sigmoid(x[:1] @ m.w[None] + y[:1]),
        (BIAS_ACT, "sigmoid"),
    ),
    "1×1": (lambda m, x, y: F.gelu(convolved(m, x)), (BIAS_ACT, "gelu")),
    "1×1, one pixel": (
        lambda m, x, y: F.relu(
            F.conv2d(x[:, 0].contiguous()[..., None, None], m.v[:, :, None, None])
        ),
        (BIAS_ACT, "relu"),
    ),
}


def given(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x, y = (torch.randn(2, 3, 8, generator=generator) for _ in range(2))
    return x.to(device, dtype), y.to(device, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", WRITTEN)
def test_fused_and_right(name: str, dtype: torch.dtype, device: torch.device) -> None:
    """With gradients; strides are those of the unfused module."""
    function, expected = WRITTEN[name]
    module = Apply(function).to(device, dtype)
    fused, wide = tk.fuse(module, min_score=0), copy.deepcopy(module).double()
    results = []
    for model, plain, to in ((fused, module, dtype), (module, module, dtype), (wide, wide, None)):
        x, y = (t.to(to or torch.float64) for t in given(device, dtype))
        x.requires_grad_()
        out = model(x, y)
        weights = torch.linspace(-1, 1, out.numel(), device=device).view(out.shape).to(out.dtype)
        grads = torch.autograd.grad(out, [x, *plain.parameters()], weights, allow_unused=True)
        results.append([out, *(grad for grad in grads if grad is not None)])
    assert kernels(fused.plan) == [expected], fused.plan
    found, written, right = results
    lying = [
        [n for n, size in zip(t.stride(), t.shape) if size > 1] for t in (found[0], written[0])
    ]
    assert lying[0] == lying[1]
    for ours, theirs, exact in zip(found, written, right, strict=True):
        limit = 2 * (theirs.double() - exact).abs().max()
        limit += 8 * torch.finfo(dtype).eps * exact.abs().max()
        assert (ours.double() - exact).abs().max() <= limit


LEFT: dict[str, Callable[..., Any]] = {
    "two batches": lambda m, x, y: F.relu(torch.bmm(x, y.transpose(1, 2))),
    "einsum of two batches": lambda m, x, y: F.relu(torch.einsum("bsk,btk->bst", x, y)),
    "einsum with a sum": lambda m, x, y: F.relu(torch.einsum("bsk,nk->bn", x, m.v)),
    "einsum transposed": lambda m, x, y: F.relu(torch.einsum("bsk,nk->bns", x, m.v)),
    "einsum of a diagonal": lambda m, x, y: F.relu(torch.einsum("bsk,kk->bsk", x, m.w)),
    "einsum without a result": lambda m, x, y: F.relu(torch.einsum("bsk,nk", x, m.v)),
    "tensordot of columns": lambda m, x, y: F.relu(
        torch.tensordot(x[:, :1].expand(2, 8, 8), m.w, ([1], [0]))
    ),
    "inner of batches": lambda m, x, y: F.relu(torch.inner(x[:1], y[:1])),
    "channels apart": lambda m, x, y: F.relu(
        F.conv2d(images(x).contiguous(), m.v[:, :, None, None])
    ),
    "stride": lambda m, x, y: F.relu(convolved(m, x, stride=2)),
    "padding": lambda m, x, y: F.relu(convolved(m, x, padding=1)),
    "groups": lambda m, x, y: F.relu(F.conv2d(images(x), m.v[:, :4, None, None], groups=2)),
    "a residual of a convolution": lambda m, x, y: F.relu(convolved(m, x) + convolved(m, y)),
}


@pytest.mark.parametrize("name", LEFT)
def test_left(name: str, cpu: torch.device) -> None:
    module, (x, y) = Apply(LEFT[name]), given(cpu, torch.float32)
    fused = tk.fuse(module, min_score=0, passes=["epilogue"])
    torch.testing.assert_close(fused(x, y), module(x, y))
    assert fused.plan.steps == []


@pytest.mark.usefixtures("no_grad")
def test_wrong_rows_are_caught(cpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the weight is taken as [K, N]."""

    def wrong(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
        return right(x, weight.transpose(0, 1), *rest)

    right = matching.pointwise_convolution
    square = Apply(lambda m, x, y: F.gelu(F.conv2d(images(x), m.w[:, :, None, None])))
    inputs = given(cpu, torch.float32)
    assert check_fused(square, [inputs])
    monkeypatch.setattr(matching, "pointwise_convolution", wrong)
    assert not check_fused(square, [inputs])
