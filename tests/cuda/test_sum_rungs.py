"""The rungs of sums: right for awkward shapes and layouts, the same bits at every call, right when
kept for other sizes; what each refuses, and what "auto" takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import cuda_reference
from compare.cases import Case, Guarded
from compare.checking.implementations import MODES
from compare.checking.running import GuardedAllocations
from compare.ops import SPECS
from compare.specs.sums import any_order
from compare.timing import providers
from cuda_reference import _launch, _sum_rungs
from cuda_reference._sum_rungs import dimensions

MODE = pytest.mark.parametrize("mode", ["cuda-host", "cuda-gpu"], indirect=True)
RUNGS = _sum_rungs.RUNGS
HALF, BRAIN, FLOAT = torch.float16, torch.bfloat16, torch.float32
NARROW = (HALF, BRAIN, FLOAT)


@pytest.fixture
def device(mode: str) -> torch.device:
    return torch.device(MODES[mode][1])


def made(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(device, dtype)


def layouts(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Iterator[Tensor]:
    """Matrices of the shape: dense, from an odd element, with pitches that are whole packs and that
    are not, by columns, every second column, and one row or column that repeats."""
    rows, columns = shape
    yield made(shape, dtype, device)
    yield made((rows * columns + 1,), dtype, device)[1:].view(shape)
    yield made((rows, -(-columns // 8) * 8 + 8), dtype, device)[:, :columns]
    yield made((rows, columns + 3), dtype, device)[:, 2 : 2 + columns]
    yield made((columns, rows), dtype, device).t()
    yield made((rows, 2 * columns), dtype, device)[:, ::2]
    yield made((1, columns), dtype, device).expand(shape)
    yield made((rows, 1), dtype, device).expand(shape)
    yield made((1, 1), dtype, device).expand(shape)


def judge(x: Tensor, shape: tuple[int, ...], **options: Any) -> None:
    """Every rung is within the bound of additions in any order, and has the same bits twice."""
    factor, dtype = options.get("factor", 1), options.get("dtype", x.dtype)
    wide = x.double().sum_to_size(shape) * float(torch.tensor(factor, dtype=FLOAT))
    magnitude = x.double().abs().sum_to_size(shape) * abs(factor)
    addends = max(1, x.numel() // max(1, wide.numel()))
    bound = any_order(wide, magnitude, addends, FLOAT, dtype)
    for rung in RUNGS:
        sums = cuda_reference.sum_to(x, shape, variant=rung, **options)
        told = rung, x.dtype, tuple(x.shape), x.stride(), shape
        assert (sums.shape, sums.dtype) == (shape, dtype), told
        assert bool(((sums.double() - wide).abs() <= bound).all()), told
        assert torch.equal(sums, cuda_reference.sum_to(x, shape, variant=rung, **options)), told


# One row and one column; rows of no, one and several packs, of odd length, of a block and more; so
# many that rows are merged, with a remainder, and that there are parts.
MATRICES = [(1, 1), (1, 300), (300, 1), (3, 2), (7, 13), (33, 129), (5, 2051), (2065, 3)]
MATRICES += [(1030, 33), (700, 64), (300, 136), (40, 8), (9, 16), (3089, 5)]


@MODE
@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("shape", MATRICES, ids=str)
def test_sums_of_matrices(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
    for x in layouts(shape, dtype, device):
        for to in (shape[1:], (shape[0], 1), ()):
            judge(x, to)


@MODE
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_sums_of_other_dimensions(dtype: torch.dtype, device: torch.device) -> None:
    cases: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((), ()),
        ((9,), ()),
        ((4, 5, 200), (5, 200)),
        ((4, 5, 200), (4, 1, 200)),
        ((6, 7, 8, 9), (1, 7, 1, 9)),
        ((6, 7, 8, 9), (6, 1, 8, 1)),
        ((32, 5, 7, 7), (5, 1, 1)),  # channels, whose rows begin anywhere
        ((16, 5, 14, 16), (1, 5, 1, 1)),
        ((1, 16, 6, 136), (1, 16, 1, 136)),
        ((7, 13), (7, 13)),
    ]
    for shape, to in cases:
        judge(made(shape, dtype, device), to, factor=0.3)
    nhwc = made((8, 6, 5, 7), dtype, device).to(memory_format=torch.channels_last)
    judge(nhwc, (6, 1, 1))
    judge(made((9, 40), dtype, device), (40,), dtype=HALF if dtype == FLOAT else FLOAT)


@MODE
def test_sums_of_nothing_are_zero(device: torch.device) -> None:
    for rung in RUNGS:
        for shape in ((0, 3), (4, 0)):
            x = torch.empty(shape, device=device)
            for to in (shape[1:], (shape[0], 1), ()):
                sums = cuda_reference.sum_to(x, to, variant=rung)
                assert torch.equal(sums, torch.zeros(to, device=device))


@MODE
def test_sums_go_where_out_lies(device: torch.device) -> None:
    """By one pass and by two, also into gaps and columns."""
    for shape, to in (((600, 72), (72,)), ((3, 30000), (3, 1)), ((300, 5, 3, 4), (1, 5, 1, 4))):
        x = torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(0)).float()
        right = x.sum_to_size(to).to(device)
        for rung in RUNGS:
            memory = torch.full((*to, 2), 7.0, device=device)
            cuda_reference.sum_to(x.to(device), to, variant=rung, out=memory[..., 0])
            assert torch.equal(memory[..., 0], right), (rung, shape)
            assert set(memory[..., 1].flatten().tolist()) == {7}


@MODE
@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("shape", [(0, 5), *MATRICES], ids=str)
def test_act_backward(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
    """All rungs give the same dx, in float32 the plain kernel's. Results are within the bound."""
    spec = SPECS["act_backward"]
    every = list(layouts(shape, dtype, device)) if shape[0] else [made(shape, dtype, device)]
    for at, grad in enumerate(every):
        saved = every[at if at < 5 else 0].flip(0).clamp(-1, 1)
        for act, bias in (("gelu", True), ("relu", True), ("tanh", False)):
            short = None if dtype == torch.float32 else "lanes"
            right, _ = cuda_reference.act_backward(grad, saved, act, bias=bias, variant=short)
            oracle = spec.oracle(grad, saved, act, bias=bias)
            bound = spec.bound("cuda/rung", ((grad, saved, act), {"bias": bias}), oracle, dtype)
            assert bool(((right.double() - oracle[:-1]).abs() <= bound[:-1]).all()), (act, dtype)
            for rung in RUNGS:
                told = rung, act, shape, grad.stride(), dtype
                results, again = (
                    cuda_reference.act_backward(grad, saved, act, bias=bias, variant=rung)
                    for _ in range(2)
                )
                assert torch.equal(results[0], right), told
                assert all(map(torch.equal, results, again)), told
                assert results[1].shape == (shape[1:] if bias else (0,)), told
                if bias:
                    errors = (results[1].double() - oracle[-1]).abs()
                    assert bool((errors <= bound[-1]).all()), told


