"""tune on a simulated GPU: the constants and speeds that it has are those that are found."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import processes
import pytest
import torch

import triton_kernels as tk
from triton_kernels import __main__ as command
from triton_kernels import _launch, _measured, ops
from triton_kernels._gpu import GPUS, H200, Gpu
from triton_kernels._measured import RATES, SHIPPED, SHIPPED_OF, Constants, Rates
from triton_kernels.gemm import Problem, choose, rivals
from triton_kernels.gemm.choice import TMA_TILES, fitting
from triton_kernels.gemm.gluon import availability
from triton_kernels.graph import capabilities
from triton_kernels.tuning import constants, measuring, rates, scores, stopwatch
from triton_kernels.tuning.constants import Run
from triton_kernels.tuning.scores import Case, Times

CARD = Gpu(90, 114, 232448, "Some Card")
CPU = torch.device("cpu")
# Between the sizes that are tried: the last small one is twice the shipped.
COSTS = (1.0, 0.4, 0.35, 0.15, 0.1)
TRUE = Constants(COSTS, 2048, int(2.8 * SHIPPED.large))
TRUE_RATES = Rates(8e-6, 6e-6, 3.5e-6, 2e12, 6e14, 0.7)


class Simulated:
    """A GPU with constants: a configuration that they do not want takes a fifth longer."""

    def __init__(self, gpu: Gpu, true: Constants = TRUE, speed: float = 1.5) -> None:
        self.gpu, self.true, self.speed = gpu, true, speed
        self.asked: list[Run] = []
        self.cases: list[Case] = []

    def runs(self, runs: Sequence[Run]) -> list[float]:
        self.asked += runs
        return [self._microseconds(*run) for run in runs]

    def _microseconds(self, problem: Problem, configuration: Any) -> float:
        tiles, busy = configuration.tiles, self.gpu.multiprocessors / H200.multiprocessors
        if configuration.tma:
            sizes = [row.tiles[:2] for row in TMA_TILES]
            cost = self.true.costs[sizes.index(tiles[:2])] * problem.K
            waves = -(-configuration.tiles_of(problem.M, problem.N) // self.gpu.multiprocessors)
            long = tiles[:2] == (128, 128) and (tiles.num_warps == 4) != (
                problem.K >= self.true.long
            )
            return cost * waves * (1.2 if long else 1.0)
        small = tiles.BLOCK_M * tiles.BLOCK_N == 64 * 128
        wanted = small == (problem.M * problem.N <= self.true.large * busy)
        return problem.N * (1.0 if wanted else 1.2)

    def case(self, case: Case) -> Times:
        self.cases.append(case)
        problem = case.problem
        if problem.dtype == torch.bfloat16 and problem.act and self.gpu.capability == 90:
            return self.layer(problem)
        return Times(10.0, 10.0 * self.speed, 5.0 * self.speed)

    def layer(self, problem: scores.Problem) -> Times:
        """What a layer takes on a GPU of these rates; alone it is one kernel in torch, too."""
        M, N, K = (size or 0 for size in problem[4:7])
        layer = rivals.Layer(M, N, K, problem.dtype, problem.act)
        ours = rivals.ours(layer, self.gpu, TRUE_RATES, "tl")
        theirs = rivals.theirs(layer, self.gpu, TRUE_RATES, "eager")
        if problem.act == "none":
            theirs = rivals.product(M, N, K, self.gpu, TRUE_RATES, 8)
        return Times(1e6 * ours, 1e6 * theirs, 1e6 * theirs)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield tmp_path
    for cached in (_measured.measurement, choose, capabilities.entries):
        cached.cache_clear()


@pytest.fixture
def card(home: Path, monkeypatch: pytest.MonkeyPatch) -> Simulated:
    """A machine with a GPU that is simulated."""
    simulated = Simulated(CARD)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)  # torch asks for its type
    monkeypatch.setattr(_launch, "interpreted", lambda _: False)
    monkeypatch.setattr(_launch, "gpu", lambda kernel, device: CARD)
    monkeypatch.setattr(_launch, "bandwidth", lambda device: 0.0)
    monkeypatch.setattr(availability, "_tested", {(torch.device("cuda", 0), False): "not tried"})
    monkeypatch.setattr(measuring, "Stopwatch", lambda gpu, device: simulated)
    return simulated


# ---- constants ----


@pytest.mark.parametrize("arch", GPUS)
@pytest.mark.parametrize("multiprocessors", [24, 67, 114, 132])
def test_the_constants_of_a_gpu_are_found(arch: str, multiprocessors: int) -> None:
    gpu = GPUS[arch]._replace(multiprocessors=multiprocessors)
    simulated = Simulated(gpu)
    found, busy = constants.measure(gpu, simulated.runs), multiprocessors / 132
    # But for the tiles of 64 and 128 that problems are made of.
    if gpu.capability < 90:
        side = (2 * SHIPPED.large * busy) ** 0.5
        assert (found.large * busy) ** 0.5 == pytest.approx(side, abs=65)
        assert found == SHIPPED._replace(large=found.large)
        return
    assert found.large == SHIPPED.large
    assert found.long == TRUE.long
    product = Problem(999, 999, 1024, torch.bfloat16, torch.bfloat16)
    fits = [fitting(row.for_problem(product), product, gpu) is not None for row in TMA_TILES]
    assert fits == [gpu.shared_memory > 200 * 1024, True, True, True, True]
    first = fits.index(True)  # only ratios count
    assert found.costs[first] == SHIPPED.costs[first]
    ratios = [cost / found.costs[first] for cost in found.costs[first:]]
    assert ratios == pytest.approx([cost / COSTS[first] for cost in COSTS[first:]], rel=0.01)


@pytest.mark.parametrize("arch", GPUS)
def test_only_what_fits_is_timed_and_descriptors_fill_their_waves(arch: str) -> None:
    gpu = GPUS[arch]
    simulated = Simulated(gpu)
    constants.measure(gpu, simulated.runs)
    for problem, configuration in simulated.asked:
        assert configuration.shared_memory(problem, gpu.capability) <= gpu.shared_memory
        if configuration.tma:
            assert (
                configuration.tiles_of(problem.M, problem.N)
                == constants.WAVES * gpu.multiprocessors
            )
        assert max(problem[:3]) <= 1 << 16
    assert len(simulated.asked) < 60


def test_a_constant_that_decides_nothing_ends_at_the_ladder() -> None:
    """One of the tiles is always the faster one."""
    for large, expected in ((1, 0.125), (1 << 60, 4.0)):
        gpu = GPUS["sm_80"]._replace(multiprocessors=132)
        true = TRUE._replace(large=large)
        found = constants.measure(gpu, Simulated(gpu, true).runs)
        assert found.large == pytest.approx(expected * SHIPPED.large, rel=0.6)


def test_a_tile_that_does_not_fit_after_all_keeps_its_cost() -> None:
    simulated = Simulated(CARD)

    def time(runs: Sequence[Run]) -> list[float]:
        wide = [run.configuration.tiles[:2] == (128, 256) for run in runs]
        return [math.inf if each else t for each, t in zip(wide, simulated.runs(runs))]

    found = constants.measure(CARD, time)
    assert found.costs[:2] == SHIPPED.costs[:2]
    assert found.costs[2] / found.costs[1] == pytest.approx(COSTS[2] / COSTS[1], rel=0.01)
    for gpu in (CARD, GPUS["sm_80"]):
        assert constants.measure(gpu, lambda runs: [math.inf] * len(runs)) == SHIPPED


def test_nothing_fits_nothing_changes() -> None:
    tiny = Gpu(90, 132, 1024)
    assert constants.measure(tiny, Simulated(tiny).runs) == SHIPPED


# ---- the times of products ----


@pytest.mark.parametrize("estimate", [RATES[SHIPPED_OF], TRUE_RATES, Rates(1, 1, 1, 1, 1e15, 1.0)])
def test_the_rates_of_a_gpu_are_found(estimate: Rates) -> None:
    cases = rates.cases(CARD, CPU)
    found = rates.measure(CARD, cases, Simulated(CARD).case, estimate, "tl")
    assert found == pytest.approx(TRUE_RATES, rel=0.02)
    assert len(cases) < 20
    assert len({(case.problem[4:7], case.problem.act) for case in cases}) == len(cases)


def test_differences_that_noise_hides_leave_the_estimate() -> None:
    """An activation that takes no time, and products that take less than the model's least."""
    estimate = RATES[SHIPPED_OF]
    time = lambda case: Times(1e-3, 1e-3, 1e-3)  # noqa: E731
    found = rates.measure(CARD, rates.cases(CARD, CPU), time, estimate, "tl")
    assert found[:4] == estimate[:4]
    assert all(0 < each < math.inf for each in found)


