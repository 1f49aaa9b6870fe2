"""Fixtures of the tests of pages."""

from __future__ import annotations

import pytest


@pytest.fixture
def packages() -> None:
    pytest.importorskip("matplotlib", reason="the extra `report` is not installed")
    pytest.importorskip("jinja2", reason="the extra `report` is not installed")
