"""Options and modes of the backend of torch.compile, and how explain is called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from written import inputs, kernels

import triton_kernels as tk

pytestmark = pytest.mark.usefixtures("no_grad", "fresh")


@pytest.fixture
def patches(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What Inductor is called with, each time; it compiles nothing."""
    from torch._inductor import compile_fx  # takes seconds, in every process that collects tests

    seen: list[dict[str, Any]] = []

    def called(module: Any, examples: Any, config_patches: Any = None, **options: Any) -> Any:
        seen.append(config_patches or {})
        return module.forward

    monkeypatch.setattr(compile_fx, "compile_fx", called)
    return seen


def compiled(**how: Any) -> Tensor:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    return torch.compile(net, backend="triton_kernels", **how)(inputs(torch.device("cpu"))[0])


def test_mode_is_inductors(cpu: torch.device, patches: list[dict[str, Any]]) -> None:
    """It says how to compile, so Inductor compiles."""
    compiled(mode="max-autotune-no-cudagraphs")
    compiled(options={"rest": "inductor", "mode": "max-autotune-no-cudagraphs"})
    assert [patch["max_autotune"] for patch in patches] == [True, True]
    compiled(mode="reduce-overhead")
    assert patches[2]["triton.cudagraphs"]


def test_options_are_handed_on(cpu: torch.device, patches: list[dict[str, Any]]) -> None:
    compiled(options={"rest": "inductor", "min_score": 0, "epilogue-fusion": False})
    assert patches == [{"epilogue_fusion": False}]
    compiled(options={"rest": "inductor", "mode": "reduce-overhead", "triton.cudagraphs": False})
    assert patches[1]["triton.cudagraphs"] is False
    compiled(options={"rest": "inductor"})
    assert patches[2] == {}


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"options": {"rest": "eager", "mode": "reduce-overhead"}}, "a mode is Inductor's, but"),
        ({"options": {"epilogue_fusion": False}}, "unknown option 'epilogue_fusion'"),
        ({"options": {"rest": "inductor", "minscore": 0}}, "unknown option 'minscore'"),
        ({"mode": "fastest"}, "fastest"),
    ],
)
def test_what_there_is_not(how: dict[str, Any], words: str, cpu: torch.device) -> None:
    with pytest.raises(Exception, match=words):
        compiled(**how)


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, *, ids: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        return {"out": torch.relu(self.fc(ids if mask is None else ids * mask))}


def test_explain_by_name(cpu: torch.device) -> None:
    x, y = inputs(cpu)
    tokens = {"ids": x, "mask": y}
    (plan,) = tk.explain(Named(), **tokens, min_score=0).plans
    assert kernels(plan) == [("linear_act", "relu")]
    (plan,) = tk.explain(lambda a, b: torch.relu(a) * 2 + b, (x,), b=y, min_score=0).plans
    assert kernels(plan) == [("relu_scale_add", "none")]
