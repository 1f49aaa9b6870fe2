"""docs/ARCHITECTURE.md, "Add an op in three edits": its blocks, applied to a copy, make an op."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import test_structure

from compare.checking.implementations import unavailable

PACKAGES = ("triton_kernels", "cuda_reference", "compare")


def blocks() -> list[str]:
    """The code blocks of the section, in their order."""
    text = (test_structure.ROOT / "docs" / "ARCHITECTURE.md").read_text()
    section = text.split("## Add an op in three edits")[1].split("\n## ")[0]
    found = re.findall(r"^```\w*\n(.*?)^```", section, re.S | re.M)
    assert len(found) == 3
    return found


def insert(file: Path, before: str, text: str) -> None:
    source = file.read_text()
    assert source.count(before) == 1, f"{file.name}: {before!r}"
    file.write_text(source.replace(before, text + before))


def edits(where: Path) -> dict[str, Callable[[], object]]:
    """The three edits, by what they touch."""
    triton, cuda, spec = blocks()
    ops = where / "triton_kernels" / "ops" / "cube.py"
    csrc = where / "cuda_reference" / "csrc" / "cube.cu"
    return {
        "triton": lambda: ops.write_text(triton),
        "cuda": lambda: csrc.write_text(cuda),
        "spec": lambda: insert(
            where / "compare" / "specs.py", '        Spec(\n            name="square"', spec
        ),
    }


def copy_checkout(where: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(
            test_structure.ROOT / package,
            where / package,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    shutil.copytree(test_structure.ROOT / ".ci", where / ".ci")


def write_stubs(where: Path) -> None:
    subprocess.run([sys.executable, str(where / ".ci" / "stubs")], check=True)


def structure_is_sound(where: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """The checks of test_structure that watch over an op's files, on the copy."""
    monkeypatch.setattr(test_structure, "ROOT", where)
    test_structure.tree.cache_clear()
    try:
        test_structure.test_every_spec_has_its_files_and_exports()
        test_structure.test_every_file_and_export_has_its_spec()
        test_structure.test_stubs_are_fresh()
        for package in PACKAGES[:2]:
            test_structure.test_exports_are_bound_by_explicit_lines(package)
        return True
    except AssertionError:
        return False
    finally:
        test_structure.tree.cache_clear()


def run_check(where: Path, report: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "compare", "check", "cube", "--quick", "--json", str(report)]
    environment = {**os.environ, "PYTHONPATH": str(where), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, cwd=where, env=environment, capture_output=True, text=True, check=False
    )


def test_three_edits_make_an_op(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_checkout(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    for edit in edits(tmp_path).values():
        edit()
    assert not structure_is_sound(tmp_path, monkeypatch)  # the stubs are stale
    write_stubs(tmp_path)
    assert structure_is_sound(tmp_path, monkeypatch)
    done = run_check(tmp_path, tmp_path / "report.json")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert len(rows) == 9
    modes = {"triton-interpreted", "triton-compiled", "cuda-host", "cuda-gpu"} - set(unavailable())
    for row in rows:
        assert row["passed"]
        assert set(row["runs"]) == modes
        assert row["triton_equals_cuda"] is (True if "cuda-host" in modes else None)
    # Out again: the two files, what was inserted in the specs, and the stubs as they were.
    (tmp_path / "report.json").unlink()
    changed = [p for p in tmp_path.rglob("*") if p.is_file() and before.get(p) != p.read_bytes()]
    assert len(changed) == 5
    for path in changed:
        path.write_bytes(before[path]) if path in before else path.unlink()
    assert structure_is_sound(tmp_path, monkeypatch)
    done = run_check(tmp_path, tmp_path / "report.json")
    assert done.returncode == 2
    assert "no op 'cube'" in done.stderr + done.stdout


@pytest.mark.parametrize("forgotten", ["triton", "cuda", "spec"])
def test_one_edit_less_is_noticed(
    forgotten: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_checkout(tmp_path)
    for name, edit in edits(tmp_path).items():
        if name != forgotten:
            edit()
    write_stubs(tmp_path)
    assert not structure_is_sound(tmp_path, monkeypatch)
