"""Scores that are not certain are measured when a plan is made: on a GPU that is this CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import triton_kernels as tk
from triton_kernels import _launch
from triton_kernels._fusion import Match, Problem
from triton_kernels._measured import RATES, SHIPPED_OF
from triton_kernels.gemm import GPUS, rivals
from triton_kernels.graph import capabilities, planning, racing
from triton_kernels.graph.capabilities import ESTIMATED, SHIPPED, TIMED, Verdict
from triton_kernels.tuning import stopwatch

pytestmark = pytest.mark.usefixtures("fresh")

M, N, K = 24, 16, 32


class Watch:
    """Times what it is told; keeps what the calls return."""

    times = hot = (10.0, 20.0)
    results: list[list[Tensor]]

    def __init__(self, gpu: Any, device: torch.device) -> None: ...

    def medians(self, calls: Sequence[Callable[[], Tensor]]) -> list[float]:
        Watch.results.append([call() for call in calls])
        return [*Watch.times]

    def in_a_row(self, calls: Sequence[Callable[[], Tensor]], microseconds: float) -> list[float]:
        assert microseconds == min(Watch.times)
        return [*Watch.hot]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch, cpu: torch.device) -> type[Watch]:
    """Interpreted; every product is doubtful and can be timed."""
    monkeypatch.setattr(stopwatch, "Stopwatch", Watch)
    monkeypatch.setattr(racing, "_possible", lambda match, problem: True)
    monkeypatch.setattr(racing, "doubtful", lambda verdict, least, trained: least > 0)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)  # torch asks for its type
    monkeypatch.setattr(racing, "_speeds", {})
    monkeypatch.setattr(Watch, "times", (10.0, 20.0))
    Watch.results = []
    return Watch


def tensors() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.randn(M, K), torch.randn(N, K), torch.randn(N), torch.randn(M, N)


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "linear_gelu": lambda x, w, b, c: F.gelu(F.linear(x, w, b)),
    "a residual": lambda x, w, b, c: F.linear(x, w, b) + c,
    "a weight by rows": lambda x, w, b, c: torch.relu(x @ w.t().contiguous() + b),
    "a composed activation": lambda x, w, b, c: F.relu6(F.linear(x, w, b)),
    "spelled": lambda x, w, b, c: (h := F.linear(x, w)) * torch.sigmoid(h),
    "columns": lambda x, w, b, c: F.linear(x, w, b) * b + c,
    "rows of images": lambda x, w, b, c: F.silu(F.linear(x.view(2, 3, 4, K), w, b)),
    "a row": lambda x, w, b, c: torch.tanh(F.linear(x, w) + b.view(1, N)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_both_compute_the_same(name: str, watch: type[Watch]) -> None:
    """The kernel's call and the nodes, on the same random operands."""
    (plan,) = tk.explain(FUNCTIONS[name], tensors()).plans
    (step,) = plan.steps
    assert step.score == 2.0
    assert not step.estimated
    ((ours, theirs),) = watch.results
    assert ours.std() > 0.1
    torch.testing.assert_close(ours.view(theirs.shape), theirs, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_both_have_the_same_gradients(name: str, watch: type[Watch]) -> None:
    x, w, b, c = tensors()
    for t in (x, w, c):
        t.requires_grad_()
    (plan,) = tk.explain(FUNCTIONS[name], (x, w, b, c)).plans
    assert [step.score for step in plan.steps] == [2.0]
    ((ours, theirs),) = watch.results
    assert len(ours) == len(theirs) >= 2
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)
    assert x.grad is None


def test_what_is_slower_is_left(watch: type[Watch]) -> None:
    watch.times = (20.0, 19.0)
    (plan,) = tk.explain(FUNCTIONS["linear_gelu"], tensors()).plans
    assert not plan.steps
    (line,) = plan.left
    assert line.score == 0.95
    assert "0.95 of eager's speed timed for float32, below min_score 1.01" in line.reason


@pytest.mark.parametrize(
    ("cool", "hot", "score"),
    [((300, 330), (400, 420), 1.05), ((300, 330), (400, 480), 1.1), ((150, 165), (200, 160), 1.1)],
)
def test_long_calls_are_timed_on_a_hot_gpu_too(
    cool: tuple[float, float], hot: tuple[float, float], score: float, watch: type[Watch]
) -> None:
    watch.times, watch.hot = cool, hot
    (plan,) = tk.explain(FUNCTIONS["linear_gelu"], tensors()).plans
    (step,) = plan.steps
    assert step.score == pytest.approx(score)


