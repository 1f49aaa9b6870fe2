// The wmma kernels of the matrix products: tensor cores that accumulate in float. float16 and bfloat16 are used as they
// are, float32 as tf32 (rounded to 10 bits of mantissa) or as tf32x3 (each operand split into two tf32 parts, three
// products); f16x3 has its own kernel. Needs compute capability 8.0.
#pragma once
#include "gemm_f16x3.cuh"

// In the order of PRECISIONS in _gemm.py.
enum Precision { IEEE, TF32, TF32X3, F16X3 };

// The elements in shared memory, the value of a fragment's element, and the K of one instruction.
struct HalfCores {
  using Element = __half;
  using Fragment = __half;
  static constexpr int STEP = 16;
  static __device__ Element element(float x) { return __float2half_rn(x); }
};
struct BFloat16Cores {
  using Element = __nv_bfloat16;
  using Fragment = __nv_bfloat16;
  static constexpr int STEP = 16;
  static __device__ Element element(float x) { return __float2bfloat16_rn(x); }
};
struct TF32Cores {
  using Element = float;
  using Fragment = nvcuda::wmma::precision::tf32;
  static constexpr int STEP = 8;
  static __device__ Element element(float x) { return x; }
};

constexpr int WMMA_TILE = 32;       // a block's tile of out: four of 16 × 16, one per warp
constexpr int WMMA_THREADS = 128;

// Rounds a tf32 fragment's elements in place; the rounding errors go to rest.
template <class Matrix>
__device__ void split(Matrix& matrix, Matrix& rest) {
  for (int i = 0; i < matrix.num_elements; ++i) {
    const float whole = matrix.x[i], part = nvcuda::wmma::__float_to_tf32(whole);
    matrix.x[i] = part;
    rest.x[i] = nvcuda::wmma::__float_to_tf32(whole - part);
  }
}

template <class Cores, bool SPLIT>
__global__ void gemm_wmma_kernel(Tensor a, Tensor b, Tensor out, Epilogue epilogue) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  using namespace nvcuda;
  constexpr int STEP = Cores::STEP, PAD = 16 / sizeof(typename Cores::Element);
  SHARED(typename Cores::Element, a_tile, [WMMA_TILE][STEP + PAD]);
  SHARED(typename Cores::Element, b_tile, [STEP][WMMA_TILE + PAD]);
  SHARED(float, sums, [WMMA_TILE][WMMA_TILE + 4]);
  const int warp = threadIdx.x / 32, row = warp / 2 * 16, column = warp % 2 * 16;
  const Corner corner = corner_of_block(out, WMMA_TILE);
  const long long m0 = corner.m, n0 = corner.n;
  const long long M = out.size[0], N = out.size[1], K = a.size[1];
  wmma::fragment<wmma::matrix_a, 16, 16, STEP, typename Cores::Fragment, wmma::row_major> a_part, a_rest;
  wmma::fragment<wmma::matrix_b, 16, 16, STEP, typename Cores::Fragment, wmma::row_major> b_part, b_rest;
  wmma::fragment<wmma::accumulator, 16, 16, STEP, float> sum, correction;
  wmma::fill_fragment(sum, 0.0f);
  wmma::fill_fragment(correction, 0.0f);
  for (long long k0 = 0; k0 < K; k0 += STEP) {
    for (int i = threadIdx.x; i < WMMA_TILE * STEP; i += WMMA_THREADS) {
      const long long m = m0 + i / STEP, a_k = k0 + i % STEP;
      const long long b_k = k0 + i / WMMA_TILE, n = n0 + i % WMMA_TILE;
      const bool in_a = m < M && a_k < K, in_b = b_k < K && n < N;
      a_tile[i / STEP][i % STEP] =
          Cores::element(in_a ? load<float>(a, m * a.stride[0] + a_k * a.stride[1]) : 0.0f);
      b_tile[i / WMMA_TILE][i % WMMA_TILE] =
          Cores::element(in_b ? load<float>(b, b_k * b.stride[0] + n * b.stride[1]) : 0.0f);
    }
    __syncthreads();  // the tiles are complete
    wmma::load_matrix_sync(a_part, &a_tile[row][0], STEP + PAD);
    wmma::load_matrix_sync(b_part, &b_tile[0][column], WMMA_TILE + PAD);
    if constexpr (std::is_same<Cores, TF32Cores>::value) {
      split(a_part, a_rest);
      split(b_part, b_rest);
    }
    if constexpr (SPLIT) {
      wmma::mma_sync(correction, a_rest, b_part, correction);
      wmma::mma_sync(correction, a_part, b_rest, correction);
    }
    wmma::mma_sync(sum, a_part, b_part, sum);
    __syncthreads();  // nobody reads them any more
  }
  for (int i = 0; i < sum.num_elements; ++i)  // the rest of an infinite operand is NaN: not added
    if (correction.x[i] - correction.x[i] == 0.0f) sum.x[i] += correction.x[i];
  wmma::store_matrix_sync(&sums[row][column], sum, WMMA_TILE + 4, wmma::mem_row_major);
  __syncthreads();
  for (int i = threadIdx.x; i < WMMA_TILE * WMMA_TILE; i += WMMA_THREADS) {
    const long long m = m0 + i / WMMA_TILE, n = n0 + i % WMMA_TILE;
    if (m < M && n < N)
      store<float>(out, m * out.stride[0] + n * out.stride[1],
                   epilogue.apply<float>(sums[i / WMMA_TILE][i % WMMA_TILE], m, n));
  }
#endif
}

inline int gemm_wmma(const Tensor& a, const Tensor& b, const Tensor& out, const Epilogue& epilogue,
                     int precision, cudaStream_t stream) {
#ifdef __CUDACC__
  int device = 0, major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (major < 8) return cudaErrorNotSupported;
#endif
  const dim3 grid = tiles_of(out, WMMA_TILE);
  if (a.dtype == F16)
    LAUNCH((gemm_wmma_kernel<HalfCores, false>), grid, dim3(WMMA_THREADS), 0, stream, a, b, out, epilogue);
  else if (a.dtype == BF16)
    LAUNCH((gemm_wmma_kernel<BFloat16Cores, false>), grid, dim3(WMMA_THREADS), 0, stream, a, b, out, epilogue);
  else if (precision == TF32)
    LAUNCH((gemm_wmma_kernel<TF32Cores, false>), grid, dim3(WMMA_THREADS), 0, stream, a, b, out, epilogue);
  else if (precision == TF32X3)
    LAUNCH((gemm_wmma_kernel<TF32Cores, true>), grid, dim3(WMMA_THREADS), 0, stream, a, b, out, epilogue);
  else if (precision == F16X3)
    LAUNCH(gemm_f16x3_kernel, tiles_of(out, SPLIT_TILE), dim3(SPLIT_THREADS), 0, stream, a, b, out, epilogue);
  else
    return cudaErrorInvalidValue;
  return cudaGetLastError();
}
