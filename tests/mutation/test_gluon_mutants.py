"""Mutants of the kernel in Gluon: where no GPU runs it, they are left out, and it is said."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from compare.checking.implementations import applies
from compare.cli import app
from compare.mutation import explained, planting, population, tables, trial
from compare.mutation.explained import Explanation
from compare.mutation.planting import Plan
from compare.ops import SPECS
from compare.specs.gluon_forms import (
    GLUON,
    GLUON_ADDEND,
    GLUON_BESIDE,
    GLUON_FEW,
    GLUON_FMA,
    GLUON_PARTS,
    Cut,
)
from triton_kernels.gemm.gluon import availability

KERNELS = f"{population.GLUON}kernels.py"
TIMERS = (signal.ITIMER_PROF, signal.ITIMER_REAL)


def test_left_out_without_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    files = []
    for reason in ("there is no GPU", ""):
        monkeypatch.setattr(availability, "here", lambda reason=reason, **_: reason)
        files.append({m.file for m in population.population(["triton"], ["linear_act"])})
    without, with_it = files
    assert KERNELS in with_it
    assert with_it - without == {name for name in with_it if name.startswith(population.GLUON)}
    for mutant in population.population(["triton"], ["linear_act"]):
        if mutant.file == KERNELS:
            seen = population.seen_by(mutant, list(SPECS))
            assert set(seen) == {"gemm_bias_act", "linear_act", "linear_gelu"}


def test_tried_on_the_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the interpreter the kernel does not run, so that every mutant would survive there."""
    monkeypatch.setattr(availability, "here", lambda **_: "")
    plan = Plan(["linear_act"], modes=("triton-interpreted", "cuda-host", "triton-compiled"))
    drawn = population.population(["triton"], ["linear_act"])
    requests = {m.file: json.loads(plan.request(m)) for m in drawn}
    gluon, others = requests[KERNELS], requests["triton_kernels/gemm/kernels.py"]
    assert (gluon["modes"], gluon["variant"]) == (["triton-compiled"], "gluon")
    assert gluon["file"] == KERNELS
    assert others["modes"] == ["triton-interpreted", "triton-compiled"]
    assert others["variant"] is None


def test_only_cases_and_the_variant_that_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases that are made for its forms come first: of float16, with an epilogue."""
    monkeypatch.setattr(availability, "here", lambda **_: "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # else they are not made
    spec = SPECS["linear_act"]
    (candidate,) = trial._candidates(spec, "triton-compiled", "gluon")
    assert candidate.variant == "gluon"
    few = trial.cases_of(spec, "triton-compiled", "quick", "gluon")
    every = trial.cases_of(spec, "triton-compiled", "quick")
    assert 0 < len(few) < len(every)
    assert all(applies(candidate, spec, case) for case in few)
    ops = ["gemm_bias_act", "linear_act"]
    tried = [
        c for _, c in trial._tried(ops, "triton-compiled", "quick", 120, None, "gluon", KERNELS)
    ]
    cuts = GLUON + GLUON_BESIDE
    addends = GLUON_ADDEND + GLUON_FEW  # each with one of the two epilogues
    number = 2 * len(cuts) + len(addends)
    first, rest = tried[:number], tried[number:]
    of_forms = {(M, K, number) for (M, _, K), number in cuts + addends}
    tried_first = {(*case.shape[::2], case.options["multiprocessors"]) for case in first}
    assert tried_first == of_forms
    assert {case.dtype for case in first} == {"float16"}
    assert all("c" in case.options for case in first)
    assert len({case.dtype for case in rest}) > 1


@pytest.mark.parametrize(
    ("file", "precision", "cuts"),
    [("fma_kernels.py", "ieee", GLUON_FMA), ("parts_kernels.py", "f16x3", GLUON_PARTS)],
)
def test_a_file_for_float32_is_judged_by_its_own_cases_first(
    file: str, precision: str, cuts: list[Cut], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(availability, "here", lambda **_: "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    how = "triton-compiled", "quick", None, None, "gluon", f"{population.GLUON}{file}"
    tried = [case for _, case in trial._tried(["gemm_bias_act"], *how)]
    own = [
        case.dtype == "float32"
        and case.options.get("precision", "ieee") == precision
        and "multiprocessors" in case.options
        for case in tried
    ]
    first = tried[: own.index(False)]
    assert not any(own[len(first) :])
    assert {(case.shape, case.options["multiprocessors"]) for case in first} >= set(cuts)
    plain = ["c" not in case.options for case in first]
    assert plain == sorted(plain), "those with an epilogue before the others"


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        ("it fails: ArithmeticError: its self-test gives a wrong product", "killed"),
        ("it fails: CompilationError: at 91:8:", "did not compile"),
    ],
)
def test_its_self_test_is_the_first_case(
    reason: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After which products run in other kernels, so that no case would come to the fault. One that
    hangs is ended, as any case is."""
    limits = []

    def here(multiply_adds: bool = False) -> str:
        limits.append([signal.getitimer(which)[0] for which in TIMERS])
        return reason

    monkeypatch.setattr(availability, "here", here)
    plan = ["linear_act"], ["triton-compiled"], "quick", None, True, 20.0, None
    assert trial.try_cases(*plan, "gluon", KERNELS) == {"end": end, "says": [reason]}
    assert [[round(left) for left in each] for each in limits] == [[20, 120]]
    assert [signal.getitimer(which)[0] for which in TIMERS] == [0, 0]


def test_gluons_names_are_those_of_tritons_language(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "here", lambda **_: "")
    drawn = [m for m in population.population(["triton"], ["linear_act"]) if m.file == KERNELS]
    kinds = {m.edit.kind for m in drawn}
    assert {"narrowed", "mask dropped", "program id", "bound", "alternative"} <= kinds
    assert not any("tl." in m.edit.new for m in drawn)
    assert len(drawn) > 300


def test_the_command_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what explains mutants of it is not stale there."""
    monkeypatch.setattr(availability, "here", lambda **_: "there is no GPU")
    monkeypatch.setattr(planting, "healthy", lambda sides, plan: "")
    monkeypatch.setattr(planting, "run", lambda mutants, plan, jobs: iter(()))
    known = Explanation(KERNELS, "_consume", "speed", "It is.", "a", "b")
    monkeypatch.setattr(explained, "read", lambda: [known])
    seen: list[list[Explanation]] = []
    run = tables.run

    def noting(*args: Any, **options: Any) -> tables.Report:
        seen.append(args[3])
        return run(*args, **options)

    monkeypatch.setattr(tables, "run", noting)
    done = CliRunner().invoke(app, ["mutate", "linear_act", "--side", "triton", "--sample", "1"])
    assert "not run: triton_kernels/gemm/gluon/: there is no GPU" in done.output
    assert seen == [[]]
