"""Activations that a model composes, and those without a name here, in a product's kernel."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from written import Apply, inputs, kernels

import triton_kernels as tk
from compare import check_fused
from triton_kernels._fusion import Problem
from triton_kernels.activations import ACTIVATIONS
from triton_kernels.gemm.gluon import availability
from triton_kernels.graph import capabilities, composing, primitives
from triton_kernels.interpreter import cross_compile

pytestmark = pytest.mark.usefixtures("fresh")

PRODUCTS = {"linear_act", "linear_gelu", "gemm_bias_act"}


def quick_gelu(h: Tensor) -> Tensor:
    return h * torch.sigmoid(1.702 * h)


def in_place(h: Tensor) -> Tensor:
    h = F.hardtanh(h)
    h += 0.5
    return h.mul_(2)


# What is written of a product, and how plans name it.
COMPOSED: dict[str, tuple[Callable[[Tensor], Tensor], str | None]] = {
    "mish": (F.mish, "mish(x)"),
    "twice": (lambda h: F.mish(F.mish(h)), "mish(mish(x))"),
    "elu": (lambda h: F.elu(h, 0.7), "elu(x, 1, 0.7, 1)"),
    "celu": (lambda h: F.celu(h, 2.0), "elu(x, 1, 2, 0.5)"),
    "selu": (F.selu, "elu(x, 1.0507, 1.7581, 1)"),
    "softplus": (lambda h: F.softplus(h, 2.0, 5.0), "softplus(x, 2, 5)"),
    "hardswish": (F.hardswish, "hardswish(x)"),
    "hardsigmoid": (F.hardsigmoid, "hardsigmoid(x)"),
    "relu6": (F.relu6, "hardtanh(x, 0, 6)"),
    "softsign": (F.softsign, "softsign(x)"),
    "logsigmoid": (F.logsigmoid, "logsigmoid(x)"),
    "a steeper leak": (lambda h: F.leaky_relu(h * 2, 0.1), "leaky_relu(x * 2, 0.1)"),
    "quick_gelu": (quick_gelu, "(x * sigmoid(1.702 * x))"),
    "the other sign": (lambda h: h * torch.sigmoid(-h), "(x * sigmoid(neg(x)))"),
    "another root": (
        lambda h: 0.5 * h * (1 + torch.erf(h / 1.4142)),
        "((0.5 * x) * (1 + erf(x / 1.4142)))",
    ),
    "relu, squared": (lambda h: F.relu(h).square(), "square(relu(x))"),
    "scaled": (lambda h: h * 0.5, "(x * 0.5)"),
    "scaled after": (lambda h: F.silu(h) * 2, "(silu(x) * 2)"),
    "spelled, scaled": (lambda h: h / 2 * (1 + torch.erf(h * math.sqrt(0.5))) * 3, "(gelu(x) * 3)"),
    "a clamp": (lambda h: torch.clamp(h + h, -1, 1), "clamp(x + x, -1, 1)"),
    "a clamp below": (lambda h: h.clamp(min=0), "clamp_min(x, 0)"),
    "a clamp above": (lambda h: h.clamp_max(0.5), "clamp_max(x, 0.5)"),
    "by hardtanh": (lambda h: F.gelu(F.hardtanh(h, -0.5, 0.25)), "gelu(hardtanh(x, -0.5, 0.25))"),
    "with itself": (lambda h: 2 * torch.sigmoid(h) + h, "((2 * sigmoid(x)) + x)"),
    "with its value": (lambda h: h * 0.5 + h.clone().detach(), "((x * 0.5) + detach(x))"),
    "sums and quotients": (
        lambda h: (1 - torch.tanh(h)) / (h.abs() + 1) - torch.exp(-(h**2)),
        "(((1 - tanh(x)) / (abs(x) + 1)) - exp(neg(square(x))))",
    ),
    "wider inside": (lambda h: F.mish(h.float()).to(h.dtype), "mish(x)"),
    "a cube": (lambda h: torch.tanh(h**3 - 1), "tanh(cube(x) - 1)"),
    "waves": (lambda h: torch.sin(2 * h) + torch.cos(h), "(sin(2 * x) + cos(x))"),
    "a Gaussian": (lambda h: torch.exp(-(h**4)), "exp(neg(fourth(x)))"),
    "roots": (lambda h: torch.sqrt(h**2 + 1) + (h.abs() + 1) ** -0.5, None),
    "logarithms": (lambda h: torch.log1p(h.abs()) - torch.log(h**2 + 1), None),
    "turned round": (lambda h: torch.rsub(torch.sigmoid(h), 1), "(1 - sigmoid(x))"),
    "a quotient": (lambda h: torch.reciprocal(1 + torch.exp(-h)), None),
    "expit": (lambda h: torch.special.expit(2 * h), "sigmoid(2 * x)"),
    "rrelu in eval": (lambda h: F.rrelu(h, 0.125, 0.375), "leaky_relu(x, 0.25)"),
    "shrunk": (lambda h: F.softshrink(h) + F.tanhshrink(h), None),
    "in place": (lambda h: F.mish(F.hardtanh(h, inplace=True)), "mish(hardtanh(x, -1, 1))"),
    "in place, by operators": (in_place, "((hardtanh(x, -1, 1) + 0.5) * 2)"),
}


def of_linear(function: Callable[[Tensor], Tensor]) -> Apply:
    return Apply(lambda m, x, y: function(F.linear(x, m.w, m.b)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", COMPOSED)
def test_fused_and_right(name: str, dtype: torch.dtype, device: torch.device) -> None:
    """The value and gradients, as near to float64 as what is written, and named in the plan."""
    function, label = COMPOSED[name]
    few_digits = {"wider inside", "hardsigmoid", *({"hardswish"} if device.type == "cuda" else ())}
    if dtype == torch.float64 and name in few_digits:
        pytest.skip("a cast to float32 has fewer digits, and so has torch's sixth")
    module = of_linear(function).to(device, dtype)
    x, _ = inputs(device, dtype)
    fused = tk.fuse(module, min_score=0)
    results = {}
    for key, model in (("fused", fused), ("written", module), ("float64", None)):
        model = copy.deepcopy(module).double() if model is None else model
        lead = (x.double() if key == "float64" else x).clone().requires_grad_()
        out = model(lead, lead)
        weights = torch.linspace(-1, 1, out.numel(), device=device).view(out.shape)
        parameters = [p for n, p in model.named_parameters() if n.split(".")[-1] in "wb"]
        grads = torch.autograd.grad(out, [lead, *parameters], weights.to(out.dtype))
        results[key] = [out, *grads]
    ((kernel, act),) = kernels(fused.plan)
    assert kernel == "linear_act", fused.plan
    assert label in (None, act)
    eps = torch.finfo(dtype).eps
    for ours, written, right in zip(*results.values()):
        assert ours.dtype == dtype
        limit = 2 * (written.double() - right).abs().max() + 16 * eps * right.abs().max()
        assert (ours.double() - right).abs().max() <= limit


POINTS = (-math.inf, -50.0, -3.0, -1.0, -0.25, -0.0, 0.0, 0.25, 1.0, 3.0, 6.0, 50.0, math.inf)
CALLED: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": torch.clone,
    "detach": torch.detach,
    "neg": torch.neg,
    "abs": torch.abs,
    "relu": torch.relu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.25),
    "hardtanh": lambda x: F.hardtanh(x, 0.25, 1.0),
    "clamp": lambda x: x.clamp(0.25, 1.0),
    "clamp_min": lambda x: x.clamp_min(0.25),
    "clamp_max": lambda x: x.clamp_max(0.25),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "exp": torch.exp,
    "square": torch.square,
    "cube": lambda x: x**3,
    "fourth": lambda x: x**4,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "sin": torch.sin,
    "cos": torch.cos,
    "sqrt": lambda x: x**0.5,
    "rsqrt": torch.rsqrt,
    "reciprocal": lambda x: x**-1,
    "tanhshrink": F.tanhshrink,
    "softshrink": lambda x: F.softshrink(x, 0.25),
    "elu": lambda x: torch.ops.aten.elu(x, 1.0, 0.25, 0.5),
    "softplus": lambda x: F.softplus(x, 0.25, 1.0),
    "mish": F.mish,
    "softsign": F.softsign,
    "logsigmoid": F.logsigmoid,
}
# Where torch's own have NaN of ∞·0 and ours the limit.
LIMITS = {"gelu", "gelu_tanh", "silu", "square", "cube", "softsign", "mish", "hardswish"}
LIMITS |= {"fourth", "tanhshrink"}


@pytest.mark.parametrize("name", primitives.PRIMITIVES)
def test_kinks_and_ends_are_torchs(name: str, cpu: torch.device) -> None:
    """Each operation and its derivative, in float64, at kinks, far out, and of NaN."""
    numbers = {"clamp_min": 1, "clamp_max": 1, "leaky_relu": 1, "hardtanh": 2, "clamp": 2}
    count = numbers | {"elu": 3, "softplus": 2, "softshrink": 1}
    given = (0.25, 0.25, 0.5) if name == "elu" else (0.25, 1.0)
    step = (name, (0,), given[: count.get(name, 0)])
    act = composing._registered((step,))
    x = torch.tensor([*POINTS, math.nan], dtype=torch.float64)
    lead = x.clone().requires_grad_()
    value = CALLED[name](lead)
    slope = torch.zeros_like(x)
    if value.requires_grad:
        (slope,) = torch.autograd.grad(value.sum(), lead)
    grad = torch.ones(len(x), 1, dtype=torch.float64)
    with torch.no_grad():
        eye = torch.ones(1, 1, dtype=torch.float64)
        ours = tk.linear_act(x[:, None], eye, act=act)[:, 0]
        ours_slope, _ = tk.act_backward(grad, x[:, None], act, bias=False)
    kept = torch.isfinite(x) if name in LIMITS else torch.ones_like(x, dtype=torch.bool)
    if name in ("rsqrt", "reciprocal"):
        kept &= ~((x == 0) & x.signbit())  # which a product does not make
    torch.testing.assert_close(ours[kept], value.detach()[kept], equal_nan=True)
    torch.testing.assert_close(ours_slope[kept, 0], slope[kept], equal_nan=True)
    in_torch = ACTIVATIONS[act].in_torch(x)  # whose second derivatives count
    torch.testing.assert_close(in_torch, value.detach(), rtol=0, atol=0, equal_nan=True)


AT_NUMBERS: dict[str, Callable[[Tensor], Tensor]] = {
    "hardtanh": lambda x: F.hardtanh(x, -0.3, 0.7),
    "clamp": lambda x: x.clamp(-0.3, 0.7),
    "clamp_min": lambda x: x.clamp_min(-0.3),
    "clamp_max": lambda x: x.clamp_max(0.7),
    "softshrink": lambda x: F.softshrink(x, 0.7),
    "softplus": lambda x: F.softplus(x, 1.0, 0.7),
}


@pytest.mark.parametrize("name", AT_NUMBERS)
def test_float64_knows_all_digits_of_numbers(name: str, cpu: torch.device) -> None:
    """At and beside ends that are no float32."""
    ends = torch.tensor([-0.7, -0.3, 0.7], dtype=torch.float64)
    near = [ends.float().double(), *(torch.nextafter(ends, ends * k) for k in (0.0, 2.0))]
    x = torch.cat([ends, *near])[:, None].requires_grad_()
    module = Apply(lambda m, x, y: AT_NUMBERS[name](F.linear(x, y)))
    one = torch.ones(1, 1, dtype=torch.float64)
    fused = tk.fuse(module, min_score=0)
    outs = fused(x, one), module(x, one)
    assert [kernel for kernel, _ in kernels(fused.plan)] == ["linear_act"], fused.plan
    for found, expected in (outs, [torch.autograd.grad(out.sum(), x)[0] for out in outs]):
        torch.testing.assert_close(found, expected, rtol=1e-15, atol=0)


LEFT: dict[str, tuple[Callable[..., Any], str]] = {
    "another user": (lambda h: (lambda t: (F.mish(t), t))(F.selu(h))[1] * F.selu(h), ""),
    "dropout": (lambda h: F.mish(F.dropout(h, 0.5, training=True)), "used by dropout"),
    "narrower": (lambda h: F.mish(h.bfloat16()).float(), "used by"),
    "a sum of rows": (lambda h: F.mish(h) / h.sum(), "used by mish, sum"),
    "infinity": (lambda h: h * math.inf, "scaled by inf"),
    "limits the wrong way round": (lambda h: torch.clamp(h, 1, -1), "used by"),
}


def test_a_cast_to_the_other_16_bits_is_left(cpu: torch.device) -> None:
    module = of_linear(lambda h: F.mish(h.bfloat16()).half()).half()
    x, y = inputs(cpu, torch.float16)
    fused = tk.fuse(module, min_score=0)
    assert torch.equal(fused(x, y), module(x, y))
    assert not PRODUCTS & {kernel for kernel, _ in kernels(fused.plan)}, fused.plan


def test_a_detached_activation_needs_no_gradient(cpu: torch.device) -> None:
    module, (x, y) = of_linear(lambda h: torch.sin(h.detach())), inputs(cpu)
    fused = tk.fuse(module, min_score=0)
    torch.testing.assert_close(fused(x, y), module(x, y))
    assert not fused(x, y).requires_grad


@pytest.mark.parametrize("name", LEFT)
def test_left(name: str, cpu: torch.device) -> None:
    function, reason = LEFT[name]
    module, (x, y) = of_linear(function), inputs(cpu)
    fused = tk.fuse(module, min_score=0)
    torch.manual_seed(0)
    out = fused(x, y)
    torch.manual_seed(0)
    torch.testing.assert_close(out, module(x, y), equal_nan=True)
    assert not PRODUCTS & {kernel for kernel, _ in kernels(fused.plan)}, fused.plan
    assert reason in str(fused.plan)


def test_a_gate(cpu: torch.device) -> None:
    """An activation without a name may be act_mul's."""
    module = Apply(lambda m, x, y: F.linear(x, m.w) * quick_gelu(F.linear(x, m.w, m.b)))
    x, y = inputs(cpu)
    lead = x.clone().requires_grad_()
    fused = tk.fuse(module, min_score=0)
    outs = [fused(lead, y), module(lead, y)]
    torch.testing.assert_close(*outs)
    torch.testing.assert_close(*(torch.autograd.grad(out.square().sum(), lead)[0] for out in outs))
    assert kernels(fused.plan) == [("act_mul", "(x * sigmoid(1.702 * x))")]


