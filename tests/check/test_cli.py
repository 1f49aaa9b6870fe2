"""python -m compare: exit statuses, selection, replay, JSON, refusals."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import processes
import pytest
import torch
from typer.testing import CliRunner, Result

from compare import ops
from compare.cases import Case
from compare.checking import judging, running, verdicts
from compare.checking.implementations import unavailable
from compare.cli import app
from compare.commands.options import one_case
from compare.ops import SPECS


def check(*words: str) -> Result:
    """In this process, where a monkeypatch holds and nothing has to start."""
    return CliRunner().invoke(app, ["check", *words, "--jobs", "1"])


def test_passes_and_writes_json(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = check("square", "--dtype", "int8", "--quick", "--json", str(report))
    assert done.exit_code == 0, done.output
    assert "all pass" in done.output
    found = json.loads(report.read_text())
    assert found["passed"] is True
    (row,) = found["rows"]
    assert (row["op"], row["dtype"], row["coverage"]) == ("square", "int8", "every input")
    assert row["runs"]["triton-interpreted"] == row["cases"]
    assert found["environment"]["torch"] == torch.__version__
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}\+00:00", found["date"])


def test_one_case() -> None:
    done = check(
        "add", "--dtype", "float16", "--shape", "7,13", "--layout", "transposed", "--seed", "5"
    )
    assert done.exit_code == 0, done.output
    assert "1 cases" in done.output


def test_most_takes_the_telling_cases(tmp_path: Path) -> None:
    file = tmp_path / "check.json"
    words = ["square", "--quick", "--most", "4", "--impl", "cuda-host", "--json", str(file)]
    done = check(*words)
    assert done.exit_code == 0, done.output
    rows = json.loads(file.read_text())["rows"]
    assert [row["cases"] for row in rows] == [4] * len(SPECS["square"].dtypes)
    every = sum(1 for d in SPECS["square"].dtypes for _ in SPECS["square"].cases(d, "quick"))
    assert f"--most 4: {4 * len(rows)} of {every} cases" in done.output


def test_a_part_of_the_inputs_proves_nothing(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ["--shape", "10", "--values", "every", "--json", str(report)]
    assert check("square", "--dtype", "float16", *words).exit_code == 0
    assert json.loads(report.read_text())["rows"][0]["coverage"] == "sampled"


def test_json_has_no_infinities(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An error counts as infinitely wrong; JSON has no word for that."""

    def broken(x: torch.Tensor, **options: object) -> torch.Tensor:
        raise RuntimeError("launch failed")

    monkeypatch.setitem(ops.SPECS, "square", SPECS["square"].changed(triton=broken))
    report = tmp_path / "report.json"
    done = check("square", "--dtype", "int8", "--shape", "5", "--json", str(report))
    assert done.exit_code == 1

    def refuse(word: str) -> None:
        raise AssertionError(word)

    found = json.loads(report.read_text(), parse_constant=refuse)
    assert found["rows"][0]["worst"]["triton-interpreted"] == "inf"


def test_a_lost_gpu_ends_gpu_runs_and_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "gpu_is_lost", lambda: True)
    done = check("square", "--dtype", "int8", "--shape", "5", "--impl", "triton-interpreted")
    assert done.exit_code == 0, done.output
    assert "not run: the rest on the GPU: a kernel broke the CUDA context" in done.output


