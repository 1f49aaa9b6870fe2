"""precision=None: as torch's own float32 products are set, by either of its settings."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import cuda_reference
import triton_kernels as tk
from cuda_reference import _build
from triton_kernels.graph import explain, register

OLD: dict[str, Callable[[], Any]] = {
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "allow_tf32": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
}
NEW: dict[str, Callable[[], Any]] = {
    "matmul": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "all": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
}
GENERATOR = torch.Generator().manual_seed(0)
X, WEIGHT = torch.randn(33, 65, generator=GENERATOR), torch.randn(70, 65, generator=GENERATOR)


@pytest.fixture(autouse=True, scope="module")
def _backend() -> None:
    """By name, also where the package is not installed."""
    register()


# What takes a precision, on x and a weight [O, I].
CALLS: dict[str, Callable[..., Tensor]] = {
    "gemm_bias_act": lambda x, w, **how: tk.gemm_bias_act(x, w.t(), **how),
    "linear_act": lambda x, w, **how: tk.linear_act(x, w, act="relu", **how),
    "linear_gelu": lambda x, w, **how: tk.linear_gelu(x, w, **how),
    "LinearAct": lambda x, w, **how: layer(tk.nn.LinearAct, w, act="relu", **how)(x),
    "LinearGELU": lambda x, w, **how: layer(tk.nn.LinearGELU, w, **how)(x),
}


def layer(kind: Any, weight: Tensor, **options: Any) -> Any:
    made = kind(weight.shape[1], weight.shape[0], bias=False, device=weight.device, **options)
    made.weight.data = weight
    return made


@pytest.fixture
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Nothing set, and afterwards as before."""
    matmul = torch.backends.cuda.matmul
    was = matmul.fp32_precision
    torch.set_float32_matmul_precision("highest")
    matmul.fp32_precision = "none"
    yield
    torch.backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("high" if was == "tf32" else "highest")
    matmul.fp32_precision = was


@pytest.mark.parametrize("setting", [*OLD, *NEW])
def test_none_is_what_torch_is_set_to(cpu: torch.device, setting: str) -> None:
    for name, call in CALLS.items():
        plain, coarse = call(X, WEIGHT, precision="ieee"), call(X, WEIGHT, precision="tf32")
        assert not torch.equal(plain, coarse)
        assert torch.equal(call(X, WEIGHT), plain), name
    (OLD | NEW)[setting]()
    for name, call in CALLS.items():
        assert torch.equal(call(X, WEIGHT), call(X, WEIGHT, precision="tf32")), name
        assert torch.equal(
            call(X, WEIGHT, precision="ieee"), CALLS[name](X, WEIGHT, precision="ieee")
        )
        assert not torch.equal(call(X, WEIGHT, precision="ieee"), call(X, WEIGHT)), name


def test_the_setting_of_a_call_is_undone(cpu: torch.device) -> None:
    """Each way back: a call asks anew."""
    plain = tk.gemm_bias_act(X, WEIGHT.t())
    for set_to, back in (
        ("high", lambda: torch.set_float32_matmul_precision("highest")),
        ("matmul", lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "ieee")),
    ):
        (OLD | NEW)[set_to]()
        assert not torch.equal(tk.gemm_bias_act(X, WEIGHT.t()), plain)
        back()
        assert torch.equal(tk.gemm_bias_act(X, WEIGHT.t()), plain)


@pytest.mark.parametrize("setting", ["high", "matmul"])
def test_other_dtypes_and_autocast_have_no_choice(cpu: torch.device, setting: str) -> None:
    (OLD | NEW)[setting]()
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        x, weight = X.to(dtype), WEIGHT.to(dtype)
        assert tk.linear_gelu(x, weight).dtype == dtype
    with torch.autocast("cpu", torch.bfloat16):
        assert tk.linear_gelu(X, WEIGHT).dtype == torch.bfloat16
        assert tk.gemm_bias_act(X, WEIGHT.t()).dtype == torch.bfloat16


def test_a_backward_pass_has_the_precision_of_its_forward(cpu: torch.device) -> None:
    def gradient(precision: str | None, *, then: Callable[[], Any] = lambda: None) -> Tensor:
        x = X.clone().requires_grad_()
        out = tk.linear_gelu(x, WEIGHT, precision=precision)
        then()
        (found,) = torch.autograd.grad(out, x, torch.ones_like(out))
        return found

    plain, coarse = gradient("ieee"), gradient("tf32")
    assert not torch.equal(plain, coarse)
    assert torch.equal(gradient(None, then=OLD["high"]), plain)
    assert torch.equal(
        gradient(None, then=lambda: torch.set_float32_matmul_precision("highest")), coarse
    )


