"""Kernels whose programs race, and what findings tell of them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from compare import debug
from compare.debugging.findings.findings import Findings
from compare.debugging.findings.hazards import Hazard


def lines(hazard: Hazard) -> list[int]:
    return [witness.place.line for witness in hazard.witnesses]


def races(found: Findings) -> list[Hazard]:
    return [hazard for hazard in found.hazards if hazard.kind == "race"]


def orders(found: Findings) -> list[Hazard]:
    return [hazard for hazard in found.hazards if hazard.kind == "order"]


@triton.jit
def histogram(x_ptr, count_ptr, BLOCK: tl.constexpr, BINS: tl.constexpr, ATOMIC: tl.constexpr):
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    mine = tl.histogram(x, BINS)
    bins = count_ptr + tl.arange(0, BINS)
    if ATOMIC:
        tl.atomic_add(bins, mine)
    else:
        before = tl.load(bins)  # histogram load
        tl.store(bins, before + mine)  # histogram store


def counts(atomic: bool) -> Findings:
    x = torch.randint(0, 16, (256,), generator=torch.Generator().manual_seed(0)).int()
    want = torch.bincount(x, minlength=16).int()
    count = torch.zeros(16, dtype=torch.int32)
    return debug(histogram, (4,), (x, count), oracle=lambda: want, BLOCK=64, BINS=16, ATOMIC=atomic)


@triton.jit
def column_sums(x_ptr, out_ptr, M, N, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    x = tl.load(x_ptr + m[:, None] * N + n[None, :], mask=(m[:, None] < M) & (n < N), other=0.0)
    tl.store(out_ptr + n, tl.sum(x, 0), mask=n < N)  # column store
