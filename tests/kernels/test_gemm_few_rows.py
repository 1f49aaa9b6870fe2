"""Products of up to 32 rows: tiles for vectors, without tensor cores; tiles of the transpose."""

from __future__ import annotations

import itertools

import pytest
import torch
from marks import needs_hopper

import triton_kernels
from compare.specs.gluon_forms import GLUON_FEW
from compare.timing.configurations import forced
from triton_kernels.gemm import GPUS, Configuration, Problem, choose, few_rows, launch
from triton_kernels.gemm.configurations import Tiles
from triton_kernels.gemm.gluon.forms import FORMS
from triton_kernels.gemm.launch import lying
from triton_kernels.interpreter.cross_compile import compiling

H200 = GPUS["sm_90"]
HALF, BF16 = torch.float16, torch.bfloat16
SKINNY = [form for form in FORMS if form.tiles.BLOCK_M <= 32]


@pytest.mark.parametrize(
    ("shape", "rows", "columns"),
    [  # measured on an H200: each at least 1.06 times as fast as the best of all other tiles
        ((1, 480, 736), 1, 8),
        ((2, 264, 888), 2, 4),
        ((4, 320, 600), 4, 2),
        ((5, 96, 208), 8, 4),
        ((17, 192, 256), 32, 32),
        ((6, 4936, 2936), 16, 64),  # in Gluon, as the next two
        ((14, 4864, 3584), 16, 64),
        ((28, 11280, 5000), 32, 128),
    ],
)
def test_what_was_measured_of_few_rows(
    shape: tuple[int, int, int], rows: int, columns: int
) -> None:
    M, N, K = shape
    asked = lying(Problem(M, N, K, BF16, BF16, kernels="any"), (K, 1), (1, K))
    form = choose(asked, H200)
    assert form.tiles[:2] == (rows, columns)
    assert form.gluon == form.TURNED == (columns >= 64)


def test_the_check_reaches_every_form_for_few_rows() -> None:
    """Several tiles, with tails, whatever the operands' layout."""
    whole, parts = set(), set()
    for (M, N, K), multiprocessors in GLUON_FEW:
        gpu = H200._replace(multiprocessors=multiprocessors)
        for less in (0, 3):
            asked = Problem(M, N - less, K, HALF, HALF, kernels="gluon")
            rows = ((K, 1), (1, K)), ((K, 1), (N - less, 1)), ((1, M), (N - less, 1))
            forms = {choose(lying(asked, *each), gpu) for each in rows}
            (kind,) = {form.kind for form in forms}
            assert kind.tiles_of(M, N - less) > 2
            assert (N - less) % kind.tiles.BLOCK_N
            assert M % kind.tiles.BLOCK_M
            (split,) = {form.SPLIT > 1 for form in forms}
            (parts if split else whole).add(kind)
    assert whole == {form for form in FORMS if form.tiles.BLOCK_M <= 32}
    assert {form.tiles[:2] for form in parts} == {(16, 64), (32, 64)}


@pytest.mark.parametrize("M", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("turned", [False, True])
def test_programs_without_tensor_cores_add_up_the_same_products(
    M: int, parts: int, turned: bool
) -> None:
    """Several steps, the last of them not full, with all of an epilogue."""
    g = torch.Generator().manual_seed(M)
    tiles = Tiles(1 << (M - 1).bit_length(), 8, 256, 8, 4, 1)
    shapes = (M, 2077), (2077, 21), (21,), (M, 21)
    for dtype in (HALF, BF16):
        a, b, bias, c = (torch.randn(shape, generator=g).to(dtype) for shape in shapes)
        if turned:
            a, b = a.t().contiguous().t(), b.t().contiguous().t()
        with triton_kernels.interpret(), forced(Configuration(False, tiles, SPLIT=parts)):
            got = triton_kernels.gemm_bias_act(a, b, bias, c=c, beta=0.5, act="relu")
        want = (a.double() @ b.double() + bias.double() + 0.5 * c.double()).relu()
        torch.testing.assert_close(got.double(), want, rtol=2**-7, atol=2**-5)


def test_the_transpose_of_a_column_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its strides are both 1, but its elements are contiguous, so they are loaded as vectors."""
    asked: list[Problem] = []
    usual = launch.choose

    def note(problem: Problem, gpu: object) -> Configuration:
        asked.append(problem)
        return usual(problem, gpu)

    monkeypatch.setattr(launch, "choose", note)
    b = torch.ones(4096, 8, dtype=BF16)
    with triton_kernels.interpret():
        for a in (torch.ones(4096, 1, dtype=BF16).t(), torch.ones(1, 4096, dtype=BF16)):
            got = triton_kernels.gemm_bias_act(a, b)
            torch.testing.assert_close(got, torch.full((1, 8), 4096.0, dtype=BF16))
    assert asked[0] == asked[1]
    assert asked[0].pitches[0] == 128


@pytest.mark.parametrize("M", [1, 2, 4, 8])
def test_vectors_of_b_are_loaded_whole_and_stay_in_registers(M: int) -> None:
    """16 bytes at once of b's rows of K, in the layout of the products; a may be moved to it."""
    a, b = (torch.empty(s, dtype=BF16, device="meta") for s in ((M, 4096), (64, 4096)))
    tiles = next(few_rows.tiles(M, False, False))
    with compiling(90) as launches, forced(Configuration(False, tiles)):
        triton_kernels.gemm_bias_act(a, b.t())
    (made,) = launches
    assert made.error is None
    loop = made.asm["ttgir"].partition("scf.for")[2].partition("scf.yield")[0]
    moved = [line for line in loop.splitlines() if "convert_layout" in line]
    assert all(f"tensor<{M}x{tiles.BLOCK_K}x1x" in line for line in moved), "a alone"
    loads = [line for line in made.asm["ptx"].splitlines() if "ld.global" in line]
    vectors = [line for line in loads if "evict_first" in line]
    assert vectors
    assert all(".v4.b32" in line for line in vectors)


# ---- on the GPU ----


@pytest.mark.gpu_only
@needs_hopper
@pytest.mark.parametrize("form", SKINNY, ids=lambda form: "x".join(map(str, form.tiles[:3])))
@pytest.mark.parametrize("turned", list(itertools.product((False, True), repeat=2)))
@pytest.mark.parametrize("N", [328, 333])
def test_skinny_tiles_in_gluon_are_right(
    form: Configuration, turned: tuple[bool, bool], N: int
) -> None:
    """Whole and with K in parts; N of 333 has no descriptor of the result."""
    g = torch.Generator(device="cuda").manual_seed(0)
    rows = form.tiles.BLOCK_M
    for M, K, parts in itertools.product((1, rows // 2 + 1, rows), (40, 2056), (1, 3)):
        a = torch.randn(M, K, generator=g, device="cuda", dtype=BF16)
        b = torch.randn(K, N, generator=g, device="cuda", dtype=BF16)
        bias = torch.randn(N, generator=g, device="cuda", dtype=BF16)
        if turned[0]:
            a = a.t().contiguous().t()
        if turned[1]:
            b = b.t().contiguous().t()
        with forced(form._replace(SPLIT=parts)):
            got = triton_kernels.gemm_bias_act(a, b, bias, act="relu")
        want = (a.double() @ b.double() + bias.double()).relu()
        torch.testing.assert_close(got.double(), want, rtol=2**-7, atol=K**0.5 * 2**-7)
