"""The matrix products as torch's users write them and as libraries fuse them; the shapes timed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from compare.cases import Case, Sized


def _activated(pre: Tensor, act: str) -> Tensor:
    functional = torch.nn.functional
    if act in ("gelu", "gelu_tanh"):
        return functional.gelu(pre, approximate="tanh" if act == "gelu_tanh" else "none")
    if act == "none":
        return pre
    function = getattr(functional, act, None) or getattr(torch, act)
    result: Tensor = function(pre)
    return result


def linear_gelu_eager(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    approximate: str = "none",
    training: str = "out",
) -> Tensor:
    """linear_gelu as torch's users write it."""
    pre = torch.nn.functional.linear(x, weight, bias)
    return pre if training == "pre" else torch.nn.functional.gelu(pre, approximate=approximate)


def gemm_bias_act_eager(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    *,
    act: str = "none",
    alpha: float = 1.0,
    beta: float | None = None,
    c: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    precision: str = "ieee",
    training: str = "out",
) -> Tensor:
    """gemm_bias_act as torch's users write it, without ``precision``."""
    if c is not None:
        pre = torch.addmm(c, a, b, beta=1.0 if beta is None else beta, alpha=alpha)
        pre = pre if bias is None else pre + bias
    elif bias is not None:
        pre = torch.addmm(bias, a, b, alpha=alpha)
    else:
        pre = a @ b if alpha == 1.0 else alpha * (a @ b)
    result = pre if training == "pre" else _activated(pre, act)
    return result if out_dtype is None else result.to(out_dtype)


def linear_gelu_fused(
    x: Tensor, weight: Tensor, bias: Tensor, *, approximate: str = "none"
) -> Tensor:
    """With cuBLASLt's epilogue, which has the tanh form only."""
    rows = x.reshape(-1, x.shape[-1])
    out: Tensor = torch._addmm_activation(bias, rows, weight.t(), use_gelu=True)
    return out.view(*x.shape[:-1], weight.shape[0])


def gemm_bias_act_fused(a: Tensor, b: Tensor, bias: Tensor, *, act: str) -> Tensor:
    """With cuBLASLt's epilogue: relu, or the tanh form of GELU."""
    out: Tensor = torch._addmm_activation(bias, a, b, use_gelu=act == "gelu_tanh")
    return out


_TIMED = (  # M, N, K
    (1, 16384, 4096),
    (16, 8192, 8192),
    (32, 3072, 768),
    (333, 4097, 1023),
    (512, 4096, 1024),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (4096, 16384, 4096),
    (8192, 8192, 8192),
)


# Of the sweeps: squares, some no power of two; tokens against a layer's weight.
_SQUARES = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
_TOKENS = tuple(2**k for k in range(15))
_LAYER = 4096  # N and K
_TANH: Mapping[str, Any] = {"approximate": "tanh"}
_RELU: Mapping[str, Any] = {"act": "relu", "bias": True}


def linear_gelu_timed(op: str, dtype: str, options: Mapping[str, Any]) -> Iterator[Case]:
    """With the tanh form of GELU, which cuBLASLt's epilogue has, too."""
    return (Case(op, dtype, shape, options=_TANH) for shape in _TIMED)


def gemm_bias_act_timed(op: str, dtype: str, options: Mapping[str, Any]) -> Iterator[Case]:
    """With bias and relu, which cuBLASLt's epilogue has, too."""
    return (Case(op, dtype, shape, options=_RELU) for shape in _TIMED)


def _sweeps(op: str, dtype: str, options: Mapping[str, Any]) -> Iterator[Sized]:
    for n in _SQUARES:
        yield "M=N=K", n, Case(op, dtype, (n, n, n), options=options)
    for m in _TOKENS:
        yield "M", m, Case(op, dtype, (m, _LAYER, _LAYER), options=options)


def linear_gelu_sweeps(op: str, dtype: str, options: Mapping[str, Any]) -> Iterator[Sized]:
    """Squares, and rows against a weight of 4096², with the tanh form of GELU."""
    return _sweeps(op, dtype, _TANH)


def gemm_bias_act_sweeps(op: str, dtype: str, options: Mapping[str, Any]) -> Iterator[Sized]:
    """Squares, and rows against a weight of 4096², with bias and relu."""
    return _sweeps(op, dtype, _RELU)
