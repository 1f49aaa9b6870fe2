"""triton_kernels.fuse and compare.check_fused; importing them is light."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import processes
import pytest
import torch
from torch import Tensor, nn
from written import FUSED, Apply, inputs, kernels

import compare
import triton_kernels as tk

pytestmark = pytest.mark.usefixtures("no_grad", "fresh")


# ---- fuse ----


class Block(nn.Module):
    """With what a tracer has trouble with: an optional argument, a flag, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor, y: Tensor | None = None, double: bool = False) -> Tensor:
        x = self.drop(self.fc2(self.act(self.fc1(x))))
        x = x if y is None else x + y
        return 2 * x if double else x


def test_fuse_plans_for_each_kind_of_call(cpu: torch.device) -> None:
    block = Block().eval()
    fused = tk.fuse(block, min_score=0)
    x, y = inputs(cpu)
    with pytest.raises(RuntimeError, match="has a plan once it has been called"):
        _ = fused.plan
    assert not hasattr(fused, "plan")
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    calls = [((x,), {}), ((x, y), {}), ((x,), {"double": True}), ((x[0],), {"y": None})]
    for args, kwargs in calls:
        torch.testing.assert_close(fused(*args, **kwargs), block(*args, **kwargs))
        assert kernels(fused.plan)[0] == ("linear_gelu", "gelu")
        assert str(fused.plan).startswith("fc1 + act → linear_gelu (act gelu), score ")
    fused.to(torch.bfloat16)
    assert fused(x.bfloat16()).dtype == torch.bfloat16
    fused.train()
    fused.float()
    assert (fused(x) == 0).any()  # dropout
    assert block.training


@pytest.mark.parametrize("first", [True, False])
def test_interpreted_and_not_have_plans_of_their_own(first: bool) -> None:
    """On the CPU the kernels run interpreted, and only then; no guard of torch.compile sees it."""
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    fused, x = tk.fuse(module, min_score=0), torch.randn(3, 8)
    for interpreted in (first, not first, first):
        with tk.interpret() if interpreted else contextlib.nullcontext():
            torch.testing.assert_close(fused(x), module(x))
        assert bool(fused.plan.steps) == interpreted
    block = Block().eval()
    right = block(x)
    with tk.interpret():
        assert tk.replace_modules(block, min_score=0).replaced
    for interpreted in (first, not first, first):
        with tk.interpret() if interpreted else contextlib.nullcontext():
            torch.testing.assert_close(block(x), right)


def test_fuse_shares_state(cpu: torch.device) -> None:
    block = Block().eval()
    fused = tk.fuse(block, min_score=0)
    x, _ = inputs(cpu)
    fused(x)
    assert [id(p) for p in fused.parameters()] == [id(p) for p in block.parameters()]
    block.fc2.bias.fill_(3)
    torch.testing.assert_close(fused(x), block(x))
    other = pickle.loads(pickle.dumps(fused))
    torch.testing.assert_close(other(x), block(x))
    assert torch.equal(copy.deepcopy(fused)(x), fused(x))


def test_fuse_outside_the_interpreter_leaves_cpu_tensors(cpu: torch.device, root: Path) -> None:
    block = Block().eval()
    fused = tk.fuse(block, min_score=0)
    x, _ = inputs(cpu)
    fused(x)
    assert fused.plan.steps
    script = (
        "import torch, triton_kernels as tk; m = torch.nn.Sequential(torch.nn.Linear(2, 2), "
        "torch.nn.ReLU()); f = tk.fuse(m, min_score=0); f(torch.ones(1, 2)); print(f.plan)"
    )
    ran = processes.python(root, "-c", script)
    assert ran.stdout.strip() == "left: 1: on cpu, outside triton_kernels.interpret()"


def test_fuse_says_what_it_cannot() -> None:
    with pytest.raises(TypeError, match="argument 'module' must be a module"):
        tk.fuse(torch.relu)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="option 'passes'"):
        tk.fuse(Block(), passes=["gemm"])


def test_import_is_light() -> None:
    code = "import sys, triton_kernels; print('torch._dynamo' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_installed_backend_needs_no_import(root: Path, tmp_path: Path) -> None:
    """By the entry point of pyproject.toml, here as an installed package lists it."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    ((name, target),) = project["entry-points"]["torch_dynamo_backends"].items()
    info = tmp_path / "triton_kernels_crosscheck-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[torch_dynamo_backends]\n{name} = {target}\n")
    code = (
        "import torch; print(torch.compile(lambda x: torch.relu(x) * 2, "
        "backend='triton_kernels')(torch.ones(1)).item())"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    ran = processes.python(root, "-c", code, environment=environment)
    assert ran.stdout == "2.0\n", ran.stderr


# ---- compare.check_fused ----


def test_check_fused(device: torch.device) -> None:
    cases = [(x,) for x in inputs(device)]
    report = compare.check_fused(Block().eval().to(device), cases)
    assert report, report
    assert [finding.side for finding in report.findings] == ["fused", "fused"]


class Named(nn.Module):
    """Returns as Hugging Face's models do."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> dict[str, Any]:
        h = self.block(x)
        return {"hidden": h, "states": (h * 2, None), "count": torch.tensor(3)}


def test_check_fused_of_keywords_and_dicts(
    cpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, (x, _) = Named().eval(), inputs(cpu)
    cases: list[Any] = [(x,), {"x": x, "mask": None}, {"x": x[:1]}]
    report = compare.check_fused(module, cases)
    assert report, report
    assert len(report.findings) == 6
    monkeypatch.setattr(
        "triton_kernels.graph.fusing.Fused.forward",
        lambda self, x, mask=None: {
            **self.module(x),
            "states": (self.module(x)["states"][0] * 1.01, None),
        },
    )
    report = compare.check_fused(module, cases)
    assert [finding.passed for finding in report.findings] == [True, False] * 3
    assert "states" in str(report)


def test_check_fused_with_infinities(cpu: torch.device) -> None:
    """The bound comes from what is finite; the rest must be the same."""
    x, _ = inputs(cpu)
    x[0, 0, 0], x[0, 1, 0] = float("inf"), float("nan")
    module = Apply(FUSED["relu function"][0])
    report = compare.check_fused(module, [(x, x), (torch.full_like(x, torch.nan), x)])
    assert report, report


def test_check_fused_finds_a_wrong_kernel(
    cpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Apply(FUSED["relu scale"][0])
    op = tk.ops.relu_scale
    monkeypatch.setattr(op, "relu_scale", lambda x, scale: tk.relu_scale(x, 1.001 * scale))
    x, y = inputs(cpu)
    report = compare.check_fused(module, [(x, y), (torch.where(x > 2, torch.inf, x), y)])
    assert not any(finding.passed for finding in report.findings)
    assert "the fused side is wrong" in report.verdict
    with pytest.raises(ValueError, match="'inputs' is empty"):
        compare.check_fused(module, [])
    with pytest.raises(TypeError, match="list of argument tuples"):
        compare.check_fused(module, inputs(cpu)[0])  # type: ignore[arg-type]
