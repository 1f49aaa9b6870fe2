"""compare compile: all architectures, and the drawn products beside the ops' own cases."""

from __future__ import annotations

import os
from typing import Any

import pytest
from typer.testing import CliRunner

from compare.cli import app
from compare.compiling import cross_compile, tables, walk
from compare.compiling.cross_compile import Figures, Kernel, Row, Unit
from compare.compiling.machine_code import SHARED_LIMIT
from triton_kernels.gemm import GPUS, Configuration, Problem, choose

ARCHS = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Unit]:
    """What would be compiled."""
    seen: list[Unit] = []

    def note(unit: Unit) -> list[Row]:
        seen.append(unit)
        return [Row(unit.arch, unit.op, "–", "x", Kernel("x", Figures(1, 0, 0, 0)))]

    monkeypatch.setattr(cross_compile, "compile_unit", note)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    return seen


def run(*words: str) -> Any:
    done = CliRunner().invoke(app, ["compile", *words, "--side", "triton"])
    assert done.exit_code == 0, done.output
    return done


def test_all_six_architectures_by_default(compiled: list[Unit]) -> None:
    assert list(SHARED_LIMIT) == list(GPUS) == ARCHS
    done = run("add", "gemm_bias_act")
    assert {(unit.op, unit.arch) for unit in compiled} == {
        (op, arch) for op in ("add", "gemm_bias_act") for arch in ARCHS
    }
    for arch in ARCHS:
        drawn = [p for unit in compiled if unit.arch == arch for p in unit.products]
        assert len(drawn) == walk.SAMPLE
        assert set(drawn) <= set(walk.distinct(arch))
    assert f"for {', '.join(ARCHS)}, " in done.output


def configured(problem: Problem, arch: str) -> Configuration:
    """What is compiled for a problem: one kernel, into however many parts it splits K."""
    chosen = choose(problem, GPUS[arch])
    return chosen._replace(SPLIT=min(2, chosen.SPLIT))


def test_full_is_everything_distinct(compiled: list[Unit]) -> None:
    run("gemm_bias_act", "--arch", "sm_120,sm_86", "--full")
    for arch in ("sm_120", "sm_86"):
        drawn = [p for unit in compiled if unit.arch == arch for p in unit.products]
        assert drawn == list(walk.distinct(arch))
        every = {configured(p.problem, arch) for p in walk.products()}
        assert {configured(p.problem, arch) for p in drawn} == every
        assert 10 <= len(every) < len(drawn) < 1100


def test_the_sample_is_always_the_same_and_only_of_triton() -> None:
    assert walk.sample("sm_86") == walk.sample("sm_86")
    assert cross_compile.units(["gemm_bias_act"], ["sm_80"], ["cuda"], True) == [
        Unit("gemm_bias_act", "sm_80", ("cuda",))
    ]
    assert len(cross_compile.units(["linear_gelu", "add"], ARCHS, ["triton"], True)) == 12


def test_drawn_products_have_rows_like_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = walk.sample("sm_86", 2)
    rows = cross_compile.compile_unit(Unit("gemm_bias_act", "sm_86", ("triton",), drawn))
    for row, product in zip(rows, drawn):
        assert row.label == product.label("sm_86")
        assert row.dtype == product.dtype
        assert row.triton is not None
        assert row.triton.figures is not None
        tiles = choose(product.problem, GPUS["sm_86"]).tiles
        assert row.triton.config["num_stages"] == tiles.num_stages
        assert list(row.problems()) == []
    report = tables.Report(rows, ["sm_86"], {})
    assert report.passed
    monkeypatch.setitem(SHARED_LIMIT, "sm_86", 100)
    assert not report.passed
