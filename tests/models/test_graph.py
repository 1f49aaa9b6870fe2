"""fuse, explain and the backend of torch.compile: what becomes a kernel, what does not and why."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import compare
import triton_kernels as tk
from triton_kernels import graph
from triton_kernels.graph import capabilities
from triton_kernels.graph.capabilities import Problem


@pytest.fixture
def device(device: torch.device) -> Iterator[torch.device]:
    """Without gradients."""
    with torch.no_grad():
        yield device


@pytest.fixture
def cpu(cpu: torch.device) -> Iterator[torch.device]:
    """Without gradients."""
    with torch.no_grad():
        yield cpu


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Whatever was compiled before does not matter."""
    graph.register()
    yield
    torch._dynamo.reset()


class Apply(nn.Module):
    """A function of tensors and the parameters w [8, 8], v [6, 8], b [8]."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.w = nn.Parameter(torch.randn(8, 8, generator=generator) / 4)
        self.v = nn.Parameter(torch.randn(6, 8, generator=generator) / 4)
        self.b = nn.Parameter(torch.randn(8, generator=generator))
        self.function = function

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.function(self, x, y)


def inputs(device: torch.device, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(2, 3, 8, generator=generator) for _ in range(2))
    return x.to(device, dtype), y.to(device, dtype)


def kernels(plan) -> list[tuple[str, str]]:
    return [(step.kernel, step.act) for step in plan.steps]


GELU, LINEAR, BIAS_ACT = "linear_gelu", "linear_act", "gemm_bias_act"
# name → what a user writes, the kernels that it becomes, (m, x, y)
FUSED: dict[str, tuple[Callable[..., Any], list[tuple[str, str]]]] = {
    "linear gelu": (lambda m, x, y: F.gelu(F.linear(x, m.v)), [(GELU, "gelu")]),
    "gelu tanh": (
        lambda m, x, y: F.gelu(F.linear(x, m.w, m.b), approximate="tanh"),
        [(GELU, "gelu_tanh")],
    ),
    "relu function": (lambda m, x, y: F.relu(F.linear(x, m.w, m.b)), [(LINEAR, "relu")]),
    "relu method": (lambda m, x, y: F.linear(x, m.v).relu(), [(LINEAR, "relu")]),
    "relu in place": (lambda m, x, y: F.linear(x, m.v).relu_(), [(LINEAR, "relu")]),
    "silu": (lambda m, x, y: F.silu(F.linear(x, m.w, bias=m.b)), [(LINEAR, "silu")]),
    "sigmoid": (lambda m, x, y: torch.sigmoid(F.linear(x, m.w)), [(LINEAR, "sigmoid")]),
    "tanh": (lambda m, x, y: F.linear(x, m.w).tanh(), [(LINEAR, "tanh")]),
    "leaky": (lambda m, x, y: F.leaky_relu(F.linear(x, m.w)), [(LINEAR, "leaky_relu")]),
    "matmul": (lambda m, x, y: torch.relu(x @ m.w), [(BIAS_ACT, "relu")]),
    "matmul bias": (lambda m, x, y: torch.matmul(x, m.v.t()) + m.b[:6], [(BIAS_ACT, "none")]),
    "x @ w.T + b": (lambda m, x, y: F.gelu(x @ m.w.t() + m.b), [(BIAS_ACT, "gelu")]),
    "b + mm": (lambda m, x, y: m.b + torch.mm(x[0], m.w), [(BIAS_ACT, "none")]),
    "addmm bias": (lambda m, x, y: F.relu(torch.addmm(m.b, x[0], m.w)), [(BIAS_ACT, "relu")]),
    "addmm": (
        lambda m, x, y: torch.addmm(y[0], x[0], m.w, beta=0.5, alpha=2).relu(),
        [(BIAS_ACT, "relu")],
    ),
    "residual, then act": (
        lambda m, x, y: F.gelu(F.linear(x, m.w, m.b) + y),
        [(BIAS_ACT, "gelu")],
    ),
    "residual": (lambda m, x, y: y + F.linear(x, m.w, m.b), [(BIAS_ACT, "none")]),
    "scaled residual": (
        lambda m, x, y: torch.add(F.linear(x, m.w, m.b), y, alpha=0.3),
        [(BIAS_ACT, "none")],
    ),
    "scaled row": (
        lambda m, x, y: torch.add(x @ m.w, m.b, alpha=0.3),
        [(BIAS_ACT, "none")],
    ),
    "residual times a number": (
        lambda m, x, y: torch.tanh(F.linear(x, m.w, m.b) + 0.3 * y),
        [(BIAS_ACT, "tanh")],
    ),
    "scaled product": (lambda m, x, y: torch.add(y, x @ m.w, alpha=0.3), [(BIAS_ACT, "none")]),
    "bias and residual": (
        lambda m, x, y: F.silu((x @ m.w + m.b) + y),
        [(BIAS_ACT, "silu")],
    ),
    "product plus product": (
        lambda m, x, y: F.relu(x @ m.w + y @ m.w),
        [(BIAS_ACT, "relu")],
    ),
    "two layers": (
        lambda m, x, y: F.linear(F.gelu(F.linear(x, m.w)), m.w) + x,
        [(GELU, "gelu"), (BIAS_ACT, "none")],
    ),
    "relu scale": (lambda m, x, y: torch.relu(x) * 0.5, [("relu_scale", "none")]),
    "scale relu": (lambda m, x, y: 2 * x.relu(), [("relu_scale", "none")]),
    "relu scale add": (lambda m, x, y: F.relu(x) * 0.5 + y, [("relu_scale_add", "none")]),
    "add relu scale": (lambda m, x, y: y + 0.5 * F.relu(x), [("relu_scale_add", "none")]),
    "relu scale add, broadcast": (
        lambda m, x, y: F.relu(x) * 0.5 + m.b,
        [("relu_scale_add", "none")],
    ),
    "x + a·y": (lambda m, x, y: x + 0.3 * y, [("add", "none")]),
    "a·x + y": (lambda m, x, y: x.mul(3) + y, [("add", "none")]),
    "add of scaled": (lambda m, x, y: torch.add(x, y * 2, alpha=0.5), [("add", "none")]),
    "x·x": (lambda m, x, y: x * x, [("square", "none")]),
    "x²": (lambda m, x, y: x**2, [("square", "none")]),
    "square": (lambda m, x, y: x.square(), [("square", "none")]),
}


@pytest.mark.parametrize("name", FUSED)
def test_fused_and_right(name: str, device: torch.device) -> None:
    """The number of kernels, and the numbers; unfused in float64 is right."""
    function, expected = FUSED[name]
    module = Apply(function).to(device)
    x, y = inputs(device)
    fused = tk.fuse(module, min_score=0)
    out = fused(x, y)
    assert kernels(fused.plan) == expected, fused.plan
    lone = ["matmul_1"] if name == "product plus product" else []
    assert [line.node for line in fused.plan.left] == lone
    right = copy.deepcopy(module).double()(x.double(), y.double())
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["residual times a number", "relu scale add", "two layers"])
def test_the_backend_agrees(name: str, device: torch.device) -> None:
    function, expected = FUSED[name]
    module, arguments = Apply(function).to(device), inputs(device)
    assert [kernels(p) for p in tk.explain(module, arguments, min_score=0).plans] == [expected]
    compiled = torch.compile(module, backend="triton_kernels", options={"min_score": 0})
    assert torch.equal(compiled(*arguments), tk.fuse(module, min_score=0)(*arguments))


def test_explaining_often_uses_nothing_up(cpu: torch.device) -> None:
    """torch.compile gives up on code that it has compiled for eight backends."""
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    x, _ = inputs(cpu)
    plans = {str(tk.explain(net, x, min_score=0)) for _ in range(10)}
    assert len(plans) == 1
    assert "linear_act (act relu)" in plans.pop()
    ran: list[torch.fx.GraphModule] = []

    def backend(module: torch.fx.GraphModule, examples: list[Tensor]) -> Callable[..., Any]:
        ran.append(module)
        return module.forward

    torch.compile(net, backend=backend)(x)
    assert len(ran) == 1


def test_explaining_several_graphs_too_often_is_an_error(cpu: torch.device) -> None:
    def function(m: Apply, x: Tensor, y: Tensor) -> Tensor:
        h = F.relu(F.linear(x, m.w))
        torch._dynamo.graph_break()
        return F.relu(F.linear(h, m.w))

    module, arguments = Apply(function), inputs(cpu)
    for _ in range(torch._dynamo.config.recompile_limit):
        found = tk.explain(module, arguments, min_score=0)
        assert [len(plan.steps) for plan in found.plans] == [1, 1]
    with pytest.raises(RuntimeError, match=r"call torch\._dynamo\.reset\(\) first"):
        tk.explain(module, arguments, min_score=0)


def test_explaining_what_has_no_graph(cpu: torch.device) -> None:
    assert str(tk.explain(lambda x: x, inputs(cpu)[0])) == "torch.compile made no graph of it"


def promoted(m: Apply, x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x) * 0.5 + y.double()


def mutated_between(m: Apply, x: Tensor, y: Tensor) -> Tensor:
    product = F.linear(x, m.w)
    x.add_(1)
    return F.relu(product)


def residual_mutated(m: Apply, x: Tensor, y: Tensor) -> Tensor:
    product = F.linear(x, m.w)
    z = y * 1.5
    total = product + z
    z.zero_()
    return F.relu(total) + z


def setitem_between(m: Apply, x: Tensor, y: Tensor) -> Tensor:
    product = F.linear(x, m.w)
    x[0] = 0
    return F.relu(product)


def relu_in_place(m: Apply, x: Tensor, y: Tensor) -> Tensor:
    return x.relu_() * 0.5


def add_in_place(m: Apply, x: Tensor, y: Tensor) -> Tensor:
    y += F.linear(x, m.w)
    return y


def aliased(m: Apply, x: Tensor, y: Tensor) -> Tensor:
    h = y
    h += x @ m.w
    return y * 1


def used_twice(m: Apply, x: Tensor, y: Tensor) -> Tensor:
    product = F.linear(x, m.w)
    return F.relu(product) - product


# name → what is written, and words of the reason
REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "used twice": (used_twice, "linear has 2 users"),
    "returned, too": (
        lambda m, x, y: (lambda p: (F.relu(p), p))(F.linear(x, m.w)),
        "linear has 2 users",
    ),
    "added to itself": (lambda m, x, y: (lambda p: p + p)(x @ m.w), "matmul is used twice"),
    "scaled, to itself": (lambda m, x, y: (lambda p: p + p)(x * 3), "mul is used twice"),
    "relu scaled, to itself": (
        lambda m, x, y: (lambda p: p + p)(x.relu() * 3),
        "mul is used twice",
    ),
    "relu used twice": (lambda m, x, y: (lambda r: r * 2 - r)(torch.relu(x)), "relu has 2 users"),
    "mutated between": (mutated_between, "between its nodes may overwrite an operand"),
    "setitem between": (setitem_between, "between its nodes may overwrite an operand"),
    "residual mutated": (residual_mutated, "between its nodes may overwrite an operand"),
    "relu in place": (relu_in_place, "in place"),
    "add in place": (add_in_place, "in place"),
    "in place through another name": (aliased, "in place"),
    "promoted": (promoted, "is float64, x float32"),
    "integers": (lambda m, x, y: x.int() * x.int(), ""),
    "integer relu": (lambda m, x, y: torch.relu(x.int()) * 0.5, "is int32"),
    "batched": (lambda m, x, y: torch.relu(x @ y.mT), "a batch of matrices"),
    "vector": (lambda m, x, y: torch.relu(x[0, 0] @ m.w), "or a vector"),
    "bias of one": (lambda m, x, y: F.relu(x @ m.w + m.b[:1]), "a bias of shape (1,)"),
    "row per batch": (lambda m, x, y: F.relu(x @ m.w + y[:1]), "(1, 3, 8), broadcasts"),
    "two residuals": (lambda m, x, y: F.relu(F.linear(x, m.w, m.b) + y + x), "more than one"),
    "slope": (lambda m, x, y: F.leaky_relu(F.linear(x, m.w), 0.2), "slope 0.2, not 0.01"),
    "scaled with bias": (
        lambda m, x, y: torch.add(y, F.linear(x, m.w, m.b), alpha=2),
        "scaled by 2, too",
    ),
    "lone": (lambda m, x, y: F.linear(x, m.w), "nothing to fuse with it"),
    "unknown follows": (lambda m, x, y: F.elu(F.linear(x, m.w)), "fuse with it, used by elu"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_reason(name: str, cpu: torch.device) -> None:
    """And the numbers, and what is written to the inputs, are those of the unfused module."""
    function, reason = REFUSED[name]
    module = Apply(function)
    fused = tk.fuse(module, min_score=0)
    ours, theirs = inputs(cpu), inputs(cpu)
    out, right = fused(*ours), module(*theirs)
    if name == "integers":  # nothing of it is a pattern: each conversion is a value of its own
        assert not fused.plan.steps
    else:
        assert any(reason in line.reason for line in fused.plan.left), fused.plan
    for mine, other in zip((out, *ours), (right, *theirs)):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


def test_residual_after_an_activation_is_no_epilogue(cpu: torch.device) -> None:
    module = Apply(lambda m, x, y: F.gelu(F.linear(x, m.w)) + y)
    fused = tk.fuse(module, min_score=0)
    close = torch.testing.assert_close
    close(fused(*inputs(cpu)), module(*inputs(cpu)), rtol=1e-5, atol=1e-5)
    assert kernels(fused.plan) == [(GELU, "gelu")]


def test_inside_autocast(cpu: torch.device) -> None:
    def function(m: Apply, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.relu(F.linear(x, m.w))

    found = tk.explain(Apply(function), inputs(cpu), min_score=0).plans[0]
    assert [line.reason for line in found.left] == ["inside an autocast region"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fused = tk.fuse(Apply(FUSED["relu function"][0]), min_score=0)
        assert fused(*inputs(cpu)).dtype == torch.bfloat16
    assert "autocast is on" in str(fused.plan)


def test_inductor_compiles_the_rest(device: torch.device) -> None:
    module, arguments = Apply(FUSED["two layers"][0]).to(device), inputs(device)
    options = {"min_score": 0, "rest": "inductor"}
    compiled = torch.compile(module, backend="triton_kernels", options=options)
    wide = copy.deepcopy(module).double()(*(t.double() for t in arguments))
    torch.testing.assert_close(compiled(*arguments).double(), wide, rtol=1e-5, atol=1e-5)


def test_dynamic_shapes_stay_dynamic(cpu: torch.device) -> None:
    module = Apply(lambda m, x, y: F.relu(F.linear(x, m.w, m.b) + y))
    compiled = torch.compile(
        module, backend="triton_kernels", options={"min_score": 0}, dynamic=True, fullgraph=True
    )
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (2, 3, 5):
            x = torch.randn(rows, 4, 8)
            torch.testing.assert_close(compiled(x, x), module(x, x), rtol=1e-5, atol=1e-5)


# ---- what decides ----


def problem(kernel: str, dtype: torch.dtype, *sizes: int, other: str = "eager") -> Problem:
    return Problem(kernel, dtype, torch.device("cpu"), other, *sizes)


def test_scores_follow_the_benchmarks(cpu: torch.device) -> None:
    """The measured cases fall on their side of the default threshold."""

    def taken(*args: Any, **kwargs: Any) -> bool:
        return not capabilities.judge(problem(*args, **kwargs), capabilities.MIN_SCORE).refusal

    half, single = torch.bfloat16, torch.float32
    for sizes in ((4096, 4096, 4096), (4096, 16384, 4096), (32, 3072, 768), (1, 16384, 4096)):
        assert taken(GELU, half, *sizes)
        assert taken(BIAS_ACT, half, *sizes, other="inductor")
        assert not taken(GELU, single, *sizes)
        assert not taken(BIAS_ACT, single, *sizes)
    for n in (1536, 3072):  # waves badly filled
        assert not taken(GELU, half, n, n, n)
    assert taken(GELU, half, 333, 4097, 1023, other="inductor")  # unaligned
    assert taken(BIAS_ACT, half, 333, 4097, 1023)
    assert not taken(BIAS_ACT, half, 333, 4097, 1023, other="inductor")
    assert taken("relu_scale", single)
    assert not taken("relu_scale", single, other="inductor")
    assert not taken("square", single)
    assert not taken(GELU, torch.float64, 64, 64, 64)


def test_other_gpus_were_not_measured(cpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = capabilities._launch.Gpu(80, 108)
    monkeypatch.setattr("triton_kernels._launch.gpu", lambda kernel, device: gpu)
    verdict = capabilities.judge(problem(GELU, torch.float16, 64, 64, 64), 1)
    assert verdict == (0, f"{GELU}: not measured for float16 on capability 80, below min_score 1")
    assert not capabilities.judge(problem("relu_scale", torch.float16), 1).refusal


def test_default_leaves_what_gains_nothing(cpu: torch.device) -> None:
    module = Apply(lambda m, x, y: (F.relu(F.linear(x, m.w)), x * x, F.relu(x) * 2))
    fused = tk.fuse(module)
    fused(*inputs(cpu))
    assert kernels(fused.plan) == [("relu_scale", "none")]
    scores = [line.score for line in fused.plan.left]
    assert scores == [0.1, 1.0]
    assert "0.10 of eager's speed expected for float32, below min_score 1.01" in str(fused.plan)
    fused = tk.fuse(module.bfloat16())
    fused(*inputs(cpu, torch.bfloat16))
    assert kernels(fused.plan) == [(LINEAR, "relu"), ("relu_scale", "none")]


def test_switches(cpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(**options: Any) -> list[str]:
        module = Apply(lambda m, x, y: (F.relu(F.linear(x, m.w)), F.relu(x) * 2))
        fused = tk.fuse(module, min_score=0, **options)
        fused(*inputs(cpu))
        (plan,) = tk.explain(module, inputs(cpu), min_score=0, **options).plans
        assert [step.kernel for step in plan.steps] == [step.kernel for step in fused.plan.steps]
        return [step.kernel for step in plan.steps]

    assert found() == [LINEAR, "relu_scale"]
    assert found(passes=["elementwise"]) == ["relu_scale"]
    monkeypatch.setenv("TRITON_KERNELS_FUSE_OFF", "elementwise, nothing")
    assert found() == [LINEAR]
    monkeypatch.setenv("TRITON_KERNELS_FUSE_OFF", "elementwise,epilogue")
    assert found() == []
    monkeypatch.delenv("TRITON_KERNELS_FUSE_OFF")
    monkeypatch.setenv("TRITON_KERNELS_FUSE", "0")
    assert found() == []


# ---- fuse ----


class Block(nn.Module):
    """With what fx has trouble with: an optional argument, a flag, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor, y: Tensor | None = None, double: bool = False) -> Tensor:
        x = self.drop(self.fc2(self.act(self.fc1(x))))
        x = x if y is None else x + y
        return 2 * x if double else x


