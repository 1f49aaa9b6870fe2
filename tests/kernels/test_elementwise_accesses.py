"""How wide the elementwise kernels' accesses are, by how the operands lie: the machine code's."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

pytest.importorskip("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import triton_kernels
from compare.compiling import machine_code
from triton_kernels import _elementwise
from triton_kernels.interpreter import cross_compile

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def accesses(x: Tensor, y: Tensor, out: Tensor | None = None) -> tuple[str, Counter, Counter]:
    """The kernel that adds these, and its loads and stores: bits → how many."""
    with cross_compile.compiling(90) as launches:
        triton_kernels.add(x, y, out=out)
    (launch,) = launches
    assert launch.error is None, launch.error
    (found,) = machine_code.of_triton([(launch.cubin, launch.shared)], "sm_90")
    assert found.spills == 0
    return launch.kernel, Counter(found.loads), Counter(found.stores)


def meta(*shape: int, dtype: torch.dtype, offset: int = 0) -> Tensor:
    whole = torch.empty(math.prod(shape) + offset, dtype=dtype, device="meta")
    return whole[offset:].view(shape)


@DTYPES
def test_an_odd_count_keeps_vectors(dtype: torch.dtype) -> None:
    """One path by whole vectors, and one of single elements, which the last block takes."""
    per_vector = 16 // dtype.itemsize
    x = meta(1023, 1023, dtype=dtype)
    kernel, loads, stores = accesses(x, x)
    assert kernel == "flat_kernel"
    assert loads == {"128": 2, str(8 * dtype.itemsize): 2 * per_vector}
    assert stores == {"128": 1, str(8 * dtype.itemsize): per_vector}


@DTYPES
def test_an_operand_that_is_not_aligned_costs_the_others_no_vectors(dtype: torch.dtype) -> None:
    x, y = meta(1024, 1024, dtype=dtype, offset=1), meta(1024, 1024, dtype=dtype)
    _, loads, stores = accesses(x, y)
    per_vector = 16 // dtype.itemsize
    assert loads == {"128": 2, str(8 * dtype.itemsize): 2 * per_vector}  # whole, and under a mask
    assert stores == {"128": 2}


@DTYPES
@pytest.mark.parametrize("turned", ["x", "y", "NHWC"])
def test_operands_dense_along_other_dimensions_are_all_read_by_vectors(
    dtype: torch.dtype, turned: str
) -> None:
    x, y = meta(1024, 1024, dtype=dtype), meta(1024, 1024, dtype=dtype).t()
    if turned == "x":
        x, y = y, x
    elif turned == "NHWC":
        x = meta(8, 64, 32, 32, dtype=dtype)
        y = meta(8, 32, 32, 64, dtype=dtype).permute(0, 3, 1, 2)
    kernel, loads, stores = accesses(x, y)
    assert kernel == "tiled_kernel"
    assert set(loads) == set(stores) == {"128"}


@DTYPES
@pytest.mark.parametrize("lying", ["turned", "NHWC", "rows", "halves"])
def test_multiples_of_8_are_accessed_by_vectors(dtype: torch.dtype, lying: str) -> None:
    """Of sizes and strides the compiler sees by itself only what is a multiple of 16."""
    if lying == "turned":
        x, y = meta(1000, 1000, dtype=dtype), meta(1000, 1000, dtype=dtype).t()
    elif lying == "NHWC":
        x = meta(8, 24, 28, 2, dtype=dtype)
        y = meta(8, 28, 2, 24, dtype=dtype).permute(0, 3, 1, 2)
    elif lying == "rows":
        x = y = meta(1000, 1016, dtype=dtype)[:, :1000]
    else:
        x, y = meta(1580, 400, dtype=dtype).chunk(2, 1)
    kernel, loads, stores = accesses(x, y)
    assert kernel == ("tiled_kernel" if lying in ("turned", "NHWC") else "flat_kernel")
    assert set(loads) == set(stores) == {"128"}


@DTYPES
@pytest.mark.parametrize(
    ("shape", "scalars"), [((1024, 1024), 0), ((1024,), 0), ((1024, 1), 1), ((), 1)], ids=str
)
def test_a_scale_costs_the_others_no_vectors(
    dtype: torch.dtype, shape: tuple[int, ...], scalars: int
) -> None:
    """It is read in vectors, too; of a column, or where there is but one, by elements."""
    x = meta(1024, 1024, dtype=dtype)
    with cross_compile.compiling(90) as launches:
        triton_kernels.relu_scale_add(x, x, torch.empty(shape, dtype=dtype, device="meta"))
    (launch,) = launches
    (code,) = machine_code.of_triton([(launch.cubin, launch.shared)], "sm_90")
    alone = {bits for bits in code.loads if bits != "128"}
    assert len(alone) == scalars
    assert set(code.stores) == {"128"}
    assert code.spills == 0


@DTYPES
@pytest.mark.parametrize(("N", "bits"), [(1000, 128), (1002, 0), (1001, 0)])
def test_gradients_of_rows_that_are_multiples_of_8(dtype: torch.dtype, N: int, bits: int) -> None:
    """act_backward's, a result and its sums; of multiples of 2, two at a time."""
    x = meta(1000, N, dtype=dtype)
    with cross_compile.compiling(90) as launches:
        triton_kernels.act_backward(x, x, "relu")
    found = {str(bits or 8 * dtype.itemsize * (2 if N % 2 == 0 else 1))}
    kernel = machine_code.of_triton([(launches[0].cubin, launches[0].shared)], "sm_90")[0]
    assert set(kernel.loads) == found
    assert set(kernel.stores) == found | {"32"}  # the sums, in float32


