"""Which products are split: of few tiles alone; and that check, compile and bench see it."""

from __future__ import annotations

import itertools

import pytest
import torch
from marks import needs_hopper

import triton_kernels
from compare.cases import Case
from compare.checking.implementations import implementations, is_quick
from compare.compiling import walk
from compare.ops import SPECS
from compare.timing.configurations import asked, configurations, forced
from triton_kernels import _launch
from triton_kernels._counts import cdiv
from triton_kernels.gemm import GPUS, Configuration, Problem, choose, few_rows, launch, model
from triton_kernels.gemm.beside import SHORT
from triton_kernels.gemm.choice import FEW_TILES, NEITHER, POINTER_TILES, after, candidates, split
from triton_kernels.gemm.gluon import availability
from triton_kernels.gemm.gluon.forms import EVERY, FORMS
from triton_kernels.gemm.launch import lying
from triton_kernels.interpreter.cross_compile import compiling

H200 = GPUS["sm_90"]
BF16 = torch.bfloat16
# Whether b's rows go across K, and whether a program waits for its loads.
WAYS = tuple(itertools.product((False, True), repeat=2))


def problem(M: int, N: int, K: int, kernels: str = "any") -> Problem:
    """Of a matrix in rows and the transpose of another one."""
    return lying(Problem(M, N, K, BF16, BF16, kernels=kernels), (K, 1), (1, K))


@pytest.mark.parametrize(
    ("shape", "rows", "columns", "programs"),
    [  # measured on an H200: the best, or within 5 % of it with so many programs; whole it takes
        # 1.18 times as long and more
        ((1, 128, 9504), 1, 8, range(128, 129)),
        ((1, 109, 2445), 1, 4, range(252, 253)),
        ((2, 200, 10416), 2, 8, range(525, 526)),
        ((4, 185, 1047), 4, 4, range(235, 236)),
        ((7, 4646, 2277), 16, 32, range(438, 439)),
        ((23, 684, 2780), 32, 32, range(132, 133)),
        ((100, 4096, 14336), 64, 128, range(128, 129)),
        # These take 0.59 to 0.92 of the time of what was chosen before tiles of so few rows were.
        ((64, 64, 100000), 16, 64, range(132, 133)),
        ((200, 64, 60032), 16, 64, range(130, 131)),
        ((64, 512, 30016), 32, 64, range(128, 129)),
        ((35, 1344, 6912), 32, 64, range(126, 127)),
    ],
)
def test_what_was_measured(
    shape: tuple[int, int, int], rows: int, columns: int, programs: range
) -> None:
    form = choose(problem(*shape), H200)
    assert form.SPLIT > 1
    assert form.tiles[:2] == (rows, columns)
    assert form.tiles_of(*shape[:2]) * form.SPLIT in programs


@pytest.mark.parametrize(
    "shape", [(32, 3072, 768), (1, 16384, 4096), (2048, 2048, 2048), (1, 6216, 12168), (9, 40, 130)]
)
def test_what_is_best_whole(shape: tuple[int, int, int]) -> None:
    assert choose(problem(*shape), H200).SPLIT == 1


def test_few_rows_beside_a_large_matrix_have_wide_tiles() -> None:
    """Each tile loads all of a's rows once more: on an H200 39.8 µs where 64 × 256 took 43.6."""
    form = choose(problem(139, 8784, 4944), H200)
    assert (*form.tiles[:2], form.SPLIT) == (144, 128, 1)


