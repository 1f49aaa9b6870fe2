"""What gemm_gluon_kernel stores without a descriptor, the order and places of its tiles, and
operands whose rows go across K."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from marks import needs_hopper
from torch import Tensor

import triton_kernels
from compare.compiling import machine_code
from compare.timing.configurations import forced
from triton_kernels import _launch
from triton_kernels.gemm import GPUS, Configuration, Problem, choose, launch, model
from triton_kernels.gemm.arguments import Gemm
from triton_kernels.gemm.configurations import WARPS
from triton_kernels.gemm.gluon import forms
from triton_kernels.gemm.gluon.forms import CLUSTERS, EVERY, FEW, FORMS, WIDE
from triton_kernels.interpreter.cross_compile import compiling

H200 = GPUS["sm_90"]
BF16 = torch.bfloat16
META = torch.device("meta")
MANY = 100_000
LARGEST = [form for form in FORMS if form.tiles[:2] in {(128, 256), (160, 256), (256, 128)}]


def empty(rows: int, columns: int, by_columns: bool = False) -> Tensor:
    if by_columns:
        return torch.empty(columns, rows, dtype=BF16, device=META).t()
    return torch.empty(rows, columns, dtype=BF16, device=META)


@pytest.mark.parametrize(("N", "bits"), [(301, "16"), (302, "32"), (300, "64")])
@pytest.mark.parametrize("tiles", [(256, 128), (128, 128), (128, 192)], ids=str)
def test_results_by_elements_leave_registers_for_the_sums(
    tiles: tuple[int, int], N: int, bits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the pre-activation. Without the loop over rows 70 to 1500 bytes a thread were spilled.
    Stores are as wide as rows allow."""
    (form,) = (form for form in FORMS if form.tiles[:2] == tiles)
    monkeypatch.setattr(launch, "choose", lambda *asked: form)
    a, b, bias = empty(324, 200), empty(200, N, True), torch.empty(N, dtype=BF16, device=META)
    out, pre = empty(324, N), empty(324, N)
    with compiling(90) as launches:
        gemm = Gemm("linear_relu", a, b, bias, None, out, "relu", 1.0, 0.0, "ieee", pre)
        launch.launch(gemm)
    made = launches[-1]
    assert made.kernel == "gemm_gluon_kernel"
    (figures,) = machine_code.of_triton([(made.cubin, made.shared)], "sm_90")
    assert figures.spills <= 32
    assert set(figures.stores) == {bits}


@pytest.mark.parametrize(("N", "bits"), [(312, "32"), (310, "32"), (311, "16")])
def test_an_addend_is_read_as_wide_as_its_rows_allow(N: int, bits: str) -> None:
    """A thread has pairs of neighbours. Alone they made 4169×7688×400 take 1.5 times as long."""
    (form,) = (form for form in FORMS if form.tiles[:2] == (128, 128))
    with compiling(90) as launches, forced(form):
        triton_kernels.gemm_bias_act(empty(324, 200), empty(200, N, True), c=empty(324, N))
    (figures,) = machine_code.of_triton([(launches[-1].cubin, launches[-1].shared)], "sm_90")
    assert set(figures.loads) == {bits, "bulk"}