@DTYPES
def test_one_odd_operand_costs_the_others_no_vectors(dtype: torch.dtype) -> None:
    """Its rows have an odd pitch; the others' are multiples of 8."""
    x, y = meta(1000, 1003, dtype=dtype)[:, :1000], meta(1000, 1016, dtype=dtype)[:, :1000]
    _, loads, stores = accesses(x, y)
    assert loads["128"] == stores["128"] == 4  # two where all are there, two under a mask
    assert set(loads) == {"128", str(8 * dtype.itemsize)}


@DTYPES
@pytest.mark.parametrize("shape", [(1024, 1), (256, 1, 1)], ids=str)
def test_what_repeats_itself_along_long_rows_is_read_once(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    x = meta(1024, 4096, dtype=dtype) if len(shape) == 2 else meta(8, 256, 64, 64, dtype=dtype)
    kernel, loads, stores = accesses(x, meta(*shape, dtype=dtype))
    assert kernel == "tiled_kernel"
    assert loads == {"128": 2, str(8 * dtype.itemsize): 1}
    assert stores == {"128": 2}


@DTYPES
@pytest.mark.parametrize(
    ("shape", "repeated", "single"),
    [
        ((100_000, 80), (100_000, 1), 1),
        ((100_000, 80), (80,), 0),
        ((8, 256, 28, 28), (256, 1, 1), 1),
        ((256, 512, 7, 7), (512, 1, 1), None),  # each element for itself, of x and out none
        ((8191, 4095), (4095,), None),
    ],
    ids=str,
)
def test_short_and_odd_rows_are_accessed_by_vectors(
    dtype: torch.dtype, shape: tuple[int, ...], repeated: tuple[int, ...], single: int | None
) -> None:
    """``single``: the loads of a vector's worth of the operand that repeats itself."""
    kernel, loads, stores = accesses(meta(*shape, dtype=dtype), meta(*repeated, dtype=dtype))
    assert kernel == "flat_kernel"
    assert stores["128"] >= 2  # two a thread
    assert loads["128"] >= 2
    if single is not None:
        masked = 8 if dtype == torch.float32 else 16
        assert loads[str(8 * dtype.itemsize)] == (2 + masked) * single


@DTYPES
def test_rows_of_an_odd_pitch_are_stored_by_vectors(dtype: torch.dtype) -> None:
    x = meta(1024, 4099, dtype=dtype)[:, :4096]
    _, loads, stores = accesses(x, x)
    assert "128" not in loads
    assert stores == {"128": 4}  # two where all are there, two under a mask


# ---- walks ----


def offsets(walk: _elementwise.Walk, n: int) -> Tensor:
    """What flat_kernel says a walk is."""
    if walk == _elementwise.ONCE:
        return torch.arange(n)
    size, rows = walk[0], walk[4]
    strides = [stride or 0 for stride in (walk[3], walk[7], walk[8])]
    row = torch.arange(n) // size
    plane = row // rows if rows else torch.zeros_like(row)
    row -= plane * (rows or 0)
    index = torch.arange(n) % size
    return index * strides[0] + row * strides[1] + plane * strides[2]


def walks(x: Tensor, y: Tensor | None, out: Tensor) -> tuple[Any, ...]:
    return _elementwise._walks(out.numel(), _elementwise._dims(x, y, None, out), 2048)


@pytest.mark.parametrize(
    "shape",
    [(1,), (3, 1), (5,), (3, 5), (4, 1, 1), (4, 3, 1), (4, 1, 5), (2, 1, 3, 5), (2, 1, 3, 1)],
    ids=str,
)
def test_walks_through_a_dense_output(shape: tuple[int, ...]) -> None:
    """Each is the operand's own offsets, element by element; four dimensions are refused."""
    out = torch.empty(2, 4, 3, 5)
    y = torch.arange(math.prod(shape)).view(shape)
    if shape in ((4, 1, 5), (2, 1, 3, 1)):
        assert walks(out, y, out) == ()
        return
    (x_walk, _), (y_walk, _), _ = walks(out, y, out)
    assert x_walk == _elementwise.ONCE
    assert torch.equal(offsets(y_walk, out.numel()), y.expand(out.shape).reshape(-1))


@pytest.mark.parametrize(
    ("shape", "walked"),
    [((8, 2032), True), ((8, 2048), False), ((8, 2049), True), ((2**22, 1000), False)],
    ids=str,  # the last one's index would not fit 32 bits
)
def test_columns_are_walked_but_of_long_rows(shape: tuple[int, int], walked: bool) -> None:
    out = meta(*shape, dtype=torch.int8)
    found = walks(out, meta(shape[0], 1, dtype=torch.int8), out)
    y_walk = (*_elementwise.divisor(shape[1]), None, *_elementwise.NONE, 1, None)
    dense = _elementwise.ONCE, _elementwise.ALL
    y = y_walk, (math.gcd(16, shape[1]), 1)
    assert found == ((dense, y, dense) if walked else ())


@pytest.mark.parametrize(
    ("columns", "pitch", "units"),
    [(208, 416, (16, 16)), (48, 72, (16, 8)), (200, 400, (8, 16)), (7, 16, (1, 16))],
)
def test_rows_with_gaps_are_walked(columns: int, pitch: int, units: tuple[int, int]) -> None:
    x = torch.arange(3 * pitch).view(3, pitch)[:, :columns]
    out = torch.empty(3, columns)
    (x_walk, x_units), *_ = walks(x, None, out)
    assert x_units == units
    assert torch.equal(offsets(x_walk, out.numel()), x.reshape(-1))


@pytest.mark.parametrize(
    ("shape", "walked"),
    [((5, 8, 3, 3), True), ((2, 6, 4, 8), True), ((2, 8, 3, 11), False)],
    ids=str,
)
def test_an_operand_turned_in_short_rows_is_walked(shape: tuple[int, ...], walked: bool) -> None:
    """Rows of up to 32 elements; of longer ones a block would have too little of each channel."""
    out = torch.empty(shape)
    y = torch.arange(out.numel()).view(shape).to(memory_format=torch.channels_last)
    found = walks(out, y, out)
    if walked:
        memory = y.as_strided((y.numel(),), (1,))
        assert torch.equal(memory[offsets(found[1][0], out.numel())], y.reshape(-1))
    else:
        assert found == ()


def test_an_operand_too_long_for_32_bits_is_not_walked() -> None:
    x = torch.empty_strided((3, 8), (2**30, 1), dtype=torch.int8, device="meta")
    assert walks(x, None, meta(3, 8, dtype=torch.int8)) == ()
    assert walks(x[:2], None, meta(2, 8, dtype=torch.int8))


@DTYPES
def test_rows_that_would_hang_over_tiles_are_accessed_by_vectors(dtype: torch.dtype) -> None:
    x, y = meta(6849, 416, dtype=dtype).chunk(2, 1)
    kernel, loads, stores = accesses(x, y)
    assert kernel == "flat_kernel"
    assert set(loads) == set(stores) == {"128"}


@given(st.integers(2, 2**31 - 1), st.integers(0, 2**31 - 1))
@settings(max_examples=2000)
def test_a_divisor_divides(d: int, index: int) -> None:
    """At the index, and on both sides of the multiples next to it, all below 2³¹."""
    same, factor, shift = _elementwise.divisor(d)
    assert same == d
    assert -(2**31) <= factor < 0  # one kind of integer to Triton
    for i in (index, index // d * d - 1, index // d * d, index // d * d + d - 1, 2**31 - 1):
        if 0 <= i < 2**31:
            assert i * (factor + 2**32) >> 32 >> shift == i // d


# ---- tiles ----


@pytest.mark.parametrize("size", [1, 2, 3, 31, 49, 65, 80, 196, 784, 1000, 3136, 4099, 2**31 + 5])
def test_little_of_a_tile_hangs_over(size: int) -> None:
    for most in (1, 4, 32, 64, 512):
        piece = _elementwise.cut(size, most)
        assert piece & (piece - 1) == 0
        assert 1 <= piece <= most
        least = min(-size % (1 << e) for e in range(5, 10) if 1 << e <= most) if most >= 32 else 0
        if piece >= 32:
            assert -size % piece <= max(size // 16, least)


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from([1, 2, 3, 4, 8, 12, 16, 24, 48, 64]), min_size=2, max_size=3),
    st.data(),
)
def test_units_divide(sizes: list[int], data: st.DataObject) -> None:
    """Sizes, and the strides of an operand along all dimensions but its dense one."""
    steps = st.lists(st.sampled_from([0, 1, 2, 8, 16, 24, 40, 7]), min_size=3, max_size=3)
    dims = tuple((size, *data.draw(steps)) for size in sizes)
    units = _elementwise._units(dims)
    assert all(unit in (1, 2, 4, 8) for unit in (*units[:2], *units[3::2]))
    assert all(size % unit == 0 for size, unit in zip(sizes, units[:2]))
    for operand, dense, unit in zip((1, 2, 3), units[2::2], units[3::2]):
        if unit > 1:
            assert dims[dense][operand] == 1
            assert units[dense] >= unit
            assert all(dim[operand] % unit == 0 for d, dim in enumerate(dims) if d != dense)


def test_the_second_dimension_is_the_one_along_which_another_operand_is_dense() -> None:
    nhwc = ((64, 1, 8, 1), (8, 64, 1, 64), (2, 512, 512, 512))
    assert _elementwise._innermost(nhwc) == (nhwc, True)
    far = (nhwc[0], (2, 512, 512, 512), (8, 64, 1, 64))
    assert _elementwise._innermost(far) == (nhwc, True)
    column = ((64, 1, 0, 1), (8, 64, 1, 64))
    assert _elementwise._innermost(column) == (column, False)
    assert _elementwise._innermost(((64, 2, 2, 1),)) == (((64, 2, 2, 1), (1, 0, 0, 0)), False)


@pytest.mark.parametrize("size", [2, 3, 16, 100, 1023, 4096])
def test_a_row_gets_the_launch_that_planning_its_walk_gives(size: int) -> None:
    how = _elementwise.configuration(object(), torch.float32, (True, False))
    n, keys = 33 * size, ("made up",)
    dims = (size, 1, 1, 1, 1), (33, size, 0, size, size)
    planned, _, rest = _elementwise._prepared(how, n, dims, keys)
    launch, walk = _elementwise._along_row(how, size, _elementwise.divisibility(n), keys)
    assert rest == (n, _elementwise.ONCE, walk, _elementwise.ONCE)
    assert launch is planned