@MODE
@pytest.mark.parametrize("rung", RUNGS)
def test_act_backward_in_place_and_beside_gaps(rung: str, device: torch.device) -> None:
    grad, saved = made((700, 72), HALF, device), made((700, 72), HALF, device)
    right = cuda_reference.act_backward(grad, saved, "silu", variant=rung)
    memory = torch.full((700, 80), 7.0, dtype=HALF, device=device)
    out = memory[:, :72], torch.empty(144, dtype=HALF, device=device)[::2]
    cuda_reference.act_backward(grad, saved, "silu", variant=rung, out=out)
    assert torch.equal(out[0], right[0])
    # Rows of another pitch are not merged, so sums are added in another order.
    torch.testing.assert_close(out[1], right[1], rtol=2e-3, atol=2e-3)
    assert set(memory[:, 72:].flatten().tolist()) == {7}
    cuda_reference.act_backward(grad, saved, "silu", variant=rung, out=(grad, right[1]))
    assert torch.equal(grad, right[0])


@MODE
def test_the_workspace_is_as_large_as_what_is_written(device: torch.device) -> None:
    """Where only its size limits the parts: blocks of many columns, and rows that are cut."""
    for shape, to in (((60, 1024), (1024,)), ((63, 4096), (4096,)), ((70, 5, 900), (5, 1))):
        x = torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(1)).to(device, HALF)
        for kind in (x, x.float(), x.repeat(9, *[1] * (x.dim() - 1))):
            guards: list[Guarded] = []
            with GuardedAllocations(guards, 1 << 30):
                sums = cuda_reference.sum_to(kind, to, dtype=FLOAT, variant="two_pass")
            assert len(guards) >= 2  # the result's, and the workspace's
            assert all(guard.intact() for guard in guards), (shape, kind.dtype)
            assert torch.equal(sums.double(), kind.double().sum_to_size(to))


