"""linear_act, and linear_gelu as its thin form: one product under both, and the names that saved
programs call."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import cuda_reference
import triton_kernels as tk
from compare.cli import app
from compare.compiling import cross_compile as machine
from triton_kernels._fusion import Problem
from triton_kernels._gpu import H200
from triton_kernels._launch import Launch
from triton_kernels._measured import RATES, SHIPPED_OF
from triton_kernels.activations import ACTIVATIONS
from triton_kernels.gemm import rivals
from triton_kernels.graph import capabilities
from triton_kernels.interpreter import cross_compile

OPS = torch.ops.triton_kernels
BFLOAT, HALF, FLOAT, DOUBLE = torch.bfloat16, torch.float16, torch.float32, torch.float64
GELUS = {"none": "gelu", "tanh": "gelu_tanh"}


def operands(device: torch.device, dtype: torch.dtype = FLOAT) -> tuple[Tensor, Tensor, Tensor]:
    """x [2, 3, 7], weight [6, 7], bias [6]."""
    g = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(shape, generator=g) for shape in ((2, 3, 7), (6, 7), (6,)))
    return x.to(device, dtype), weight.to(device, dtype), bias.to(device, dtype)


def leaves(device: torch.device, dtype: torch.dtype = DOUBLE) -> list[Tensor]:
    return [t.requires_grad_() for t in operands(device, dtype)]


# ---- one product ----


@pytest.mark.parametrize("dtype", [HALF, BFLOAT, FLOAT, DOUBLE])
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_is_gemm_bias_act_of_rows(act: str, dtype: torch.dtype, device: torch.device) -> None:
    x, weight, bias = operands(device, dtype)
    for b in (bias, None):
        rows = tk.gemm_bias_act(x.view(6, 7), weight.t(), b, act=act)
        assert torch.equal(tk.linear_act(x, weight, b, act=act), rows.view(2, 3, 6))
    for approximate, gelu in GELUS.items():
        if act == gelu:
            found = tk.linear_gelu(x, weight, bias, approximate=approximate)
            assert torch.equal(found, tk.linear_act(x, weight, bias, act=act))


def test_no_precision_is_ieee(device: torch.device) -> None:
    """In a number that tf32 has not, on both sides."""
    x, weight = (torch.full((20, 20), 1 + 2.0**-13, device=device) for _ in range(2))
    for side in (tk, cuda_reference):
        found = side.linear_act(x, weight, act="none")
        assert torch.equal(found, side.linear_act(x, weight, act="none", precision="ieee"))
        assert torch.equal(found, side.linear_act(x, weight, act="none", precision=None))
        assert not torch.equal(found, side.linear_act(x, weight, act="none", precision="tf32"))


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_gradients(act: str, device: torch.device) -> None:
    """Of the function and of the registered op, and those of gemm_bias_act, bit for bit."""
    inputs = leaves(device)
    for function in (
        lambda *t: tk.linear_act(*t, act=act),
        lambda *t: OPS.linear_act(*t, act, "ieee"),
    ):
        assert torch.autograd.gradcheck(function, inputs, fast_mode=True)
    x, weight, bias = inputs
    grad = torch.randn(2, 3, 6, dtype=DOUBLE).to(device)
    rows = tk.gemm_bias_act(x.view(6, 7), weight.t(), bias, act=act).view(2, 3, 6)
    found = torch.autograd.grad(tk.linear_act(x, weight, bias, act=act), inputs, grad)
    for mine, theirs in zip(found, torch.autograd.grad(rows, inputs, grad)):
        assert torch.equal(mine, theirs)


def test_the_backward_pass_keeps_the_precision(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    run = tk.ops.gemm_bias_act.run

    def noted(*args: Any, **kwargs: Any) -> Any:
        asked.append(args[10])
        return run(*args, **kwargs)

    monkeypatch.setattr(tk.ops.gemm_bias_act, "run", noted)
    x, weight, bias = leaves(device, FLOAT)
    tk.linear_act(x, weight, bias, act="relu", precision="tf32x3").sum().backward()
    assert asked == ["tf32x3"] * 3  # and for the gradients of x and of weight


def test_under_transforms(device: torch.device) -> None:
    """vmap, and a gradient inside of it: those of a loop."""
    x, weight, bias = operands(device, DOUBLE)

    def loss(w: Tensor, one: Tensor) -> Tensor:
        return tk.linear_act(one, w, bias, act="silu").sum()

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weight, x)
    for each, one in zip(found, x):
        w = weight.clone().requires_grad_()
        torch.testing.assert_close(each, torch.autograd.grad(loss(w, one), w)[0])
    with pytest.raises(NotImplementedError, match=r"^linear_act\(\): vmap over a dimension"):
        torch.func.vmap(lambda t: tk.linear_act(t, weight, act="relu"))(x[:0])


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_autocast(kind: str, device: torch.device) -> None:
    if device.type != kind:
        pytest.skip(f"tensors on {device.type}")
    x, weight, bias = operands(device)
    with torch.autocast(kind, dtype=BFLOAT):
        found = tk.linear_act(x, weight, bias, act="tanh")
        assert tk.linear_act(x.double(), weight.double(), act="relu").dtype == DOUBLE
    narrow = [t.bfloat16() for t in (x, weight, bias)]
    assert torch.equal(found, tk.linear_act(*narrow, act="tanh"))


@pytest.mark.parametrize("precision", [None, "tf32"])
def test_compiled(precision: str | None, device: torch.device) -> None:
    def function(*inputs: Tensor) -> Tensor:
        return tk.linear_act(*inputs, act="silu", precision=precision) * 2

    torch._dynamo.reset()
    inputs = leaves(device, FLOAT)
    found = torch.compile(function, fullgraph=True, backend="aot_eager")(*inputs)
    assert torch.equal(found, function(*inputs))
    for mine, theirs in zip(
        torch.autograd.grad(found.sum(), inputs),
        torch.autograd.grad(function(*inputs).sum(), inputs),
    ):
        assert torch.equal(mine, theirs)


def test_out(device: torch.device) -> None:
    x, weight, bias = operands(device)
    right = tk.linear_act(x, weight, bias, act="relu")
    memory = torch.zeros(2, 3, 9, device=device)
    out = memory[..., 1:7]
    assert tk.linear_act(x, weight, bias, act="relu", out=out) is out
    assert torch.equal(out, right)
    assert not memory[..., [0, 7, 8]].any()
    memory.zero_()
    OPS.linear_act_out(x, weight, bias, "relu", "ieee", out)
    assert torch.equal(out, right)


@pytest.mark.parametrize(
    ("op", "options"), [("linear_act", {"act": "relu"}), ("linear_gelu", {"approximate": "tanh"})]
)
def test_errors_name_the_function_that_was_called(
    op: str, options: dict[str, str], cpu: torch.device
) -> None:
    x, weight, bias = operands(cpu)
    function, (option, value) = getattr(tk, op), next(iter(options.items()))
    apart = torch.zeros(2, 4, 6)[:, :3]
    calls: list[Callable[[], Any]] = [
        lambda: function(x.int(), weight, **options),
        lambda: function(x, weight.double(), **options),
        lambda: function(x, weight[:, 1:], **options),
        lambda: function(x, weight, bias[1:], **options),
        lambda: function(x, weight, **{option: "erf"}),
        lambda: function(x, weight, out=torch.zeros(6, 6), **options),
        lambda: function(x, weight, out=apart, **options),
        lambda: function(x, weight.clone().requires_grad_(), out=torch.zeros(2, 3, 6), **options),
        lambda: torch.func.vmap(lambda t: function(t, weight, **options))(x[:0]),
    ]
    for call in calls:
        with pytest.raises((TypeError, ValueError, RuntimeError, NotImplementedError)) as caught:
            call()
        assert str(caught.value).startswith(f"{op}(): "), caught.value
    with pytest.raises(ValueError, match=f"argument '{option}' must be one of"):
        function(x, weight, **{option: "erf"})
    assert function(x, weight, **{option: value}).shape == (2, 3, 6)


# ---- names of old ----

SCHEMAS = {
    "linear_gelu": "(Tensor x, Tensor weight, Tensor? bias, str approximate) -> Tensor",
    "linear_gelu_out": "(Tensor x, Tensor weight, Tensor? bias, str approximate, "
    "Tensor(a!) out) -> ()",
    "linear_gelu_with_pre": "(Tensor x, Tensor weight, Tensor? bias, str approximate) -> "
    "(Tensor, Tensor)",
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_old_names_have_their_schemas(name: str) -> None:
    """A program saved before linear_act was there holds them as text."""
    assert str(getattr(OPS, name).default._schema) == f"triton_kernels::{name}{SCHEMAS[name]}"


@pytest.mark.parametrize("approximate", GELUS)
def test_old_names_compute_the_same(approximate: str, device: torch.device) -> None:
    act = GELUS[approximate]
    inputs = leaves(device)
    right = tk.linear_act(*inputs, act=act)
    gradients = torch.autograd.grad(right.sum(), inputs)
    out, pre = OPS.linear_gelu_with_pre(*inputs, approximate)
    assert torch.equal(pre, tk.linear_act(*inputs, act="none"))
    for found in (OPS.linear_gelu(*inputs, approximate), out):
        assert torch.equal(found, right)
        for mine, theirs in zip(torch.autograd.grad(found.sum(), inputs), gradients):
            assert torch.equal(mine, theirs)
    with torch.no_grad():
        written = torch.zeros_like(right)
        OPS.linear_gelu_out(*inputs, approximate, written)
    assert torch.equal(written, right)


class Old(torch.nn.Module):
    """A layer whose graph is that of one saved before: by the registered names."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        _, weight, bias = operands(device)
        self.weight, self.bias = torch.nn.Parameter(weight), torch.nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = OPS.linear_gelu_with_pre(x, self.weight, self.bias, "tanh")
        return out + OPS.linear_gelu(x, self.weight, None, "none")


