"""Names that were given up: CHANGELOG's table "Names" lists them, and nothing else uses them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("triton_kernels", "cuda_reference", "compare", "tests", "docs", "examples", ".ci")
SUFFIXES = (".py", ".pyi", ".md", ".cu", ".cuh", ".h", ".toml", "")


def renamed() -> list[tuple[str, str]]:
    """The table's rows: old, new."""
    text = (ROOT / "CHANGELOG.md").read_text()
    section = text.split("### Names")[1].split("\n### ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)`", section, re.M)
    assert len(rows) >= 30
    return rows


def texts() -> dict[Path, str]:
    found = [ROOT / "README.md", ROOT / "pyproject.toml", ROOT / "Makefile"]
    for folder in FOLDERS:
        found += [p for p in (ROOT / folder).rglob("*") if p.suffix in SUFFIXES and p.is_file()]
    ours = (p for p in found if p != Path(__file__) and "__pycache__" not in p.parts)
    return {path: path.read_text() for path in ours}


TEXTS = texts()


def pattern(old: str) -> str:
    """Where a name stands as code: a path, a dotted name, a call, a class."""
    if old.endswith(".py"):
        return rf"(?<![\w/]){re.escape(old)}\b"
    if old.endswith("()"):
        return rf"(?<![\w.\"'/]){re.escape(old[:-2])}\("
    return rf"(?<![\w.]){re.escape(old)}(?![\w/]|\.py)"


@pytest.mark.parametrize(("old", "new"), renamed())
def test_nothing_uses_an_old_name(old: str, new: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{text[: match.start()].count(chr(10)) + 1}"
        for path, text in TEXTS.items()
        for match in re.finditer(pattern(old), text)
    ]
    assert not wrong, f"{old} is {new} now: {wrong}"
    file = new.replace(".", "/")
    if old.startswith(("compare.", "triton_kernels.")):
        assert (ROOT / f"{file}.py").is_file() or (ROOT / file / "__init__.py").is_file(), new


def test_no_variable_is_called_found() -> None:
    """It says that something was found, not what."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, text in TEXTS.items()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in FOLDERS[:3]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name) and node.id == "found" and isinstance(node.ctx, ast.Store)
    ]
    assert not wrong
