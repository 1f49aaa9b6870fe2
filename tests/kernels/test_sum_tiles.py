"""How sum_to cuts its work: tiles, warps, what is read ahead and where, parts of tall sums."""

from __future__ import annotations

import itertools
from importlib import import_module
from typing import Any

import pytest
import torch
import triton
from torch import Tensor

import triton_kernels
from triton_kernels._counts import cdiv, next_power_of_2
from triton_kernels._launch import specialization_key
from triton_kernels.interpreter import cross_compile
from triton_kernels.ops import _sum_to_tiles as tiles


def passes(
    x: Tensor, shape: tuple[int, ...], across: list[int] | None = None
) -> list[tuple[int, ...]]:
    """BLOCK_K, BLOCK_R, STAGES, num_warps and the number of parts of each pass; ``across`` gets
    the programs of a part."""
    names = {"BLOCK_K": 1, "BLOCK_R": 0, "STAGES": 1, "num_warps": 0}  # row_sum_kernel lacks two
    found: list[tuple[int, ...]] = []

    def note(kernel: Any, grid: tuple[int, ...], *args: Any, **meta: Any) -> None:
        found.append((*(meta.get(*name) for name in names.items()), grid[1]))
        if across is not None:
            across.append(grid[0])

    with pytest.MonkeyPatch.context() as patch, cross_compile.compiling(90):
        patch.setattr(cross_compile, "launch", note)
        triton_kernels.sum_to(x, shape)
    return found


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


FLOAT, DOUBLE = torch.float32, torch.float64
WIDE = (64, 128, 3, 4)
WARP = (256, 4, 1, 1)


