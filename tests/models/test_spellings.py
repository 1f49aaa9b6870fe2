"""What models write for an activation of a product: written out, behind views, casts, dropout."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from written import Apply, inputs, kernels

import triton_kernels as tk
from compare import check_fused
from triton_kernels.graph import spelling

pytestmark = pytest.mark.usefixtures("fresh")

GELU, LINEAR, BIAS_ACT = "linear_gelu", "linear_act", "gemm_bias_act"


def conv1d(m: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """GPT-2's linear layer."""
    rows = torch.addmm(m.b if bias is None else bias, x.view(-1, x.size(-1)), m.w)
    return rows.view(*x.size()[:-1], 8)


def new_gelu(x: Tensor) -> Tensor:
    return (
        0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
    )


def fast_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


def bloom_gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


def by_erf(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def sum_of_halves(x: Tensor) -> Tensor:
    return x / 2 + x * torch.erf(x * 0.7071067811865475) / 2


# What is written, and the kernel with its activation.
WRITTEN: dict[str, tuple[Callable[..., Any], tuple[str, str]]] = {
    "NewGELU": (lambda m, x, y: new_gelu(F.linear(x, m.w, m.b)), (GELU, "gelu_tanh")),
    "FastGELU": (lambda m, x, y: fast_gelu(F.linear(x, m.w, m.b)), (GELU, "gelu_tanh")),
    "BLOOM": (lambda m, x, y: bloom_gelu(F.linear(x, m.w, m.b)), (GELU, "gelu_tanh")),
    "erf": (lambda m, x, y: by_erf(F.linear(x, m.w)), (GELU, "gelu")),
    "a sum": (lambda m, x, y: sum_of_halves(F.linear(x, m.w)), (GELU, "gelu")),
    "x·sigmoid(x)": (
        lambda m, x, y: (lambda h: torch.sigmoid(h) * h)(F.linear(x, m.w)),
        (LINEAR, "silu"),
    ),
    "of half the product": (
        lambda m, x, y: new_gelu(F.linear(x, m.w) * 0.5),
        (BIAS_ACT, "gelu_tanh"),
    ),
    "GPT-2": (lambda m, x, y: new_gelu(conv1d(m, x)), (BIAS_ACT, "gelu_tanh")),
    "view, then relu": (lambda m, x, y: conv1d(m, x).relu(), (BIAS_ACT, "relu")),
    "two views": (
        lambda m, x, y: F.silu(F.linear(x, m.w).flatten(0, 1).unsqueeze(0)),
        (LINEAR, "silu"),
    ),
    "dropout in eval": (
        lambda m, x, y: torch.tanh(F.dropout(F.linear(x, m.w), 0.5, training=False)),
        (LINEAR, "tanh"),
    ),
    "dropout of nothing": (
        lambda m, x, y: torch.tanh(F.dropout(F.linear(x, m.w), p=0.0)),
        (LINEAR, "tanh"),
    ),
    "dropout, then in place": (
        lambda m, x, y: F.dropout(F.linear(x, m.w), 0.1, False).relu_(),
        (LINEAR, "relu"),
    ),
    "casts to its dtype": (
        lambda m, x, y: F.silu(F.linear(x, m.w).to(x.dtype).type_as(y).type(x.dtype)),
        (LINEAR, "silu"),
    ),
    "turned": (
        lambda m, x, y: F.gelu(F.linear(x, m.w).transpose(1, 2).contiguous()),
        (GELU, "gelu"),
    ),
    "heads": (
        lambda m, x, y: torch.relu(F.linear(x, m.w, m.b).view(2, 3, 2, 4).permute(0, 2, 1, 3)),
        (LINEAR, "relu"),
    ),
    "an image": (
        lambda m, x, y: F.silu(2 * F.linear(x, m.w).reshape(-1, 2, 2, 4)),
        (BIAS_ACT, "silu"),
    ),
    "inner": (lambda m, x, y: torch.tanh(torch.inner(x, m.w)), (LINEAR, "tanh")),
    "tensordot": (
        lambda m, x, y: torch.relu(torch.tensordot(x, m.w, dims=1) + m.b),
        (BIAS_ACT, "relu"),
    ),
    "tensordot by rows": (
        lambda m, x, y: torch.relu(torch.tensordot(x, m.w, dims=([2], [1]))),
        (LINEAR, "relu"),
    ),
    "alpha dropout": (
        lambda m, x, y: torch.tanh(F.feature_alpha_dropout(F.linear(x, m.w), 0.1, False)),
        (LINEAR, "tanh"),
    ),
    "[1, N] bias": (
        lambda m, x, y: F.relu(x @ m.w + m.b.unsqueeze(0)),
        (BIAS_ACT, "relu"),
    ),
    "[1, 1, N] bias, taken off": (
        lambda m, x, y: torch.sigmoid(x @ m.w - m.b.view(1, 1, 8)),
        (BIAS_ACT, "sigmoid"),
    ),
    "[1, 1, N] bias of viewed rows": (
        lambda m, x, y: F.relu((x.flatten(0, 1) @ m.w).view(2, 3, 8) + m.b.view(1, 1, 8)),
        (BIAS_ACT, "relu"),
    ),
    "times a number": (lambda m, x, y: F.gelu(F.linear(x, m.w, m.b) * 2.5), (BIAS_ACT, "gelu")),
    "by a number": (lambda m, x, y: F.gelu(F.linear(x, m.w, m.b) / 3), (BIAS_ACT, "gelu")),
    "less a vector": (lambda m, x, y: F.relu(F.linear(x, m.w) - m.b), (BIAS_ACT, "relu")),
    "from a tensor": (lambda m, x, y: F.relu(y - F.linear(x, m.w)), (BIAS_ACT, "relu")),
}


def made(name: str, device: torch.device, dtype: torch.dtype) -> tuple[Apply, Tensor, Tensor]:
    x, y = inputs(device, dtype)
    return Apply(WRITTEN[name][0]).to(device, dtype), x, y


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", WRITTEN)
def test_fused_and_right(name: str, dtype: torch.dtype, device: torch.device) -> None:
    """With gradients, in training; not further from float64 than what is written is."""
    module, x, y = made(name, device, dtype)
    fused = tk.fuse(module, min_score=0)
    wide = copy.deepcopy(module).double()
    results = {}
    for key, model, given in (
        ("fused", fused, (x, y)),
        ("written", module, (x, y)),
        ("float64", wide, (x.double(), y.double())),
    ):
        lead = given[0].clone().requires_grad_()
        out = model(lead, given[1])
        weights = torch.linspace(-1, 1, out.numel(), device=device).view(out.shape)
        wanted = [lead, *(wide if key == "float64" else module).parameters()]
        grads = torch.autograd.grad(out, wanted, weights.to(out.dtype), allow_unused=True)
        results[key] = [out, *grads]
    assert kernels(fused.plan) == [WRITTEN[name][1]], fused.plan
    eps = torch.finfo(dtype).eps
    for found, written, right in zip(*results.values()):
        if right is None:
            assert found is None
            continue
        assert found.dtype == dtype
        limit = 2 * (written.double() - right).abs().max() + 8 * eps * right.abs().max()
        assert (found.double() - right).abs().max() <= limit


@pytest.mark.parametrize("name", ["GPT-2", "erf", "[1, N] bias", "dropout, then in place"])
def test_in_eval(name: str, cpu: torch.device) -> None:
    module, x, y = made(name, cpu, torch.float32)
    report = check_fused(module.eval(), [(x, y), (y, x)])
    assert report, report


def test_a_product_with_other_users_is_left(cpu: torch.device) -> None:
    def function(m: Apply, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        h = F.linear(x, m.w)
        return new_gelu(h), h

    module, (x, y) = Apply(function), inputs(cpu)
    fused = tk.fuse(module, min_score=0)
    assert torch.equal(fused(x, y)[0], module(x, y)[0])
    assert "users" in str(fused.plan)


LEFT: dict[str, tuple[Callable[..., Any], str]] = {
    "two arguments": (lambda h: h * torch.sigmoid(h.flip(-1)), "act_mul"),
    "part of it": (lambda h: F.relu(h[..., :4]), "used by"),
    "a row behind a turn": (lambda h: F.layer_norm(h.view(-1, 4), (4,)) + 1, "used by"),
    "dropout": (lambda h: F.relu(F.dropout(h, 0.5, training=True)), "used by dropout"),
    "wider": (lambda h: F.relu(h.double()), "used by"),
    "times infinity": (lambda h: F.relu(h * math.inf), "scaled by inf"),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_with_a_reason(name: str, cpu: torch.device) -> None:
    function, reason = LEFT[name]
    module = Apply(lambda m, x, y: function(F.linear(x, m.w)))
    x, y = inputs(cpu)
    fused = tk.fuse(module, min_score=0)
    torch.manual_seed(0)
    out = fused(x, y)
    torch.manual_seed(0)
    torch.testing.assert_close(out, module(x, y), equal_nan=True)
    assert not {GELU, LINEAR, BIAS_ACT} & {kernel for kernel, _ in kernels(fused.plan)}
    assert reason in str(fused.plan)


def flat(x: Tensor) -> Tensor:
    return x[:1].flatten(0, 1)


# What is added behind a view changes the shape, or belongs to other rows.
ADDED: dict[str, Callable[..., Any]] = {
    "a dimension": lambda m, x, y: F.relu(flat(F.linear(x, m.w)) + y[:1]),
    "a row of more dimensions": lambda m, x, y: F.relu(flat(F.linear(x, m.w)) + m.b.view(1, 1, 8)),
    "other rows": lambda m, x, y: F.relu(F.linear(x[:1], m.w).view(3, 1, 8) + y[:1]),
    "the same rows": lambda m, x, y: F.relu(F.linear(x, m.w).view(3, 2, 8) + y.view(3, 2, 8)),
    "a longer product": lambda m, x, y: F.relu(F.linear(x[:1, :1], m.w) + y),
    "a row of turned columns": lambda m, x, y: F.relu(
        F.linear(x[:, :1].expand(2, 8, 8), m.w).transpose(1, 2) + m.b
    ),
    "columns of turned ones": lambda m, x, y: (
        F.linear(x[:, :1].expand(2, 8, 8), m.w).transpose(1, 2) * m.b
    ),
    "a column": lambda m, x, y: F.relu(F.linear(x, m.w) + y[..., :1]),
}


@pytest.mark.parametrize("name", ADDED)
def test_shapes_are_as_written(name: str, cpu: torch.device) -> None:
    module, (x, y) = Apply(ADDED[name]), inputs(cpu)
    fused = tk.fuse(module, min_score=0)
    out, right = fused(x, y), module(x, y)
    assert out.shape == right.shape
    torch.testing.assert_close(out, right)


def test_a_sum_that_lies_turned_is_left(cpu: torch.device) -> None:
    """What is viewed afterwards could not be, of a result in rows."""

    def function(m: Apply, x: Tensor, y: Tensor) -> Tensor:
        turned = y.transpose(0, 1).contiguous().transpose(0, 1)
        return (turned + F.linear(x, m.w)).transpose(0, 1).view(6, 8)

    module, (x, y) = Apply(function), inputs(cpu)
    fused = tk.fuse(module, min_score=0)
    torch.testing.assert_close(fused(x, y), module(x, y))
    assert "does not lie in rows" in str(fused.plan)


def test_a_move_to_another_device_stays(cpu: torch.device) -> None:
    module = Apply(lambda m, x, y: F.relu(F.linear(x, m.w).to("meta")))
    assert tk.fuse(module, min_score=0)(*inputs(cpu)).is_meta


def test_constants_of_few_digits_are_another_function(cpu: torch.device) -> None:
    """Also in bfloat16, which tells few constants apart."""

    def nearly(h: Tensor) -> Tensor:
        return 0.5 * h * (1.0 + torch.tanh(0.7979 * (h + 0.0447 * h**3)))

    module = Apply(lambda m, x, y: nearly(F.linear(x, m.w, m.b))).bfloat16()
    fused = tk.fuse(module, min_score=0)
    fused(*inputs(cpu, torch.bfloat16))
    ((_, act),) = kernels(fused.plan)
    assert "0.7979" in act


@pytest.mark.usefixtures("no_grad")
def test_clamp_is_relu_where_nobody_wants_the_gradient(cpu: torch.device) -> None:
    module, (x, y) = Apply(lambda m, x, y: F.linear(x, m.w).clamp(min=0)), inputs(cpu)
    fused = tk.fuse(module, min_score=0)
    torch.testing.assert_close(fused(x, y), module(x, y))
    assert kernels(fused.plan) == [(LINEAR, "relu")]


def test_a_gate_that_is_written_out(cpu: torch.device) -> None:
    """T5 v1.1."""
    module = Apply(lambda m, x, y: new_gelu(F.linear(x, m.w)) * F.linear(x, m.w, m.b))
    x, y = inputs(cpu)
    fused = tk.fuse(module, min_score=0)
    torch.testing.assert_close(fused(x, y), module(x, y))
    assert kernels(fused.plan) == [("act_mul", "gelu_tanh")]


def test_dynamic_shapes(cpu: torch.device) -> None:
    """Symbols stay symbols."""
    module = Apply(WRITTEN["GPT-2"][0])
    fused = tk.fuse(module, min_score=0)
    for length in (3, 5, 7, 9):
        x = torch.randn(2, length, 8)
        torch.testing.assert_close(fused(x, x), module(x, x))
        assert kernels(fused.plan) == [(BIAS_ACT, "gelu_tanh")]


@pytest.mark.parametrize("planted", ["gelu", "sigmoid", "relu"])
def test_a_wrong_reading_is_caught(
    planted: str, cpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    (written, _), *others = spelling.KNOWN
    monkeypatch.setattr(spelling, "KNOWN", ((written, planted), *others))
    module, x, y = made("x·sigmoid(x)", cpu, torch.float32)
    assert not check_fused(module.eval(), [(x, y)])


def test_every_spelling_is_the_activation() -> None:
    """The table itself, in float64."""
    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    torches = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}
    curves = {"tanh": torch.tanh, "erf": torch.erf, "sigmoid": torch.sigmoid}

    def value(polynomial: Any) -> Any:
        return sum(
            n * math.prod((atom(a) ** p for a, p in m), start=1) for m, n in polynomial.items()
        )

    def atom(a: Any) -> Tensor:
        return x if a == "x" else curves[a[0]](value(dict(a[1])))

    for written, name in spelling.KNOWN:
        if isinstance(name, str):
            torch.testing.assert_close(value(written), torches[name](x), rtol=1e-12, atol=1e-12)
