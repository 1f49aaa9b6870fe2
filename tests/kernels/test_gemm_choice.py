"""The chooser of products on GPUs of every kind: what it takes fits, by a formula that holds."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from triton.runtime.errors import OutOfResources

import triton_kernels
from compare.compiling import walk
from triton_kernels import _launch
from triton_kernels._counts import cdiv
from triton_kernels._precision import PRECISIONS
from triton_kernels.gemm import (
    GPUS,
    Configuration,
    Gpu,
    Problem,
    Tiles,
    choice,
    choose,
    few_rows,
    model,
)
from triton_kernels.interpreter import cross_compile

BF16, F32 = torch.bfloat16, torch.float32


# ---- H200 ----

OF_H200 = (  # tiles, halves in the epilogue, cost, stages with c, tiles of long sums
    ((128, 256, 64, 16, 8, 4), 2, 1.0, 3, None),
    ((128, 128, 64, 16, 8, 4), 1, 0.53, 4, (128, 128, 64, 8, 4, 5)),
    ((64, 128, 128, 16, 4, 4), 1, 0.31, 3, None),
    ((64, 64, 128, 16, 4, 6), 1, 0.2, 5, None),
    ((64, 32, 128, 16, 4, 6), 1, 0.17, 5, None),
)


def measured(p: Problem) -> tuple[bool, tuple[int, ...], int]:
    """What was measured as fast on an H200, written down once more: kernel, tiles, subtiles."""
    halves = (torch.float16, BF16)
    words = p.precision == "tf32" and p.out_dtype == F32
    if min(p[:3]) > 32 and ((p.dtype in halves and p.out_dtype in halves) or words):
        tiles, subtiles, _, with_c, long = min(
            OF_H200, key=lambda t: cdiv(cdiv(p.M, t[0][0]) * cdiv(p.N, t[0][1]), 132) * t[2]
        )
        if p.c:
            tiles = (*tiles[:5], with_c)
        elif long and p.K >= 3072:
            tiles = long
        if words:  # as many bytes of K, as many stages as fit
            tiles = (*tiles[:2], tiles[2] // 2, *tiles[3:])
        return True, tiles, subtiles
    return False, pointer_tiles(p), 1


def pointer_tiles(p: Problem) -> tuple[int, ...]:
    """The tiles that it gets where there are no descriptors."""
    if p.dtype == torch.float64:
        return 32, 32, 16, 8, 4, 2
    if p.dtype == F32 and (p.M > 32 or p.precision == "tf32x3"):
        if p.precision == "ieee":
            return 64, 64, 16, 8, 4, 3
        large = p.precision == "tf32" and p.M > 64
        return (128, 128, 32, 8, 8, 3) if large else (64, 64, 32, 8, 4, 2)
    if p.M <= 32:
        depth = 64 if p.dtype == F32 else 128
        return 32 if p.M > 16 else 16, 64 if p.N >= 6144 else 32, depth, 8, 4, 4
    return (128, 256, 64, 8, 8, 3) if p.M * p.N > 2**21 else (64, 128, 64, 8, 4, 4)


def few_tiles(p: Problem) -> list[Tiles]:
    return list(few_rows.tiles(p.M, p.across[1], model.synchronous(p)))


def test_an_h200_gets_what_was_measured() -> None:
    """But one: the largest tile did not fit beside an odd c, and the call failed. Of results of
    four bytes fewer stages fit, and the largest tile beside no c."""
    others = split = brief = 0
    unaligned = choice.BRIEF_TILES_UNALIGNED.values()
    for problem, *_ in walk.products():
        got = choose(problem, GPUS["sm_90"])
        if problem.M <= 32 and problem.dtype in (torch.float16, BF16):
            assert got.tiles in few_tiles(problem)
        elif got.SPLIT > 1:
            split += 1
        elif not got.tma and min(problem.pitches) in (4, 8) and problem.K >= choice.LENGTHY:
            pointers = (*choice.POINTER_TILES, *choice.POINTER_TILES_64)
            assert got.tiles in {*pointers, Tiles(*measured(problem)[1])}
        elif problem.K <= choice.BRIEF and got.tiles in choice.BRIEF_TILES:
            brief += 1
        elif min(problem.pitches) < 16 and not got.tma and got.tiles in unaligned:
            assert problem.K <= choice.BRIEF_UNALIGNED
        elif problem.c == "odd" and measured(problem)[1] == (128, 256, 64, 16, 8, 3):
            assert got.tma
            assert got.tiles != measured(problem)[1]
            others += 1
        elif problem.dtype == torch.float64:
            assert not got.tma
            assert got.tiles in choice.FLOAT64_TILES
        elif problem.precision == "tf32" and problem.M <= 32:  # both kinds compete
            assert not got.tma or problem.K % 4 == 0
        elif problem.precision == "tf32" and got.tma:
            _, tiles, subtiles = measured(problem)
            if problem.c and tiles[:2] == (128, 256):
                assert got.tiles[:2] != (128, 256)
            else:
                assert (tuple(got.tiles[:5]), got.SUBTILES) == (tiles[:5], subtiles), problem
        else:
            assert (got.tma, tuple(got.tiles), got.SUBTILES) == measured(problem), problem
    assert 0 < others < 200
    assert 100 < split < 4000
    assert brief > 50


# ---- everywhere ----


@pytest.mark.parametrize("arch", GPUS)
def test_whatever_is_drawn_fits(arch: str) -> None:
    gpu = GPUS[arch]
    assert len(walk.products()) == 10_000
    for problem, *_ in walk.products():
        got = choose(problem, gpu)
        assert got.shared_memory(problem, gpu.capability) <= gpu.shared_memory
        least = 3 if got.tma else min(3, pointer_tiles(problem)[-1])
        if problem.M <= 32 and problem.dtype in (torch.float16, BF16):
            least = min(least, *(tiles.num_stages for tiles in few_tiles(problem)))
        assert got.tiles.num_stages >= least, "loads in flight"
        assert not got.tma or gpu.capability >= 90


def test_fewer_stages_come_before_smaller_tiles() -> None:
    """Few rows: the kernel that had asked for more than there is."""
    for arch, shared in (("sm_80", 4), ("sm_86", 4), ("sm_90", 4), ("sm_86", 3)):
        gpu = GPUS[arch]._replace(shared_memory=GPUS[arch].shared_memory - (4 - shared) * 30_000)
        for M in (17, 32):
            got = choose(Problem(M, 16384, 4096, BF16, BF16), gpu)
            assert got.tiles == (32, 64, 128, 8, 4, shared)


KINDS = [  # dtypes of operands and result, precision
    *((BF16, out, "ieee") for out in (BF16, F32)),
    *((F32, out, precision) for out in (BF16, F32) for precision in PRECISIONS),
    *((torch.float64, out, "ieee") for out in (BF16, torch.float64)),
]


@pytest.mark.parametrize("gpu", [*GPUS.values(), Gpu(90, 20, 90_000), Gpu(86, 20, 20_000)])
def test_every_candidate_can_be_launched(gpu: Gpu) -> None:
    """There is one; it fits; descriptors are for GPUs and operands that have them."""
    drawn = random.Random(0)
    for dtype, out_dtype, precision in KINDS * 12:
        M, N, K = (drawn.choice((1, 17, 32, 33, 64, 100, 1000, 4096)) for _ in range(3))
        c, kernels = drawn.choice(("", "even", "odd")), drawn.choice(("tl", "gluon", "any"))
        problem = Problem(M, N, K, dtype, out_dtype, precision, c, kernels)
        forms = [
            form._replace(SPLIT=parts)
            for form, _, numbers in choice.candidates(problem, gpu)
            for parts in numbers
        ]
        assert choose(problem, gpu) in forms
        for form in forms:
            m, n, k, *_ = form.tiles
            assert {m.bit_count(), k.bit_count()} == {1}
            assert form.gluon or n.bit_count() == 1
            smallest = form == Configuration(False, Tiles(16, 16, 16, 8, 4, 1))
            assert smallest or form.shared_memory(problem, gpu.capability) <= gpu.shared_memory
            assert form.SPLIT == 1 or form.gluon or not form.tma
            if form.tma and precision != "f16x3":
                assert gpu.capability >= 90
                assert dtype == BF16 or precision == "tf32" or (precision == "ieee" and form.gluon)


def test_a_gpu_of_ones_own() -> None:
    """Half of the memory, few multiprocessors: fewer stages, tiles that fill what there is."""
    product = Problem(16, 4096, 4096, BF16, BF16)
    tiles = {kb: choose(product, Gpu(86, 20, kb * 1024)).tiles for kb in (99, 64, 48, 24)}
    assert [t[1:3] + t[-1:] for t in tiles.values()] == [
        (64, 128, 4),
        (64, 128, 4),
        (64, 128, 3),
        (64, 64, 3),
    ]
    tiny = choose(Problem(4096, 4096, 4096, BF16, BF16), Gpu(80, 108, 20 * 1024)).tiles
    assert tiny[:3] == (64, 64, 32)
    wide = Problem(512, 4096, 4096, BF16, BF16)
    full, few = (choose(wide, Gpu(90, n, 232448)).tiles for n in (132, 16))
    assert full.BLOCK_M * full.BLOCK_N < few.BLOCK_M * few.BLOCK_N


@pytest.mark.parametrize("arch", ["sm_86", "sm_100", "sm_120"])
def test_what_other_gpus_get_is_right(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted, cut as there: a sample of what only they get."""
    monkeypatch.setattr(
        _launch, "gpu", lambda kernel, device: GPUS[arch]._replace(multiprocessors=2)
    )
    g = torch.Generator().manual_seed(0)
    for M, N, K in ((20, 130, 140), (70, 72, 72), (140, 264, 40), (200, 392, 72)):
        a, b = (torch.randn(s, generator=g).bfloat16() for s in ((M, K), (K, N)))
        for c in (None, torch.randn(M, N + 1, generator=g).bfloat16()[:, :N]):
            with triton_kernels.interpret():
                got = triton_kernels.gemm_bias_act(a, b, c=c, act="relu")
            pre = a.double() @ b.double() + (0 if c is None else c.double())
            torch.testing.assert_close(got.double(), pre.relu(), rtol=2**-7, atol=2**-7)


