"""`python -m compare debug`: the catalogue, its exit codes, options that contradict each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import marked_lines
import pytest
import torch
import triton
import triton.language as tl
from typer.testing import CliRunner, Result

from compare import ops
from compare.checking import running
from compare.cli import app
from compare.commands import debug_choice
from compare.ops import SPECS

line_of = marked_lines.finder("# fault: ", __file__)


def command(*words: str) -> Result:
    return CliRunner().invoke(app, ["debug", *words])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("op", list(SPECS))
def test_healthy_catalogue(op: str, dtype: str) -> None:
    done = command(op, "--dtype", dtype)
    assert done.exit_code == 0, done.output
    assert "nothing wrong found" in " ".join(done.output.split())


def broken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The op stores one element wrongly, by a kernel of its own."""
    right = SPECS[name].triton

    def wrong(*args: Any, **kwargs: Any) -> torch.Tensor:
        out = right(*args, **kwargs)
        spoil[(2,)](out)
        return out

    monkeypatch.setitem(ops.SPECS, name, SPECS[name].changed(triton=wrong))


@triton.jit
def spoil(out_ptr):
    i = tl.program_id(0)
    if i == 1:
        tl.store(out_ptr + 7, 99)  # fault: second launch


def test_findings_exit_1_and_a_checks_debug_line_works(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken("square", monkeypatch)
    words = ["check", "square", "--dtype", "int32", "--shape", "10", "--impl", "triton"]
    checked = CliRunner().invoke(app, [*words, "--jobs", "1"]).output
    assert "on the Triton side program (1, 0, 0) writes it" in checked
    line = next(x for x in checked.splitlines() if x.strip().startswith("debug: "))
    replay = next(x for x in checked.splitlines() if x.strip().startswith("replay: "))
    assert line.split("compare debug ")[1] == replay.split("compare check ")[1]
    report = tmp_path / "findings.json"
    done = command(*line.split("compare debug ")[1].split(), "--tiles", "--json", str(report))
    assert done.exit_code == 1, done.output
    assert f"{Path(__file__).name}:{line_of('second launch')} in spoil" in done.output
    assert "worst out[7]: got 99 (0x00000063)" in done.output
    found = json.loads(report.read_text())
    assert found["trace"]["program"] == [1, 0, 0]
    (event,) = found["trace"]["events"]  # of the second launch only
    assert (event["region"]["text"], event["values"]) == ("out_ptr[7]", [99])


def test_a_cuda_mismatch_has_a_debug_line() -> None:
    case = next(SPECS["add"].cases("float16", "quick"))
    said = str(running.Mismatch(case, "cuda-host", "wrong values"))
    assert f"debug: {case.command('cuda-host', 'debug')}" in said
    mismatch = running.Mismatch(case, "triton-compiled/f16", "wrong values")
    assert "--impl triton-compiled/f16" in str(mismatch).splitlines()[-1]
    assert " compare debug add " in str(mismatch).splitlines()[-1]


def test_variant_and_program() -> None:
    done = command("add", "--impl", "triton-interpreted/f16x2", "--program", "1")
    assert done.exit_code == 0, done.output
    assert "add float16 33x129 contiguous normal seed=0, variant f16x2" in done.output
    assert "x_ptr.flat[256:512]" in done.output
    assert command("add", "--variant", "f16x2").exit_code == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "Missing argument"),
        (["cube"], "no op 'cube'"),
        (["add", "--dtype", "float8"], "one of float16"),
        (["relu_scale", "--dtype", "int32"], "has no dtype int32"),
        (["add", "--shape", "7,a"], "sizes with commas"),
        (["add", "--layout", "odd"], "one of contiguous"),
        (["add", "--arg", "gamma=1"], "one of x, y, y_dtype, alpha"),
        (["add", "--impl", "opencl"], "use triton, cuda"),
        (["add", "--variant", "f99"], "add has f32"),
        (["square", "--variant", "f32"], "square has no variants"),
        (["add", "--variant", "f16", "--impl", "triton/f32"], "exclude each other"),
        (["add", "--variant", "f16", "--dtype", "float32"], "not made for this case"),
        (["add", "--program", "a"], "up to three numbers"),
        (["add", "--program", "1,2,3,4"], "up to three numbers"),
        (["add", "--program", "99"], "program (99, 0, 0) is not in the grid, which is (9, 1, 1)"),
        (["add", "--json", "no/such/folder/x.json"], "cannot write there"),
    ],
)
def test_usage_errors_exit_2(words: list[str], says: str) -> None:
    done = command(*words)
    assert done.exit_code == 2, done.output
    assert says in " ".join(done.output.replace("│", " ").split()), done.output


