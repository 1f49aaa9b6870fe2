"""python -m compare models: the FLOPs that are in fused kernels, counted by hand."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typer.testing import CliRunner

from compare.cli import app
from compare.models.architectures import ARCHITECTURES
from compare.models.coverage import Coverage, cover

pytestmark = pytest.mark.usefixtures("fresh")

FILE = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    first = nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)
    net = nn.Sequential(*first, nn.Threshold(0, 1), nn.Linear(8, 8))
    return net.eval().to("meta"), torch.randn(4, 8, device="meta")

def wrong():
    return make()[0]
"""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.device("meta"):
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
            self.gate, self.up, self.down, self.last = (nn.Linear(8, 8) for _ in range(4))
            self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        h = F.silu(self.gate(x)) * self.up(x)
        h = self.down(h) * self.scale
        h = F.threshold(self.last(h), 0.0, 1.0)
        return h @ h.transpose(-1, -2)  # no weight


def covered(model: Any, x: Tensor, **options: Any) -> Coverage:
    return cover("m", model, (x,), {}, **{"min_score": 0, **options})


def test_by_hand() -> None:
    found = covered(Block(), torch.empty(2, 4, 8, device="meta"), repeated=6)
    one = 2 * 8 * 8 * 8
    assert [(p.flops, p.end, p.fused) for p in found.products] == [
        (6 * one, "activation", True),
        (6 * one, "activation", True),
        (one, "gate", True),
        (one, "gate", True),
        (one, "scale", True),
        (one, "activation", False),
    ]
    assert found.part == pytest.approx(15 / 16)
    assert found.reasons() == {"followed by threshold": pytest.approx(1 / 16)}


def test_what_is_left_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that takes nothing covers nothing."""
    monkeypatch.setenv("TRITON_KERNELS_FUSE", "0")
    found = covered(Block(), torch.empty(2, 4, 8, device="meta"))
    assert [p.end for p in found.products] == [
        *("activation", "activation", "gate", "gate", "scale", "activation")
    ]
    assert found.part == 0


WRITTEN = {
    "written out": (lambda h: h * torch.sigmoid(1.702 * h), "activation"),
    "behind dropout": (lambda h: F.elu(F.dropout(h, 0.5, training=False)), "activation"),
    "behind real dropout": (lambda h: F.elu(F.dropout(h, 0.5, training=True)), ""),
    "seen by others": (lambda h: F.elu(h) + h.sum(), ""),
    "norm": (lambda h: F.layer_norm(h, (8,)), ""),
    "a number": (lambda h: h * 0.5 + 1, ""),
    "residual": (lambda h: h + torch.ones(4, 8, device="meta"), ""),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_counts(name: str) -> None:
    function, end = WRITTEN[name]
    layer = nn.Linear(8, 8, device="meta")
    found = covered(lambda x: function(layer(x)), torch.empty(4, 8, device="meta"))
    assert [p.end for p in found.products] == [end]


def test_factors_by_name() -> None:
    """BLOOM's attention; batches do not count."""
    layer = nn.Linear(8, 8, device="meta")

    def function(x: Tensor) -> Tensor:
        h = F.relu(layer(x))
        return h.baddbmm(batch1=h, batch2=h.transpose(1, 2) @ h)

    found = covered(function, torch.empty(2, 8, 8, device="meta"))
    assert [p.end for p in found.products if p.end] == ["activation"]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "a_model_of_mine.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    return "a_model_of_mine"


def test_a_model_of_ones_own(module: str, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    done = CliRunner().invoke(app, ["models", "--target", f"{module}:make", "--json", str(file)])
    assert done.exit_code == 0, done.output
    assert "80%" in done.output  # counted
    assert "50%" in done.output  # of these fused
    (row,) = json.loads(file.read_text())["rows"]
    assert row["flops"] == 2 * 4 * (8 * 16 + 16 * 8 + 8 * 8)
    assert (row["flops_counted"], row["flops_fused"]) == (2 * 4 * 256, 2 * 4 * 128)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["frobnicate"], "no model 'frobnicate'"),
        (["--target", "MODULE:wrong"], "must return the model"),
        (["--target", "MODULE:nothing"], "nothing"),
        (["--target", "MODULE"], "MODULE:FACTORY"),
        (["--dtype", "int8"], "one of bfloat16"),
    ],
)
def test_wrong_words(words: list[str], says: str, module: str) -> None:
    done = CliRunner().invoke(app, ["models", *(w.replace("MODULE:", f"{module}:") for w in words)])
    assert done.exit_code == 2
    assert says in done.output


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)
@pytest.mark.parametrize("name", ["GPT-2", "BERT", "Llama"])
def test_of_transformers(name: str) -> None:
    chosen = ARCHITECTURES[name]
    model = chosen.make(torch.bfloat16)
    found = cover(name, model, (), chosen.inputs(), min_score=0)
    assert found.part == 1