@pytest.mark.parametrize("arch", [arch for arch in GPUS if arch != "sm_90"])
def test_other_gpus_have_no_rates(arch: str) -> None:
    assert rates.cases(GPUS[arch], CPU) == []


# ---- scores ----


def test_every_entry_of_every_kernel_has_cases_on_every_gpu() -> None:
    entries = capabilities.ENTRIES.items()
    for gpu in (*GPUS.values(), *(Gpu(86, n, 101376) for n in (20, 28, 46, 68, 84))):
        every = {
            (kernel, place)
            for kernel, each in entries
            for place, entry in enumerate(each)
            if not (entry.timed and gpu.capability == 90)  # these are timed otherwise
        }
        cases = scores.cases(gpu, CPU)
        assert {(kernel, case.place) for case in cases for kernel in case.kernels} == every
        assert len(cases) < 60
        first = {(case.kernels, case.place) for case in cases}
        begun = cases[: len(first)]
        assert len({(case.kernels, case.place) for case in begun}) == len(first), (
            "one of each first"
        )


def test_the_least_case_counts_rounded_down() -> None:
    """And what has no time left is not in it."""
    cases = scores.cases(CARD, CPU)
    speeds = iter(range(len(cases)))

    def time(case: Case) -> Times:
        return Times(1.0, 1.239 + next(speeds), 1.0)

    found = scores.measure(cases, time, lambda: True)
    assert found["linear_act"] is not found["linear_gelu"]
    assert found["linear_act"] == found["linear_gelu"]
    first = cases[0]
    assert found[first.kernels[0]][first.place] == (1.23, 1.0)
    left = iter([True, True, False])
    few = scores.measure(cases, lambda case: Times(1.0, 2.0, 3.0), lambda: next(left))
    assert sum(len(entries) for entries in few.values()) == sum(len(c.kernels) for c in cases[:2])


