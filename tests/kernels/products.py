"""Operands and calls of the matrix products, as their gradient tests make them."""

from __future__ import annotations

import torch
from torch import Tensor

DOUBLE = torch.float64


def leaf(device: torch.device, *shape: int, dtype: torch.dtype = DOUBLE, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=DOUBLE).to(device, dtype).requires_grad_()


def operands(device: torch.device, dtype: torch.dtype = DOUBLE, size: int = 1) -> list[Tensor]:
    M, N, K = 5 * size, 6 * size, 7 * size
    shapes = ((M, K), (K, N), (N,), (M, 1))
    return [leaf(device, *shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes)]
