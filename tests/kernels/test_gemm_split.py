"""Products whose sums are split: their bits, whichever program of a tile comes last."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

import triton_kernels
from compare.timing.configurations import forced
from triton_kernels import interpreter
from triton_kernels.gemm import Configuration, Tiles, repacking, splitting
from triton_kernels.gemm.gluon.forms import FORMS, WIDE
from triton_kernels.interpreter import Launch, Observer, Program
from triton_kernels.interpreter.cross_compile import compiling

FEW_ROWS = Configuration(False, Tiles(16, 32, 32, 8, 4, 4), SPLIT=4)
LOW = Configuration(False, Tiles(64, 32, 64, 8, 4, 4), SPLIT=3)
SPLIT_GLUON = next(form for form in FORMS if form.tiles[:2] == (128, 192))._replace(SPLIT=4)
ORDERS: dict[str, Callable[[Sequence[Program]], Sequence[Program]]] = {
    "forward": lambda programs: programs,
    "reverse": lambda programs: programs[::-1],
    "random": lambda programs: random.Random(0).sample(programs, len(programs)),
}


class Ordered(Observer):
    """Runs the programs of every launch in another order."""

    def __init__(self, order: str) -> None:
        self._order = ORDERS[order]

    def order(self, launch: Launch, programs: Sequence[Program]) -> Sequence[Program]:
        return self._order(programs)


def operands(M: int, N: int, K: int, dtype: torch.dtype, a_t: bool, b_t: bool) -> list[Tensor]:
    g = torch.Generator().manual_seed(M)
    a = torch.randn(K, M, generator=g).t() if a_t else torch.randn(M, K, generator=g)
    b = torch.randn(N, K, generator=g).t() if b_t else torch.randn(K, N, generator=g)
    return [t.to(dtype) for t in (a, b * K**-0.5, torch.randn(N, generator=g))]


def product(form: Configuration, a: Tensor, b: Tensor, bias: Tensor, c: Tensor) -> Tensor:
    with forced(form):
        more = {"act": "silu", "alpha": 0.5, "beta": -2.0, "c": c}
        return triton_kernels.gemm_bias_act(a, b, bias, **more)


def right(out: Tensor, a: Tensor, b: Tensor, bias: Tensor, c: Tensor) -> bool:
    pre = 0.5 * (a.double() @ b.double()) + bias.double() - 2 * c.double()
    reference = torch.nn.functional.silu(pre)
    eps = torch.finfo(out.dtype).eps
    return bool(((out.double() - reference).abs() <= 2 * eps * (1 + reference.abs())).all())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("form", "shape", "dtype"),
    [
        (FEW_ROWS, (5, 72, 330), torch.float16),
        (FEW_ROWS, (1, 70, 330), torch.bfloat16),
        (FEW_ROWS, (20, 33, 201), torch.float32),
        (FEW_ROWS, (2, 40, 200), torch.float64),
        (LOW, (70, 72, 520), torch.bfloat16),
    ],
)
def test_parts_make_the_whole_in_every_order(
    form: Configuration, shape: tuple[int, int, int], dtype: torch.dtype, order: str
) -> None:
    for a_t, b_t in itertools.product((False, True), (False, True)):
        a, b, bias = operands(*shape, dtype, a_t, b_t)
        c = bias.expand(shape[0], -1)
        with triton_kernels.interpret():
            first = product(form, a, b, bias, c)
        with interpreter.interpreting(Ordered(order)):
            out = product(form, a, b, bias, c)
        assert right(out, a, b, bias, c)
        assert torch.equal(out, first)


def test_what_programs_leave_of_a_tile_in_gluon() -> None:
    """Two halves of whole parts in each consumer: of 80 rows six parts of 16."""
    of_80 = next(form for form in WIDE if form.tiles[:2] == (80, 128))
    assert of_80.left == 96 * 128
    for form in FORMS | WIDE:
        if form.ALTERNATE:  # is not split
            continue
        m, n, *_ = form.tiles
        assert m * n <= form.left <= 2 * m * n
        assert form.left == m * n or form.SUBTILES % 2 or form in WIDE


def test_more_parts_than_steps_of_the_sum() -> None:
    assert FEW_ROWS.parts(40) == 2
    assert FEW_ROWS.parts(32) == FEW_ROWS.parts(0) == 1
    a, b, bias = operands(5, 40, 40, torch.float16, False, True)
    with triton_kernels.interpret():
        assert right(product(FEW_ROWS, a, b, bias, bias[None]), a, b, bias, bias[None])


def test_an_interpreted_launch_that_ends_early_leaves_no_counts_behind() -> None:
    class Aborted(Exception):
        pass

    class Aborting(Observer):
        def wants(self, program: Program) -> bool:
            if program[0] == 5:
                raise Aborted
            return True

    a, b, bias = operands(5, 72, 330, torch.float16, False, True)
    with pytest.raises(Aborted), interpreter.interpreting(Aborting()):
        product(FEW_ROWS, a, b, bias, bias[None])
    with triton_kernels.interpret():
        assert right(product(FEW_ROWS, a, b, bias, bias[None]), a, b, bias, bias[None])


@pytest.mark.parametrize(
    ("M", "N", "K", "by_columns", "bytes_"),
    [(2, 72, 4424, False, 16), (2, 72, 4424, True, 16), (4, 3507, 2870, True, 4)],
)
def test_rows_of_whole_vectors_are_read_so(
    M: int, N: int, K: int, by_columns: bool, bytes_: int
) -> None:
    """8 elements, though Triton looks for 16; 2 where there are no more."""
    a = torch.empty(M, K, dtype=torch.bfloat16, device="meta")
    b = torch.empty(K, N, dtype=torch.bfloat16, device="meta")
    if by_columns:
        b = torch.empty(N, K, dtype=torch.bfloat16, device="meta").t()
    form = FEW_ROWS._replace(tiles=Tiles(16, 32, 128, 8, 4, 4))
    with compiling(90) as launches, forced(form):
        triton_kernels.gemm_bias_act(a, b)
    (made,) = launches
    assert made.error is None
    copies = re.findall(r"cp\.async\.c[ag].*?\], (0x[0-9a-f]+)", made.asm["ptx"])
    assert {int(size, 16) for size in copies} == {bytes_}


@pytest.mark.parametrize("turned", [(False, False), (True, True), (True, False)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_one_launch_copies_both_operands_to_rows_of_whole_cache_lines(
    dtype: torch.dtype, turned: tuple[bool, bool]
) -> None:
    a, b = torch.randn(21, 1037).to(dtype), torch.randn(70, 70).to(dtype)[:, :62]
    first, second = (a, turned[0]), (b, turned[1])
    with triton_kernels.interpret():
        copies = repacking.repacked(first, second)
        (alone,) = repacking.repacked(second)
    for copy, (matrix, turn) in zip((*copies, alone), (first, second, second)):
        assert torch.equal(copy, matrix.t() if turn else matrix)
        assert copy.stride(1) == 1
        assert copy.stride(0) * copy.element_size() % repacking.PITCH == 0


@pytest.mark.gpu_only
@pytest.mark.parametrize("form", [FEW_ROWS, LOW, SPLIT_GLUON], ids=["16", "64", "gluon"])
@pytest.mark.parametrize("how", ["streams", "graphs"])
def test_two_launches_at_once(form: Configuration, how: str) -> None:
    """On two streams; or of two graphs that were captured on one stream."""
    if form.gluon and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("Gluon's kernel is for compute capability 9.0")
    shape = (16 if form is FEW_ROWS else 100, 768, 3072)
    sets = [[t.cuda() for t in operands(*shape, torch.bfloat16, False, True)] for _ in range(2)]
    outs = [torch.empty(shape[0], 768, dtype=torch.bfloat16, device="cuda") for _ in sets]

    def call(i: int) -> None:
        with forced(form):
            triton_kernels.gemm_bias_act(*sets[i], act="silu", out=outs[i])

    for i in range(2):
        call(i)
    wanted = [out.clone() for out in outs]
    streams = [torch.cuda.Stream() for _ in sets]
    calls: list[Callable[[], None]] = [lambda: call(0), lambda: call(1)]
    if how == "graphs":
        graphs = [torch.cuda.CUDAGraph() for _ in sets]
        for i, graph in enumerate(graphs):
            with torch.cuda.graph(graph, stream=streams[0]):
                call(i)
        calls = [graph.replay for graph in graphs]
    for _ in range(100):
        for out in outs:
            out.fill_(torch.nan)
        torch.cuda.synchronize()
        torch.cuda._sleep(100_000)
        for stream, each in zip(streams, calls):
            with torch.cuda.stream(stream):
                for _ in range(3):
                    each()
        torch.cuda.synchronize()
        assert all(map(torch.equal, outs, wanted))
    assert all(not counters.any() for counters in splitting._counters.values())


@pytest.mark.gpu_only
def test_replayed_calls_on_two_streams() -> None:
    """Each with counters of its own: what one leaves half counted, the other would add to."""
    x, weight, *_ = (t.cuda() for t in operands(16, 768, 3072, torch.bfloat16, False, True))
    weight = weight.t()
    want = triton_kernels.linear_act(x, weight, act="silu")
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    for _ in range(100):
        torch.cuda._sleep(100_000)
        got = []
        for stream in streams:
            with torch.cuda.stream(stream):
                got += [triton_kernels.linear_act(x, weight, act="silu") for _ in range(3)]
        torch.cuda.synchronize()
        assert all(torch.equal(each, want) for each in got)
