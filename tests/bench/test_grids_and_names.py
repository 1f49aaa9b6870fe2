"""What people are used to: grids of sizes, the first results of each variant, short dtype names."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from benched import bench, flat
from simulated_gpu import Rig
from typer.testing import CliRunner

import compare
from compare.cases import DTYPES, dtype_name
from compare.cli import app
from compare.timing.bench import first_values


@pytest.mark.parametrize(
    ("names", "dtype"),
    [
        (("f16", "fp16", "half", "float16", "np.float16", torch.float16), "float16"),
        (("bf16", "bfloat16", torch.bfloat16), "bfloat16"),
        (("f32", "fp32", "float", "single", "numpy.float32", "torch.float32"), "float32"),
        (("f64", "fp64", "double", torch.double), "float64"),
        (("i8",), "int8"),
        (("u8",), "uint8"),
        (("short", "i16"), "int16"),
        (("long", "i64", torch.long), "int64"),
    ],
)
def test_names_of_dtypes(names: tuple[Any, ...], dtype: str) -> None:
    assert dtype in DTYPES
    assert {dtype_name(name) for name in names} == {dtype}


def test_commands_take_them() -> None:
    words = ("bench", "square", "--shapes", "8,8", "--dry-run", "--providers", "triton")
    said = CliRunner().invoke(app, [*words, "--dtype", "half,bf16,float16"]).output
    assert [line.split()[1] for line in said.splitlines()[:2]] == ["float16", "bfloat16"]
    for command in ("check", "debug"):
        words = (command, "square", "--dtype", "fp16", "--shape", "3", "--impl", "triton")
        done = CliRunner().invoke(app, [*words, *(["--jobs", "1"] if command == "check" else [])])
        assert done.exit_code == 0, done.output
        assert "float16" in done.output
    words = ("profile", "square", "--dtype", "half", "--dry-run")
    assert "square float16" in CliRunner().invoke(app, list(words)).output
    done = CliRunner().invoke(app, ["check", "square", "--dtype", "half-baked"])
    assert done.exit_code == 2
    assert "--dtype half-baked: one of float16," in flat(done.output)


def test_a_spec_takes_them() -> None:
    dtypes = ["half", torch.bfloat16]
    spec = compare.Function(
        "f", cuda=torch.abs, oracle=torch.abs, dtypes=dtypes, shapes=[(2,)], out_dtype="f32"
    )
    assert spec.dtypes == ("float16", "bfloat16")
    (case, *_) = spec.cases("float16", "quick")
    assert spec.out_dtype(case) == torch.float32


def shapes(*words: str) -> list[tuple[int, ...]]:
    done = bench(*words, "--dry-run", "--providers", "triton", "--dtype", "float16")
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.output.splitlines() if " float16 " in line]
    return [tuple(map(int, words[2].split("x"))) for words in lines]


def test_a_grid_is_all_pairs() -> None:
    sizes = (1024, 2048, 4096)
    assert shapes("add", "--grid", "1024,2048,4096") == list(itertools.product(sizes, sizes))
    assert len(shapes("linear_gelu", "--grid", "64,128")) == 8
    assert shapes("add", "--grid", "8,16", "--grid", "32", "--shapes", "5,5") == [
        *[(5, 5), (8, 32)],
        (16, 32),
    ]
    assert shapes("add", "--grid", "64", "--layout", "padded") == [(64, 64)]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("add", "--grid", "64", "--sweep"), "only one of --shapes, --sweep"),
        (("add", "--grid", "64,x"), "--grid 64,x: sizes with commas"),
        (("add", "--grid", "0"), "--grid 0: sizes are positive"),
        (("linear_gelu", "--grid", "1", "--grid", "2"), "the shapes have 3 sizes"),
    ],
)
def test_grids_that_are_none(words: tuple[str, ...], says: str) -> None:
    done = bench(*words, "--dry-run")
    assert done.exit_code == 2
    assert says in flat(done.output)


def test_first_values() -> None:
    x = torch.arange(60.0).reshape(3, 4, 5)
    assert first_values(x) == [0.0, 1.0, 2.0, 3.0]
    assert first_values(x.permute(2, 1, 0)) == [0.0, 20.0, 40.0]
    assert first_values(torch.tensor(7)) == [7]
    assert first_values(x[:0]) == first_values("none") == []


def test_values_are_shown_on_request(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = rig.gpu.launch

    def with_a_result(name: str, host: float, gpu: float) -> Any:
        launch(name, host, gpu)
        return torch.tensor([[1.5, 2.0], [3.0, 4.0]])

    monkeypatch.setattr(rig.gpu, "launch", with_a_result)
    words = ("square", "--shapes", "4096,4096", "--dtype", "half", "--samples", "9")
    words = (*words, "--providers", "triton,eager")
    shown = bench(*words, "--show-values")
    assert shown.exit_code == 0, shown.output
    for provider in ("triton", "eager"):
        assert f"{provider:<20}  1.5, 2\n" in shown.output
    assert "1.5, 2" not in bench(*words).output