@pytest.mark.parametrize(
    ("x", "shape", "tile"),
    [
        (meta(4096, 4096), (4096,), WIDE),
        (meta(4096, 4096, dtype=DOUBLE), (4096,), (64, 64, 3, 4)),
        (meta(4096, 48), (48,), WIDE),
        (meta(4096, 16), (16,), (16, 512, 3, 4)),
        (meta(16, 512, 4096), (16, 1, 4096), WIDE),
        (meta(4096, 100), (100,), WIDE),  # rows of no whole number of vectors: many at once
        (meta(4096, 104)[:, :96], (96,), WIDE),  # that start at vectors
        (meta(4096, 100)[:, :96], (96,), (32, 128, 1, 4)),  # between them
        (meta(4095, 7), (7,), (8, 512, 1, 8)),  # too few rows for that
        (meta(4096, 192)[:, ::2], (96,), (32, 128, 1, 4)),  # of which every other is read
        (meta(4096, 96)[1:, 1:], (95,), (32, 128, 1, 4)),
        (meta(4096 * 96 + 1)[1:].view(4096, 96), (96,), (32, 128, 1, 4)),
        (meta(16, 512, 100), (16, 1, 100), (16, 128, 1, 4)),
        (meta(200, 512, 100), (200, 1, 100), (64, 16, 1, 1)),  # rows of results that lie apart
        (meta(400, 512, 96), (400, 1, 96), (16, 64, 1, 1)),  # of whole vectors
        (meta(20000, 512, 4), (20000, 1, 4), (16, 64, 1, 1)),  # short ones
        (meta(20000, 40, 16), (20000, 1, 16), (32, 32, 1, 1)),  # many, and few addends
        (meta(20000, 20, 16), (20000, 1, 16), (64, 16, 1, 1)),
        (meta(8, 7000, 8, 64), (1, 7000, 1, 64), (128, 8, 1, 1)),
        (meta(68, 2516, 4, 8), (1, 2516, 1, 8), (16, 128, 1, 4)),  # little data
        (meta(512, 20000, 16, 4), (1, 20000, 1, 4), WARP),  # and few addends in a row
        (meta(400, 512, 96, dtype=FLOAT), (400, 1, 96), (16, 256, 1, 8)),
        (meta(49, 321, 4, 68), (1, 321, 1, 68), (64, 16, 1, 1)),  # rows of x come first
        (meta(31, 321, 4, 68), (1, 321, 1, 68), (16, 128, 1, 4)),  # not of so few
        (meta(400, 7, 96), (400, 1, 96), (128, 8, 1, 1)),  # few addends
        (meta(2**20, 2048), (2048,), (64, 16, 1, 4)),  # indices near 32 bits
        (meta(40, 4096), (4096,), (64, 16, 1, 4)),  # one tile only
        (meta(8, 4096), (4096,), (128, 8, 1, 1)),
        (meta(3, 4096), (4096,), (256, 4, 1, 1)),  # few of few addends
        (meta(8, 2**20), (2**20,), WARP),  # many results: no sums between lanes
        (meta(8, 2**28), (2**28,), WARP),
        (meta(8, 2**20, dtype=FLOAT), (2**20,), (128, 4, 1, 1)),
        (meta(8, 2**20, dtype=DOUBLE), (2**20,), (128, 4, 1, 1)),
        (meta(300, 2**20), (2**20,), WARP),
        (meta(8, 2**20 + 1), (2**20 + 1,), WARP),
        (meta(12, 1000, 3072), (1000, 3072), WARP),
        (meta(64, 64, 8192), (64, 1, 8192), WARP),
        (meta(8, 2**16), (2**16,), WARP),
        (meta(8, 2**16 + 1), (2**16 + 1,), WARP),
        (meta(8, 2**16 - 1), (2**16 - 1,), (128, 8, 1, 1)),
        (meta(4096, 1003), (1003,), (64, 16, 1, 4)),
        (meta(128, 2**16), (2**16,), WIDE),
        (meta(128, 2**16 + 8), (2**16 + 8,), (64, 16, 1, 1)),  # a warp has enough to do
        (meta(24, 100000), (100000,), (128, 8, 1, 1)),
        (meta(128, 100000, dtype=FLOAT), (100000,), (128, 8, 1, 1)),
        (meta(4, 4096, 4096), (4096, 4096), (1024, 2, 1, 4)),
        (meta(3, 5000001), (5000001,), (512, 4, 1, 4)),
        (meta(4096, 4096), (4096, 1), (1, 1024, 1, 4)),  # along rows
        (meta(4096, 1024), (4096, 1), (2, 512, 1, 4)),
        (meta(4095, 4095), (4095, 1), (1, 1024, 1, 2)),  # by whole vectors all the same
        (meta(4095, 4095)[:4000, 1:], (4000, 1), (1, 512, 1, 2)),  # x is not aligned
        (meta(100000, 200), (100000, 1), (8, 256, 1, 2)),  # short ones: whole
        (meta(100000, 200, dtype=FLOAT), (100000, 1), (8, 256, 1, 4)),
        (meta(2**20, 3), (2**20, 1), (512, 1, 1, 4)),
        (meta(2**20, 13), (2**20, 1), (256, 2, 1, 4)),
        (meta(2**20, 13, dtype=FLOAT), (2**20, 1), (64, 8, 1, 1)),
        (meta(2**17, 21), (2**17, 1), (128, 4, 1, 4)),
        (meta(2**17, 21, dtype=FLOAT), (2**17, 1), (64, 4, 1, 4)),
        (meta(2**17, 45), (2**17, 1), (64, 4, 1, 4)),
        (meta(2**17, 45, dtype=FLOAT), (2**17, 1), (32, 8, 1, 4)),
        (meta(2**17, 99), (2**17, 1), (32, 8, 1, 4)),
        (meta(2**17, 99, dtype=FLOAT), (2**17, 1), (32, 16, 1, 8)),
        (meta(2**17, 98, dtype=FLOAT), (2**17, 1), (32, 32, 1, 4)),
        (meta(100000, 201), (100000, 1), (32, 16, 1, 8)),  # by single elements
        (meta(1000, 5609), (1000, 1), (1, 2048, 1, 4)),
        (meta(1000, 5609, dtype=DOUBLE), (1000, 1), (1, 2048, 1, 8)),  # few rows: no smaller tiles
        (meta(4000, 5609, dtype=DOUBLE), (4000, 1), (1, 512, 1, 2)),
        (meta(20000, 1151), (20000, 1), (1, 512, 1, 1)),
        (meta(20000, 1152)[:, 1:], (20000, 1), (2, 256, 1, 1)),
        (meta(2000, 1151), (2000, 1), (1, 512, 1, 1)),
        (meta(2000, 1991), (2000, 1), (1, 1024, 1, 2)),
        (meta(2000, 791), (2000, 1), (1, 1024, 1, 4)),
        (meta(2000, 791, dtype=FLOAT), (2000, 1), (1, 1024, 1, 2)),
        (meta(2000, 12001), (2000, 1), (1, 2048, 1, 4)),
        (meta(20000, 1151, dtype=FLOAT), (20000, 1), (1, 2048, 1, 4)),
        (meta(20000, 5151, dtype=FLOAT), (20000, 1), (1, 4096, 1, 8)),
        (meta(20000, 333), (20000, 1), (8, 64, 1, 4)),
        (meta(400, 200), (400, 1), (1, 256, 1, 4)),  # few: at once
        (meta(790, 12704), (790, 1), (1, 4096, 1, 8)),
        (meta(200, 7153), (200, 1), (1, 4096, 1, 16)),
        (meta(600, 7153), (600, 1), (1, 2048, 1, 4)),
        (meta(4864), (), (1, 4096, 1, 16)),
        (meta(33, 100000, 24, 1), (1, 100000, 1, 1), (256, 16, 1, 4)),  # short ones
        (meta(64, 256, 56, 56), (256, 1, 1), (1, 4096, 1, 8)),
        (meta(264, 946, 12, 1), (946, 1, 1), (16, 64, 1, 4)),  # short ones of few results
    ],
)
def test_the_first_pass(x: Tensor, shape: tuple[int, ...], tile: tuple[int, ...]) -> None:
    assert passes(x, shape)[0][:4] == tile


