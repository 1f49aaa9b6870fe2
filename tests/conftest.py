"""Fixtures shared by all tests."""

from __future__ import annotations

import os

# One thread a test process, its children included: pytest-xdist already keeps every core busy, and
# the matrices are small. Before torch and numpy read it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from pathlib import Path

import pytest
import torch

from compare.implementations import MODES, unavailable

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    """Each way to run an op; those that this machine lacks are skipped with the reason."""
    reason = unavailable().get(request.param)
    if reason:
        pytest.skip(f"{request.param}: {reason}")
    return request.param


@pytest.fixture
def gpu() -> torch.device:
    """A GPU, or a skip."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device("cuda")
