"""sum_to of rows that begin anywhere: by which loads, and right for every beginning and end."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import triton_kernels
from compare.compiling import machine_code
from triton_kernels.interpreter import cross_compile

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@DTYPES
@pytest.mark.parametrize("shape", [(5000, 1101), (5000, 2049), (5000, 9001)], ids=str)
def test_all_loads_but_those_at_the_ends_are_of_128_bits(
    dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    with cross_compile.compiling(90) as launches:
        triton_kernels.sum_to(torch.empty(shape, dtype=dtype, device="meta"), (shape[0], 1))
    (launch,) = launches
    assert launch.error is None, launch.error
    assert launch.kernel == "row_sum_kernel"
    (found,) = machine_code.of_triton([(launch.cubin, launch.shared)], "sm_90")
    assert found.spills == 0
    loads = Counter(found.loads)
    assert loads.pop("128") >= 2
    assert loads == {str(8 * dtype.itemsize): 1}


# The matrix in memory, its first column and the number of columns; whether a program adds a row by
# whole vectors.
ROWS = {
    (300, 1025, 0, 1025): True,
    (300, 1025, 0, 1024): True,  # the pitch is odd
    (300, 1040, 0, 1025): True,
    (300, 1026, 1, 1025): False,  # x itself is not aligned
    (300, 1024, 0, 1024): False,  # vectors anyway
    (200, 1025, 0, 1025): False,  # so few that a program has 16 warps
    (300, 501, 0, 501): False,
    (300, 40961, 0, 40961): False,  # two passes
    (3000, 40961, 0, 40961): True,
}


@DTYPES
@pytest.mark.parametrize(("rows", "alone"), ROWS.items(), ids=str)
def test_which_rows_are_added_by_which_kernel(
    dtype: torch.dtype, rows: tuple[int, int, int, int], alone: bool
) -> None:
    height, pitch, first, columns = rows
    x = torch.empty(height, pitch, dtype=dtype, device="meta")[:, first : first + columns]
    with cross_compile.compiling(90) as launches:
        triton_kernels.sum_to(x, (height, 1))
    expected = "row_sum_kernel" if alone else "sum_kernel"
    assert [launch.kernel for launch in launches] == [expected]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("addends", [513, 1024, 1025, 1031, 1032, 1537, 2048, 2310, 4100])
@pytest.mark.parametrize("more", [0, 1, 7])
def test_every_beginning_and_end(dtype: torch.dtype, addends: int, more: int) -> None:
    """Integers, so that all orders give the same bits; what lies around a row is NaN, and the
    results lie apart."""
    pitch = addends + more
    memory = torch.full((265, pitch), torch.nan, dtype=dtype)
    x = memory[:, :addends]
    x.copy_(torch.randint(-3, 4, x.shape, generator=torch.Generator().manual_seed(addends)))
    around = torch.full((265, 3), 7.0)
    out = around[:, 1:2]
    with triton_kernels.interpret():
        triton_kernels.sum_to(x, (265, 1), factor=-2, out=out, dtype=torch.float32)
    assert torch.equal(out, -2 * x.float().sum(1, keepdim=True))
    assert (around[:, ::2] == 7).all()
