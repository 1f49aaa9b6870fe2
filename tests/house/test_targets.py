"""--target: a kernel pair in a package from elsewhere goes through every command."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import foreign
import pytest
import torch
from foreign import TARGET
from processes import python

import compare
from compare.checking.implementations import unavailable
from compare.checking.oracles import OracleError

pytestmark = pytest.mark.skipif("cuda-host" in unavailable(), reason="no C++ compiler")


@pytest.fixture(scope="module")
def folder(root: Path, tmp_path_factory: pytest.TempPathFactory, own_library_cache: Path) -> Path:
    """The package, and libraries of its own."""
    folder = tmp_path_factory.mktemp("elsewhere")
    foreign.make(folder, root)
    return folder


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return python(folder, "-m", "compare", *words)


@pytest.fixture
def faulty(folder: Path) -> Iterator[Path]:
    """The folder while the Triton kernel counts padding in its sums."""
    file = folder / "rowwise" / "softmax.py"
    text = file.read_text()
    file.write_text(text.replace('other=-float("inf")', "other=0.0"))
    yield folder
    file.write_text(text)


def test_check(folder: Path) -> None:
    words = ("--quick", "--jobs", "1", "--json", "check.json")  # without what only a GPU adds
    done = command(folder, "check", "--target", TARGET, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads((folder / "check.json").read_text())["rows"]
    assert row["op"] == TARGET
    assert row["passed"]
    assert row["unit"] == "ulp"
    assert row["cases"] == 15
    assert row["runs"]["triton-interpreted"] == row["runs"]["cuda-host"] == 15
    assert 0 < row["worst"]["cuda-host"] <= 16


def test_check_and_debug_find_the_fault(faulty: Path) -> None:
    """In worker processes, which must find the target themselves."""
    done = command(faulty, "check", "--target", TARGET, "--json", "wrong.json", "--impl", "triton")
    assert done.returncode == 1
    (row,) = json.loads((faulty / "wrong.json").read_text())["rows"]
    assert "Triton: the kernel's logic" in row["verdict"]
    wrong = row["mismatches"][0]
    assert wrong["replay"].startswith(f"python -m compare check --target {TARGET} --dtype float32")
    assert wrong["program_id"] is not None
    done = command(faulty, *wrong["debug"].split()[3:])
    assert done.returncode == 1
    assert "softmax.py:13 in softmax_kernel: tl.store(out_ptr" in done.stdout


def test_shrink_writes_a_file_that_fails(faulty: Path) -> None:
    words = ("--shrink", "--shape", "3,5", "--output", "reproduce.py")
    done = command(faulty, "debug", "--target", TARGET, *words)
    assert done.returncode == 1
    assert "reproduction: reproduce.py" in done.stdout, done.stdout
    assert "it passes" not in done.stdout
    run = [sys.executable, "reproduce.py"]  # it says how Triton shall load
    done = subprocess.run(run, cwd=faulty, capture_output=True, text=True, check=False)
    assert "AssertionError" in done.stderr


def test_debug_of_the_twin(folder: Path) -> None:
    words = ("--side", "cuda", "--tool", "values,initcheck", "--shape", "3,5")
    file = folder / "rowwise" / "softmax.cu"
    text = file.read_text()
    file.write_text(text.replace("n < N; n += 32) out[n]", "n <= N; n += 32) out[n]"))
    try:
        done = command(folder, "debug", "--target", TARGET, *words)
    finally:
        file.write_text(text)
    assert done.returncode == 1
    assert "out-of-bounds write of 4 bytes" in done.stdout
    assert "softmax.cu:13 in softmax_kernel: for (int n" in done.stdout
    assert "by block (2, 0, 0) thread (5, 0, 0)" in done.stdout
    assert "values 1 found, initcheck 3 found" in done.stdout


def test_compile(folder: Path) -> None:
    words = ("--arch", "sm_90", "--side", "triton", "--json", "compile.json")
    done = command(folder, "compile", "--target", TARGET, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads((folder / "compile.json").read_text())["rows"]
    assert row["op"] == TARGET
    assert row["label"] == "softmax_kernel BLOCK_N=256"
    assert row["triton"]["figures"]["registers"] > 8
    assert row["triton"]["figures"]["loads"] == {"32": 2}


def test_mutate(folder: Path) -> None:
    words = ("--side", "triton", "--sample", "2", "--json", "mutate.json")
    done = command(folder, "mutate", "--target", TARGET, *words)
    found = json.loads((folder / "mutate.json").read_text())
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert [row["file"] for row in found["rows"]] == ["rowwise/softmax.py"] * 2
    assert {row["function"] for row in found["rows"]} == {"softmax_kernel"}
    assert found["ends"]["killed"] >= 1, done.stdout


@pytest.mark.parametrize("words", [("bench",), ("profile",)])
def test_what_needs_a_gpu_says_so(words: tuple[str, ...], folder: Path) -> None:
    if "triton-compiled" not in unavailable():
        pytest.skip("there is a GPU")
    done = command(folder, *words, "--target", TARGET)
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert line.startswith("nothing to ")
    assert "no CUDA device" in line
    done = command(folder, *words, "--target", TARGET, "--dry-run")
    assert done.returncode == 0, done.stdout + done.stderr
    case = f"{TARGET} float32 4096x4096 contiguous normal seed=0"
    assert done.stdout.startswith(case), done.stdout


@pytest.mark.gpu_only
def test_bench_profile_and_report_on_a_gpu(folder: Path) -> None:
    words = ("--shapes", "1024x1024", "--samples", "5", "--json", "bench.json")
    done = command(folder, "bench", "--target", TARGET, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    (case,) = json.loads((folder / "bench.json").read_text())["cases"]
    entries = {entry["provider"]: entry for entry in case["entries"]}
    assert {"triton", "cuda", "eager"} <= entries.keys()
    assert not any(entry["problem"] for entry in entries.values()), entries
    # It launches on the default stream, which no capture sees: an empty graph is none.
    assert entries["cuda"]["replay"] is None
    assert entries["cuda"]["median"] > 2
    words = ("--shape", "1024,1024", "--no-ncu", "--out", "profile", "--json", "profile.json")
    done = command(folder, "profile", "--target", TARGET, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "softmax_kernel" in done.stdout
    done = command(folder, "report", "bench.json", "profile.json", "--out", "page.html")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "page.html").read_text().count(TARGET) > 2


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("rowwise", "MODULE:SPEC"),
        ("rowwise.specs:ABSENT", "no 'ABSENT'; its specs: SOFTMAX"),
        ("rowwise.absent:SOFTMAX", "No module named 'rowwise.absent'; run where it lies"),
        ("rowwise.softmax:softmax", "no compare.Spec but function; its specs: none"),
        ("rowwise/specs.py:SOFTMAX", "a module is named, not a file: rowwise.specs:SOFTMAX"),
        ("leaves:SPEC", "SystemExit: 3"),
        ("unbuilt:SPEC", "unbuilt.py:2)"),
    ],
)
def test_targets_that_are_none(target: str, says: str, folder: Path) -> None:
    (folder / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    text = "import cuda_reference\ntwin = cuda_reference.load('none', ['none.cu'])\n"
    (folder / "unbuilt.py").write_text(text)
    done = command(folder, "check", "--target", target)
    assert done.returncode == 2
    assert says in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to ask for")
def test_a_module_that_asks_for_the_gpu(folder: Path) -> None:
    (folder / "asking.py").write_text("import torch\n\ntorch.cuda.get_device_capability()\n")
    done = command(folder, "check", "--target", "asking:SPEC")
    said = " ".join(done.stderr.replace("│", " ").split())
    assert "asking.py:3); without a GPU import it inside triton_kernels.interpret()" in said


def test_their_own_tests(folder: Path) -> None:
    # By name, too, for where the package is not installed.
    plugins = ("-p", "compare.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:xdist")
    done = python(folder, "-m", "pytest", "-q", *plugins, "tests")
    assert done.returncode == 0, done.stdout[-3000:]
    assert "2 passed" in done.stdout
    assert "1 GPU benchmarks left out" in done.stdout


@pytest.mark.parametrize(
    ("oracle", "says"),
    [
        (lambda x: 1 / 0, r"raises ZeroDivisionError: .*test_targets\.py:\d+"),
        (lambda x: None, "returns NoneType, which is no tensor"),
        (lambda x, y: x, r"raises TypeError: .* missing 1 required positional argument: 'y'$"),
        (
            lambda x: (2 * x).half(),
            r"returns torch\.float16, and results are torch\.float32: return that",
        ),
    ],
)
def test_an_oracle_without_a_result_is_named(oracle: Any, says: str) -> None:
    spec = compare.Function("twice", cuda=lambda x: 2 * x, oracle=oracle, shapes=[(3,)])
    with pytest.raises(OracleError, match=f"^twice: its oracle {says}"):
        compare.check(spec, level="quick", dtypes=["float32"])


@pytest.mark.parametrize(
    ("bound", "says"),
    [
        (lambda reference: 1.0, "raises TypeError: .* takes 1 positional argument"),
        (lambda reference, x: 1 / 0, r"raises ZeroDivisionError: .*test_targets\.py:\d+"),
        (lambda reference, x: torch.ones(7), r"is of shape \(7,\), the results of \(3, 5\)"),
    ],
)
def test_a_bound_that_is_none_is_named(bound: Any, says: str) -> None:
    """And nobody's kernel is blamed."""
    spec = compare.Function(
        "twice", cuda=lambda x: 2 * x, oracle=lambda x: 2 * x, bound=bound, shapes=[(3, 5)]
    )
    report = compare.check(spec, level="quick")
    assert not report
    assert report.rows[0].verdict() == "no verdict: the bound is none"
    assert re.search(f"no verdict: its bound {says}", report.rows[0].mismatches[0].problem)


