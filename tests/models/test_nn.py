"""triton_kernels.nn: torch's modules with the fused kernels under them."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_activations import TORCH

import triton_kernels as tk
from triton_kernels.activations import ACTIVATIONS
from triton_kernels.nn.rows import gemm_bias_act_of_rows


@pytest.fixture
def device(device: torch.device) -> Iterator[torch.device]:
    """Without gradients."""
    with torch.no_grad():
        yield device


def close(result: Tensor, exact: Tensor) -> None:
    """Sums of at most 24 products of numbers around 1, in float32."""
    assert result.shape == exact.shape
    torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-5)


def right(module: nn.Module, x: Tensor) -> Tensor:
    return copy.deepcopy(module).double()(x.double())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_linear_act_is_linear_and_activation(act: str, bias: bool, device: torch.device) -> None:
    layer = tk.nn.LinearAct(12, 5, bias=bias, act=act, device=device)
    plain = nn.Linear(12, 5, bias=bias, device=device)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(7, 12, device=device)
    close(layer(x), TORCH[act](right(plain, x)))


@pytest.mark.parametrize("shape", [(12,), (0, 12), (3, 12), (2, 3, 12), (2, 0, 3, 12)])
def test_leading_dimensions(shape: tuple[int, ...], device: torch.device) -> None:
    x = torch.randn(shape, device=device)
    for layer in (tk.nn.LinearAct(12, 5, act="silu"), tk.nn.LinearGELU(12, 5)):
        layer = layer.to(device)
        act = F.silu if isinstance(layer, tk.nn.LinearAct) else F.gelu
        wide = copy.deepcopy(layer).double()
        close(layer(x), act(F.linear(x.double(), wide.weight, wide.bias)))


def test_no_input_features(device: torch.device) -> None:
    layer = tk.nn.LinearAct(0, 3, act="relu", device="meta").to_empty(device=device)
    layer.bias.copy_(torch.tensor([-1.0, 2.0, 3.0]))
    out = layer(torch.empty(2, 4, 0, device=device))
    assert out.shape == (2, 4, 3)
    assert out[1, 3].tolist() == [0, 2, 3]


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_linear_gelu(approximate: str, device: torch.device) -> None:
    layer = tk.nn.LinearGELU(9, 6, approximate=approximate, device=device)
    x = 3 * torch.randn(4, 9, device=device)
    exact = F.gelu(
        F.linear(x.double(), layer.weight.double(), layer.bias.double()), approximate=approximate
    )
    close(layer(x), exact)


def test_addend_of_every_rank(device: torch.device) -> None:
    """What rewritten graphs call: c like the result, or one row."""
    x, b = torch.randn(2, 3, 8, device=device), torch.randn(8, 4, device=device)
    for c in (torch.randn(2, 3, 4, device=device), torch.randn(4, device=device)):
        out = gemm_bias_act_of_rows(x, b, None, "relu", 0.5, c, 2.0)
        close(out, torch.relu(0.5 * (x.double() @ b.double()) + 2 * c.double()))
    row = torch.randn(4, device=device)
    close(gemm_bias_act_of_rows(x[0, 0], b, c=row), x[0, 0].double() @ b.double() + row.double())


def test_relu_scale(device: torch.device) -> None:
    x = torch.tensor([-1.0, 2.0, float("nan")], device=device)
    module = tk.nn.ReLUScale(0.5)
    torch.testing.assert_close(module(x), torch.relu(x) * 0.5, equal_nan=True)
    assert str(module) == "ReLUScale(scale=0.5)"
    assert not module.state_dict()
    with pytest.raises(TypeError, match=r"ReLUScale\(\): argument 'scale' must be a number"):
        tk.nn.ReLUScale("2")  # type: ignore[arg-type]


def test_relu_scale_of_a_tensor(device: torch.device) -> None:
    """A Parameter is learned, another tensor saved; both move with the module."""
    scale = torch.tensor([[2.0], [-0.5]])
    learned, fixed = tk.nn.ReLUScale(torch.nn.Parameter(scale)), tk.nn.ReLUScale(scale)
    assert [name for name, _ in learned.named_parameters()] == ["scale"]
    assert not list(fixed.parameters())
    assert list(learned.state_dict()) == list(fixed.state_dict()) == ["scale"]
    assert str(learned) == "ReLUScale(scale of shape [2, 1])"
    x = torch.tensor([[-1.0, 3.0, 1.0], [4.0, -2.0, 2.0]], device=device)
    for module in (learned, fixed):
        out = module.to(device)(x)
        assert out.tolist() == [[-0.0, 6.0, 2.0], [-2.0, 0.0, -1.0]]


def test_mlp(device: torch.device) -> None:
    mlp = tk.nn.MLP(6, 16, 5, act="gelu_tanh", device=device)
    assert list(mlp.state_dict()) == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    x = torch.randn(2, 3, 6, device=device)
    wide = copy.deepcopy(mlp).double()
    hidden = F.gelu(F.linear(x.double(), wide.fc1.weight, wide.fc1.bias), approximate="tanh")
    close(mlp(x), F.linear(hidden, wide.fc2.weight, wide.fc2.bias))


# ---- what users of torch.nn.Linear expect ----

LAYERS = {
    "LinearGELU": lambda **k: tk.nn.LinearGELU(8, 4, approximate="tanh", **k),
    "LinearAct": lambda **k: tk.nn.LinearAct(8, 4, act="silu", **k),
}
each_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


@each_layer
def test_is_a_linear(make) -> None:
    """By class, as tensor parallelism asks; by state_dict; by initialisation; by repr."""
    torch.manual_seed(1)
    layer = make()
    torch.manual_seed(1)
    plain = nn.Linear(8, 4)
    assert isinstance(layer, nn.Linear)
    assert list(layer.state_dict()) == list(plain.state_dict())
    assert torch.equal(layer.weight, plain.weight)
    assert torch.equal(layer.bias, plain.bias)
    assert plain.extra_repr() + ", " in str(layer)
    assert str(layer).endswith(("approximate='tanh')", "act='silu')"))
    assert make(bias=False).bias is None
    torch.manual_seed(1)
    layer.reset_parameters()
    assert torch.equal(layer.weight, plain.weight)


@each_layer
def test_copies_and_conversions(make, device: torch.device) -> None:
    layer = make(device=device)
    x = torch.randn(3, 8, device=device)
    expected = layer(x)
    assert torch.equal(copy.deepcopy(layer)(x), expected)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), expected)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), expected)
    half = copy.deepcopy(layer).to(torch.bfloat16)
    assert half(x.bfloat16()).dtype == torch.bfloat16
    with pytest.raises(TypeError, match="bfloat16"):
        half(x)
    assert make(device=device, dtype=torch.float64)(x.double()).dtype == torch.float64


@each_layer
def test_hooks(make, device: torch.device) -> None:
    layer, seen = make(device=device), []
    layer.register_forward_pre_hook(lambda module, args: (2 * args[0],))
    layer.register_forward_hook(lambda module, args, out: seen.append(out))
    x = torch.randn(3, 8, device=device)
    out = layer(x)
    assert seen[0] is out
    assert torch.equal(out, layer.forward(2 * x))


@each_layer
def test_compiles_in_one_graph(make, device: torch.device) -> None:
    layer = make(device=device)
    x = torch.randn(2, 3, 8, device=device)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    assert torch.equal(compiled(x), layer(x))
    assert torch.equal(compiled(x[:, :2]), layer(x[:, :2]))


@pytest.mark.parametrize("make", [*LAYERS.values(), lambda: tk.nn.MLP(8, 16, 4)])
def test_traced_by_torch_jit(make, cpu: torch.device) -> None:
    """torch.jit.trace checks its program by a second trace without gradients."""
    layer = make()
    traced = torch.jit.trace(layer, torch.randn(2, 3, 8))
    x = torch.randn(5, 8)
    assert torch.equal(traced(x), layer(x))
    grads = [
        torch.autograd.grad(each(x).square().sum(), list(layer.parameters()))
        for each in (traced, layer)
    ]
    assert [*map(torch.equal, *grads)] == [True] * len(grads[0])


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"LinearAct\(\): argument 'act' must be one of"):
        tk.nn.LinearAct(4, 4, act="swish")
    for layer in (tk.nn.LinearAct, tk.nn.LinearGELU):
        with pytest.raises(TypeError, match=rf"{layer.__name__}\(\): argument 'bias' .* got str"):
            layer(3, 4, bias="no")
    with pytest.raises(ValueError, match=r"LinearGELU\(\): argument 'approximate'"):
        tk.nn.LinearGELU(4, 4, approximate="erf")
    with pytest.raises(RuntimeError, match=r"inside `with triton_kernels.interpret\(\):`"):
        tk.nn.LinearGELU(4, 4).requires_grad_(False)(torch.ones(1, 4))