def test_a_program_by_old_names_loads_and_trains(device: torch.device) -> None:
    x, model, file = operands(device)[0], Old(device), io.BytesIO()
    torch.export.save(torch.export.export(model, (x,)), file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    called = {str(n.target) for n in loaded.graph.nodes if n.op == "call_function"}
    names = {f"triton_kernels.{op}.default" for op in ("linear_gelu", "linear_gelu_with_pre")}
    assert names <= called
    found, right = loaded(x), model(x)
    assert torch.equal(found, right)
    (found.sum() + right.sum()).backward()
    mine, theirs = dict(loaded.named_parameters()), dict(model.named_parameters())
    assert mine.keys() == theirs.keys() == {"weight", "bias"}
    for name, parameter in mine.items():
        assert torch.equal(parameter.grad, theirs[name].grad)


# ---- graphs ----

# M, N, K, dtype → score against eager and against Inductor of a linear layer with GELU, and with
# any other activation, as these were when the latter went by the name of gemm_bias_act.
SCORES: dict[tuple[Any, ...], tuple[tuple[float, float], tuple[float, float]]] = {
    (2048, 2048, 2048, FLOAT): ((0.8, 0.8), (0.8, 0.8)),
    (2048, 2048, 2048, DOUBLE): ((0.0, 0.0), (0.0, 0.0)),
}


def traced(act: str, device: torch.device, *sizes: int, dtype: torch.dtype) -> Any:
    """The plan's only step of a linear layer with an activation, at min_score 0."""
    functions = {"gelu_tanh": lambda t: torch.nn.functional.gelu(t, approximate="tanh")}
    named = {name: getattr(torch.nn.functional, name, None) for name in ACTIVATIONS}
    function = functions.get(act) or named[act] or getattr(torch, act)
    _, N, K = sizes
    layer = torch.nn.Linear(K, N, device=device, dtype=dtype)
    x = torch.ones(sizes[0], K, device=device, dtype=dtype)
    explained = tk.explain(lambda t: function(layer(t)), x, min_score=0)
    (step,) = explained.plans[0].steps
    return step


@pytest.mark.parametrize("act", [name for name in ACTIVATIONS if name != "none"])
def test_a_linear_layer_is_one_kernel_whatever_follows(act: str, cpu: torch.device) -> None:
    step = traced(act, cpu, 3, 5, 8, dtype=FLOAT)
    kernel = "linear_gelu" if act in GELUS.values() else "linear_act"
    assert (step.kernel, step.act, len(step.nodes), step.score) == (kernel, act, 2, 0.8)


def test_scores_are_kept_by_activation(cpu: torch.device) -> None:
    for (sizes, scores), other in itertools.product(SCORES.items(), ("eager", "inductor")):
        *shape, dtype = sizes
        for act in ACTIVATIONS:
            gelu = act in GELUS.values()
            right = scores[not gelu][other == "inductor"]
            for kernel in ("linear_act", *(["linear_gelu"] if gelu else [])):
                problem = Problem(kernel, dtype, cpu, other, *shape, act)
                assert capabilities.judge(problem, 0).score == right, problem


def test_scores_of_16_bits_are_the_times_whatever_the_op(cpu: torch.device) -> None:
    rates = RATES[SHIPPED_OF]
    for act in ("gelu", "gelu_tanh"):
        layer = rivals.Layer(4096, 1024, 512, HALF, act)
        theirs = rivals.theirs(layer, H200, rates, "eager")
        right = theirs / rivals.ours(layer, H200, rates, "any")
        for op in ("linear_act", "linear_gelu", "gemm_bias_act"):
            problem = Problem(op, HALF, cpu, "eager", 4096, 1024, 512, act)
            assert capabilities.judge(problem, 0).score == pytest.approx(right)


# ---- names in profiles, and in tables ----


def test_kernels_are_called_after_the_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the words that the name is made of; test_compile.py looks into the machine code."""
    seen: list[str] = []
    monkeypatch.setattr(
        Launch, "__call__", lambda self, *_, **options: seen.append(self.meta["OP"])
    )
    x, half = torch.empty(64, 64, device="meta"), torch.empty(64, 64, device="meta").half()
    with cross_compile.compiling(90):
        for t in (x, half):
            tk.linear_gelu(t, t)
            tk.linear_act(t, t, act="relu")
            tk.gemm_bias_act(t, t, act="gelu")
    assert seen == ["linear", "linear", "gemm"] * 2


def test_bench_times_linear_gelu_for_both() -> None:
    def ops(*words: str) -> set[str]:
        done = CliRunner().invoke(app, ["bench", *words, "--dry-run", "--dtype", "float32"])
        assert done.exit_code == 0, done.output
        return {line.split()[0] for line in done.output.splitlines()}

    assert {"linear_gelu", "gemm_bias_act"} < ops()
    assert "linear_act" not in ops()
    assert "linear_act" in ops("linear_act")


def test_machine_code_of_a_shared_kernel_is_shown_by_each_op(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """linear_act and linear_gelu have one source: no kernel of it is left to the other."""

    def kernels(spec: Any, arch: str, asm: str) -> dict[str, machine.Kernel]:
        names = {spec.cuda_kernel(*which) for which in machine._cuda_variants(spec)}
        return {name: machine.Kernel(name) for name in names}

    monkeypatch.setattr(machine, "_cuda_kernels", kernels)
    for op in ("linear_act", "linear_gelu"):
        shown = {row.label for row in machine.compile_op(op, "sm_90", ("cuda",))}
        assert {"gemm_tiled_kernel<float>", "gemm_wmma_kernel<HalfCores, false>"} <= shown
