"""Tensors on the meta device: shapes, dtypes, strides and errors are those of a call, no memory."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn

import triton_kernels as tk
from compare.ops import SPECS

META = torch.device("meta")


def arguments(op: str, device: torch.device) -> dict[str, Any]:
    """The op's sample call."""
    sample = SPECS[op].sample().items()
    return {k: torch.ones(v, device=device) if isinstance(v, tuple) else v for k, v in sample}


def described(result: Any) -> list[tuple[Any, ...]]:
    results = result if isinstance(result, tuple) else (result,)
    return [(t.shape, t.dtype, t.stride()) for t in results if t is not None]


@pytest.mark.parametrize("interpreting", [False, True])
@pytest.mark.parametrize("op", tk.OPS)
def test_every_op(op: str, interpreting: bool) -> None:
    with tk.interpret():
        right = getattr(tk, op)(**arguments(op, torch.device("cpu")))
    with tk.interpret() if interpreting else contextlib.nullcontext():
        result = getattr(tk, op)(**arguments(op, META))
    assert described(result) == described(right)
    assert (result[0] if isinstance(result, tuple) else result).is_meta


def test_out(cpu: torch.device) -> None:
    x, out = torch.ones(3, 4, device=META), torch.empty(3, 4, device=META)
    assert tk.add(x, x, out=out) is out
    assert tk.gemm_bias_act(x, x.t(), out=out[:, :3].contiguous()).shape == (3, 3)


def test_errors_are_those_of_every_device() -> None:
    x = torch.ones(3, 4, device=META)
    with pytest.raises(RuntimeError, match=r"linear_act\(\): 'x' and 'weight' must have shapes"):
        tk.linear_act(x, x.t(), act="relu")
    with pytest.raises(TypeError, match=r"linear_act\(\): argument 'weight' has dtype"):
        tk.linear_act(x, x.half(), act="relu")
    with pytest.raises(RuntimeError, match="'x' is on meta and 'y' on cpu"):
        tk.add(x, torch.ones(3, 4))


def test_modules_and_their_gradients() -> None:
    """As torch.device("meta") makes them, to learn sizes before there is memory."""
    with torch.device("meta"):
        net = nn.Sequential(
            tk.nn.MLP(6, 16, 5, act="gelu"),
            tk.nn.LinearGELU(5, 7),
            tk.nn.LinearAct(7, 7, act="tanh"),
            tk.nn.ReLUScale(0.5),
        )
        x = torch.empty(2, 3, 6, dtype=torch.float32, requires_grad=True)
    out = net(x)
    assert out.is_meta
    assert out.shape == (2, 3, 7)
    out.sum().backward()
    for t in (x, *net.parameters()):
        assert t.grad is not None
        assert t.grad.is_meta
        assert (t.grad.shape, t.grad.dtype) == (t.shape, t.dtype)


def test_fused_models() -> None:
    net = nn.Sequential(nn.Linear(4, 4, device=META), nn.ReLU())
    assert tk.fuse(net, min_score=0)(torch.ones(2, 4, device=META)).shape == (2, 4)
