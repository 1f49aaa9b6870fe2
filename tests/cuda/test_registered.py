"""torch.ops.cuda_reference.*: opcheck, autograd, torch.compile, export; the sides of a model change
places by one import."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from every_function import functions
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import cuda_reference
import triton_kernels
from compare.checking.implementations import MODES
from cuda_reference import _activations, _build
from cuda_reference._registered import Registered

OPS = torch.ops.cuda_reference
MODE = pytest.mark.parametrize("mode", ["cuda-host", "cuda-gpu"], indirect=True)
needs_host = pytest.mark.skipif(
    _build.unavailable("host") is not None, reason=str(_build.unavailable("host"))
)
DOUBLE = torch.float64


@pytest.fixture
def device(mode: str) -> torch.device:
    return torch.device(MODES[mode][1])


def made(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_(grad)


def leaf(*shape: int) -> Tensor:
    return made(*shape, grad=True)


# ---- the registered ops ----

PLAIN = None, False  # variant, explain
# op → arguments in schema order
SAMPLES: dict[str, Callable[[], list[tuple]]] = {
    "add": lambda: [
        (leaf(4, 6), leaf(4, 6), 0.5, *PLAIN),
        (leaf(4, 6), leaf(6), 2, "auto", False),
        (leaf(6, 4).t(), made(4, 1, dtype=torch.float16), 1, *PLAIN),
        (torch.arange(6), torch.arange(6), -3, *PLAIN),
        (leaf(0, 6), leaf(6), 1, *PLAIN),
    ],
    "add_scalar": lambda: [(leaf(4, 6), 2.5, 0.5, *PLAIN), (torch.arange(6), 0.5, 1, *PLAIN)],
    "add_to_scalar": lambda: [(2.5, leaf(4, 6), 0.5, *PLAIN), (2, torch.arange(6), 3, *PLAIN)],
    "square": lambda: [(leaf(4, 6), *PLAIN), (leaf(4, 6), "2d", False), (leaf(6, 4).t(), *PLAIN)],
    "square_backward": lambda: [(leaf(4, 6), leaf(6), *PLAIN)],
    "relu_scale": lambda: [(leaf(4, 6), 0.5, *PLAIN), (leaf(4, 6), 2, "pack64", False)],
    "relu_scale_tensor": lambda: [
        (leaf(4, 6), leaf(4, 1), *PLAIN),
        (leaf(6), leaf(4, 6), "auto", False),
    ],
    "relu_scale_add": lambda: [(leaf(6), leaf(4, 6), 0.5, *PLAIN)],
    "relu_scale_add_tensor": lambda: [(leaf(6), leaf(4, 6), leaf(4, 1), *PLAIN)],
    "relu_scale_backward": lambda: [(leaf(4, 6), leaf(6), 0.5, *PLAIN)],
    "relu_scale_backward_tensor": lambda: [(leaf(4, 6), leaf(6), leaf(), *PLAIN)],
    "act_mul": lambda: [
        (leaf(4, 6), leaf(4, 6), "silu", *PLAIN),
        (*leaf(4, 12).chunk(2, -1), "gelu", "auto", False),
        (made(6), leaf(4, 1), "tanh", *PLAIN),
    ],
    "act_mul_backward": lambda: [(leaf(4, 6), leaf(6), leaf(4, 1), "relu", *PLAIN)],
    "act_backward": lambda: [
        (leaf(4, 6), made(4, 6), "gelu", True, None, *PLAIN),
        (leaf(4, 6), leaf(4, 6), "relu", False, DOUBLE, *PLAIN),
    ],
    "sum_to": lambda: [
        (leaf(4, 6), (6,), 0.5, DOUBLE, *PLAIN),
        (leaf(6, 4).t(), (4, 1), 1, None, "auto", False),
    ],
    "gemm_bias_act": lambda: [
        (leaf(4, 6), leaf(6, 5), leaf(5), "silu", 0.5, 2.0, leaf(4, 1), DOUBLE, "ieee", None),
        (leaf(6, 4).t(), leaf(6, 5), None, "none", 1.0, None, None, None, "ieee", "tiled"),
    ],
    "linear_act": lambda: [
        (leaf(2, 3, 6), leaf(5, 6), leaf(5), "relu", "ieee", None),
        (leaf(3, 6), leaf(5, 6), None, "none", "tf32", "wmma"),
        (leaf(6), leaf(5, 6), None, "gelu_tanh", "ieee", None),
    ],
    "linear_gelu": lambda: [(leaf(4, 6), leaf(5, 6), leaf(5), "gelu", "ieee", None)],
}


def moved(args: Any, device: torch.device) -> tuple:
    """With leaves there."""
    return tuple(
        a.detach().to(device).requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a
        for a in args
    )


def test_every_function_is_registered() -> None:
    prefix = "cuda_reference::"
    names = {
        name.removeprefix(prefix).split(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith(prefix)
    }
    products = ("gemm_bias_act", "linear_act", "linear_gelu")
    every = [*SAMPLES, *(f"{op}_training" for op in products)]  # these in test_cublaslt.py
    assert {name for name in names if not name.startswith("test_")} == {
        *every,
        *(f"{op}_out" for op in every),
    }
    assert set(cuda_reference.OPS) <= set(SAMPLES)


@MODE
@pytest.mark.parametrize("op", SAMPLES)
def test_opcheck(op: str, device: torch.device) -> None:
    for sample in SAMPLES[op]():
        torch.library.opcheck(getattr(OPS, op).default, moved(sample, device))
        plain = tuple(a.detach() if isinstance(a, Tensor) else a for a in moved(sample, device))
        result = getattr(OPS, op)(*plain)
        outs = [torch.empty_like(t) for t in (result if isinstance(result, tuple) else [result])]
        torch.library.opcheck(getattr(OPS, f"{op}_out").default, (*plain, *outs))


@needs_host
def test_an_op_that_writes_refuses_gradients() -> None:
    x, out = leaf(3), torch.zeros(3)
    for call in (
        lambda: OPS.square_out(x, *PLAIN, out),
        lambda: cuda_reference.square(x, out=out),
        lambda: torch.compile(cuda_reference.square, backend="eager")(x, out=out),
    ):
        with pytest.raises(RuntimeError, match="square\\(\\): argument 'x' requires grad"):
            call()
    assert not out.any()


# ---- autograd ----


def doubles(*shape: int) -> Tensor:
    return made(*shape, dtype=DOUBLE, grad=True)


C = cuda_reference
DIFFERENTIABLE: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "add": (lambda x, y: C.add(x, y, alpha=0.5), (doubles(3, 4), doubles(4))),
    "add number": (lambda x: C.add(2.0, x, alpha=0.5), (doubles(3, 4),)),
    "square": (C.square, (doubles(3, 4),)),
    "square_backward": (C.square_backward, (doubles(3, 4), doubles(4))),
    "relu_scale": (lambda x: C.relu_scale(x, 0.5), (doubles(3, 4),)),
    "relu_scale, a rung": (lambda x: C.relu_scale(x, 0.5, variant="stream"), (doubles(3, 4),)),
    "relu_scale_add": (lambda x, y: C.relu_scale_add(x, y, 2), (doubles(4), doubles(3, 1))),
    "relu_scale_backward": (
        lambda g, x: C.relu_scale_backward(g, x, 0.5),
        (doubles(3, 4), doubles(4)),
    ),
    "relu_scale of channels": (C.relu_scale, (doubles(3, 4), doubles(3, 1))),
    "relu_scale_add of one scale": (C.relu_scale_add, (doubles(4), doubles(3, 1), doubles())),
    "relu_scale_backward of channels": (
        C.relu_scale_backward,
        (doubles(3, 4), doubles(4), doubles(3, 1)),
    ),
    "sum_to": (lambda x: C.sum_to(x, (3, 1), factor=0.5), (doubles(2, 3, 4),)),
    "act_mul": (lambda g, u: C.act_mul(g, u, "leaky_relu"), (doubles(3, 4), doubles(4))),
    "act_mul_backward": (
        lambda grad, gate, up: C.act_mul_backward(grad, gate, up, "leaky_relu"),
        (doubles(3, 4), doubles(4), doubles(3, 1)),
    ),
    "act_mul_backward, a loss that reads both": (
        lambda *args: sum(C.act_mul_backward(*args, "leaky_relu")),
        (doubles(3, 4), doubles(4), doubles(3, 1)),
    ),
    "act_backward, a loss that reads both": (
        lambda grad, saved: sum(C.act_backward(grad, saved, "relu")),
        (doubles(3, 4), doubles(3, 4)),
    ),
    "act_backward": (
        lambda grad, saved: C.act_backward(grad, saved, "relu"),
        (doubles(3, 4), doubles(3, 4)),
    ),
    "gemm_bias_act": (
        lambda a, b, bias, c: C.gemm_bias_act(a, b, bias, act="relu", alpha=0.5, beta=2, c=c),
        (doubles(3, 4), doubles(4, 2), doubles(2), doubles(3, 1)),
    ),
    "gemm_bias_act, c that is not read": (
        lambda a, b, c: C.gemm_bias_act(a, b, beta=0, c=c),
        (doubles(3, 4), doubles(4, 2), doubles(3, 1)),
    ),
    "linear_act": (
        lambda x, w, b: C.linear_act(x, w, b, act="leaky_relu"),
        (doubles(2, 3, 4), doubles(2, 4), doubles(2)),
    ),
}


@needs_host
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_of_both_orders(name: str) -> None:
    function, inputs = DIFFERENTIABLE[name]
    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


@needs_host
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_that_arrive_lazily_negated(name: str) -> None:
    function, inputs = DIFFERENTIABLE[name]
    result = function(*inputs)
    results = result if isinstance(result, tuple) else (result,)
    grads = [made(*t.shape, dtype=DOUBLE) for t in results]
    lazy = [torch.complex(g, g).conj().imag for g in grads]
    right = torch.autograd.grad(results, inputs, [-g for g in grads], retain_graph=True)
    for mine, theirs in zip(torch.autograd.grad(results, inputs, lazy), right):
        assert torch.equal(mine, theirs)


@needs_host
@pytest.mark.parametrize("act", _activations.ACTS)
def test_gradients_of_every_activation(act: str) -> None:
    x, weight, bias = doubles(3, 4), doubles(4, 4), doubles(4)
    assert gradcheck(lambda *t: C.linear_act(*t, act=act), (x, weight, bias))
    assert gradcheck(lambda *t: C.gemm_bias_act(*t, act=act, variant="tiled"), (x, weight, bias))
    scaled = lambda a, b, c: C.gemm_bias_act(a, b, act=act, alpha=0.5, beta=2, c=c)  # noqa: E731
    assert gradcheck(scaled, (x, weight, doubles(3, 1)))
    assert gradcheck(lambda g, u: C.act_mul(g, u, act), (x, weight[:3]))
    assert gradcheck(
        lambda u: C.act_mul(x.detach(), u, act), (weight[:3].detach().clone().requires_grad_(),)
    )
    assert gradcheck(lambda g: C.act_backward(g, x.detach(), act), (doubles(3, 4),))
    if act.startswith("gelu"):
        form = {"gelu": "none", "gelu_tanh": "tanh"}[act]
        assert gradcheck(lambda *t: C.linear_gelu(*t, approximate=form), (x, weight, bias))


@needs_host
@pytest.mark.parametrize("act", _activations.ACTS)
def test_second_derivatives_of_every_activation(act: str) -> None:
    x, y, z = doubles(3, 4), doubles(3, 4), doubles(4)
    for function, inputs in (
        (lambda *t: C.linear_act(*t, act=act), (x, doubles(5, 4), doubles(5))),
        (lambda *t: C.act_backward(*t, act), (x, y)),
        (lambda *t: C.act_mul(*t, act), (x, z)),
        # A loss that reads both results adds what each gives.
        (lambda *t: torch.stack(C.act_mul_backward(*t, act)).sum(0), (x, y, z)),
    ):
        assert gradcheck(function, inputs, fast_mode=True)
        assert gradgradcheck(function, inputs, fast_mode=True)


@needs_host
@pytest.mark.parametrize("act", ["gelu", "gelu_tanh", "silu"])
def test_second_derivatives_far_out_are_0(act: str) -> None:
    saved = torch.tensor([[-3e38, -50, 50, 3e38]], requires_grad=True)
    dx, _ = C.act_backward(torch.ones_like(saved), saved, act)
    (found,) = torch.autograd.grad(dx.sum(), saved)
    torch.testing.assert_close(found, torch.zeros_like(saved), rtol=0, atol=1e-18)


@needs_host
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_what_is_computed_again_is_what_was_computed(precision: str) -> None:
    a, b, bias, c, grad = leaf(4, 9), leaf(9, 5), leaf(5), leaf(4, 1), made(4, 5)
    options: dict[str, Any] = {"alpha": 0.5, "precision": precision}
    out = C.gemm_bias_act(a, b, bias, act="silu", beta=-2, c=c, **options)
    (found,) = torch.autograd.grad(out, a, grad)
    with torch.no_grad():
        pre = C.gemm_bias_act(a, b, bias, beta=-2, c=c, **options)
        dz, _ = C.act_backward(grad, pre, "silu")
        assert torch.equal(found, C.gemm_bias_act(dz, b.t(), **options))


@needs_host
def test_an_op_without_gradients_names_itself() -> None:
    op = Registered(
        "test_no_gradient",
        "Tensor x, Tensor y",
        lambda x, y, out=None: cuda_reference.add(x, y, out=out),
        lambda x, y: torch.empty_like(x),
    )
    x, y = leaf(3), made(3)
    assert torch.equal(op(x.detach(), y), x + y)
    for call in (op, torch.compile(op, backend="eager", fullgraph=True)):
        with pytest.raises(Exception, match=r"test_no_gradient\(\): argument 'x' requires grad"):
            call(x, y)
    with pytest.raises(NotImplementedError, match=r"test_no_gradient\(\): argument 'x'"):
        op(x, y)
    with torch.no_grad():
        assert not op(x, y).requires_grad


@needs_host
def test_forward_mode_is_refused() -> None:
    with forward_ad.dual_level():
        x = forward_ad.make_dual(made(3), made(3))
        for call in (lambda: cuda_reference.square(x), lambda: OPS.square(x, *PLAIN)):
            with pytest.raises(NotImplementedError, match="'x' carries a forward-mode tangent"):
                call()


@needs_host
def test_only_what_is_read_is_kept() -> None:
    x, y = leaf(100), leaf(100)
    saved: list[Tensor] = []
    keep = torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t), t)[1], lambda t: t)
    with keep:
        cuda_reference.add(x, y)
        assert not saved
        cuda_reference.linear_act(made(4, 6), leaf(5, 6), leaf(5), act="relu")
    assert [tuple(t.shape) for t in saved] == [(4, 6), (4, 5)]  # x, and the result


@needs_host
def test_what_is_kept_depends_on_the_arguments() -> None:
    x, weight, bias = doubles(4, 6), doubles(5, 6), made(5, dtype=DOUBLE)
    for act, given in (("silu", None), ("silu", bias), ("relu", None), ("silu", None)) * 2:
        assert gradcheck(lambda *t: C.linear_act(*t, given, act=act), (x, weight))  # noqa: B023


@needs_host
def test_only_plain_tensors_are_recorded_without_the_dispatcher() -> None:
    class Seeing(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.append(str(func))
            return super().__torch_function__(func, types, args, kwargs or {})

    seen: list[str] = []
    x = made(3)
    assert type(C.square(leaf(3)).grad_fn).__name__ == "SquareBackward"
    assert torch.equal(C.square(torch.nn.Parameter(x)), x * x)
    C.square(x.as_subclass(Seeing).requires_grad_())
    assert "cuda_reference.square.default" in seen
    negated = torch._neg_view(x).requires_grad_()  # the dispatcher resolves it
    C.add(negated, x, alpha=2).sum().backward()
    assert torch.equal(negated.grad, torch.ones(3))


# ---- a model ----

MODEL = """
import torch
import {side} as ops

