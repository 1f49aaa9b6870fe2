"""Activations that users register: right, differentiated, compiled, fused, checked."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from softsigns import softsign, softsign_derivative
from torch import Tensor, nn

import compare
import triton_kernels
from triton_kernels import graph
from triton_kernels.activations import ACTIVATIONS, clamped

DTYPES = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-1}


@triton.jit
def wrong_derivative(x):
    return 1.0 / (1.0 + tl.abs(x))


@triton.jit
def quick_gelu(x):
    return x / (1.0 + tl.exp(-1.702 * x))


@triton.jit
def quick_gelu_derivative(x):
    s = 1.0 / (1.0 + tl.exp(-1.702 * x))
    return s + 1.702 * x * s * (1.0 - s)


@triton.jit
def root(x):
    return tl.sqrt(tl.abs(x))


@triton.jit
def root_derivative(x):
    return tl.where(x < 0, -0.5, 0.5) / tl.sqrt(tl.abs(x))


def torch_quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """The activations of these tests, gone after each; a name always means the same functions."""
    before = set(ACTIVATIONS)
    register = triton_kernels.register_activation
    register("softsign", softsign, softsign_derivative, torch_function=F.softsign)
    register("quick_gelu", quick_gelu, quick_gelu_derivative, torch_function=torch_quick_gelu)
    with triton_kernels.interpret():
        yield
    for name in set(ACTIVATIONS) - before:
        del ACTIVATIONS[name]


def layer(dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(s, dtype=dtype, requires_grad=True) for s in ((5, 7), (6, 7), (6,))]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("compiled", [False, True])
def test_values_and_gradients_agree_with_float64(dtype: torch.dtype, compiled: bool) -> None:
    def call(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return triton_kernels.linear_act(x, weight, bias, act="softsign")

    given = layer(dtype)
    wide = [t.detach().double().requires_grad_() for t in given]
    function = torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call
    out, expected = function(*given), F.softsign(F.linear(*wide))
    limits = {"rtol": DTYPES[dtype], "atol": DTYPES[dtype]}
    torch.testing.assert_close(out.double(), expected, **limits)
    gradients = torch.autograd.grad(out, given, torch.ones_like(out))
    right = torch.autograd.grad(expected, wide, torch.ones_like(expected))
    for gradient, reference in zip(gradients, right):
        torch.testing.assert_close(gradient.double(), reference, **limits)


def test_second_derivatives_are_those_of_torch_function() -> None:
    function = functools.partial(triton_kernels.linear_act, act="quick_gelu")
    assert torch.autograd.gradgradcheck(function, layer(torch.float64), fast_mode=True)
    gate, up = layer(torch.float64)[1:]
    up = up.detach()[:, None].requires_grad_()
    gated = functools.partial(triton_kernels.act_mul, act="quick_gelu")
    assert torch.autograd.gradgradcheck(gated, (gate, up), fast_mode=True)


def test_without_it_there_is_none() -> None:
    triton_kernels.register_activation("root", root, root_derivative)
    x, *others = layer(torch.float32)
    for function in (
        lambda: triton_kernels.linear_act(x, *others, act="root"),
        lambda: triton_kernels.act_mul(x, x, "root"),
    ):
        (first,) = torch.autograd.grad(function().sum(), x, create_graph=True)
        with pytest.raises(NotImplementedError, match=r"of 'root' is not there; with torch_funct"):
            first.sum().backward()


def test_a_derivative_that_is_infinite_at_zero() -> None:
    """A tile has more rows than the matrix: there nothing is added to the sums, not 0·∞ either."""
    triton_kernels.register_activation("root", root, root_derivative)
    grad, saved = torch.ones(5, 3), torch.ones(5, 3)
    dx, sums = triton_kernels.act_backward(grad, saved, "root")
    assert torch.equal(dx, torch.full((5, 3), 0.5))
    assert torch.equal(sums, torch.full((3,), 2.5))


def test_wherever_an_activation_is_named() -> None:
    x, weight, bias = layer(torch.float32)
    expected = F.softsign(F.linear(x, weight, bias))
    product = triton_kernels.gemm_bias_act(x, weight.t(), bias, act="softsign")
    torch.testing.assert_close(product, expected)
    torch.testing.assert_close(triton_kernels.act_mul(x, x, "softsign"), F.softsign(x) * x)
    mlp = triton_kernels.nn.MLP(7, 6, 3, act="softsign")
    torch.testing.assert_close(mlp(x), mlp.fc2(F.softsign(F.linear(x, *mlp.fc1.parameters()))))
    gated = triton_kernels.nn.linear_gated(x, weight, weight, act="softsign")
    torch.testing.assert_close(gated, F.softsign(x @ weight.t()) * (x @ weight.t()))


class Layer(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(8, 8), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.linear(x))


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (F.softsign, "softsign"),
        (nn.Softsign(), "softsign"),
        (torch_quick_gelu, "quick_gelu"),
        (lambda x: torch.sigmoid(x * 1.702) * x, "quick_gelu"),
        (lambda x: x * torch.sigmoid(1.7 * x), "(x * sigmoid(1.7 * x))"),
    ],
)
def test_the_backend_fuses_what_torch_function_computes(
    function: Callable[[Tensor], Tensor], name: str
) -> None:
    graph.register()
    torch._dynamo.reset()
    model, x = Layer(function), torch.randn(4, 8)
    said = str(triton_kernels.explain(model, x, min_score=0))
    assert f"linear_act (act {name})" in said, said
    fused = torch.compile(model, backend="triton_kernels", options={"min_score": 0})
    torch.testing.assert_close(fused(x), model(x))


def test_two_values_are_not_an_activation_of_one() -> None:
    graph.register()
    torch._dynamo.reset()
    x, other = torch.randn(4, 8), torch.tensor(0.5)
    model = Layer(lambda h: h * torch.sigmoid(1.702 * other))
    assert "quick_gelu" not in str(triton_kernels.explain(model, x, min_score=0))
    fused = torch.compile(model, backend="triton_kernels", options={"min_score": 0})
    torch.testing.assert_close(fused(x), model(x))


class Module(nn.Module):
    """An activation as a class of its own, which counts its calls."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.calls = function, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.function(x)


