"""LinearAct, LinearGELU and MLP where others meet them: adapters, quantised weights, bad inputs."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


class Int8(Tensor):
    """A quantised weight as a tensor subclass, which knows linear and no other product."""

    @staticmethod
    def __new__(cls, q: Tensor, scale: Tensor) -> Any:
        options = {"dtype": scale.dtype, "device": q.device}
        return Tensor._make_wrapper_subclass(cls, q.shape, **options)  # type: ignore[attr-defined]

    def __init__(self, q: Tensor, scale: Tensor) -> None:
        self.q, self.scale = q, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["q", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: Any) -> Int8:
        return Int8(inner["q"], inner["scale"])

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is F.linear:
            x, weight, bias = args
            return F.linear(x, weight.q.to(x.dtype) * weight.scale, bias)
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op is torch.ops.aten.detach.default:
            return Int8(args[0].q, args[0].scale)
        raise NotImplementedError(str(op))


@pytest.mark.parametrize(
    "make",
    [
        lambda: tk.nn.LinearGELU(8, 4),
        lambda: tk.nn.LinearGELU(8, 4, bias=False, approximate="tanh"),
        lambda: tk.nn.LinearAct(8, 4, act="relu"),
        lambda: tk.nn.LinearAct(8, 4, act="none"),
    ],
)
def test_weights_that_multiply_themselves(
    make: Callable[[], nn.Linear], device: torch.device
) -> None:
    """As torchao's, put into a layer after it was fused."""
    torch.manual_seed(0)
    layer = make().to(device)
    scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
    q = (layer.weight.detach() / scale).round().to(torch.int8)
    plain = copy.deepcopy(layer)
    plain.weight.data = q * scale
    layer.weight = nn.Parameter(Int8(q, scale), requires_grad=False)
    x = torch.randn(2, 3, 8, device=device, requires_grad=True)
    outs = layer(x), plain(x)
    torch.testing.assert_close(*outs)
    torch.testing.assert_close(*(torch.autograd.grad(out.square().sum(), x)[0] for out in outs))