# ---- the formula against the compiler ----


DRAWN = random.Random(19).sample([(arch, i) for arch in GPUS for i in range(300)], 40)


def columns(form: Configuration) -> int:
    """The BLOCK_N of a launch. The transpose's columns are the product's rows."""
    return form.tiles.BLOCK_M if form.TURNED else form.tiles.BLOCK_N


@pytest.mark.parametrize("part", range(8))
def test_a_sample_of_the_walk_compiles_and_fits(part: int) -> None:
    """40 of the distinct ones, some a test, so that workers share them."""
    for arch, i in DRAWN[part::8]:
        product, gpu = walk.distinct(arch)[i], GPUS[arch]
        *_, launch = walk.compiled([product], arch)  # after a copy of what is not aligned
        assert launch.error is None, (arch, product)
        chosen = choose(product.problem, gpu)
        assert launch.meta["BLOCK_N"] == columns(chosen)
        bytes_ = chosen.shared_memory(product.problem, gpu.capability)
        assert 0 < launch.shared <= bytes_ <= gpu.shared_memory, (arch, product)


def test_copies_are_not_taken_for_the_products(monkeypatch: pytest.MonkeyPatch) -> None:
    def noted(kernel: Any, grid: Any, *args: Any, **meta: Any) -> None:
        launch = cross_compile.Launch(kernel.fn.__name__, meta)
        cross_compile._launches.append(launch)
        names.append(launch.kernel)

    names: list[str] = []
    monkeypatch.setattr(cross_compile, "launch", noted)
    drawn = walk.sample("sm_90", 60)
    launches = walk.compiled(drawn, "sm_90")
    forms = [choose(product.problem, GPUS["sm_90"]) for product in drawn]
    assert [each.meta["BLOCK_N"] for each in launches] == list(map(columns, forms))
    assert "repack_kernel" in names


