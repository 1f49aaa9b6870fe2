"""bench --regret: the candidates, a call with one of them, what half the rounds say of a best."""

from __future__ import annotations

import itertools
import json
import math
import random
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from benched import bench, flat
from simulated_gpu import CEILINGS, Rig

import triton_kernels
from compare.cases import Case
from compare.ops import SPECS
from compare.specs import Spec
from compare.timing import configurations, regret
from compare.timing.engine import Candidate, Timing
from compare.timing.results import CANDIDATE, CHOSEN, CaseResult, Entry
from triton_kernels._launch import Launch
from triton_kernels.gemm import GPUS, Problem, choose, launch
from triton_kernels.gemm.choice import NEITHER
from triton_kernels.gemm.launch import lying

PRODUCT = Case(
    "linear_act",
    "float16",
    (70, 96, 40),
    "functional",
    options={"act": "relu", "bias": True, "operands": "forward"},
)
H200 = GPUS["sm_90"]


# ---- candidates ----


def test_the_chosen_one_comes_first_and_every_other_one_once() -> None:
    problem = configurations.asked(SPECS["linear_act"], PRODUCT)
    assert (problem.M, problem.N, problem.K) == PRODUCT.shape
    assert problem.dtype == problem.out_dtype == torch.float16
    found = configurations.configurations(problem, H200)
    assert found[0] == choose(problem, H200)
    assert len(set(found)) == len(found) >= 6
    # Whatever the chooser has for any size of such a product is among them.
    draw = random.Random(0)
    for _ in range(300):
        M, N, K = (round(math.exp(draw.uniform(math.log(n), math.log(16384)))) for n in (1, 64, 64))
        form = choose(problem._replace(M=M, N=N, K=K + K % 2), H200)
        assert form.kind in found, (M, N, K)
        assert form.rest is None or form.rest.form in found
    labels = [configurations.label(each) for each in found]
    assert len(set(labels)) == len(labels)
    assert all("×" in label for label in labels)
    assert {label.count("copying") for label in labels} == {0, 1, 2}


def test_what_is_asked_knows_c_and_the_training_step() -> None:
    options = {"act": "gelu", "bias": True, "c": "full", "operands": "wgrad", "training": "out"}
    case = Case("gemm_bias_act", "bfloat16", (33, 64, 72), "functional", options=options)
    problem = configurations.asked(SPECS["gemm_bias_act"], case)
    assert (problem.M, problem.N, problem.K) == case.shape
    assert problem.c
    case = Case("gemm_bias_act", "bfloat16", (33, 64, 72), options={"act": "gelu"})
    assert not configurations.asked(SPECS["gemm_bias_act"], case).c


def test_a_call_runs_in_the_configuration_that_is_forced(
    cpu: torch.device, launches: list[Launch]
) -> None:
    spec = SPECS["linear_act"]
    args, kwargs = spec.inputs(PRODUCT)
    problem = lying(Problem(70, 96, 40, torch.float16, torch.float16), (40, 1), (1, 40))
    found = configurations.configurations(problem, H200)
    ways = set(itertools.product((False, True), repeat=2))
    assert {each.copies for each in found if each.tma} == ways
    assert {each.copies for each in found if not each.tma} == {NEITHER}
    expected = spec.triton(*args, **kwargs)
    for configuration in found:
        launches.clear()
        with configurations.forced(configuration):
            result = spec.triton(*args, **kwargs)
        *copied, made = launches
        assert len(copied) == any(configuration.copies)
        tiles = configuration.tiles._asdict()
        assert {name: made.meta[name] for name in tiles} == tiles
        torch.testing.assert_close(result, expected, rtol=2e-3, atol=2e-3)
    launches.clear()
    spec.triton(*args, **kwargs)  # and outside the chooser's own again
    assert launches[0].meta["BLOCK_M"] == choose(problem, H200).tiles.BLOCK_M


def test_one_that_does_not_fit_ends_and_asks_no_third_time() -> None:
    configuration = configurations.configurations(
        configurations.asked(SPECS["linear_act"], PRODUCT), H200
    )[0]
    with configurations.forced(configuration):
        assert vars(launch)["choose"](None, None) == configuration
        with pytest.raises(RuntimeError, match="does not fit"):
            vars(launch)["choose"](None, None)


# ---- a best that half the rounds pick ----


def result(times: dict[str, Sequence[float]], size: int = 64, stratum: str = "s") -> CaseResult:
    made = CaseResult(Case("linear_act", "float16", (size, 64, 64), "functional"), 1.0, "GB/s")
    made.stratum = stratum
    for name, own in times.items():
        timing = Timing(name)
        timing.gpu.rounds, timing.gpu.microseconds = list(range(len(own))), list(own)
        made.entries.append(Entry(name, timing))
    return made


CHOSEN_A, B, C = f"{CHOSEN}a", f"{CANDIDATE}b", f"{CANDIDATE}c"


def test_even_rounds_pick_and_odd_ones_judge() -> None:
    # b was lucky in the even rounds: it is picked, and judged by the others.
    found = regret.regret(result({CHOSEN_A: [10, 10] * 5, B: [7, 9] * 5, C: [8, 6] * 5}))
    assert found is not None
    assert (found.chosen, found.best) == ("a", "b")
    assert found.value == pytest.approx(10 / 9)
    # The same the other way round: c is picked.
    found = regret.regret(result({CHOSEN_A: [10, 10] * 5, B: [9, 7] * 5, C: [6, 8] * 5}))
    assert found is not None
    assert (found.best, found.value) == ("c", pytest.approx(10 / 8))


def test_a_chosen_best_has_no_regret_whatever_the_other_half_says() -> None:
    found = regret.regret(result({CHOSEN_A: [5, 50] * 5, B: [6, 7] * 5}))
    assert found is not None
    assert found.value == 1.0


