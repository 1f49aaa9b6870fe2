"""What headers of CUDA's samples, which many sources carry along, expect of cuda_runtime.h."""

from __future__ import annotations

import pytest
import torch

from cuda_reference import load_inline

pytestmark = pytest.mark.usefixtures("own_library_cache")

SOURCE = """\
#include <cuda_runtime.h>
#include <cuda_profiler_api.h>
#include <driver_functions.h>
#ifdef __CUDA_RUNTIME_H__
static int first_device() { int count; cudaGetDeviceCount(&count); return count - 1; }
#endif
#ifndef __CUDACC__  // for the host's compiler
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
#endif

__global__ void kernel(const float* x, double* out, int n) {
  const unsigned i = umin(threadIdx.x, umax(n - 1, 0));
  out[i] = rsqrtf(x[i]) + rsqrt(x[i]) + rsqrt(double(x[i])) + ullmax(llmin(i, 3), 1ull);
}
void run(const float* x, double* out, int n) {
  cudaProfilerStart();
  cudaSetDevice(first_device());
  kernel<<<1, n>>>(x, out, make_cudaExtent(n, 1, 1).width);
  cudaProfilerStop();
}
"""


LIBCUXX = """\
#include <cuda/std/limits>
#include <cuda/std/type_traits>
#include <cuda/functional>
#include <cuda/cmath>
template <class T, class F> __device__ T fold(const T* x, int n, T start, F with) {
  static_assert(cuda::std::is_same_v<T, float>);
  for (int i = 0; i < n; i++) start = with(start, x[i]);
  return start;
}
__global__ void kernel(const float* x, float* out, int n) {
  out[0] = fold(x, n, -cuda::std::numeric_limits<float>::infinity(), cuda::maximum<>{});
  out[1] = fold(x, n, cuda::std::numeric_limits<float>::infinity(), cuda::minimum<float>{});
  auto add = [](float a, float b) { return a + b; };
  out[2] = fold(x, n, 0.0f, cuda::proclaim_return_type<float>(add));
  out[3] = cuda::ceil_div(n, 2) + cuda::std::min(n, 1);
}
void run(const float* x, float* out, int n) { kernel<<<1, 1>>>(x, out, n); }
"""


def test_the_standard_library_of_device_code() -> None:
    x, out = torch.tensor([1.0, -2.0, 4.0]), torch.empty(4)
    load_inline(LIBCUXX, {"run": "const float* x, float* out, int n"}, name="std").run(x, out, 3)
    assert out.tolist() == [4, -2, 3, 3]


def test_names_of_the_samples_headers() -> None:
    module = load_inline(SOURCE, {"run": "const float* x, double* out, int n"})
    x, out = torch.rand(5) + 1, torch.empty(5, dtype=torch.float64)
    module.run(x, out, 5)
    wide = x.double().rsqrt()
    expected = 2 * (1 / x.sqrt()).double() + wide + torch.tensor([1, 1, 2, 3, 3])
    assert torch.allclose(out, expected, rtol=1e-6)
    # rsqrt() of a float is a float, of a double a double.
    module = load_inline(
        "static_assert(sizeof(rsqrt(1.f)) == 4 && sizeof(rsqrt(1.)) == 8 && sizeof(rsqrt(1)) == 8);"
        # A source's own template of this name stands beside it.
        "template <typename T> T rsqrt(T v) { return T(1) / sqrt(v); }"
        "template <> float rsqrt(float v) { return rsqrtf(v); }"
        "template <> double rsqrt(double v) { return rsqrt(v); }"
        "template <typename T> __device__ T inverse(T v) { return rsqrt(v + T(1)); }"
        "void run(float* x) { x[0] = inverse(3.0) + inverse(15.0f); }",
        {"run": "float* x"},
        name="sizes",
    )
    module.run(x)
    assert x[0] == 0.75