@pytest.mark.parametrize(
    ("x", "shape", "tiles", "parts"),
    [  # measured on an H200 as the fastest, or within 5 % of it
        (meta(256, 1024), (1024,), 2, 1),
        (meta(512, 4096), (4096,), 4, 1),
        (meta(1024, 1024), (1024,), 8, 8),
        (meta(2048, 2048), (2048,), 16, 8),
        (meta(4096, 4096), (4096,), 32, 8),
        (meta(16384, 4096), (4096,), 128, 16),
        (meta(16384, 16384), (16384,), 128, 1),
        (meta(512, 65536), (65536,), 4, 1),
        (meta(64, 65536), (65536,), 16, 8),
        (meta(8000, 14336), (14336,), 63, 1),
        (meta(200, 262144), (262144,), 50, 2),
        (meta(1024, 65536), (1024, 1), 64, 1),
        (meta(64, 256, 56, 56), (256, 1, 1), 49, 8),
    ],
)
def test_parts_keep_a_gpu_busy(x: Tensor, shape: tuple[int, ...], tiles: int, parts: int) -> None:
    (*_, first), *rest = passes(x, shape)
    assert first == -(-tiles // -(-tiles // parts))
    assert [count for *_, count in rest] == [1] * (parts > 1)


@pytest.mark.parametrize(
    ("x", "columns", "programs", "second"),
    [
        (meta(2**20, 5), 5, 5, (1, 4096, 1, 8)),  # 64 rows of 5 are 5 tiles of 64
        (meta(2**20, 33), 33, 33, (4, 2048, 1, 16)),
        (meta(2**16, 100), 100, 7, WIDE),  # 4 rows are whole vectors
        (meta(2**16, 101), 101, 26, (16, 128, 1, 4)),  # 16 rows
        (meta(2**20, 32), 32, 1, (4, 1024, 1, 8)),  # are such vectors themselves
        (meta(2**20, 64)[:, :33], 33, 3, (4, 1024, 1, 8)),  # not one after the other
        (meta(500, 4003), 4003, 63, (64, 16, 1, 4)),  # not enough of them
    ],
)
def test_rows_of_no_whole_vectors_are_read_at_once(
    x: Tensor, columns: int, programs: int, second: tuple[int, ...]
) -> None:
    grids: list[int] = []
    assert passes(x, (columns,), grids)[1][:4] == second
    assert grids[0] == programs


def test_rows_that_overlap_are_not_read_as_one() -> None:
    """As many elements apart as there are columns, which are themselves two apart."""
    x = torch.arange(2103 * 65 + 65, dtype=FLOAT).remainder(7).as_strided((2103, 65), (65, 2))
    with triton_kernels.interpret():
        assert torch.equal(triton_kernels.sum_to(x, (65,)), x.sum(0))


HALF = torch.float16


@pytest.mark.parametrize(
    ("shape", "strides", "first"),
    [
        ((20, 3, 5, 7), None, True),
        ((20, 3, 5, 8), None, False),  # whole vectors
        ((15, 3, 5, 7), None, False),  # too few rows
        ((20, 3, 5, 7), (112, 35, 7, 1), True),  # with a gap after each
        ((20, 3, 5, 7), (100, 35, 7, 1), True),  # that overlap
        ((20, 3, 5, 7), (140, 42, 7, 1), False),  # with a gap within
        ((20, 3, 5, 7), (7, 700, 140, 1), False),  # the other way around
        ((2, 4, 9, 3, 5, 7), (9000, 2240, 105, 35, 7, 1), False),  # too few again
        ((4, 2, 16, 3, 5, 7), (6000, 3000, 112, 35, 7, 1), False),  # and rows that lie further
    ],
)
def test_whole_rows_come_first(
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    first: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 105 elements, then what they hold; not for float32. Here of little data, too."""
    monkeypatch.setattr(tiles, "TWO_LAUNCHES", 1)
    module = import_module("triton_kernels.ops.sum_to")  # the package's attribute is the function
    module._passes.cache_clear()
    strides = strides or torch.empty(shape, device="meta").stride()
    reach = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides))
    to = (1,) * (len(shape) - 3) + (3, 1, shape[-1])
    for dtype in (HALF, FLOAT):
        x = torch.arange(reach).remainder(7).to(dtype).as_strided(shape, strides)
        with triton_kernels.interpret():
            result = triton_kernels.sum_to(x, to)
        assert torch.equal(result.float(), x.float().sum_to_size(to))
        key = specialization_key(x)
        (_, width), *_ = module._passes(x.shape, strides, result.shape, result.stride(), key, FLOAT)
        assert (width == 105) == (first and dtype == HALF)
    module._passes.cache_clear()


def test_units_of_strides_that_are_nowhere_one() -> None:
    """4 divides the results and 2 the addends; 8 does not divide the stride of 12."""
    x = torch.arange(3 * 6 * 12, dtype=FLOAT).remainder(11).as_strided((3, 6, 4), (12, 36, 2))
    with triton_kernels.interpret():
        assert torch.equal(triton_kernels.sum_to(x, (3, 1, 4)), x.sum(1, keepdim=True))


SIZES = (1, 2, 3, 5, 17, 24, 60, 65, 136, 257, 513, 1024, 4099, 16387, 16392, 65536, 600001)


@pytest.mark.parametrize("dtype", [torch.float16, FLOAT, DOUBLE])
@pytest.mark.parametrize("aligned", [True, False])
def test_tiles_are_of_powers_of_two(dtype: torch.dtype, aligned: bool) -> None:
    """Of every size, most of which are too large for a check on the CPU."""
    alone: list[bool] = []  # whether row_sum_kernel adds them

    def of_dims(kept: tiles.Dims, reduced: tiles.Dims) -> None:
        sums = tiles.Sums.of(kept, reduced)
        tile = tiles.tile_of(sums, (dtype, aligned))
        seconds = [tiles.Sums.of(kept, [(n, 9, 0)]) for n in (2, 600, 3000)]
        parts = [tiles.tile_of_parts(second, dtype) for second in seconds]
        rows = tiles.unaligned_rows(sums, dtype, aligned)
        alone.append(rows is not None)
        for each in (tile, *parts, *([rows] if rows else [])):
            assert {n.bit_count() for n in (each.BLOCK_K, each.BLOCK_R, each.num_warps)} == {1}
            assert each.BLOCK_K * each.BLOCK_R <= 8192
            assert each.num_warps <= 16
        assert 1 <= tiles.parts_of(sums, tile) <= max(1, sums.addends)

    for results, addends in itertools.product(SIZES, SIZES):
        kept, reduced = results > 1, addends > 1
        of_dims([(results, 1, 1)] * kept, [(addends, results, 0)] * reduced)
        of_dims([(results, addends, 1)] * kept, [(addends, 1, 0)] * reduced)
        of_dims([(results, 2, 1)] * kept, [(addends, 2 * results, 0)] * reduced)
        for few in (2, 60, 96):
            of_dims([(results, few, 1)] * kept, [(few, 1, 0), (addends, few * results, 0)])
            of_dims([(few, 1, 1), (results, few * addends, few)], [(addends, few, 0)] * reduced)
    assert any(alone) == (aligned and dtype != DOUBLE)


def test_counts_are_those_of_triton() -> None:
    for n in (1, 2, 3, 4, 5, 1023, 1024, 1025, 2**31 + 1):
        assert next_power_of_2(n) == triton.next_power_of_2(n)
        assert [cdiv(n, d) for d in (1, 2, 7)] == [triton.cdiv(n, d) for d in (1, 2, 7)]
    assert next_power_of_2(0) == 1
