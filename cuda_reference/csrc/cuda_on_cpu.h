// cuda_on_cpu.h: CUDA C++ on the CPU, for g++ and clang++ (C++17, Linux). This entry header has the language's
// keywords, LAUNCH and SHARED. The other files each build on those before them:
//   cuda_on_cpu_fibers.h   stacks to run threads on, switches between them, hooks of the sanitizers
//   cuda_on_cpu_block.h    the running block: state, failures, waiting, __syncthreads
//   cuda_on_cpu_warp.h     shuffles, votes, reductions, __syncwarp
//   cuda_on_cpu_memory.h   shared arrays, atomics, fences, cached loads and stores
//   cuda_on_cpu_watch.h    recording of reads and writes, for the debugger
//   cuda_on_cpu_async.h    copies that a thread starts and waits for
//   cuda_on_cpu_crash.h    kernels that crash
//   cuda_on_cpu_launch.h   checking and running a launch
//   cuda_on_cpu_runtime.h  cudaGetLastError, cudaMalloc and the like
//   cuda_on_cpu_written.h  the replacements of <<<>>>, __shared__ and inline PTX
//   cuda_on_cpu_math.h     device functions, half and bfloat16
//   cuda_on_cpu_intrinsics.h   integer intrinsics, conversions and arithmetic with given rounding
//   cuda_on_cpu_absent.h   included by sources that use cuBLAS and its kin, which have no form here
//   cuda_on_cpu_wmma.h     nvcuda::wmma: fragments, and the arithmetic of a tensor core
//
// The blocks of a grid run one after another. Within a block a fiber runs one thread after another until a thread
// waits at a barrier. That thread keeps the fiber, and the next thread gets another one. So a kernel without
// barriers never switches. Shared arrays are static and refilled with NaN bytes (0xFF) for every block.
// A kernel that crashes or breaks the model (a barrier that not every thread reaches, an impossible launch) ends its
// grid. cudaGetLastError and cudaGetErrorString report the error, and the next launch works.
//
//   CROSSCHECK_THREAD_ORDER=reverse   threads run from the last to the first; read at every launch
//   CROSSCHECK_BLOCK_ORDER=reverse    blocks run from the last to the first
//   -fsanitize=address                out-of-bounds accesses, in shared arrays too
//   -fsanitize=thread                 races between the threads of a block
//   -fsanitize=thread -DCUDA_ON_CPU_WATCH   the same hooks with our own runtime: cuda_on_cpu_watch.h
//
// Not modelled: blocks that wait for each other, inline PTX, clusters, streams (a launch is synchronous).
#pragma once

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fenv.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector_functions.h>
#define __CUDA_INCLUDE_COMPILER_INTERNAL_HEADERS__  // which driver_functions.h includes, as cuda_runtime.h does
#include <driver_functions.h>
#undef __CUDA_INCLUDE_COMPILER_INTERNAL_HEADERS__

#include <algorithm>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>

// For `tile[i] = f(x)` with a class type GCC calls no store hook of ThreadSanitizer, and so of ours, unless f is
// inlined. The functions of NVIDIA's headers say __attribute__((unused)), by which they are inlined here.
#ifdef __SANITIZE_THREAD__
#define unused always_inline
#endif
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#undef unused

#define __CUDA_RUNTIME_H__  // which stands for cuda_runtime.h in headers that ask whether it was included
#ifndef CUDA_VERSION  // cuda.h has it
#define CUDA_VERSION CUDART_VERSION
#endif
#undef __constant__
#undef __launch_bounds__
#undef __shared__
#define __constant__ static
#define __launch_bounds__(...)
#define __shared__ write_SHARED_T_name_dims_instead_of___shared__  // else it would become a local variable

#define SHARED(T, name, dims)                                        \
  CUDA_ON_CPU_ARRAY(T, name, dims);                                  \
  static cuda_on_cpu::SharedArray name##_shared_array{#name, &name}; \
  cuda_on_cpu::use(name##_shared_array)
// An array, not a pointer: reinterpret_cast<Storage&>(name) means its elements.
#define DYNAMIC_SHARED(T, name) T(&name)[] = *reinterpret_cast<T(*)[]>(cuda_on_cpu::dynamic_shared<T>(#name))
#define LAUNCH(kernel, grid, block, smem, stream, ...) \
  cuda_on_cpu::launch(#kernel, (grid), (block), (smem), (stream), cuda_on_cpu::Body([=] { (kernel)(__VA_ARGS__); }))

// Each library has its own copy, however many sources it has.
#define CUDA_ON_CPU_STATE inline __attribute__((visibility("hidden")))
#define CUDA_ON_CPU_ONCE __attribute__((weak))

// Plain variables, set whenever a thread runs: one launch runs at a time, and a debugger can print them.
CUDA_ON_CPU_STATE uint3 threadIdx, blockIdx;
CUDA_ON_CPU_STATE dim3 blockDim, gridDim;
static constexpr int warpSize = 32;

#include "cuda_on_cpu_fibers.h"
#include "cuda_on_cpu_block.h"
#include "cuda_on_cpu_warp.h"
#include "cuda_on_cpu_memory.h"
#include "cuda_on_cpu_watch.h"
#include "cuda_on_cpu_async.h"
#include "cuda_on_cpu_crash.h"
#include "cuda_on_cpu_launch.h"
#include "cuda_on_cpu_runtime.h"
#include "cuda_on_cpu_written.h"
#include "cuda_on_cpu_math.h"
#include "cuda_on_cpu_intrinsics.h"
#include "cuda_on_cpu_wmma.h"
