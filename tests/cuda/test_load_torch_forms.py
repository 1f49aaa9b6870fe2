"""load: wrappers as extension packages have them: AT_DISPATCH, guards, loops, old names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cached import needs_host_target

from cuda_reference import load
from cuda_reference._extension import Extension

pytestmark = [
    needs_host_target,
    pytest.mark.usefixtures("own_library_cache", "forked_tools", "no_gpu"),
]

SOURCE = r"""
#include <torch/extension.h>
#include <ATen/AccumulateType.h>
#include <ATen/ceil_div.h>
#include <ATen/cuda/Atomic.cuh>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/DeviceUtils.cuh>
#include <ATen/cuda/detail/KernelUtils.h>
#include <c10/cuda/CUDAGuard.h>

#define CHECK_CUDA(x) TORCH_CHECK(x.type().is_cuda(), #x " must be a CUDA tensor")

// ---- arithmetic of scalar_t with literals of other types

template <typename scalar_t>
__device__ scalar_t leaky_of(scalar_t x, scalar_t slope) { return (x > 0.0) ? x : x * slope; }

template <typename scalar_t>
__global__ void leaky_kernel(const scalar_t* x, scalar_t* y, float slope, int n) {
  CUDA_KERNEL_LOOP(i, n) {
    scalar_t v = leaky_of<scalar_t>(x[i], slope);
    v += 1;
    v = 2.0f * v - scalar_t(1.0);
    if (v != v || v == scalar_t(0)) continue;
    y[i] = v / 2;
  }
}
torch::Tensor leaky(const torch::Tensor& x,  // any shape, dense
                    double slope) {
  CHECK_CUDA(x);
  const at::cuda::OptionalCUDAGuard device_guard(device_of(x));
  at::DeviceGuard guard(x.device());
  TORCH_CHECK(at::cuda::detail::canUse32BitIndexMath(x));
  auto y = torch::zeros_like(x);
  const int blocks = std::min(at::ceil_div<int>(x.numel(), 64),
                              at::cuda::getCurrentDeviceProperties()->multiProcessorCount);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.type(), "leaky", [&] {
    leaky_kernel<scalar_t><<<blocks, 64, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), slope, x.numel());
  });
  AT_CUDA_CHECK(cudaGetLastError());
  return y;
}

// ---- a sum per row in the accumulate type; a dynamic shared array of the file, cast

extern __shared__ char scratch[];

template <typename scalar_t>
__global__ void row_sums_kernel(const scalar_t* x, scalar_t* out, int columns) {
  using acc_t = at::acc_type<scalar_t, true>;
  acc_t* partial = (acc_t*)scratch;
  acc_t sum = 0, largest = at::numeric_limits<acc_t>::lower_bound();
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    sum += x[blockIdx.x * columns + i];
    largest = max(largest, static_cast<acc_t>(x[blockIdx.x * columns + i]));
  }
#pragma unroll
  for (int step = C10_WARP_SIZE / 2; step; step /= 2) {
    sum += WARP_SHFL_DOWN(sum, step);
    largest = max(largest, WARP_SHFL_XOR(largest, step));
  }
  if (threadIdx.x % 32 == 0) {
    partial[threadIdx.x / 32] = sum;
    reinterpret_cast<acc_t*>(scratch)[2 + threadIdx.x / 32] = largest;
  }
  __syncthreads();
  if (threadIdx.x < 2)
    gpuAtomicAdd(&out[blockIdx.x], scalar_t(threadIdx.x ? max(partial[2], partial[3])
                                                        : partial[0] + partial[1]));
}
template <typename T> size_t bytes() { return 4 * sizeof(at::acc_type<T, true>); }
at::Tensor row_sums(at::Tensor x) {
  auto out = at::zeros({x.size(0)}, x.options());
  AT_DISPATCH_SWITCH(x.scalar_type(), "row_sums",
                     AT_DISPATCH_CASE_FLOATING_TYPES([&] {
                       row_sums_kernel<<<x.size(0), 64, bytes<scalar_t>()>>>(
                           x.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), x.size(1));
                     })
                     AT_DISPATCH_CASE(at::ScalarType::Half, [&] {
                       row_sums_kernel<<<x.size(0), 64, bytes<scalar_t>()>>>(
                           x.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), x.size(1));
                     }));
  return out;
}

