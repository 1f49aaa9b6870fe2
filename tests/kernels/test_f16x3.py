"""Precision "f16x3": float32 products of parts in float16, scaled by rows."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import cuda_reference
import triton_kernels as tk
from compare.specs import product_bounds
from compare.specs.gluon_forms import GLUON_PARTS
from cuda_reference import _build
from triton_kernels import _launch
from triton_kernels.gemm import GPUS, Configuration, Problem, choose, launch, parts
from triton_kernels.gemm.arguments import Gemm
from triton_kernels.gemm.choice import parts_pay
from triton_kernels.gemm.gluon import availability
from triton_kernels.gemm.gluon.forms import PARTS_FORMS
from triton_kernels.interpreter.cross_compile import compiling

LAYOUTS = {  # a [M, K] and b [K, N]
    "forward": (False, True),
    "dgrad": (False, False),
    "wgrad": (True, False),
    "columns": (True, True),
}
SIDES = ["triton", "cuda"]


@pytest.fixture(autouse=True)
def always_in_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Also on a GPU that computes small products whole, sooner."""
    monkeypatch.setattr(launch, "parts_pay", lambda problem, gpu: True)
    with availability.only("any"):
        yield


def matrix(rows: int, columns: int, by_columns: bool, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    drawn = torch.randn(rows, columns, generator=g)
    return drawn.t().contiguous().t() if by_columns else drawn


def product(side: str, a: Tensor, b: Tensor, device: torch.device) -> Tensor:
    if side == "triton":
        return tk.gemm_bias_act(a.to(device), b.to(device), precision="f16x3").cpu()
    if _build.unavailable("host"):
        pytest.skip("no C++ compiler")
    return cuda_reference.gemm_bias_act(a, b, precision="f16x3")


def share_of_bound(out: Tensor, a: Tensor, b: Tensor, side: str) -> float:
    """The worst error as a fraction of the bound."""
    name = {"triton": "triton-compiled", "cuda": "cuda-gpu/wmma"}[side]
    right = product_bounds.oracle(a, b)
    limit = product_bounds.bound(name, ((a, b), {"precision": "f16x3"}), right, out.dtype)
    assert bool(limit.isfinite().all())
    return float(((out.double() - right).abs() / limit).max())


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(33, 65, 70), (130, 72, 264), (1, 1, 1), (3, 130, 513)])
def test_nearly_float32(
    device: torch.device, side: str, layout: str, shape: tuple[int, int, int]
) -> None:
    M, N, K = shape
    a, b = (matrix(*s, by) for s, by in zip(((M, K), (K, N)), LAYOUTS[layout]))
    out = product(side, a, b, device)
    assert share_of_bound(out, a, b, side) <= 1
    error = (out.double() - a.double() @ b.double()).abs()
    assert bool((error <= 2.0**-20 * (a.double().abs() @ b.double().abs())).all())


@pytest.mark.parametrize("side", SIDES)
def test_splits_longer_than_a_program_takes_at_once(device: torch.device, side: str) -> None:
    """In the second pass each piece is loaded again, and the largest element may be in any."""
    for by_columns in (False, True):
        a, b = matrix(2, 9001, by_columns), matrix(9001, 2, not by_columns)
        a[0, 8999], b[8190, 1] = 2.0**20, 2.0**30
        assert share_of_bound(product(side, a, b, device), a, b, side) <= 1


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    ("a_power", "b_power"),
    [(-140, 100), (120, -130), (-100, 90), (100, -149), (60, 60), (-70, -60)],
)
def test_rows_of_any_size(device: torch.device, side: str, a_power: int, b_power: int) -> None:
    """Also where one operand's scale alone would overflow, or where all of it is subnormal."""
    a = (matrix(20, 30, False).double() * 2.0**a_power).float()
    b = (matrix(30, 25, False, 1).double() * 2.0**b_power).float()
    out = product(side, a, b, device)
    assert bool(out.isfinite().all())
    assert share_of_bound(out, a, b, side) <= 1


