"""Gradients of the elementwise ops: right, no more work than is needed, and out=."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from leaves import BINARY, REGISTERED, SAMPLES, leaf
from torch import Tensor

import triton_kernels as tk
from triton_kernels._launch import Launch

OPS = torch.ops.triton_kernels
HALF, BFLOAT, FLOAT, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
BROADCASTS = [((4, 5), (5,)), ((5,), (4, 5)), ((4, 1), (1, 5)), ((), (3, 2)), ((3, 2), ())]
BROADCASTS += [((2, 1, 3), (4, 1)), ((), ()), ((1,), ()), ((0, 5), (5,)), ((4, 5), (0, 4, 5))]


def leaves(
    shapes: tuple[tuple[int, ...], ...], device: torch.device, dtype: torch.dtype = DOUBLE
) -> list[Tensor]:
    return [leaf(shape, device, dtype) for shape in shapes]


# ---- right ----


@pytest.mark.parametrize("name", SAMPLES)
def test_first_and_second_derivative(name: str, device: torch.device) -> None:
    sample = SAMPLES[name]
    inputs = leaves(sample.shapes, device)
    assert torch.autograd.gradcheck(sample.ours, inputs)
    assert torch.autograd.gradgradcheck(sample.ours, inputs)


@pytest.mark.parametrize("name", BINARY)
def test_broadcast_operands(name: str, cpu: torch.device) -> None:
    """In every position, 0-d and empty ones too: each gradient has its operand's shape."""
    sample = SAMPLES[name]
    for shapes in BROADCASTS:
        inputs = leaves(shapes, cpu)
        out, right = sample.ours(*inputs), sample.eager(*inputs)
        grad = leaf(tuple(out.shape), cpu).detach()
        found = torch.autograd.grad(out, inputs, grad)
        for t, mine, theirs in zip(inputs, found, torch.autograd.grad(right, inputs, grad)):
            assert mine.shape == t.shape
            torch.testing.assert_close(mine, theirs, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("dtype", [HALF, BFLOAT, FLOAT])
@pytest.mark.parametrize("name", SAMPLES)
def test_against_float64_eager(name: str, dtype: torch.dtype, device: torch.device) -> None:
    """Each gradient is at most two products in float32, a float32 number in the formula, a sum of
    broadcast elements, and the roundings to the dtype on the way: ours makes two at most, of the
    gradient before it is summed and of the sum."""
    sample = SAMPLES[name]
    shapes = sample.shapes
    if len(shapes) == 2:
        shapes = ((33, 65), (65,))
    inputs = leaves(shapes, device, dtype)
    out = sample.ours(*inputs)
    grad = leaf(tuple(out.shape), device, dtype).detach()
    out.backward(grad)
    wide = [t.detach().double().requires_grad_() for t in inputs]
    sample.eager(*wide).backward(grad.double())
    magnitude = [t.detach().double().abs().requires_grad_() for t in inputs]
    sample.eager(*magnitude).backward(grad.double().abs())
    u = torch.finfo(dtype).eps / 2
    for mine, exact, large in zip(inputs, wide, magnitude):
        assert mine.grad is not None
        assert mine.grad.dtype == dtype
        assert mine.grad.shape == mine.shape
        terms = out.numel() // max(1, mine.numel())
        gamma = (terms + 8) * 2.0**-24
        bound = (gamma + 2 * u + u * u) * (1 + gamma) * large.grad.abs() + torch.finfo(dtype).tiny
        error = (mine.grad.double() - exact.grad).abs()
        assert bool((error <= bound).all()), float((error / bound).max())


def test_promoted_operands_get_gradients_of_their_own_dtype(device: torch.device) -> None:
    for name in ("add", "relu_scale_add"):
        x, y = leaf((4, 5), device, HALF), leaf((5,), device, FLOAT)
        SAMPLES[name].ours(x, y).sum().backward()
        assert (x.grad.dtype, y.grad.dtype) == (HALF, FLOAT)
        a, b = x.detach().double().requires_grad_(), y.detach().double().requires_grad_()
        SAMPLES[name].eager(a, b).sum().backward()
        torch.testing.assert_close(x.grad.double(), a.grad, rtol=2.0**-10, atol=0)
        torch.testing.assert_close(y.grad.double(), b.grad, rtol=2.0**-20, atol=0)


@pytest.mark.parametrize("name", SAMPLES)
def test_gradients_that_arrive_in_any_layout(name: str, device: torch.device) -> None:
    sample = SAMPLES[name]
    inputs = leaves(sample.shapes, device)
    out = sample.ours(*inputs)
    rows, columns = out.shape
    base = leaf((2 * rows + 2, 2 * columns + 2), device).detach()
    for what, grad in {
        "expanded": base[0, 0].expand(rows, columns),
        "row": base[0, :columns].expand(rows, columns),
        "column": base[:rows, :1].expand(rows, columns),
        "transposed": base[:columns, :rows].t(),
        "strided": base[: 2 * rows : 2, : 2 * columns : 2],
        "misaligned": base[1 : rows + 1, 1 : columns + 1],
        "lazily negated": torch.complex(base, base).conj().imag[:rows, :columns],
    }.items():
        found = torch.autograd.grad(sample.ours(*inputs), inputs, grad)
        right = torch.autograd.grad(sample.eager(*inputs), inputs, grad.clone())
        for mine, theirs in zip(found, right):
            assert torch.allclose(mine, theirs, rtol=1e-14, atol=1e-14), what


def test_at_zero_and_nan_as_torch(device: torch.device) -> None:
    values = [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e-40, -1e-40]
    x = torch.tensor(values, device=device, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    tk.relu_scale(x, 3.0).backward(torch.ones_like(x))
    (torch.relu(y) * 3.0).backward(torch.ones_like(y))
    assert torch.equal(x.grad, y.grad)
    assert x.grad.tolist() == [0, 0, 3, 3, 0, 3, 0]


@pytest.mark.parametrize("add", [False, True])
def test_a_scale_at_zero_and_nan_as_torch(add: bool, device: torch.device) -> None:
    values = [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e-40, -1e-40, 2.0]
    x = torch.tensor(values, device=device).expand(8, 8).clone().requires_grad_()
    scale = torch.tensor(values, device=device).view(8, 1).requires_grad_()
    y = [torch.ones(8, device=device)] * add
    ours = tk.relu_scale_add(x, *y, scale) if add else tk.relu_scale(x, scale)
    theirs = torch.relu(x) * scale + y[0] if add else torch.relu(x) * scale
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    grad = torch.full_like(x, -3)
    found, right = (torch.autograd.grad(out, (x, scale), grad) for out in (ours, theirs))
    for mine, other in zip(found, right):
        torch.testing.assert_close(mine, other, rtol=0, atol=0, equal_nan=True)


def test_non_contiguous_leaves_and_views(device: torch.device) -> None:
    base = leaf((6, 8), device)
    other = base.detach().clone().requires_grad_()
    tk.relu_scale_add(base.t()[::2], base[0, ::2].view(4, 1), 0.5).sum().backward()
    (torch.relu(other.t()[::2]) * 0.5 + other[0, ::2].view(4, 1)).sum().backward()
    torch.testing.assert_close(base.grad, other.grad, rtol=1e-14, atol=1e-14)


def test_one_tensor_twice(device: torch.device) -> None:
    x = leaf((4, 5), device)
    tk.add(x, x, alpha=2).sum().backward()
    assert x.grad.tolist() == [[3.0] * 5] * 4


def test_gradients_are_the_same_bits_every_time(device: torch.device) -> None:
    """Sums of two passes, too; and in torch's deterministic mode, which forbids atomics."""
    x = torch.randn(17000, 1, device=device, requires_grad=True)
    y = torch.randn(1, device=device, requires_grad=True)
    grad = torch.randn(17000, 1, device=device)
    first = torch.autograd.grad(tk.relu_scale_add(x, y, 0.3), (x, y), grad)
    torch.use_deterministic_algorithms(True)
    try:
        again = torch.autograd.grad(tk.relu_scale_add(x, y, 0.3), (x, y), grad)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(first, again))


# ---- no more than is needed ----


def test_kernels_run_only_for_gradients_that_are_wanted(
    cpu: torch.device, launches: list[Launch]
) -> None:
    def backward(function: Callable[..., Tensor], *inputs: Tensor) -> list[str]:
        out = function(*inputs)
        launches.clear()
        out.backward(torch.ones_like(out))
        return [each.meta.get("ELEMENT", each.kernel).fn.__name__ for each in launches]

    x, y = leaf((4, 5), cpu), leaf((5,), cpu)
    fixed_x, fixed_y = x.detach(), y.detach()

    def fused(x: Tensor, y: Tensor) -> Tensor:
        return tk.relu_scale_add(x, y, 0.5)

    assert backward(fused, x, y) == ["relu_scale_backward_element", "sum_kernel"]
    assert backward(fused, x, fixed_y) == ["relu_scale_backward_element"]
    assert backward(fused, fixed_x, y) == ["sum_kernel"]
    assert backward(tk.add, x, x) == []
    assert backward(tk.add, x, y) == ["sum_kernel"]
    assert backward(lambda x, y: tk.add(x, y, alpha=2), x, fixed_x) == []
    assert backward(lambda x, y: tk.add(x, y, alpha=2), fixed_x, x) == ["sum_kernel"]
    assert backward(tk.square, x) == ["square_backward_element"]
    assert backward(lambda x: tk.sum_to(x, (5,)), x) == []


def test_only_what_is_read_is_kept(cpu: torch.device) -> None:
    kept: list[Tensor] = []

    def note(t: Tensor) -> Tensor:
        kept.append(t)
        return t

    def saved(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            assert function(*inputs).requires_grad
        return list(kept)

    x, y = leaf((4, 5), cpu), leaf((5,), cpu)

    def the_very(found: list[Tensor], *inputs: Tensor) -> bool:
        return [t.data_ptr() for t in found] == [t.data_ptr() for t in inputs]

    assert saved(tk.add, x, y) == []
    assert saved(lambda x: tk.add(x, 2, alpha=3), x) == []
    assert saved(lambda x: tk.sum_to(x, ()), x) == []
    assert the_very(saved(tk.square, x), x)
    assert the_very(saved(lambda x: tk.relu_scale(x, 2), x), x)
    assert the_very(saved(lambda x, y: tk.relu_scale_add(x, y, 2), x, y), x)
    assert saved(lambda x, y: tk.relu_scale_add(x, y, 2), x.detach(), y) == []
    fixed = y.detach()
    assert the_very(saved(tk.relu_scale, x, y), x, y)
    assert the_very(saved(tk.relu_scale, x, fixed), x, fixed)
    assert the_very(saved(tk.relu_scale_add, x.detach(), y, y), x)

    passing = x * 1  # what nobody reads is not held in another way either
    gone = weakref.ref(passing)
    out = tk.add(passing, y)
    del passing
    tk.square(torch.ones(1))  # the interpreter holds on to the last launch's arguments
    gc.collect()
    assert out.requires_grad
    assert gone() is None


def test_no_graph_without_gradients(cpu: torch.device) -> None:
    x = leaf((4, 5), cpu)
    assert tk.square(x).grad_fn is not None
    assert "Square" in type(tk.square(x).grad_fn).__name__
    for quiet in (torch.no_grad, torch.inference_mode):
        with quiet():
            assert tk.square(x).grad_fn is None
    integers = torch.arange(6).view(2, 3)
    assert not tk.add(integers, 2).requires_grad
    mixed = tk.add(integers, leaf((3,), cpu, FLOAT))
    mixed.sum().backward()  # the integers have no gradient, the floats do


# ---- out= ----

CALLS: dict[str, Callable[..., Any]] = {
    "add": lambda x, **o: tk.add(x, x, **o),
    "square": tk.square,
    "relu_scale": lambda x, **o: tk.relu_scale(x, 2, **o),
    "relu_scale_add": lambda x, **o: tk.relu_scale_add(x, x, 2, **o),
    "square_backward": lambda x, **o: tk.square_backward(x, x, **o),
    "relu_scale_backward": lambda x, **o: tk.relu_scale_backward(x, x, 2, **o),
    "sum_to": lambda x, **o: tk.sum_to(x, x.shape, **o),
}


@pytest.mark.parametrize("op", CALLS)
def test_out_is_refused_where_a_gradient_would_be_lost(op: str, cpu: torch.device) -> None:
    x = leaf((4, 5), cpu)
    free = torch.zeros(4, 5, dtype=DOUBLE)
    for given, out in ((x, free), (x, x), (x.detach(), free.clone().requires_grad_())):
        with pytest.raises(RuntimeError, match=r"requires grad.*out= has no gradient"):
            CALLS[op](given, out=out)
        with pytest.raises(RuntimeError, match=r"requires grad.*out= has no gradient"):
            getattr(OPS, f"{op}_out")(*REGISTERED[op](given, out))
    assert not free.any()
    with torch.no_grad():
        assert CALLS[op](x, out=free) is free
    assert free.any()


@pytest.mark.parametrize("op", REGISTERED)
def test_registered_out_writes_and_returns_nothing(op: str, device: torch.device) -> None:
    x, out = leaf((4, 5), device).detach(), torch.full((4, 5), -1.0, dtype=DOUBLE, device=device)
    args = REGISTERED[op](x, out)
    version = out._version
    assert getattr(OPS, f"{op}_out")(*args) is None
    assert torch.equal(out, getattr(OPS, op)(*args[:-1]))
    assert out._version > version


def test_writing_into_a_saved_tensor_is_noticed(cpu: torch.device) -> None:
    """As after any in-place op: the launch itself is nothing that autograd sees."""
    x = leaf((4, 5), cpu)
    buffer = x.detach().clone()
    result = x * buffer
    tk.square(torch.ones_like(buffer), out=buffer)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
