"""A source as people write for torch.utils.cpp_extension, whose functions are wrong, each in its
own way, but for the first."""

SOURCE = """\
#include <torch/extension.h>
#include "lanes.cuh"

template <bool Barrier>
__global__ void row_sums_kernel(const float* x, float* out, int columns, int stride) {
  __shared__ float part[64];
  int i = threadIdx.x;
  part[i] = i < columns ? x[blockIdx.x * stride + i] : 0;
  __syncthreads();
  for (int half = 32; half; half /= 2) {
    if (i < half) part[i] += part[i + half];
    if (Barrier) __syncthreads();
  }
  if (i == 0) out[blockIdx.x] = part[0];
}

torch::Tensor row_sums(torch::Tensor x) {
  TORCH_CHECK(x.dim() == 2, "row_sums: a matrix");
  auto out = torch::empty({x.size(0)}, x.options());
  row_sums_kernel<true><<<x.size(0), 64>>>(
      x.data_ptr<float>(), out.data_ptr<float>(), x.size(1), x.stride(0));
  return out;
}

torch::Tensor race(torch::Tensor x) {
  auto out = torch::empty({x.size(0)}, x.options());
  row_sums_kernel<false><<<x.size(0), 64>>>(
      x.data_ptr<float>(), out.data_ptr<float>(), x.size(1), x.stride(0));
  return out;
}

__global__ void unwritten_kernel(const float* x, float* out, int columns) {
  extern __shared__ float row[];
  if (threadIdx.x < columns) row[threadIdx.x] = x[blockIdx.x * columns + threadIdx.x];
  __syncthreads();
  float sum = 0;
  for (int k = 0; k < 64; ++k) sum += row[k];
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

void unwritten(torch::Tensor x, torch::Tensor out) {
  unwritten_kernel<<<x.size(0), 64, 64 * sizeof(float)>>>(
      x.data_ptr<float>(), out.data_ptr<float>(), x.size(1));
}

__global__ void add_bias_kernel(const float* x, const float* bias, float* y, int columns) {
  int row = blockIdx.x, column = threadIdx.x;
  if (column < columns) y[row * columns + column] = x[row * columns + column] + bias[row];
}

void wrong_bias(torch::Tensor x, torch::Tensor bias,
                torch::Tensor y) {
  add_bias_kernel<<<x.size(0), 32>>>(
      x.data_ptr<float>(), bias.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
}

__global__ void double_kernel(const float* x, float* out, int columns, int from) {
  int i = blockIdx.x * columns + threadIdx.x;
  if (threadIdx.x <= columns) out[i] = twice(x[i]);
}

std::vector<torch::Tensor> outside(torch::Tensor x, int64_t from) {
  auto first = torch::zeros_like(x), second = torch::empty_like(x);
  double_kernel<<<x.size(0), 32>>>(x.data_ptr<float>(), first.data_ptr<float>(), x.size(1) - 1, 0);
  double_kernel<<<x.size(0), 32>>>(x.data_ptr<float>(), second.data_ptr<float>(), x.size(1), from);
  return {first, second};
}

__global__ void barrier_kernel(float* x) {
  if (threadIdx.x == 0) x[0] = __shfl_sync(0xFF, x[0], 1);
  __syncthreads();
  x[threadIdx.x] = 1;
}

void barrier(torch::Tensor x) { barrier_kernel<<<1, 8>>>(x.data_ptr<float>()); }

__global__ void half_kernel(const float* x, float* out, int n) {
  int i = 2 * threadIdx.x;
  if (i < n) out[i] = x[i];
}

torch::Tensor every_other(torch::Tensor x) {
  auto out = torch::empty_like(x);
  half_kernel<<<1, 64>>>(x.data_ptr<float>(), out.data_ptr<float>(), x.numel());
  return out;
}

__global__ void accumulate_kernel(const float* x, float* out, int n) {
  for (int i = 0; i < n; ++i) out[0] += x[i];
}

torch::Tensor total(torch::Tensor x) {
  auto out = torch::empty({1}, x.options());
  accumulate_kernel<<<1, 1>>>(x.data_ptr<float>(), out.data_ptr<float>(), x.numel());
  return out;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("row_sums", &row_sums);
  m.def("race", &race);
  m.def("unwritten", &unwritten);
  m.def("wrong_bias", &wrong_bias);
  m.def("outside", &outside, py::arg("x"), py::arg("from") = 0);
  m.def("barrier", &barrier);
  m.def("every_other", &every_other);
  m.def("total", &total);
}
"""
HEADER = """\
#pragma once
__device__ __forceinline__ float twice(float x) { return x + x; }
"""


def line(code: str) -> str:
    """Where the code stands, as reports write it."""
    numbers = [n for n, text in enumerate(SOURCE.splitlines(), 1) if code in text]
    assert len(numbers) == 1, (code, numbers)
    return f"loaded.cu:{numbers[0]}"