def test_fuse_plans_for_each_kind_of_call(cpu: torch.device) -> None:
    block = Block().eval()
    fused = tk.fuse(block, min_score=0)
    x, y = inputs(cpu)
    with pytest.raises(RuntimeError, match="once the module has been called"):
        _ = fused.plan
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    calls = [((x,), {}), ((x, y), {}), ((x,), {"double": True}), ((x[0],), {"y": None})]
    for args, kwargs in calls:
        torch.testing.assert_close(fused(*args, **kwargs), block(*args, **kwargs))
        assert kernels(fused.plan)[0] == (GELU, "gelu")
    assert str(fused.plan).splitlines()[0] == "fc1 + act → linear_gelu (act gelu), score 0.10"
    fused.to(torch.bfloat16)
    assert fused(x.bfloat16()).dtype == torch.bfloat16
    fused.train()
    fused.float()
    assert (fused(x) == 0).any()  # dropout
    assert block.training


def test_fuse_shares_state(cpu: torch.device) -> None:
    block = Block().eval()
    fused = tk.fuse(block, min_score=0)
    x, _ = inputs(cpu)
    fused(x)
    assert [id(p) for p in fused.parameters()] == [id(p) for p in block.parameters()]
    block.fc2.bias.fill_(3)
    torch.testing.assert_close(fused(x), block(x))
    other = pickle.loads(pickle.dumps(fused))
    torch.testing.assert_close(other(x), block(x))
    assert torch.equal(copy.deepcopy(fused)(x), fused(x))