def test_inductor_needs_the_product_and_a_pass(
    watch: type[Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def theirs(layer: Any, gpu: Any, rates: Any, other: str, extra: Any, alone: float) -> float:
        asked.append((layer[:3], other, extra))
        assert alone == pytest.approx(20e-6)
        return alone + 10e-6

    monkeypatch.setattr(rivals, "theirs", theirs)
    x, w, b, c = tensors()
    (plan,) = tk.explain(FUNCTIONS["linear_gelu"], (x, w, b, c), rest="inductor").plans
    (step,) = plan.steps
    assert step.score == pytest.approx(3)
    assert asked == [((M, N, K), "inductor", None)]
    ((_, product),) = watch.results
    assert product.shape == (M, N)
    assert product.min() < -1, "without the activation"


@pytest.mark.parametrize(
    ("rest", "grad", "times", "score"),
    [
        ("inductor", True, (100.0, 174.0), 1.0),
        ("inductor", True, (100.0, 176.0), 1.76),
        ("inductor", True, (100.0, 90.0), 0.9),
        ("inductor", False, (100.0, 174.0), 1.74),
        ("eager", True, (100.0, 174.0), 1.74),
    ],
)
def test_a_training_step_must_save_what_its_calls_take(
    rest: str,
    grad: bool,
    times: tuple[float, float],
    score: float,
    watch: type[Watch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the host: there a layer with its backward pass takes four calls."""
    monkeypatch.setattr(rivals, "theirs", lambda layer, gpu, rates, other, extra, alone: alone)
    monkeypatch.setattr(racing, "hopeless", lambda match, problem: False)
    watch.times = times
    x, w, b, c = tensors()
    x.requires_grad_(grad)
    silent = RATES[SHIPPED_OF]._replace(further=0.0, bandwidth=1e30)
    monkeypatch.setattr(capabilities, "rates_of", lambda *_: (silent, SHIPPED))
    (plan,) = tk.explain(FUNCTIONS["linear_gelu"], (x, w, b, c), rest=rest).plans
    (line,) = [*plan.steps, *(left for left in plan.left if left.score is not None)]
    assert line.score == pytest.approx(score)


@pytest.mark.parametrize(
    ("rest", "grad", "bandwidth", "timed"),
    [
        ("inductor", True, 1e9, True),  # a pass of this size takes 3 µs
        ("inductor", True, 1e12, False),
        ("inductor", False, 1e12, True),
        ("eager", True, 1e12, True),
    ],
)
def test_what_cannot_save_so_much_is_not_timed(
    rest: str,
    grad: bool,
    bandwidth: float,
    timed: bool,
    watch: type[Watch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates = RATES[SHIPPED_OF]._replace(further=0.0, bandwidth=bandwidth)
    monkeypatch.setattr(capabilities, "rates_of", lambda *_: (rates, SHIPPED))
    monkeypatch.setattr(racing, "CALLS", 10.0)
    x, w, b, c = tensors()
    x.requires_grad_(grad)
    (plan,) = tk.explain(FUNCTIONS["linear_gelu"], (x, w, b, c), rest=rest).plans
    assert bool(watch.results) == bool(plan.steps) == timed
    if not timed:
        (line,) = (left for left in plan.left if left.score is not None)
        assert "inductor's speed estimated" in line.reason


def test_each_product_is_timed_once(watch: type[Watch]) -> None:
    x, w, b, _ = tensors()
    square = torch.randn(N, N)

    def model(x: Tensor, w: Tensor, square: Tensor, b: Tensor) -> Tensor:
        h = F.relu(F.linear(x, w, b))
        for _ in range(3):
            h = F.relu(F.linear(h, square, b))
        return F.silu(F.linear(h, square, b))

    (plan,) = tk.explain(model, (x, w, square, b)).plans
    assert len(plan.steps) == 5
    assert len(watch.results) == 3
    tk.explain(model, (x, w, square, b))
    assert len(watch.results) == 3
    torch._dynamo.reset()  # or M is a symbol from now on
    tk.explain(model, (torch.randn(M + 1, K), w, square, b))
    assert len(watch.results) == 6


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("precision", ["f16x3", "ieee"])
def test_a_dynamic_number_of_rows_is_that_of_the_traced_call(
    precision: str, grad: bool, watch: type[Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Problem] = []
    monkeypatch.setattr(racing, "_possible", lambda match, problem: not asked.append(problem))
    layer = torch.nn.Sequential(torch.nn.Linear(K, N), torch.nn.ReLU()).requires_grad_(grad)
    options = {"precision": precision}
    compiled = torch.compile(layer, backend="triton_kernels", options=options, dynamic=True)
    compiled(torch.randn(2, M, K))
    assert [problem[4:7] for problem in asked] == [(2 * M, N, K)]
    ((ours, theirs),) = watch.results
    if not grad:
        assert ours.shape == theirs.shape == (2, M, N)
    with torch.compiler.set_stance("fail_on_recompile"):
        x = torch.randn(3, M + 1, K)
        torch.testing.assert_close(compiled(x), layer(x), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("options", [{"measure": False}, {"min_score": 0}])
def test_not_if_it_does_not_matter(options: dict[str, Any], watch: type[Watch]) -> None:
    tk.explain(FUNCTIONS["linear_gelu"], tensors(), **options)
    assert not watch.results
    fused = tk.fuse(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), **options)
    fused(torch.randn(4, 8))
    assert not watch.results


def test_the_users_numbers_are_as_without(watch: type[Watch]) -> None:
    torch.manual_seed(3)
    given = tensors()
    torch.manual_seed(4)
    tk.explain(FUNCTIONS["linear_gelu"], given)
    first = torch.randn(4)
    assert watch.results
    torch.manual_seed(4)
    assert torch.equal(first, torch.randn(4))


def test_what_fails_is_judged_as_before(
    watch: type[Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    def medians(self: Any, calls: Any) -> list[float]:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(Watch, "medians", medians)
    plans = [
        tk.explain(FUNCTIONS["linear_gelu"], tensors(), measure=measure).plans
        for measure in (True, False)
    ]
    assert str(plans[0]) == str(plans[1])


def test_what_can_be_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing without a GPU; with one not under autocast, nor what must be deterministic."""
    asked: list[tuple[Match, Problem]] = []
    monkeypatch.setattr(racing, "speed", lambda *pair: asked.append(pair))
    with tk.interpret():
        tk.explain(FUNCTIONS["linear_gelu"], tensors(), min_score=0.7)
    ((match, problem),) = asked
    assert not racing._possible(match, problem), "on the CPU"
    problem = problem._replace(device=torch.device("cuda"), precision="tf32")
    assert not racing._possible(match, problem) or torch.cuda.is_available()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 20, 1 << 30))
    assert racing._possible(match, problem)
    assert not racing._possible(match, problem._replace(M=None))
    by_multiply_adds = problem._replace(precision="ieee")
    for arch, possible in (("sm_90", True), ("sm_80", False)):  # where Gluon's kernel runs
        monkeypatch.setattr(_launch, "gpu", lambda *_, gpu=GPUS[arch]: gpu)
        assert racing._possible(match, by_multiply_adds) is possible
    assert not racing._possible(match, problem._replace(dtype=torch.float64))
    with tk.interpret():
        assert not racing._possible(match, problem)
    torch.use_deterministic_algorithms(True)
    try:
        assert not racing._possible(match, problem)
    finally:
        torch.use_deterministic_algorithms(False)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 12, 1 << 30))
    assert not racing._possible(match, problem)