# ---- kept calls ----


@MODE
@pytest.mark.parametrize("to", ["rows", "columns", "all"])
def test_kept_calls_are_right_for_other_shapes(
    to: str, device: torch.device, checks: list[str]
) -> None:
    """One launch is kept for all: with one pass and two, with merged rows, packs and elements."""
    kept = 0
    for rows, columns in [(40, 24), (41, 24), *MATRICES, (9000, 2), (2, 30000), (64, 512)]:
        x = torch.randint(-4, 5, (rows, columns)).float().to(device)
        shape = {"rows": (rows, 1), "columns": (columns,), "all": ()}[to]
        for factor in (1, 0.5):
            checks.clear()
            sums = cuda_reference.sum_to(x, shape, factor=factor, variant="two_pass")
            kept += not checks
            assert torch.equal(sums, x.sum_to_size(shape) * factor), (rows, columns)
    assert kept >= 20


@MODE
def test_a_kept_call_has_a_workspace_of_its_own(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is allocated for each launch, and not held after it."""
    lent = []
    enter = _launch.Workspace.__enter__

    def noted(self: _launch.Workspace) -> None:
        enter(self)
        lent.append((self, self.value))

    monkeypatch.setattr(_launch.Workspace, "__enter__", noted)
    grad = made((700, 40), FLOAT, device)
    for _ in range(4):
        cuda_reference.act_backward(grad, grad, "gelu", variant="two_pass")
        workspace, address = lent[-1]
        assert address
        assert (workspace.value, workspace._memory) == (None, None)
    assert len(lent) == 4
    assert lent[2][0] is lent[3][0]  # the call was kept


# ---- what each takes ----


@pytest.mark.parametrize("rung", RUNGS)
def test_what_a_rung_cannot_do_is_refused(rung: str) -> None:
    x = torch.ones(2, 3, 2, 3, 2, 3)
    with pytest.raises(ValueError, match=f"^sum_to... variant '{rung}' takes at most 2 .* has 3"):
        cuda_reference.sum_to(x, (1, 3, 1, 3, 1, 3), variant=rung)
    with pytest.raises(ValueError, match=f"'{rung}' does not take torch.float64 .'x'"):
        cuda_reference.sum_to(x.double(), (), variant=rung)
    with pytest.raises(ValueError, match=f"'{rung}' does not take torch.float64 .'out'"):
        cuda_reference.sum_to(x, (), dtype=torch.float64, variant=rung)
    grad = torch.ones(3, 4)
    with pytest.raises(
        ValueError, match=f"^act_backward... variant '{rung}' takes one dtype.*saved"
    ):
        cuda_reference.act_backward(grad, grad.half(), "relu", variant=rung)
    with pytest.raises(ValueError, match="'explain' is for variant 'auto'"):
        cuda_reference.sum_to(x, (), variant=rung, explain=True)


def test_unknown_variants_name_those_that_there_are() -> None:
    x = torch.ones(3, 4)
    for call in (
        lambda: cuda_reference.sum_to(x, (4,), variant="stream"),
        lambda: cuda_reference.act_backward(x, x, "relu", variant="stream"),
    ):
        with pytest.raises(ValueError, match=r"'stream'.*|.*'two_pass'.*'auto'") as caught:
            call()
        for name in (*RUNGS, "auto"):
            assert repr(name) in str(caught.value)


@MODE
def test_auto_is_two_pass_where_it_fits(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launched = []
    launch = _launch.launch

    def noted(stem: str, symbol: str, *rest: Any, **named: Any) -> None:
        launched.append(symbol)
        launch(stem, symbol, *rest, **named)

    monkeypatch.setattr(_launch, "launch", noted)
    for op, call in {
        "sum_to": lambda x, **o: cuda_reference.sum_to(x, (24,), **o),
        "act_backward": lambda x, **o: cuda_reference.act_backward(x, x, "relu", **o)[1],
    }.items():
        for dtype, rung in ((FLOAT, "two_pass"), (torch.float64, None)):
            x = made((300, 24), dtype, device)
            launched.clear()
            sums = call(x, variant="auto", explain=True)
            assert launched == [f"{op}_rung" if rung else op]
            told = capsys.readouterr().out
            name = repr(rung) if rung else "the plain kernel"
            assert told.startswith(f"{op}(): variant 'auto' is {name}: ")
            assert ("does not take torch.float64" in told) == (rung is None)
            assert torch.equal(sums, call(x, variant=rung))
            assert torch.equal(sums, call(x, variant="auto"))
            assert not capsys.readouterr().out


# ---- what is told of them ----


@pytest.mark.parametrize("op", ["sum_to", "act_backward"])
def test_rungs_are_listed(op: str) -> None:
    rungs = cuda_reference.capabilities(op).rungs
    assert [(rung.name, rung.auto) for rung in rungs] == [
        (name, name == "two_pass") for name in RUNGS
    ]
    assert not any(rung.dense for rung in rungs)
    assert [rung.score is None for rung in rungs] == [not rung.auto for rung in rungs]
    assert [rung.source == "not measured" for rung in rungs] == [not rung.auto for rung in rungs]
    assert SPECS[op].best_rungs() == set(RUNGS)  # all are in the quick check
    case = Case(op, "float32", (64, 64), options=dict(SPECS[op].default_options))
    for wanted, names in (((), []), (("ours",), [f"cuda/{name}" for name in RUNGS])):
        ours = [n for n in providers.names(SPECS[op], case, wanted) if n.startswith("cuda")]
        assert ours == ["cuda", *names, "cuda/auto"]


def test_rungs_say_what_they_refuse() -> None:
    def meta(*shape: int, dtype: torch.dtype = FLOAT) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    sums, products = (
        cuda_reference.capabilities(op).rungs[0].refuses for op in ("sum_to", "act_backward")
    )
    assert not sums({"x": meta(3, 4), "out": meta(4, dtype=HALF)})
    assert "'out'" in sums({"x": meta(3, 4), "out": meta(4, dtype=torch.float64)})
    assert "at most 2" in sums({"x": meta(2, 3, 2, 3, 2, 3), "out": meta(1, 3, 1, 3, 1, 3)})
    # A row of blocks has no more than 2³¹ − 1.
    assert not sums({"x": meta(3, 2**32), "out": meta(2**32)})
    assert not sums({"x": meta(2**30 - 1, 3, 2), "out": meta(2**30 - 1, 1, 2)})
    assert "at most 2147483647 results" in sums({"x": meta(2**30, 3, 2), "out": meta(2**30, 1, 2)})
    matrix = meta(3, 4)
    assert not products({"grad": matrix, "saved": matrix.t().t(), "dx": meta(4, 3).t()})
    assert "'dx'" in products({"grad": matrix, "saved": matrix, "dx": matrix.half()})


def test_dimensions_that_lie_together_are_one() -> None:
    x = torch.ones(4, 1, 5, 6, 7)
    assert dimensions(x, torch.empty(6, 7)) == ([(42, 1, 1)], [(20, 42)])
    out = torch.empty(6, 14)[:, ::2]
    assert dimensions(x, out)[0] == [(42, 1, 2)]
    out = torch.empty(6, 9)[:, :7]  # here those that are kept do not, in the result
    assert dimensions(x, out)[0] == [(7, 1, 1), (6, 7, 9)]
    assert dimensions(x.expand(4, 3, 5, 6, 7), torch.empty(1))[1] == [(840, 1), (3, 0)]
    assert dimensions(torch.ones(0, 3), torch.empty(3)) == ([(3, 1, 1)], [(0, 1)])


def test_gradients_of_a_rung_are_those_of_the_plain_kernel() -> None:
    leaves = [made((40, 24), FLOAT, torch.device("cpu")).requires_grad_() for _ in range(2)]
    found = []
    for variant in (None, "two_pass"):
        dx, sums = cuda_reference.act_backward(*leaves, "gelu", variant=variant)
        total = cuda_reference.sum_to(dx, (24,), variant=variant)
        found.append(torch.autograd.grad((total * sums).sum(), leaves))
    for mine, other in zip(*found):
        torch.testing.assert_close(mine, other)
