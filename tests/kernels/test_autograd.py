"""Gradients and everything in torch that follows a call: compile, export, vmap, autocast, modes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

import triton_kernels as tk
from triton_kernels._launch import Launch

OPS = torch.ops.triton_kernels
HALF, BFLOAT, FLOAT, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


@dataclass(frozen=True)
class Sample:
    """A function of tensors, the same in torch, and the tensors' shapes."""

    ours: Callable[..., Tensor]
    eager: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]


def relu_gradient(grad: Tensor, x: Tensor) -> Tensor:
    return torch.where(x <= 0, 0 * x, grad * 0.7)


SAMPLES = {
    "add": Sample(
        lambda x, y: tk.add(x, y, alpha=-1.7), lambda x, y: x + -1.7 * y, ((4, 5), (4, 5))
    ),
    "add scalar": Sample(lambda x: tk.add(x, 3.5), lambda x: x + 3.5, ((4, 5),)),
    "add to scalar": Sample(
        lambda y: tk.add(3.5, y, alpha=-1.7), lambda y: 3.5 + -1.7 * y, ((4, 5),)
    ),
    "square": Sample(tk.square, torch.square, ((4, 5),)),
    "relu_scale": Sample(lambda x: tk.relu_scale(x, 0.7), lambda x: torch.relu(x) * 0.7, ((4, 5),)),
    "relu_scale_add": Sample(
        lambda x, y: tk.relu_scale_add(x, y, 0.7),
        lambda x, y: torch.relu(x) * 0.7 + y,
        ((4, 5), (4, 5)),
    ),
    "square_backward": Sample(tk.square_backward, lambda g, x: g * (2 * x), ((4, 5), (4, 5))),
    "relu_scale_backward": Sample(
        lambda g, x: tk.relu_scale_backward(g, x, 0.7), relu_gradient, ((4, 5), (4, 5))
    ),
    "sum_to": Sample(
        lambda x: tk.sum_to(x, (4, 1), factor=0.3),
        lambda x: x.sum_to_size(4, 1) * 0.3,
        ((2, 4, 5),),
    ),
}
BINARY = [name for name, sample in SAMPLES.items() if len(sample.shapes) == 2]
BROADCASTS = [((4, 5), (5,)), ((5,), (4, 5)), ((4, 1), (1, 5)), ((), (3, 2)), ((3, 2), ())]
BROADCASTS += [((2, 1, 3), (4, 1)), ((), ()), ((1,), ()), ((0, 5), (5,)), ((4, 5), (0, 4, 5))]


def leaf(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype = DOUBLE) -> Tensor:
    """Numbers away from 0, where relu has no derivative."""
    generator = torch.Generator().manual_seed(1 + sum(shape))
    t = torch.randn(shape, generator=generator, dtype=DOUBLE)
    return (t + 0.1 * t.sign()).to(device, dtype).requires_grad_()


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
REGISTERED: dict[str, Callable[[Tensor, Tensor], tuple]] = {
    "add": lambda x, out: (x, x, 1, out),
    "add_scalar": lambda x, out: (x, 2, 1, out),
    "add_to_scalar": lambda y, out: (y, 2, 1, out),
    "square": lambda x, out: (x, out),
    "relu_scale": lambda x, out: (x, 2, out),
    "relu_scale_add": lambda x, out: (x, x, 2, out),
    "square_backward": lambda x, out: (x, x, out),
    "relu_scale_backward": lambda x, out: (x, x, 2, out),
    "sum_to": lambda x, out: (x, list(x.shape), 2, None, out),
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
        torch.stack([leaf(s, device).detach() + i for i in range(3)], 1) for s in sample.shapes
    ]
    numbers = tuple(range(len(batch)))

    def loss(*inputs: Tensor) -> Tensor:
        return sample.ours(*inputs).square().sum()

    found = torch.func.vmap(torch.func.grad(loss, numbers), in_dims=1)(*batch)
    for i in range(3):
        inputs = [t[:, i].detach().requires_grad_() for t in batch]
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


def test_transforms_that_do_not_work_say_so(cpu: torch.device) -> None:
    x = leaf((4, 5), cpu).detach()
    with pytest.raises(NotImplementedError, match=r"square\(\): out= does not work inside vmap"):
        torch.vmap(lambda x: tk.square(x, out=x))(x)
    with pytest.raises(NotImplementedError, match=r"^add\(\): out= does not work inside vmap"):
        torch.vmap(lambda x: tk.add(x, 2, out=x))(x)
    with pytest.raises(NotImplementedError, match=r"'x' carries a forward-mode tangent"):
        torch.func.jvp(tk.square, (x,), (x,))
    with (
        forward_ad.dual_level(),
        pytest.raises(NotImplementedError, match=r"'y' carries a forward-mode tangent"),
    ):
        tk.add(x, forward_ad.make_dual(x, x))
    with forward_ad.dual_level():
        assert torch.equal(tk.square(x), x * x)


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
