"""CUDA kernels that try out the execution model on the CPU."""

from __future__ import annotations

KERNELS = r"""
#include "crosscheck.cuh"

__global__ void indices(int* out) {
  const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const int size = blockDim.x * blockDim.y * blockDim.z;
  out[block * size + thread] = block * 10000 + threadIdx.z * 100 + threadIdx.y * 10 + threadIdx.x;
}
extern "C" int run_indices(int* out) {
  LAUNCH(indices, dim3(2, 3, 2), dim3(5, 3, 2), 0, nullptr, out);
  return cudaGetLastError();
}

__global__ void last(int* out) {
  *out = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
}
extern "C" int run_last(int* out) {
  LAUNCH(last, dim3(2, 3, 4), 1, 0, nullptr, out);
  return cudaGetLastError();
}

// Reads shared memory before it is written; a later block is the first to use the branch's array.
template <class T>
__global__ void unset(float* out) {
  SHARED(T, tile, [2][32]);
  DYNAMIC_SHARED(float, dynamic);
  out[blockIdx.x * 64 + threadIdx.x] = float(tile[1][threadIdx.x]);
  out[blockIdx.x * 64 + 32 + threadIdx.x] = dynamic[threadIdx.x];
  if (blockIdx.x >= 1) {
    SHARED(T, late, [32]);
    out[blockIdx.x * 64 + threadIdx.x] += float(late[threadIdx.x]);
    late[threadIdx.x] = T(2.0f);
  }
  tile[1][threadIdx.x] = T(1.0f);
  dynamic[threadIdx.x] = 1.0f;
}
extern "C" int run_unset(float* out, int type) {
  if (type == 0) LAUNCH(unset<float>, 3, 32, 128, nullptr, out);
  else LAUNCH((unset<__half>), 3, 32, 128, nullptr, out);
  return cudaGetLastError();
}

// out[i] = in[i - 1], through shared memory.
__global__ void shift(const float* in, float* out, bool barrier) {
  SHARED(float, tile, [256]);
  const unsigned i = threadIdx.x;
  tile[i] = in[i];
  if (barrier) __syncthreads();
  out[i] = tile[i == 0 ? blockDim.x - 1 : i - 1];
}
extern "C" int run_shift(const float* in, float* out, int n, bool barrier) {
  LAUNCH(shift, 1, n, 0, nullptr, in, out, barrier);
  return cudaGetLastError();
}

__global__ void gemm(const float* a, const float* b, float* c, int n) {
  SHARED(float, as, [16][17]);
  SHARED(float, bs, [16][17]);
  const int x = threadIdx.x, y = threadIdx.y;
  const int row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
  float sum = 0.0f;
  for (int k = 0; k < n; k += 16) {
    as[y][x] = a[row * n + k + x];
    bs[y][x] = b[(k + y) * n + column];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 16; ++j) sum = fmaf(as[y][j], bs[j][x], sum);
    __syncthreads();
  }
  c[row * n + column] = sum;
}
extern "C" int run_gemm(const float* a, const float* b, float* c, int n) {
  LAUNCH(gemm, dim3(n / 16, n / 16), dim3(16, 16), 0, nullptr, a, b, c, n);
  return cudaGetLastError();
}

__global__ void shuffles(int* out) {
  const int i = threadIdx.x, n = blockDim.x;
  const unsigned all = 0xFFFFFFFFu;
  out[i] = __shfl_sync(all, i, 5);
  out[n + i] = __shfl_sync(all, i, 5, 8);
  out[2 * n + i] = __shfl_xor_sync(all, i, 3);
  out[3 * n + i] = __shfl_down_sync(all, i, 4, 16);
  out[4 * n + i] = __shfl_up_sync(all, i, 1);
  // Half-warps that have gone different ways, then the whole warp again.
  if (i % 32 < 16) out[5 * n + i] = __shfl_sync(0x0000FFFFu, i, 1);
  else out[5 * n + i] = __shfl_sync(0xFFFF0000u, __shfl_sync(0xFFFF0000u, i, 17) + 100, 18);
  out[6 * n + i] = __shfl_xor_sync(all, i, 31);
}
extern "C" int run_shuffles(int* out, int n) {
  LAUNCH(shuffles, 1, n, 0, nullptr, out);
  return cudaGetLastError();
}

// The last 12 lanes return before the others meet.
__global__ void early(int* out) {
  if (threadIdx.x >= 20) return;
  __syncwarp();
  out[threadIdx.x] = __shfl_up_sync(0xFFFFFFFFu, int(threadIdx.x), 1);
}
extern "C" int run_early(int* out) {
  LAUNCH(early, 1, 32, 0, nullptr, out);
  return cudaGetLastError();
}

__global__ void votes(int* out) {
  const int i = threadIdx.x;
  const unsigned all = 0xFFFFFFFFu;
  out[i] = int(__ballot_sync(all, i % 3 == 0));
  out[32 + i] = __any_sync(all, i == 7) + 10 * __any_sync(all, i > 40);
  out[64 + i] = __all_sync(all, i < 32) + 10 * __all_sync(all, i != 7);
  out[96 + i] = __reduce_add_sync(all, i) + 1000 * __reduce_max_sync(all, i);
  out[128 + i] = __syncthreads_count(i < 5) + 100 * __syncthreads_or(i == 3) +
                 1000 * __syncthreads_and(i == 3) + __syncthreads_count(i < 2) * 10000;
}
extern "C" int run_votes(int* out) {
  LAUNCH(votes, 1, 32, 0, nullptr, out);
  return cudaGetLastError();
}

__global__ void atomics(int* ints, float* floats, __half* halves) {
  const int i = threadIdx.x;
  atomicAdd(&ints[0], 1);
  atomicMax(&ints[1], i);
  atomicMin(&ints[2], -i);
  atomicOr(&ints[3], 1 << (i % 8));
  atomicExch(&ints[4], 77);
  int seen = atomicAdd(&ints[5], 0), expected;
  do {
    expected = seen;
    seen = atomicCAS(&ints[5], expected, expected + 2);
  } while (seen != expected);
  atomicSub(reinterpret_cast<unsigned*>(&ints[6]), 1);
  atomicAdd(floats, 0.5f);
  atomicAdd(halves, __float2half(1.0f));
}
extern "C" int run_atomics(int* ints, float* floats, __half* halves) {
  LAUNCH(atomics, 4, 64, 0, nullptr, ints, floats, halves);
  return cudaGetLastError();
}

__global__ void vectors(const float4* in, float4* out, const __half2* h, __half2* hout) {
  const float4 v = __ldg(&in[threadIdx.x]);
  out[threadIdx.x] = make_float4(v.w, fmaxf(v.x, v.y), min(v.y, v.z), rsqrtf(v.w));
  hout[threadIdx.x] = __hadd2(h[threadIdx.x], __float2half2_rn(1.0f));
}
extern "C" int run_vectors(const float4* in, float4* out, const __half2* h, __half2* hout) {
  LAUNCH(vectors, 1, 8, 0, nullptr, in, out, h, hout);
  return cudaGetLastError();
}

__global__ void fused(const __half* h, __half* hout, const __nv_bfloat16* b, __nv_bfloat16* bout,
                      int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  hout[i] = __hfma(h[3 * i], h[3 * i + 1], h[3 * i + 2]);
  bout[i] = __hfma(b[3 * i], b[3 * i + 1], b[3 * i + 2]);
}
extern "C" int run_fused(const __half* h, __half* hout, const __nv_bfloat16* b,
                         __nv_bfloat16* bout, int n) {
  LAUNCH(fused, (n + 127) / 128, 128, 0, nullptr, h, hout, b, bout, n);
  return cudaGetLastError();
}

// What the sanitizers look for, on demand.
__global__ void mirror(const float* in, float* out, bool barrier, int shared_over,
                       int global_over) {
  SHARED(float, tile, [64]);
  const int i = threadIdx.x;
  tile[i + shared_over] = in[i];  // WRITE
  if (barrier) __syncthreads();
  out[i + global_over] = tile[63 - i];  // READ
}
extern "C" int run_mirror(const float* in, float* out, bool barrier, int shared_over,
                          int global_over) {
  LAUNCH(mirror, 4, 64, 0, nullptr, in, out, barrier, shared_over, global_over);
  return cudaGetLastError();
}

// What a kernel must not do.
__global__ void faulty(int fault) {
  const int i = threadIdx.x;
  if (fault == 1) {
    if (i >= 40) return;  // fine: nobody waits for it
    __syncthreads();
  }
  if (fault == 2) {
    if (i < 16) __syncthreads();  // DIVERGENT_A
    else __syncthreads();         // DIVERGENT_B
  }
  if (fault == 3 && i != 9) __syncwarp();  // fine: lane 9 returns
  if (fault == 4 && blockIdx.x == 2 && i == 3) __syncwarp(1);
  if (fault == 5) {
    if (i == 0) __shfl_sync(0xFFFFFFFFu, i, 0);  // LONELY
    __syncthreads();                             // REST
  }
  if (fault == 6) {
    SHARED(float, large, [13000]);
    large[i] = 0.0f;
  }
}

__global__ void aligned(const float4* in, float4* out) {
  out[threadIdx.x] = in[threadIdx.x];  // ALIGNED
}
extern "C" int run_aligned(const float4* in, float4* out) {
  LAUNCH(aligned, 1, 2, 0, nullptr, in, out);
  return cudaGetLastError();
}
extern "C" int run_faulty(int fault) {
  LAUNCH(faulty, 3, 64, 0, nullptr, fault);
  return cudaGetLastError();
}
extern "C" int run_shape(int gx, int gy, int bx, int by, int bz, int smem) {
  LAUNCH(faulty, dim3(gx, gy), dim3(bx, by, bz), smem, nullptr, 0);
  return cudaGetLastError();
}
"""


def line_of(mark: str) -> int:
    return next(n for n, text in enumerate(KERNELS.splitlines(), 1) if f"// {mark}" in text)