@pytest.mark.parametrize("tiles", [(184, 128), (112, 128)], ids=str)
def test_parts_of_a_tile_may_overlap(tiles: tuple[int, int]) -> None:
    """Of tiles that alternate: each consumer stores twice 64 columns of them."""
    (form,) = (form for form in WIDE if form.tiles[:2] == tiles and form.ALTERNATE)
    assert form.part == 32
    with compiling(90) as launches, forced(form):
        triton_kernels.gemm_bias_act(empty(324, 200), empty(200, 304, True), act="relu")
    made = launches[-1]
    stores = made.asm["ptx"].count("cp.async.bulk.tensor.2d.global")
    assert stores == 2 * 2 * -(-tiles[0] // 32)
    (figures,) = machine_code.of_triton([(made.cubin, made.shared)], "sm_90")
    assert figures.spills == 0


@pytest.mark.gpu_only
@needs_hopper
@pytest.mark.parametrize(
    ("form", "N"),
    [(form, 301) for form in EVERY] + [(form, N) for form in LARGEST for N in (300, 302)],
    ids=lambda each: each if isinstance(each, int) else "x".join(map(str, each.tiles[:2])),
)
def test_results_by_elements_against_float64(form: Configuration, N: int) -> None:
    """With a bias and the pre-activation."""
    M, K = 324, 200
    a = torch.randn(M, K, device="cuda").bfloat16().requires_grad_()
    b = (torch.randn(N, K, device="cuda") * K**-0.5).bfloat16().t()
    bias = torch.randn(N, device="cuda").bfloat16()
    with forced(form), _launch.multiprocessors(2):
        out = triton_kernels.gemm_bias_act(a, b, bias, act="gelu")
    want = a.detach().double() @ b.double() + bias.double()
    pre = out.grad_fn.saved_tensors[0]  # type: ignore[union-attr]
    for each, right in ((pre, want), (out.detach(), torch.nn.functional.gelu(want))):
        torch.testing.assert_close(each.double(), right, rtol=2**-8, atol=2**-8)


@pytest.mark.parametrize(
    "form", list(EVERY)[::3], ids=lambda form: "x".join(map(str, form.tiles[:2]))
)
def test_relu_selects_before_results_are_rounded(form: Configuration) -> None:
    """Two results are rounded at once then. LLVM alone would round first in some forms, and select
    16 bits one by one."""
    a, b, bias = empty(324, 200), empty(200, 304, True), torch.empty(304, dtype=BF16, device=META)
    with compiling(90) as launches, forced(form):
        triton_kernels.gemm_bias_act(a, b, bias, act="relu")
    ptx = launches[-1].asm["ptx"]
    assert "selp.f32" in ptx
    assert "selp.b16" not in ptx


@pytest.mark.parametrize(
    ("tiles", "TURNED", "parts"),
    [((64, 64), False, 1), ((64, 160), False, 5), ((192, 64), True, 3)],
)
def test_only_long_epilogues_are_in_a_loop(
    tiles: tuple[int, int], TURNED: bool, parts: int
) -> None:
    """It computes half of a tile's parts at a time, rounded up."""
    (form,) = (f for f in FORMS if f.tiles[:2] == tiles and f.TURNED == TURNED)
    exponentials = {}
    for act, N in (("silu", 304), ("silu", 301), ("gelu", 304), ("gelu_tanh", 304)):
        a, b, bias = empty(324, 200), empty(200, N, True), torch.empty(N, dtype=BF16, device=META)
        with compiling(90) as launches, forced(form):
            triton_kernels.gemm_bias_act(a, b, bias, act=act)
        exponentials[act, N] = launches[-1].asm["ptx"].count("ex2.approx")
    # Each consumer has its own instructions, for its share of a tile, or a whole one if ALTERNATE.
    consumers = form.tiles.num_warps // WARPS
    elements = tiles[0] * tiles[1] // (32 * WARPS) * (consumers if form.ALTERNATE else 1)
    assert exponentials.pop(("silu", 304)) == elements
    assert set(exponentials.values()) == {elements // parts * ((parts + 1) // 2)}


@pytest.mark.gpu_only
@needs_hopper
@pytest.mark.parametrize("form", EVERY, ids=lambda form: "x".join(map(str, form.tiles[:2])))
def test_relu_keeps_nan_and_negative_zero(form: Configuration) -> None:
    """-1·0 + -0 is -0."""
    values = torch.tensor([-0.0, 0.0, float("nan"), -1.0, 1.0, float("-inf"), float("inf"), -1e-38])
    bias = values.bfloat16().repeat(19).cuda()
    a, b = (torch.zeros(n, 136, device="cuda").bfloat16() for n in (200, len(bias)))
    with forced(form):
        got = triton_kernels.gemm_bias_act(a, b.t(), bias, act="relu", alpha=-1.0)
    want = torch.where(bias < 0, 0.0, bias).expand_as(got)
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(torch.signbit(got[:, ::8]), torch.ones_like(got[:, ::8], dtype=torch.bool))


@pytest.mark.gpu_only
@needs_hopper
@pytest.mark.parametrize("step", [1, 3])
def test_results_by_columns_or_with_gaps(step: int) -> None:
    """What lies between their elements stays as it is."""
    a = torch.randn(324, 200, device="cuda").bfloat16()
    b = torch.randn(200, 300, device="cuda").bfloat16()
    want = a.double() @ b.double()
    for whole in (torch.zeros(300 * step, 324), torch.zeros(324, 300 * step).t()):
        whole = whole.cuda().bfloat16().fill_(7)
        out = whole.t()[:, ::step]
        with forced(LARGEST[0]):
            triton_kernels.gemm_bias_act(a, b, out=out)
        torch.testing.assert_close(out.double(), want, rtol=2**-8, atol=2**-4)
        out.fill_(7)
        assert torch.all(whole == 7)


def test_few_columns_of_tiles_are_taken_a_few_rows_at_a_time() -> None:
    assert forms.group_m(LARGEST[0].tiles, MANY, 256 * (FEW - 1)) == 4
    assert forms.group_m(LARGEST[0].tiles, MANY, 256 * (FEW - 1) + 1) == 16
    assert forms.group_m(LARGEST[1].tiles, MANY, 128) == 2
    for form in FORMS:
        wanted = form.tiles.GROUP_M
        assert forms.group_m(form.tiles, MANY, MANY) == wanted
        assert forms.group_m(form.tiles, MANY, 1) <= wanted


@pytest.mark.parametrize(
    ("rows", "group"),
    [(5, 5), (8, 8), (9, 9), (11, 11), (13, 7), (17, 9), (20, 10), (21, 8), (25, 8), (200, 8)],
)
def test_up_to_two_groups_of_rows_have_the_same_height(rows: int, group: int) -> None:
    """Nine rows would be a group of eight and one, whose programs share nothing of b."""
    (form,) = (form for form in FORMS if form.tiles[:2] == (64, 256))
    assert form.tiles.GROUP_M == 8
    assert forms.group_m(form.tiles, 64 * rows, MANY) == group


@pytest.mark.gpu_only
@needs_hopper
@pytest.mark.parametrize(
    "form", [*EVERY, *CLUSTERS], ids=lambda form: "x".join(map(str, form.tiles[:2]))
)
def test_a_tile_that_is_moved_inwards_has_the_bits_of_one_that_is_not(form: Configuration) -> None:
    """Of the same product with more rows and columns all tiles are whole. Every layout, with a
    bias, and with c where the form may be chosen; once in fewer rows and columns than a tile."""
    m, n = form.tiles[:2]
    M, N, K = 3 * m, 3 * n, 520
    c = None if form.TURNED else torch.randn(M, N, device="cuda").bfloat16()
    bias = torch.randn(N, device="cuda").bfloat16()
    for a_t, b_t in itertools.product((False, True)[: 1 + (form in FORMS)], (False, True)):
        a = torch.randn(K, M, device="cuda").t() if a_t else torch.randn(M, K, device="cuda")
        b = torch.randn(N, K, device="cuda").t() if b_t else torch.randn(K, N, device="cuda")
        a, b = a.bfloat16(), b.bfloat16()
        with forced(form):
            whole = triton_kernels.gemm_bias_act(a, b, bias, act="silu", c=c)
        for rows, columns in ((2 * m + 8, 2 * n + 8), (3 * m - 8, 3 * n - 72), (40, 40)):
            some = None if c is None else c[:rows, :columns]
            with forced(form), _launch.multiprocessors(2):
                args = a[:rows], b[:, :columns], bias[:columns]
                part = triton_kernels.gemm_bias_act(*args, act="silu", c=some)
            assert torch.equal(part, whole[:rows, :columns])


@pytest.mark.gpu_only
@needs_hopper
@pytest.mark.parametrize(
    ("tiles", "cluster", "few", "many", "N"),
    [
        ((128, 128), (0, 0), 1160, 1280, 1664),
        ((64, 256), (0, 0), 584, 640, 3328),
        ((64, 256), (0, 0), 576, 640, 3328),
        ((96, 64), (2, 2), 96, 192, 3072),
    ],
)
def test_a_last_row_of_tiles_slows_down_no_others(
    tiles: tuple[int, int], cluster: tuple[int, int], few: int, many: int, N: int
) -> None:
    """A product of fewer rows, which fills as many tiles or fewer, took 1.5 and 1.25 times as long;
    the third 1.45 times, with K = 13184 (H100). Its last tiles had few rows to load, or were a
    group of one row. The fourth took 1.3 times as long (H200): half of a cluster had no rows."""
    every = FORMS | CLUSTERS
    (form,) = (form for form in every if (form.tiles[:2], form.cluster) == (tiles, cluster))
    form = form._replace(ALTERNATE=False)
    matrices = [torch.randn(rows, 8192, device="cuda").bfloat16() for rows in (few, many, N)]
    *both, b = (torch.nn.functional.normalize(each) for each in matrices)
    flushed = torch.empty(2**26, device="cuda")
    times: list[list[float]] = [[], []]
    for taken, a in [*zip(times, both)] * 20:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with forced(form):
            flushed.sum()  # L2 holds neither matrix then, as when that was measured
            torch.cuda._sleep(1_000_000)
            start.record()
            triton_kernels.gemm_bias_act(a, b.t())
            end.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(end))
    assert min(times[0]) < 1.15 * min(times[1])


@pytest.mark.gpu_only
@needs_hopper
def test_any_order_of_tiles_is_the_same_kernel_and_product(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GROUP_M is an argument, so that another one compiles nothing."""
    a = torch.randn(1100, 200, device="cuda").bfloat16()
    b = torch.randn(200, 1000, device="cuda").bfloat16()
    want, kernel = None, forms.__name__.replace("forms", "kernels")
    for group in (1, 3, 4, 16):
        monkeypatch.setattr(forms, "group_m", lambda tiles, M, N, group=group: group)
        with forced(LARGEST[0]), _launch.recording() as recorded:
            got = triton_kernels.gemm_bias_act(a, b)
        jitted, _, compiled, _ = recorded.launches[-1]
        assert jitted.fn.__module__ == kernel
        if want is None:
            want = got, compiled
        assert torch.equal(got, want[0])
        assert compiled is want[1]


@pytest.mark.parametrize("a_across", [False, True])
@pytest.mark.parametrize("b_across", [False, True])
def test_the_choice_knows_whose_rows_go_across_K(
    a_across: bool, b_across: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Problem] = []
    monkeypatch.setattr(launch, "choose", lambda *both: asked.append(both[0]) or choose(*both))
    with compiling(90):
        a, b = empty(320, 512, a_across), empty(512, 640, not b_across)
        triton_kernels.gemm_bias_act(a, b)
    assert [each.across for each in asked] == [(a_across, b_across)]


def test_rows_across_K_speak_against_tiles_with_half_lines() -> None:
    """In tiles of 64×160 this took 1.33 times as long as in tiles of 64×192, both with K in two
    parts (H200)."""
    asked = Problem(564, 1088, 15232, BF16, BF16, kernels="any")
    chosen: list[Any] = [
        choose(asked._replace(across=(False, across)), H200) for across in (False, True)
    ]
    assert [form.tiles.BLOCK_N % 64 for form in chosen] == [32, 0]


def test_copies_and_pieces_of_rows_across_K_count() -> None:
    """An operand with odd rows of M is copied: through pointers each element would be loaded alone,
    in steps that wait."""
    asked = Problem(96, 448, 6656, BF16, BF16, kernels="any", across=(True, True))
    assert choose(asked._replace(pitches=(2, 128)), H200).tma
    few = Problem(31, 10261, 6690, BF16, BF16, kernels="any", pitches=(4, 2), across=(False, True))
    assert model.synchronous(few)
    assert not model.synchronous(few._replace(pitches=(4, 4)))
    assert model.synchronous(few._replace(pitches=(2, 4), across=(True, True)))
    assert not model.synchronous(few._replace(K=6691, pitches=(4, 4), across=(True, True)))


@pytest.mark.parametrize(
    "strides", [(1000, 1), (1, 4000), (1, 1), (1, 0), (0, 1), (2000, 2), (0, 0)], ids=str
)
def test_a_lies_for_the_launch_as_it_does_for_the_choice(strides: tuple[int, int]) -> None:
    """Also overlapping windows, whose strides are both 1, and repeated columns: there is one form
    for an a along K alone, and another for one across."""
    a = torch.empty_strided((4000, 1000), strides, dtype=BF16, device=META)
    with compiling(90) as launches:
        triton_kernels.gemm_bias_act(a, empty(1000, 3000, True))
    asked = launch.lying(Problem(4000, 3000, 1000, BF16, BF16), strides, (1, 1000))
    made = launches[-1]
    assert made.error is None
    assert made.meta["TURNED"]
    assert made.meta["B_T"] == made.meta["WIDE"] == (not asked.across[0])


def test_pieces_of_rows_across_K_are_read_where_copies_take_longer() -> None:
    """4020×128×4096 took 39 µs with a copy, 24 µs through pointers (H100). Not with single elements
    or rows of K, nor if a copy is needed anyway; nor for short sums, whose epilogue counts."""
    asked = Problem(4020, 128, 4096, BF16, BF16, kernels="any", pitches=(8, 128))
    asked = asked._replace(across=(True, True))
    assert not choose(asked, H200).tma
    assert choose(asked._replace(pitches=(2, 128)), H200).tma
    assert choose(asked._replace(across=(False, True)), H200).tma
    assert choose(asked._replace(pitches=(8, 2)), H200).tma
    assert choose(asked._replace(K=264), H200).tma
