// crosscheck.cuh: the one header of every .cu file here. The same source builds for a GPU with nvcc and for
// the CPU with g++ or clang++ (cuda_on_cpu.h), under three rules:
//   LAUNCH(kernel, grid, block, smem, stream, args...)   instead of kernel<<<...>>>(args...);
//                                                        a kernel with template commas goes in parentheses
//   SHARED(T, name, dims);                               instead of __shared__ T name dims;
//   DYNAMIC_SHARED(T, name);                             T* name = the launch's smem bytes
// and inline PTX only under #ifdef __CUDACC__. Launchers are extern "C" int, take the stream, and end with
// return cudaGetLastError(). One .cu file is one shared library: include this header once in it.
#pragma once

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <mma.h>

// 32 bytes: wmma requires it of a tile's address, and float4 reads of rows need no more.
#define SHARED(T, name, dims) __shared__ __align__(32) T name dims
#define DYNAMIC_SHARED(T, name)                                               \
  extern __shared__ __align__(128) unsigned char crosscheck_dynamic_shared[]; \
  T* name = reinterpret_cast<T*>(crosscheck_dynamic_shared)
#define LAUNCH(kernel, grid, block, smem, stream, ...) \
  (kernel)<<<(grid), (block), (smem), (stream)>>>(__VA_ARGS__)
#else
#include "cuda_on_cpu.h"
#endif

// A launcher's return value in CUDA's words; on the host target the text of the last failure.
#ifdef __CUDACC__
#define CUDA_ON_CPU_ONCE
#endif
extern "C" CUDA_ON_CPU_ONCE const char* crosscheck_error_string(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}
