"""How sum_to cuts its work: read ahead where whole vectors are read, and only there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import triton_kernels
from triton_kernels import _cross_compile
from triton_kernels.ops.sum_to import _parts


def passes(x: Tensor, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """BLOCK_K, BLOCK_R, STAGES and the number of parts of each pass."""
    found: list[tuple[int, ...]] = []

    def note(kernel: Any, grid: tuple[int, ...], *args: Any, **meta: Any) -> None:
        found.append((*(meta[name] for name in ("BLOCK_K", "BLOCK_R", "STAGES")), grid[1]))

    with pytest.MonkeyPatch.context() as patch, _cross_compile.compiling(90):
        patch.setattr(_cross_compile, "launch", note)
        triton_kernels.sum_to(x, shape)
    return found


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


WIDE = (64, 128, 3)


@pytest.mark.parametrize(
    ("x", "shape", "tile"),
    [
        (meta(4096, 4096), (4096,), WIDE),
        (meta(4096, 4096, dtype=torch.float64), (4096,), (64, 64, 3)),
        (meta(4096, 48), (48,), WIDE),
        (meta(4096, 16), (16,), (16, 512, 3)),
        (meta(4096, 100), (100,), (32, 128, 1)),  # rows of no whole number of vectors
        (meta(4096, 104)[:, :96], (96,), (32, 128, 1)),  # that start between vectors
        (meta(4096, 192)[:, ::2], (96,), (32, 128, 1)),  # of which every other is read
        (meta(4096, 96)[1:, 1:], (95,), (32, 128, 1)),
        (meta(4096 * 96 + 1)[1:].view(4096, 96), (96,), (32, 128, 1)),
        (meta(2**20, 2048), (2048,), (32, 128, 1)),  # indices near 32 bits
        (meta(40, 4096), (4096,), (32, 64, 1)),  # one tile only
        (meta(8, 4096), (4096,), (256, 8, 1)),
        (meta(4096, 4096), (4096, 1), (1, 2048, 1)),
    ],
)
def test_the_first_pass(x: Tensor, shape: tuple[int, ...], tile: tuple[int, ...]) -> None:
    assert passes(x, shape)[0][:3] == tile


@pytest.mark.parametrize(
    ("rows", "columns", "parts"),
    [  # measured on an H200 as the fastest, or within 5 % of it
        (256, 1024, 1),
        (512, 4096, 4),
        (1024, 1024, 8),
        (2048, 2048, 16),
        (4096, 4096, 16),
        (16384, 4096, 33),
        (16384, 16384, 8),
    ],
)
def test_parts_keep_a_gpu_busy(rows: int, columns: int, parts: int) -> None:
    assert _parts(columns // 64, rows // 128) == parts
    (_, _, _, first), *rest = passes(meta(rows, columns), (columns,))
    assert first == -(-rows // 128 // -(-rows // 128 // parts))
    assert [count for *_, count in rest] == [1] * (parts > 1)
