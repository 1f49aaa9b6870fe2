"""gemm_gluon_cluster_kernel: its forms, which products get one, its results."""

from __future__ import annotations

import itertools
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from marks import needs_hopper
from torch import Tensor

import triton_kernels
from compare.compiling import machine_code
from compare.timing.configurations import forced
from triton_kernels import _launch
from triton_kernels.gemm import GPUS, Configuration, Problem, choice, choose, model
from triton_kernels.gemm.gluon import availability, forms
from triton_kernels.gemm.gluon.forms import CLUSTERS
from triton_kernels.interpreter.cross_compile import Launch, compiling

H200 = GPUS["sm_90"]
BF16, HALF, F32 = torch.bfloat16, torch.float16, torch.float32
META = torch.device("meta")


def named(form: Configuration) -> str:
    return f"{form.tiles.BLOCK_M}x64 {'x'.join(map(str, form.cluster))}"


def problem(M: int, N: int, K: int, **more: Any) -> Problem:
    return Problem(M, N, K, BF16, more.pop("out_dtype", BF16), **{"kernels": "any", **more})


def operand(rows: int, columns: int, by_columns: bool = False, dtype: Any = BF16) -> Tensor:
    if by_columns:
        return torch.empty(columns, rows, dtype=dtype, device=META).t()
    return torch.empty(rows, columns, dtype=dtype, device=META)


def compiled(form: Configuration, across: bool, N: int = 304, dtype: Any = BF16) -> Launch:
    """The launch of a product whose b has rows of N, or of K."""
    b = operand(200, N, not across, dtype)
    bias = torch.empty(N, dtype=dtype, device=META)
    with compiling(90) as launches, forced(form):
        triton_kernels.gemm_bias_act(operand(324, 200, dtype=dtype), b, bias, act="gelu")
    return launches[-1]


# ---- the choice ----


@pytest.mark.parametrize(
    ("M", "N", "K", "across", "tiles", "cluster"),
    [  # 1.08 to 1.2 times as fast as without clusters, on an H200
        (94, 6952, 2008, False, (96, 64), (1, 4)),
        (135, 2944, 3136, False, (80, 64), (2, 2)),
        (221, 2888, 3344, True, (112, 64), (2, 2)),
        (3214, 128, 5440, False, (64, 64), (2, 2)),
        (5210, 128, 4480, False, (96, 64), (2, 2)),
    ],
)
def test_what_was_the_fastest_on_an_h200(
    M: int, N: int, K: int, across: bool, tiles: tuple[int, int], cluster: tuple[int, int]
) -> None:
    chosen = choose(problem(M, N, K, across=(False, across)), H200)
    assert (chosen.tiles[:2], chosen.cluster) == (tiles, cluster)


@pytest.mark.parametrize(
    ("M", "N", "K", "more"),
    [
        (4096, 4096, 4096, {}),  # many tiles
        (20, 2112, 3008, {}),  # few rows
        (306, 2110, 3008, {}),  # a result whose rows no descriptor stores
        (306, 2112, 3008, {"out_dtype": F32}),
        (306, 2112, 3008, {"c": "even"}),
        (306, 2112, 1016, {}),  # a short sum
        (306, 2112, 3008, {"across": (True, True)}),  # a lies across K
        (306, 2112, 3008, {"kernels": "tl"}),
    ],
    ids=str,
)
def test_which_products_have_no_clusters(M: int, N: int, K: int, more: dict[str, Any]) -> None:
    usual, other = problem(306, 2112, 3008), problem(M, N, K, **more)
    for asked, compete in ((usual, True), (other, False)):
        ways = choice.candidates(asked, H200)
        assert any(form.cluster[0] for form, _, _ in ways) == compete


def test_only_compute_capability_9_0_has_clusters() -> None:
    assert [
        arch for arch, gpu in GPUS.items() if choose(problem(135, 2944, 3136), gpu).cluster[0]
    ] == ["sm_90"]


def test_tiles_are_counted_in_whole_clusters() -> None:
    for form in CLUSTERS:
        (rows, columns, *_), (below, beside) = form.tiles, form.cluster
        assert form.tiles_of(1, 1) == below * beside
        assert form.tiles_of(rows * below + 1, columns * beside) == 2 * below * beside
        assert form.tiles_of(rows, columns * beside + 1) == 2 * below * beside


