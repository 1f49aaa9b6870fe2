// Common parts of the matrix products: the arguments, the epilogue, the kernels.
#pragma once
#include "activations.cuh"

// act(alpha·(a@b) + beta·c + bias). Vectors and matrices are [N], [M, K], [K, N], [M, N].
struct Epilogue {
  Tensor bias, c;
  bool has_bias, has_c;
  Scalar alpha, beta;
  Activation act;

  template <class C>
  __device__ C apply(C sum, long long m, long long n) const {
    C pre = value<C>(alpha) * sum;
    if (has_c) pre += value<C>(beta) * load<C>(c, m * c.stride[0] + n * c.stride[1]);
    if (has_bias) pre += load<C>(bias, n * bias.stride[0]);
    return act.forward(pre);
  }
};

// The corner of a block's square tile of out. Tiles are numbered along rows in one dimension of the grid, because the
// second dimension has at most 65535 blocks.
struct Corner {
  long long m, n;
};
__device__ inline Corner corner_of_block(const Tensor& out, int size) {
  const long long across = (out.size[1] + size - 1) / size;
  return {blockIdx.x / across * size, blockIdx.x % across * size};
}
inline dim3 tiles_of(const Tensor& out, int size) {
  return dim3(static_cast<unsigned>((out.size[0] + size - 1) / size * ((out.size[1] + size - 1) / size)));
}

constexpr int TILE = 16;

// One thread per output element.
template <class C>
__global__ void gemm_naive_kernel(Tensor a, Tensor b, Tensor out, Epilogue epilogue) {
  const Corner corner = corner_of_block(out, TILE);
  const long long m = corner.m + threadIdx.y, n = corner.n + threadIdx.x;
  const long long M = out.size[0], N = out.size[1], K = a.size[1];
  if (m >= M || n >= N) return;
  C sum = 0;
  for (long long k = 0; k < K; ++k)
    sum = fused(load<C>(a, m * a.stride[0] + k * a.stride[1]),
                load<C>(b, k * b.stride[0] + n * b.stride[1]), sum);
  store<C>(out, m * out.stride[0] + n * out.stride[1], epilogue.apply<C>(sum, m, n));
}

// A block computes a TILE × TILE tile of out. It loads a and b tile by tile into shared memory, so that
// each element is loaded once per block instead of once per thread.
template <class C>
__global__ void gemm_tiled_kernel(Tensor a, Tensor b, Tensor out, Epilogue epilogue) {
  SHARED(C, a_tile, [TILE][TILE + 1]);
  SHARED(C, b_tile, [TILE][TILE + 1]);
  const int row = threadIdx.y, column = threadIdx.x;
  const Corner corner = corner_of_block(out, TILE);
  const long long m = corner.m + row, n = corner.n + column;
  const long long M = out.size[0], N = out.size[1], K = a.size[1];
  C sum = 0;
  for (long long k0 = 0; k0 < K; k0 += TILE) {
    const bool in_a = m < M && k0 + column < K;
    const bool in_b = k0 + row < K && n < N;
    a_tile[row][column] = in_a ? load<C>(a, m * a.stride[0] + (k0 + column) * a.stride[1]) : C(0);
    b_tile[row][column] = in_b ? load<C>(b, (k0 + row) * b.stride[0] + n * b.stride[1]) : C(0);
    __syncthreads();  // the tiles are complete
    for (int k = 0; k < TILE; ++k) sum = fused(a_tile[row][k], b_tile[k][column], sum);
    __syncthreads();  // nobody reads them any more
  }
  if (m < M && n < N)
    store<C>(out, m * out.stride[0] + n * out.stride[1], epilogue.apply<C>(sum, m, n));
}

inline int gemm_naive(const Tensor& a, const Tensor& b, const Tensor& out, const Epilogue& epilogue,
                      cudaStream_t stream) {
  WITH_FLOATING_TYPE(a.dtype, LAUNCH(gemm_naive_kernel<C>, tiles_of(out, TILE), dim3(TILE, TILE), 0,
                                     stream, a, b, out, epilogue));
  return cudaGetLastError();
}

inline int gemm_tiled(const Tensor& a, const Tensor& b, const Tensor& out, const Epilogue& epilogue,
                      cudaStream_t stream) {
  WITH_FLOATING_TYPE(a.dtype, LAUNCH(gemm_tiled_kernel<C>, tiles_of(out, TILE), dim3(TILE, TILE), 0,
                                     stream, a, b, out, epilogue));
  return cudaGetLastError();
}