def test_a_product_that_is_not_worth_it_keeps_its_elementwise_kernel(cpu: torch.device) -> None:
    """relu(x)·s of a product that is left; the product's where that is taken."""
    module = Apply(lambda m, x, y: F.relu(F.linear(x, m.w)) * 0.5)
    x, y = (t.to("meta") for t in inputs(cpu))
    module = module.to("meta")
    taken = {
        score: [
            step.kernel
            for plan in tk.explain(module, (x, y), min_score=score).plans
            for step in plan.steps
        ]
        for score in (0, 0.9)
    }
    assert taken == {0: ["linear_act"], 0.9: ["relu_scale"]}


@pytest.mark.parametrize("name", sorted(COMPOSED.keys() - {"hardsigmoid", "wider inside"}))
def test_second_derivatives(name: str, cpu: torch.device) -> None:
    """As of what is written. torch has none of hardsigmoid; a cast to float32 has fewer digits."""
    module = of_linear(COMPOSED[name][0]).double()
    fused = tk.fuse(module, min_score=0)
    results = []
    for model in (fused, module):
        x = inputs(cpu, torch.float64)[0].requires_grad_()
        (grad,) = torch.autograd.grad(model(x, x).square().sum(), x, create_graph=True)
        results.append(torch.autograd.grad(grad.square().sum(), x)[0])
    assert results[1].abs().max() > 0
    torch.testing.assert_close(*results, rtol=1e-11, atol=1e-11)
    assert [kernel for kernel, _ in kernels(fused.plan)] == ["linear_act"]


