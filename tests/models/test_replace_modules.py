"""replace_modules: what it replaces, what it leaves and says why, and that it can be undone."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import triton_kernels as tk


@pytest.fixture(autouse=True)
def interpreter() -> Iterator[None]:
    """What is replaced is decided from modules alone: the same on every machine."""
    with tk.interpret(), torch.no_grad():
        yield


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16),
        nn.GELU(),
        nn.Sequential(nn.Linear(16, 8, bias=False), nn.ReLU(inplace=True)),
        nn.LayerNorm(8),
        nn.Linear(8, 8),
        nn.Dropout(0.1),
        nn.SiLU(),
        nn.Linear(8, 4),
    )


def reasons(report) -> dict[str, str]:
    return {line.name: line.reason for line in report.left}


def test_replaces_and_keeps_the_function_and_the_state() -> None:
    net = model().eval()
    x = torch.randn(2, 3, 8)
    expected, state = copy.deepcopy(net).double()(x.double()), net.state_dict()
    parameters = list(net.parameters())
    report = tk.replace_modules(net, min_score=0)
    assert [(line.name, line.after.split("(")[0]) for line in report.replaced] == [
        ("0", "LinearGELU"),
        ("2.0", "LinearAct"),
    ]
    assert type(net[0]) is tk.nn.LinearGELU
    assert net[2][0].act == "relu"
    assert not any(module.training for module in net.modules())
    assert list(net.state_dict()) == list(state)
    assert all(a is b for a, b in zip(net.parameters(), parameters, strict=True))
    torch.testing.assert_close(net(x).double(), expected, rtol=1e-5, atol=1e-5)
    assert reasons(report) == {
        "4": "Dropout between it and the activation",
        "7": "last of its Sequential: no activation follows",
    }
    assert "left: 4: Dropout between it and the activation" in str(report)
    assert "replaced: 0: Linear(in_features=8, out_features=16, bias=True) + GELU" in str(report)


@pytest.mark.parametrize("restore", ["undo", "restore_modules", "of a copy", "of a pickle"])
def test_undo(restore: str) -> None:
    net = model()
    before = str(net)
    first, activation = net[0], net[1]
    report = tk.replace_modules(net, min_score=0)
    assert str(net) != before
    net.eval()
    if restore == "undo":
        report.undo()
        assert net[0] is first
        assert net[1] is activation
    else:
        if restore == "of a copy":
            net = copy.deepcopy(net)
        if restore == "of a pickle":
            net = pickle.loads(pickle.dumps(net))
        net[0].weight = nn.Parameter(torch.ones(16, 8))  # as load_state_dict(assign=True) does
        tk.restore_modules(net)
        assert float(net[0].weight.sum()) == 128
    assert str(net) == before
    assert not net[0].training
    assert not net[1].training
    assert list(net.state_dict()) == list(model().state_dict())


def test_twice_changes_nothing_more() -> None:
    net = model()
    tk.replace_modules(net, min_score=0)
    after = str(net)
    assert not tk.replace_modules(net, min_score=0).replaced
    assert str(net) == after


def test_default_is_honest_about_float32() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    report = tk.replace_modules(net)
    assert not report.replaced
    assert "of eager's speed expected for float32, below min_score" in reasons(report)["0"]
    assert tk.replace_modules(net.bfloat16()).replaced


def hooked(linear: nn.Linear) -> nn.Linear:
    linear.register_forward_hook(lambda *args: None)
    return linear


def backward_hooked(linear: nn.Linear) -> nn.Linear:
    linear.register_full_backward_hook(lambda *args: None)
    return linear


def patched(linear: nn.Linear) -> nn.Linear:
    """As some adapters do it, which keep the old forward and call it."""
    old = linear.forward
    linear.forward = lambda x: 2 * old(x)  # type: ignore[method-assign]
    return linear


def int8(linear: nn.Linear) -> nn.Linear:
    linear.weight = nn.Parameter(torch.ones(8, 8, dtype=torch.int8), requires_grad=False)
    return linear


def half_bias(linear: nn.Linear) -> nn.Linear:
    linear.bias = nn.Parameter(torch.ones(8, dtype=torch.float16))
    return linear


def pruned(linear: nn.Linear) -> nn.Linear:
    prune.random_unstructured(linear, "weight", 0.5)
    return linear


class Mine(nn.Linear):
    def forward(self, x):
        return -super().forward(x)


LEFT: dict[str, tuple[Callable[[nn.Linear], nn.Module], str]] = {
    "hooks": (hooked, "hooks registered"),
    "backward hooks": (backward_hooked, "hooks registered"),
    "another forward": (patched, "a forward of its own was put on it"),
    "int8": (int8, "weight is int8"),
    "bias dtype": (half_bias, "bias is float16, weight float32"),
    "pruned": (pruned, "weight is no parameter: pruned, weight-normed or quantised"),
    "parametrized": (parametrizations.weight_norm, "parametrized"),
    "subclass": (lambda linear: Mine(8, 8), "subclass of Linear (Mine)"),
    "meta": (lambda linear: linear.to("meta"), "on device meta"),
}


@pytest.mark.parametrize("case", LEFT)
def test_leaves_what_is_no_plain_layer(case: str) -> None:
    change, reason = LEFT[case]
    net = nn.Sequential(change(nn.Linear(8, 8)), nn.ReLU())
    before = str(net)
    assert reasons(tk.replace_modules(net, min_score=0)) == {"0": reason}
    assert str(net) == before


FOLLOWED: dict[str, tuple[nn.Module, str]] = {
    "hooked activation": (nn.ReLU(), "hooks registered"),
    "another forward": (nn.ReLU(), "a forward of its own was put on it"),
    "slope": (nn.LeakyReLU(0.2), "leaky_relu with slope 0.2, not 0.01"),
    "unknown": (nn.ELU(), "followed by ELU, no activation that a kernel has"),
}


@pytest.mark.parametrize("case", FOLLOWED)
def test_leaves_what_no_known_activation_follows(case: str) -> None:
    activation, reason = FOLLOWED[case]
    if case == "hooked activation":
        activation.register_forward_hook(lambda *args: None)
    if case == "another forward":
        activation.forward = torch.tanh  # type: ignore[assignment]
    net = nn.Sequential(nn.Linear(8, 8), activation)
    assert reasons(tk.replace_modules(net, min_score=0)) == {"0": reason}


def test_leaves_what_modules_do_not_tell() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.act = nn.Linear(8, 8), nn.ReLU()

    class Backwards(nn.Sequential):
        def forward(self, x):
            return self[0](self[1](x))

    shared = nn.Linear(8, 8)
    net = nn.ModuleDict(
        {
            "block": Block(),
            "own": Backwards(nn.Linear(8, 8), nn.ReLU()),
            "a": nn.Sequential(shared, nn.ReLU()),
            "b": nn.Sequential(shared, nn.ReLU()),
        }
    )
    report = tk.replace_modules(net, min_score=0)
    assert not report.replaced
    assert reasons(report) == {
        "block.fc": "in no Sequential and no small block: what follows it is not seen; see fuse",
        "own.0": "Backwards has a forward of its own",
        "a.0": "shared: it has 2 places in the model",
    }


def test_on_cpu_outside_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton_kernels._launch.interpreted", lambda kernel: False)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    report = tk.replace_modules(net, min_score=0)
    assert reasons(report) == {"0": "on cpu, outside triton_kernels.interpret()"}


def test_restoring_loses_no_hook() -> None:
    net = model()
    report = tk.replace_modules(net, min_score=0)
    handle = net[0].register_forward_hook(lambda *args: None)
    after = str(net)
    with pytest.raises(RuntimeError, match="hooks were registered on LinearGELU '0'"):
        report.undo()
    assert str(net) == after
    handle.remove()
    report.undo()
    assert type(net[0]) is nn.Linear


def test_restoring_loses_no_parametrization() -> None:
    """A layer that others parametrized since holds no weight that could be put back."""
    net = model()
    report = tk.replace_modules(net, min_score=0)
    parametrizations.weight_norm(net[0])
    after = str(net)
    with pytest.raises(RuntimeError, match="LinearGELU '0' was parametrized since it was replaced"):
        report.undo()
    assert str(net) == after
    with torch.enable_grad():  # else a tensor stays that is no parameter
        parametrize.remove_parametrizations(net[0], "weight")
    report.undo()
    assert type(net[0]) is nn.Linear


def test_restoring_loses_no_forward() -> None:
    net = model()
    report = tk.replace_modules(net, min_score=0)
    patched(net[0])
    with pytest.raises(RuntimeError, match="or given another forward"):
        report.undo()
    assert type(net[0]) is tk.nn.LinearGELU


def test_a_sequential_with_another_forward() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    net.forward = net[0].forward  # type: ignore[method-assign]
    report = tk.replace_modules(net, min_score=0)
    assert reasons(report) == {"0": "Sequential has a forward of its own"}


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match=r"replace_modules\(\): argument 'model'"):
        tk.replace_modules(torch.relu)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'min_score' must be a number"):
        tk.replace_modules(model(), min_score="all")  # type: ignore[arg-type]
