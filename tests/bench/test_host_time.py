"""bench --host: what a call costs the host. On a simulated clock, and of wrong functions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from benched import bench, flat
from simulated_gpu import Rig, SimulatedGpu
from torch import Tensor

import triton_kernels
from compare.cases import Case
from compare.commands import bench_host
from compare.ops import SPECS
from compare.reporting import facts, page
from compare.reporting.sources import read
from compare.specs import Spec
from compare.timing import host
from compare.timing.host import MODEL, NEW, SEEN, TRAINING, Effort, HostTime, Job
from compare.timing.statistics import Samples

SQUARE = Case("square", "float32", (16, 8))


class Clocked:
    """Functions that cost a simulated host so many microseconds, and the GPU ten times that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpu = SimulatedGpu()
        monkeypatch.setattr(host.time, "perf_counter", self.gpu.clock)
        self.shapes: dict[str, list[tuple[int, ...]]] = {}

    def function(self, name: str, cost: float, right: Any = torch.square) -> Callable[..., Tensor]:
        def call(x: Tensor, *, out: Tensor | None = None) -> Tensor:
            self.shapes.setdefault(name, []).append(tuple(x.shape))
            self.gpu.work(cost, 10 * cost)
            result: Tensor = right(x)
            return result

        return call

    def spec(self, ours: Any = torch.square) -> Spec:
        return SPECS["square"].changed(
            triton=self.function("triton", 20, ours),
            cuda=self.function("cuda", 60),
            eager=self.function("eager", 10),
        )

    def measure(self, spec: Spec | None, what: str, **options: Any) -> HostTime | None:
        job = Job(spec, SQUARE, what)
        return host.measure(job, device="cpu", synchronize=self.gpu.synchronize, **options)


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> Clocked:
    return Clocked(monkeypatch)


@pytest.mark.parametrize("what", [SEEN, NEW, TRAINING])
def test_the_host_is_timed_and_not_the_gpu(clocked: Clocked, what: str) -> None:
    row = clocked.measure(clocked.spec(), what, effort=Effort(5, 7, 3))
    assert row is not None
    assert not row.problems
    assert {n: s.median for n, s in row.times.items()} == pytest.approx(
        {"triton": 20, "cuda": 60, "eager": 10}
    )
    assert all(samples.rounds == [0, 1, 2, 3, 4] for samples in row.times.values())
    assert row.against("triton") == pytest.approx((2, 2, 2))
    assert row.against("eager") is None
    calls = {call["provider"]: call for call in row.to_dict()["calls"]}
    assert calls["cuda"]["times_torch"][0] == pytest.approx(6)


def test_a_new_shape_is_new_to_everybody_every_time(clocked: Clocked) -> None:
    clocked.measure(clocked.spec(), NEW, effort=Effort(4, new=6))
    timed = {name: shapes[host.TRIED :] for name, shapes in clocked.shapes.items()}
    assert set(timed) == {"triton", "cuda", "eager"}
    for shapes in timed.values():
        assert shapes == [(17 + i, 8) for i in range(5 * 6)]


def test_no_other_row_of_an_op_has_had_its_new_shapes(clocked: Clocked) -> None:
    spec = clocked.spec()
    rows = [job for job in host.jobs([spec], spec.dtypes[:2], model=False) if job.what == NEW]
    made = [host._arguments(job, 0, 4, "cpu") for job in rows]
    shapes = [tuple(args[0].shape) for sets in made for args, _ in sets]
    assert len(set(shapes)) == len(shapes) == 4 * len(rows) >= 8


@pytest.mark.parametrize("first", [1, 3])
@pytest.mark.parametrize("what", [SEEN, NEW, TRAINING])
def test_what_is_wrong_is_not_timed(clocked: Clocked, what: str, first: int) -> None:
    """At the first call, or only at the last of those that are tried."""
    calls = []

    def wrong(x: Tensor) -> Tensor:
        calls.append(x)
        return torch.square(x) + (len(calls) > first + (what == TRAINING) - 1)

    row = clocked.measure(clocked.spec(wrong), what, effort=Effort(3, 2, 2, 2))
    assert row is not None
    assert set(row.times) == {"cuda", "eager"}
    assert row.problems["triton"].startswith("wrong: ")


def test_a_wrong_gradient_is_not_timed(clocked: Clocked) -> None:
    def wrong(x: Tensor) -> Tensor:
        return x * x.detach()

    row = clocked.measure(clocked.spec(wrong), TRAINING, effort=Effort(3, 2, 2, 2))
    assert row is not None
    assert row.problems["triton"].startswith("wrong: off by ")
    assert clocked.measure(clocked.spec(wrong), SEEN, effort=Effort(3, 2, 2, 2)).problems == {}  # type: ignore[union-attr]


