"""Parts of sources: nvcc compiles the kernels that a call needs, not all of an op."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from cached import needs_host_target, needs_nvcc
from kept_calls import forget

import cuda_reference
from cuda_reference import _activations, _build, _compilers
from cuda_reference._launch import DTYPE_CODE
from cuda_reference._rungs import CCall

PLAIN, BF16 = _build.PLAIN, _build.rungs_of(DTYPE_CODE[torch.bfloat16])
INVALID_VALUE = 1  # cudaErrorInvalidValue
SOURCE = """
#include "crosscheck.cuh"
__global__ void fill(int* out) { *out = 42; }
extern "C" int run(int* out, cudaStream_t stream) {
  LAUNCH(fill, 1, 1, 0, stream, out);
  return cudaGetLastError();
}
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of a test's own, for libraries of one architecture."""
    monkeypatch.setenv("CUDA_REFERENCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")


def kernels(library: Path) -> set[str]:
    said = subprocess.run(["nm", "-C", library], capture_output=True, text=True, check=True).stdout
    return {line.split("(")[0] for line in said.splitlines() if "_kernel<" in line}


@needs_nvcc
@pytest.mark.parametrize("part", [PLAIN, BF16])
def test_a_part_has_no_other_kernels(part: str, cache: None) -> None:
    path = _build.build(["square"], "cuda", part=part)["square"]
    names = kernels(path)
    plain = {name for name in names if "square_" in name}
    bf16 = {name for name in names if "__nv_bfloat16" in name}
    assert names == (plain if part == PLAIN else bf16)
    assert any("tile_kernel" in name for name in bf16) == (part == BF16)
    library = ctypes.CDLL(str(path))
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.ones(1, dtype=dtype, device="cuda" if torch.cuda.is_available() else "cpu")
        call, at = CCall(0, DTYPE_CODE[dtype], 1, 0, 1), ctypes.c_void_p(x.data_ptr())
        status = library.square_rung(ctypes.byref(call), at, at, None)
        left_out = part == PLAIN or dtype != torch.bfloat16
        assert (status == INVALID_VALUE) == left_out  # without a GPU the other one fails, too


@needs_nvcc
def test_a_whole_library_in_the_cache_serves_its_parts(tmp_path: Path, cache: None) -> None:
    csrc = tmp_path / "csrc"
    csrc.mkdir()
    (csrc / "sample.cu").write_text(SOURCE)

    def built(part: str | None = None) -> Path:
        return _build.build(["sample"], "cuda", csrc=csrc, part=part)["sample"]

    first = built(PLAIN)
    assert built(PLAIN) == first
    whole = built()
    assert whole != first
    assert built(PLAIN) == built(BF16) == whole


@needs_host_target
def test_calls_ask_for_their_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    forget()  # a kept call asks for nothing
    asked: list[str | None] = []
    library = _activations.library

    def noted(stem: str, act: str, target: _compilers.Target, part: str | None = None) -> Any:
        asked.append(part)
        return library(stem, act, target, part)

    monkeypatch.setattr(_activations, "library", noted)
    x = torch.ones(3, 43, dtype=torch.bfloat16)
    for variant, part in [(None, PLAIN), ("bf16x2", PLAIN), ("scalar", BF16), ("strided", BF16)]:
        cuda_reference.add(x, x, variant=variant)
        assert asked.pop() == part
    cuda_reference.act_mul(x, x, "silu")
    cuda_reference.act_mul(x.t(), x.t(), "silu", variant="auto")
    cuda_reference.sum_to(x, (43,))
    cuda_reference.sum_to(x, (43,), dtype=torch.float32, variant="lanes")
    cuda_reference.act_backward(x, x, "relu")
    cuda_reference.act_backward(x, x, "relu", variant="pack128")
    assert asked == [PLAIN, BF16] * 3