# Every option of the table of contradictions, as it is written.
WRITTEN = {
    **{
        f"--{name} {side}": [f"--{name}", side]
        for name in ("side", "impl")
        for side in ("triton", "cuda")
    },
    debug_choice.OTHER_VARIANT: ["--impl", "triton/f32"],
    "--variant": ["--variant", "f16"],
    "--tool": ["--tool", "values"],
    "--program": ["--program", "0"],
    "--break": ["--break", "add.py:1"],
    "--output": ["--output", "x.py"],
    **{name: [name] for name in ("--tiles", "--pdb", "--bisect", "--shrink")},
}


@pytest.mark.parametrize(
    ("one", "other"), [(row.one, row.other) for row in debug_choice.CONTRADICTIONS]
)
def test_options_that_contradict_each_other_cannot_meet(
    one: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One error that names both, before a case is made, let alone run."""

    def never(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("got so far")

    monkeypatch.setattr(debug_choice, "one_case", never)
    for pair in ((one, other), (other, one)):
        done = command("add", *WRITTEN[pair[0]], *WRITTEN[pair[1]])
        assert done.exit_code == 2, done.output
        said = " ".join(done.output.replace("│", " ").split())
        valued = ("--side", "--impl", "--variant")
        named = [" ".join(WRITTEN[x]) if x.startswith(valued) else x for x in (one, other)]
        assert f"{named[0]} and {named[1]} exclude each other" in said


def test_options_that_agree_may_meet() -> None:
    case = ["add", "--shape", "7"]
    same = ["--side", "triton", "--impl", "triton/f16", "--variant", "f16", "--no-bisect"]
    assert command(*case, *same, "--program", "0", "--tiles").exit_code == 0
    spec, nothing = SPECS["add"], dict.fromkeys(("--tool", *debug_choice.TRITON_ONLY))

    def side(side: str | None, impl: str | None, tool: Any = None) -> str:
        return debug_choice.side_to_debug(spec, side, impl, None, {**nothing, "--tool": tool})

    assert side(None, None) == side("triton", "triton-compiled/f16") == "triton"
    assert side(None, "cuda-host/f16") == side("cuda", "cuda", ["values"]) == "cuda"
    assert side(None, None, ["values"]) == side("cuda", None) == "cuda"


@pytest.mark.parametrize(("side", "variant"), [("triton", "f16x2"), ("cuda", "f16x8")])
def test_the_case_that_is_debugged_is_one_the_variant_is_made_for(side: str, variant: str) -> None:
    """float32 where that will do, on both sides."""
    spec, one = SPECS["add"], dict.fromkeys(("shape", "layout", "values", "arg"))

    def chosen(impl: str | None, dtype: str | None = None) -> tuple[str | None, str]:
        named, case = debug_choice.case_to_debug(spec, side, impl, None, dtype, 3, one)
        assert case.seed == 3
        return named, case.dtype

    assert chosen(None) == chosen(side) == (None, "float32")
    assert chosen(f"{side}/{variant}") == (variant, "float16")
    assert chosen(None, "bfloat16") == (None, "bfloat16")