def test_gradients_are_judged_by_float64_where_torch_rounds_parts(clocked: Clocked) -> None:
    """Torch's own may be further off in 16 bits than what a right result is allowed."""

    class Rough(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return torch.square(x)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 2 * x * grad * (1 if x.dtype == torch.float64 else 1.5)

    spec = clocked.spec().changed(eager=clocked.function("eager", 10, Rough.apply))
    row = clocked.measure(spec, TRAINING, effort=Effort(3, 2, 2, 2))
    assert row is not None
    assert row.problems == {}
    assert set(row.times) == {"triton", "cuda", "eager"}


def test_who_raises_in_the_middle_has_no_times(clocked: Clocked) -> None:
    calls = []

    def failing(x: Tensor) -> Tensor:
        calls.append(x)
        if len(calls) > 6:
            raise RuntimeError("no more\nand a second line")
        return torch.square(x)

    row = clocked.measure(clocked.spec(failing), SEEN, effort=Effort(3, 2))
    assert row is not None
    assert row.problems == {"triton": "RuntimeError no more"}
    assert set(row.times) == {"cuda", "eager"}
    assert row.to_dict()["calls"][-1] == {"provider": "triton", "problem": "RuntimeError no more"}


def test_no_row_without_a_gradient(clocked: Clocked) -> None:
    spec = clocked.spec(lambda x: torch.square(x.detach()))
    names = ("triton", "eager")
    assert clocked.measure(spec, TRAINING, names=names, effort=Effort(2, 2, 2, 2)) is None
    assert clocked.measure(spec, SEEN, names=names, effort=Effort(2, 2, 2, 2)) is not None


def test_a_training_step_of_the_model() -> None:
    """Ours and torch's have the same loss and gradients, and every step is the same."""
    job = Job(None, Case(MODEL, "float32", (8, 6, 12)), TRAINING)
    with triton_kernels.interpret():
        row = host.measure(job, effort=Effort(2, 1, 1, 1), device="cpu", synchronize=lambda: None)
    assert row is not None
    assert not row.problems
    assert set(row.times) == {"triton", "eager"}


def test_real_functions_on_real_arguments() -> None:
    effort = Effort(1, 1, 1, 1)
    for name in ("add", "linear_gelu"):
        case = next(iter(SPECS[name].small("float32")))
        small = Case(name, "float32", tuple(5 for _ in case.shape), options=case.options)
        for what in (SEEN, NEW, TRAINING):
            job = Job(SPECS[name], small, what)
            with triton_kernels.interpret():
                row = host.measure(job, effort=effort, device="cpu", synchronize=lambda: None)
            assert row is not None, (name, what)
            assert not row.problems
            assert set(row.times) == {"triton", "cuda", "eager"}


def test_every_op_of_the_catalogue_has_rows() -> None:
    rows = host.jobs(list(SPECS.values()), ["bfloat16"], model=True)
    without = set(SPECS) - {job.case.op for job in rows}
    assert without == {"act_backward", "act_mul_backward"}  # whose specs pack both results
    assert [job.what for job in rows if job.spec is None] == [TRAINING]
    assert any(job.case.options.get("y") == "row" for job in rows)


def test_the_command_says_what_it_would_time() -> None:
    done = bench("square", "--host", "--dry-run", "--providers", "triton")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert len(lines) == 6  # two dtypes, three kinds of calls
    assert all(line.endswith(": triton, eager") for line in lines)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add", "--host", "--sample", "3"), "--host takes ops"),
        (("add", "--host", "--warm"), "--host takes ops"),
        (("add", "--host", "--providers", "compile"), "with --host triton, cuda, eager"),
        (("act_backward", "--host"), "no small cases"),
    ],
)
def test_what_the_command_refuses(words: tuple[str, ...], said: str) -> None:
    done = bench(*words)
    assert done.exit_code == 2
    assert said in flat(done.output)


def made_up(job: Job, *_: Any) -> HostTime | None:
    case = job.case
    row = HostTime(case.op, case.dtype, case.shape, dict(case.options), job.what)
    if job.what == NEW:
        row.problems = {"cuda": "wrong: 3 of 9 elements"}
    costs = {"triton": 30.0, "cuda": 50.0, "eager": 20.0}
    row.times = {n: Samples([0, 1], [t, t]) for n, t in costs.items() if n not in row.problems}
    return row


def test_the_command_prints_writes_and_reports(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(bench_host.host, "measure", made_up)
    file = tmp_path / "host.json"
    done = bench("square", "--host", "--dtype", "float32", "--json", str(file))
    assert done.exit_code == 1  # of the wrong one
    assert "square float32 256×256 seen shape 30.0 1.50 50.0 2.50 20.0" in flat(done.output)
    assert "square float32, new shape: cuda: wrong: 3 of 9 elements" in done.output
    saved = json.loads(file.read_text())
    assert [row["what"] for row in saved["host"]] == [SEEN, NEW, TRAINING]
    sources = read([file])
    assert [source.kind for source in sources] == ["host"]
    text = facts.rewritten("<!-- table: host -->\n<!-- end of table -->", sources)
    assert "| square | 1.5 | 1.5 | 1.5 | 2.5 | – | 2.5 |" in text
    html = page.html(sources)
    assert "Host time" in html
    assert "<td>1.50</td>" in html
    assert "wrong: 3 of 9 elements" in html


def test_ctrl_c_keeps_what_is_measured(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measure(job: Job, *rest: Any) -> HostTime | None:
        if job.what == NEW:
            raise KeyboardInterrupt
        return made_up(job)

    monkeypatch.setattr(bench_host.host, "measure", measure)
    file = tmp_path / "host.json"
    done = bench("square", "--host", "--dtype", "float32", "--json", str(file))
    assert "interrupted: 1 of 3 rows" in done.output
    saved = json.loads(file.read_text())
    assert (len(saved["host"]), saved["ended"]) == (1, "interrupted")


def test_what_breaks_off_keeps_what_is_measured(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measure(job: Job, *rest: Any) -> HostTime | None:
        if job.what == NEW:
            assert len(json.loads(file.read_text())["host"]) == 1  # written before the next row
            raise torch.OutOfMemoryError("CUDA out of memory")
        return made_up(job)

    monkeypatch.setattr(bench_host.host, "measure", measure)
    file = tmp_path / "host.json"
    done = bench("square", "--host", "--dtype", "float32", "--json", str(file))
    assert isinstance(done.exception, torch.OutOfMemoryError)
    saved = json.loads(file.read_text())
    assert (len(saved["host"]), saved["ended"]) == (1, "OutOfMemoryError")
