"""How act_backward cuts its work: its tiles; several blocks of rows a program, to which the
interpreter would need a thousand programs to come by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import triton_kernels
from compare.cases import Case
from compare.checking import verdicts
from compare.checking.implementations import implementations
from compare.ops import SPECS
from triton_kernels import _launch
from triton_kernels._launch import Launch
from triton_kernels.interpreter import cross_compile
from triton_kernels.ops import act_backward


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("programs", "parts"), [(1, 1), (10, 2)])
def test_several_blocks_of_rows_in_a_part(
    programs: int,
    parts: int,
    dtype: str,
    launches: list[Launch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(act_backward, "PROGRAMS", 1)
    spec = SPECS["act_backward"]
    candidates = implementations(spec, ["triton-interpreted"])
    for values, act in (("integers", "relu"), ("normal", "gelu")):
        case = Case("act_backward", dtype, (129, 257), "padded", values, options={"act": act})
        with _launch.multiprocessors(programs):
            (result,) = verdicts.check(spec, [case], candidates)
        (outcome,) = result.outcomes
        assert outcome.mismatch is None, str(outcome.mismatch)
        assert launches[0].grid[:2] == (5, parts)
        launches.clear()


@pytest.mark.parametrize(
    ("N", "pitch", "tile"),
    [
        (1024, 1024, (32, 64)),
        (1024, 1025, (32, 64)),  # pitches do not count
        (1000, 1000, (32, 64)),  # eight of 16 bits are 16 bytes
        (1000, 1001, (16, 64)),
        (1004, 1012, (16, 64)),
        (24, 24, (64, 32)),
    ],
)
def test_tiles(N: int, pitch: int, tile: tuple[int, int]) -> None:
    found = []

    def note(kernel: Any, grid: Any, *args: Any, **meta: Any) -> None:
        found.append((meta["BLOCK_M"], meta["BLOCK_N"]))

    matrix = torch.empty(16384, pitch, dtype=torch.bfloat16, device="meta")[:, :N]
    with pytest.MonkeyPatch.context() as patch, cross_compile.compiling(90):
        patch.setattr(cross_compile, "launch", note)
        triton_kernels.act_backward(matrix, matrix, "relu", bias=False)
    assert found[0] == tile


@pytest.mark.parametrize(
    ("M", "N", "launches"),
    [
        (16384, 1024, [(32, 64, 16, 128)]),
        (16384, 3072, [(32, 64, 48, 171)]),  # 100 MB: four times the programs
        (262144, 208, [(32, 64, 4, 2048)]),
        (60000, 96, [(32, 64, 2, 938)]),
        (30001, 149, [(32, 64, 149, 15), (8, 64, 3, 7)]),  # 64 rows are one
        (3001, 1491, [(16, 64, 24, 63)]),  # of wide matrices only where there is more
        (6001, 1491, [(32, 64, 187, 12), (1, 512, 3, 1)]),
    ],
)
def test_what_large_matrices_are_cut_into(M: int, N: int, launches: list[tuple[int, ...]]) -> None:
    """Tiles and programs; the last launch, of sums, left out."""
    found = []

    def note(kernel: Any, grid: Any, *args: Any, **meta: Any) -> None:
        if "DERIVATIVE" in meta:
            found.append((meta["BLOCK_M"], meta["BLOCK_N"], *grid[:2]))

    matrix = torch.empty(M, N, dtype=torch.bfloat16, device="meta")
    with pytest.MonkeyPatch.context() as patch, cross_compile.compiling(90):
        patch.setattr(cross_compile, "launch", note)
        triton_kernels.act_backward(matrix, matrix, "relu")
    assert found == launches
