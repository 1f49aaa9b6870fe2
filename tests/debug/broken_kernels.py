"""Kernels with a fault, and healthy ones beside them, that several tests of debug run."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from compare import debug
from compare.debugging.findings.findings import Findings


@triton.jit
def dropped_mask(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr + i, x * x)  # fault: dropped mask


@triton.jit
def square(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr + i, x * x, mask=i < n)


@triton.jit
def linear(a_ptr, b_ptr, bias_ptr, out_ptr, M, N, K, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k0 in range(0, K, BLOCK):
        a_mask = m[:, None] < M
        if FAULT != "K tail":
            a_mask &= k[None, :] < K - k0
        a = tl.load(a_ptr + m[:, None] * K + k0 + k[None, :], mask=a_mask, other=0.0)
        b_mask = (k[:, None] < K - k0) & (n[None, :] < N)
        b = tl.load(b_ptr + (k0 + k[:, None]) * N + n[None, :], mask=b_mask, other=0.0)
        if FAULT == "accumulator":
            acc = tl.dot(a, b, acc.to(tl.float16), out_dtype=tl.float16).to(tl.float32)
        else:
            acc = tl.dot(a, b, acc, input_precision="ieee")
    if FAULT == "bias":
        acc += tl.load(bias_ptr + m, mask=m < M, other=0.0)[:, None]
    else:
        acc += tl.load(bias_ptr + n, mask=n < N, other=0.0)[None, :]
    mask = (m[:, None] < M) & (n[None, :] < N)
    tl.store(out_ptr + m[:, None] * N + n[None, :], acc, mask=mask)  # fault: linear


X = torch.linspace(-3, 3, 1000)
A, B = torch.randn(40, 24, generator=torch.Generator().manual_seed(0)), torch.randn(24, 50)
BIAS = torch.randn(50)


def flat(kernel: Any, n: int = 1000, grid: int = 4, size: int = 1000) -> Findings:
    out = torch.full((size,), torch.nan)
    want = torch.full((size,), torch.nan)
    want[:n] = X[:n] ** 2
    return debug(kernel, (grid,), (X, out, n), oracle=lambda: want, BLOCK=256)


def linear_with(fault: str, a: torch.Tensor = A, b: torch.Tensor = B) -> Findings:
    a, b, bias = a.contiguous(), b.contiguous(), BIAS.to(a.dtype)
    (M, K), N = a.shape, b.shape[1]
    out = torch.full((M, N), torch.nan, dtype=torch.float32)
    want = a.double() @ b.double() + bias.double()
    return debug(
        linear,
        (triton.cdiv(M, 32), triton.cdiv(N, 32)),
        (a, b, bias, out, M, N, K),
        oracle=lambda: want,
        bound=lambda reference, *_: 1e-4 * (1 + reference.abs()),
        FAULT=fault,
        BLOCK=32,
    )


@triton.jit
def add_up(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out_ptr, tl.sum(tl.load(x_ptr + i)))


@triton.jit
def nested(x_ptr, out_ptr, n, m):
    total = 0.0
    for i in range(n):
        for j in range(m):
            total += tl.load(x_ptr + j)
        tl.store(out_ptr + i, total)
