// The wmma kernel for float32 in precision "f16x3": rows of a and columns of b are scaled by powers of two. Each
// element is split into two float16, high + low. The product is low·high + high·low + high·high.
#pragma once
#include "gemm.cuh"

constexpr int SPLIT_TILE = 32;     // a block's tile of out: four of 16 × 16, one per warp
constexpr int SPLIT_THREADS = 128;
constexpr int SPLIT_STEP = 16;     // of K; then the sum leaves the tensor cores, which truncate when they add
constexpr int NOT_FINITE = 1 << 20;

// The exponent of the factor 2^e of a row or column: it moves the largest element to between 2^14 and 2^15, unless that
// is below 2^-112. NOT_FINITE if the row or column has an infinity or NaN.
__device__ inline int scaling(const Tensor& t, long long start, long long stride, long long count) {
  unsigned largest = 0;  // bits of |x| are ordered like |x|, with NaN last
  for (long long k = 0; k < count; ++k) {
    const unsigned bits = __float_as_uint(load<float>(t, start + k * stride)) & 0x7fffffffu;
    if (bits > largest) largest = bits;
  }
  if (largest >= 0x7f800000u) return NOT_FINITE;
  const int power = static_cast<int>(largest >> 23) - 127;
  return 14 - (power > -112 ? power : -112);
}

__device__ inline void split(float x, int scale, __half& high, __half& low) {
  const float scaled = scale == NOT_FINITE ? 0.0f : ldexpf(x, scale);
  high = __float2half_rn(scaled);
  low = __float2half_rn(scaled - __half2float(high));
}

__global__ void gemm_f16x3_kernel(Tensor a, Tensor b, Tensor out, Epilogue epilogue) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  using namespace nvcuda;
  constexpr int PAD = 8;
  SHARED(__half, a_high, [SPLIT_TILE][SPLIT_STEP + PAD]);
  SHARED(__half, a_low, [SPLIT_TILE][SPLIT_STEP + PAD]);
  SHARED(__half, b_high, [SPLIT_STEP][SPLIT_TILE + PAD]);
  SHARED(__half, b_low, [SPLIT_STEP][SPLIT_TILE + PAD]);
  SHARED(float, sums, [SPLIT_TILE][SPLIT_TILE + 4]);
  SHARED(int, a_scale, [SPLIT_TILE]);
  SHARED(int, b_scale, [SPLIT_TILE]);
  const int warp = threadIdx.x / 32, row = warp / 2 * 16, column = warp % 2 * 16;
  const Corner corner = corner_of_block(out, SPLIT_TILE);
  const long long M = out.size[0], N = out.size[1], K = a.size[1];
  if (threadIdx.x < SPLIT_TILE) {
    const long long m = corner.m + threadIdx.x, n = corner.n + threadIdx.x;
    a_scale[threadIdx.x] = scaling(a, m * a.stride[0], a.stride[1], m < M ? K : 0);
    b_scale[threadIdx.x] = scaling(b, n * b.stride[1], b.stride[0], n < N ? K : 0);
  }
  __syncthreads();  // the scales are stored
  wmma::fragment<wmma::matrix_a, 16, 16, SPLIT_STEP, __half, wmma::row_major> a_part, a_rest;
  wmma::fragment<wmma::matrix_b, 16, 16, SPLIT_STEP, __half, wmma::row_major> b_part, b_rest;
  wmma::fragment<wmma::accumulator, 16, 16, SPLIT_STEP, float> sum, part;
  wmma::fill_fragment(sum, 0.0f);
  for (long long k0 = 0; k0 < K; k0 += SPLIT_STEP) {
    for (int i = threadIdx.x; i < SPLIT_TILE * SPLIT_STEP; i += SPLIT_THREADS) {
      const int a_row = i / SPLIT_STEP, a_column = i % SPLIT_STEP;
      const int b_row = i / SPLIT_TILE, b_column = i % SPLIT_TILE;
      const long long m = corner.m + a_row, a_k = k0 + a_column, b_k = k0 + b_row, n = corner.n + b_column;
      const bool in_a = m < M && a_k < K, in_b = b_k < K && n < N;
      split(in_a ? load<float>(a, m * a.stride[0] + a_k * a.stride[1]) : 0.0f, a_scale[a_row],
            a_high[a_row][a_column], a_low[a_row][a_column]);
      split(in_b ? load<float>(b, b_k * b.stride[0] + n * b.stride[1]) : 0.0f, b_scale[b_column],
            b_high[b_row][b_column], b_low[b_row][b_column]);
    }
    __syncthreads();  // the tiles are complete
    wmma::load_matrix_sync(a_part, &a_high[row][0], SPLIT_STEP + PAD);
    wmma::load_matrix_sync(a_rest, &a_low[row][0], SPLIT_STEP + PAD);
    wmma::load_matrix_sync(b_part, &b_high[0][column], SPLIT_TILE + PAD);
    wmma::load_matrix_sync(b_rest, &b_low[0][column], SPLIT_TILE + PAD);
    wmma::fill_fragment(part, 0.0f);
    wmma::mma_sync(part, a_rest, b_part, part);
    wmma::mma_sync(part, a_part, b_rest, part);
    wmma::mma_sync(part, a_part, b_part, part);
    for (int i = 0; i < sum.num_elements; ++i) sum.x[i] += part.x[i];
    __syncthreads();  // nobody reads them any more
  }
  wmma::store_matrix_sync(&sums[row][column], sum, SPLIT_TILE + 4, wmma::mem_row_major);
  __syncthreads();
  for (int i = threadIdx.x; i < SPLIT_TILE * SPLIT_TILE; i += SPLIT_THREADS) {
    const int r = i / SPLIT_TILE, c = i % SPLIT_TILE;
    const long long m = corner.m + r, n = corner.n + c;
    if (m >= M || n >= N) continue;
    float result = 0.0f;
    if (a_scale[r] == NOT_FINITE || b_scale[c] == NOT_FINITE) {
      for (long long k = 0; k < K; ++k)
        result = fused(load<float>(a, m * a.stride[0] + k * a.stride[1]),
                       load<float>(b, k * b.stride[0] + n * b.stride[1]), result);
    } else {
      result = ldexpf(sums[r][c], -(a_scale[r] + b_scale[c]));
    }
    store<float>(out, m * out.stride[0] + n * out.stride[1], epilogue.apply<float>(result, m, n));
  }
#endif
}
