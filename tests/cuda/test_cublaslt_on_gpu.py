"""Variant "cublaslt" of the products on a GPU: the library itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cublaslt_calls import (
    ACTS,
    BRAIN,
    DOUBLE,
    FLOAT,
    HALF,
    afresh,
    forget,
    integers,
    moved,
    product,
)
from torch import Tensor

import cuda_reference
from compare.specs import product_bounds
from cuda_reference import _cublaslt_choices, _cublaslt_plans
from cuda_reference.ops.gemm_bias_act import _gemm_bias_act


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from afresh(monkeypatch)


def drawn(*shape: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


def errors(found: Tensor, right: Tensor) -> tuple[float, float]:
    """The largest error, absolute and relative to numbers past 1e-3."""
    off = (found.double() - right).abs()
    return off.max().item(), (off / right.abs().clamp_min(1e-3)).max().item()


@pytest.mark.gpu_only
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT, DOUBLE])
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("forced", [False, True])
def test_on_a_gpu_in_every_layout(
    forced: bool, act: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers whose products and sums are exact: what is left is the activation's error."""
    if forced:
        monkeypatch.setenv("CUDA_REFERENCE_NO_EPILOGUE", "1")
    for layout_a in ("rows", "columns", "padded", "strided"):
        for layout_b in ("rows", "columns", "padded"):
            for M, N, K in ((33, 65, 70), (64, 128, 72), (1, 9, 4), (9, 1, 4), (5, 3, 0)):
                a = moved(integers(M, K, dtype=dtype, device="cuda") / 4, layout_a)
                b = moved(integers(K, N, dtype=dtype, device="cuda"), layout_b)
                bias = integers(N, dtype=dtype, device="cuda")
                c = integers(M, N, dtype=dtype, device="cuda")
                more: dict[str, Any] = {"act": act, "alpha": 0.5, "beta": 2.0, "c": c}
                right = cuda_reference.gemm_bias_act(a, b, bias, **more)
                found = product(a=a, b=b, bias=bias, **more)
                if act in ("none", "relu", "leaky_relu"):
                    assert torch.equal(found, right), (layout_a, layout_b, M, N, K)
                else:
                    torch.testing.assert_close(found, right)


@pytest.mark.gpu_only
@pytest.mark.parametrize("op", ["gemm_bias_act", "linear_act", "linear_gelu"])
def test_check_on_a_gpu(op: str) -> None:
    command = ["-m", "compare", "check", op, "--impl", "cuda-gpu/cublaslt"]
    ran = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-3000:]


@pytest.mark.gpu_only
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize("act", ["none", "relu", "gelu_tanh", "silu"])
def test_nan_and_infinity_on_a_gpu(act: str, dtype: torch.dtype) -> None:
    a = torch.zeros(16, 64, dtype=dtype, device="cuda")
    a[:, 0] = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0] * 4)
    b = torch.zeros(64, 32, dtype=dtype, device="cuda")
    b[0] = 1
    bias = torch.zeros(32, dtype=dtype, device="cuda")
    right = cuda_reference.gemm_bias_act(a, b, bias, act=act)
    found = product(a=a, b=b, bias=bias, act=act)
    torch.testing.assert_close(found, right, equal_nan=True)


@pytest.mark.gpu_only
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_how_far_gelu_is_off_on_a_gpu(dtype: torch.dtype) -> None:
    """Of every number of 16 bits: the library's formula is its own."""
    every = torch.arange(-(2**15), 2**15, device="cuda").to(torch.int16).view(dtype)
    every = every[every.isfinite() & (every.abs() < 100)][: 2**15 // 64 * 64]
    a = torch.zeros(len(every), 16, dtype=dtype, device="cuda")
    a[:, 0] = every
    b = torch.zeros(16, 64, dtype=dtype, device="cuda")
    b[0] = 1
    bias = torch.zeros(64, dtype=dtype, device="cuda")
    found = product(a=a, b=b, bias=bias, act="gelu_tanh")[:, 0].double()
    right = torch.nn.functional.gelu(every.double(), approximate="tanh")
    off = (found - right).abs()
    rounding = (
        torch.finfo(dtype).eps / 2 * right.abs() + torch.finfo(dtype).smallest_normal * 2**-11
    )
    beyond = (off - rounding).clamp_min(0) / every.double().abs().clamp_min(1e-30)
    assert beyond.max().item() < product_bounds.U_GELU


@pytest.mark.gpu_only
def test_a_repeated_call_on_a_gpu_and_streams() -> None:
    a, b, bias = (drawn(*s, dtype=BRAIN) for s in ((256, 512), (512, 128), (128,)))
    right = torch.relu(a.double() @ b.double() + bias.double())
    for _ in range(3):
        found = product(a=a, b=b, bias=bias, act="relu")
        assert errors(found, right)[1] < 0.05
    assert len(_gemm_bias_act._known) == 1
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        found = product(a=a, b=b, bias=bias * 2, act="relu")
    torch.cuda.current_stream().wait_stream(side)
    assert (
        errors(
            found,
            torch.relu(right + bias.double()) * 0
            + torch.relu(a.double() @ b.double() + 2 * bias.double()),
        )[1]
        < 0.05
    )


@pytest.mark.gpu_only
def test_a_cuda_graph() -> None:
    a, b, bias = (drawn(*s, dtype=BRAIN) for s in ((256, 512), (512, 128), (128,)))
    for act in ("relu", "silu"):
        out = product(a=a, b=b, bias=bias, act=act)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            replayed = product(a=a, b=b, bias=bias, act=act)
        replayed.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(replayed, out)


@pytest.mark.gpu_only
def test_gradients_on_a_gpu() -> None:
    def gradients(variant: str | None) -> list[Tensor]:
        tensors = [drawn(*s, dtype=HALF).requires_grad_() for s in ((64, 96), (48, 96), (48,))]
        out = cuda_reference.linear_act(*tensors, act="gelu_tanh", variant=variant)
        out.float().sum().backward()
        return [t.grad for t in tensors if t.grad is not None]

    for found, right in zip(gradients("cublaslt"), gradients("wmma")):
        torch.testing.assert_close(found, right, rtol=2e-2, atol=5e-2)


@pytest.mark.gpu_only
def test_candidates_are_timed_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Built libraries stay where they are; choices go elsewhere.
    monkeypatch.setattr(
        _cublaslt_choices, "_file", lambda gpu, version: tmp_path / f"{version}.json"
    )
    monkeypatch.setenv("CUDA_REFERENCE_CUBLASLT_TUNE", "8")
    forget()
    a, b, bias = (drawn(*s, dtype=HALF) for s in ((333, 1023), (1023, 4097), (4097,)))
    right = cuda_reference.gemm_bias_act(a, b, bias, act="relu", variant="wmma")
    torch.testing.assert_close(
        product(a=a, b=b, bias=bias, act="relu"), right, rtol=2e-3, atol=2e-2
    )
    (choice,) = _cublaslt_choices._read(next(tmp_path.glob("*.json"))).values()
    monkeypatch.delenv("CUDA_REFERENCE_CUBLASLT_TUNE")
    forget()
    found = []
    checked = _cublaslt_plans.Plan.checked

    def noted(plan: Any, algorithm: bytes) -> Any:
        found.append((algorithm.hex(), checked(plan, algorithm)))
        return found[-1][1]

    monkeypatch.setattr(_cublaslt_plans.Plan, "checked", noted)
    torch.testing.assert_close(
        product(a=a, b=b, bias=bias, act="relu"), right, rtol=2e-3, atol=2e-2
    )
    ((algorithm, done),) = found
    assert algorithm == choice["algorithm"]
    assert done is not None