@pytest.mark.parametrize("arch", GPUS)
def test_tiles_that_fill_the_gpu_are_whole(arch: str) -> None:
    """Of what is drawn: a part has two steps at least, and a GPU four programs a multiprocessor at
    most, so that the workspace is small. Of up to 32 rows, whose tiles are small, it has one step,
    and a GPU eight programs. Of float64, and multiply-adds in Gluon, up to eight tiles
    a multiprocessor may be in four parts each."""
    gpu, seen = GPUS[arch], 0
    for product, kernels in itertools.product(walk.products()[::5], ("tl", "any")):
        asked_for = product.problem._replace(kernels=kernels)
        form = choose(asked_for, gpu)
        if form.SPLIT == 1:
            continue
        seen += 1
        M, N, K, dtype, *_ = asked_for
        tiles = form.tiles_of(M, N)
        assert asked_for.precision != "tf32x3"
        if M <= 32 and dtype in (torch.float16, BF16):
            assert form.SPLIT <= cdiv(K, form.tiles.BLOCK_K)
            assert tiles * form.SPLIT <= (1 if form.gluon else 8) * gpu.multiprocessors
            continue
        assert 2 * form.SPLIT <= cdiv(K, form.tiles.BLOCK_K)
        if dtype == torch.float64 or (form.gluon and not asked_for.by_cores):
            assert arch == "sm_90"
            assert form.SPLIT <= 64
            assert tiles < 8 * gpu.multiprocessors
            assert form.SPLIT <= 4 or tiles * form.SPLIT <= 4 * gpu.multiprocessors
            continue
        many = 1 if form.tma or not model.synchronous(asked_for) else 4
        assert tiles < many * gpu.multiprocessors
        assert tiles * form.SPLIT <= (1 if form.gluon else 4) * gpu.multiprocessors
        assert not form.ALTERNATE
        assert form.gluon or not form.tma
    assert seen > 50


def test_the_choice_is_what_the_model_says() -> None:
    """And a sane one: never more than a few times what the memory or the tensor cores take."""
    for product in walk.products()[::11]:
        asked_for = product.problem._replace(kernels="any")
        if {asked_for.dtype.itemsize, asked_for.out_dtype.itemsize} != {2} or asked_for.K % 8:
            continue  # through pointers, which is slower
        if min(asked_for.pitches) < 16:
            continue  # a copy, or elements one by one
        chosen = choose(asked_for, H200)
        asked_for = after(asked_for, chosen.copies)
        seconds = model.timed(asked_for, H200)
        times = {
            form._replace(SPLIT=number): time
            for form, reached, parts in candidates(asked_for, H200)
            for number, time in zip(parts, seconds(form, reached, parts))
        }
        if chosen.rest:
            assert times[chosen.kind] >= min(times.values()) > SHORT
        else:
            assert times[chosen._replace(copies=NEITHER)] <= 1.001 * min(times.values())
        M, N, K, *_ = asked_for
        limit = max(2 * (M * K + K * N + M * N) / 4.8e12, 2 * M * N * K / 989e12)
        assert min(times.values()) < 4 * limit + 1e-5, asked_for


def chosen_by(case: Case) -> Configuration:
    """By the launch of a case."""
    found = []
    with pytest.MonkeyPatch.context() as patch, availability.only("tl"):
        usual = launch.choose

        def note(problem: Problem, gpu: object) -> Configuration:
            found.append(usual(problem, gpu))
            return found[-1]

        patch.setattr(launch, "choose", note)
        patch.setattr(_launch.Launch, "__call__", lambda *_, **options: None)
        spec = SPECS[case.op]
        arguments, options = spec.inputs(case, torch.device("meta"))
        spec.called(case, spec.triton)(*arguments, **options)
    return found[0]


