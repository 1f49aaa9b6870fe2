"""Sources that use cuBLAS and its kin beside kernels of their own, which run on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cuda_reference import load, load_inline
from cuda_reference._absent import declarations, first_call
from cuda_reference._compilers import BuildError
from cuda_reference._rewriting import Foreign, rewritten

pytestmark = pytest.mark.usefixtures("own_library_cache")

SHARED = """\
#pragma once
#include <cublas_v2.h>
#include <cublasLt.h>
#define CHECK_BLAS(status) cublasCheck((status), __FILE__, __LINE__)
static cublasHandle_t handle;
static cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
inline void cublasCheck(cublasStatus_t status, const char*, unsigned) {
  if (status != CUBLAS_STATUS_SUCCESS) throw 1;
}
__global__ void twice_kernel(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}
"""
KERNELS = """
void twice(const float* x, float* y, int n) {
  CHECK_BLAS(cublasCreate(&handle));
  CHECK_BLAS(cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH));
  twice_kernel<<<(n + 31) / 32, 32>>>(x, y, n);
}
void square(const float* x, float* y, int n) {
  const float one = 1, zero = 0;
  cublasLtMatmulDesc_t how;
  cublasLtMatmulDescCreate(&how, compute, CUDA_R_32F);
  CHECK_BLAS(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, x, n, x, n, &zero, y, n));
}
"""
X = torch.arange(9.0).view(3, 3)


def test_kernels_run_and_calls_of_the_library_raise() -> None:
    declared = "const float* x, float* y, int n"
    module = load_inline(SHARED + KERNELS, {"twice": declared, "square": declared}, name="mixed")
    y = torch.empty_like(X)
    module.twice(X, y, 9)
    assert torch.equal(y, 2 * X)
    with pytest.raises(RuntimeError, match=r"cublasSgemm\(\) has no form on the CPU: call what"):
        module.square(X, y, 3)
    module.twice(X, y, 9)


def test_in_a_source_for_torch_and_its_header(tmp_path: Path) -> None:
    (tmp_path / "shared.cuh").write_text(SHARED)
    (tmp_path / "mixed.cu").write_text(
        f'#include <torch/extension.h>\n#include "shared.cuh"\n{KERNELS}'
        "void call(torch::Tensor x, torch::Tensor y, bool blas) {\n"
        "  (blas ? square : twice)(x.data_ptr<float>(), y.data_ptr<float>(), blas ? 3 : 9);\n}\n"
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("call", &call); }\n'
    )
    module = load("mixed", [str(tmp_path / "mixed.cu")])
    y = torch.empty_like(X)
    module.call(X, y, False)
    assert torch.equal(y, 2 * X)
    with pytest.raises(RuntimeError, match=r"cublasSgemm\(\) has no form on the CPU"):
        module.call(X, y, True)


def test_a_line_keeps_its_number() -> None:
    source = "#include <cublas_v2.h>\ncublasHandle_t h;\nint f(float* x) { return nothing; }"
    module = load_inline(source, {"f": "float* x"}, name="lines")
    with pytest.raises(BuildError, match=r"lines\.cu:3: error: .*nothing"):
        module.f(X)


def test_what_is_declared() -> None:
    text = declarations("cublasHandle_t h; int cublasHandle; struct cublasOwn {}; cublasOwn(3);")
    assert "ABSENT_HANDLE(cublasHandle_t)" in text
    assert "cublasOwn" not in text
    assert "(cublasHandle)" not in text
    assert not declarations("// cublasSgemm(…)\nint cublas = 3;")
    assert "ABSENT_TEXT(cudnnGetErrorString)" in declarations("cudnnGetErrorString(status)")
    assert "ABSENT_RESULT(cublasLtMatmulAlgo_t)" in declarations("cublasLtMatmulAlgo_t algorithm;")
    alias = "#define make cublasLtCreate\n#define multiply cublasLtMatmul\nint x;"
    assert "ABSENT_SETTING(cublasLtCreate)" in declarations(alias)
    assert "ABSENT_FUNCTION(cublasLtMatmul)" in declarations(alias)
    assert first_call(alias) is None
    assert first_call("cublasCreate(&h);\ncublasSgemm(h);") == ("cublasSgemm", 18)


def test_a_dispensable_source_is_left_out_if_it_calls_the_library() -> None:
    """But not if it also launches kernels, which would be lost."""
    rewritten(SHARED, "x.cu", dispensable=True)  # makes handles only
    calls = f"{SHARED}{KERNELS[KERNELS.index('void square') :]}"
    with pytest.raises(Foreign, match=r"x\.cu:\d+: cublasSgemm has no form for the CPU"):
        rewritten(calls, "x.cu", dispensable=True)
    assert "ABSENT_FUNCTION(cublasSgemm)" in rewritten(SHARED + KERNELS, "x.cu", dispensable=True)


def test_a_launcher_of_a_source_that_was_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other functions work; its call names the source."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # nvcc may have no CuTe
    (tmp_path / "exports.cu").write_text(
        "#include <torch/extension.h>\n"
        "struct Sizes { int n; };\n"
        "template <typename T, typename I>\nvoid launch(const Sizes& of, T* y, cudaStream_t on);\n"
        "void call(torch::Tensor y, bool other) {\n"
        "  if (other) launch<float, int>({1}, y.data_ptr<float>(), 0);\n"
        "  else y.data_ptr<float>()[0] = 3;\n}\n"
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("call", &call); }\n'
    )
    (tmp_path / "launches.cu").write_text(
        "#include <cute/tensor.hpp>\nstruct Sizes { int n; };\n"
        "template <typename T, typename I> void launch(const Sizes& of, T* y, cudaStream_t on) {}\n"
        "template void launch<float, int>(const Sizes& of, float* y, cudaStream_t on);\n"
    )
    sources = [str(tmp_path / name) for name in ("exports.cu", "launches.cu")]
    module = load("parts", sources)
    y = torch.zeros(1)
    module.call(y, False)
    assert y.item() == 3
    says = r"crashed outside of its kernels: .*left out: launches\.cu:1: cute/tensor\.hpp: CuTe has"
    with pytest.raises(RuntimeError, match=says):
        module.call(y, True)
