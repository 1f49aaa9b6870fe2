"""Fixtures of the kernels' tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from calls import Call

import triton_kernels
from compare.checking.implementations import implementations
from compare.ops import SPECS


@pytest.fixture
def call(mode: str) -> Iterator[Call]:
    """call(op, arguments): the op's default implementation in the mode."""
    functions = {op: implementations(spec, [mode])[0] for op, spec in SPECS.items()}
    interpreted = mode == "triton-interpreted"  # entered here once, as entering takes a while
    with triton_kernels.interpret() if interpreted else contextlib.nullcontext():
        yield lambda op, arguments: functions[op](**arguments)
