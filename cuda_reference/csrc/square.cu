// square: out = x·x in the compute type, rounded once; integers wrap.
//
//   square   any dtype and layout, one thread per element
//   1d       dense, a one-dimensional grid
//   2d       a dense matrix, a two-dimensional grid: one thread per (row, column), or per several rows of a column
//   rung     dense, floating: the rungs of rungs.cuh
//   strided  other layouts, floating: the rungs of strided.cuh
#include "strided.cuh"

template <class C>
__global__ void square_kernel(Tensor x, Tensor out, long long n) {
  const long long i = global_thread();
  if (i >= n) return;
  const C v = load<C>(x, x.offset(i));
  store<C>(out, out.offset(i), v * v);
}

extern "C" int square(const Tensor* x, const Tensor* out, cudaStream_t stream) {
  const long long n = out->numel();
  const Tensor xt = *x, ot = *out;
  WITH_COMPUTE_TYPE(out->dtype,
                    LAUNCH(square_kernel<C>, blocks_for(n), THREADS, 0, stream, xt, ot, n));
  return cudaGetLastError();
}

template <class C>
__global__ void square_1d_kernel(Tensor x, Tensor out, long long n) {
  const long long i = global_thread();
  if (i >= n) return;
  const C v = load<C>(x, i);
  store<C>(out, i, v * v);
}

extern "C" int square_1d(const Tensor* x, const Tensor* out, cudaStream_t stream) {
  const long long n = out->numel();
  const Tensor xt = *x, ot = *out;
  WITH_COMPUTE_TYPE(out->dtype,
                    LAUNCH(square_1d_kernel<C>, blocks_for(n), THREADS, 0, stream, xt, ot, n));
  return cudaGetLastError();
}

template <class C>
__global__ void square_2d_kernel(Tensor x, Tensor out, long long rows, long long columns) {
  const long long column = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  // A grid has at most 65535 blocks along y: with more rows a thread takes several.
  const long long first = static_cast<long long>(blockIdx.y) * blockDim.y + threadIdx.y;
  for (long long row = first; row < rows; row += static_cast<long long>(gridDim.y) * blockDim.y) {
    const C v = load<C>(x, row * columns + column);
    store<C>(out, row * columns + column, v * v);
  }
}

extern "C" int square_2d(const Tensor* x, const Tensor* out, cudaStream_t stream) {
  const long long rows = out->size[0], columns = out->size[1];
  const Tensor xt = *x, ot = *out;
  const dim3 block(32, 8);
  const long long blocks_y = (rows + 7) / 8;
  const dim3 grid(static_cast<unsigned>((columns + 31) / 32),
                  static_cast<unsigned>(blocks_y < 65535 ? blocks_y : 65535));
  WITH_COMPUTE_TYPE(out->dtype,
                    LAUNCH(square_2d_kernel<C>, grid, block, 0, stream, xt, ot, rows, columns));
  return cudaGetLastError();
}

struct Square {
  static constexpr int INPUTS = 1, OUTPUTS = 1, WIDEST = 8;
  template <class C>
  __device__ void operator()(const C* in, C* out) const {
    out[0] = in[0] * in[0];
  }
};

extern "C" int square_rung(const Call* call, const void* x, void* out, cudaStream_t stream) {
  return launch_rung<Square>(*call, {}, {{x}, {out}}, stream);
}

extern "C" int square_strided(const Call* call, const Tensor* x, const Tensor* out, cudaStream_t stream) {
  return launch_strided_rung<Square>(*call, {}, {x, out}, stream);
}

// square_backward: out = grad·(2·x), the gradient; any dtype and layout. 2·x is exact or infinite.
template <class C>
__global__ void square_backward_kernel(Tensor grad, Tensor x, Tensor out, long long n) {
  const long long i = global_thread();
  if (i >= n) return;
  const C g = promoted<C>(grad, grad.offset(i), out.dtype);
  store<C>(out, out.offset(i), g * (C(2) * promoted<C>(x, x.offset(i), out.dtype)));
}

extern "C" int square_backward(const Tensor* grad, const Tensor* x, const Tensor* out,
                               cudaStream_t stream) {
  const long long n = out->numel();
  const Tensor gt = *grad, xt = *x, ot = *out;
  WITH_FLOATING_TYPE(out->dtype, LAUNCH(square_backward_kernel<C>, blocks_for(n), THREADS, 0,
                                       stream, gt, xt, ot, n));
  return cudaGetLastError();
}

struct SquareBackward {
  static constexpr int INPUTS = 2, OUTPUTS = 1, WIDEST = 8;
  template <class C>
  __device__ void operator()(const C* in, C* out) const {
    out[0] = in[0] * (C(2) * in[1]);
  }
};

extern "C" int square_backward_rung(const Call* call, const void* grad, const void* x, void* out,
                                    cudaStream_t stream) {
  return launch_rung<SquareBackward>(*call, {}, {{grad, x}, {out}}, stream);
}

extern "C" int square_backward_strided(const Call* call, const Tensor* grad, const Tensor* x, const Tensor* out,
                                       cudaStream_t stream) {
  return launch_strided_rung<SquareBackward>(*call, {}, {grad, x, out}, stream);
}