def test_a_function_that_launches_nothing_is_told(folder: Path) -> None:
    """It passes, as with cross_check, in this process and in others."""
    says = "the Triton side launched no kernel, so no Triton kernel was checked"
    given = {"triton": lambda x: 2 * x, "oracle": lambda x: 2 * x, "shapes": [(3,)]}
    report = compare.check(compare.Function("twice", **given), level="quick")  # type: ignore[arg-type]
    assert report
    assert f"twice float32: {says}" in str(report)
    text = "import compare\nTWICE = compare.Function('twice', triton=lambda x: 2 * x, "
    (folder / "twice.py").write_text(text + "oracle=lambda x: 2 * x, shapes=[(3,)])\n")
    for target, told in (("twice:TWICE", True), (TARGET, False)):
        words = ("--target", target, "--shape", "3,5", "--impl", "triton")
        done = command(folder, "check", *words)
        assert done.returncode == 0, done.stderr
        assert (f"{target} float32: {says}" in done.stdout) == told


def test_arguments_that_are_no_specs() -> None:
    spec = compare.Function("twice", cuda=lambda x: 2 * x, oracle=lambda x: 2 * x, shapes=[(3,)])
    for call in (compare.check, compare.bench):
        with pytest.raises(TypeError, match=r"'spec' must be a compare\.Spec, but got function"):
            call(test_check)  # type: ignore[operator]
    with pytest.raises(ValueError, match="no level 'fast'; there are quick, standard, full"):
        compare.check(spec, level="fast")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Function\(\) needs the argument 'triton' or 'cuda'"):
        compare.Function("sign", oracle=torch.sign, shapes=[(3,)])
    with pytest.raises(TypeError, match="'shapes' and 'timed' are lists of shapes"):
        compare.Function("sign", cuda=torch.sign, oracle=torch.sign, shapes=(3, 5))  # type: ignore[arg-type]


def test_check_of_an_elementwise_spec() -> None:
    """The cases that all of this project's elementwise ops share."""
    spec = compare.Elementwise("cube", "x·x·x", lambda x: x * x * x, cuda=lambda x: x * x * x)
    report = compare.check(spec, level="quick", dtypes=["float32"])
    assert report, report
    assert report.rows[0].runs["cuda-host"] > 30
    wrong = spec.changed(cuda=lambda x: x if x.stride()[-1:] == (2,) else x * x * x)
    report = compare.check(wrong, level="quick", dtypes=["float32"])
    assert not report
    layouts = {mismatch.case.layout for mismatch in report.rows[0].mismatches}
    assert "strided" in layouts
    assert "contiguous" not in layouts
    assert "replay:" not in str(report)  # no command knows this spec
    with pytest.raises(ValueError, match="has no dtype 'int8'"):
        compare.check(spec, dtypes=["int8"])
