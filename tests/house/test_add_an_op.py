"""docs/ARCHITECTURE.md, "Add an op in three files": its blocks make two ops in a copy."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest
from checkout import ROOT, copy_folders
from processes import python

from compare.checking.implementations import unavailable

OPS = ("cube", "scaled_product", "scaled_product_backward")
FOLDERS = ("triton_kernels", "cuda_reference", "compare", "tests", "docs", ".ci", "examples")
PARAMETRISED = (
    "arguments",
    "overlapping_arguments",
    "custom_ops",
    "ops",
    "properties",
    "tensors_without_memory",
    "variants",
    "versions",
)


def documented() -> dict[str, str]:
    """The files of the section, by their paths: each block follows the path of its file."""
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    section = text.split("## Add an op in three files")[1].split("\n## ")[0]
    blocks = re.compile(r"^```\w+\n(.*?)^```", re.S | re.M)
    found = {}
    for block in blocks.finditer(section):
        path = re.findall(r"`(\w+/(?:ops|csrc)/\w+\.\w+)`", section[: block.start()])[-1]
        found[path] = block[1]
    assert len(found) == 6
    return found


def copy_checkout(where: Path) -> None:
    copy_folders(where, *FOLDERS)
    for file in ("pyproject.toml", "Makefile", "README.md", "CHANGELOG.md"):
        shutil.copy(ROOT / file, where / file)


def contents(where: Path) -> dict[Path, bytes]:
    """Every file, but for what Python and hypothesis leave."""
    left = {"__pycache__", ".hypothesis"}
    return {p: p.read_bytes() for p in where.rglob("*") if p.is_file() and not left & {*p.parts}}


def succeeds(where: Path, *command: str) -> str:
    done = python(where, *command)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


def test_three_files_make_an_op(tmp_path: Path) -> None:
    copy_checkout(tmp_path)
    before = contents(tmp_path)
    assert python(tmp_path, ".ci/stubs", "--check").returncode == 0
    for path, text in documented().items():
        (tmp_path / path).write_text(text)
    assert python(tmp_path, ".ci/stubs", "--check").returncode != 0
    succeeds(tmp_path, ".ci/stubs")
    changed = {p for p, content in contents(tmp_path).items() if before.get(p) != content}
    stubs = {tmp_path / side / "__init__.pyi" for side in ("triton_kernels", "cuda_reference")}
    assert changed == stubs | {tmp_path / path for path in documented()}, "nothing else is edited"

    words = ("--quick", "--jobs", "1", "--json", "report.json")
    succeeds(tmp_path, "-m", "compare", "check", *OPS, *words)
    rows = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert len(rows) == 9 + 4 + 4
    modes = {"triton-interpreted", "triton-compiled", "cuda-host", "cuda-gpu"} - set(unavailable())
    for row in rows:
        assert row["passed"]
        assert set(row["runs"]) == modes
        assert row["triton_equals_cuda"] is (True if "cuda-host" in modes else None)
    timed = succeeds(tmp_path, "-m", "compare", "bench", *OPS, "--dry-run")
    assert all(op in timed for op in OPS)
    files = [f"tests/kernels/test_{name}.py" for name in PARAMETRISED]
    ours = ("-p", "no:cacheprovider", "-p", "no:xdist", "-k", " or ".join(OPS))
    if importlib.util.find_spec("hypothesis"):
        ours += ("--hypothesis-profile", "few")  # that the new ops are drawn is the question
    passed = succeeds(tmp_path, "-m", "pytest", "-q", *ours, *files)
    count = re.search(r"(\d+) passed", passed)
    assert count is not None
    assert int(count[1]) >= 60, passed[-2000:]
    ours = ("-p", "no:cacheprovider", "-k", "spec or stubs or docstrings or public")
    succeeds(tmp_path, "-m", "pytest", "-q", *ours, "tests/house/test_structure.py")

    (tmp_path / "report.json").unlink()
    for path in documented():
        (tmp_path / path).unlink()
    succeeds(tmp_path, ".ci/stubs")
    assert contents(tmp_path) == before
    done = python(tmp_path, "-m", "compare", "check", "cube", "--quick")
    assert done.returncode == 2
    assert "no op 'cube'" in done.stderr + done.stdout


@pytest.mark.parametrize("forgotten", ["triton_kernels", "cuda_reference", "compare"])
def test_a_file_less_is_noticed(forgotten: str, tmp_path: Path) -> None:
    copy_checkout(tmp_path)
    for path, text in documented().items():
        if "cube" in path and not path.startswith(forgotten):
            (tmp_path / path).write_text(text)
    code = """if True:
        import compare.ops, triton_kernels, cuda_reference
        assert set(triton_kernels.OPS) == set(cuda_reference.OPS) == set(compare.ops.SPECS)"""
    done = python(tmp_path, "-c", code)
    assert done.returncode != 0
    if forgotten != "compare":
        assert "compare/ops/cube.py" in done.stderr
        assert f"{forgotten} exports no function 'cube'" in done.stderr
