"""relu drops a gradient where its slope is 0, as torch's does, even an infinite one or NaN, and so
may activations that users register."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

import cuda_reference
import triton_kernels as tk
from cuda_reference import _activations
from triton_kernels.activations import ACTIVATIONS

GRADS = [math.inf, -math.inf, math.nan, math.inf, -math.inf, math.nan, 2.0, 0.0]
NUMBERS = [-1.0, -math.inf, -2.0, 0.0, 3.0, 4.0, math.nan, math.nan]
SIDES = pytest.mark.parametrize("side", [tk, cuda_reference], ids=["triton", "cuda"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])


def drawn(numbers: list[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor([numbers], dtype=dtype, device=device)


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@SIDES
@DTYPES
@pytest.mark.parametrize("bias", [False, True])
def test_act_backward(side: object, dtype: torch.dtype, bias: bool, device: torch.device) -> None:
    x = drawn(NUMBERS, dtype, device).requires_grad_()
    grad = drawn(GRADS, dtype, device)
    out = torch.relu(x)
    (expected,) = torch.autograd.grad(out, x, grad)
    dx, sums = side.act_backward(grad, out.detach(), "relu", bias=bias)  # type: ignore[attr-defined]
    same(dx, expected)
    if bias:
        same(sums, expected[0])


@SIDES
@DTYPES
@pytest.mark.parametrize("lying", ["flat", "tiled"])
def test_act_mul(side: object, dtype: torch.dtype, lying: str, device: torch.device) -> None:
    """Where the gate is closed, up may be infinite, too."""
    gate, grad = (drawn(t, dtype, device).expand(3, -1).clone() for t in (NUMBERS, GRADS))
    up = drawn([math.inf, 2.0, math.nan, 1.0, 1.0, 1.0, 0.0, 1.0], dtype, device).expand(3, -1)
    up = up.clone() if lying == "flat" else up.t().contiguous().t()
    gate.requires_grad_()
    (expected,) = torch.autograd.grad(torch.relu(gate) * up, gate, grad)
    (found,) = torch.autograd.grad(side.act_mul(gate, up, "relu"), gate, grad)  # type: ignore[attr-defined]
    same(found, expected)


@DTYPES
def test_a_layer_whose_gradient_overflowed(dtype: torch.dtype, device: torch.device) -> None:
    """In 16 bits scaled losses overflow. What relu masks stays out of the layer's gradients."""
    x = torch.eye(8, device=device, dtype=dtype).requires_grad_()
    weight = -torch.ones(16, 8, device=device, dtype=dtype)
    weight[8:] = 1.0
    bias = torch.zeros(16, device=device, dtype=dtype)
    parameters = [x, weight.requires_grad_(), bias.requires_grad_()]
    grad = torch.full((8, 16), math.inf, device=device, dtype=dtype)
    grad[:, 8:] = 1.0
    expected = torch.autograd.grad(torch.relu(x @ weight.t() + bias), parameters, grad)
    found = torch.autograd.grad(tk.linear_act(x, weight, bias, act="relu"), parameters, grad)
    for each, right in zip(found, expected):
        assert each.isfinite().all()
        same(each, right)


# ---- registered activations ----


@triton.jit
def relu6(x):
    return tl.where(x < 0, 0.0, tl.where(x > 6.0, 6.0, x))


@triton.jit
def relu6_derivative(x):
    return tl.full(x.shape, 1.0, x.dtype)  # does not count where it drops


@triton.jit
def relu6_drops(x):
    return (x <= 0) | (x >= 6.0)


CUDA = """
template <class C> __device__ C forward(C x) { return x < C(0) ? C(0) : x > C(6) ? C(6) : x; }
template <class C> __device__ C derivative(C x) { return C(1); }
template <class C> __device__ bool drops(C x) { return x <= C(0) || x >= C(6); }
"""


@pytest.fixture
def registered() -> Iterator[None]:
    tk.register_activation("my_relu6", relu6, relu6_derivative, drops=relu6_drops)
    cuda_reference.register_activation("my_relu6", CUDA)
    yield
    del ACTIVATIONS["my_relu6"], _activations.REGISTERED["my_relu6"]


@SIDES
@DTYPES
def test_of_a_registered_activation(
    side: object, dtype: torch.dtype, device: torch.device, registered: None
) -> None:
    x = drawn([-1.0, -math.inf, 6.0, 0.0, 3.0, 4.0, math.inf, 8.0], dtype, device).requires_grad_()
    grad = drawn(GRADS, dtype, device)
    up = drawn([math.inf, 2.0, math.nan, 1.0, 1.0, 1.0, 2.0, 1.0], dtype, device)
    (expected,) = torch.autograd.grad(F.relu6(x), x, grad)
    dx, sums = side.act_backward(grad, x.detach(), "my_relu6")  # type: ignore[attr-defined]
    same(dx, expected)
    same(sums, expected[0])
    (expected,) = torch.autograd.grad(F.relu6(x) * up, x, grad)
    out = side.act_mul(x, up, "my_relu6")  # type: ignore[attr-defined]
    same(torch.autograd.grad(out, x, grad)[0], expected)
