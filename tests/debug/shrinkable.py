"""Kernels whose failing case shrinks, and what tells of the shrunk case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def product(a_ptr, b_ptr, out_ptr, M, N, K, BLOCK: tl.constexpr):
    """For K up to BLOCK; with more, the result is wrong in another way."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, BLOCK)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :], mask=m[:, None] < M, other=0.0)
    b_mask = (k[:, None] < K) & (n[None, :] < N)
    b = tl.load(b_ptr + k[:, None] * N + n[None, :], mask=b_mask, other=0.0)
    acc = tl.dot(a, b, input_precision="ieee")
    mask = (m[:, None] < M) & (n[None, :] < N)
    tl.store(out_ptr + m[:, None] * N + n[None, :], acc, mask=mask)


def flat(
    kernel: Any, right: Callable[..., Any], *, floor: bool = False, spoil: Any = None
) -> Callable[..., dict[str, Any]]:
    """A make() for a kernel of one input."""

    def make(n: int, BLOCK: int, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
        x, out = torch.randn(n).to(dtype), torch.zeros(n, dtype=dtype)
        if spoil is not None:
            x[n // 2] = spoil
        grid = (n // BLOCK if floor else triton.cdiv(n, BLOCK),)
        oracle = lambda x, out, n: right(x)  # noqa: E731
        return {
            "kernel": kernel,
            "grid": grid,
            "args": (x, out, n),
            "oracle": oracle,
            "BLOCK": BLOCK,
        }

    return make


def k_tail(M: int, N: int, K: int, BLOCK: int) -> dict[str, Any]:
    a, b, out = torch.randn(M, K), torch.randn(K, N), torch.zeros(M, N)
    grid = (triton.cdiv(M, BLOCK), triton.cdiv(N, BLOCK))
    return {
        "kernel": product,
        "grid": grid,
        "args": (a, b, out, M, N, K),
        "oracle": lambda a, b, *_: a.double() @ b.double(),
        "bound": lambda reference, *_: 1e-4 * (1 + reference.abs()),
        "BLOCK": BLOCK,
    }
