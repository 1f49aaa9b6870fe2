"""Marks of tests that not every machine can run."""

from __future__ import annotations

import pytest
import torch

needs_hopper = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0),
    reason="Gluon's kernels are for compute capability 9.0",
)
