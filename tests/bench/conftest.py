"""Fixtures of bench's and profile's tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from profiled import Ncu
from simulated_gpu import Rig


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ncu:
    home = tmp_path / "ncu"
    home.mkdir()
    return Ncu(home, monkeypatch)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    found = Rig()
    for target, name, value in found.replaced():
        monkeypatch.setattr(target, name, value)
    return found