// ---- the runtime around a launch; a table in constant memory

__constant__ float weights[4];
__global__ void weighted_kernel(const float* x, float* y) {
  y[threadIdx.x] = weights[threadIdx.x % 4] * x[threadIdx.x];
}
torch::Tensor weighted(torch::Tensor x, torch::Tensor w) {
  cudaEvent_t start, stop;
  cudaEventCreate(&start), cudaEventCreate(&stop);
  float* copy;
  cudaMallocManaged(&copy, 4 * sizeof(float));
  cudaMemcpy(copy, w.data_ptr<float>(), 4 * sizeof(float), cudaMemcpyDefault);
  cudaMemcpyToSymbol(weights, copy, 4 * sizeof(float));
  cudaFree(copy);
  auto y = torch::empty_like(x);
  cudaEventRecord(start);
  weighted_kernel<<<1, x.numel()>>>(x.data_ptr<float>(), y.data_ptr<float>());
  cudaEventRecord(stop), cudaEventSynchronize(stop);
  float milliseconds;
  cudaEventElapsedTime(&milliseconds, start, stop);
  return y;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("leaky", torch::wrap_pybind_function(leaky));
  m.def("row_sums", &row_sums);
  m.def("weighted", &weighted);
}
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Extension:
    path = tmp_path_factory.mktemp("sources") / "forms.cu"
    path.write_text(SOURCE)
    return load("forms", [str(path)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_numbers_of_16_bits_compute_as_torchs_do(module: Extension, dtype: torch.dtype) -> None:
    """Each operation rounds to the type, except with a float or a double."""
    x = torch.randn(3, 333).to(dtype)
    slope = torch.tensor(0.1).to(dtype)
    v = torch.where(x > 0, x, x * slope) + 1
    wide = dtype if dtype == torch.float64 else torch.float32
    v = ((2 * v.to(wide)) - 1).to(dtype) / 2
    assert torch.equal(module.leaky(x, 0.1), v)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_accumulate_type_and_a_cast_shared_array(module: Extension, dtype: torch.dtype) -> None:
    x = torch.randn(5, 100).to(dtype)
    expected = x.double().sum(1) + x.double().amax(1)
    assert (module.row_sums(x) - expected).abs().max() <= 50 * torch.finfo(dtype).eps


def test_dispatch_names_what_it_leaves_out(module: Extension) -> None:
    with pytest.raises(RuntimeError, match="\"row_sums\" not implemented for 'BFloat16'"):
        module.row_sums(torch.ones(2, 2, dtype=torch.bfloat16))


def test_the_runtime_around_a_launch(module: Extension) -> None:
    x, w = torch.randn(12), torch.randn(4)
    assert torch.equal(module.weighted(x, w), x * w.repeat(3))


def test_comments_between_parameters_are_no_names(module: Extension) -> None:
    assert module._parameters("leaky") == ["x", "slope"]


def test_a_function_that_no_source_has_is_named(tmp_path: Path) -> None:
    """When it is called: its kind is often missing because only one op of many is looked at."""
    path = tmp_path / "lost.cu"
    path.write_text(
        "#include <torch/extension.h>\nvoid lost(float* x, int n = 1);\nstd::string version();\n"
        "void call(torch::Tensor x) { if (x.numel()) lost(x.data_ptr<float>(), x.numel()); }\n"
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("call", &call); }\n'
        'void more(py::module& m) { m.def("version", &version); }\n'
    )
    module = load("lost", [str(path)])
    module.call(torch.ones(0))
    with pytest.raises(RuntimeError, match=r"none of its sources defines: lost\(float\*, int\)"):
        module.call(torch.ones(3))