@pytest.mark.parametrize("side", SIDES)
def test_what_a_row_s_largest_element_hides(device: torch.device, side: str) -> None:
    """Elements of widely different size in a row: within the bound by rows, and not within that of
    a float32 product."""
    a, b = matrix(16, 64, False), matrix(64, 16, False, 1)
    a[:, 0], b[0] = 2.0**30, 0.0  # the large ones meet zeros
    out = product(side, a, b, device)
    assert share_of_bound(out, a, b, side) <= 1
    error = (out.double() - a.double() @ b.double()).abs()
    small = a.double().abs() @ b.double().abs()
    assert bool((error > 64 * 2.0**-24 * small).any())


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nan_and_infinities_are_where_float32_has_them(
    device: torch.device, side: str, layout: str
) -> None:
    a, b = (matrix(*s, by) for s, by in zip(((70, 40), (40, 140)), LAYOUTS[layout]))
    for i, value in enumerate((math.nan, math.inf, -math.inf)):
        a[20 * i + 3, 5 * i], b[5 * i + 1, 60 * i + 2] = value, value
    b[5, 7], a[4, 11] = 0.0, 0.0  # ∞·0
    out, right = product(side, a, b, device), a.double() @ b.double()
    assert torch.equal(out.isnan(), right.isnan())
    infinite = right.isinf()
    assert bool(infinite.any())
    assert torch.equal(out[infinite].double(), right[infinite])
    fine = right.isfinite()
    close = 1e-5 * (a.abs().nan_to_num(0, 0).double() @ b.abs().nan_to_num(0, 0).double())
    assert bool(((out.double() - right).abs() <= close)[fine].all())


@pytest.mark.parametrize("side", SIDES)
def test_a_row_does_not_depend_on_another_one(device: torch.device, side: str) -> None:
    """A NaN has its row computed anew, and no more."""
    a, b = matrix(40, 50, False), matrix(50, 30, False, 1)
    before = product(side, a, b, device)
    a[7, 3] = math.nan
    after = product(side, a, b, device)
    assert bool(after[7].isnan().all())
    rest = torch.arange(40) != 7
    assert torch.equal(after[rest], before[rest])


def test_an_epilogue_of_what_is_computed_anew(device: torch.device) -> None:
    """Bias, c, activation and pre-activation, as of other rows."""
    a, b, c = matrix(5, 8, False), matrix(8, 6, False, 1), matrix(5, 6, False, 2)
    bias = torch.randn(6)
    a[2, 3] = math.inf
    how = {"act": "relu", "alpha": 0.5, "beta": 2.0}
    args = [t.to(device) for t in (a, b, bias)]
    out = tk.gemm_bias_act(*args, c=c.to(device), precision="f16x3", **how).cpu()
    right = product_bounds.oracle(a, b, bias, c=c, **how)
    assert bool(right[2].isinf().any() and (right[2] == 0).any())
    torch.testing.assert_close(out.double(), right, rtol=1e-5, atol=1e-5)
    x = args[0].requires_grad_()
    trained = tk.gemm_bias_act(x, *args[1:], act="silu", precision="f16x3")
    (pre,) = (t for t in trained.grad_fn.saved_tensors if t is not None and t.shape == (5, 6))
    assert bool(pre[2].isinf().all())
    assert torch.equal(
        trained[2].isnan().cpu(), product_bounds.oracle(a, b, bias, act="silu")[2].isnan()
    )


