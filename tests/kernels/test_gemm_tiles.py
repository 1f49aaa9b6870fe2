"""Which kernel a matrix product gets, and both kernels in every way of cutting it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import triton_kernels
from compare.cases import FLOATS, Case
from compare.checking.implementations import implementations, is_quick
from compare.ops import SPECS
from triton_kernels import _launch
from triton_kernels._counts import cdiv
from triton_kernels.gemm import GPUS, Configuration, Gpu, Problem, Tiles, choose, few_rows, launch
from triton_kernels.gemm.choice import (
    BRIEF_TILES,
    FEW_TILES,
    FLOAT64_TILES,
    PARTS_TILES,
    POINTER_TILES,
    POINTER_TILES_64,
    SHIPPED,
    TMA_TILES,
    TmaTiles,
    fitting,
    tiles_for,
)
from triton_kernels.gemm.gluon import availability
from triton_kernels.interpreter import cross_compile

H200 = GPUS["sm_90"]


@contextlib.contextmanager
def recorded(capability: int = 90) -> Iterator[list[tuple[str, Any]]]:
    """Kernels and options of the launches inside, which are for that GPU, do not run, and are in
    Triton's language proper."""
    launches: list[tuple[str, Any]] = []
    with (
        pytest.MonkeyPatch.context() as patch,
        cross_compile.compiling(capability),
        availability.only("tl"),
    ):
        patch.setattr(
            cross_compile,
            "launch",
            lambda kernel, grid, *args, **meta: launches.append((kernel.fn.__name__, meta)),
        )
        yield launches


def launched(*arguments: Any, capability: int = 90, **options: Any) -> list[tuple[str, Any]]:
    """The same of one call."""
    with recorded(capability) as launches:
        triton_kernels.gemm_bias_act(*arguments, **options)
    return launches


