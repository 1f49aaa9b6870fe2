"""Fixtures of the kernels' tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from calls import Call

import triton_kernels
from compare.checking.implementations import implementations
from compare.ops import SPECS
from triton_kernels.gemm import choice
from triton_kernels.gemm.gluon import availability, forms


@pytest.fixture
def call(mode: str) -> Iterator[Call]:
    """call(op, arguments): the op's default implementation in the mode."""
    functions = {op: implementations(spec, [mode])[0] for op, spec in SPECS.items()}
    interpreted = mode == "triton-interpreted"  # entered here once, as entering takes a while
    with triton_kernels.interpret() if interpreted else contextlib.nullcontext():
        yield lambda op, arguments: functions[op](**arguments)


@pytest.fixture
def forms_to_lose() -> Iterator[None]:
    """Inside the test forms.WIDE and forms.CLUSTERS are copies, which may be given up."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("WIDE", "CLUSTERS"):
            copy = dict(getattr(forms, name))
            for module in (availability, forms):
                patch.setattr(module, name, copy)
        choice.forget()
        yield
    choice.forget()
