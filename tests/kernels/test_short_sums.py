"""Sums of a few steps of K: through pointers if there are few tiles, else with few stages."""

from __future__ import annotations

import pytest
import torch
from marks import needs_hopper

import triton_kernels
from compare.timing.configurations import forced
from triton_kernels.gemm import GPUS, Configuration, Problem, choose
from triton_kernels.gemm.choice import BRIEF, BRIEF_TILES
from triton_kernels.gemm.gluon import availability
from triton_kernels.gemm.gluon.forms import FORMS
from triton_kernels.gemm.launch import lying
from triton_kernels.interpreter.cross_compile import compiling

H200 = GPUS["sm_90"]
BF16 = torch.bfloat16
FEW = 4  # stages


def problem(M: int, N: int, K: int, kernels: str = "any", pitch: int = 0) -> Problem:
    pitch = pitch or K
    return lying(Problem(M, N, K, BF16, BF16, kernels=kernels), (pitch, 1), (1, pitch))


@pytest.mark.parametrize(
    ("shape", "tiles"),
    [  # measured on an H200: 0.85 to 0.94 times as long as in Gluon
        ((95, 640, 128), (32, 32)),
        ((86, 512, 64), (32, 32)),
        ((64, 1024, 128), (32, 32)),
        ((591, 224, 104), (64, 32)),
        ((39, 2304, 192), (64, 32)),
        ((640, 640, 64), (64, 64)),
        ((164, 4032, 64), (64, 64)),  # two waves of one step
    ],
)
def test_where_pointers_are_faster(shape: tuple[int, int, int], tiles: tuple[int, int]) -> None:
    chosen = choose(problem(*shape), H200)
    assert not chosen.tma
    assert chosen.SPLIT == 1
    assert chosen.tiles in BRIEF_TILES
    assert chosen.tiles[:2] == tiles
    assert choose(problem(*shape, kernels="tl"), H200) == chosen
    assert choose(problem(*shape, kernels="gluon"), H200).gluon


@pytest.mark.parametrize(
    "shape",
    [
        (95, 640, BRIEF + 8),
        (205, 1088, 448),
        (837, 448, 136),  # more than a wave of the smaller tiles, and three steps
        (578, 2496, 64),  # three waves of the largest
        (4145, 136, 72),  # two waves of two steps
    ],
)
def test_where_they_are_not(shape: tuple[int, int, int]) -> None:
    assert choose(problem(*shape), H200).gluon


@pytest.mark.parametrize(
    ("shape", "depth"),
    [  # measured on an H200: 0.77 to 0.83 times as long as in Gluon, which copies the operands
        ((162, 147, 66), 64),
        ((614, 88, 178), 64),
        ((1070, 149, 97), 128),  # a step waits for single elements
        ((68, 750, 117), 128),
    ],
)
def test_rows_that_no_descriptor_can_load(shape: tuple[int, int, int], depth: int) -> None:
    chosen = choose(problem(*shape), H200)
    assert not chosen.tma
    assert chosen.tiles[:3] == (32, 32, depth)
    assert choose(problem(*shape, kernels="gluon"), H200).gluon


@pytest.mark.parametrize("shape", [(2543, 291, 73), (12354, 193, 159), (384, 2449, 404)])
def test_with_many_tiles_or_long_sums_copies_pay(shape: tuple[int, int, int]) -> None:
    assert choose(problem(*shape), H200).gluon


def test_what_was_not_measured() -> None:
    """GPUs of other architectures."""
    for shape in ((95, 640, 128), (614, 88, 178)):
        assert choose(problem(*shape), GPUS["sm_100"]).tma


def stages(form: Configuration, M: int, K: int) -> int:
    """Those of the kernel that a product takes in this form, by its shared memory."""
    a, b = (torch.empty(rows, K, dtype=BF16, device="meta") for rows in (M, 400))
    with compiling(90) as launches, forced(form), availability.only("gluon"):
        triton_kernels.gemm_bias_act(a, b.t())
    (found,) = launches
    m, n, k, *_ = form.tiles
    return found.shared // ((m + n) * k * BF16.itemsize)


def test_short_sums_have_few_stages() -> None:
    """However many rows there are, so that their number makes no other kernel."""
    (form,) = (form for form in FORMS if form.tiles[:2] == (96, 128))
    step = form.tiles.BLOCK_K
    assert form.tiles.num_stages > FEW
    for M in (100, 100_000):
        assert stages(form, M, FEW * step) == FEW
        assert stages(form, M, FEW * step + 8) == form.tiles.num_stages
    split = form._replace(SPLIT=2)
    assert stages(split, 100, 2 * FEW * step) == FEW
    assert stages(split, 100, 2 * FEW * step + 8) == form.tiles.num_stages
    (least,) = (f for f in FORMS if f.tiles.num_stages == FEW and f.tiles[:2] == (128, 256))
    assert stages(least, 100, step) == FEW


@pytest.mark.gpu_only
@needs_hopper
@pytest.mark.parametrize("K", [8, 64, 136, 256, 320])
@pytest.mark.parametrize("M", [100, 5000])
def test_products_of_short_sums(M: int, K: int) -> None:
    """Several tiles a program, so that stages are used again; the tiles of both kernels."""
    g = torch.Generator().manual_seed(K)
    a, b = (torch.randn(rows, K, generator=g).to("cuda", BF16) for rows in (M, 1032))
    expected = a.double() @ b.double().t()
    for kernels in ("any", "gluon", "tl"):
        if K <= 32 and kernels == "gluon":
            continue  # it is not made for so few
        with availability.only(kernels):
            out = triton_kernels.gemm_bias_act(a, b.t())
        torch.testing.assert_close(out.double(), expected, rtol=2**-8, atol=2**-6)
