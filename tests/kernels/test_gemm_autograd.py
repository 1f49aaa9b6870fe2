"""Gradients of the matrix products: right, no more work than is needed, and out=."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from products import leaf, operands
from torch import Tensor
from torch_activations import TORCH

import triton_kernels as tk
from compare.specs.activations import ACTIVATIONS as ORACLES
from compare.specs.activations import OF_PRE
from cuda_reference import _activations as cuda_activations
from triton_kernels._launch import Launch
from triton_kernels.activations import ACTIVATIONS
from triton_kernels.gemm.gluon import availability
from triton_kernels.interpreter import cross_compile
from triton_kernels.ops import gemm_bias_act as module

OPS = torch.ops.triton_kernels
HALF, BFLOAT, FLOAT, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
F = torch.nn.functional


def call(act: str) -> Callable[..., Tensor]:
    """gemm_bias_act with everything, of a, b, bias, c."""
    return lambda a, b, bias, c: tk.gemm_bias_act(a, b, bias, act=act, alpha=0.7, beta=-0.3, c=c)


def eager(act: str) -> Callable[..., Tensor]:
    return lambda a, b, bias, c: TORCH[act](0.7 * (a @ b) - 0.3 * c + bias)


# ---- right ----


def test_both_sides_and_the_oracle_have_the_same_activations() -> None:
    """In one order, which is CUDA's numbering; and they keep the same for the backward pass."""
    assert tuple(ACTIVATIONS) == tuple(ORACLES) == cuda_activations.ACTS
    of_pre = [name for name, act in ACTIVATIONS.items() if act.of_pre]
    assert of_pre == ["gelu", "gelu_tanh", "silu"] == list(OF_PRE)


