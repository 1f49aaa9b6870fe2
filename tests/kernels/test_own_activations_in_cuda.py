"""Activations that users register with the CUDA side: right, checked, built apart."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from softsigns import softsign, softsign_derivative
from torch import Tensor

import compare
import cuda_reference
import triton_kernels
from cuda_reference import _activations
from triton_kernels.activations import ACTIVATIONS

SOFTSIGN = """
template <class C> __device__ C forward(C x) { return x / (C(1) + fabs(x)); }
template <class C> __device__ C derivative(C x) {
  return C(1) / ((C(1) + fabs(x)) * (C(1) + fabs(x)));
}
"""
WRONG = SOFTSIGN.replace("* (C(1) + fabs(x))", "* (C(1) + x)")
DTYPES = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 1e-2, torch.bfloat16: 1e-1}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """softsign on both sides; a name always means the same text."""
    before = set(ACTIVATIONS), set(_activations.REGISTERED)
    cuda_reference.register_activation("softsign", SOFTSIGN)
    yield
    for known, names in zip((ACTIVATIONS, _activations.REGISTERED), before):
        for name in set(known) - names:
            del known[name]


def layer(dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(s, dtype=dtype, requires_grad=True) for s in ((5, 7), (6, 7), (6,))]


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return cuda_reference.linear_act(x, weight, bias, act="softsign")


def tiled(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return cuda_reference.gemm_bias_act(x, weight.t(), bias, act="softsign", variant="tiled")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("call", [linear, tiled])
def test_values_and_gradients_agree_with_float64(
    dtype: torch.dtype, call: Callable[..., Tensor]
) -> None:
    given = layer(dtype)
    wide = [t.detach().double().requires_grad_() for t in given]
    out, expected = call(*given), F.softsign(F.linear(*wide))
    limits = {"rtol": DTYPES[dtype], "atol": DTYPES[dtype]}
    torch.testing.assert_close(out.double(), expected, **limits)
    gradients = torch.autograd.grad(out, given, torch.ones_like(out))
    right = torch.autograd.grad(expected, wide, torch.ones_like(expected))
    for gradient, reference in zip(gradients, right):
        torch.testing.assert_close(gradient.double(), reference, **limits)


@pytest.mark.parametrize("variant", [None, "scalar", "pack128", "stream"])
def test_gated_units_and_their_gradients(variant: str | None) -> None:
    gate, up = (torch.randn(8, 16, requires_grad=True) for _ in range(2))
    out = cuda_reference.act_mul(gate, up, "softsign", variant=variant)
    expected = F.softsign(gate) * up
    torch.testing.assert_close(out, expected)
    grad = torch.randn_like(out)
    for mine, right in zip(*(torch.autograd.grad(t, (gate, up), grad) for t in (out, expected))):
        torch.testing.assert_close(mine, right)


def test_a_second_derivative_is_refused() -> None:
    x, weight, bias = layer(torch.float32)
    (gradient,) = torch.autograd.grad(linear(x, weight, bias).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivative of 'softsign' is not there"):
        gradient.sum().backward()


@pytest.mark.parametrize("text", [SOFTSIGN, WRONG])
def test_check_tries_both_sides(text: str) -> None:
    name = "softsign" if text is SOFTSIGN else "wrong_in_cuda"
    triton_kernels.register_activation(
        name, softsign, softsign_derivative, torch_function=F.softsign
    )
    cuda_reference.register_activation(name, text)
    values, slopes = (
        compare.check(spec, level="quick")
        for spec in compare.activation_specs(name, dtypes=["float32"])
    )
    assert values, values
    assert "CUDA" in str(slopes)
    assert bool(slopes) is (text is SOFTSIGN), slopes


def test_what_the_document_writes_runs(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "MODELS.md").read_text()
    section = text.split("## An activation of your own\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S)
    names = "compare, cuda_reference, torch, triton, triton_kernels"
    file = tmp_path / "own_activation.py"  # whose source triton.jit reads
    file.write_text(f"import {names}\nimport triton.language as tl\n\n{code}")
    runpy.run_path(str(file))
    x, weight = torch.randn(5, 7), torch.randn(6, 7)
    y = cuda_reference.linear_act(x, weight, act="quick_gelu")
    torch.testing.assert_close(y, F.linear(x, weight) * torch.sigmoid(1.702 * F.linear(x, weight)))


def test_the_shipped_libraries_stay() -> None:
    """An activation is part of a library of its own, and of none that is not asked for."""
    x, weight, bias = layer(torch.float32)
    shipped = _activations.library("linear_act", "gelu", "host")
    linear(x, weight, bias)
    own = _activations.library("linear_act", "softsign", "host")
    assert Path(own._name).name.startswith("linear_act_softsign-host-")
    assert Path(shipped._name).name.startswith("linear_act-host-")
    assert _activations.library("linear_act", "gelu", "host") is shipped


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (("relu", SOFTSIGN), ValueError, "the name 'relu' is taken"),
        (("softsign", WRONG), ValueError, "the name 'softsign' is taken"),
        (("a b", SOFTSIGN), ValueError, "'name' must be an identifier"),
        (("new", 1), TypeError, "'cuda' must be a str, but got int"),
        (("new", SOFTSIGN.replace("derivative", "slope")), ValueError, "no function 'derivative'"),
    ],
)
def test_wrong_arguments(arguments: tuple, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        cuda_reference.register_activation(*arguments)
    assert "new" not in _activations.REGISTERED
    cuda_reference.register_activation("softsign", SOFTSIGN)  # the same again


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("narrow", SOFTSIGN.replace("template <class C>", "").replace("C x", "float x")
         .replace("C forward", "float forward").replace("C derivative", "float derivative")
         .replace("C(1)", "1.0f"), "return the type of their argument"),
        ("mistaken", SOFTSIGN.replace("fabs(x))", "fabs(y))"), r"mistaken\.cuh:2"),
    ],
)  # fmt: skip
def test_what_the_compiler_finds_is_told(name: str, text: str, said: str) -> None:
    cuda_reference.register_activation(name, text)
    with pytest.raises(cuda_reference.BuildError, match=said):
        cuda_reference.act_mul(torch.ones(3), torch.ones(3), name)


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"'softsign', but got 'swish'"):
        cuda_reference.act_mul(torch.ones(3), torch.ones(3), "swish")
