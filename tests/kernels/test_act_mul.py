"""Gated units: act_mul and its gradients, of tensors that are halves of one; what they keep and
launch; and how wide their compiled accesses are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import triton_kernels as tk
from compare.compiling import machine_code
from compare.specs.activations import ACTIVATIONS
from triton_kernels._launch import Launch
from triton_kernels.interpreter import cross_compile

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def halves(device: torch.device, dtype: torch.dtype, *shape: int) -> Tensor:
    """Numbers away from 0, where relu has no derivative."""
    t = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)
    return (t + 0.1 * t.sign()).to(device, dtype).requires_grad_()


def reference(x: Tensor, act: str) -> Tensor:
    gate, up = x.chunk(2, -1)
    return ACTIVATIONS[act].function(gate) * up


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_gradients_of_halves(act: str, dtype: torch.dtype, device: torch.device) -> None:
    """Against float64: every number rounds once, after errors much smaller."""
    x = halves(device, dtype, 3, 7, 48)
    wide = x.detach().double().requires_grad_()
    result, right = tk.act_mul(*x.chunk(2, -1), act), reference(wide, act)
    weights = torch.linspace(-2, 2, right.numel(), device=device).view(right.shape).to(dtype)
    (found,) = torch.autograd.grad(result, x, weights)
    (expected,) = torch.autograd.grad(right, wide, weights.double())
    unit = torch.finfo(dtype).eps
    # For 16 bits Triton's gelu' is 2⁻¹⁴ off, times 2, the largest of the weights, and up.
    short = 2.0**-10 if dtype.itemsize == 2 else 16 * unit
    torch.testing.assert_close(result.double(), right, rtol=unit, atol=short)
    torch.testing.assert_close(found.double(), expected, rtol=unit, atol=short)


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_gradcheck(act: str, device: torch.device) -> None:
    x = halves(device, torch.float64, 2, 6)
    assert torch.autograd.gradcheck(lambda x: tk.act_mul(*x.chunk(2, -1), act), x)
    gate, up = (halves(device, torch.float64, *shape) for shape in ((2, 1, 3), (4, 1)))
    assert torch.autograd.gradcheck(lambda g, u: tk.act_mul(g, u, act), (gate, up))
    assert torch.autograd.gradcheck(lambda u: tk.act_mul(gate.detach(), u, act), up)


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_second_derivatives(act: str, device: torch.device) -> None:
    """Along a random direction of each argument: element by element takes hundreds of launches."""
    torch.manual_seed(0)
    gate, up, grad = (
        halves(device, torch.float64, *shape) for shape in ((2, 3), (4, 1, 3), (2, 3))
    )
    assert torch.autograd.gradgradcheck(
        lambda g, u: tk.act_mul(g, u, act), (gate, up), fast_mode=True
    )
    backward = lambda d, g, u: tk.act_mul_backward(d, g, u, act)  # noqa: E731
    assert torch.autograd.gradcheck(backward, (grad, gate, up), fast_mode=True)
    # That looks at one result at a time; a loss that reads both adds what each gives.
    both = lambda d, g, u: torch.stack(backward(d, g, u)).sum(0)  # noqa: E731
    assert torch.autograd.gradcheck(both, (grad, gate, up), fast_mode=True)


@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
def test_second_derivatives_round_once(dtype: torch.dtype, device: torch.device) -> None:
    """The product of grad and up is infinite in float16. A gate may be a number on the CPU."""
    large = 2.0**12
    up, grad = (large * halves(device, dtype, 4, 16).detach() for _ in range(2))
    for gate in (halves(device, dtype, 16), halves(torch.device("cpu"), dtype, 1)[0]):
        gate = gate.detach().requires_grad_()
        slope, _ = tk.act_mul_backward(grad, gate, up, "silu")
        wide = gate.detach().to(device).double().requires_grad_()
        with torch.enable_grad():
            value = torch.nn.functional.silu(wide) * (grad.double() * up.double())
            (right,) = torch.autograd.grad(value.sum(), wide, create_graph=True)
        (found,) = torch.autograd.grad(slope, gate, torch.full_like(slope, large**-2))
        (expected,) = torch.autograd.grad(right, wide, torch.full_like(right, large**-2))
        assert (found.device, found.dtype) == (gate.device, dtype)
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(found.to(device).double(), expected, rtol=8 * eps, atol=8 * eps)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    call = Launch.__call__

    def noted(self: Launch, *args: object, **options: object) -> None:
        names.append(self.kernel.fn.__name__)  # type: ignore[attr-defined]
        call(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Launch, "__call__", noted)
    return names


def test_one_launch_each_way(launched: list[str], device: torch.device) -> None:
    gate, up = (halves(device, torch.float32, 4, 6) for _ in range(2))
    tk.act_mul(gate, up, "silu").sum().backward()
    assert launched == ["flat_kernel", "tiled_gradients_kernel"]  # of a sum's expanded gradient
    launched.clear()
    torch.autograd.grad(tk.act_mul(gate, up, "silu"), (gate, up), torch.ones(4, 6).to(gate))
    assert launched == ["flat_kernel", "flat_gradients_kernel"]
    launched.clear()
    torch.autograd.grad(tk.act_mul(gate.detach(), up, "silu"), up, torch.ones(4, 6).to(gate))
    assert launched == ["flat_kernel", "flat_kernel"]  # grad·act(gate) is act_mul again


def saved_by(function: Callable[[], Tensor]) -> list[Tensor]:
    found: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: found.append(t) or t, lambda t: t):
        function()
    return found


def test_what_is_kept(device: torch.device) -> None:
    """The halves as they lie; of a fixed gate nothing of up."""
    x = halves(device, torch.float32, 4, 12)
    gate, up = x.chunk(2, -1)
    kept = saved_by(lambda: tk.act_mul(gate, up, "gelu"))
    assert [t.data_ptr() for t in kept] == [gate.data_ptr(), up.data_ptr()]
    kept = saved_by(lambda: tk.act_mul(gate.detach(), up, "gelu"))
    assert [t.data_ptr() for t in kept] == [gate.data_ptr()]


def test_in_place_and_pairs(device: torch.device) -> None:
    grad, gate, up = (halves(device, torch.float32, 3, n).detach() for n in (40, 40, 40))
    right = tk.act_mul_backward(grad, gate, up, "silu")
    a, b, c = grad.clone(), gate.clone(), up.clone()
    found = tk.act_mul_backward(a, b, c, "silu", out=(c, b))
    assert found[0] is c
    assert found[1] is b
    assert torch.equal(c, right[0])
    assert torch.equal(b, right[1])
    wide = torch.empty(3, 80, device=device)
    tk.act_mul_backward(grad, gate, up, "silu", out=wide.chunk(2, -1))
    assert torch.equal(wide, torch.cat(right, -1))
    out = torch.empty_like(gate)
    with pytest.raises(RuntimeError, match="'out' overlaps 'the other result'"):
        tk.act_mul_backward(grad, gate, up, "silu", out=(out, out))
    with pytest.raises(TypeError, match="'out' must be a pair of tensors"):
        tk.act_mul_backward(grad, gate, up, "silu", out=out)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="'gate' requires grad, but a call with out="):
        tk.act_mul_backward(grad, gate.requires_grad_(), up, "silu", out=(out, wide[:, :40]))


def test_vmap(device: torch.device) -> None:
    gate, up = (halves(device, torch.float64, *shape).detach() for shape in ((5, 2, 3), (3, 5)))
    per = torch.func.vmap(lambda g, u: tk.act_mul(g, u, "silu"), (0, 1))
    eager = torch.func.vmap(lambda g, u: torch.nn.functional.silu(g) * u, (0, 1))
    torch.testing.assert_close(per(gate, up), eager(gate, up))

    def loss(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
        return lambda g, u: function(g, u).square().sum()

    ours = torch.func.grad(loss(lambda g, u: tk.act_mul(g, u, "silu")), (0, 1))
    theirs = torch.func.grad(loss(lambda g, u: torch.nn.functional.silu(g) * u), (0, 1))
    found = torch.func.vmap(ours, (0, 1))(gate, up)
    for mine, right in zip(found, torch.func.vmap(theirs, (0, 1))(gate, up)):
        torch.testing.assert_close(mine, right)
    numbers = gate[:, 0, 0].half()  # without dimensions, they promote nothing
    results = torch.func.vmap(lambda g, n: tk.act_mul_backward(g, n, g, "none"))(gate, numbers)
    single = tk.act_mul_backward(gate[0], numbers[0], gate[0], "none")
    for many, one in zip(results, single):
        assert many.dtype == one.dtype == torch.float64
        assert torch.equal(many[0], one)


def test_numbers_on_the_cpu_join(device: torch.device) -> None:
    grad = halves(device, torch.float32, 2, 3).detach()
    number = torch.tensor(0.5, dtype=torch.float64)
    for args in ((grad, number, grad), (grad, grad, number)):
        found = tk.act_mul_backward(*args, "relu")
        assert all(t.device == grad.device and t.dtype == torch.float32 for t in found)
    leaf = number.requires_grad_()
    tk.act_mul(grad, leaf, "relu").sum().backward()
    torch.testing.assert_close(leaf.grad, torch.relu(grad).sum().double().cpu())


# ---- compiled ----


def compiled(function: Callable[[], object]) -> list[tuple[str, Counter, Counter]]:
    """The name, loads and stores, bits → how many, of each kernel."""
    with cross_compile.compiling(90) as launches:
        function()
    found = []
    for launch in launches:
        assert launch.error is None
        (code,) = machine_code.of_triton([(launch.cubin, launch.shared)], "sm_90")
        assert code.spills == 0
        found.append((launch.kernel, Counter(code.loads), Counter(code.stores)))
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("columns", [128, 1008, 11008])
def test_halves_are_accessed_in_16_bytes(columns: int, dtype: torch.dtype) -> None:
    gate, up = torch.empty(64, 2 * columns, dtype=dtype, device="meta").chunk(2, -1)
    grad = torch.empty(64, columns, dtype=dtype, device="meta")
    forward, backward = compiled(
        lambda: (tk.act_mul(gate, up, "silu"), tk.act_mul_backward(grad, gate, up, "silu"))
    )
    assert forward[0] == "flat_kernel"
    assert backward[0] == "tiled_gradients_kernel"
    for _, loads, stores in (forward, backward):
        assert set(loads) == set(stores) == {"128"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_an_odd_count_keeps_vectors(dtype: torch.dtype) -> None:
    x, per_vector = torch.empty(1023, 1023, dtype=dtype, device="meta"), 16 // dtype.itemsize
    ((kernel, loads, stores),) = compiled(lambda: tk.act_mul_backward(x, x, x, "gelu"))
    assert kernel == "flat_gradients_kernel"
    assert loads == {"128": 3, str(8 * dtype.itemsize): 3 * per_vector}
    assert stores == {"128": 2, str(8 * dtype.itemsize): 2 * per_vector}


def test_a_transposed_gradient_is_read_by_vectors() -> None:
    gate = torch.empty(1024, 1024, dtype=torch.bfloat16, device="meta")
    ((_, loads, stores),) = compiled(lambda: tk.act_mul_backward(gate.t(), gate, gate, "silu"))
    assert set(loads) == set(stores) == {"128"}
