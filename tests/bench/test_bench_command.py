"""python -m compare bench from end to end, on a simulated GPU: what it prints, keeps and says."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from benched import SMALL, SQUARE, amid_samples, bench, entries, flat
from simulated_gpu import COOL, Rig

import compare
from compare.cases import Case
from compare.ops import SPECS
from compare.specs import Spec
from compare.timing import bench as benchmarks
from compare.timing import gpu, saved
from compare.timing.results import CaseResult


def test_times_rates_and_ratios_reach_the_file(rig: Rig, tmp_path: Path) -> None:
    rig.factor = {"triton": 1.25, "eager": 2.5, "compile": 5.0}
    done = bench(*SMALL, "--json", str(tmp_path / "b.json"))
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "b.json").read_text())
    (case,) = found["cases"]
    moved = 2 * 2 * 4096**2
    assert (case["flops"], case["bytes"], case["rate_unit"]) == (4096**2, moved, "GB/s")
    assert "sweep" not in case
    limit = moved / 4e6
    by = entries(case)
    assert by["triton"]["median"] == pytest.approx(1.25 * limit)
    assert by["triton"]["percent_of_limit"] == pytest.approx(80)
    assert by["triton"]["rate"] == pytest.approx(3200)
    assert by["triton"]["speedup"]["value"] == pytest.approx(2)
    assert by["triton"]["microseconds"] == pytest.approx([1.25 * limit] * 20, abs=1e-3)
    assert case["best_peer"] == "eager"
    assert (found["cold"], found["graph"], found["full"], found["ended"]) == (
        (True, False, False, "")
    )
    assert found["environment"]["gpu"] == "Simulated"
    assert re.fullmatch(r"([0-9a-f]{40}(-dirty)?|unknown)", found["environment"]["commit"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}\+00:00", found["environment"]["date"])
    assert found["state_before"] == found["state_after"] == COOL
    again = CaseResult.from_dict(case).to_dict()
    medians = [found.pop("entries")[0]["median"] for found in (again, case)]
    assert medians[0] == pytest.approx(medians[1], abs=1e-3)
    assert again == case


def test_a_slower_run_is_a_regression(rig: Rig, tmp_path: Path) -> None:
    before = str(tmp_path / "before.json")
    assert bench(*SMALL, "--json", before).exit_code == 0
    assert bench(*SMALL, "--baseline", before).exit_code == 0
    rig.factor = {"triton": 1.25 * 1.06}
    done = bench(*SMALL, "--baseline", before)
    assert done.exit_code == 1
    assert "square float16 4096×4096, triton: 6 % slower than the baseline" in done.output


@pytest.mark.parametrize("way", ["--warm", "--graph"])
def test_another_way_of_measuring_is_told_and_kept_apart(
    rig: Rig, tmp_path: Path, way: str
) -> None:
    other, plain = str(tmp_path / "other.json"), str(tmp_path / "plain.json")
    assert bench(*SMALL, way, "--json", other).exit_code == 0
    assert bench(*SMALL, "--json", plain).exit_code == 0
    found = json.loads(Path(other).read_text())
    assert (found["cold"], found["graph"]) == (way != "--warm", way == "--graph")
    then, now = (
        entries(json.loads(Path(f).read_text())["cases"][0])["triton"] for f in (other, plain)
    )
    assert then["median"] == pytest.approx(now["median"] / (2 if way == "--warm" else 1))
    assert (then["percent_of_limit"] is None) == (way == "--warm")
    done = bench(*SMALL, "--baseline", other)
    assert done.exit_code == 2
    assert f"({way}), this run takes them with a cold cache" in flat(done.stderr)
    assert bench(*SMALL, way, "--baseline", other).exit_code == 0


def test_files_of_before_these_options_are_cold_calls(rig: Rig, root: Path) -> None:
    file = str(root / "docs" / "benchmarks" / "h200.json")
    assert "no file" not in bench(*SMALL, "--baseline", file).output
    assert "with a warm cache" in bench(*SMALL, "--warm", "--baseline", file).stderr


TWO = (*SQUARE, "--shapes", "4096,4096", "--shapes", "2048,2048", "--samples", "20")


def test_one_that_raises_amid_its_samples_ends_nothing(rig: Rig, tmp_path: Path) -> None:
    rig.before = amid_samples("triton", rig)
    done = bench(*TWO, "--json", str(tmp_path / "b.json"))
    assert done.exit_code == 1
    assert "OutOfMemoryError CUDA out of memory" in done.output
    first, second = json.loads((tmp_path / "b.json").read_text())["cases"]
    assert entries(first)["triton"] == {
        "provider": "triton",
        "problem": "OutOfMemoryError CUDA out of memory",
    }
    assert entries(first)["eager"]["samples"] == 20
    assert entries(second)["triton"]["samples"] == 20


def test_a_gpu_that_is_lost_ends_it_with_what_is_measured(rig: Rig, tmp_path: Path) -> None:
    rig.before = amid_samples("compile", rig, sticky=True)
    words = (*SQUARE, "--samples", "20", "--json", str(tmp_path / "b.json"))
    done = bench(*words)
    assert done.exit_code == 1
    why = "the GPU no longer answers; square float16 (4096, 4096), compile: OutOfMemoryError"
    assert why in flat(done.output)
    assert "2 of 4 cases are timed" in flat(done.output)
    found = json.loads((tmp_path / "b.json").read_text())
    assert [case["shape"] for case in found["cases"]] == [[1024, 1024], [2048, 2048]]
    assert why in found["ended"]


def test_no_memory_for_the_inputs_is_that_cases_problem(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inputs(spec: Spec, case: Case, seed: int) -> Any:
        if case.shape[0] == 4096:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return (seed,), {}

    monkeypatch.setattr(benchmarks, "inputs", inputs)
    done = bench(*TWO)
    assert done.exit_code == 1
    assert "no memory for the inputs: CUDA out of memory" in done.output
    assert "2048×2048, limit" in done.output


@pytest.mark.parametrize("where", ["ceilings", "Gpu"])
def test_a_gpu_that_others_fill_is_told_in_a_line(
    where: str, rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As without a GPU: its status, and no file."""

    def full() -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has")

    monkeypatch.setattr(gpu, where, full)
    file = tmp_path / "b.json"
    done = bench(*TWO, "--json", str(file))
    assert done.exit_code == 3, done.output
    says = "the GPU is out of memory, asked for 1.00 GiB; other processes may use it"
    assert f"nothing to time: {says}" in flat(done.output)
    assert "Traceback" not in done.output
    assert not file.exists()
    with pytest.raises(gpu.NoMemoryError, match=says):
        compare.bench(SPECS["square"], dtypes=["float16"], shapes=[(64, 64)])