@pytest.mark.parametrize(
    ("score", "source", "least", "is_doubtful"),
    [
        (1.05, SHIPPED, 1.01, True),
        (0.9, SHIPPED, 1.01, True),
        (1.4, SHIPPED, 1.01, False),
        (0.7, SHIPPED, 1.01, False),
        (1.4, ESTIMATED, 1.01, True),
        (0.0, "", 1.01, True),
        (1.05, SHIPPED, 0, False),
        (None, "", 1.01, False),
    ],
)
def test_what_is_doubtful(
    score: float | None, source: str, least: float, is_doubtful: bool
) -> None:
    assert racing.doubtful(Verdict(score, "", source), least) == is_doubtful
    trained = score is not None and least > 0
    assert racing.doubtful(Verdict(score, "", source), least, True) == trained


def test_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(
        "linear_act", torch.float16, torch.device("cuda"), "inductor", M, N, K, "relu"
    )
    assert capabilities.verdict(problem, 1.2, TIMED, 1.01) == Verdict(1.2, "", TIMED)
    assert planning.Step("linear_act", ("a",), 1.2).estimated is False
    left = capabilities.verdict(problem, 1.0, TIMED, 1.01)
    assert left.refusal.endswith("1.00 of inductor's speed timed for float16, below min_score 1.01")
