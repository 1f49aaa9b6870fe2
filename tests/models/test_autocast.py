"""Under autocast: what is fused casts as torch's own products do, and what would not is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from written import Apply, inputs, kernels

import triton_kernels as tk
from triton_kernels import _operator
from triton_kernels.graph import matching

pytestmark = pytest.mark.usefixtures("fresh")

BF16 = torch.bfloat16
WRITTEN: dict[str, tuple[Callable[..., Any], list[tuple[str, str]]]] = {
    "gelu": (lambda m, x, y: F.gelu(F.linear(x, m.w, m.b)), [("linear_gelu", "gelu")]),
    "relu": (lambda m, x, y: F.relu(F.linear(x, m.v)), [("linear_act", "relu")]),
    "matmul": (lambda m, x, y: torch.tanh(x @ m.w), [("gemm_bias_act", "tanh")]),
    "two layers": (
        lambda m, x, y: F.linear(F.gelu(F.linear(x, m.w, m.b)), m.w, m.b).relu(),
        [("linear_gelu", "gelu"), ("linear_act", "relu")],
    ),
    "Llama": (
        lambda m, x, y: F.linear(F.silu(F.linear(x, m.w)) * F.linear(x, m.w, m.b), m.w),
        [("act_mul", "silu")],
    ),
    "residual of its dtype": (
        lambda m, x, y: F.relu(F.linear(x, m.w) + F.linear(y, m.w)),
        [("gemm_bias_act", "relu")],
    ),
}


def region(function: Callable[..., Any], device: str, **options: Any) -> Callable[..., Any]:
    def inside(m: Apply, x: Tensor, y: Tensor) -> Any:
        with torch.autocast(device, dtype=BF16, **options):
            return function(m, x, y)

    return inside


def trained(model: nn.Module, plain: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    lead = x.clone().requires_grad_()
    out = model(lead, y)
    weights = torch.linspace(-1, 1, out.numel(), device=x.device).view(out.shape)
    wanted = [lead, *plain.parameters()]
    grads = torch.autograd.grad(out, wanted, weights.to(out.dtype), allow_unused=True)
    return [out, *(grad for grad in grads if grad is not None)]


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "around"])
@pytest.mark.parametrize("name", WRITTEN)
def test_fused_and_right(name: str, inside: bool, device: torch.device) -> None:
    """With gradients, against float64; dtypes are those of the unfused module."""
    function, expected = WRITTEN[name]
    x, y = inputs(device)
    module = Apply(region(function, device.type) if inside else function).to(device)
    fused = tk.fuse(module, min_score=0)
    with torch.autocast(device.type, dtype=BF16, enabled=not inside):
        found, written = (trained(model, module, x, y) for model in (fused, module))
    assert kernels(fused.plan) == expected, fused.plan
    exact = Apply(function).to(device).double()
    right = trained(exact, exact, x.double(), y.double())
    for ours, theirs, wide in zip(found, written, right, strict=True):
        assert ours.dtype == theirs.dtype
        limit = 2 * (theirs.double() - wide).abs().max() + 2**-8 * wide.abs().max()
        assert (ours.double() - wide).abs().max() <= limit


LEFT: dict[str, tuple[Callable[..., Any], str]] = {
    "residual of float32": (lambda m, x, y: F.relu(F.linear(x, m.w) + y), "add is float32"),
    "row of float32": (lambda m, x, y: F.relu(F.linear(x, m.w) + m.b), "add is float32"),
    "float64": (lambda m, x, y: F.relu(F.linear(x.double(), m.w.double())), "relu"),
}


@pytest.mark.parametrize("name", LEFT)
def test_left(name: str, cpu: torch.device) -> None:
    function, reason = LEFT[name]
    module, (x, y) = Apply(region(function, "cpu")), inputs(cpu)
    fused = tk.fuse(module, min_score=0)
    out, right = fused(x, y), module(x, y)
    assert out.dtype == right.dtype
    torch.testing.assert_close(out, right)
    assert reason in str(fused.plan)


def test_a_region_that_ends_in_between(cpu: torch.device) -> None:
    def function(m: Apply, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=BF16):
            h = F.linear(x, m.w)
        return F.relu(h)

    module, (x, y) = Apply(function), inputs(cpu)
    fused = tk.fuse(module, min_score=0)
    assert torch.equal(fused(x, y), module(x, y))
    assert "autocast region begins or ends" in str(fused.plan)


def test_off_inside_of_on(cpu: torch.device) -> None:
    """Llama's rotary embedding does that."""
    module, (x, y) = Apply(region(WRITTEN["gelu"][0], "cpu", enabled=False)), inputs(cpu)
    fused = tk.fuse(module, min_score=0)
    with torch.autocast("cpu", dtype=BF16):
        out = fused(x, y)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, module(x, y))
    assert kernels(fused.plan) == [("linear_gelu", "gelu")]


def test_the_dtype_is_looked_at(cpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check a float32 residual would be rounded to bfloat16, and the result with it."""
    monkeypatch.setattr(matching.Matcher, "_check_lowered", lambda *_: None)
    module, (x, y) = Apply(region(LEFT["residual of float32"][0], "cpu")), inputs(cpu)
    assert tk.fuse(module, min_score=0)(x, y).dtype == BF16 != module(x, y).dtype


@pytest.mark.parametrize("rest", ["eager", "aot_eager"])
def test_the_backend(rest: str, cpu: torch.device) -> None:
    module, (x, y) = Apply(WRITTEN["two layers"][0]), inputs(cpu)
    options = {"min_score": 0, "rest": rest}
    compiled = torch.compile(module, backend="triton_kernels", options=options)
    with torch.autocast("cpu", dtype=BF16):
        found, right = (trained(model, module, x, y) for model in (compiled, module))
    for ours, theirs in zip(found, right, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=2**-6, atol=2**-6)


def test_weights_are_cast_while_autocast_is_on(
    cpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cache serves torch's own functions, and those only where autocast is not left out."""
    left_out = []

    def asked(t: torch.Tensor) -> bool:
        key = torch._C.DispatchKey.AutocastCPU
        left_out.append(torch._C._dispatch_tls_is_dispatch_key_excluded(key))
        return False

    monkeypatch.setattr(_operator, "_cached_by_autocast", asked)
    x, w = torch.randn(3, 4), nn.Parameter(torch.randn(5, 4))
    with torch.autocast("cpu", dtype=BF16):
        assert tk.linear_act(x, w, act="relu").dtype == BF16
    assert left_out == [False, False]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="autocast's cache is on CUDA")
def test_weights_are_cast_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two calls in one region read the same copy, which torch's own product made."""
    x, w = torch.randn(16, 16, device="cuda"), nn.Parameter(torch.randn(16, 16, device="cuda"))
    with torch.autocast("cuda", dtype=BF16), torch.no_grad():
        tk.linear_act(x, w, act="relu")
        torch.cuda.synchronize()
        with torch.profiler.profile() as profile:
            tk.linear_act(x, w, act="relu")
            F.linear(x, w)
    casts = [e for e in profile.events() if e.name == "aten::_to_copy"]
    assert len(casts) == 2  # of x, by either