def test_a_probe_computes_in_torch_what_the_kernel_computes(cpu: torch.device) -> None:
    seen = set()
    for fusion in ops.FUSIONS:
        assert set(fusion.probes) <= set(fusion.speeds)
        for kernel, probe in fusion.probes.items():
            acts = scores.ACTS if "N" in "".join(probe.shapes) else (None,)
            for act in acts:
                sizes = (5, 9, 17) if act else (None, None, None)
                problem = scores.Problem(kernel, torch.float32, cpu, "eager", *sizes, act)
                ours, theirs, tensors = stopwatch.calls(probe, problem, 40)
                compiled = torch.compile(theirs, backend="eager", fullgraph=True, dynamic=False)
                right = compiled(*tensors)
                assert right.shape == ((5, 9) if act else (40,))
                torch.testing.assert_close(ours(*tensors), right, rtol=1e-5, atol=1e-5)
                seen.add(kernel)
    assert len(seen) >= 6


@pytest.mark.parametrize("row", range(len(TMA_TILES) + 1))
def test_a_run_is_a_linear_layer_with_gelu_cut_as_asked(
    row: int, cpu: torch.device, launches: list[_launch.Launch]
) -> None:
    problem = Problem(40, 72, 48, torch.bfloat16, torch.bfloat16)
    wanted = choose(problem._replace(M=16), H200)
    if row < len(TMA_TILES):
        wanted = TMA_TILES[row].for_problem(problem)
    torch.manual_seed(3)
    out = stopwatch.configured(Run(problem, wanted), H200, cpu)()
    torch.manual_seed(3)
    x, weight, bias = (torch.randn(s, dtype=torch.bfloat16) for s in ((40, 48), (72, 48), (72,)))
    right = torch.nn.functional.gelu(x.float() @ weight.float().t() + bias, approximate="tanh")
    torch.testing.assert_close(out.float(), right, rtol=2e-2, atol=2e-2)
    assert launches[0].meta["BLOCK_M"] == wanted.tiles.BLOCK_M
    assert launches[0].meta.get("SUBTILES", 0) == (wanted.SUBTILES if wanted.tma else 0)


# ---- tune ----


