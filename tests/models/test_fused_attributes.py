"""A fused module has the attributes, items and length of the original."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.fx import symbolic_trace

import triton_kernels as tk

pytestmark = pytest.mark.usefixtures("fresh")


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.scale = 2.0
        self._private = 1

    def double_it(self) -> float:
        return 2 * self.scale

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x)) * self.scale


def test_attributes_are_the_originals(cpu: torch.device) -> None:
    module = Scaled()
    fused, x = tk.fuse(module, min_score=0), torch.randn(4, 8)
    assert fused.linear is module.linear
    assert (fused.scale, fused.double_it()) == (2.0, 4.0)
    fused.scale = 3.0
    assert module.scale == 3.0
    torch.testing.assert_close(fused(x), module(x))
    fused.linear = nn.Linear(8, 8)
    assert module.linear is fused.linear
    torch.testing.assert_close(fused(x), module(x))
    fused.note = "of the fused one"
    assert not hasattr(module, "note")
    fused.eval()
    assert (fused.training, module.training) == (False, False)
    assert list(fused.state_dict()) == ["module.linear.weight", "module.linear.bias"]


def test_what_is_private_or_missing_is_not_forwarded() -> None:
    fused = tk.fuse(Scaled())
    for name in ("_private", "missing", "__deepcopy__"):
        assert not hasattr(fused, name)
    with pytest.raises(AttributeError, match="missing"):
        fused.missing  # noqa: B018
    with pytest.raises(TypeError):
        len(fused)
    assert fused


def test_items_and_length() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    fused = tk.fuse(module)
    assert len(fused) == 3
    assert fused[0] is module[0]
    assert fused[-1] is module[2]
    assert isinstance(fused[:2], nn.Sequential)
    assert list(fused) == list(module)
    assert tk.fuse(nn.Sequential())


@pytest.mark.parametrize("module", [Scaled(), symbolic_trace(Scaled())], ids=["plain", "graph"])
def test_copies_and_pickles(module: nn.Module, cpu: torch.device) -> None:
    """GraphModule copies itself by a method of its own."""
    fused, x = tk.fuse(module, min_score=0), torch.randn(4, 8)
    twins = [copy.deepcopy(fused), copy.copy(fused)]
    if type(module) is Scaled:
        twins.append(pickle.loads(pickle.dumps(fused)))
    for twin in twins:
        assert type(twin) is type(fused)
        torch.testing.assert_close(twin(x), module(x))