# ---- sweeps and the full run ----


def test_a_sweep_is_one_table_and_has_its_place_in_the_file(rig: Rig, tmp_path: Path) -> None:
    rig.factor = {"eager": 2.5}
    words = ("square", "--sweep", "--dtype", "float32", "--samples", "5")
    done = bench(*words, "--json", str(tmp_path / "b.json"))
    assert done.exit_code == 0, done.output
    cases = json.loads((tmp_path / "b.json").read_text())["cases"]
    sizes = [4**k for k in range(6, 15)]
    assert [(case["sweep"], case["x"], case["shape"]) for case in cases] == [
        ("numel", n, [n]) for n in sizes
    ]
    assert done.output.count("square float32, GB/s and × best peer") == 1
    rows = [line.split() for line in done.output.splitlines() if line.split()[:1] == ["268435456"]]
    assert rows == [["268435456", *["3200", "1.00"] * 4, "1600", "0.50", "3200", "best"]]
    assert "numel" in done.output.splitlines()[-1]  # a line of the summary


def test_a_wide_sweep_comes_in_several_tables(rig: Rig) -> None:
    done = bench("add", "numel", "--sweep", "--dtype", "float16", "--samples", "3")
    assert done.output.count("add float16, GB/s") == 2
    assert all(len(line) <= 120 for line in done.output.splitlines())
    assert "f16x8_pack" in done.output


