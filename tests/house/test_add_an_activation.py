"""docs/ARCHITECTURE.md, "Add an activation": its blocks are records in a copy."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from checkout import PACKAGES, ROOT, copy_folders
from processes import python

from compare.checking.implementations import unavailable

pytestmark = pytest.mark.skipif("cuda-host" in unavailable(), reason="no C++ compiler")


def put(file: Path, before: str, text: str) -> None:
    """Write the text in front of the one place where ``before`` stands."""
    there = file.read_text("utf-8")
    assert there.count(before) == 1
    file.write_text(there.replace(before, text + before), "utf-8")


def test_a_record_a_side_makes_an_activation(tmp_path: Path) -> None:
    copy_folders(tmp_path, *PACKAGES)
    document = (ROOT / "docs" / "ARCHITECTURE.md").read_text("utf-8")
    section = document.split("## Add an activation")[1].split("\n## ")[0]
    functions, entry, struct, case, oracle = re.findall(r"^```\w+\n(.*?)^```", section, re.S | re.M)
    triton_file = tmp_path / "triton_kernels" / "activations.py"
    put(triton_file, "class Activation(NamedTuple):", f"{functions}\n\n")
    put(triton_file, "}\n\nGELU_APPROXIMATIONS", entry)
    cuda_file = tmp_path / "cuda_reference" / "csrc" / "activations.cuh"
    put(cuda_file, "// The records by number", f"{struct}\n")
    put(cuda_file, "  CASE(7, LeakyRelu, __VA_ARGS__)\n", case)
    put(tmp_path / "compare" / "specs" / "activations.py", "}\n\n# Those whose backward", oracle)
    command = ("check", "act_mul_backward", "--dtype", "float32", "--shape", "33,129")
    where = ("--arg", "act=softsign", "--json", "report.json", "--jobs", "1")
    done = python(tmp_path, "-m", "compare", *command, *where)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert row["runs"]["triton-interpreted"] >= 1 <= row["runs"]["cuda-host"], row
    assert 0 < row["worst"]["cuda-host"] <= 1, row
    assert 0 < row["worst"]["triton-interpreted"] <= 1, row
