"""Loads and stores: bounds, strided views, block pointers, descriptors, masked lanes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from small_kernels import atomics, copy, same

from triton_kernels.interpreter import interpreting

TRITON = tuple(int(part) for part in triton.__version__.split(".")[:2])


@triton.jit
def copy_2d(x_ptr, out_ptr, M, N, stride_m, stride_n, BLOCK: tl.constexpr):
    i, j = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    mask = (i < M) & (j < N)
    x = tl.load(x_ptr + i * stride_m + j * stride_n, mask=mask, other=0.0)
    tl.store(out_ptr + i * BLOCK + j, x, mask=mask)


@triton.jit
def either(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    pointers = tl.where(offsets % 2 == 0, x_ptr + offsets, y_ptr + offsets)
    tl.store(out_ptr + offsets, tl.load(pointers, mask=offsets < n, other=0), mask=offsets < n)


def test_bounds_name_the_argument(interpreted: Any) -> None:
    buffer = torch.zeros(4096)  # neighbours in one storage: the pointer's own tensor counts
    x, out = buffer[:100], buffer[128:256]
    copy[(2,)](x, out, 100, BLOCK=64)
    with pytest.raises(IndexError) as caught:
        copy[(2,)](x, out, 128, BLOCK=64)
    text = str(caught.value)
    for part in ("load through x_ptr", "program (1, 0, 0)", "28 of 64 active lanes", "lane [36]",
                 "element offset 100 of x_ptr", "shape (100,)", "strides (1,)", "float32",
                 "small_kernels.py:", "in copy"):  # fmt: skip
        assert part in text, text
    with pytest.raises(IndexError, match=r"store through out_ptr in program .*offset 99 of"):
        copy[(2,)](x, out[:99], 100, BLOCK=64)
    with pytest.raises(IndexError, match="atomic through x_ptr"):
        atomics[(1,)](x[:60], 61, BLOCK=64)
    atomics[(1,)](x[:60], 60, BLOCK=64)
    with pytest.raises(IndexError, match=r"offset 0 of x_ptr"):
        copy[(1,)](x[:0], out, 1, BLOCK=64)


def test_bounds_of_strided_views(interpreted: Any) -> None:
    base = torch.arange(12.0 * 16).reshape(12, 16)
    out = torch.zeros(16, 16)
    view = base[:6, 2:7]
    copy_2d[(1,)](view, out, 6, 5, *view.stride(), BLOCK=16)
    same(out[:6, :5], view)
    with pytest.raises(IndexError) as caught:
        copy_2d[(1,)](view, out, 6, 6, *view.stride(), BLOCK=16)
    for part in ("offset 5 of x_ptr", "would be [0, 5]", "between the elements", "lane [0, 5]"):
        assert part in str(caught.value)
    with pytest.raises(IndexError, match=r"offset 96 of x_ptr, which would be \[6, 0\]"):
        copy_2d[(1,)](view, out, 7, 5, *view.stride(), BLOCK=16)
    copy_2d[(1,)](base.t(), out, 12, 12, *base.t().stride(), BLOCK=16)  # dense: no gaps
    same(out[:12, :12], base.t()[:12])
    wide = torch.ones(3, 1).expand(3, 5)
    copy_2d[(1,)](wide, out, 3, 5, *wide.stride(), BLOCK=16)
    with pytest.raises(IndexError, match="x_ptr"):
        copy_2d[(1,)](wide, out, 4, 5, *wide.stride(), BLOCK=16)
    windows = torch.arange(20.0).unfold(0, 4, 1)  # overlapping elements
    copy_2d[(1,)](windows, out, 16, 4, *windows.stride(), BLOCK=16)
    same(out[:16, :4], windows[:16])


@triton.jit
def block_pointers(x_ptr, out_ptr, M, N, stride, BLOCK: tl.constexpr):
    x = tl.make_block_ptr(x_ptr, (M, N), (stride, 1), (0, 0), (BLOCK, BLOCK), (1, 0))
    out = tl.make_block_ptr(out_ptr, (M, N), (N, 1), (0, 0), (BLOCK, BLOCK), (1, 0))
    tl.store(out, tl.load(x, boundary_check=(0, 1)), boundary_check=(0, 1))


@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
@pytest.mark.skipif(TRITON >= (3, 9), reason="Triton 3.9 removed block pointers")
def test_bounds_of_block_pointers(interpreted: Any) -> None:
    x, out = torch.randn(10, 16)[:, :12], torch.zeros(10, 12)
    block_pointers[(1,)](x, out, 10, 12, 16, BLOCK=16)
    same(out, x.contiguous())
    with pytest.raises(IndexError, match=r"load through x_ptr.*would be \[10, 0\]"):
        block_pointers[(1,)](x, out, 11, 12, 16, BLOCK=16)


def test_pointers_of_two_arguments(interpreted: Any) -> None:
    x, y, out = torch.zeros(8), torch.ones(8), torch.empty(8)
    either[(1,)](x, y, out, 8, BLOCK=8)
    assert out.tolist() == [0, 1] * 4
    with pytest.raises(IndexError, match="out-of-bounds load in program"):
        either[(1,)](x[:2], y[:2], out, 8, BLOCK=8)


@triton.jit
def descriptor_copy(desc, out_ptr, R, C, M, N, BLOCK: tl.constexpr):
    made = tl.make_tensor_descriptor(
        out_ptr, shape=[M, N], strides=[N, 1], block_shape=[BLOCK, BLOCK]
    )
    made.store([R, C], desc.load([R, C]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensor_descriptors(interpreted: Any, dtype: torch.dtype) -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    x, out = torch.randn(24, 40).to(dtype), torch.zeros(24, 40, dtype=dtype)
    desc = TensorDescriptor(x, [24, 40], [40, 1], [16, 16])
    for r in (0, 16):
        for c in (0, 16, 32):
            descriptor_copy[(1,)](desc, out, r, c, 24, 40, BLOCK=16)
    same(out, x)
    with pytest.raises(IndexError, match=r"store through out_ptr.*would be \[24, 0\]"):
        descriptor_copy[(1,)](desc, out, 16, 0, 32, 40, BLOCK=16)
    lying = TensorDescriptor(x, [32, 40], [40, 1], [16, 16])
    with pytest.raises(IndexError, match="load through desc"):
        descriptor_copy[(1,)](lying, out, 16, 0, 24, 40, BLOCK=16)


@triton.jit
def descriptor_ones(desc, BLOCK: tl.constexpr):
    desc.store([0, 0], tl.full((BLOCK, BLOCK), 1.0, desc.dtype))


def rows_of_ones(device: str, dtype: torch.dtype) -> torch.Tensor:
    """What a store of ones into rows of five elements leaves of twos, 16 in a row."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    memory = torch.full((8, 16), 2, dtype=dtype, device=device)
    descriptor_ones[(1,)](TensorDescriptor(memory, [7, 5], [16, 1], [16, 16]), BLOCK=16)
    return memory


