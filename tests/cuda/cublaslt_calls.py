"""Products by variant "cublaslt", for their tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fake_cublaslt import Fake
from torch import Tensor

import cuda_reference
from cuda_reference import _cublaslt, _cublaslt_choices, _cublaslt_plans
from cuda_reference import _cublaslt_library as lt
from cuda_reference.ops import gemm_bias_act as gemm_module
from cuda_reference.ops import linear_act as linear_module

HALF, BRAIN, FLOAT, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
ACTS = ("none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "leaky_relu")


def forget() -> None:
    """All that is kept between calls."""
    _cublaslt.settings.cache_clear()
    _cublaslt_plans._PLANS.clear()
    _cublaslt_choices._choices.cache_clear()
    for op in (gemm_module._gemm_bias_act, linear_module._linear_act, linear_module._linear_gelu):
        op._known.clear()


def afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test begins with, and leaves."""
    for name in ("CUDA_REFERENCE_NO_EPILOGUE", "CUDA_REFERENCE_CUBLASLT_TUNE"):
        monkeypatch.delenv(name, raising=False)
    forget()
    yield
    forget()


def moved(t: Tensor, layout: str) -> Tensor:
    """The same values, lying otherwise."""
    rows, columns = t.shape
    if layout == "columns":
        return t.t().contiguous().t()
    if layout == "padded":
        return torch.empty(rows, columns + 8, dtype=t.dtype, device=t.device)[:, :columns].copy_(t)
    if layout == "strided":
        return torch.empty(rows, 2 * columns, dtype=t.dtype, device=t.device)[:, ::2].copy_(t)
    assert layout == "rows"
    return t


def integers(*shape: int, dtype: torch.dtype = FLOAT, device: str = "cpu") -> Tensor:
    """Numbers whose products and sums are exact in every dtype."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-2, 3, shape, generator=generator).to(device, dtype)


def product(**options: Any) -> Tensor:
    return cuda_reference.gemm_bias_act(**{"variant": "cublaslt", **options})


def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Fake]:
    """Makes a stand-in for the library, which takes tensors on the CPU."""

    def made(**told: Any) -> Fake:
        fake = Fake(**told)
        library = lt.Library(fake, fake)
        monkeypatch.setattr(lt, "library", lambda: library)
        monkeypatch.setattr(_cublaslt, "check_device", lambda op, device: None)
        forget()
        return fake

    return made