def test_of_equals_no_regret_comes_from_picking_the_luckiest() -> None:
    """Twenty candidates of one speed under noise: by one half alone the best seems a few per cent
    faster; judged by the other half nothing is left of that."""
    draw = random.Random(4)
    problems = [
        result(
            {
                f"{CHOSEN if n == 0 else CANDIDATE}{n}": [draw.gauss(100, 4) for _ in range(20)]
                for n in range(20)
            },
            size,
        )
        for size in range(1, 201)
    ]
    (standing,) = regret.standings(problems)
    assert standing.mean == pytest.approx(1, abs=0.004)
    lucky = [
        min(min(sorted(e.timing.gpu.microseconds)[9:11]) for e in each.entries) for each in problems
    ]
    assert sum(lucky) / len(lucky) < 98.5


def test_what_failed_is_no_candidate_and_a_failed_choice_is_missing() -> None:
    good = result({CHOSEN_A: [10] * 4, B: [5] * 4})
    good.entries[1].problem = "RuntimeError does not fit this GPU"
    found = regret.regret(good)
    assert found is not None
    assert found.value == 1
    assert not good.entries[1].failed
    bad = result({CHOSEN_A: [10] * 4, B: [5] * 4}, 65)
    bad.entries[0].problem = "RuntimeError"
    assert regret.regret(bad) is None
    assert bad.entries[0].failed
    (standing,) = regret.standings([good, bad])
    assert (len(standing.problems), standing.missing) == (1, 1)


def test_figures_of_a_stratum() -> None:
    values = [1.0, 1.1, 1.5, 1.2]
    results = [result({CHOSEN_A: [v] * 4, B: [1.0] * 4}, n) for n, v in enumerate(values, 1)]
    results[0] = result({CHOSEN_A: [1.0] * 4}, 1)
    (standing,) = regret.standings(results)
    assert [each.value for each in standing.worst] == [1.5, 1.2, 1.1]
    assert standing.mean == pytest.approx(math.prod(values) ** 0.25)
    assert 1.4 < standing.high < 1.5
    assert regret.doubtful(results, 1) == [2]
    results[2].again = True
    assert regret.doubtful(results, 3) == [1, 3]


# ---- the command ----


@pytest.fixture
def tuned(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """Configurations whose times are known: the chosen one is a fifth slower than "best" where rows
    are no multiples of 8 elements."""

    def candidates(spec: Spec, case: Case) -> Iterator[Candidate]:
        flops, moved = spec.cost(case)
        limit = CEILINGS.limit(case.dtype, flops, moved)
        rig.timed.append(str(case))
        slow = 1.2 if math.gcd(*case.shape[1:]) % 8 else 1.0
        for name, factor in ((f"{CHOSEN}own", 1.5 * slow), (f"{CANDIDATE}best", 1.5), (C, 3.0)):

            def call(args: Any, kwargs: Any, name: str = name, f: float = factor) -> str:
                return rig.gpu.launch(name, 10.0, limit * f)

            yield Candidate(name, call)

    monkeypatch.setattr(configurations, "candidates", candidates)
    return rig


WORDS = ("linear_act", "--sample", "40", "--seed", "2", "--dtype", "bfloat16", "--regret")


def test_the_command_tells_the_regret_of_every_stratum(tuned: Rig, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    done = bench(*WORDS, "--json", str(file), "--resume")
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text())
    assert found["regret"] is True
    assert len(found["cases"]) == 40
    strata = {each["stratum"]: each for each in found["strata"]}
    assert strata["few rows, of 64"]["geometric_mean"] == pytest.approx(1)
    assert strata["compute-bound, odd"]["geometric_mean"] == pytest.approx(1.2)
    assert strata["all"]["problems"] == 40
    assert strata["all"]["worst"][0]["regret"] == pytest.approx(1.2)
    assert (strata["all"]["worst"][0]["chosen"], strata["all"]["worst"][0]["best"]) == (
        "own",
        "best",
    )
    assert any(line.startswith("linear_act  few rows, of 64") for line in done.output.splitlines())
    begin = "1.200, compute-bound, odd: own; best best: "
    line = next(line for line in done.output.splitlines() if line.startswith(begin))
    words = shlex.split(line.split(": ")[-1])[4:]
    assert words[-1] == "--regret"
    tuned.timed = []
    assert bench(*words).exit_code == 0
    drawn = {str(CaseResult.from_dict(c).case): c["stratum"] for c in found["cases"]}
    assert [drawn[case] for case in tuned.timed] == ["compute-bound, odd"]
    tuned.timed = []
    assert bench(*WORDS, "--json", str(file), "--resume").exit_code == 0
    assert tuned.timed == []
    other = bench(*WORDS[:-1], "--json", str(file), "--resume")
    assert "regret was True and is None" in flat(other.stderr)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("linear_act", "--regret"), "--regret needs problems"),
        (("square", "--sample", "3", "--regret"), "ops with configurations to choose"),
        (("add", "linear_act", "--sample", "3", "--regret"), "ops with configurations"),
        ((*WORDS, "--providers", "eager"), "no --providers"),
        ((*WORDS, "--baseline", "b.json"), "--regret has none"),
    ],
)
def test_what_it_cannot_do(words: tuple[str, ...], says: str) -> None:
    done = bench(*words, "--dry-run")
    assert done.exit_code == 2
    assert says in flat(done.stderr)


def test_without_an_op_it_is_all_products() -> None:
    done = bench("--sample", "12", "--regret", "--dry-run")
    assert done.exit_code == 0, done.output
    assert done.stdout.count(": configurations") == 2 * 12
    assert triton_kernels.linear_gelu.__name__ in done.stdout