def test_fuse_loses_no_hook(cpu: torch.device) -> None:
    block, seen = Block().eval(), []
    block.fc1.register_forward_hook(lambda module, args, out: seen.append(tuple(out.shape)))
    fused = tk.fuse(block, min_score=0)
    x, _ = inputs(cpu)
    fused(x)
    assert "left: act: hooks registered" in str(fused.plan)
    assert (2, 3, 16) in seen


def test_fuse_outside_the_interpreter_leaves_cpu_tensors(cpu: torch.device) -> None:
    block = Block().eval()
    fused = tk.fuse(block, min_score=0)
    x, _ = inputs(cpu)
    fused(x)
    assert fused.plan.steps
    script = (
        "import torch, triton_kernels as tk; m = torch.nn.Sequential(torch.nn.Linear(2, 2), "
        "torch.nn.ReLU()); f = tk.fuse(m, min_score=0); f(torch.ones(1, 2)); print(f.plan)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "left: 1: on cpu, outside triton_kernels.interpret()"


def test_fuse_says_what_it_cannot(cpu: torch.device) -> None:
    x, y = inputs(cpu)
    branch = tk.fuse(Apply(lambda m, x, y: x if x.sum() > 0 else y))
    with pytest.raises(RuntimeError, match=r"torch.fx cannot trace Apply.*torch\.compile"):
        branch(x, y)
    with pytest.raises(TypeError, match="argument 'x' is a list"):
        tk.fuse(Block())([x])
    with pytest.raises(TypeError, match="argument 'module' must be a module"):
        tk.fuse(torch.relu)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="option 'passes'"):
        tk.fuse(Block(), passes=["gemm"])