def test_under_autocast(cpu: torch.device) -> None:
    module, (x, y) = of_linear(lambda h: F.hardtanh(h * 2)), inputs(cpu)
    fused = tk.fuse(module, min_score=0)
    with torch.autocast("cpu", torch.bfloat16):
        out, right = fused(x, y), module(x, y)
    assert out.dtype == right.dtype == torch.bfloat16
    torch.testing.assert_close(out, right, rtol=0.02, atol=0.02)
    assert kernels(fused.plan) == [("linear_act", "hardtanh(x * 2, -1, 1)")]


def test_through_inductors_and_dynamos_eyes(cpu: torch.device) -> None:
    """As torch.compile's backend, with the rest eager; shapes that vary are one graph."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Mish(), nn.Linear(16, 8), nn.ReLU6()).eval()
    compiled = torch.compile(model, backend="triton_kernels", options={"min_score": 0})
    for rows in (3, 5, 7):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x), model(x))
    plans = tk.explain(model, torch.randn(3, 8), min_score=0).plans
    acts = [act for plan in plans for _, act in kernels(plan)]
    assert acts == ["mish(x)", "hardtanh(x, 0, 6)"]


@pytest.mark.parametrize("planted", ["value", "slope"])
def test_a_wrong_operation_is_caught(
    planted: str, cpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong number in the table: check_fused sees the value, a gradient the derivative."""
    old = primitives.PRIMITIVES["leaky_relu"]
    new = {
        "value": old._replace(value="tl.where({x} > 0, {x}, {p} * {x} * 1.01)"),
        "slope": old._replace(slope="tl.where({x} > 0, one, 1.01 * {p} * one)"),
    }[planted]
    monkeypatch.setitem(primitives.PRIMITIVES, "leaky_relu", new)
    slope = {"value": 0.31, "slope": 0.32}[planted]  # that no other test has registered
    module, (x, y) = of_linear(lambda h: F.leaky_relu(h, slope)), inputs(cpu)
    fused = tk.fuse(module, min_score=0)
    lead = x.clone().requires_grad_()
    (ours,) = torch.autograd.grad(fused(lead, y).sum(), lead)
    (right,) = torch.autograd.grad(module(lead, y).sum(), lead)
    assert bool(check_fused(module.eval(), [(x, y)])) is (planted == "slope")
    assert torch.allclose(ours, right) is (planted == "value")