def test_there_is_always_a_third_launch(cpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the operands hold, only the GPU knows: the host asks nothing."""
    seen: list[str] = []
    call = _launch.Launch.__call__

    def noted(self: _launch.Launch, *args: object, **more: object) -> None:
        seen.append(self.kernel.fn.__name__)
        call(self, *args, **more)

    monkeypatch.setattr(_launch.Launch, "__call__", noted)
    tk.gemm_bias_act(matrix(4, 5, False), matrix(5, 6, False), precision="f16x3")
    assert seen == ["split_kernel", "gemm_f16x3_kernel", "gemm_again_kernel"]
    assert seen.clear() is None
    tk.gemm_bias_act(torch.zeros(4, 0), torch.zeros(0, 6), precision="f16x3")
    assert seen == ["gemm_bias_act_kernel"]


# The time by multiply-adds over that in parts, measured on an H100.
GAINS = {
    (1, 2560, 5600): 0.35,
    (20, 3200, 7488): 0.41,
    (6, 12000, 7648): 0.32,
    (17, 256, 2368): 0.64,
    (33, 4544, 6592): 0.78,
    (651, 192, 12608): 0.58,
    (268, 5664, 152): 1.22,
    (128, 13056, 3448): 1.41,
    (240, 8416, 592): 1.95,
    (4688, 512, 11392): 2.51,
    (1550, 2368, 1344): 3.73,
    (11940, 12372, 3242): 5.4,
}


@pytest.mark.parametrize("shape", GAINS)
def test_parts_where_they_pay(shape: tuple[int, int, int]) -> None:
    problem = Problem(*shape, torch.float32, torch.float32, "f16x3", kernels="any")
    assert parts_pay(problem, GPUS["sm_90"]) == (GAINS[shape] > 1)


@pytest.mark.parametrize("pays", [False, True])
@pytest.mark.parametrize(("fma", "allowed"), [("any", True), ("tl", False), ("gluon", False)])
def test_the_others_are_float32s_own(
    pays: bool, fma: str, allowed: bool, cpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If multiply-adds have their kernel, and no kernel is prescribed."""
    seen: list[str] = []
    monkeypatch.setattr(launch, "parts_pay", lambda problem, gpu: pays)
    monkeypatch.setattr(
        availability, "kernels", lambda gpu, device, adds=False: fma if adds else "tl"
    )
    for name in ("by_parts", "by_descriptors", "through_pointers"):
        monkeypatch.setattr(launch, name, lambda *args: seen.append(args[-1]))
    tk.gemm_bias_act(matrix(48, 64, False), matrix(64, 80, False), precision="f16x3")
    whole = allowed and not pays
    assert [arg is True or arg.precision == "ieee" for arg in seen] == [whole]


def test_gradients_have_the_same_precision(
    cpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, ...]] = []
    by_parts = parts.by_parts

    def noted(chosen: Configuration, most: int, gemm: Gemm) -> None:
        asked.append(gemm.shape)
        by_parts(chosen, most, gemm)

    monkeypatch.setattr("triton_kernels.gemm.launch.by_parts", noted)
    x, weight = matrix(5, 8, False).requires_grad_(), matrix(6, 8, False).requires_grad_()
    tk.linear_gelu(x, weight, precision="f16x3").sum().backward()
    assert asked == [(5, 6, 8), (5, 8, 6), (6, 8, 5)]
    wide = [t.detach().double().requires_grad_() for t in (x, weight)]
    torch.nn.functional.gelu(wide[0] @ wide[1].t()).sum().backward()
    for mine, right in zip((x, weight), wide):
        torch.testing.assert_close(mine.grad.double(), right.grad, rtol=1e-5, atol=1e-5)


def test_cases_have_every_form_in_gluon() -> None:
    gpu = GPUS["sm_90"]
    chosen = {
        choose(
            Problem(*shape, torch.float32, torch.float32, "f16x3", kernels="gluon"),
            gpu._replace(multiprocessors=number),
        )
        for shape, number in GLUON_PARTS
    }
    assert chosen == set(PARTS_FORMS)


@pytest.mark.parametrize("form", PARTS_FORMS, ids=lambda form: "x".join(map(str, form.tiles[:2])))
def test_each_form_in_gluon_compiles(form: Configuration, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "choose", lambda problem, gpu: form)
    x, weight = torch.empty(304, 264, device="meta"), torch.empty(400, 264, device="meta")
    with compiling(90) as launches:
        tk.linear_act(x, weight, torch.empty(400, device="meta"), act="gelu", precision="f16x3")
    assert "gemm_gluon_f16x3_kernel" in {each.kernel for each in launches}
    assert {each.error for each in launches} == {None}


def test_the_cheapest_waves_of_tiles() -> None:
    """Measured on an H200 as the fastest."""
    rows = {
        (2304, 2304): (64, 128),
        (4096, 4096): (128, 128),
        (6144, 1536): (64, 128),
        (512, 1024): (64, 64),
        (8192, 4096): (128, 128),
    }
    for (M, N), tile in rows.items():
        problem = Problem(M, N, 2048, torch.float32, torch.float32, "f16x3", kernels="any")
        assert choose(problem, GPUS["sm_90"]).tiles[:2] == tile


@pytest.mark.parametrize("arch", GPUS)
def test_tiles_fit(arch: str) -> None:
    gpu = GPUS[arch]
    for M, N in ((16, 2048), (512, 2048), (2048, 2048), (8192, 8192)):
        problem = Problem(M, N, 4096, torch.float32, torch.float32, "f16x3")
        chosen = choose(problem, gpu)
        assert chosen.tma
        assert chosen.shared_memory(problem, gpu.capability) <= gpu.shared_memory
