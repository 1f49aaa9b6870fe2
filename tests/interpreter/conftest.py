"""Fixtures of the interpreter's tests."""

from __future__ import annotations

from typing import Any

import pytest

from triton_kernels import interpreter


@pytest.fixture
def interpreted() -> Any:
    with interpreter.interpreting():
        yield