def test_scores_of_what_nobody_measured() -> None:
    """Taken from eager; curves are left to Inductor, straight lines are not."""
    judged = {}
    for name, function in (("curve", F.mish), ("straight", F.hardtanh)):
        module = of_linear(function).to("meta", torch.bfloat16)
        x = torch.empty(4096, 8, device="meta", dtype=torch.bfloat16)
        (plan,) = tk.explain(module, (x, x), min_score=0).plans
        (step,) = plan.steps
        assert step.estimated
        assert "estimated" in str(step)
        act = next(n for n, a in composing.ACTIVATIONS.items() if a.written == step.act)
        shape = {"M": 16384, "N": 4096, "K": 4096, "act": act}
        for other in ("eager", "inductor"):
            problem = Problem("linear_act", torch.bfloat16, x.device, other, **shape)
            judged[name, other] = capabilities.judge(problem, 1.01).refusal == ""
    assert judged == {
        ("curve", "eager"): True,
        ("curve", "inductor"): False,
        ("straight", "eager"): True,
        ("straight", "inductor"): True,
    }


def test_they_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton reads the text of what was written here; products, in its own language and in Gluon,
    and derivatives, for an H100."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    steps = (("mul", (1.7, 0), ()), ("mish", (1,), ()), ("hardtanh", (2,), (-1.0, 1.0)))
    act = composing._registered((*steps, ("div", (3, 3.0), ()), ("add", (4, 0), ())))
    clamped = (("detach", (0,), ()), ("clamp", (0,), (-1.0, 1.0)), ("mul", (1, 2), ()))
    dropping = composing._registered((*clamped, ("hardsigmoid", (3,), ())))
    with cross_compile.compiling(90) as launches:
        for dtype in (torch.bfloat16, torch.float64):
            x = torch.empty(256, 256, dtype=dtype, device="meta")
            for each in (act, dropping):
                for allowed in ("any", "tl"):
                    with availability.only(allowed):
                        tk.linear_act(x, x, act=each)
                tk.act_backward(x, x, each)
                tk.act_mul_backward(x, x, x, each)
    assert [launch.error for launch in launches] == [None] * len(launches)
    kernels = {"gemm_gluon_kernel", "gemm_tma_kernel", "act_backward_kernel"}
    assert kernels <= {launch.kernel for launch in launches}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda h: (lambda t: t + t)(torch.sin(h)), lambda h: torch.sin(h) + 1),
        (lambda h: torch.cos(h) + 1, lambda h: (lambda t: t + t)(torch.cos(h))),
        (lambda h: h - h * 0.5, lambda h: 0.0 - h * 0.5),
    ],
    ids=["step 1, then 1.0", "1.0, then step 1", "x, then 0.0"],
)
def test_numbers_are_no_steps(
    first: Callable[[Tensor], Tensor], second: Callable[[Tensor], Tensor], cpu: torch.device
) -> None:
    """In an expression, 1 is the value of step 1, and 1.0 the number. To Python they are equal."""
    x, y = inputs(cpu)
    for function in (first, second):
        module = of_linear(function)
        fused = tk.fuse(module, min_score=0)
        out, right = fused(x, y), module(x, y)
        torch.testing.assert_close(out, right)
        assert [kernel for kernel, _ in kernels(fused.plan)] == ["linear_act"], fused.plan


def test_errors_do_not_list_them(cpu: torch.device) -> None:
    """They are of the graphs that have them."""
    composing._registered((("mish", (0,), ()),))
    x = torch.ones(2, 2)
    with pytest.raises(ValueError, match="'leaky_relu'") as error:
        tk.linear_act(x, x, act="frobnicate")
    assert "composed" not in str(error.value)