def test_each_sweep_has_its_own_table(rig: Rig) -> None:
    done = bench("gemm_bias_act", "--sweep", "--dtype", "bfloat16", "--samples", "3")
    tables = done.output.split("gemm_bias_act bfloat16, TFLOP/s and × best peer")[1:]
    sizes = [[line.split()[0] for line in t.splitlines() if line[:5].strip()] for t in tables]
    assert sizes[0][:3] == ["M=N=K", "256", "384"]
    assert sizes[1][:3] == ["M", "1", "2"]
    assert "384" not in sizes[1]


def test_what_went_wrong_in_a_sweep_is_told_below(rig: Rig) -> None:
    rig.before = amid_samples("triton", rig)
    done = bench("linear_gelu", "M=N=K", "--sweep", "--dtype", "float16", "--samples", "20")
    (row,) = [line for line in done.output.splitlines() if line.split()[:1] == ["4096"]]
    assert row.split()[1] == "failed"
    assert "M=N=K 4096 triton: OutOfMemoryError" in flat(done.output)
    assert " 8192 " in done.output
    assert done.exit_code == 1


def test_slow_providers_are_in_a_sweep_only_by_name() -> None:
    done = bench("gemm_bias_act", "M=N=K", "--sweep", "--dry-run", "--dtype", "bfloat16")
    lines = done.stdout.splitlines()[:-1]
    assert len(lines) == 11
    assert {line.split(": ")[1] for line in lines} == {
        "triton, cuda/cublaslt, eager, compile, cublaslt"
    }
    named = ("--providers", "triton,cuda,max-autotune")
    done = bench("gemm_bias_act", "M", "--sweep", "--dry-run", "--dtype", "bfloat16", *named)
    assert len(done.stdout.splitlines()) == 15 + 1
    assert "4096x4096x4096" in done.stdout
    assert done.stdout.splitlines()[0].endswith(": triton, cuda, max-autotune")


def test_full_is_everything() -> None:
    plain = bench("linear_gelu", "add", "--dry-run").stdout.splitlines()
    full = bench("linear_gelu", "add", "--dry-run", "--full").stdout.splitlines()
    assert len(full) == len(plain) + 3 * (9 + 11 + 15)
    assert sum("max-autotune" in line for line in plain) == 6  # not where tuning takes long
    assert sum("max-autotune" in line for line in full) == 3 * (10 + 11 + 15)


# ---- what the machine is ----


def test_the_commit_is_git_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "ROOT", tmp_path)
    assert saved.commit() == "unknown"
    (tmp_path / ".git").mkdir()
    answers = {"rev-parse": "abc", "status": ""}
    monkeypatch.setattr(saved, "_git", lambda verb, *_: answers[verb])
    assert saved.commit() == "abc"
    answers["status"] = " M compare/cases.py"
    assert saved.commit() == "abc-dirty"

    def without(*_: str) -> str:
        raise FileNotFoundError("git")

    monkeypatch.setattr(saved, "_git", without)
    assert saved.commit() == "unknown"


def test_every_source_of_both_sides_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    hashed: list[str] = []
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: hashed.append(path.name) or read(path))
    saved.sources.cache_clear()
    found = saved.sources()
    assert {"square.py", "square.cu", "elementwise.cuh", "engine.py", "products.py"} <= set(hashed)
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b" " * (path.suffix == ".cu"))
    saved.sources.cache_clear()
    assert saved.sources() != found
    saved.sources.cache_clear()


def test_every_op_has_sweeps_that_its_functions_take() -> None:
    for spec in SPECS.values():
        found = list(spec.sweeps("float16", spec.default_options))
        assert len({(name, x) for name, x, _ in found}) == len(found) >= 9
        for name, x, case in found:
            assert x == (case.numel if name == "numel" else case.shape[0]), name
            args, kwargs = spec.inputs(case, torch.device("meta"))
            numel = math.prod(case.shape[:2])  # of an elementwise op or a matrix product
            summed = {
                "sum_to": case.shape[-1],
                "act_backward": numel + case.shape[-1],
                "act_mul_backward": 2 * numel,
            }
            expected = summed.get(spec.name, numel)
            assert spec.eager(*args, **kwargs).numel() == expected