def test_backend_says_what_it_cannot(cpu: torch.device) -> None:
    x, _ = inputs(cpu)
    with pytest.raises(ValueError, match="unknown option 'minscore'"):
        graph.backend(None, [x], options={"minscore": 0})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no backend 'nope'"):
        tk.explain(torch.relu, x, rest="nope")


def test_import_is_light() -> None:
    code = "import sys, triton_kernels; print('torch._dynamo' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_installed_backend_needs_no_import(root: Path, tmp_path: Path) -> None:
    """By the entry point of pyproject.toml, here as an installed package lists it."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    ((name, target),) = project["entry-points"]["torch_dynamo_backends"].items()
    info = tmp_path / "triton_kernels_crosscheck-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[torch_dynamo_backends]\n{name} = {target}\n")
    code = (
        "import torch; print(torch.compile(lambda x: torch.relu(x) * 2, "
        "backend='triton_kernels')(torch.ones(1)).item())"
    )
    environment = os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{tmp_path}"}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.stdout == "2.0\n", ran.stderr


# ---- compare.check_fused ----


def test_check_fused(device: torch.device) -> None:
    cases = [(x,) for x in inputs(device)]
    report = compare.check_fused(Block().eval().to(device), cases)
    assert report, report
    assert [finding.side for finding in report.findings] == ["fused", "fused"]


def test_check_fused_with_infinities(cpu: torch.device) -> None:
    """The bound comes from what is finite; the rest must be the same."""
    x, _ = inputs(cpu)
    x[0, 0, 0], x[0, 1, 0] = float("inf"), float("nan")
    module = Apply(FUSED["relu function"][0])
    report = compare.check_fused(module, [(x, x), (torch.full_like(x, torch.nan), x)])
    assert report, report


def test_check_fused_finds_a_wrong_kernel(
    cpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Apply(FUSED["relu scale"][0])
    op = tk.ops.relu_scale
    monkeypatch.setattr(op, "relu_scale", lambda x, scale: tk.relu_scale(x, 1.001 * scale))
    x, y = inputs(cpu)
    report = compare.check_fused(module, [(x, y), (torch.where(x > 2, torch.inf, x), y)])
    assert not any(finding.passed for finding in report.findings)
    assert "the fused side is wrong" in report.verdict
    with pytest.raises(ValueError, match="'inputs' is empty"):
        compare.check_fused(module, [])
    with pytest.raises(TypeError, match="list of argument tuples"):
        compare.check_fused(module, inputs(cpu)[0])  # type: ignore[arg-type]