def meta(rows: int, columns: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(rows, columns, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("M", "N", "K", "dtype", "capability", "options", "kernel"),
    [
        (128, 128, 256, torch.bfloat16, 90, {}, "gemm_tma_kernel"),
        (128, 128, 128, torch.bfloat16, 90, {}, "gemm_bias_act_kernel"),  # short sums
        (128, 128, 128, torch.float16, 100, {}, "gemm_tma_kernel"),
        (128, 128, 128, torch.bfloat16, 80, {}, "gemm_bias_act_kernel"),
        (128, 128, 128, torch.float32, 90, {}, "gemm_bias_act_kernel"),
        (128, 128, 128, torch.bfloat16, 90, {"out_dtype": torch.float32}, "gemm_bias_act_kernel"),
        (32, 128, 128, torch.bfloat16, 90, {}, "gemm_bias_act_kernel"),
        (128, 128, 0, torch.bfloat16, 90, {}, "gemm_bias_act_kernel"),
    ],
)
def test_descriptors_where_the_gpu_and_the_dtypes_allow_them(
    M: int,
    N: int,
    K: int,
    dtype: torch.dtype,
    capability: int,
    options: dict[str, Any],
    kernel: str,
) -> None:
    ((name, _),) = launched(meta(M, K, dtype), meta(K, N, dtype), capability=capability, **options)
    assert name == kernel


@pytest.mark.parametrize(
    ("M", "N", "tiles"),
    [  # measured on an H200 as the fastest, or within 1 % of it
        (64, 4096, (64, 32)),
        (64, 14336, (64, 128)),
        (128, 4096, (64, 64)),
        (256, 4096, (64, 128)),
        (1024, 1024, (64, 128)),
        (512, 4096, (128, 128)),
        (333, 4097, (128, 128)),
        (2048, 2048, (128, 256)),
        (8192, 8192, (128, 256)),
    ],
)
def test_the_cheapest_waves_win(M: int, N: int, tiles: tuple[int, int]) -> None:
    chosen = choose(Problem(M, N, 1024, torch.bfloat16, torch.bfloat16), H200)
    assert chosen.tma
    assert chosen.tiles[:2] == tiles
    assert chosen.tiles_of(M, N) == -(-M // tiles[0]) * -(-N // tiles[1])


@pytest.mark.parametrize(
    ("M", "K", "c", "group", "warps", "stages"),
    [  # measured on an H200: where the loop is long, four warps and a stage more
        (512, 2048, False, 16, 8, 4),
        (512, 4096, False, 8, 4, 5),
        (512, 4096, True, 16, 8, 4),
        (8192, 4096, False, 16, 8, 4),
        (8192, 4096, True, 16, 8, 3),
    ],
)
def test_warps_and_stages(M: int, K: int, c: bool, group: int, warps: int, stages: int) -> None:
    more = {"c": meta(M, 4096)} if c else {}
    ((_, how),) = launched(meta(M, K), meta(K, 4096), **more)
    assert (how["GROUP_M"], how["num_warps"], how["num_stages"]) == (group, warps, stages)


HALVES = ("float16", "bfloat16")
OTHERS = ("repack_kernel", "split_kernel", "gemm_again_kernel")  # that are cut in their own ways


def problem(M: int, N: int, dtype: str, precision: str) -> Problem:
    return Problem(M, N, 1, getattr(torch, dtype), getattr(torch, dtype), precision)


def tables(dtype: str) -> set[tuple[Any, ...]]:
    """Every way of cutting that gemm.choice has for a dtype: precision, subtiles, tiles."""
    sizes = [16 * 2**i for i in range(12)]
    precisions = ("ieee", "tf32", "tf32x3") if dtype == "float32" else ("ieee",)
    cuts: set[tuple[Any, ...]] = {
        (precision, 0, *tiles_for(problem(M, N, dtype, precision), H200))
        for M, N, precision in itertools.product(sizes, sizes, precisions)
    }
    if dtype == "float32":
        cuts |= {(None, 0, *tiles) for tiles in PARTS_TILES}
    if dtype == "float64":
        return {("ieee", 0, *tiles) for tiles in FLOAT64_TILES}
    for wanted in () if dtype in HALVES else FEW_TILES:
        tiles = Configuration(False, wanted).of_dtype(getattr(torch, dtype)).tiles
        cuts.add(("tf32", 0, *tiles))
    if dtype in HALVES:
        cuts = {each for each in cuts if each[2] > 32}
        ways = itertools.product((1, 2, 4, 8, 16, 32), (False, True), (False, True))
        few = {tiles for way in ways for tiles in few_rows.tiles(*way)}
        others = (*POINTER_TILES, *POINTER_TILES_64, *BRIEF_TILES, *FEW_TILES, *few)
        cuts |= {("ieee", 0, *tiles) for tiles in others}
    for row, K, c in itertools.product(TMA_TILES, (8, SHIPPED.long), ("", "even")):
        kind = getattr(torch, dtype)
        of_row = Problem(64, 64, K, kind, kind, "tf32" if kind == torch.float32 else "ieee", c)
        chosen = fitting(row.for_problem(of_row), of_row, H200)
        if chosen is not None:  # else another row's tiles are taken
            cuts.add((None, chosen.SUBTILES, *chosen.tiles))
    return cuts


def quick_launches(dtype: str) -> list[tuple[Case, dict[str, Any]]]:
    """What the quick cases that take reasonable time on a CPU launch."""
    spec = SPECS["gemm_bias_act"]
    (implementation,) = implementations(spec, ["triton-interpreted"])
    pairs = []
    with recorded() as launches:
        for case in spec.cases(dtype, "quick"):
            if is_quick(implementation, spec, case) or torch.cuda.is_available():
                arguments, options = spec.inputs(case, torch.device("meta"))
                spec.called(case, spec.triton)(*arguments, **options)
                pairs += [(case, options) for name, options in launches if name not in OTHERS]
                launches.clear()
    return pairs


def cut(options: dict[str, Any]) -> tuple[Any, ...]:
    tiles = (options[name] for name in Tiles._fields)
    return options.get("PRECISION"), options.get("SUBTILES", 0), *tiles


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_quick_check_reaches_every_tile_on_a_gpu(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert {cut(options) for _, options in quick_launches(dtype)} == tables(dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_quick_check_reaches_every_tile_interpreted(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Warps and stages are nothing to the interpreter, nor is bfloat16's launch another one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    launches = quick_launches(dtype)
    assert {cut(options)[:-2] for _, options in launches} == {each[:-2] for each in tables(dtype)}


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_quick_check_reaches_every_order_of_tiles(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows of tiles than a group has, with a rest and several columns; programs with several
    tiles, whole and halved ones."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    grouped, several = set(), set()
    for case, o in quick_launches(dtype):
        rows, columns = cdiv(case.shape[0], o["BLOCK_M"]), cdiv(case.shape[1], o["BLOCK_N"])
        if rows > o["GROUP_M"] and rows % o["GROUP_M"] and columns > 1:
            grouped.add("PROGRAMS" in o)
        if "PROGRAMS" in o and rows * columns > o["PROGRAMS"]:
            several.add((o["SUBTILES"], o["OUT_TMA"]))
    assert grouped == ({True, False} if dtype in HALVES else {False})
    assert several >= {"float16": {(1, True), (2, True), (2, False)}, "bfloat16": {(2, True)}}.get(
        dtype, set()
    )


def test_products_of_other_sizes_take_the_same_kernel() -> None:
    """Of so few tiles that there is a program each, too: a number of programs that the compiler
    knows would be another kernel for every number of rows."""
    weight = torch.empty(768, 512, dtype=torch.bfloat16, device="meta")
    for allowed, name in (("tl", "gemm_tma_kernel"), ("any", "gemm_gluon_kernel")):
        kernels = set()
        for rows in (256, 257, 300):
            x = torch.empty(rows, 512, dtype=torch.bfloat16, device="meta")
            with availability.only(allowed), cross_compile.compiling(90) as launches:
                triton_kernels.linear_act(x, weight, act="relu")
            kernels |= {(launch.kernel, launch.cubin) for launch in launches}
        assert [each for each, _ in kernels] == [name]


def operand(rows: int, columns: int, dtype: torch.dtype, stored: str) -> Tensor:
    """Random numbers, stored by rows or columns, or so that no descriptor takes them."""
    g = torch.Generator().manual_seed(rows)
    if stored == "by columns":
        return torch.randn(columns, rows, generator=g).to(dtype).t()
    if stored == "strided":
        return torch.randn(rows, 2 * columns, generator=g).to(dtype)[:, ::2]
    if stored == "odd rows":
        return torch.randn(rows, columns + 1, generator=g).to(dtype)[:, :columns]
    if stored == "odd columns":
        return torch.randn(columns, rows + 1, generator=g).to(dtype)[:, :rows].t()
    if stored == "one row repeated":
        return torch.randn(1, columns, generator=g).to(dtype).expand(rows, columns)
    return torch.randn(rows, columns, generator=g).to(dtype)


def right(out: Tensor, a: Tensor, b: Tensor, bias: Tensor, c: Tensor) -> bool:
    pre = 0.5 * (a.double() @ b.double()) + bias.double() - 2 * c.double()
    reference = torch.nn.functional.silu(pre)
    eps = torch.finfo(out.dtype).eps
    return bool(((out.double() - reference).abs() <= 2 * eps * (1 + reference.abs())).all())


def choice_of(row: TmaTiles) -> Callable[[Problem, Gpu], Configuration]:
    """A chooser that knows one row of the table."""
    return lambda problem, gpu: row.for_problem(problem)


@pytest.mark.parametrize("choice", TMA_TILES, ids=lambda c: f"{c.tiles.BLOCK_M}x{c.tiles.BLOCK_N}")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_tile_and_more_tiles_than_programs(
    monkeypatch: pytest.MonkeyPatch, choice: TmaTiles, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(launch, "choose", choice_of(choice))
    M, N, K = 2 * choice.tiles.BLOCK_M + 5, choice.tiles.BLOCK_N + 24, choice.tiles.BLOCK_K + 8
    a, b = operand(M, K, dtype, "by rows"), operand(K, N, dtype, "by columns")
    bias, c = operand(1, N, dtype, "by rows")[0], operand(M, 1, dtype, "by rows")
    with triton_kernels.interpret(), _launch.multiprocessors(2):
        out = triton_kernels.gemm_bias_act(a, b, bias, act="silu", alpha=0.5, beta=-2.0, c=c)
    assert right(out, a, b, bias, c)


@pytest.mark.gpu_only
@pytest.mark.parametrize("choice", TMA_TILES, ids=lambda c: f"{c.tiles.BLOCK_M}x{c.tiles.BLOCK_N}")
def test_every_tile_on_a_gpu(monkeypatch: pytest.MonkeyPatch, choice: TmaTiles) -> None:
    tall, wide = 24, 8
    monkeypatch.setattr(launch, "choose", choice_of(choice))
    M, N = tall * choice.tiles.BLOCK_M - 5, wide * choice.tiles.BLOCK_N - 8
    wrong = []
    for dtype, K, with_c in itertools.product(
        (torch.float16, torch.bfloat16), (200, SHIPPED.long + 8), (False, True)
    ):
        a, b = operand(M, K, dtype, "by columns"), operand(K, N, dtype, "by rows")
        bias, c = operand(1, N, dtype, "by rows")[0], operand(M, 1, dtype, "by rows")
        a, b, bias, c = a.cuda(), b.cuda(), bias.cuda(), c.cuda() if with_c else torch.zeros_like(c)
        more = {"beta": -2.0, "c": c} if with_c else {}
        out = triton_kernels.gemm_bias_act(a, b, bias, act="silu", alpha=0.5, **more)
        if not right(out, a, b, bias, c.cuda()):
            wrong.append((dtype, K, with_c))
    assert not wrong


STORED = ("by rows", "by columns", "strided", "odd rows", "odd columns", "one row repeated")


@pytest.mark.parametrize("a_stored", STORED)
@pytest.mark.parametrize("b_stored", STORED)
def test_operands_that_no_descriptor_takes_are_copied(a_stored: str, b_stored: str) -> None:
    a = operand(40, 72, torch.bfloat16, a_stored)
    b = operand(72, 48, torch.bfloat16, b_stored)
    bias, c = torch.ones(48, dtype=torch.bfloat16), torch.ones(40, 48, dtype=torch.bfloat16)
    with triton_kernels.interpret():
        out = triton_kernels.gemm_bias_act(a, b, bias, act="silu", alpha=0.5, beta=-2.0, c=c)
    assert right(out, a, b, bias, c)


@pytest.mark.parametrize("N", [48, 50])
@pytest.mark.parametrize("offset", [0, 1])
def test_results_that_no_descriptor_takes(N: int, offset: int) -> None:
    a, b = operand(40, 72, torch.float16, "by rows"), operand(72, N, torch.float16, "by rows")
    memory = torch.full((40, N + 8), torch.nan, dtype=torch.float16)
    out = memory[:, offset : N + offset]
    bias, c = torch.zeros(N, dtype=torch.float16), torch.ones(1, dtype=torch.float16)
    with triton_kernels.interpret():
        triton_kernels.gemm_bias_act(a, b, bias, act="silu", alpha=0.5, beta=-2.0, c=c, out=out)
    assert right(out, a, b, bias, c)
    assert memory[:, N + offset :].isnan().all()
    assert memory[:, :offset].isnan().all()


@pytest.mark.gpu_only
def test_more_rows_than_32_bits_address() -> None:
    """2³¹ elements in a and in out; the tail must not have wrapped around."""
    M, N, K = 2**26 + 100, 40, 40
    a = torch.empty(M, K, dtype=torch.bfloat16, device="cuda").normal_()
    b = torch.empty(K, N, dtype=torch.bfloat16, device="cuda").normal_()
    out = triton_kernels.gemm_bias_act(a, b, act="relu")
    for rows in (slice(0, 1000), slice(M // 2, M // 2 + 1000), slice(M - 1000, M)):
        reference = torch.relu(a[rows].double() @ b.double())
        torch.testing.assert_close(out[rows].double(), reference, rtol=2**-8, atol=1e-4)
