"""Fixtures of the tests of torch.compile's backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from triton_kernels import graph


@pytest.fixture
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def fresh() -> Iterator[None]:
    """Whatever was compiled before does not matter."""
    graph.register()
    yield
    torch._dynamo.reset()
