"""LinearAct, LinearGELU and MLP where others meet them: adapters, and wrong inputs."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import processes
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

import triton_kernels as tk


class Adapter(nn.Module):
    """LoRA as peft adds it: around whatever is a Linear, beside its result."""

    def __init__(self, base_layer: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        assert isinstance(base_layer, nn.Linear)
        self.base_layer = base_layer
        self.down = nn.Linear(base_layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base_layer.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.up(self.down(x))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))


WORDS = r"Adapter cannot adapt a Linear(GELU|Act): .* after it\. .*fuse .*restore_modules"


def test_adapters_are_refused() -> None:
    for layer in (tk.nn.LinearGELU(8, 8), tk.nn.LinearAct(8, 8), tk.nn.MLP(8, 8, 8).fc1):
        with pytest.raises(TypeError, match=WORDS):
            Adapter(layer)
        with pytest.raises(TypeError, match=WORDS):
            Adapter(copy.deepcopy(layer))
    nn.Sequential(tk.nn.LinearGELU(8, 8))  # other places are no adapters'


def test_adapters_of_products_alone(cpu: torch.device) -> None:
    adapted = Adapter(tk.nn.LinearAct(8, 8, act="none"))
    assert adapted(torch.randn(3, 8)).shape == (3, 8)


def test_a_loaded_layer_refuses_adapters(root: Path, tmp_path: Path) -> None:
    """In a process that has made none itself."""
    (tmp_path / "layer").write_bytes(pickle.dumps(tk.nn.LinearGELU(4, 4)))
    code = """
import pickle, sys, torch
class Adapter(torch.nn.Module): pass
try:
    Adapter().base_layer = pickle.load(open(sys.argv[1], "rb"))
except TypeError as error:
    print(error)
"""
    ran = processes.python(root, "-c", code, str(tmp_path / "layer"))
    assert ran.stdout.startswith("Adapter cannot adapt a LinearGELU")


def test_adapters_after_replace_modules(cpu: torch.device) -> None:
    """Refused until the modules are restored; an adapted model is left alone."""
    model, x = net(), torch.randn(3, 8)
    assert len(tk.replace_modules(model, min_score=0).replaced) == 2
    with pytest.raises(TypeError, match=WORDS):
        model[0] = Adapter(model[0])
    tk.restore_modules(model)
    model[0] = Adapter(model[0])
    right = model(x)
    report = tk.replace_modules(model, min_score=0)
    assert [each.name for each in report.replaced] == ["2"]
    torch.testing.assert_close(model(x), right, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("fresh")
def test_fuse_sees_adapters(cpu: torch.device) -> None:
    """Those that are there, and those that come later."""
    model, x = net(), torch.randn(3, 8)
    fused = tk.fuse(model, min_score=0)
    with torch.no_grad():
        fused(x)
        assert len(fused.plan.steps) == 2
        model[0] = Adapter(model[0])
        inner = model[0](x)
        torch.testing.assert_close(fused(x), model[2:](F.gelu(inner)), rtol=1e-5, atol=1e-5)


# ---- parametrizations ----


class Counted(nn.Module):
    """Twice the tensor; counts how often that is computed."""

    calls = 0

    def forward(self, w: Tensor) -> Tensor:
        self.calls += 1
        return 2 * w


@pytest.mark.parametrize(
    "layer", [tk.nn.LinearAct(8, 4, act="gelu"), tk.nn.LinearGELU(8, 4)], ids=str
)
def test_parametrizations_are_computed_once_a_call(layer: nn.Linear, cpu: torch.device) -> None:
    """As in torch.nn.Linear: spectral_norm, say, goes a step on each time."""
    x, weight = torch.randn(3, 8), layer.weight.detach().clone()
    for name in ("weight", "bias"):
        parametrize.register_parametrization(layer, name, Counted())
    right = F.gelu(F.linear(x, 2 * weight, layer.bias))
    counted = [layer.parametrizations[name][0] for name in ("weight", "bias")]
    before = [each.calls for each in counted]
    torch.testing.assert_close(layer(x), right, rtol=1e-5, atol=1e-5)
    assert [each.calls for each in counted] == [n + 1 for n in before]


# ---- wrong inputs ----


def test_errors_name_the_modules_own_arguments(cpu: torch.device) -> None:
    """x, weight and bias; not the operands of the product under them."""
    mlp, x = tk.nn.MLP(6, 16, 5), torch.randn(2, 3, 6)
    wrong = {"shapes": x[..., :5], "dtype": x.half(), "device": x.to("meta"), "scalar": x[0, 0, 0]}
    for layer in (mlp, mlp.fc1, tk.nn.LinearGELU(6, 4)):
        for what, given in wrong.items():
            with pytest.raises((TypeError, RuntimeError)) as caught:
                layer(given)
            message = str(caught.value)
            assert message.startswith(("linear_act(): ", "linear_gelu(): ")), (what, message)
            assert "'weight'" in message, (what, message)
            assert "'a'" not in message, (what, message)
            assert "'b'" not in message, (what, message)
    with pytest.raises(RuntimeError, match=r"shapes \[…, I\] and .* \(2, 3, 5\) and \(16, 6\)"):
        mlp(wrong["shapes"])
    mlp.fc1.bias = nn.Parameter(torch.zeros(3))
    with pytest.raises(RuntimeError, match=r"'bias' must have shape \(16,\)"):
        mlp(x)
