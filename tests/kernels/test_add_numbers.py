"""add of numbers, in either place or in both, as torch.add takes them; on both sides alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import triton_kernels
from compare import numerics
from compare.cases import DTYPES
from compare.checking.implementations import MODES, implementations
from compare.ops import SPECS

Add = Callable[..., Tensor]


@pytest.fixture
def add(mode: str) -> Add:
    return implementations(SPECS["add"], [mode])[0]


@pytest.fixture
def device(mode: str) -> torch.device:
    return torch.device(MODES[mode][1])


def values(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor([0, 1, 3, 100, 127], dtype=dtype, device=device)


@pytest.mark.parametrize("number", [2, -3, 0.1, -0.0, True, False, 300, 1e300, float("inf")])
def test_a_number_promotes_as_in_torch(number: Any, add: Add, device: torch.device) -> None:
    for dtype in DTYPES.values():
        y = values(dtype, device)
        out = add(number, y, alpha=3)
        assert (out.dtype, out.shape) == (torch.result_type(number, y), y.shape)
        right = SPECS["add"].oracle(number, y, alpha=3)
        assert bool(numerics.same_bits(out, right).all()), (dtype, number)


def test_alpha_multiplies_the_tensor_and_there_is_one_rounding(
    add: Add, device: torch.device
) -> None:
    y = torch.tensor([1 + 2.0**-12], device=device)
    assert add(-1.0, y, alpha=1 - 2.0**-12).item() == -(2.0**-24)  # 0 with two roundings
    half = torch.tensor([1.0], dtype=torch.float16, device=device)
    assert add(2049.3, half).item() == 2050  # 2049.3 + 1 rounded once; 2052 by way of 2050
    assert add(-0.0, torch.tensor([-0.0], device=device)).signbit().item()


def test_out_may_be_the_tensor_itself(add: Add, device: torch.device) -> None:
    base = torch.ones(4, 10, device=device)
    y = base.t()[::3]
    assert add(2.0, y, alpha=-5, out=y) is y
    assert base.t()[::3].tolist() == [[-3.0] * 4] * 4
    assert base.t()[1::3].tolist() == [[1.0] * 4] * 3
    out = torch.empty(4, device=device)
    assert add(1, y[0], out=out) is out
    assert out.tolist() == [-2.0] * 4
    with pytest.raises(RuntimeError, match=r"^add\(\): argument 'out' overlaps 'y'"):
        add(2.0, base[0, :4], out=base[0, 1:5])
    with pytest.raises(TypeError, match=r"^add\(\): argument 'out' has dtype|argument 'out' is"):
        add(0.5, torch.ones(4, dtype=torch.int32, device=device), out=torch.ones(4).int())


def test_wrong_numbers(add: Add, device: torch.device) -> None:
    y, whole = torch.ones(4, device=device), torch.ones(4, dtype=torch.int32, device=device)
    wrong: list[tuple[tuple[Any, Any], dict[str, Any], type[Exception], str]] = [
        ((2j, y), {}, TypeError, "'x' must be a torch.Tensor, but got complex"),
        (("2", y), {}, TypeError, "'x' must be a torch.Tensor, but got str"),
        ((2.0, [1.0]), {}, TypeError, "'y' must be a torch.Tensor, but got list"),
        ((10**400, y), {}, ValueError, "'x' is .*too large for float64"),
        ((2, whole), {"alpha": 0.5}, TypeError, "'alpha' must be an integer for .*int32"),
        ((2.0, y), {"alpha": True}, TypeError, "'alpha' must be a number, but got bool"),
        ((2, whole.bool()), {}, TypeError, "'y' .* torch.bool"),
        ((True, False), {}, TypeError, "bool"),
    ]
    for args, options, error, words in wrong:
        with pytest.raises(error, match=rf"^add\(\): .*{words}"):
            add(*args, **options)


@pytest.mark.parametrize("mode", ["triton-interpreted", "cuda-host"], indirect=True)
def test_two_numbers_make_a_tensor_on_the_cpu(mode: str, add: Add) -> None:
    for args in ((1, 2), (1.5, 2), (2, -1.5), (True, 2), (2.5, True), (5, -(2**63))):
        out, right = add(*args), torch.add(*args)
        assert (out.dtype, out.shape, out.device) == (right.dtype, right.shape, right.device)
        assert torch.equal(out, right)
    assert add(1, 2**63 + 2, alpha=2).item() == 5  # integers wrap
    with torch.device("meta"):
        assert add(1, 2, alpha=3).item() == 7


@pytest.mark.parametrize("mode", ["triton-interpreted", "triton-compiled"], indirect=True)
def test_variants_of_the_triton_side(mode: str, device: torch.device) -> None:
    y = torch.ones(9, dtype=torch.float16, device=device)
    for implementation in implementations(SPECS["add"], [mode])[1:]:
        if implementation.variant and implementation.variant.startswith("f16"):
            assert implementation(2.0, y, alpha=3).tolist() == [5.0] * 9


@pytest.mark.parametrize("mode", ["cuda-host", "cuda-gpu"], indirect=True)
def test_variants_of_the_cuda_side_take_two_tensors(mode: str, device: torch.device) -> None:
    y = torch.ones(9, device=device)
    f32 = next(
        implementation
        for implementation in implementations(SPECS["add"], [mode])
        if implementation.variant == "f32"
    )
    for args, name in (((2.0, y), "x"), ((y, 2.0), "y")):
        with pytest.raises(
            ValueError, match=rf"^add\(\): variant 'f32' .* but '{name}' is a number"
        ):
            f32(*args)


# ---- who follows a call ----


@pytest.fixture
def interpreted() -> Iterator[None]:
    with triton_kernels.interpret():
        yield


def test_vmap_and_gradients(interpreted: None) -> None:
    y = torch.arange(6.0).view(2, 3).requires_grad_()
    triton_kernels.add(2.0, y, alpha=-3).sum().backward()
    assert y.grad is not None
    assert y.grad.tolist() == [[-3.0] * 3] * 2
    rows = torch.vmap(lambda row: triton_kernels.add(1, row, alpha=2))(y.detach())
    assert torch.equal(rows, 1 + 2 * y.detach())
    slopes = torch.func.jacrev(lambda y: triton_kernels.add(1.5, y, alpha=4))(torch.ones(3))
    assert torch.equal(slopes, 4 * torch.eye(3))


def test_compiled_and_exported(interpreted: None) -> None:
    class Shifted(torch.nn.Module):
        def forward(self, y: Tensor) -> Tensor:
            return triton_kernels.add(0.5, y, alpha=3)

    y = torch.arange(3, dtype=torch.int32)
    torch._dynamo.reset()
    compiled = torch.compile(Shifted(), backend="aot_eager", fullgraph=True)
    program = torch.export.export(Shifted(), (y,))
    for made in (compiled(y), program.module()(y)):
        assert made.dtype == torch.float32
        assert made.tolist() == [0.5, 3.5, 6.5]
    called = {str(n.target) for n in program.graph.nodes if n.op == "call_function"}
    assert "triton_kernels.add_to_scalar.default" in called
