"""Fixtures of debug's tests."""

from __future__ import annotations

import bdb
import sys
from pathlib import Path
from typing import Any

import pytest
import triton.language as tl
from typed_commands import Typed

from compare.debugging.observers import deadlock
from compare.debugging.shrink import reproduction
from triton_kernels import interpreter


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nobody tries out the files, which takes seconds; they are collected."""
    texts: list[str] = []

    def run(text: str) -> str:
        texts.append(text)
        return ""

    monkeypatch.setattr(reproduction, "_run", run)
    return texts


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits forever is told sooner, to save time."""
    monkeypatch.setattr(deadlock, "PATIENCE", 300)


@pytest.fixture
def nothing_is_left_behind() -> Any:
    """No trace function, no breakpoint, no interpreting, tensors print as before."""
    kept = sys.gettrace(), list(bdb.Breakpoint.bpbynumber), tl.tensor.__repr__
    yield
    assert sys.gettrace() is kept[0]
    assert [b for b in bdb.Breakpoint.bpbynumber if b] == [b for b in kept[1] if b]
    assert tl.tensor.__repr__ is kept[2]
    assert not interpreter.active()


@pytest.fixture
def typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Typed:
    return Typed(monkeypatch, capsys, tmp_path)
