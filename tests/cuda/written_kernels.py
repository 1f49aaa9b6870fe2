"""A source as people write for torch.utils.cpp_extension: __shared__, <<<>>>, PYBIND11_MODULE."""

from __future__ import annotations

# Macros that launch and export, as collections of kernels have them.
HEADER = """\
#pragma once
#define LANES 32
#define AS_FLOAT4(x) (reinterpret_cast<float4*>(&(x))[0])

template <int Lanes = LANES>
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int mask = Lanes >> 1; mask >= 1; mask >>= 1) x += __shfl_xor_sync(0xffffffff, x, mask);
  return x;
}

template <int Threads>
__device__ float block_sum(float x) {
  constexpr int warps = (Threads + LANES - 1) / LANES;
  static __shared__ float partial[warps];  // one for each number of threads
  x = warp_sum<LANES>(x);
  if (threadIdx.x % LANES == 0) partial[threadIdx.x / LANES] = x;
  __syncthreads();
  x = threadIdx.x < warps ? partial[threadIdx.x] : 0.0f;
  x = warp_sum<LANES>(x);
  if (threadIdx.x == 0) partial[0] = x;
  __syncthreads();
  return partial[0];
}
"""

MANY = """\
#include <algorithm>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <cuda_runtime.h>
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include "common.cuh"

namespace cg = cooperative_groups;
const char* const remark = "kernel<<<grid, block>>>(x); __shared__ int not_code[1];";
// kernel<<<1, 1>>>(nothing); __shared__ float comment[3];

#define CHECKED(t, type)                                                              \\
  TORCH_CHECK((t).is_cuda(), #t " must be a CUDA tensor");                            \\
  TORCH_CHECK((t).is_contiguous(), #t " must be contiguous");                         \\
  if ((t).options().dtype() != (type)) {                                              \\
    std::cout << "a tensor of " << (t).options() << std::endl;                        \\
    throw std::runtime_error(#t " must be " #type);                                   \\
  }

// ---- one element a thread, or four

__global__ void twice_f32_kernel(float* x, float* y, int N) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < N) y[i] = 2.0f * __ldg(&x[i]);
}
__global__ void twice_f32x4_kernel(float* x, float* y, int N) {
  int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (i < N) {
    float4 v = AS_FLOAT4(x[i]);
    v.x *= 2.0f; v.y *= 2.0f; v.z *= 2.0f; v.w *= 2.0f;
    AS_FLOAT4(y[i]) = v;
  }
}
#define EXPORT_TWICE(tag, type, T, n)                                                 \\
  void twice_##tag(torch::Tensor x, torch::Tensor y) {                                \\
    CHECKED(x, (type))                                                                \\
    CHECKED(y, (type))                                                                \\
    const int N = x.numel();                                                          \\
    dim3 block(64 / (n));                                                             \\
    dim3 grid((N + 63) / 64);                                                         \\
    twice_##tag##_kernel<<<grid, block>>>(reinterpret_cast<T*>(x.data_ptr()),         \\
                                          reinterpret_cast<T*>(y.data_ptr()), N);     \\
  }
EXPORT_TWICE(f32, torch::kFloat32, float, 1)
EXPORT_TWICE(f32x4, torch::kFloat32, float, 4)

// ---- a row a block: shared memory, static and dynamic; templates with commas

template <typename T, int Threads>
__global__ void row_sums_kernel(const T* x, float* out, int columns) {
  float sum = 0.0f;
  for (int i = threadIdx.x; i < columns; i += Threads)
    sum += static_cast<float>(x[blockIdx.x * columns + i]);
  sum = block_sum<Threads>(sum);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
torch::Tensor row_sums(const torch::Tensor& x) {
  auto out = torch::empty({x.size(0)}, x.options().dtype(torch::kFloat32));
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "row_sums", [&] {
    row_sums_kernel<scalar_t, 64>
        <<<x.size(0), 64, 0, at::cuda::getCurrentCUDAStream()>>>(
            x.data_ptr<scalar_t>(), out.data_ptr<float>(), x.size(1));
  });
  return out;
}

__global__ void reversed_kernel(const float* x, float* out, int n) {
  extern __shared__ __align__(16) float held[];
  __shared__ int last, unused[2][3];
  if (threadIdx.x == 0) last = n - 1;
  held[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  unused[threadIdx.x % 2][0] = 0;
  out[threadIdx.x] = held[last - threadIdx.x];
}
at::Tensor reversed(at::Tensor x) {
  at::Tensor out = at::zeros_like(x);
  auto kernel = &reversed_kernel;
  int n = x.numel();
  kernel<<<1, n, n * sizeof(float)>>>(x.data_ptr<float>(), out.data_ptr<float>(), n);
  return out;
}

// ---- strides, two results, a default

__global__ void split_kernel(const float* x, long rows, long step, float* even, float* odd) {
  int i = threadIdx.x;
  if (i < rows) (i % 2 ? odd : even)[i / 2] = x[i * step];
}
std::vector<torch::Tensor> split(torch::Tensor x, int64_t block) {
  TORCH_CHECK(x.dim() == 1, "split wants one dimension, got ", x.sizes());
  auto even = torch::zeros({(x.size(0) + 1) / 2}, x.options());
  auto odd = torch::zeros({x.size(0) / 2}, x.options());
  split_kernel<<<1, block>>>(x.data_ptr<float>(), x.size(0), x.stride(0),
                             even.data_ptr<float>(), odd.data_ptr<float>());
  return {even, odd};
}

// ---- pairs

__global__ void pairs_kernel(const half2* h, const __nv_bfloat162* b, half2* out_h,
                             __nv_bfloat162* out_b) {
  int i = threadIdx.x;
  out_h[i] = __hfma2(h[i], h[i], __hmul2(h[i], __float2half2_rn(2.0f)));
  out_b[i] = __hadd2(__hmax2(b[i], __float2bfloat162_rn(0.0f)), b[i]);
  float2 f = __half22float2(out_h[i]);
  out_h[i] = __floats2half2_rn(f.x + 1.0f, __high2float(out_h[i]) + 1.0f);
}
void pairs(torch::Tensor h, torch::Tensor b, torch::Tensor out_h, torch::Tensor out_b) {
  pairs_kernel<<<1, h.numel() / 2>>>(reinterpret_cast<half2*>(h.data_ptr<at::Half>()),
                                     reinterpret_cast<__nv_bfloat162*>(b.data_ptr()),
                                     reinterpret_cast<half2*>(out_h.data_ptr()),
                                     reinterpret_cast<__nv_bfloat162*>(out_b.data_ptr()));
}

// ---- cooperative groups, votes, atomics

__global__ void groups_kernel(const int* x, int* out) {
  cg::thread_block block = cg::this_thread_block();
  cg::thread_block_tile<8> tile = cg::tiled_partition<8>(block);
  __shared__ int total;
  if (block.thread_rank() == 0) total = 0;
  block.sync();
  int sum = cg::reduce(tile, x[block.thread_rank()], cg::plus<int>());
  for (int d = tile.size() / 2; d > 0; d /= 2) sum = max(sum, tile.shfl_down(sum, d));
  if (tile.thread_rank() == 0) atomicAdd(&total, sum);
  cg::sync(block);
  unsigned odd = __ballot_sync(0xffffffff, x[threadIdx.x] & 1);
  out[threadIdx.x] = total + 1000 * __popc(odd) + 100000 * tile.meta_group_rank();
}
void groups(torch::Tensor x, torch::Tensor out) {
  groups_kernel<<<1, 32>>>(x.data_ptr<int>(), out.data_ptr<int>());
}

// ---- copies that a thread waits for

#define COMMIT() asm volatile("cp.async.commit_group;\\n" ::)
#define WAIT(n) asm volatile("cp.async.wait_group %0;\\n" ::"n"(n))
#define COPY(to, from, bytes)                                                         \\
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;\\n" ::"r"(to), "l"(from), "n"(bytes))
__global__ void copies_kernel(const float* x, float* out, bool wait) {
  __shared__ __align__(16) float first[32], second[32];
  int i = threadIdx.x;
  uint32_t address = __cvta_generic_to_shared(&first[4 * i]);
  COPY(address, &x[4 * i], 16);
  COMMIT();
  __pipeline_memcpy_async(&second[4 * i], &x[32 + 4 * i], 16);
  __pipeline_commit();
  if (wait) WAIT(0); else WAIT(1);
  __syncthreads();
  for (int k = 0; k < 4; ++k) out[4 * i + k] = first[4 * i + k] + second[4 * i + k];
}
void copies(torch::Tensor x, torch::Tensor out, bool wait) {
  copies_kernel<<<1, 8>>>(x.data_ptr<float>(), out.data_ptr<float>(), wait);
}

// ---- what goes wrong

__global__ void missing_lane_kernel(float* x) { x[threadIdx.x] = warp_sum<32>(x[threadIdx.x]); }
void missing_lane(torch::Tensor x) { missing_lane_kernel<<<1, 24>>>(x.data_ptr<float>()); }

__global__ void returned_lane_kernel(float* x) {
  if (threadIdx.x >= 20) return;
  x[threadIdx.x] = __shfl_down_sync(0xffffffff, x[threadIdx.x], 1);
}
void returned_lane(torch::Tensor x) { returned_lane_kernel<<<1, 32>>>(x.data_ptr<float>()); }

__global__ void ptx_kernel(unsigned* x) {
  unsigned clock;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(clock));
  *x = clock;
}
void ptx(torch::Tensor x) { ptx_kernel<<<1, 1>>>(static_cast<unsigned*>(x.data_ptr())); }

extern void elsewhere(torch::Tensor x);
torch::Tensor same(torch::Tensor x) { return x; }
torch::Tensor half_of(torch::Tensor x) { return x.view({-1})[0]; }
float largest(torch::Tensor x) { return std::get<0>(torch::max(x, 0)).cpu().item<float>(); }

#define NAME(x) #x
#define EXPORT(f) m.def(NAME(f), &f, NAME(f));
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  EXPORT(twice_f32)
  EXPORT(twice_f32x4)
  EXPORT(row_sums)
  EXPORT(reversed)
  m.def("split", &split, "even and odd", py::arg("x"), py::arg("block") = 32);
  EXPORT(pairs)
  EXPORT(groups)
  EXPORT(copies)
  EXPORT(missing_lane)
  EXPORT(returned_lane)
  EXPORT(ptx)
  EXPORT(elsewhere)
  EXPORT(same)
  EXPORT(half_of)
  EXPORT(largest)
}
"""