def product(M: int, dtype: torch.dtype, c: str = "", precision: str = "ieee") -> walk.Product:
    """One whose operands go to shared memory by stages."""
    N = 1000 if c == "odd" else 8192
    problem = Problem(M, N, 1024, dtype, dtype, precision, c)
    # Read without a copy, and as the problem says.
    b = "columns" if precision == "tf32" or M <= 32 else "rows"
    return walk.Product(problem, "none", True, False, "rows", b)


FEW_ROWS, LARGE, ADDED = product(16, BF16), product(1024, BF16), product(1024, BF16, "odd")
TF32 = product(128, F32, precision="tf32")


@pytest.mark.parametrize(
    ("arch", "products"),
    [
        ("sm_86", (FEW_ROWS, LARGE, TF32)),
        ("sm_90", (LARGE, ADDED, TF32)),
        ("sm_100", (LARGE, ADDED)),
        ("sm_120", (LARGE, ADDED)),
    ],
)
def test_the_formula_wastes_no_stage(arch: str, products: tuple[walk.Product, ...]) -> None:
    """What it counts too much is less than a stage; c is counted in full, and some tiles pass it
    on in parts."""
    gpu = GPUS[arch]
    for (problem, *_), launch in zip(products, walk.compiled(list(products), arch)):
        chosen = choose(problem, gpu)
        m, n, k, *_ = chosen.tiles
        stage, c = (m + n) * k * problem.dtype.itemsize, m * n * 4 if problem.c else 0
        over = chosen.shared_memory(problem, gpu.capability) - launch.shared
        assert 0 <= over < stage + c, (problem, chosen)
        assert over <= 1024 or problem.c, "but for barriers"


