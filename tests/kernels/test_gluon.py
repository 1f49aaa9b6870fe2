"""The product in Gluon: its forms, which problems get one, and what runs where it cannot."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import processes
import pytest
import torch
from marks import needs_hopper
from torch import Tensor
from triton.compiler.errors import CompilationError

import triton_kernels
from compare.compiling import walk
from compare.ops import SPECS
from triton_kernels import _launch
from triton_kernels._gpu import Gpu
from triton_kernels.gemm import GPUS, Configuration, Problem, choose, gluon, launch
from triton_kernels.gemm.arguments import Gemm
from triton_kernels.gemm.choice import fastest
from triton_kernels.gemm.gluon import availability, forms
from triton_kernels.gemm.gluon.forms import CLUSTERS, EVERY, FMA_FORMS, FORMS, WIDE
from triton_kernels.interpreter.cross_compile import compiling

H200 = GPUS["sm_90"]
BF16, HALF, F32 = torch.bfloat16, torch.float16, torch.float32
META = torch.device("meta")
GLUON_LAUNCH, FMA_LAUNCH = "triton_kernels.gemm.gluon.launch", "triton_kernels.gemm.gluon.fma"
CLUSTER_LAUNCH = "triton_kernels.gemm.gluon.clusters"


def problem(M: int, N: int, K: int, dtype: torch.dtype = BF16, **more: Any) -> Problem:
    return Problem(M, N, K, dtype, more.pop("out_dtype", dtype), **{"kernels": "any", **more})


# ---- the choice ----


@pytest.mark.parametrize(
    ("M", "N", "K", "tiles"),
    [  # the fastest of all forms on an H200, or within 3 % of it
        (12608, 3072, 768, (192, 128)),
        (100000, 64, 64, (192, 64)),
        (4096, 4096, 64, (128, 128)),
        (12608, 768, 3072, (192, 128)),
        (3072, 3072, 3072, (192, 128)),
        (1536, 1536, 1536, (144, 128)),
        (8480, 896, 11520, (232, 128)),
        (2048, 768, 3072, (96, 128)),
        (1024, 1024, 1024, (128, 64)),
        (263, 192, 1088, (16, 64)),  # tiles of up to 32 rows where there is little to do
        (189, 128, 448, (16, 64)),
        (138, 384, 4224, (32, 64)),
        (200, 14336, 4096, (208, 128)),
        (400, 12160, 5952, (200, 192)),
        (1455, 2240, 6976, (208, 128)),
        (7010, 576, 4928, (160, 192)),
        (4096, 4096, 4096, (128, 256)),
        (2048, 2048, 2048, (128, 128)),
    ],
)
def test_what_was_the_fastest_on_an_h200(M: int, N: int, K: int, tiles: tuple[int, int]) -> None:
    chosen = choose(problem(M, N, K), H200)
    assert chosen.gluon
    assert chosen.tiles[:2] == tiles


@pytest.mark.parametrize(
    ("M", "N", "K", "tiles", "parts"),
    [
        (321, 11584, 2816, (168, 192), 1),
        (9340, 576, 6208, (224, 192), 1),
        (11359, 384, 5248, (176, 192), 1),
        (12598, 64, 512, (128, 64), 1),
        (2986, 384, 2240, (144, 64), 1),
        (191, 15872, 4544, (192, 128), 1),
        (140, 12480, 9408, (144, 128), 1),
        (94, 13248, 6528, (96, 128), 1),
        (80, 7232, 14912, (80, 128), 2),
    ],
)
def test_some_hundred_rows_are_computed_as_the_transpose(
    M: int, N: int, K: int, tiles: tuple[int, int], parts: int
) -> None:
    """Where it was the fastest on an H200, or nearly so; not in tf32. With an addend only long sums
    gain by it."""
    asked = launch.lying(problem(M, N, K), (K, 1), (N, 1))._replace(across=(False, False))
    chosen = choose(asked, H200)
    assert chosen.TURNED
    assert (chosen.tiles[:2], chosen.SPLIT) == (tiles, parts)
    assert choose(asked._replace(c="even"), H200).TURNED == (K > 512)
    assert not choose(problem(M, N, K, F32, precision="tf32"), H200).TURNED


def _uncopied(asked: Problem) -> Configuration:
    """The fastest single configuration, whatever it copies."""
    return fastest(asked, H200)[0]._replace(copies=(False, False))


def test_every_form_is_chosen_for_some_problem() -> None:
    drawn = [p.problem._replace(kernels="any") for p in walk.products()]
    drawn.append(problem(8480, 896, 11520))
    found = {form for each in drawn if (form := _uncopied(each)).gluon}
    every = {form for form in EVERY if form.TURNED} | {*FMA_FORMS}
    by_rows = [form for form in FORMS if not form.TURNED]
    every |= {*CLUSTERS, *by_rows} | {
        form.of_dtype(F32) for form in by_rows if not form.by_registers
    }
    assert {form for form in found if form.SPLIT == 1} == every


def test_other_gpus_and_other_problems_never_get_it() -> None:
    for product in walk.products()[::7]:
        for kernels in ("any", "gluon"):
            asked = product.problem._replace(kernels=kernels)
            for arch, gpu in GPUS.items():
                if arch != "sm_90":
                    assert choose(asked, gpu) == choose(product.problem, gpu)
            if choose(asked, H200).gluon and asked.by_cores:
                halves = {asked.dtype, asked.out_dtype} <= {HALF, BF16}
                assert halves or (asked.precision == "tf32" and asked.out_dtype == F32)
                assert min(asked[1:3]) > 32
                if halves and asked.M <= 32:
                    assert choose(asked, H200).tiles.BLOCK_M == (16 if asked.M <= 16 else 32)
            elif choose(asked, H200).gluon:
                assert (asked.dtype, asked.precision) == (F32, "ieee")
                assert min(asked[1:3]) > 32
    assert not choose(problem(4096, 768, 3072, kernels="tl"), H200).gluon


def test_few_multiprocessors_or_little_memory() -> None:
    """The forms that fit compete; where none does, the other kernels run."""
    small = Gpu(90, 132, 206 * 1024)
    for shape in ((12608, 3072, 768), (8480, 896, 11520), (3072, 3072, 3072)):
        found = choose(problem(*shape), small)
        assert found.shared_memory(problem(*shape), 90) <= small.shared_memory
    assert not choose(problem(12608, 3072, 768, kernels="gluon"), Gpu(90, 132, 99 * 1024)).gluon
    assert choose(problem(130, 168, 328, kernels="gluon"), H200._replace(multiprocessors=1)).gluon


# ---- the kernel, compiled ----


def operand(rows: int, columns: int, by_columns: bool, dtype: torch.dtype = BF16) -> Tensor:
    if by_columns:
        return torch.empty(columns, rows, dtype=dtype, device=META).t()
    return torch.empty(rows, columns, dtype=dtype, device=META)


def compiled(
    form: Configuration, monkeypatch: pytest.MonkeyPatch, i: int, dtype: torch.dtype
) -> Any:
    """The form with the i-th of the epilogues and layouts."""
    monkeypatch.setattr(launch, "choose", lambda problem, gpu: form)
    M, N, K = 304, 400, 1032
    out = torch.empty(M, N + (i == 3), dtype=dtype, device=META)[:, :N]  # of an odd pitch
    c = out.new_empty(M, N) if i in (1, 3) else None
    pre = torch.empty_like(out) if i == 2 else None
    bias = out.new_empty(N) if i else None
    a, b = operand(M, K, bool(i & 2), dtype), operand(K, N, not i & 1, dtype)
    act = ("none", "gelu", "gelu_tanh", "silu")[i]
    with compiling(90) as launches:
        precision = "tf32" if dtype == F32 else "ieee"
        launch.launch(Gemm("gemm_bias_act", a, b, bias, c, out, act, 1.0, 1.0, precision, pre))
    *copies, found = launches
    assert len(copies) == (dtype == F32 and i > 0)  # to lie along K
    return found


@pytest.mark.parametrize("form", FORMS, ids=lambda form: "x".join(map(str, form.tiles[:2])))
def test_each_form_compiles_and_its_bytes_are_bounded(
    form: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two of four epilogues and layouts each, so that all are seen. Rows go through registers
    where there are three consumers, or two and three blocks of columns."""
    by_registers = form.tiles.num_warps == 12 or form.tiles[:2] in ((208, 128), (224, 128))
    first = list(FORMS).index(form)
    for i in (first % 4, (first + 2 + first // 4) % 4):
        found = compiled(form, monkeypatch, i, BF16)
        assert found.error is None
        assert found.kernel == "gemm_gluon_kernel"
        stated = form.shared_memory(problem(304, 400, 264), 90)
        assert stated - 1024 <= found.shared <= stated <= H200.shared_memory
        wide = form in WIDE and i < 2
        assert ("ldmatrix" in found.asm["ptx"]) == (by_registers and not wide)


@pytest.mark.parametrize(
    "form", list(WIDE)[::2], ids=lambda form: "x".join(map(str, form.tiles[:2]))
)  # the compile command has all
def test_one_instruction_has_the_whole_width_where_a_lies_along_k(
    form: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its addresses count from where the program's shared memory begins: there, in any version of
    Triton, a load puts the first block of a stage. Of operands across K two warps load a block."""
    across = list(WIDE).index(form) // 2 % 2
    found = compiled(form, monkeypatch, across, BF16)
    assert found.error is None
    stated = form.shared_memory(problem(304, 400, 264), 90)
    assert stated - 1024 <= found.shared <= stated <= H200.shared_memory
    ptx = found.asm["ptx"]
    assert "ldmatrix" not in ptx
    widths = re.findall(r"wgmma.mma_async.*m64n(\d+)k16", ptx)
    assert set(widths) == {str(form.tiles.BLOCK_M)}
    loads = set(re.findall(r"cp\.async\.bulk\.tensor\S* \[(\S+)\]", ptx))
    begins = set(re.findall(r"mov\.\w+\s+(\S+), global_smem;", ptx)) | {"global_smem"}
    assert across or loads & begins


@pytest.mark.parametrize(
    ("i", "tiles"), enumerate([(128, 256), (128, 192), (128, 160), (64, 192)]), ids=str
)
def test_forms_of_float32_compile_and_their_bytes_are_bounded(
    i: int, tiles: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    (half,) = (form for form in FORMS if form.tiles[:2] == tiles and not form.TURNED)
    form = half.of_dtype(F32)
    found = compiled(form, monkeypatch, i, F32)
    assert found.error is None
    assert "f32.tf32.tf32" in found.asm["ptx"]
    stated = form.shared_memory(problem(304, 400, 264, F32, precision="tf32"), 90)
    assert stated - 1024 <= found.shared <= stated <= H200.shared_memory


def test_the_public_functions_compile_in_it() -> None:
    x, weight = operand(12608, 768, False), operand(3072, 768, False)
    for kernels, name in (("any", "gemm_gluon_kernel"), ("tl", "gemm_tma_kernel")):
        with availability.only(kernels), compiling(90) as launches:
            triton_kernels.linear_act(x, weight, act="relu")
        assert [each.kernel for each in launches] == [name]
    with compiling(100) as launches:
        triton_kernels.linear_act(x, weight, act="relu")
    assert [each.kernel for each in launches] == ["gemm_tma_kernel"]


# ---- whether it can run ----


def test_reasons() -> None:
    for arch, gpu in GPUS.items():
        if arch != "sm_90":
            word = f"compute capability 9.0, not {gpu.capability // 10}.{gpu.capability % 10}"
            assert word in availability.unavailable(gpu, META)
    with triton_kernels.interpret():
        assert availability.unavailable(H200, META) == "kernels are interpreted"
        assert "products in Gluon: " in str(triton_kernels.capabilities())


def test_a_triton_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or with other names in it: products compile in the other kernels, and it is said why."""
    availability.lacking.cache_clear()
    monkeypatch.setitem(sys.modules, GLUON_LAUNCH, None)  # its import fails
    x = operand(12608, 768, False)
    try:
        with compiling(90) as launches:
            assert "cannot import the kernel: ModuleNotFoundError" in availability.here()
            triton_kernels.linear_act(x, operand(3072, 768, False), act="relu")
            with availability.only("gluon"), pytest.raises(RuntimeError, match="cannot import"):
                triton_kernels.linear_act(x, operand(3072, 768, False), act="relu")
    finally:
        availability.lacking.cache_clear()
    assert [each.kernel for each in launches] == ["gemm_tma_kernel"]


def test_it_is_not_loaded_before_it_is_asked_for(root: Path) -> None:
    """Nor where kernels are interpreted, where Gluon's decorators fail."""
    words = (
        "import sys, torch, triton_kernels\n"
        "x = torch.ones(40, 40, dtype=torch.half)\n"
        "with triton_kernels.interpret():\n"
        "    assert triton_kernels.linear_act(x, x, act='relu').eq(40).all()\n"
        "assert 'triton_kernels.gemm.gluon.kernels' not in sys.modules\n"
    )
    done = processes.python(root, "-c", words)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def on_an_h200(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Configuration]]:
    """As if products on the CPU ran there, where the self-test went well; what is launched."""
    launched: list[Configuration] = []
    monkeypatch.setattr(_launch, "gpu", lambda kernel, device: H200)
    tested = {(torch.device("cpu"), multiply_adds): "" for multiply_adds in (False, True)}
    monkeypatch.setattr(availability, "_tested", tested)
    monkeypatch.setattr(
        availability,
        "unavailable",
        lambda gpu, device, multiply_adds: availability._tested[device, multiply_adds],
    )
    monkeypatch.setattr(launch, "by_descriptors", lambda form, *args: launched.append(form))
    return launched


def call(columns: int = 3072) -> None:
    a, b = (torch.empty(s, dtype=BF16) for s in ((12608, 768), (768, columns)))
    out = torch.empty(12608, columns, dtype=BF16)
    launch.launch(Gemm("gemm_bias_act", a, b, None, None, out, "none", 1.0, 0.0, "ieee"))


def test_a_launch_that_fails_leaves_the_other_kernels(
    on_an_h200: list[Configuration], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One warning; from then on, and at once, the other kernels run."""
    call()
    assert [form.gluon for form in on_an_h200] == [True]

    def failing(form: Configuration, *args: Any) -> None:
        if form.gluon:
            raise RuntimeError("PassManager::run failed")
        on_an_h200.append(form)

    monkeypatch.setattr(launch, "by_descriptors", failing)
    with availability.only("gluon"), pytest.raises(RuntimeError, match="PassManager"):
        call()
    with pytest.warns(RuntimeWarning, match="gemm_gluon_kernel is not used.*PassManager"):
        call()
    assert [form.gluon for form in on_an_h200] == [True, False]
    assert len(availability._tested) == 2
    assert all("PassManager" in reason for reason in availability._tested.values())
    call()
    assert [form.gluon for form in on_an_h200] == [True, False, False]
    with (
        availability.only("gluon"),
        pytest.raises(RuntimeError, match=r"cannot run: .*PassManager"),
    ):
        call()


def test_what_it_is_not_made_for_is_refused_where_it_was_asked_for(
    on_an_h200: list[Configuration],
) -> None:
    with availability.only("gluon"), pytest.raises(RuntimeError, match="not made for Problem"):
        call(columns=20)
    with availability.only("tl"):
        call()
    assert [form.gluon for form in on_an_h200] == [False]


def test_a_failed_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """By an exception, by a wrong product; and one that goes well."""
    cpu = torch.device("cpu")
    monkeypatch.setattr(availability, "_tested", {})
    in_clusters = SimpleNamespace(launch=lambda form, *rest: multiply(form, 2, *rest[:-1]))
    monkeypatch.setitem(sys.modules, CLUSTER_LAUNCH, in_clusters)
    monkeypatch.setattr(gluon, "clusters", in_clusters, raising=False)

    def multiply(*args: Any, wrong: float = 0.0) -> None:
        form, programs, gemm, _, _ = args
        assert form in EVERY | CLUSTERS
        assert form.tiles_of(*gemm.out.shape) > 2 * programs
        gemm.out.copy_(gemm.a.double() @ gemm.b.t().double())
        gemm.out[-1, -1] += wrong

    def refusing(*args: Any) -> None:
        raise CompilationError("x = y", None, "no such layout")

    def multiply_add(*args: Any, wrong: float = 0.0) -> None:
        form, gemm, _, _, parts, _ = args
        assert form in FMA_FORMS
        assert parts > 1
        gemm.out.copy_(gemm.a @ gemm.b.t())
        gemm.out[0, 0] += wrong

    def tried(function: Any, multiply_adds: bool = False) -> str:
        module = FMA_LAUNCH if multiply_adds else GLUON_LAUNCH
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(launch=function))
        monkeypatch.setattr(gluon, module.rpartition(".")[2], sys.modules[module], raising=False)
        return availability._self_test(cpu, multiply_adds)

    assert tried(multiply) == tried(multiply_add, True) == ""
    with pytest.warns(RuntimeWarning, match="wrong product"):
        assert "its self-test" in tried(partial(multiply_add, wrong=1.0), True)
    with pytest.warns(RuntimeWarning, match="wrong product"):
        assert "its self-test gives a wrong product" in tried(partial(multiply, wrong=1.0))
    with pytest.warns(RuntimeWarning, match="please report"):
        assert "CompilationError" in tried(refusing)


@pytest.mark.usefixtures("forms_to_lose")
@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("WIDE", (8480, 896, 11520), "not used in tiles of any width"),
        ("CLUSTERS", (135, 2944, 3136), "gemm_gluon_cluster_kernel is not used"),
    ],
)
def test_a_failed_self_test_of_some_forms(
    name: str, shape: tuple[int, int, int], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only these are given up, also where the choice is known."""
    asked, every = problem(*shape), {"WIDE", "CLUSTERS"}
    assert choose(asked, H200) in getattr(forms, name).keys() - FORMS.keys()

    def multiply(form: Configuration, *args: Any) -> None:
        (gemm,) = (each for each in args if isinstance(each, Gemm))
        gemm.out.copy_(gemm.a.double() @ gemm.b.t().double())
        gemm.out[0, 0] += form in getattr(forms, name)

    for module in (GLUON_LAUNCH, CLUSTER_LAUNCH):
        monkeypatch.setattr(f"{module}.launch", multiply)
    with pytest.warns(RuntimeWarning, match=f"{words}.*a wrong product"):
        assert availability._self_test(torch.device("cpu"), False) == ""
    assert {each for each in every if not getattr(forms, each)} == {name}
    assert choose(asked, H200) in FORMS | forms.WIDE


# ---- on the GPU ----

CALLS = list(itertools.product(((333, 456, 328), (70, 40, 40), (515, 264, 1032)), range(4)))


@pytest.mark.gpu_only
@needs_hopper
def test_it_can_run_here() -> None:
    assert availability.here() == ""
    assert triton_kernels.capabilities().gluon == ""
    for op in ("linear_act", "gemm_bias_act"):
        spec = SPECS[op]
        (case,) = itertools.islice((c for c in spec.cases("bfloat16", "quick") if 70 in c.shape), 1)
        assert spec.takes("triton", "gluon", case)


@pytest.mark.gpu_only
@needs_hopper
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("shape", dict.fromkeys(shape for shape, _ in CALLS), ids=str)
def test_against_float64(
    shape: tuple[int, int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every layout of the operands, with c and without; the kernel that runs is Gluon's. Of float32
    in tf32, of numbers that it holds."""
    M, N, K = shape
    names: list[str] = []
    usual = _launch.Launch.__call__

    def noted(self: Any, *args: Any, **options: Any) -> None:
        names.append(self.kernel.fn.__name__)
        usual(self, *args, **options)

    monkeypatch.setattr(_launch.Launch, "__call__", noted)
    g = torch.Generator("cuda").manual_seed(0)
    for i in range(4):
        a = torch.randn(M, K, device="cuda", generator=g).bfloat16().to(dtype)
        b = (torch.randn(K, N, device="cuda", generator=g) * K**-0.5).bfloat16().to(dtype)
        a = a.t().contiguous().t() if i & 1 else a
        b = b.t().contiguous().t() if i & 2 else b
        bias = torch.randn(N, device="cuda", generator=g).to(dtype)
        c = torch.randn(M, N, device="cuda", generator=g).to(dtype) if i & 1 else None
        with availability.only("gluon"), _launch.multiprocessors((2, 132)[i // 2]):
            got = triton_kernels.gemm_bias_act(
                a, b, bias, c=c, act="relu", precision="tf32" if dtype == F32 else None
            )
        want = (a.double() @ b.double() + bias.double() + (0 if c is None else c.double())).relu()
        # The cores cut off at 2⁻²³ of a sum every four products: 258 times where K is longest.
        rtol, atol = (2**-8, 2**-10) if dtype == BF16 else (2**-16, 2**-16)
        torch.testing.assert_close(got.double(), want, rtol=rtol, atol=atol)
    assert set(names) - {"repack_kernel", "gemm_gluon_cluster_kernel"} == {"gemm_gluon_kernel"}


@pytest.mark.gpu_only
@needs_hopper
def test_both_kernels_in_a_cuda_graph() -> None:
    """Captured after the first call, which tries the kernel."""
    a = torch.randn(2048, 768, device="cuda").bfloat16()
    b = torch.randn(768, 3072, device="cuda").bfloat16()
    want = triton_kernels.gemm_bias_act(a, b)
    out = torch.empty_like(want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        triton_kernels.gemm_bias_act(a, b, out=out)
    for _ in range(3):
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, want)