def test_the_quick_check_splits_each_kind_of_tile_in_parts_of_unequal_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Interpreted, too, where float16 stands for bfloat16; the memory is stated, too."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    spec, found = SPECS["gemm_bias_act"], set()
    (implementation,) = implementations(spec, ["triton-interpreted"])
    for case in spec.cases("float16", "quick"):
        if case.shape[2] < 1000 or not is_quick(implementation, spec, case):
            continue
        form = chosen_by(case)
        steps = cdiv(case.shape[2], form.tiles.BLOCK_K)
        if form.SPLIT > 1 and steps % form.SPLIT:
            found.add(form.tiles)
            tiles = form.tiles_of(*case.shape[:2])
            assert tiles > 1
            sums = 4 * tiles * form.SPLIT * form.tiles.BLOCK_M * form.tiles.BLOCK_N
            assert spec.workspace(case, spec.inputs(case, torch.device("meta"))) >= sums
    assert found >= {*FEW_TILES, *POINTER_TILES[1:]}
    few = {tiles for M in (1, 2, 4, 8, 16, 32) for way in WAYS for tiles in few_rows.tiles(M, *way)}
    assert {tiles[1:3] for tiles in found & few} == {tiles[1:3] for tiles in few}


def test_bench_lists_the_parts_that_a_problem_may_have() -> None:
    spec = SPECS["gemm_bias_act"]
    case = Case("gemm_bias_act", "bfloat16", (8, 768, 3072))
    wanted = asked(spec, case)
    found = configurations(wanted, H200)
    assert len(found) == len(set(found))
    few = FEW_TILES[0]._replace(BLOCK_M=16)
    assert {form.SPLIT for form in found if form.tiles == few} == {1, 5, 11, 12}
    assert {form.SPLIT for form in configurations(problem(4096, 4096, 4096), H200)} == {1}


@pytest.mark.parametrize("arch", GPUS)
def test_split_products_compile_and_fit(arch: str) -> None:
    """The tiles of few rows, on every architecture; the bytes of the formula hold."""
    gpu = GPUS[arch]
    wanted = problem(40, 40, 3080, "tl")
    form = choose(wanted, gpu._replace(multiprocessors=10))
    assert form.SPLIT > 1
    product = walk.Product(wanted, "gelu", True, True, "rows", "columns")
    with forced(form):
        (made,) = walk.compiled([product], arch)
    assert made.error is None
    assert made.shared <= form.shared_memory(wanted, gpu.capability) <= gpu.shared_memory


@pytest.mark.parametrize("columns", [128, 192])
def test_a_split_product_compiles_in_gluon(columns: int) -> None:
    """With one accumulator, and with two."""
    whole = next(form for form in FORMS if form.tiles[:2] == (128, columns))
    (form,) = split(whole, problem(200, 400, 4096), H200)
    a, b = (torch.empty(s, dtype=BF16, device="meta") for s in ((200, 4096), (4096, 400)))
    with compiling(90) as launches, forced(form):
        triton_kernels.gemm_bias_act(a, b, act="relu")
    (made,) = launches
    assert (made.kernel, made.error) == ("gemm_gluon_kernel", None)


@pytest.mark.gpu_only
@needs_hopper
@pytest.mark.parametrize(
    "whole",
    # Of the transpose none that alternates is split: two consumers of a tile have too few columns.
    [form for form in EVERY if not (form.TURNED and form.ALTERNATE)],
    ids=lambda form: "x".join(map(str, form.tiles[:2])),
)
def test_split_forms_of_gluon_against_float64(whole: Configuration) -> None:
    """With tails, an addend, the parts all at once or one after the other; the same bits again."""
    M, N, K = 300, 392, 1304
    a = torch.randn(M, K, device="cuda").bfloat16()
    b = (torch.randn(N, K, device="cuda") * K**-0.5).bfloat16().t()
    bias, c = torch.randn(N, device="cuda").bfloat16(), torch.randn(M, N, device="cuda").bfloat16()
    want = (a.double() @ b.double() + bias.double() + c.double()).relu()
    form = whole._replace(ALTERNATE=False, SPLIT=3)
    results = []
    for multiprocessors in (3, 132, 132):
        with forced(form), _launch.multiprocessors(multiprocessors):
            results.append(triton_kernels.gemm_bias_act(a, b, bias, c=c, act="relu"))
        torch.testing.assert_close(results[-1].double(), want, rtol=2**-8, atol=2**-9)
    assert all(torch.equal(each, results[0]) for each in results)
