"""docs/COMING_FROM.md: every line that it gives works, or says clearly that it needs a GPU."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import foreign
import pytest
import torch
from checkout import ROOT
from processes import python
from typer.testing import CliRunner

import triton_kernels as tk
from compare.checking.implementations import unavailable
from compare.cli import app
from compare.profiling import counters

DOCUMENT = (ROOT / "docs" / "COMING_FROM.md").read_text()
ROW = re.compile(r"^\| .* \| `([^`]+)`( \(\*GPU\*\))? \|$", re.M)
SECTIONS = {text.split("\n")[0]: text for text in DOCUMENT.split("\n## ")[1:]}
COMMANDS = dict.fromkeys(line for line in ROW.findall(DOCUMENT) if line[0].startswith("python "))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the document names, in the current folder."""
    if "cuda-host" in unavailable():
        pytest.skip(unavailable()["cuda-host"])
    for name, text in foreign.files((ROOT / "docs" / "OWN_KERNELS.md").read_text()).items():
        (tmp_path / name).write_text(text)
    before: dict[str, Any] = {"cases": []}
    (tmp_path / "before.json").write_text(json.dumps(before))
    for package in foreign.PACKAGES:
        (tmp_path / package).symlink_to(ROOT / package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_every_row_of_every_table_is_run() -> None:
    assert len(SECTIONS) == 6
    for name, text in SECTIONS.items():
        rows = [line for line in text.splitlines() if line.startswith("| ")]
        assert rows[0] == "| there | here |"
        assert len(ROW.findall(text)) == len(rows) - 1 >= 5, name


@pytest.mark.parametrize(("line", "gpu"), COMMANDS, ids=[line for line, _ in COMMANDS])
def test_a_command(folder: Path, line: str, gpu: str) -> None:
    module, *words = shlex.split(line)[2:]
    if module != "compare" or "debug" in words:  # processes of its own, which find the packages
        done = python(folder, "-m", module, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return
    result = CliRunner().invoke(app, [*words, *(["--dry-run"] if gpu else [])])
    if words == ["doctor"]:
        assert result.exit_code in (0, 1), result.output  # 1: something is missing here
        assert "g++" in result.output
        return
    if "--ncu" in words and not counters.find():
        assert result.exit_code == 2
        assert "Nsight Compute, or set CUDA_HOME" in result.output
        return
    assert result.exit_code == 0, result.output
    assert result.output.strip()


@pytest.mark.parametrize("name", SECTIONS)
def test_the_lines_of_python(folder: Path, name: str) -> None:
    """In their order, after those at the top; without a GPU, also where there is one."""
    (head,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.S)
    space: dict[str, Any] = {}
    exec(head, space)
    ran = 0
    with tk.interpret():
        for line, gpu in ROW.findall(SECTIONS[name]):
            if line.startswith("python "):
                continue
            ran += 1
            if not gpu:
                exec(line, space)
            elif not torch.cuda.is_available():
                with pytest.raises(RuntimeError, match="no CUDA device"):
                    exec(line, space)
    assert ran
    if "copy" in space:
        assert torch.equal(space["copy"].copy(space["x"]), space["x"])
    if "twin" in space:
        torch.testing.assert_close(space["twin"].softmax(space["x"]), space["x"].softmax(1))
