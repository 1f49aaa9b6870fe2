"""What torch does with a matrix product: compile, export, vmap, autocast, CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from products import leaf, operands
from torch import Tensor

import triton_kernels as tk

OPS = torch.ops.triton_kernels
BFLOAT, FLOAT, DOUBLE = torch.bfloat16, torch.float32, torch.float64


# ---- those who follow a call ----

REGISTERED: dict[str, Callable[[list[Tensor]], tuple]] = {
    "gemm_bias_act": lambda t: (t[0], t[1], t[2], "relu", 0.7, -0.3, t[3], None, "ieee"),
    "gemm_bias_act_with_pre": lambda t: (t[0], t[1], t[2], "gelu", 0.7, -0.3, t[3], None, "ieee"),
    "linear_gelu": lambda t: (t[0], t[1].t().contiguous(), t[2], "none"),
    "linear_gelu_with_pre": lambda t: (t[0], t[1].t().contiguous(), t[2], "tanh"),
    "act_backward": lambda t: (t[0], t[0] * 2, "relu", True, None),
    "act_mul": lambda t: (t[0][:, 1:], t[3], "gelu"),
    "act_mul_backward": lambda t: (t[0][:, 1:], t[0][:, :6], t[3], "leaky_relu"),
}


@pytest.mark.parametrize("op", REGISTERED)
def test_opcheck(op: str, device: torch.device) -> None:
    args = REGISTERED[op](operands(device, FLOAT))
    leaves = tuple(a.detach().requires_grad_() if isinstance(a, Tensor) else a for a in args)
    for given in (leaves, tuple(a.detach() if isinstance(a, Tensor) else a for a in args)):
        found = torch.library.opcheck(getattr(OPS, op).default, given)
        assert set(found.values()) == {"SUCCESS"}
        assert "test_aot_dispatch_dynamic" in found
    if hasattr(OPS, f"{op}_out"):
        given = (*(a.detach() if isinstance(a, Tensor) else a for a in args),)
        out = torch.zeros(5, 6, device=device)
        found = torch.library.opcheck(getattr(OPS, f"{op}_out").default, (*given, out))
        assert set(found.values()) == {"SUCCESS"}


def block(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    """A feed-forward block as models have it."""
    h = tk.linear_gelu(x, w1, b1)
    h = tk.gemm_bias_act(h.flatten(0, -2), w2.t(), act="silu", alpha=0.5)
    return tk.relu_scale(h, 2.0)


def block_inputs(device: torch.device, rows: int, dtype: torch.dtype = FLOAT) -> list[Tensor]:
    shapes = ((2, rows, 7), (6, 7), (6,), (5, 6))
    return [leaf(device, *shape, dtype=dtype) for shape in shapes]


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_forward_and_backward(dynamic: bool, device: torch.device) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in (4, 7):
        inputs = block_inputs(device, rows)
        found, right = compiled(*inputs), block(*inputs)
        assert torch.equal(found, right)
        grad = torch.randn_like(right)
        for mine, theirs in zip(
            torch.autograd.grad(found, inputs, grad), torch.autograd.grad(right, inputs, grad)
        ):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict: bool, device: torch.device) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            _, w1, b1, w2 = map(torch.nn.Parameter, block_inputs(device, 1))
            self.w1, self.b1, self.w2 = w1, b1, w2

        def forward(self, x: Tensor) -> Tensor:
            return block(x, self.w1, self.b1, self.w2)

    model, x = Model(), block_inputs(device, 4)[0].detach()
    rows = torch.export.Dim("rows", min=2, max=64)
    with torch.no_grad():
        program = torch.export.export(model, (x,), strict=strict, dynamic_shapes={"x": {1: rows}})
        called = {str(n.target) for n in program.graph.nodes if n.op == "call_function"}
        assert {f"triton_kernels.{op}.default" for op in ("linear_gelu", "gemm_bias_act")} <= called
        other = block_inputs(device, 9)[0].detach()
        assert torch.equal(program.module()(other), model(other))


def test_checkpoint(device: torch.device) -> None:
    inputs = block_inputs(device, 4)
    again = torch.utils.checkpoint.checkpoint(block, *inputs, use_reentrant=False)
    found = torch.autograd.grad(again.sum(), inputs)
    right = torch.autograd.grad(block(*inputs).sum(), inputs)
    assert all(torch.equal(a, b) for a, b in zip(found, right))


@pytest.mark.parametrize("shared", [True, False])
def test_per_example_gradients(shared: bool, device: torch.device) -> None:
    """vmap over grad, with the weights shared or one for each: those of a loop."""
    x, w1, b1, w2 = (t.detach() for t in block_inputs(device, 4, DOUBLE))
    x = torch.stack([x, x + 1, 2 * x])
    weights = (w1, b1, w2) if shared else tuple(torch.stack([t, -t, 2 * t]) for t in (w1, b1, w2))
    dims = (0, *[None if shared else 0] * 3)
    gradient = torch.func.grad(lambda *inputs: block(*inputs).square().sum(), (0, 1, 2, 3))
    found = torch.func.vmap(gradient, in_dims=dims)(x, *weights)
    for i in range(3):
        one = [x[i], *(t if shared else t[i] for t in weights)]
        one = [t.detach().requires_grad_() for t in one]
        right = torch.autograd.grad(block(*one).square().sum(), one)
        for mine, theirs in zip(found, right):
            torch.testing.assert_close(mine[i], theirs, rtol=1e-12, atol=1e-12)


def test_vmap_over_nothing_is_refused(cpu: torch.device) -> None:
    """As torch's own loop refuses it: there is no element that would tell the result's shape."""
    with pytest.raises(
        NotImplementedError, match=r"linear_gelu\(\): vmap over a dimension of size 0"
    ):
        torch.func.vmap(tk.linear_gelu, in_dims=(0, None))(torch.ones(0, 4, 7), torch.ones(6, 7))


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_autocast_as_torch_does(kind: str, device: torch.device) -> None:
    """Products run in autocast's dtype, float64 ones as they are; gradients are the inputs'."""
    if device.type != kind:
        pytest.skip(f"tensors on {device.type}")
    inputs = block_inputs(device, 4)
    x, w1, b1, w2 = inputs
    with torch.autocast(kind, dtype=BFLOAT):
        found = tk.linear_gelu(x, w1, b1)
        product = tk.gemm_bias_act(x.flatten(0, 1), w1.t(), act="relu")
        wide = tk.linear_gelu(x.double(), w1.double())
    assert (found.dtype, product.dtype, wide.dtype) == (BFLOAT, BFLOAT, DOUBLE)
    with torch.no_grad():
        assert torch.equal(found, tk.linear_gelu(x.bfloat16(), w1.bfloat16(), b1.bfloat16()))
    found.sum().backward()
    assert {t.grad.dtype for t in (x, w1, b1)} == {FLOAT}
    assert w2.grad is None


# ---- on a GPU ----


@pytest.mark.gpu_only
def test_inductor_on_a_gpu() -> None:
    torch._dynamo.reset()
    device = torch.device("cuda")
    compiled = torch.compile(lambda *inputs: block(*inputs).relu(), fullgraph=True)
    inputs = block_inputs(device, 64)
    found, right = compiled(*inputs), block(*inputs).relu()
    torch.testing.assert_close(found, right)
    grad = torch.randn_like(right)
    for mine, theirs in zip(
        torch.autograd.grad(found, inputs, grad), torch.autograd.grad(right, inputs, grad)
    ):
        torch.testing.assert_close(mine, theirs)


def step(inputs: list[Tensor]) -> tuple[Tensor, ...]:
    out = block(*inputs)
    return (out, *torch.autograd.grad(out, inputs, torch.ones_like(out)))


@pytest.mark.gpu_only
@pytest.mark.parametrize("dtype", [BFLOAT, FLOAT])
def test_in_a_cuda_graph_on_a_side_stream(dtype: torch.dtype) -> None:
    """Kernels with descriptors and without; new numbers, same addresses."""
    shapes = ((2, 128, 256), (512, 256), (512,), (256, 512))
    inputs = [leaf(torch.device("cuda"), *shape, dtype=dtype) for shape in shapes]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step(inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step(inputs)
    with torch.no_grad():
        for t in inputs:
            t.copy_(torch.randn_like(t) / 8)
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(found, step(inputs)))


@pytest.mark.gpu_only
def test_the_same_bits_every_time() -> None:
    shapes = ((2, 500, 264), (520, 264), (520,), (256, 520))
    inputs = [leaf(torch.device("cuda"), *shape, dtype=BFLOAT) for shape in shapes]
    torch.use_deterministic_algorithms(True)
    try:
        first = step(inputs)
        for _ in range(3):
            assert all(torch.equal(a, b) for a, b in zip(first, step(inputs)))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.gpu_only
def test_on_another_device_than_the_current_one() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only")
    shapes = ((2, 128, 256), (512, 256), (512,), (256, 512))
    inputs = [leaf(torch.device("cuda:1"), *shape, dtype=BFLOAT) for shape in shapes]
    found = step(inputs)
    assert {t.device.index for t in found} == {1}
    assert torch.cuda.current_device() == 0
    right = step([t.detach().to(0).requires_grad_() for t in inputs])
    assert all(torch.equal(a.to(0), b) for a, b in zip(found, right))
