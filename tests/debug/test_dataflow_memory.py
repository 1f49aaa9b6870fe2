"""The dataflow of a long program takes bounded memory, and its last lines stay known."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from compare import Findings, debug
from triton_kernels.interpreter import dataflow


@triton.jit
def long_kernel(x_ptr, out_ptr, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    n = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for step in range(STEPS):
        x = tl.load(x_ptr + step * BLOCK + n)
        doubled = x * 2
        total += doubled
        tl.store(out_ptr + n, total)


def run() -> Findings:
    x, out = torch.ones(40 * 16), torch.zeros(16)
    return debug(long_kernel, (1,), (x, out), oracle=lambda: torch.zeros(16), STEPS=40, BLOCK=16)


def test_numbers_of_long_programs_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {step.name: str(step) for step in run().wrong[0].lane_history}
    assert kept["total"] == "total = 2, …, 80 (40 times)"
    monkeypatch.setattr(dataflow, "KEPT", 16 * 20)
    few = {step.name: str(step) for step in run().wrong[0].lane_history}
    assert few["total"].endswith("80 (40 times)")
    assert few["total"].startswith("total = …")
    assert few.keys() == kept.keys()


def test_operations_between_the_first_and_the_last_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dataflow, "FIRST", 8)
    monkeypatch.setattr(dataflow, "LAST", 60)
    told = {step.name: step for step in run().wrong[0].lane_history}
    assert {"n", "step", "x", "doubled"} <= told.keys()
    assert told["total"].last == "80"
    assert told["total"].count < 40