@pytest.mark.parametrize("backend", ["eager", "triton_kernels"])
@pytest.mark.parametrize("setting", ["high", "matmul"])
def test_torch_compile_compiles_anew(
    cpu: torch.device, fresh: None, backend: str, setting: str
) -> None:
    """A call that is traced, and a layer that the backend finds."""
    compiled = torch.compile(
        lambda x, w: tk.linear_act(x, w, act="relu"), backend=backend, fullgraph=True
    )
    plain, coarse = (tk.linear_act(X, WEIGHT, act="relu", precision=p) for p in ("ieee", "tf32"))
    with torch.no_grad():
        assert torch.equal(compiled(X, WEIGHT), plain)
        (OLD | NEW)[setting]()
        assert torch.equal(compiled(X, WEIGHT), coarse)
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        assert torch.equal(compiled(X, WEIGHT), plain)


def test_a_layer_that_the_backend_fuses_follows_the_setting(cpu: torch.device, fresh: None) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(65, 70), torch.nn.ReLU())
    weight, bias = net[0].weight, net[0].bias
    compiled = torch.compile(net, backend="triton_kernels", options={"min_score": 0})
    with torch.no_grad():
        for set_to, precision in ((None, "ieee"), ("high", "tf32")):
            if set_to:
                OLD[set_to]()
            expected = tk.linear_act(X, weight, bias, act="relu", precision=precision)
            assert torch.equal(compiled(X), expected), precision


def test_no_speed_was_measured_of_tf32(cpu: torch.device, fresh: None) -> None:
    """The figures of float32 layers are those of "ieee" products."""
    net = torch.nn.Sequential(torch.nn.Linear(65, 70), torch.nn.ReLU())
    with torch.no_grad():
        assert "of eager's speed" in str(explain(net, X))
        torch.set_float32_matmul_precision("high")
        found = str(explain(net, X))
    assert "not measured for float32 on capability 90 in precision tf32" in found


def test_programs_that_were_saved_without_a_precision(cpu: torch.device) -> None:
    """Their linear_gelu is "ieee", whatever is set; one that is saved now keeps what was set."""
    plain, coarse = (tk.linear_gelu(X, WEIGHT, precision=p) for p in ("ieee", "tf32"))

    class Layer(torch.nn.Module):
        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            return tk.linear_gelu(x, weight)

    OLD["high"]()
    assert torch.equal(torch.ops.triton_kernels.linear_gelu(X, WEIGHT, None, "none"), plain)
    with torch.no_grad():
        program = torch.export.export(Layer(), (X, WEIGHT))
        file = io.BytesIO()
        torch.export.save(program, file)
        file.seek(0)
        torch.set_float32_matmul_precision("highest")
        assert torch.equal(torch.export.load(file).module()(X, WEIGHT), coarse)


def test_modules_say_theirs(cpu: torch.device) -> None:
    for kind in (tk.nn.LinearAct, tk.nn.LinearGELU):
        assert "precision='tf32x3'" in repr(kind(4, 4, precision="tf32x3"))
        assert "precision" not in repr(kind(4, 4))
        with pytest.raises(ValueError, match="argument 'precision' must be one of 'ieee'"):
            kind(4, 4, precision="fp32")
    block = tk.nn.MLP(4, 8, 4, precision="tf32")
    assert (block.fc1.precision, block.fc2.precision) == ("tf32", "tf32")


@pytest.mark.skipif(bool(_build.unavailable("host")), reason="no C++ compiler")
@pytest.mark.parametrize("setting", ["high", "matmul"])
def test_the_cuda_side_follows_the_setting(setting: str) -> None:
    calls: list[Callable[..., Tensor]] = [
        lambda **how: cuda_reference.gemm_bias_act(X, WEIGHT.t(), **how),
        lambda **how: cuda_reference.linear_act(X, WEIGHT, act="relu", **how),
        lambda **how: cuda_reference.linear_gelu(X, WEIGHT, **how),
    ]
    found = [[call(precision=p) for p in ("ieee", "tf32")] for call in calls]
    for call, (plain, coarse) in zip(calls, found):
        assert torch.equal(call(), plain)
        assert not torch.equal(plain, coarse)
    (OLD | NEW)[setting]()
    for call, (_, coarse) in zip(calls, found):
        assert torch.equal(call(), coarse)
        assert torch.equal(call(precision="ieee"), found[calls.index(call)][0])
