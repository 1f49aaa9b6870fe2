"""Launches of long tensors: a CUDA grid ends at 65535 along its second axis."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import cuda_reference
import triton_kernels
from compare.checking.implementations import unavailable
from triton_kernels.ops import act_backward


@pytest.mark.parametrize("shape", [(3, 2**30 + 7), (2**31, 3), (1, 2**31 - 1), (2**16, 2**16)])
def test_act_backward(shape: tuple[int, int]) -> None:
    M, N = shape
    half = (torch.float16, True)
    prepared = act_backward._prepared(
        M, N, 2112, (N, 1) * 3, (half,) * 3, True, "relu", torch.float16, torch.float32
    )
    columns, parts, depth = prepared[0].grid
    assert columns * prepared[0].meta["BLOCK_N"] >= N
    assert columns < 2**31
    assert parts == prepared[1] <= 65535
    assert parts * prepared[2] >= M
    assert depth == 1


@pytest.mark.parametrize("side", [triton_kernels, cuda_reference])
def test_dimensions_of_products_that_are_too_large(side: Any) -> None:
    """Triton's kernels count in 32 bits to the end of a tile. Expanded tensors take no memory."""
    one = torch.zeros(1, 1)
    long, half = one.expand(2**31 - 1023, 1), one.expand(2**30 - 1023, 1)
    for call in (
        lambda: side.gemm_bias_act(long, one),
        lambda: side.gemm_bias_act(one, long.t()),
        lambda: side.gemm_bias_act(long.t(), long),
        lambda: side.gemm_bias_act(half, one, precision="f16x3"),
        lambda: side.linear_act(long, one, act="relu"),
        lambda: side.linear_gelu(one, long),
    ):
        with pytest.raises(RuntimeError, match=r"M, N and K are .*\d{10}"):
            call()


def test_square_2d_of_many_rows() -> None:
    """More than 65535 blocks of eight."""
    if "cuda-host" in unavailable():
        pytest.skip(unavailable()["cuda-host"])
    x = torch.arange(2**19 + 9, dtype=torch.float32)[:, None]
    assert torch.equal(cuda_reference.square(x, variant="2d"), x * x)