def test_short_forms_are_for_results_of_16_bits() -> None:
    """And for no float64, whose digits they lack."""
    for name in ("gelu", "gelu_tanh", "silu"):
        act = ACTIVATIONS[name]
        for result, compute, short in (
            (HALF, FLOAT, True),
            (BFLOAT, BFLOAT, True),
            (FLOAT, HALF, False),
            (HALF, DOUBLE, False),
        ):
            forward, derivative = (
                act.forward_for(result, compute),
                act.derivative_for(result, compute),
            )
            assert (forward is act.half_forward) == (derivative is act.half_derivative) == short
    tanh = ACTIVATIONS["tanh"]  # which has none
    assert tanh.forward_for(HALF, FLOAT) is tanh.forward
    assert tanh.derivative_for(HALF, FLOAT) is tanh.derivative


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_first_derivative(act: str, device: torch.device) -> None:
    """Of the function, and of the registered op, which saves nothing between."""
    inputs = operands(device)

    def registered(a: Tensor, b: Tensor, bias: Tensor, c: Tensor) -> Tensor:
        return OPS.gemm_bias_act(a, b, bias, act, 0.7, -0.3, c, None, "ieee")

    for function in (call(act), registered):
        assert torch.autograd.gradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_first_derivative_of_linear_gelu(approximate: str, device: torch.device) -> None:
    def function(*inputs: Tensor) -> Tensor:
        return tk.linear_gelu(*inputs, approximate=approximate)

    def registered(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return OPS.linear_gelu(x, weight, bias, approximate)

    x, weight, bias = leaf(device, 2, 3, 7), leaf(device, 6, 7), leaf(device, 6)
    for given in (x, x[0, 0].detach().requires_grad_()):
        for form in (function, registered):
            assert torch.autograd.gradcheck(form, (given, weight, bias), fast_mode=True)
    assert torch.autograd.gradcheck(function, (x, weight), fast_mode=True)


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_second_derivative(act: str, device: torch.device) -> None:
    assert torch.autograd.gradgradcheck(call(act), operands(device), fast_mode=True)


@pytest.mark.parametrize("act", ["silu", "tanh"])
def test_a_third_derivative_and_transforms(act: str, cpu: torch.device) -> None:
    """silu saves the pre-activation, tanh the result."""
    x, *others = operands(cpu)
    results = []
    for function in (call(act), eager(act)):
        loss = function(x, *others).sum()
        for _ in range(3):
            (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
            loss = gradient.square().sum()
        fixed = [t.detach() for t in others]
        first = torch.func.grad(lambda x, function=function: function(x, *fixed).sum())  # noqa: B023
        second = torch.func.grad(lambda x, first=first: first(x).square().sum())
        results.append((gradient.detach(), second(x.detach())))
    for mine, theirs in zip(*results):
        assert theirs.abs().max() > 0
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_second_derivative_of_act_backward(act: str, device: torch.device) -> None:
    """Also of a loss that reads both results, which adds what each gives."""
    grad, saved = leaf(device, 4, 5), leaf(device, 4, 5, seed=1).detach()
    both = lambda g: sum(tk.act_backward(g, saved, act))  # noqa: E731
    assert torch.autograd.gradcheck(both, grad)


@pytest.mark.parametrize("act", ["relu", "gelu"])
def test_gradients_through_the_pre_activation(act: str, device: torch.device) -> None:
    """It is a result of the registered op. Its gradient may be lazily negated, too."""
    inputs = operands(device)
    results = OPS.gemm_bias_act_with_pre(*inputs[:3], act, 0.7, -0.3, inputs[3], None, "ieee")
    pre = eager("none")(*inputs)
    grads = [torch.complex(t, t).conj().imag for t in torch.randn(2, 5, 6, dtype=DOUBLE).to(pre)]
    found = torch.autograd.grad(results, inputs, grads)
    for mine, theirs in zip(found, torch.autograd.grad((TORCH[act](pre), pre), inputs, grads)):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_what_is_computed_again_is_what_was_computed(precision: str, device: torch.device) -> None:
    """The op that saves no pre-activation has the gradients of the one that does, bit for bit."""
    inputs = operands(device, FLOAT, size=4)
    args = (*inputs[:3], "silu", 0.7, -0.3, inputs[3], None, precision)
    outs = OPS.gemm_bias_act(*args), OPS.gemm_bias_act_with_pre(*args)[0]
    grad = torch.randn_like(outs[0])
    again, kept = (torch.autograd.grad(out, inputs, grad) for out in outs)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(again, kept))


@pytest.mark.parametrize("dtype", [HALF, BFLOAT, FLOAT])
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_against_float64_eager(act: str, dtype: torch.dtype, device: torch.device) -> None:
    """dz takes four roundings to the dtype at most: of what is saved, where |x·act''| ≤ 1 and
    |act''| of a result ≤ 2, and its own; then a sum of products as any, and one rounding."""
    inputs = operands(device, dtype, size=9)
    out = call(act)(*inputs)
    grad = torch.randn_like(out)
    out.backward(grad)
    wide = [t.detach().double().requires_grad_() for t in inputs]
    eager(act)(*wide).backward(grad.double())
    a, b, _, c = (t.detach().double().abs() for t in inputs)
    size = 1.2 * grad.double().abs()
    magnitudes = [0.7 * size @ b.t(), 0.7 * a.t() @ size, size.sum(0), 0.3 * size.sum(1)[:, None]]
    u = torch.finfo(dtype).eps / 2
    gamma = (max(*a.shape, *b.shape) + 16) * 2.0**-22
    half = 2.0**-11 if dtype.itemsize == 2 else 0.0  # activations' short forms, for 16 bits
    for mine, exact, magnitude in zip(inputs, wide, magnitudes):
        bound = (5 * u + gamma + half) * magnitude + u * exact.grad.abs() + torch.finfo(dtype).tiny
        error = (mine.grad.double() - exact.grad).abs()
        assert mine.grad.dtype == dtype
        assert bool((error <= bound).all()), float((error / bound).max())
    assert c.shape == inputs[3].grad.shape


def test_float32_products_of_a_backward_pass_have_the_call_s_precision(cpu: torch.device) -> None:
    a, b = leaf(cpu, 40, 50, dtype=FLOAT), leaf(cpu, 50, 60, dtype=FLOAT)
    found = {}
    for precision in ("ieee", "tf32"):
        out = tk.gemm_bias_act(a, b, precision=precision)
        found[precision] = torch.autograd.grad(out, a, torch.ones_like(out))[0]
    right = torch.ones(40, 60, dtype=DOUBLE) @ b.detach().double().t()
    errors = {name: float((t.double() - right).abs().max()) for name, t in found.items()}
    assert errors["ieee"] < 2.0**-18 < errors["tf32"] < 2.0**-4


def test_result_of_another_dtype(device: torch.device) -> None:
    """The gradients are of the inputs' dtype."""
    a, b, bias, _ = operands(device, BFLOAT)
    for act in ("none", "gelu", "tanh"):
        out = tk.gemm_bias_act(a, b, bias, act=act, out_dtype=FLOAT)
        grads = torch.autograd.grad(out, (a, b, bias), torch.randn_like(out))
        assert [g.dtype for g in grads] == [BFLOAT] * 3


@pytest.mark.parametrize("act", ["none", "relu", "gelu"])
@pytest.mark.parametrize("c_shape", [(5, 6), (6,), (5, 1), (), (1, 6)])
def test_c_gets_a_gradient_of_its_shape(
    act: str, c_shape: tuple[int, ...], cpu: torch.device
) -> None:
    a, b, bias, _ = operands(cpu)
    c = leaf(cpu, *c_shape)
    grad = torch.randn(5, 6, dtype=DOUBLE)
    out = call(act)(a, b, bias, c)
    found = torch.autograd.grad(out, (a, c), grad)
    for mine, theirs in zip(
        found, torch.autograd.grad(eager(act)(a, b, bias, c), (a, c), grad), strict=True
    ):
        assert mine.shape == theirs.shape
        torch.testing.assert_close(mine, theirs)
    unread = tk.gemm_bias_act(a, b, bias, act=act, beta=0.0, c=c)
    (mine,) = torch.autograd.grad(unread, c, grad)
    assert torch.equal(mine, torch.zeros_like(c))


@pytest.mark.parametrize("act", ["none", "relu", "silu"])
def test_gradients_that_arrive_in_any_layout(act: str, device: torch.device) -> None:
    inputs = operands(device)
    base = leaf(device, 12, 14).detach()
    layouts = {
        "expanded": base[0, 0].expand(5, 6),
        "rows repeated": base[0, :6].expand(5, 6),
        "transposed": base[:6, :5].t(),
        "strided": base[:10:2, :12:2],
        "negated": torch.complex(base, base).conj().imag[:5, :6],
    }
    for what, grad in layouts.items():
        found = torch.autograd.grad(call(act)(*inputs), inputs, grad)
        right = torch.autograd.grad(eager(act)(*inputs), inputs, grad)
        for mine, theirs in zip(found, right):
            torch.testing.assert_close(mine, theirs, msg=lambda m, w=what: f"{w}: {m}")


def test_operands_in_any_layout(device: torch.device) -> None:
    """A weight's gradient comes as the weight lies, so that torch need not copy it."""
    a = leaf(device, 14, 10).detach()[:10:2, ::2].requires_grad_()
    b = leaf(device, 6, 5).detach().t().requires_grad_()
    out = tk.gemm_bias_act(a, b, act="gelu")
    grad = torch.randn_like(out)
    found = torch.autograd.grad(out, (a, b), grad)
    right = torch.autograd.grad(F.gelu(a @ b), (a, b), grad)
    for mine, theirs in zip(found, right):
        torch.testing.assert_close(mine, theirs)
    assert found[1].stride() == b.stride()
    weight = leaf(device, 6, 7)
    tk.linear_gelu(leaf(device, 4, 7), weight).sum().backward()
    assert weight.grad.stride() == weight.stride()


@pytest.mark.parametrize("shape", [(0, 7, 6), (5, 0, 6), (5, 7, 0)])
def test_empty_products(shape: tuple[int, int, int], device: torch.device) -> None:
    M, K, N = shape
    inputs = leaf(device, M, K), leaf(device, K, N), leaf(device, N)
    for act in ("none", "gelu"):
        out = tk.gemm_bias_act(*inputs, act=act)
        grads = torch.autograd.grad(out, inputs, torch.ones_like(out))
        right = torch.autograd.grad(TORCH[act](torch.addmm(inputs[2], *inputs[:2])).sum(), inputs)
        for mine, theirs in zip(grads, right):
            torch.testing.assert_close(mine, theirs)


# ---- no more work and memory than it takes ----

PRODUCT, THROUGH, SUM = "gemm_bias_act_kernel", "act_backward_kernel", "sum_kernel"


def test_kernels_run_only_for_gradients_that_are_wanted(
    cpu: torch.device, launches: list[Launch]
) -> None:
    a, b, bias, c = operands(cpu)

    def backward(act: str, *wanted: Tensor) -> list[str]:
        inputs = [t if any(t is w for w in wanted) else t.detach() for t in (a, b, bias, c)]
        out = call(act)(*inputs)
        assert [each.kernel.fn.__name__ for each in launches] == [PRODUCT]
        launches.clear()
        torch.autograd.grad(out, wanted, torch.ones_like(out))
        seen = [each.kernel.fn.__name__ for each in launches]
        launches.clear()
        return seen

    assert backward("gelu", a) == [THROUGH, PRODUCT]
    assert backward("gelu", b) == [THROUGH, PRODUCT]
    assert backward("gelu", a, b, bias) == [THROUGH, PRODUCT, PRODUCT]  # the bias's with the first
    assert backward("relu", bias) == [THROUGH]
    assert backward("none", a, b) == [PRODUCT, PRODUCT]
    assert backward("none", bias) == [SUM]
    assert backward("none", c) == [SUM]


def test_only_what_is_read_is_kept(cpu: torch.device) -> None:
    a, b, bias, c = operands(cpu)

    def kept(act: str, *wanted: Tensor) -> tuple[set[int], list[tuple[int, ...]], Tensor]:
        inputs = [t if any(t is w for w in wanted) else t.detach() for t in (a, b, bias, c)]
        seen: list[Tensor] = []

        def note(t: Tensor) -> Tensor:
            seen.append(t)
            return t

        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            out = call(act)(*inputs)
        return {t.data_ptr() for t in seen}, [tuple(t.shape) for t in seen], out

    assert kept("none", bias, c)[0] == set()
    assert kept("none", a)[0] == {b.data_ptr()}
    assert kept("none", b)[0] == {a.data_ptr()}
    for act in ("relu", "tanh", "sigmoid", "leaky_relu"):
        found, _, out = kept(act, a, b)
        assert found == {a.data_ptr(), b.data_ptr(), out.data_ptr()}, act
    for act in ("gelu", "gelu_tanh", "silu"):
        found, shapes, out = kept(act, b)
        assert out.data_ptr() not in found
        assert sorted(shapes) == [(5, 6), (5, 7)], act  # the pre-activation, and a


def test_the_pre_activation_is_written_in_training_only(
    cpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bool] = []
    real = module.run

    def run(*args: Any, with_pre: bool = False) -> Any:
        written.append(with_pre)
        return real(*args, with_pre=with_pre)

    monkeypatch.setattr(module, "run", run)
    a, b, bias, c = operands(cpu)
    call("gelu")(a, b, bias, c)
    call("relu")(a, b, bias, c)
    with torch.no_grad():
        call("gelu")(a, b, bias, c)
    call("gelu")(*(t.detach() for t in (a, b, bias, c)))
    assert written == [True, False, False, False]


@pytest.mark.parametrize("dtype", [HALF, BFLOAT, FLOAT, DOUBLE])
def test_the_pre_activation_is_that_of_the_same_product(
    dtype: torch.dtype, device: torch.device
) -> None:
    a, b, bias, c = (t.detach() for t in operands(device, dtype, size=8))
    out, pre = OPS.gemm_bias_act_with_pre(a, b, bias, "silu", 0.7, -0.3, c, None, "ieee")
    assert torch.equal(pre, tk.gemm_bias_act(a, b, bias, alpha=0.7, beta=-0.3, c=c))
    assert torch.equal(out, call("silu")(a, b, bias, c))
    x, weight = a.view(2, -1, a.shape[1]), b.t().contiguous()
    out, pre = OPS.linear_gelu_with_pre(x, weight, bias, "tanh")
    flat = tk.gemm_bias_act(a, weight.t(), bias)
    assert torch.equal(pre, flat.view(pre.shape))
    assert torch.equal(out, tk.linear_gelu(x, weight, bias, approximate="tanh"))


def test_the_pre_activation_takes_no_more_shared_memory() -> None:
    """Beside the largest tile there is none left: 227 KiB are all that a block may ask for."""
    half = {"dtype": BFLOAT, "device": "meta"}
    a, b = torch.empty(1024, 256, **half), torch.empty(256, 1024, **half)
    c = torch.empty(1024, 1024, **half)
    with availability.only("tl"), cross_compile.compiling(90) as compiled:
        for addend in (None, c):
            beta = None if addend is None else 1.0
            module.run(
                "x", a, b, None, "gelu", 1.0, beta, addend, None, None, "ieee", with_pre=True
            )
    assert [launch.kernel for launch in compiled] == ["gemm_tma_kernel"] * 2
    assert all(0 < launch.shared <= 227 * 1024 for launch in compiled)


# ---- out= ----


def test_out_is_refused_where_a_gradient_would_be_lost(cpu: torch.device) -> None:
    a, b, *_ = operands(cpu)
    free = torch.zeros(5, 6, dtype=DOUBLE)
    for refused in (
        lambda: tk.gemm_bias_act(a, b, out=free),
        lambda: tk.linear_gelu(a, b.t(), out=free),
        lambda: tk.act_backward(free + 1, free.clone().requires_grad_(), "relu", out=(free, b[0])),
        lambda: OPS.gemm_bias_act_out(a, b, None, "none", 1.0, None, None, None, "ieee", free),
        lambda: OPS.linear_gelu_out(a, b.t(), None, "none", free),
    ):
        with pytest.raises(RuntimeError, match=r"requires grad.*out= has no gradient"):
            refused()
    assert not free.any()
    with torch.no_grad():
        assert tk.linear_gelu(a, b.t(), out=free) is free
        torch.testing.assert_close(free, F.gelu(a @ b))


def test_linear_gelu_writes_into_out(device: torch.device) -> None:
    x, weight = leaf(device, 2, 3, 7).detach(), leaf(device, 6, 7).detach()
    right = tk.linear_gelu(x, weight)
    memory = torch.zeros(2, 3, 9, dtype=DOUBLE, device=device)
    assert tk.linear_gelu(x, weight, out=memory[..., 1:7]).data_ptr() == memory[0, 0, 1].data_ptr()
    assert torch.equal(memory[..., 1:7], right)
    assert not memory[..., [0, 7, 8]].any()
    OPS.linear_gelu_out(x, weight, None, "tanh", memory[..., 1:7])
    assert torch.equal(memory[..., 1:7], tk.linear_gelu(x, weight, approximate="tanh"))
    apart = torch.zeros(2, 4, 6, dtype=DOUBLE, device=device)[:, :3]
    with pytest.raises(RuntimeError, match="do not merge into one"):
        tk.linear_gelu(x, weight, out=apart)
    with pytest.raises(RuntimeError, match="never resized"):
        tk.linear_gelu(x, weight, out=memory)


def test_act_backward_in_place(device: torch.device) -> None:
    grad, saved = leaf(device, 33, 70).detach(), leaf(device, 33, 70, seed=1).detach()
    dx, sums = tk.act_backward(grad, saved, "gelu")
    total = torch.zeros(70, dtype=DOUBLE, device=device)
    found = tk.act_backward(grad, saved, "gelu", out=(grad, total))
    assert found[0] is grad
    assert torch.equal(grad, dx)
    assert torch.equal(total, sums)
    with pytest.raises(RuntimeError, match="overlaps 'the other result'"):
        tk.act_backward(saved, saved, "gelu", out=(dx, dx[0]))
    with pytest.raises(TypeError, match="must be a pair of tensors"):
        tk.act_backward(saved, saved, "gelu", out=dx)
    with pytest.raises(NotImplementedError, match="out= is for plain tensors"):
        torch.vmap(lambda g: tk.act_backward(g, g, "gelu", out=(g, g[0])))(saved[None])


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_derivatives_at_zero_nan_and_infinity(act: str, device: torch.device) -> None:
    """As torch has them at zero and NaN; at infinity what they tend to, where torch has NaN."""
    inf = float("inf")
    values = [0.0, -0.0, float("nan"), *([] if act in ("sigmoid", "tanh") else [inf, -inf])]
    saved = torch.tensor([values], device=device)
    found, _ = tk.act_backward(torch.ones_like(saved), saved, act, bias=False)
    assert torch.equal(found[0, :2].cpu(), ORACLES[act].derivative.function(saved[0, :2].cpu()))
    x = saved[0, :3].clone().requires_grad_()
    result = TORCH[act](x)
    if ACTIVATIONS[act].of_pre or ACTIVATIONS[act].straight:
        (theirs,) = torch.autograd.grad(result.sum(), x)
        torch.testing.assert_close(found[0, :3], theirs, equal_nan=True, rtol=0, atol=0)
    if act not in ("none", "sigmoid", "tanh"):
        low = {"leaky_relu": 0.01}.get(act, 0.0)
        assert found[0, 3:].tolist() == pytest.approx([1.0, low])