class WithDeadEnd(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x.add_(1)
        return F.softsign(x)


class Block(nn.Module):
    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(8, 16), act, nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


@pytest.mark.parametrize(
    ("act", "name"),
    [
        (nn.Softsign(), "softsign"),
        (Module(lambda x: torch.sigmoid(x * 1.702) * x), "quick_gelu"),
        (Module(lambda x: torch.sigmoid(x * 1.7) * x), ""),
        (WithDeadEnd(), ""),
        (nn.PReLU(), ""),
    ],
)
@pytest.mark.parametrize("block", [False, True])
def test_replace_modules_takes_modules_that_compute_it(
    act: nn.Module, name: str, block: bool
) -> None:
    layers = nn.Sequential(nn.Linear(8, 16), act, nn.Linear(16, 8))
    model, x = (nn.Sequential(Block(act)) if block else layers), torch.randn(4, 8)
    expected, calls = model(x), getattr(act, "calls", 0)
    report = triton_kernels.replace_modules(model, min_score=0)
    assert getattr(act, "calls", 0) == calls  # it was only looked at
    said = [each for each in ("softsign", "quick_gelu") if f"act {each}" in str(report)]
    said += [each for each in ("softsign", "quick_gelu") if f"act='{each}'" in str(report)]
    assert said == ([name] if name else []), report
    torch.testing.assert_close(model(x), expected)
    report.undo()
    torch.testing.assert_close(model(x), expected)


def test_replace_modules_leaves_one_with_hooks() -> None:
    act = nn.Softsign()
    act.register_forward_hook(lambda *_: None)
    report = triton_kernels.replace_modules(nn.Sequential(nn.Linear(8, 8), act), min_score=0)
    assert "left: 0: hooks registered" in str(report)


def test_check_proves_it() -> None:
    for spec in compare.activation_specs("softsign", dtypes=["float32", "bfloat16"]):
        report = compare.check(spec, level="quick")
        assert report, report


def test_check_finds_a_wrong_derivative() -> None:
    triton_kernels.register_activation(
        "wrong_softsign", softsign, wrong_derivative, torch_function=F.softsign
    )
    values, derivative = compare.activation_specs("wrong_softsign", dtypes=["float32"])
    assert not compare.check(derivative, level="quick")
    assert values.name == "wrong_softsign"


def test_bounds_are_finite_at_the_largest_numbers() -> None:
    for dtype in (torch.float16, torch.float32, torch.float64):
        x = torch.tensor([torch.finfo(dtype).max], dtype=dtype)
        for spec in compare.activation_specs("softsign"):
            assert spec.bound("any", ((x,), {}), x.double(), dtype).isfinite()


def test_specs_need_a_torch_function() -> None:
    triton_kernels.register_activation("bare_softsign", softsign, softsign_derivative)
    for name in ("bare_softsign", "relu", "unknown"):
        with pytest.raises(ValueError, match=f"no activation '{name}' was registered with"):
            compare.activation_specs(name)


def test_to_register_the_same_again_is_no_error() -> None:
    triton_kernels.register_activation(
        "softsign", softsign, softsign_derivative, torch_function=F.softsign
    )
    again = triton.jit(softsign.fn)  # as a module that is loaded anew makes it
    triton_kernels.register_activation(
        "softsign", again, softsign_derivative, torch_function=F.softsign
    )
    with pytest.raises(ValueError, match="the name 'softsign' is taken"):
        triton_kernels.register_activation(
            "softsign", softsign, wrong_derivative, torch_function=F.softsign
        )


def test_a_function_with_another_number_is_another() -> None:
    """As a cell that is edited and run again makes it; the number is written, or captured."""

    def mine(edited: bool) -> Callable[[Tensor], Tensor]:
        if edited:
            return lambda x: 3.0 * x
        return lambda x: 2.0 * x

    def scaled(by: float) -> Callable[[Tensor], Tensor]:
        return lambda x: by * x

    register = triton_kernels.register_activation
    for name, first, same, other in (
        ("written", mine(False), mine(False), mine(True)),
        ("captured", scaled(2.0), scaled(2.0), scaled(3.0)),
    ):
        for function in (first, same):
            register(name, softsign, softsign_derivative, torch_function=function)
        with pytest.raises(ValueError, match=f"the name '{name}' is taken"):
            register(name, softsign, softsign_derivative, torch_function=other)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (("relu", softsign, softsign_derivative), ValueError, "the name 'relu' is taken"),
        (("a b", softsign, softsign_derivative), ValueError, "'name' must be an identifier"),
        (("class", softsign, softsign_derivative), ValueError, "'name' must be an identifier"),
        (("new", abs, softsign_derivative), TypeError, "'forward' must be a @triton.jit function"),
        (("new", softsign, clamped), TypeError, "clamped takes 2"),
    ],
)
def test_wrong_arguments(arguments: tuple, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        triton_kernels.register_activation(*arguments)
    assert "new" not in ACTIVATIONS
    with pytest.raises(TypeError, match="'drops' must be a @triton"):
        triton_kernels.register_activation("new", softsign, softsign_derivative, drops=abs)
    with pytest.raises(TypeError, match="'torch_function' must be a function"):
        triton_kernels.register_activation(
            "new", softsign, softsign_derivative, torch_function="softsign"
        )


def test_an_unknown_name_says_what_there_is() -> None:
    x, weight, _ = layer(torch.float32)
    with pytest.raises(ValueError, match=r"'softsign', .*but got 'swish'; .*register_activation"):
        triton_kernels.linear_act(x, weight, act="swish")
