"""--target on kernels whose interfaces are not the usual one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import odd
import pytest
import torch
from processes import python

import compare
from compare.checking.implementations import unavailable
from compare.checking.oracles import OracleError

pytestmark = pytest.mark.skipif("cuda-host" in unavailable(), reason="no C++ compiler")


@pytest.fixture(scope="module")
def folder(root: Path, tmp_path_factory: pytest.TempPathFactory, own_library_cache: Path) -> Path:
    folder = tmp_path_factory.mktemp("odd")
    odd.make(folder, root)
    return folder


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return python(folder, "-m", "compare", *words)


def targets(names: list[str]) -> list[str]:
    return [word for name in names for word in ("--target", name)]


def test_check(folder: Path) -> None:
    """0-d and empty inputs, one element whose strides are not 1, int32 and int64, numbers by
    keyword, several launches, an autotuned kernel, one that works in place on a copy."""
    words = ("--quick", "--jobs", "1", "--json", "check.json")
    done = command(folder, "check", *targets(odd.RIGHT), *words)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((folder / "check.json").read_text())["rows"]
    assert [row["op"] for row in rows] == odd.RIGHT
    assert all(row["passed"] and row["runs"]["triton-interpreted"] > 12 for row in rows)
    assert rows[0]["runs"]["cuda-host"] == rows[0]["cases"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("NOTHING", "returned NoneType, expected one tensor"),
        ("INT32", "returned torch.int32 (3, 5), expected torch.float32 (3, 5)"),
    ],
)
def test_check_and_debug_name_a_result_of_another_kind(name: str, says: str, folder: Path) -> None:
    words = ("--target", f"odd.specs:{name}", "--shape", "3,5")
    done = command(folder, "check", *words)
    assert done.returncode == 1
    assert says in done.stdout, done.stderr
    done = command(folder, "debug", *words)
    assert done.returncode == 1
    assert f"stopped outside a kernel: TypeError: {says}" in done.stdout


def test_compile_writes_the_texts(folder: Path) -> None:
    words = ("--side", "triton", "--arch", "sm_90", "--asm", "ptx", "--out", "ptx")
    done = command(folder, "compile", *targets(odd.RIGHT), *words)
    assert done.returncode == 0, done.stdout + done.stderr
    texts = {file.name: file.read_text() for file in (folder / "ptx").iterdir()}
    assert f"ptx: {len(texts)} files" in done.stdout
    assert all(".target sm_90" in text and ".entry" in text for text in texts.values())
    of = {name: [file for file in texts if f"_{name}-" in file] for name in ("TUNED", "SEVERAL")}
    assert len(of["TUNED"]) == 2, "a configuration each"
    kernels = {kernel for file in of["SEVERAL"] for kernel in file.split("-")[2:3]}
    assert {kernel.split("_kernel")[0] for kernel in kernels} == {"scale", "positive"}


def test_compile_says_where_nothing_is_launched(folder: Path) -> None:
    both = targets(["odd.specs:NO_KERNEL", "odd.specs:NO_TRITON"])
    done = command(folder, "compile", *both, "--side", "triton", "--arch", "sm_90")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert "not compiled: triton, odd.specs:NO_KERNEL: it launched no Triton kernel" in lines
    assert "not compiled: triton, odd.specs:NO_TRITON: it has no Triton side" in lines
    assert lines[-1].startswith("nothing was compiled: 0 kernels")


def test_bench_and_profile_of_one_side(folder: Path) -> None:
    """They end, and time no empty tensor."""
    shapes = {"bench": ["0-d", "1x1", "3x5"], "profile": ["3x5"]}
    for name, timed in shapes.items():
        done = command(folder, name, "--target", "odd.specs:TUNED", "--dry-run")
        assert done.returncode == 0, done.stderr
        lines = [line for line in done.stdout.splitlines() if line.startswith("odd.specs")]
        case = "odd.specs:TUNED float32 {} contiguous normal seed=0: triton"
        assert lines == [case.format(shape) for shape in timed]


def test_profile_takes_the_sides_that_there_are(folder: Path) -> None:
    for name, sides in (("BOTH", "triton, cuda"), ("NO_TRITON", "cuda")):
        done = command(folder, "profile", "--target", f"odd.specs:{name}", "--dry-run")
        assert done.returncode == 0, done.stderr
        case = f"odd.specs:{name} float32 3x5 contiguous normal seed=0: {sides}"
        assert done.stdout.splitlines()[0] == case


def test_timing_of_a_target(folder: Path) -> None:
    """Of a dtype that it has, and of its Triton side alone."""
    done = command(folder, "timing", "--target", "odd.specs:TUNED", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("odd.specs:TUNED float32 3x5 contiguous normal seed=0, triton:")
    done = command(folder, "timing", "--target", "odd.specs:NO_TRITON", "--dry-run")
    assert done.returncode == 2
    assert "has no Triton side" in done.stderr


def test_sizes_that_operands_do_not_take(folder: Path) -> None:
    """The line that is named is the spec's."""
    text = "import compare\n\nBAD = compare.Function(\n    'bad', cuda=abs, oracle=abs, "
    text += "shapes=[(3,)],\n    operands=lambda M, N: [(M, N)])\n"
    (folder / "bad.py").write_text(text)
    done = command(folder, "check", "--target", "bad:BAD")
    assert done.returncode == 2
    says = " ".join(done.stderr.replace("│", " ").split())
    assert "'operands' does not take the sizes of shape (3,)" in says
    assert "bad.py:3)" in says.replace(" ", "")


def test_several_outputs_need_names() -> None:
    def oracle(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, 2 * x

    spec = compare.Function("two", cuda=oracle, oracle=oracle, shapes=[(3,)])
    with pytest.raises(OracleError, match=r"returns tuple, .* spec's argument 'outputs'"):
        compare.check(spec, level="quick")
    report = compare.cross_check(cuda=oracle, oracle=oracle, inputs=[(torch.randn(3),)])
    assert report, report
