"""The logging switch, and torch.utils.flop_counter."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import processes
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import triton_kernels as tk
from triton_kernels.graph import logs

pytestmark = pytest.mark.usefixtures("fresh")


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.Threshold(0.0, 1.0))


@pytest.mark.parametrize("by", ["fuse", "torch.compile"])
def test_the_variable_prints_plans(
    by: str, cpu: torch.device, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRITON_KERNELS_LOGS", "fusion")
    options = {"min_score": 0}
    if by == "fuse":
        model = tk.fuse(net(), min_score=0)
    else:
        model = torch.compile(net(), backend="triton_kernels", options=options)
    try:
        for _ in range(2):
            model(torch.randn(4, 8))
    finally:
        logger = logging.getLogger(logs.NAME)
        logger.removeHandler(logs._printing)
        logger.setLevel(logging.NOTSET)
        logger.propagate = True
    printed = capfd.readouterr().err
    assert printed.count(f"[triton_kernels.fusion] {by}: 1 fused, 1 left") == 1
    assert "0 + 1 → linear_gelu (act gelu)" in printed
    assert "left: 2: nothing to fuse with it, used by" in printed


def test_silent_without_it(cpu: torch.device, capfd: pytest.CaptureFixture[str]) -> None:
    tk.fuse(net(), min_score=0)(torch.randn(4, 8))
    assert "fusion" not in capfd.readouterr().err


def test_a_logger_of_ones_own(cpu: torch.device, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logs.NAME):
        tk.fuse(net(), min_score=0)(torch.randn(4, 8))
    assert [record.name for record in caplog.records if "1 fused" in record.message] == [logs.NAME]


def test_importing_sets_no_handler(root: Path) -> None:
    code = (
        "import logging, triton_kernels; print(logging.getLogger('triton_kernels.fusion').handlers)"
    )
    env = {**os.environ, "TRITON_KERNELS_LOGS": "fusion"}
    done = processes.python(root, "-c", code, environment=env)
    assert done.stdout.strip() == "[]", done.stderr


def counted(function: object, *args: torch.Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        out = function(*args)  # type: ignore[operator]
        out.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("act", ["relu", "gelu", "none"])
def test_flops_are_those_of_torch(act: str, cpu: torch.device) -> None:
    """Of forward and backward, which are products, too."""
    x, w, b = (torch.randn(s, requires_grad=True) for s in ((3, 4, 8), (16, 8), (16,)))
    expected = counted(F.linear, x, w, b)
    assert expected == 3 * 2 * 12 * 8 * 16
    assert counted(lambda x, w, b: tk.linear_act(x, w, b, act=act), x, w, b) == expected
    assert counted(lambda x, w, b: tk.linear_gelu(x, w, b), x, w, b) == expected
    rows = x.detach().flatten(0, 1).requires_grad_()
    found = counted(lambda x, w, b: tk.gemm_bias_act(x, w.t(), b, act=act), rows, w, b)
    assert found == expected
