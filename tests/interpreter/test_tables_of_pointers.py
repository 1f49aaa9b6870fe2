"""Kernels that read pointers from a table, as grouped products do."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

import triton_kernels as tk


@triton.jit
def grouped(table_ptr, out_ptr, n, BLOCK: tl.constexpr):
    group = tl.program_id(0)
    x_ptr = tl.load(table_ptr + group).to(tl.pointer_type(tl.float32))
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + group * n + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)


@triton.jit
def grouped_in_place(table_ptr, n, BLOCK: tl.constexpr):
    x_ptr = tl.load(table_ptr + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)


def table_of(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([t.data_ptr() for t in tensors], dtype=torch.int64)


def test_memory_of_tensors_that_are_alive_counts() -> None:
    tensors = [torch.randn(50) for _ in range(3)]
    out = torch.empty(150)
    with tk.interpret():
        grouped[(3,)](table_of(tensors), out, 50, BLOCK=64)
    assert torch.equal(out, 2 * torch.cat(tensors))


def test_stores_reach_them() -> None:
    tensors = [torch.randn(50) for _ in range(3)]
    expected = [2 * t for t in tensors]
    with tk.interpret():
        grouped_in_place[(3,)](table_of(tensors), 50, BLOCK=64)
    assert all(map(torch.equal, tensors, expected))


def test_past_their_end_the_tensor_is_named() -> None:
    tensors = [torch.randn(50), torch.randn(47)]
    with tk.interpret(), pytest.raises(IndexError) as caught:
        grouped[(2,)](table_of(tensors), torch.empty(150), 50, BLOCK=64)
    text = str(caught.value)
    assert "out-of-bounds load in program (1, 0, 0)" in text
    assert "3 of 50 active lanes" in text
    assert "element offset 47 of a tensor that is no argument (shape (47,)" in text
    assert "table_ptr" not in text


def test_an_address_in_no_tensor_blames_none() -> None:
    table = torch.tensor([1 << 20], dtype=torch.int64)
    with tk.interpret(), pytest.raises(IndexError) as caught:
        grouped[(1,)](table, torch.empty(50), 50, BLOCK=64)
    text = str(caught.value)
    assert "is at address 0x100000, in no tensor that is alive" in text
    assert "table_ptr" not in text