def test_more_programs_share_a_load_in_larger_clusters() -> None:
    """Where loads take longest, a form takes less time the more tiles have its rows."""
    asked = problem(96, 64 * 120, 8192)
    seconds = model.timed(asked, H200)
    (form,) = (f for f in CLUSTERS if f.tiles.BLOCK_M == 96 and f.cluster == (1, 4))
    four, one = (seconds(form._replace(cluster=each), 0.94, [1])[0] for each in ((1, 4), (1, 1)))
    assert four < one


# ---- what is compiled ----


@pytest.mark.parametrize("form", CLUSTERS, ids=named)
def test_each_form_compiles_and_its_bytes_are_stated(form: Configuration) -> None:
    """One load brings a block to several programs. Its barriers and stages begin where the shared
    memory of a program begins, and nothing spills."""
    i = list(CLUSTERS).index(form)
    made = compiled(form, i % 2 == 1, dtype=(BF16, HALF)[i // 2 % 2])
    assert made.error is None
    assert made.kernel == "gemm_gluon_cluster_kernel"
    assert made.shared == form.shared_memory(problem(324, 304, 200), 90) - 1024
    ptx = made.asm["ptx"]
    below, beside = form.cluster
    loads = re.findall(r"cp\.async\.bulk\.tensor\.2d\.shared\S*", ptx)
    several = [load for load in loads if "multicast" in load]
    boxes = form.tiles.BLOCK_M // beside // made.meta["BOX"]
    assert len(loads) == 1 + boxes
    assert len(several) == (below > 1) + boxes * (beside > 1)
    assert set(re.findall(r"wgmma.mma_async.*m64n(\d+)k16", ptx)) == {str(form.tiles.BLOCK_M)}
    (figures,) = machine_code.of_triton([(made.cubin, made.shared)], "sm_90")
    assert figures.spills == 0
    (base, *_) = re.findall(r"mov\.\w+\s+(%r\d+), global_smem;", ptx)
    (begin, *_) = re.findall(r"(?:st\.shared|stmatrix)\S*\s+\[(%r\d+)\]", ptx)
    assert re.search(rf"add\.s32\s+{begin}, {base}, ", ptx)


def test_a_launch_has_whole_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its grid counts clusters, and Triton's C launcher is told of their size once."""
    form = next(f for f in CLUSTERS if f.cluster == (1, 4))
    given: list[Any] = []

    def noted(self: Any, *args: Any, grid: Any = None) -> None:
        given.append((self.meta["CLUSTER"], grid))

    monkeypatch.setattr(_launch.Launch, "__call__", noted)
    with forced(form):
        triton_kernels.gemm_bias_act(operand(300, 200), operand(200, 304))
    assert given == [(4, (form.tiles_of(300, 304) // 4, 1, 1))]


def test_a_kernel_starts_in_clusters_from_its_first_launch_on() -> None:
    """Without them its sums would be 0."""

    class Started(Exception):
        pass

    class Kernel:
        pre_run_hooks: tuple[Any, ...] = ()
        arg_names = ("CLUSTER",)
        compiled = SimpleNamespace(packed_metadata=(8, 1, 4096))

        def warmup(self, *args: Any, grid: Any, **meta: Any) -> Any:
            return self.compiled

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            assert self.compiled.packed_metadata == (8, 4, 4096)
            raise Started

    started = _launch.Launch(Kernel(), (3,), CLUSTER=4)
    with pytest.raises(Started):
        started._run(torch.device("cpu"), (3, 1, 1), ())


@pytest.mark.usefixtures("forms_to_lose")
def test_a_failed_launch_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a part of a GPU where a cluster has no place: other forms of Gluon's go on."""

    def refusing(*args: Any) -> None:
        raise RuntimeError("Triton Error [CUDA]: cluster misconfiguration")

    monkeypatch.setattr("triton_kernels.gemm.gluon.clusters.launch", refusing)
    a, b = operand(135, 3136), operand(3136, 2944, True)
    with compiling(90) as launches, _launch.multiprocessors(132):
        with pytest.warns(RuntimeWarning, match="cluster_kernel is not used.*misconfiguration"):
            triton_kernels.gemm_bias_act(a, b)
        triton_kernels.gemm_bias_act(a, b)
    assert [each.kernel for each in launches] == ["gemm_gluon_kernel"] * 2
    assert forms.CLUSTERS == {}
    assert not any(availability._tested.values())


# ---- results ----


@pytest.mark.gpu_only
@needs_hopper
@pytest.mark.parametrize("form", CLUSTERS, ids=named)
@pytest.mark.parametrize(("M", "N", "K"), [(324, 304, 200), (97, 301, 1096), (515, 72, 40)])
def test_against_float64(form: Configuration, M: int, N: int, K: int) -> None:
    """Tails in all dimensions, few and many steps, results by elements; with c, and with the
    pre-activation; b's rows along N and along K, and bfloat16 and float16."""
    g = torch.Generator("cuda").manual_seed(M)
    for dtype, across, addend in itertools.product((BF16, HALF), (False, True), (False, True)):
        a = torch.randn(M, K, device="cuda", generator=g).to(dtype).requires_grad_(not addend)
        b = (torch.randn(K, N, device="cuda", generator=g) * K**-0.5).to(dtype)
        b = b if across else b.t().contiguous().t()
        bias = torch.randn(N, device="cuda", generator=g).to(dtype)
        c = torch.randn(M, N, device="cuda", generator=g).to(dtype) if addend else None
        with forced(form):
            out = triton_kernels.gemm_bias_act(a, b, bias, act="gelu", c=c, alpha=0.5)
        want = 0.5 * (a.detach().double() @ b.double()) + bias.double()
        if c is None:
            saved = out.grad_fn.saved_tensors[0]  # type: ignore[union-attr]
            torch.testing.assert_close(saved.double(), want, rtol=2**-8, atol=2**-8)
        else:
            want += c.double()
        want = torch.nn.functional.gelu(want)
        torch.testing.assert_close(out.detach().double(), want, rtol=2**-8, atol=2**-8)


@pytest.mark.gpu_only
@needs_hopper
@pytest.mark.parametrize("form", CLUSTERS, ids=named)
def test_what_is_not_finite_stays_in_its_row_and_column(form: Configuration) -> None:
    """NaN and infinities in any program's share of a load; and no program writes another's tile."""
    M, N, K = 410, 456, 328
    a = torch.randint(-2, 3, (M, K), device="cuda").to(BF16)
    b = torch.randint(-2, 3, (N, K), device="cuda").to(BF16)
    rows, columns = range(3, M, 37), range(5, N, 41)
    for i, row in enumerate(rows):
        a[row, (i * 59) % K] = (torch.nan, torch.inf)[i % 2]
    for i, column in enumerate(columns):
        b[column, (i * 61) % K] = torch.nan
    with forced(form):
        out = triton_kernels.gemm_bias_act(a, b.t())
    want = a.double() @ b.t().double()
    assert torch.equal(out.double().nan_to_num(7e9, 8e9, 9e9), want.nan_to_num(7e9, 8e9, 9e9))


@pytest.mark.gpu_only
@needs_hopper
def test_graphs_streams_and_a_busy_gpu() -> None:
    """Programs of a cluster wait for each other, which must not depend on what else runs."""
    others = [torch.cuda.Stream() for _ in range(2)]
    products = []
    for i, form in enumerate(CLUSTERS):
        a = torch.randn(150 + i, 1000, device="cuda").to(BF16)
        b = torch.randn(600, 1000, device="cuda").to(BF16).t()
        with forced(form):
            products.append((form, a, b, triton_kernels.gemm_bias_act(a, b)))
    big = torch.randn(4096, 4096, device="cuda").to(BF16)
    torch.cuda.synchronize()
    for i in range(20):
        for k, stream in enumerate(others):
            with torch.cuda.stream(stream):
                big @ big
                form, a, b, want = products[(3 * i + k) % len(products)]
                with forced(form):
                    got = triton_kernels.gemm_bias_act(a, b)
                assert torch.equal(got, want)
    form, a, b, want = products[0]
    out = torch.empty_like(want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), forced(form):
        triton_kernels.gemm_bias_act(a, b, out=out)
    for _ in range(3):
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, want)


@pytest.mark.gpu_only
@needs_hopper
def test_calls_that_come_again() -> None:
    """Of the shapes that get clusters by themselves; the later calls are started without Triton's
    Python code."""
    for M, N, K in ((135, 2944, 3136), (94, 6952, 2008)):
        assert choose(problem(M, N, K), H200).cluster[0]
        weight = (torch.randn(N, K, device="cuda") * K**-0.5).to(BF16)
        for _ in range(6):
            x = torch.randn(M, K, device="cuda").to(BF16)
            out = triton_kernels.linear_act(x, weight, act="relu")
            want = (x.double() @ weight.double().t()).relu()
            torch.testing.assert_close(out.double(), want, rtol=2**-8, atol=2**-8)
