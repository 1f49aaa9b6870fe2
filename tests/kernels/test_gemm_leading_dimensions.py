"""a […, K] of gemm_bias_act, on both sides: the rows of one matrix, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import cuda_reference
import triton_kernels

SIDES: dict[str, Callable[..., Tensor]] = {
    "triton": triton_kernels.gemm_bias_act,
    "cuda": cuda_reference.gemm_bias_act,
}


def tensors(lead: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(*lead, 6, generator=g), torch.randn(6, 5, generator=g)
    return a, b, torch.randn(5, generator=g)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 4), (0, 3)], ids=str)
def test_they_are_rows(side: str, lead: tuple[int, ...], cpu: torch.device) -> None:
    """With gradients; c of every shape that broadcasts."""
    function = SIDES[side]
    a, b, bias = tensors(lead)
    flat = a.reshape(-1, 6) if a.numel() else a.new_empty(0, 6)
    shapes = ((5,), (), (*lead[-1:], 5), (*lead, 5), (*lead, 1))
    for c in (None, *map(torch.randn, shapes)):
        options: dict[str, Any] = {"act": "gelu", "alpha": 0.5}
        rows = dict(options)
        if c is not None:
            options |= {"c": c, "beta": 2.0}
            rows |= {"c": c.expand(*lead, 5).reshape(len(flat), 5), "beta": 2.0}
        ours = function(a, b, bias, **options)
        assert ours.shape == (*lead, 5)
        assert torch.equal(ours, function(flat, b, bias, **rows).view(ours.shape))
    given = [t.clone().requires_grad_() for t in (a, b, bias, torch.randn(*lead, 5))]
    ours = function(*given[:3], act="silu", c=given[3])
    right = torch.nn.functional.silu(given[0] @ given[1] + given[2] + given[3])
    weights = torch.linspace(-1, 1, ours.numel()).view(ours.shape)
    grads = (torch.autograd.grad((t * weights).sum(), given) for t in (ours, right))
    for our, theirs in zip(*grads):
        torch.testing.assert_close(our, theirs)


@pytest.mark.parametrize("side", SIDES)
def test_out_and_errors(side: str, cpu: torch.device) -> None:
    function = SIDES[side]
    layer = {"triton": triton_kernels, "cuda": cuda_reference}[side].linear_act
    a, b, _ = tensors((2, 3))
    out = torch.full((2, 3, 5), torch.nan)
    assert function(a, b, out=out) is out
    assert torch.equal(out, function(a, b))
    apart = torch.empty(2, 5, 5)[:, :3]
    with pytest.raises(RuntimeError, match="do not merge into one"):
        function(a, b, out=apart)
    with pytest.raises(RuntimeError, match=r"leading dimensions .*merge"):
        layer(a, b.t(), act="none", out=apart)
    with pytest.raises(RuntimeError, match="out"):
        function(a, b, out=torch.empty(6, 5))
    with pytest.raises(RuntimeError, match=r"'c' must broadcast to .2, 3, 5."):
        function(a, b, c=torch.empty(4, 3, 5))
    with pytest.raises(RuntimeError, match="shapes"):
        function(a, b.t())


def test_compiled(cpu: torch.device) -> None:
    """Without a graph break, for shapes that vary."""
    _, b, bias = tensors(())
    call = torch.compile(
        lambda a: triton_kernels.gemm_bias_act(a, b, bias, act="relu"),
        backend="eager",
        fullgraph=True,
    )
    for lead in ((2, 3), (2, 5), (4, 7)):
        a, *_ = tensors(lead)
        assert torch.equal(call(a), triton_kernels.gemm_bias_act(a, b, bias, act="relu"))


@pytest.mark.parametrize("side", SIDES)
def test_compiled_into_out(side: str, cpu: torch.device) -> None:
    a, b, _ = tensors((2, 3))
    out = torch.full((2, 3, 5), torch.nan)
    call = torch.compile(
        lambda a, b, out: SIDES[side](a, b, out=out), backend="aot_eager", fullgraph=True
    )
    call(a, b, out)
    assert torch.equal(out, SIDES[side](a, b))
