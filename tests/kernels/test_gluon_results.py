"""What gemm_gluon_kernel stores without a descriptor, the order of its tiles, and operands whose
rows go across K."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

import triton_kernels
from compare.compiling import machine_code
from compare.timing.configurations import forced
from triton_kernels import _launch
from triton_kernels.gemm import GPUS, Configuration, Problem, choose, launch, model
from triton_kernels.gemm.arguments import Gemm
from triton_kernels.gemm.gluon import forms
from triton_kernels.gemm.gluon.forms import FEW, FORMS
from triton_kernels.interpreter.cross_compile import compiling

H200 = GPUS["sm_90"]
BF16 = torch.bfloat16
META = torch.device("meta")
compiles = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels cannot be compiled"
)
needs_hopper = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0),
    reason="Gluon's kernel is for compute capability 9.0",
)
LARGEST = [form for form in FORMS if form.tiles[:2] in {(128, 256), (160, 256), (256, 128)}]


def empty(rows: int, columns: int, by_columns: bool = False) -> Tensor:
    if by_columns:
        return torch.empty(columns, rows, dtype=BF16, device=META).t()
    return torch.empty(rows, columns, dtype=BF16, device=META)


@compiles
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


@pytest.mark.gpu_only
@needs_hopper
@pytest.mark.parametrize(
    ("form", "N"),
    [(form, 301) for form in FORMS] + [(form, N) for form in LARGEST for N in (300, 302)],
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
    assert forms.group_m(LARGEST[0].tiles, 256 * (FEW - 1)) == 4
    assert forms.group_m(LARGEST[0].tiles, 256 * (FEW - 1) + 1) == LARGEST[0].tiles.GROUP_M == 16
    assert forms.group_m(LARGEST[1].tiles, 128) == 2
    for form in FORMS:
        assert forms.group_m(form.tiles, 1) <= form.tiles.GROUP_M


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
        monkeypatch.setattr(forms, "group_m", lambda tiles, N, group=group: group)
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
    """128×192 took 0.76 times as long (H100)."""
    asked = Problem(3600, 528, 4784, BF16, BF16, kernels="any", pitches=(32, 32))
    chosen: list[Any] = [
        choose(asked._replace(across=(False, across)), H200) for across in (False, True)
    ]
    assert [form.tiles.BLOCK_N % 64 for form in chosen] == [32, 0]


def test_copies_and_pieces_of_rows_across_K_count() -> None:
    """An operand with odd rows of M is copied: through pointers each element would be loaded alone,
    in steps that wait."""
    asked = Problem(96, 448, 6656, BF16, BF16, kernels="any", across=(True, True))
    assert not choose(asked, H200).tma
    assert choose(asked._replace(pitches=(2, 128)), H200).tma
    few = Problem(31, 10261, 6690, BF16, BF16, kernels="any", pitches=(4, 2), across=(False, True))
    assert model.synchronous(few)
    assert not model.synchronous(few._replace(pitches=(4, 4)))
    assert model.synchronous(few._replace(pitches=(2, 4), across=(True, True)))
    assert not model.synchronous(few._replace(K=6691, pitches=(4, 4), across=(True, True)))


def test_pieces_of_rows_across_K_are_read_where_copies_take_longer() -> None:
    """4020×128×4096 took 39 µs with a copy, 24 µs through pointers (H100). Not with single elements
    or rows of K, nor if a copy is needed anyway; nor for short sums, whose epilogue counts."""
    asked = Problem(4020, 128, 4096, BF16, BF16, kernels="any", pitches=(8, 128))
    asked = asked._replace(across=(True, True))
    assert not choose(asked, H200).tma
    assert choose(asked._replace(pitches=(2, 128)), H200).tma
    assert choose(asked._replace(across=(False, True)), H200).tma
    assert choose(asked._replace(pitches=(8, 2)), H200).tma
    assert choose(asked._replace(K=128), H200).tma