def test_mismatch_is_described_and_its_command_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an oracle that is off in one place both sides must fail, there and only there."""
    right = SPECS["square"].oracle

    def wrong(x: torch.Tensor) -> torch.Tensor:
        out = right(x)
        if out.numel() > 700:
            out.view(-1)[700] += 1
        return out

    monkeypatch.setitem(ops.SPECS, "square", SPECS["square"].changed(oracle=wrong))
    done = check("square", "--dtype", "int32", "--shape", "1000", "--seed", "3")
    assert done.exit_code == 1
    assert "element (700,)" in done.output
    assert "1 of 1000 elements wrong" in done.output
    assert "on the Triton side program (1, 0, 0) writes it" in done.output  # 512 elements a program
    if "cuda-host" not in unavailable():
        assert "suspect the oracle" in done.output
    replay = next(line for line in done.output.splitlines() if "replay:" in line)
    words = replay.split("compare check ")[1].split()
    again = check(*words)
    assert again.exit_code == 1
    assert "element (700,)" in again.output
    assert "1 cases, 1 runs" in again.output


def test_replay_command_names_every_coordinate() -> None:
    case = Case("add", "float16", (7, 13), "padded", "special", 4, {"alpha": 0.1, "y": "row"})
    assert case.command("cuda-host/f16x2") == (
        "python -m compare check add --dtype float16 --shape 7,13 --layout padded "
        "--values special --seed 4 --arg alpha=0.1 --arg y=row --impl cuda-host/f16x2"
    )


def test_every_case_replays_to_itself() -> None:
    """The command line of a case builds that very case."""
    for spec in SPECS.values():
        for dtype in spec.dtypes[:2]:
            for case in spec.cases(dtype, "quick"):
                one = {
                    "shape": ",".join(map(str, case.shape)) or "scalar",
                    "layout": case.layout,
                    "values": case.values,
                    "arg": [f"{k}={v}" for k, v in case.options.items()],
                }
                again = one_case(spec, dtype, case.seed, one)
                assert again == case
                types = {name: type(value) for name, value in case.options.items()}
                assert types == {name: type(value) for name, value in again.options.items()}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["cube"], "no op 'cube'; the ops are add"),
        (["add", "--dtype", "float8"], "one of float16"),
        (["relu_scale", "--dtype", "int32"], "relu_scale has no dtype int32"),
        (["add", "--shape", "7,a"], "sizes with commas"),
        (["add", "--shape", "7,-1"], "not negative"),
        (["add", "--layout", "odd"], "one of contiguous"),
        (["add", "--values", "odd"], "one of normal"),
        (["add", "--arg", "gamma=1"], "one of x, y, y_dtype, alpha"),
        (["add", "--arg", "alpha=two"], "--arg alpha=two: alpha is a number"),
        (["add", "--arg", "alpha="], "alpha is a number"),
        (["add", "--arg", "alpha=" + "9" * 400], "alpha is a number"),
        (["add", "--dtype", "int32", "--arg", "alpha=0.5"], "alpha must be an integer"),
        (["add", "--arg", "x=scalar", "--arg", "y=scalar"], "x or y must be a tensor"),
        (["add", "--arg", "x=scalar", "--layout", "inplace"], "no place for the result"),
        (["add", "--arg", "y=diagonal"], "y is one of same, row, column, 0-d"),
        (["add", "--arg", "y_dtype=float8"], "y_dtype is one of float16"),
        (["relu_scale", "--arg", "scale=true"], "scale is a number"),
        (["relu_scale_add", "--arg", "y=scalar"], "y is one of same"),
        (["square_backward", "--arg", "y_dtype=int32"], "y_dtype is one of float16, bfloat16"),
        (["sum_to", "--arg", "to=rows"], "to is one of row, column"),
        (["sum_to", "--arg", "out_dtype=int32"], "out_dtype is one of float16"),
        (["linear_gelu", "--arg", "bias=no"], "--arg bias=no: bias is True or False"),
        (["linear_gelu", "--arg", "bias=0"], "bias is True or False"),
        (["linear_gelu", "--arg", "approximate=erf"], "approximate is one of none, tanh"),
        (["linear_gelu", "--shape", "33"], "linear_gelu has M,N,K"),
        (["gemm_bias_act", "--arg", "act=swish"], "act is one of none, relu"),
        (["gemm_bias_act", "--arg", "c=diagonal"], "c is one of full, row"),
        (["gemm_bias_act", "--arg", "beta=0.5"], "beta needs c"),
        (["linear_gelu", "--arg", "multiprocessors=0"], "a positive whole number"),
        (["linear_gelu", "--arg", "training=pre"], "training needs --layout functional"),
        (
            ["gemm_bias_act", "--layout", "functional", "--arg", "training=pre"],
            "training=pre is for gelu, gelu_tanh, silu",
        ),
        (["gemm_bias_act", "--arg", "precision=fp32"], "precision is one of ieee, tf32"),
        (
            ["gemm_bias_act", "--dtype", "float16", "--arg", "precision=tf32"],
            "precisions but ieee are for float32",
        ),
        (["add", "--dtype", "int32", "--arg", f"alpha={2**70}"], "must be an integer of 64 bits"),
        (["add", "--seed", str(2**70)], "9223372036854775807"),
        (["add", "--shape", f"{2**60}"], "GB of memory"),
        (["gemm_bias_act", "--shape", "1000000000,3,1000000000"], "GB of memory"),
        (["sum_to", "--shape", f"{2**40},{2**40}"], "no memory has so many bytes"),
        (["act_backward", "--arg", "act=1"], "act is one of none"),
        (["act_backward", "--arg", "grad_dtype=int8"], "grad_dtype is one of float16"),
        (["act_backward", "--shape", "3,4,5"], "act_backward has M,N"),
        (["square", "--values", "every", "--dtype", "float32"], "of 8 and 16 bits, not float32"),
        (["add", "--impl", "cuda-host/f99"], "cuda-host/f16x8"),
        (["add", "--require", "opencl"], "triton, cuda or"),
        (["add", "--quick", "--full"], "exclude each other"),
        (["add", "--sanitize", "memory"], "must be one of address"),
        (["add", "--json", "no/such/folder/x.json"], "cannot write there"),
        (["add", "--unknown"], "No such option"),
        pytest.param(
            ["add", "--exhaustive"],
            "needs a GPU",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_usage_errors_exit_2(words: list[str], says: str) -> None:
    done = check(*words)
    assert done.exit_code == 2, done.output
    flat = " ".join(done.output.replace("│", " ").split())
    assert says in flat, done.output


@pytest.mark.parametrize("bias", ["True", "true", "False", "false"])
def test_a_flag_means_what_it_says(bias: str) -> None:
    one = {"shape": "3,5,4", "layout": None, "values": None, "arg": [f"bias={bias}"]}
    case = one_case(SPECS["linear_gelu"], "float32", 0, one)
    given = SPECS["linear_gelu"].inputs(case)[0][2]
    assert (given is not None) is (bias.lower() == "true")


def test_every_option_reads_its_values_and_refuses_others() -> None:
    for spec in SPECS.values():
        for option in spec.options.values():
            with pytest.raises(ValueError, match="neither"):
                option.read("neither")
        assert set(spec.default_options) <= set(spec.options)


def test_require_fails_for_a_side_that_did_not_run() -> None:
    done = check(
        "square", "--dtype", "int8", "--shape", "5", "--impl", "triton", "--require", "triton,cuda"
    )
    assert done.exit_code == 1
    assert "required, but did not run: cuda" in done.output


def test_without_a_compiler_the_cuda_column_says_why(tmp_path: Path, root: Path) -> None:
    """A newcomer without g++ gets the Triton side, exit status 0, and the reason."""
    words = ["-m", "compare", "check", "square", "--dtype", "int8", "--shape", "5", "--jobs", "1"]
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    done = processes.python(root, *words, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not run: cuda-host: no C++ compiler" in done.stdout
    done = processes.python(root, *words, "--require", "cuda", environment=environment)
    assert done.returncode == 1


@pytest.mark.skipif("cuda-host" in unavailable(), reason="no host target here")
def test_sanitize_runs_the_host_target_under_asan() -> None:
    words = ["square", "--dtype", "float16", "--shape", "33,129", "--sanitize", "address"]
    words += ["--jobs", "1"]
    command = [sys.executable, "-m", "compare", "check", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all pass: 1 cases, 7 runs" in done.stdout


def test_an_implementation_is_asked_only_for_what_it_is_made_for() -> None:
    done = check("add", "square", "--impl", "cuda-host/f16x8", "--quick")
    assert done.exit_code == 0, done.output
    assert "add float16" in done.output
    assert "square" not in done.output
    assert "float32" not in done.output
    done = check("add", "--dtype", "float32", "--impl", "cuda-host/f16x8")
    assert done.exit_code == 2
    assert "not made for these cases" in " ".join(done.output.split())


def test_the_writer_is_looked_for_in_the_variant_that_is_wrong() -> None:
    case = Case("add", "float16", (1040,))
    worst = judging.Deviation(1, 1040, (1000,), "", "", 0.0, 0.0, 0.0)
    for name, program in (("triton-interpreted", 0), ("triton-interpreted/f16", 7)):
        mismatch = running.Mismatch(case, name, "wrong values", worst)
        assert verdicts.find_writer(SPECS["add"], mismatch) == (program, 0, 0)
