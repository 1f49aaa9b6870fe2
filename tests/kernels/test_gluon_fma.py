"""float32 products by multiply-adds in Gluon: their forms, choice, code, and results."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from marks import needs_hopper
from torch import Tensor

import triton_kernels
from compare.specs.gluon_forms import GLUON_FMA
from triton_kernels import _launch
from triton_kernels.gemm import GPUS, Configuration, Problem, choose, launch
from triton_kernels.gemm.arguments import Gemm
from triton_kernels.gemm.gluon import availability
from triton_kernels.gemm.gluon.forms import FMA_FORMS
from triton_kernels.interpreter.cross_compile import compiling

H200, F32 = GPUS["sm_90"], torch.float32
META = torch.device("meta")


def problem(M: int, N: int, K: int, **more: Any) -> Problem:
    return Problem(M, N, K, F32, F32, **{"precision": "ieee", "kernels": "any", **more})


# ---- the choice ----


@pytest.mark.parametrize(
    ("M", "N", "K", "tiles", "split"),
    [  # the fastest of all forms and splits on an H200, or within 2 % of it
        (2, 7232, 5312, (8, 64), 4),
        (172, 384, 256, (32, 32), 4),
        (137, 6272, 3840, (32, 64), 1),
        (4848, 320, 6400, (64, 64), 1),
        (2137, 2880, 3584, (64, 128), 1),
        (430, 12608, 7488, (64, 128), 4),  # four parts fill the last wave better than one
    ],
)
def test_what_was_the_fastest_on_an_h200(
    M: int, N: int, K: int, tiles: tuple[int, int], split: int
) -> None:
    form = choose(problem(M, N, K), H200)
    assert (form.gluon, form.tiles[:2], form.SPLIT) == (True, tiles, split)


def test_what_others_get() -> None:
    """On other GPUs, of few columns or terms, and in the interpreter."""
    usual = 512, 512, 512
    assert choose(problem(*usual), H200).gluon
    for other in (
        choose(problem(*usual, kernels="tl"), H200),
        choose(problem(*usual), GPUS["sm_80"]),
        choose(problem(*usual), GPUS["sm_100"]),
        choose(problem(512, 32, 512), H200),
        choose(problem(512, 512, 32), H200),
    ):
        assert not other.tma


def test_the_check_reaches_every_form() -> None:
    """Whole and in parts, with more terms than are added at a time."""
    from triton_kernels.gemm.gluon.fma import ROUNDED  # not every Triton can import it

    reached, rounded = set(), set()
    for (M, N, K), multiprocessors in GLUON_FMA:
        gpu = H200._replace(multiprocessors=multiprocessors)
        form = choose(problem(M, N, K, kernels="gluon"), gpu)
        reached.add((form._replace(SPLIT=1), form.SPLIT > 1))
        if K // form.SPLIT > ROUNDED[form.tiles.kept]:
            rounded.add((form.tiles.kept, form.SPLIT > 1))
        assert M % form.tiles.BLOCK_M
        assert N % form.tiles.BLOCK_N
    assert reached == {(form, split) for form in FMA_FORMS for split in (False, True)}
    assert len(rounded) == 4


def test_threads_have_blocks_of_whole_vectors() -> None:
    from triton_kernels.gemm.gluon.fma import threads_along_m

    for form in FMA_FORMS:
        m, n, _, _, warps, _ = form.tiles
        lanes, warps_m = threads_along_m(form.tiles)
        rows, columns = m // (lanes * warps_m), n // (32 // lanes * (warps // warps_m))
        assert rows * columns * 32 * warps == m * n
        assert rows % 4 == columns % 4 == 0
        assert max(rows, columns) <= 2 * min(rows, columns)
        assert form.tiles.kept == (rows * columns >= 64)


# ---- the kernel, compiled ----

LAYOUTS = [(False, False), (False, True), (True, False), (True, True)]


def operand(rows: int, columns: int, by_columns: bool, device: torch.device = META) -> Tensor:
    if by_columns:
        return torch.empty(columns, rows, device=device).t()
    return torch.empty(rows, columns, device=device)


@pytest.mark.parametrize("form", FMA_FORMS, ids=lambda form: "x".join(map(str, form.tiles[:3])))
def test_each_form_compiles_to_multiply_adds(
    form: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its shared memory is bounded. A thread reads four elements at once, and spills nothing amid
    the multiply-adds of K."""
    first = list(FMA_FORMS).index(form)
    for i in (first % 4, (first + 1) % 4):
        chosen = form._replace(SPLIT=1 + 3 * (i % 2))
        monkeypatch.setattr(launch, "choose", lambda *_, chosen=chosen: chosen)
        M, N, K = 304, 400, 264
        out = torch.empty(M, N, device=META)
        c, pre = out.new_empty(M, N) if i & 1 else None, torch.empty_like(out) if i & 2 else None
        a, b = (operand(*s, by_columns) for s, by_columns in zip(((M, K), (K, N)), LAYOUTS[i]))
        with compiling(90) as launches:
            launch.launch(
                Gemm("gemm_bias_act", a, b, out.new_empty(N), c, out, "relu", 1.0, 1.0, "ieee", pre)
            )
        (found,) = launches  # nothing is copied
        assert found.error is None
        assert found.kernel == "gemm_gluon_fma_kernel"
        stated = form.shared_memory(problem(M, N, K), 90)
        assert stated - 1024 <= found.shared <= stated <= H200.shared_memory
        sass = found.asm["sass"]
        assert len(re.findall(r"\bLDS\.128\b", sass)) > 10 * len(re.findall(r"\bLDS R", sass))
        m, n, k, _, warps, _ = form.tiles
        adds = [each.start() for each in re.finditer(r"\bFFMA\b", sass)]
        step = sass[adds[0] : adds[m * n * k // (32 * warps) - 1]]  # all of one step of K
        assert not re.search(r"\b(?:STL|LDL)\b", step)


def test_unaligned_operands_are_copied_as_they_lie() -> None:
    a, b = operand(130, 263, False), operand(263, 201, False)
    with compiling(90) as launches:
        triton_kernels.gemm_bias_act(a, b, precision="ieee")
        triton_kernels.gemm_bias_act(operand(130, 264, False), b.new_empty(201, 264).t())
    names = ["repack_kernel", "gemm_gluon_fma_kernel", "gemm_gluon_fma_kernel"]
    assert [each.kernel for each in launches] == names
    assert launches[1].meta["WAITS"]
    assert not launches[1].meta["B_T"]
    assert not launches[2].meta["WAITS"]
    assert launches[2].meta["B_T"]


# ---- on the GPU ----


@pytest.mark.gpu_only
@needs_hopper
@pytest.mark.parametrize("form", FMA_FORMS, ids=lambda form: "x".join(map(str, form.tiles[:3])))
def test_it_is_as_accurate_as_torch(form: Configuration, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every layout, whole and in parts; each call gives the same bits."""
    g = torch.Generator("cuda").manual_seed(0)
    for i, (split, K) in enumerate([(1, 200), (1, 4001), (3, 4000), (64, 9000)]):
        monkeypatch.setattr(launch, "choose", lambda *_, n=split: form._replace(SPLIT=n))
        a = torch.randn(133, K, device="cuda", generator=g)
        b = torch.randn(K, 201, device="cuda", generator=g)
        a = a.t().contiguous().t() if LAYOUTS[i][0] else a
        b = b.t().contiguous().t() if LAYOUTS[i][1] else b
        first, again = (triton_kernels.gemm_bias_act(a, b, precision="ieee") for _ in range(2))
        assert torch.equal(first, again)
        want = a.double() @ b.double()
        errors = [(got.double() - want).norm() / want.norm() for got in (first, a @ b)]
        assert errors[0] <= 2 * errors[1] + 2**-24


@pytest.mark.gpu_only
@needs_hopper
def test_the_default_runs_in_it() -> None:
    names: list[str] = []
    usual = _launch.Launch.__call__

    def noted(self: Any, *args: Any, **options: Any) -> None:
        names.append(self.kernel.fn.__name__)
        usual(self, *args, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_launch.Launch, "__call__", noted)
        x, weight = torch.randn(70, 300, device="cuda"), torch.randn(130, 300, device="cuda")
        triton_kernels.linear_act(x, weight, act="relu")  # the self-test, perhaps
        names.clear()
        with availability.only("gluon"):
            triton_kernels.linear_act(x, weight, act="relu")
    assert names == ["gemm_gluon_fma_kernel"]