def test_a_descriptor_stores_whole_16_bytes(interpreted: Any) -> None:
    """As an H200 does: the last 16 bytes of a row, although the row ends between."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        memory = rows_of_ones("cpu", dtype)
        wanted = torch.full((8, 16), 2, dtype=dtype)
        wanted[:7, :8] = 1
        assert torch.equal(memory, wanted)
    view = torch.zeros(7, 16)[:, :5]
    with pytest.raises(IndexError, match=r"store through desc.*stores whole 16 bytes"):
        descriptor_ones[(1,)](TensorDescriptor(view, [7, 5], [16, 1], [16, 16]), BLOCK=16)


@pytest.mark.gpu_only
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_gpu_stores_whole_16_bytes_through_a_descriptor(dtype: torch.dtype) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("seen on compute capability 9.0")
    compiled = rows_of_ones("cuda", dtype).cpu()
    with interpreting():
        assert torch.equal(compiled, rows_of_ones("cpu", dtype))


@triton.jit
def masked_load(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n))


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int64]
)
def test_masked_lanes_are_poison(interpreted: Any, dtype: torch.dtype) -> None:
    x, out = torch.ones(8, dtype=dtype), torch.zeros(8, dtype=dtype)
    masked_load[(1,)](x, out, 5, BLOCK=8)
    assert (out[:5] == 1).all()
    if dtype.is_floating_point:
        assert out[5:].isnan().all()
    else:
        assert (out[5:] > torch.iinfo(dtype).max // 2).all()
        assert (out[5:] % 2 == 1).all()


@triton.jit
def one_masked_lane(x_ptr, out_ptr, n, OTHER: tl.constexpr):
    i = tl.arange(0, 1)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n, other=OTHER))
    tl.store(out_ptr + 1, tl.load(x_ptr, mask=n > 0, other=OTHER))
    tl.store(out_ptr + 2, tl.load(x_ptr, mask=n > 0))


def test_one_masked_lane_with_other_0_is_0(interpreted: Any) -> None:
    """A tensor of one 0 is false, so that Triton takes it for no other at all."""
    for other in (0.0, 3.0):
        x, out = torch.ones(1), torch.full((3,), 9.0)
        one_masked_lane[(1,)](x, out, 0, other)
        assert out[:2].tolist() == [other, other]
        assert out[2].isnan()