# ---- out of resources all the same ----


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tiles]]:
    """A GPU on which tiles of more than three stages are out of resources; what was tried."""
    tried: list[Tiles] = []

    def start(self: Any, device: torch.device, *args: Any, **options: Any) -> None:
        tried.append(Tiles(*(self.meta[name] for name in Tiles._fields)))
        if tried[-1].num_stages > 3:
            raise OutOfResources(123456, 101376, "shared memory")

    monkeypatch.setattr(_launch.Launch, "__call__", start)
    monkeypatch.setattr(_launch, "gpu", lambda kernel, device: GPUS["sm_80"])
    monkeypatch.setattr(_launch, "check_device", lambda *_: None)
    monkeypatch.setattr(choice, "_failed", frozenset())
    choose.cache_clear()
    yield tried
    choose.cache_clear()


def test_the_next_smaller_one_runs_with_a_warning_once(refusing: list[Tiles]) -> None:
    a, b = torch.ones(8, 64, dtype=BF16), torch.ones(64, 512, dtype=BF16)
    with pytest.warns(RuntimeWarning, match="smaller tiles are used from now on") as warned:
        triton_kernels.gemm_bias_act(a, b)
    assert [tiles.num_stages for tiles in refusing] == [4, 3]
    assert [str(w.message).count("Required: 123456") for w in warned] == [1]
    refusing.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        triton_kernels.gemm_bias_act(a, b)
        triton_kernels.gemm_bias_act(a[:7], b)
    assert [tiles.num_stages for tiles in refusing] == [3, 3]


def test_in_tests_it_is_an_error(refusing: list[Tiles]) -> None:
    """By pyproject.toml: a formula that is wrong must not go unseen."""
    with pytest.raises(RuntimeWarning, match="a matrix product needs more resources than this"):
        triton_kernels.gemm_bias_act(torch.ones(8, 64).half(), torch.ones(64, 512).half())


def test_where_nothing_fits_the_error_is_tritons(
    refusing: list[Tiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Any, device: torch.device, *args: Any, **options: Any) -> None:
        raise OutOfResources(1, 0, "shared memory")

    monkeypatch.setattr(_launch.Launch, "__call__", refuse)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(OutOfResources):
            triton_kernels.gemm_bias_act(torch.ones(8, 64).half(), torch.ones(64, 512).half())


def test_descriptors_that_fail_leave_the_other_tiles(refusing: list[Tiles]) -> None:
    gpu, problem = GPUS["sm_90"], Problem(4096, 4096, 4096, BF16, BF16)
    seen: list[Configuration] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while choose(problem, gpu).tma:
            seen.append(choose(problem, gpu))
            assert choice.too_large(seen[-1], problem, gpu, OutOfResources(1, 0, "threads"))
    assert len(set(seen)) == len(seen) >= 10
    assert {each.tiles[:2] for each in seen} == {tuple(t[0][:2]) for t in OF_H200}
    assert choose(problem, gpu).tiles == (128, 256, 64, 8, 8, 3)
