"""load: what sources and calls are like where nobody wrote them for this project."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cached import needs_host_target

from cuda_reference import BuildError, load
from cuda_reference._extension import Extension

pytestmark = [
    needs_host_target,
    pytest.mark.usefixtures("own_library_cache", "forked_tools", "no_gpu"),
]

SOURCE = """\
#include <torch/extension.h>
#include <cuda_pipeline.h>

__global__ void twice_kernel(const float* x, float* y, int columns, int stride, int more) {
  for (int i = threadIdx.x; i < columns + more; i += 32)
    y[blockIdx.x * columns + i] = 2 * x[blockIdx.x * stride + i];
}

torch::Tensor twice(torch::Tensor x,
                    int64_t more) {
  TORCH_CHECK(x.dim() == 2, "twice: a matrix");
  auto y = torch::empty({x.size(0), x.size(1)}, x.options());
  twice_kernel < < < x.size(0), 32 >>> (
      x.data_ptr<float>(), y.data_ptr<float>(), x.size(1), x.stride(0), more);
  return y;
}

__global__ void staged_kernel(const float* x, float* y, int n) {
  __shared__ float tile[2][32];
  for (int k = 0; k < 2; ++k) {
    int i = 32 * k + threadIdx.x;
    if (i < n) __pipeline_memcpy_async(&tile[k][threadIdx.x], &x[i], 4);
    __pipeline_commit();
  }
  __pipeline_wait_prior(0);
  for (int i = threadIdx.x; i < n; i += 32) y[i] = tile[i / 32][threadIdx.x];
}

void staged(torch::Tensor x, torch::Tensor y) {
  staged_kernel<<<1, 32>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
}

__global__ void beside_kernel(float* y, int n) { y[n] = 1; }

torch::Tensor beside(torch::Tensor x) {
  auto y = torch::empty_like(x);
  beside_kernel<<<1, 1>>>(y.data_ptr<float>(), x.numel());
  return y;
}

void tiled(torch::Tensor x, torch::Tensor y);

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("twice", &twice);
  m.def("staged", &staged);
  m.def("beside", &beside);
  m.def("tiled", &tiled);
}
"""
TILED = """\
#include <torch/extension.h>
#include "tiles.cuh"
void tiled(torch::Tensor x, torch::Tensor y) {}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    (folder / "found.cu").write_text(SOURCE)
    (folder / "tiled.cu").write_text(TILED)
    (folder / "tiles.cuh").write_text("#pragma once\n#include <cute/tensor.hpp>\n")
    return folder


def loaded(folder: Path, *, sanitize: str | None = None) -> Extension:
    sources = [str(folder / "found.cu"), str(folder / "tiled.cu")]
    with pytest.warns(UserWarning, match=r"found\.cu:13: nvcc refuses < << with a blank"):
        return load("found", sources, sanitize=sanitize)


X = torch.arange(160.0).view(4, 40)[:, :33]


def test_a_source_that_cannot_be_is_left_out(folder: Path) -> None:
    """If another one exports the functions; what it defines says why when it is called."""
    module = loaded(folder)
    assert torch.equal(module.twice(X, 0), 2 * X)
    says = r"left out: tiles\.cuh:2: cute/tensor\.hpp: CuTe has no form for the CPU$"
    with pytest.raises(RuntimeError, match=says):
        module.tiled(X, X)
    with pytest.raises(BuildError, match=r"not build tiled\.cu for the host target: tiles\.cuh:2"):
        load("alone", [str(folder / "tiled.cu")])


@pytest.mark.parametrize("sanitize", ["watch", "address"])
def test_a_view_with_gaps_under_a_tool(folder: Path, sanitize: str) -> None:
    """It keeps its shape and strides there, and a gap between the elements is none of them."""
    module = loaded(folder, sanitize=sanitize)
    assert torch.equal(module.twice(X, 0), 2 * X)
    with pytest.raises(RuntimeError, match=r"^twice\(\) on x \[4, 33\]: ") as wrong:
        module.twice(X, 1)
    if sanitize == "watch":
        assert "out-of-bounds read of 4 bytes: x[0, 33], outside of x's " in str(wrong.value)
        assert "write of 4 bytes: the result of empty()[4, 0], " in str(wrong.value)
    else:
        assert "x[3, 33], outside of x's shape (4, 33), strides (40, 1)" in str(wrong.value)


def test_the_sanitizer_sees_beside_what_the_function_made(folder: Path) -> None:
    says = r"heap-buffer-overflow .*: the result of empty_like\(\)\[3\], outside of"
    with pytest.raises(RuntimeError, match=says):
        loaded(folder, sanitize="address").beside(torch.zeros(3))


def test_results_that_nobody_stored_show(folder: Path) -> None:
    """What torch::empty returns holds NaN."""
    y = loaded(folder).twice(torch.ones(3, 32), -1)
    assert y[:, -1].isnan().all()
    assert torch.equal(y[:, :-1], torch.full((3, 31), 2.0))


def test_a_copy_that_fills_all_of_its_place(folder: Path) -> None:
    """The rest that becomes zero is empty, and not past the end of the array."""
    x, y = torch.randn(64), torch.zeros(64)
    loaded(folder, sanitize="watch").staged(x, y)
    assert torch.equal(x, y)
