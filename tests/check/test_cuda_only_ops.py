"""Kernels behind operators that Python registers, for CUDA alone or for all devices, on no GPU."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from compare import compile_report, cross_check

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="such operators run on it")


@triton.jit
def twice_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + lane, 2 * tl.load(x_ptr + lane, mask=lane < n), mask=lane < n)


def launched(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    twice_kernel[(triton.cdiv(x.numel(), 16),)](x, out, x.numel(), BLOCK=16)
    return out


library = torch.library.Library("crosscheck_cuda_only", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", launched, "CUDA")


@torch.library.custom_op("crosscheck_cuda_only::custom", mutates_args=(), device_types="cuda")
def custom(x: torch.Tensor) -> torch.Tensor:
    return launched(x)


@custom.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("crosscheck_cuda_only::everywhere", mutates_args=())
def everywhere(x: torch.Tensor) -> torch.Tensor:
    return launched(x)


@everywhere.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


custom.register_autograd(lambda _, gradient: custom(gradient.contiguous()))


def with_gradient(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.detach().requires_grad_()
    y = custom(x)
    return y.detach(), torch.autograd.grad(y.square().sum(), x)[0]


X = torch.randn(37)


def test_they_run_in_the_interpreter() -> None:
    given = {"oracle": lambda x: 2 * x, "inputs": [(X,)]}
    assert cross_check(triton=torch.ops.crosscheck_cuda_only.twice, **given)
    assert cross_check(triton=lambda x: torch.ops.crosscheck_cuda_only.twice.default(x), **given)
    report = cross_check(triton=with_gradient, oracle=lambda x: (2 * x, 8 * x), inputs=[(X,)])
    assert report, report
    assert not report.no_launch
    # Elsewhere they are what they were.
    with pytest.raises(NotImplementedError, match="'CPU' backend"):
        custom(X)


def test_they_compile_on_tensors_without_memory() -> None:
    compiled = compile_report(custom, (X.to("meta"),), archs=["sm_90"])
    assert compiled, compiled
    assert "twice_kernel" in str(compiled)


def test_their_fakes_do_not_hide_kernels_from_the_compiler() -> None:
    compiled = compile_report(everywhere, (X.to("meta"),), archs=["sm_90"])
    assert compiled, compiled
    assert "twice_kernel" in str(compiled)
    # Elsewhere the fake is what runs.
    with torch.device("meta"):
        assert everywhere(torch.empty(3)).shape == (3,)


def test_their_gradients_compile() -> None:
    compiled = compile_report(with_gradient, (X.to("meta"),), archs=["sm_90"])
    assert compiled, compiled
    assert "twice_kernel" in str(compiled)
