"""What torch does with a call of an op: compile, export, vmap, autocast, CUDA graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from leaves import BINARY, REGISTERED, SAMPLES, leaf
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import triton_kernels as tk

OPS = torch.ops.triton_kernels
HALF, BFLOAT, FLOAT, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


# ---- those who follow a call ----


@pytest.mark.parametrize("op", REGISTERED)
def test_opcheck(op: str, device: torch.device) -> None:
    x = leaf((4, 5), device, FLOAT)
    args = REGISTERED[op](x, None)[:-1]
    for given in (args, tuple(a.detach() if isinstance(a, Tensor) else a for a in args)):
        found = torch.library.opcheck(getattr(OPS, op).default, given)
        assert set(found.values()) == {"SUCCESS"}
        assert "test_aot_dispatch_dynamic" in found
    args = REGISTERED[op](x.detach(), torch.zeros(4, 5, device=device))
    found = torch.library.opcheck(getattr(OPS, f"{op}_out").default, args)
    assert set(found.values()) == {"SUCCESS"}


def block(x: Tensor, y: Tensor) -> Tensor:
    """Every function that a model would call, once; y is broadcast, x transposed."""
    h = tk.relu_scale_add(tk.square(x).t(), y, 0.5)
    h = tk.add(tk.add(h, y, alpha=2), 1.5)
    return tk.sum_to(tk.relu_scale(h, 0.3), (1, x.shape[0]), factor=2)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_forward_and_backward(dynamic: bool, device: torch.device) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in (4, 7):
        inputs = leaf((rows, 5), device, FLOAT), leaf((5, 1), device, FLOAT)
        found, right = compiled(*inputs), block(*inputs)
        assert torch.equal(found, right)
        grad = torch.randn_like(right)
        for mine, theirs in zip(
            torch.autograd.grad(found, inputs, grad), torch.autograd.grad(right, inputs, grad)
        ):
            assert torch.equal(mine, theirs)


def test_compiled_out(device: torch.device) -> None:
    def run(x: Tensor, out: Tensor) -> Tensor:
        tk.relu_scale(x, 2, out=out)
        return tk.add(x, out, out=x) + 1

    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    x = leaf((4, 5), device).detach()
    mine, theirs = [(x.clone(), torch.zeros_like(x)) for _ in range(2)]
    assert torch.equal(compiled(*mine), run(*theirs))
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs))


def test_compiled_variant_says_that_it_runs_eagerly(cpu: torch.device) -> None:
    torch._dynamo.reset()
    variant = tk.variants("add")["f32x4"]
    compiled = torch.compile(lambda x: variant(x, x), fullgraph=True, backend="aot_eager")
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(torch.ones(4))
    with pytest.raises(RuntimeError, match="variant of add has no gradient"):
        variant(leaf((4,), cpu, FLOAT), 2)


@pytest.mark.gpu_only
def test_inductor_on_a_gpu() -> None:
    """Its own kernels around ours, other strides if it likes them better."""
    device = torch.device("cuda")
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, y: block(x * 2, y).relu(), fullgraph=True)
    inputs = leaf((64, 32), device, FLOAT), leaf((32, 1), device, FLOAT)
    found, right = compiled(*inputs), block(inputs[0] * 2, inputs[1]).relu()
    torch.testing.assert_close(found, right)
    grad = torch.randn_like(right)
    for mine, theirs in zip(
        torch.autograd.grad(found, inputs, grad), torch.autograd.grad(right, inputs, grad)
    ):
        torch.testing.assert_close(mine, theirs)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.y = torch.nn.Parameter(torch.ones(5, 1))

    def forward(self, x: Tensor) -> Tensor:
        return block(x, self.y)


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict: bool, device: torch.device) -> None:
    model, x = Model().to(device), leaf((4, 5), device, FLOAT).detach()
    rows = torch.export.Dim("rows", min=2, max=64)
    program = torch.export.export(model, (x,), strict=strict, dynamic_shapes={"x": {0: rows}})
    called = {str(n.target) for n in program.graph.nodes if n.op == "call_function"}
    assert {
        f"triton_kernels.{op}.default"
        for op in ("square", "relu_scale_add", "add", "add_scalar", "relu_scale", "sum_to")
    } <= called
    other = leaf((9, 5), device, FLOAT).detach()
    assert torch.equal(program.module()(other), model(other))


def test_make_fx_and_fake_tensors(cpu: torch.device) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    x = leaf((4, 5), cpu).detach()
    graph = make_fx(lambda x: tk.square(x))(x).graph
    assert OPS.square.default in [n.target for n in graph.nodes]
    with FakeTensorMode() as mode:
        fake = tk.relu_scale_add(mode.from_tensor(x), torch.empty(5, dtype=FLOAT), 2)
    assert (fake.shape, fake.dtype) == ((4, 5), DOUBLE)


def test_fakes_of_a_scale_on_the_cpu(cpu: torch.device) -> None:
    """Without dimensions it joins the others on their GPU, whichever of the operands it is."""
    with FakeTensorMode():
        x, scale = torch.empty(4, 5, device="cuda"), torch.empty((), dtype=DOUBLE)
        for fake in (
            tk.relu_scale(x, scale),
            tk.relu_scale(scale, x),
            tk.relu_scale_add(scale, x, x),
            tk.relu_scale_backward(x, x, scale),
        ):
            assert (fake.device.type, fake.dtype, fake.shape) == ("cuda", FLOAT, (4, 5))


class Wrapped(Tensor):
    """A tensor subclass that notes which ops it meets."""

    seen: list[str] = []  # noqa: RUF012 - one list for all is meant

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapped:
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        cls.seen.append(str(func))
        bare = [a.inner if isinstance(a, cls) else a for a in args]
        return func(*bare, **(kwargs or {}))


def test_subclasses_see_the_registered_op(cpu: torch.device) -> None:
    Wrapped.seen.clear()
    x = leaf((4, 5), cpu).detach()
    assert torch.equal(tk.add(x, Wrapped(x)), tk.add(x, x))
    tk.square(x, out=Wrapped(x.clone()))
    assert Wrapped.seen == ["triton_kernels.add.default", "triton_kernels.square_out.default"]


def test_checkpoint(device: torch.device) -> None:
    inputs = leaf((4, 5), device), leaf((5, 1), device)
    again = torch.utils.checkpoint.checkpoint(block, *inputs, use_reentrant=False)
    found = torch.autograd.grad(again.sum(), inputs)
    right = torch.autograd.grad(block(*inputs).sum(), inputs)
    assert all(torch.equal(a, b) for a, b in zip(found, right))


# ---- transforms ----


@pytest.mark.parametrize("name", SAMPLES)
def test_func_grad_and_vmap(name: str, device: torch.device) -> None:
    """Per-example gradients are those of a loop."""
    sample = SAMPLES[name]
    batch = [
        torch.stack([leaf(s, device).detach() + i for i in range(3)], -1) for s in sample.shapes
    ]
    numbers = tuple(range(len(batch)))

    def loss(*inputs: Tensor) -> Tensor:
        return sample.ours(*inputs).square().sum()

    found = torch.func.vmap(torch.func.grad(loss, numbers), in_dims=-1)(*batch)
    for i in range(3):
        inputs = [t[..., i].detach().requires_grad_() for t in batch]
        right = torch.autograd.grad(sample.eager(*inputs).square().sum(), inputs)
        for mine, theirs in zip(found, right):
            torch.testing.assert_close(mine[i], theirs, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", BINARY)
def test_vmap_lines_up_and_promotes_as_one_call_would(name: str, device: torch.device) -> None:
    sample = SAMPLES[name]
    cases = [
        ((3, 4, 5), (5,), (0, None), HALF),
        ((5,), (4, 5, 3), (None, 2), HALF),
        ((3,), (4, 3), (0, 1), HALF),
        ((3,), (4,), (0, None), DOUBLE),  # a 0-d float64 does not promote a float32 vector
        ((3, 4), (3,), (0, 0), FLOAT),
    ]
    for x_shape, y_shape, dims, dtype in cases:
        x, y = leaf(x_shape, device, dtype).detach(), leaf(y_shape, device, FLOAT).detach()
        found = torch.vmap(sample.ours, in_dims=dims)(x, y)
        parts = [
            sample.ours(*(t if d is None else t.select(d, i) for t, d in zip((x, y), dims)))
            for i in range(3)
        ]
        assert found.dtype == parts[0].dtype
        assert torch.equal(found, torch.stack(parts)), (x_shape, y_shape)


@pytest.mark.parametrize(
    ("shapes", "dims", "dtype"),
    [
        (((3, 4, 5), (5,), (4, 1)), (0, None, None), FLOAT),
        (((4, 5), (4, 5, 3), (3,)), (None, 2, 0), HALF),  # a scale without dimensions
        (((3,), (3,), (5, 3)), (0, 0, 1), FLOAT),
    ],
    ids=str,
)
def test_vmap_of_three_tensors(
    shapes: tuple, dims: tuple, dtype: torch.dtype, device: torch.device
) -> None:
    x, y, scale = (leaf(shape, device).detach() for shape in shapes)
    inputs = x.to(HALF), y.to(HALF), scale.to(FLOAT)
    found = torch.vmap(tk.relu_scale_add, in_dims=dims)(*inputs)
    parts = [
        tk.relu_scale_add(*(t if d is None else t.select(d, i) for t, d in zip(inputs, dims)))
        for i in range(3)
    ]
    assert found.dtype == parts[0].dtype == dtype
    assert torch.equal(found, torch.stack(parts))


def test_transforms_that_do_not_work_say_so(cpu: torch.device) -> None:
    x = leaf((4, 5), cpu).detach()
    with pytest.raises(NotImplementedError, match=r"square\(\): out= does not work inside vmap"):
        torch.vmap(lambda x: tk.square(x, out=x))(x)
    with pytest.raises(NotImplementedError, match=r"^add\(\): out= does not work inside vmap"):
        torch.vmap(lambda x: tk.add(x, 2, out=x))(x)


def test_jacrev_and_hessian(cpu: torch.device) -> None:
    x = leaf((3,), cpu).detach()
    assert torch.allclose(torch.func.jacrev(tk.square)(x), torch.diag(2 * x))
    summed = torch.func.grad(lambda x: torch.vmap(lambda v: tk.add(tk.square(v), 1))(x).sum())(x)
    assert torch.allclose(summed, 2 * x)
    cubed = torch.func.jacrev(torch.func.jacrev(lambda x: tk.square(x).sum()))(x)
    assert torch.allclose(cubed, 2 * torch.eye(3, dtype=DOUBLE))


# ---- autocast ----


def test_autocast_leaves_dtypes_as_torch_does(cpu: torch.device) -> None:
    x, y = leaf((4, 5), cpu, FLOAT).detach(), leaf((4, 5), cpu, BFLOAT).detach()
    with torch.autocast("cpu", dtype=BFLOAT):
        assert tk.add(x, y).dtype == torch.add(x, y).dtype == FLOAT
        assert tk.relu_scale(y, 2).dtype == (torch.relu(y) * 2).dtype == BFLOAT
        assert tk.square(y).dtype == torch.square(y).dtype == BFLOAT


def test_cudas_autocast_squares_in_float32_as_torch_does() -> None:
    """On fake CUDA tensors, which every machine has."""
    enabled = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        with FakeTensorMode():
            x = torch.empty(3, device="cuda", dtype=HALF)
            assert tk.square(x).dtype == torch.square(x).dtype == FLOAT
            assert tk.add(x, x).dtype == torch.add(x, x).dtype == HALF
            assert tk.relu_scale(x, 2).dtype == (torch.relu(x) * 2).dtype == HALF
    finally:
        torch.set_autocast_enabled("cuda", enabled)


# ---- on a GPU ----


@pytest.mark.gpu_only
def test_autocast_on_a_gpu() -> None:
    x = leaf((4, 5), torch.device("cuda"), HALF)
    with torch.autocast("cuda", dtype=HALF):
        out = tk.square(x)
    assert out.dtype == FLOAT
    out.sum().backward()
    assert x.grad.dtype == HALF
    assert torch.equal(x.grad, 2 * x.detach())


@pytest.mark.gpu_only
def test_on_a_side_stream() -> None:
    """Forward and backward run on the stream that is current at the call."""
    x = torch.randn(1 << 22, device="cuda", requires_grad=True)
    tk.square(x).backward(torch.ones_like(x))  # compiled
    x.grad = None
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late = x.detach() * 3  # ready only after the sleep, and only in this stream's order
        late.requires_grad_()
        out = tk.square(late)
        out.backward(torch.ones_like(out))
    stream.synchronize()
    assert torch.equal(out, (x.detach() * 3).square())
    assert torch.equal(late.grad, 2 * (x.detach() * 3))


@pytest.mark.gpu_only
def test_in_a_cuda_graph() -> None:
    x = torch.randn(4096, 300, device="cuda", requires_grad=True)
    y = torch.randn(300, device="cuda", requires_grad=True)

    def step() -> tuple[Tensor, ...]:
        out = tk.relu_scale_add(tk.square(x), y, 0.5)
        return (out, *torch.autograd.grad(out, (x, y), torch.ones_like(out)))

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    with torch.no_grad():
        x.copy_(torch.randn_like(x))
        y.copy_(torch.randn_like(y))
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(found, step()))


@pytest.mark.gpu_only
def test_on_another_device_than_the_current_one() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only")
    x = torch.randn(300, 70, device="cuda:1", requires_grad=True)
    y = torch.randn(70, device="cuda:1", requires_grad=True)
    assert torch.cuda.current_device() == 0
    out = tk.relu_scale_add(x, y, 0.5)
    out.sum().backward()
    assert {t.device.index for t in (out, x.grad, y.grad)} == {1}
    assert torch.cuda.current_device() == 0
    assert torch.equal(x.grad, 0.5 * (x > 0))
    assert torch.equal(out, tk.relu_scale_add(x.detach().to(0), y.detach().to(0), 0.5).to(1))


@pytest.mark.gpu_only
def test_a_zero_d_cpu_operand_gets_its_gradient_on_the_cpu() -> None:
    x = torch.randn(5, device="cuda", requires_grad=True)
    y = torch.tensor(2.0, requires_grad=True)
    tk.add(x, y, alpha=3).sum().backward()
    assert y.grad.device.type == "cpu"
    assert y.grad.item() == 15
    assert x.grad.tolist() == [1] * 5