class Block(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.inner = torch.nn.Linear(n, 2 * n)
        self.outer = torch.nn.Linear(n, n)
        self.head = torch.nn.Linear(n, n)
        self.gain = torch.nn.Parameter(torch.ones(n))

    def forward(self, x):
        gate, up = ops.linear_act(x, self.inner.weight, self.inner.bias, act="none").chunk(2, -1)
        hidden = ops.act_mul(gate, up, "silu")
        hidden = ops.linear_gelu(hidden, self.outer.weight, self.outer.bias, approximate="tanh")
        hidden = ops.add(x, hidden, alpha=0.5)
        hidden = ops.relu_scale_add(hidden, ops.relu_scale(ops.square(hidden), 0.25), scale=2.0)
        rows = ops.add(hidden, self.gain).flatten(0, 1)
        rows = ops.gemm_bias_act(rows, self.head.weight.t(), self.head.bias, act="sigmoid", c=rows)
        return ops.sum_to(rows, (1, rows.shape[1]), factor=0.1)
"""


def model_of(side: str, device: torch.device) -> torch.nn.Module:
    module = types.ModuleType(f"model_of_{side}")
    sys.modules[module.__name__] = module  # where torch.export looks
    exec(MODEL.format(side=side), module.__dict__)
    torch.manual_seed(0)
    return module.Block(8).to(device)


def outcome(model: torch.nn.Module, call: Any, x: Tensor) -> list[Tensor]:
    """The result and all gradients."""
    x = x.clone().requires_grad_()
    result = call(x)
    result.square().sum().backward()
    found = [result.detach(), x.grad, *(p.grad for p in model.parameters())]
    model.zero_grad()
    assert all(t is not None for t in found)
    return found  # type: ignore[return-value]


@contextlib.contextmanager
def triton_on(device: torch.device) -> Iterator[None]:
    with triton_kernels.interpret() if device.type == "cpu" else contextlib.nullcontext():
        yield


@MODE
def test_the_sides_of_a_model_change_places_by_one_import(device: torch.device) -> None:
    x = made(2, 3, 8).to(device)
    with triton_on(device):
        model = model_of("triton_kernels", device)
        theirs = outcome(model, model, x)
    model = model_of("cuda_reference", device)
    ours = outcome(model, model, x)
    for mine, other in zip(ours, theirs):
        torch.testing.assert_close(mine, other)
    for dynamic in (False, True):
        torch._dynamo.reset()
        call = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=dynamic)
        for mine, other in zip(outcome(model, call, x), ours):
            torch.testing.assert_close(mine, other, rtol=0, atol=0)
        with torch.no_grad():
            assert torch.equal(call(x), ours[0])


@MODE
def test_autocast_casts_as_it_does_on_the_other_side(device: torch.device) -> None:
    x = made(2, 3, 8).to(device)

    def under_autocast(side: str) -> list[Tensor]:
        model = model_of(side, device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            found = outcome(model, model, x)
            with torch.no_grad():
                compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
        assert side == "triton_kernels" or torch.equal(compiled, found[0])
        return found

    with triton_on(device):
        theirs = under_autocast("triton_kernels")
    for mine, other in zip(under_autocast("cuda_reference"), theirs):
        assert mine.dtype == other.dtype
        torch.testing.assert_close(mine, other, rtol=0.05, atol=0.05)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        product = cuda_reference.gemm_bias_act(x[0], made(8, 8).to(device))
        assert product.dtype == torch.bfloat16
        wide = made(8, 8, dtype=DOUBLE).to(device)
        assert cuda_reference.gemm_bias_act(wide, wide).dtype == DOUBLE  # as torch's products
        squares = cuda_reference.square(x.bfloat16()).dtype
    assert squares == (torch.float32 if device.type == "cuda" else torch.bfloat16)


@MODE
def test_export(device: torch.device) -> None:
    model, x = model_of("cuda_reference", device), made(2, 3, 8).to(device)
    for strict in (False, True):
        program = torch.export.export(model, (x,), strict=strict)
        called = {str(node.target) for node in program.graph.nodes}
        assert "cuda_reference.linear_act.default" in called
        assert torch.equal(program.module()(x), model(x))


@MODE
def test_out_in_a_compiled_function(device: torch.device) -> None:
    def step(x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        cuda_reference.add(x, y, out=out)
        cuda_reference.relu_scale(out, 0.5, out=out, variant="auto")
        return out * 2

    x, y = made(4, 6).to(device), made(6).to(device)
    out, again = torch.zeros(4, 6, device=device), torch.zeros(4, 6, device=device)
    right = step(x, y, out)
    before = again._version
    found = torch.compile(step, fullgraph=True, backend="aot_eager")(x, y, again)
    assert torch.equal(found, right)
    assert torch.equal(again, out)
    assert again._version > before


@MODE
def test_a_trace_and_a_mode_see_the_ops(mode: str, device: torch.device) -> None:
    class Seen(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    for function in functions(mode):
        seen: list[str] = []
        inputs = function.inputs(device)
        right = function(inputs)
        with Seen():
            found = function(inputs)
        assert f"cuda_reference.{function.op}.default" in seen, function
        assert all(map(torch.equal, found, right)), function
    traced = torch.jit.trace(lambda x: cuda_reference.square(x), made(3).to(device))
    assert "cuda_reference::square" in str(traced.graph)