def test_tune_keeps_what_it_finds_and_uses_it_at_once(
    card: Simulated, capsys: pytest.CaptureFixture[str]
) -> None:
    product = Problem(2432, 3072, 1024, torch.bfloat16, torch.bfloat16)
    device = torch.device("cuda", 0)
    gelu = scores.Problem("linear_gelu", torch.float16, device, "eager", 4096, 4096, 1024, "gelu")
    before = tk.capabilities()
    assert before.source == "shipped"
    # act_mul, and products on a GPU that is none of those whose rates ship
    assert {each.source for each in before.speeds} == {"shipped", "estimated"}
    assert before.rates_source == "estimated"
    assert choose(product, CARD).tiles[:2] == (128, 256)
    assert capabilities.judge(gelu, 1).source == "estimated"
    found = tk.tune()
    assert (found.source, found.constants.costs) == ("measured here", TRUE.costs)
    assert {each.source for each in found.speeds} == {"measured here"}
    assert str(found) == str(tk.capabilities())
    assert choose(product, CARD).tiles[:2] == (128, 128)
    assert found.rates == pytest.approx(TRUE_RATES, rel=0.02)
    verdict = capabilities.judge(gelu, 1)
    true = card.layer(gelu)
    assert verdict.source == "measured here"
    assert verdict.score == pytest.approx(true.eager / true.ours, rel=0.02)
    scaled = scores.Problem("relu_scale", torch.float16, device, "eager")
    assert capabilities.judge(scaled, 1) == (1.5, "", "measured here")
    verdict = capabilities.judge(scaled._replace(other="inductor"), 1)
    assert verdict.score == 0.75
    assert "0.75 of inductor's speed expected for float16" in verdict.refusal
    said = capsys.readouterr().err.splitlines()
    assert len(said) == len(card.cases) + 2
    assert re.fullmatch(r" +\d+ s  Some Card: the choice of tiles", said[0])
    assert f"[{len(card.cases)}/{len(card.cases)}]" in said[-2]
    assert said[-1].endswith(str(_measured.file(CARD)))


def test_products_are_timed_with_the_constants_that_were_found(
    card: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()

    def case(case: Case) -> Times:
        seen.add(_measured.constants(CARD).costs)
        return Times(1.0, 1.0, 1.0)

    monkeypatch.setattr(card, "case", case)
    tk.tune(0, progress=False)
    assert seen == {TRUE.costs}


def test_an_end_of_time_leaves_the_rest_as_it_was(
    card: Simulated, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter(range(0, 100_000, 12))
    monkeypatch.setattr(measuring.time, "monotonic", lambda: float(next(clock)))
    found = tk.tune()
    assert {each.source for each in found.speeds} >= {"measured here", "shipped"}
    assert found.rates_source == "measured here", "these come first"
    done = len(card.cases) - len(rates.cases(CARD, CPU))
    assert 0 < done < len(scores.cases(CARD, CPU)) / 2
    assert re.search(r"no time left for \d+ of \d+", capsys.readouterr().err)


def test_a_failure_amid_the_scores_keeps_the_constants_alone(
    card: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(case: Case) -> Times:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(card, "case", out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        tk.tune(progress=False)
    held = tk.capabilities()
    assert (held.source, held.constants.costs) == ("measured here", TRUE.costs)
    assert {each.source for each in held.speeds} == {"shipped", "estimated"}


@pytest.mark.parametrize("wrong", [1, -1, torch.device("cpu"), torch.device("cuda", 3)])
def test_a_device_that_is_not_there_is_refused(card: Simulated, wrong: Any) -> None:
    for function in (tk.tune, tk.capabilities):
        with pytest.raises(ValueError, match="no CUDA device"):
            function(wrong)


def test_interpreted_kernels_are_not_measured(
    card: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_launch, "interpreted", lambda _: True)
    with pytest.raises(RuntimeError, match="interpreted"):
        tk.tune()


def test_the_command_without_a_gpu_says_one_line(home: Path, root: Path) -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "XDG_CACHE_HOME": str(home)}
    ran = processes.python(root, "-m", "triton_kernels", "tune", environment=environment)
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert ran.stderr == "error: tune(): there is no GPU to measure; torch sees none\n"
    assert list(home.iterdir()) == []


def test_the_command_prints_what_holds(card: Simulated, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["tune"]) == 0
    tuned = capsys.readouterr().out
    assert command.main(["capabilities", "--device", "0"]) == 0
    assert capsys.readouterr().out == tuned
    assert "Some Card: compute capability 9.0, 114 multiprocessors, 227 kB" in tuned
    assert "choice of a product's tiles, measured here:" in tuned
    assert re.search(r"relu_scale_add +float16.* 1\.50  0\.75  measured here", tuned)
    assert command.main(["tune", "--device", "9"]) == 1
    assert capsys.readouterr().err == "error: no CUDA device 9; there are 1\n"
