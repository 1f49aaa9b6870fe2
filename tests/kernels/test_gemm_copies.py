"""Operands with a slow pitch: what a product knows of it, what is copied, and by which launch."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import Tensor

import triton_kernels
from compare.specs import products
from compare.timing.configurations import forced
from triton_kernels.gemm import GPUS, Problem, choose, launch
from triton_kernels.gemm.choice import fastest
from triton_kernels.gemm.gluon.forms import FORMS
from triton_kernels.interpreter.cross_compile import compiling

H200 = GPUS["sm_90"]
BF16, F32 = torch.bfloat16, torch.float32


def problem(M: int, N: int, K: int) -> Problem:
    return Problem(M, N, K, BF16, BF16, kernels="any")


def operand(rows: int, columns: int, by_columns: bool, dtype: torch.dtype = BF16) -> Tensor:
    shape = (columns, rows) if by_columns else (rows, columns)
    matrix = torch.empty(shape, dtype=dtype, device="meta")
    return matrix.t() if by_columns else matrix


def test_a_slow_pitch_of_b_speaks_for_more_rows() -> None:
    """With them b is loaded less."""
    r, rows = random.Random(0), []
    for _ in range(200):
        M, N, K = r.randrange(2000, 9000), 16 * r.randrange(80, 400), 16 * r.randrange(60, 200)
        usual = problem(M, N, K)
        slow = usual._replace(pitches=(128, 16))
        forms = [fastest(each, H200)[0] for each in (usual, slow)]
        if forms[0].tiles != forms[1].tiles and not any(forms[1].copies):
            rows.append([form.tiles.BLOCK_M for form in forms])
    few, many = map(sum, zip(*rows))
    assert many > 1.1 * few


@pytest.mark.parametrize(
    ("M", "N", "K", "copies"),
    [  # the fastest way of copying on an H200, or within 2 % of it
        (6000, 3416, 1208, (True, True)),
        (3136, 5968, 760, (True, True)),
        (2064, 12872, 2088, (True, False)),
        (256, 16008, 4216, (True, False)),
        (5248, 1920, 13544, (False, True)),
        (7152, 2208, 12792, (False, True)),
        (2336, 3168, 72, (False, False)),
        (1680, 6480, 2000, (False, False)),  # no slow pitch
    ],
)
def test_slow_pitches_are_copied_where_that_pays(
    M: int, N: int, K: int, copies: tuple[bool, bool]
) -> None:
    """And the launch copies so, once for both."""
    asked = launch.lying(problem(M, N, K), (K, 1), (1, K))
    assert choose(asked, H200).copies == copies
    with compiling(90) as launches:
        triton_kernels.gemm_bias_act(operand(M, K, False), operand(K, N, True))
    names = [each.kernel for each in launches]
    assert names.count("repack_kernel") == any(copies)


@pytest.mark.parametrize(
    ("M", "N", "K", "tiles", "parts"),
    [  # 1.13 to 1.4 times as fast as with a copy of b, on an H200
        (64, 10666, 8010, (64, 128), 3),
        (42, 12092, 6078, (64, 128), 5),
        (60, 8387, 11148, (64, 128), 2),
        (43, 2353, 7060, (64, 64), 7),
    ],
)
def test_an_unaligned_b_of_few_rows_is_read_where_it_lies(
    M: int, N: int, K: int, tiles: tuple[int, int], parts: int
) -> None:
    """Not of more rows. Of an odd K, tiles of 128 columns are slow."""
    chosen = choose(launch.lying(problem(M, N, K), (K, 1), (1, K)), H200)
    assert (chosen.tma, chosen.tiles[:2], chosen.SPLIT) == (False, tiles, parts)
    for m, k in ((65, K), (M, K + 1)):
        other = choose(launch.lying(problem(m, N, k), (k, 1), (1, k)), H200)
        assert other.tma or other.tiles[:2] == (64, 64)


def test_the_check_copies_each_operand_alone_and_both() -> None:
    """In the kernel that runs everywhere."""
    chosen = []
    for (M, N, K), multiprocessors in products._HALF_ORDERS:
        asked = launch.lying(problem(M, N, K)._replace(kernels="tl"), (K, 1), (1, K))
        chosen.append(choose(asked, H200._replace(multiprocessors=multiprocessors)))
    assert [each.copies for each in chosen[-3:]] == [(False, True), (True, False), (True, True)]
    assert all(each.tma for each in chosen[-3:])


@pytest.mark.parametrize("copies", list(itertools.product((False, True), repeat=2)))
def test_a_configuration_says_what_is_copied(
    copies: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each operand on its own, in rows that start at lines of L2; both by one launch."""
    (form,) = (f for f in FORMS if f.tiles[:2] == (64, 128) and not f.TURNED)
    copied: list[tuple[int, ...]] = []
    usual = launch.repacked

    def note(*matrices: tuple[Tensor, bool]) -> list[Tensor]:
        copied.extend(tuple(matrix.shape) for matrix, _ in matrices)
        copies = usual(*matrices)
        assert all(copy.stride(0) % 64 == 0 for copy in copies)
        return copies

    monkeypatch.setattr(launch, "repacked", note)
    with compiling(90), forced(form._replace(copies=copies)):
        triton_kernels.gemm_bias_act(operand(200, 264, False), operand(264, 328, True))
    assert copied == list(itertools.compress([(200, 264), (328, 264)], copies))


@pytest.mark.parametrize(
    ("shape", "by_columns", "pitches", "copied"),
    [
        ((200, 328, 264), True, (16, 16), False),
        ((200, 328, 264), False, (16, 16), False),
        ((200, 320, 264), False, (16, 128), False),
        ((200, 328, 256), True, (128, 128), False),
        ((200, 328, 272), True, (32, 32), False),
        ((200, 333, 267), True, (2, 2), True),
        ((2336, 3416, 1208), True, (16, 16), True),
    ],
)
def test_pitches_are_those_in_memory(
    shape: tuple[int, int, int],
    by_columns: bool,
    pitches: tuple[int, int],
    copied: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of operands or transposes; of float32 only slow ones, because nothing else was
    measured."""
    M, N, K = shape
    asked: list[Problem] = []
    monkeypatch.setattr(launch, "choose", lambda *both: asked.append(both[0]) or choose(*both))
    with compiling(90) as launches:
        triton_kernels.gemm_bias_act(operand(M, K, False), operand(K, N, by_columns))
        count = [each.kernel for each in launches].count("repack_kernel")
        for columns in (260, 264):
            x, weight = operand(256, columns, False, F32), operand(200, columns, False, F32)
            triton_kernels.linear_act(x, weight, act="relu", precision="tf32")
        triton_kernels.gemm_bias_act(x, weight.t().contiguous(), precision="tf32")
        triton_kernels.gemm_bias_act(x, weight.t())
    aligned = (128, 128)
    assert [each.pitches for each in asked] == [pitches, (16, 16), aligned, aligned, aligned]
    assert count == copied
