// gemm_bias_act: out = act(alpha·(a@b) + beta·c + bias), accumulated in float (double for float64).
//
//   naive   one thread an output element
//   tiled   the same through tiles in shared memory
//   wmma    on tensor cores: float16, bfloat16, and float32 as tf32, tf32x3 or f16x3
//
// epilogue does what comes after a@b, for sums of cublasLt (_cublaslt.py).
#include "gemm_wmma.cuh"

static Epilogue epilogue_of(const Tensor* bias, const Tensor* c, Scalar alpha, Scalar beta,
                            int act) {
  Epilogue epilogue{};
  epilogue.has_bias = bias != nullptr;
  epilogue.has_c = c != nullptr;
  if (bias) epilogue.bias = *bias;
  if (c) epilogue.c = *c;
  epilogue.alpha = alpha;
  epilogue.beta = beta;
  epilogue.act = act;
  return epilogue;
}

extern "C" int gemm_bias_act_naive(const Tensor* a, const Tensor* b, const Tensor* bias,
                                   const Tensor* c, const Tensor* out, Scalar alpha, Scalar beta,
                                   int act, cudaStream_t stream) {
  return gemm_naive(*a, *b, *out, epilogue_of(bias, c, alpha, beta, act), stream);
}

extern "C" int gemm_bias_act_tiled(const Tensor* a, const Tensor* b, const Tensor* bias,
                                   const Tensor* c, const Tensor* out, Scalar alpha, Scalar beta,
                                   int act, cudaStream_t stream) {
  return gemm_tiled(*a, *b, *out, epilogue_of(bias, c, alpha, beta, act), stream);
}

extern "C" int gemm_bias_act_wmma(const Tensor* a, const Tensor* b, const Tensor* bias,
                                  const Tensor* c, const Tensor* out, Scalar alpha, Scalar beta,
                                  int act, int precision, cudaStream_t stream) {
  return gemm_wmma(*a, *b, *out, epilogue_of(bias, c, alpha, beta, act), precision, stream);
}

// One thread an element, blocks along rows.
template <class C>
__global__ void gemm_epilogue_kernel(Tensor sums, Tensor out, Epilogue epilogue) {
  const long long N = out.size[1];
  const unsigned across = static_cast<unsigned>((N + THREADS - 1) / THREADS);
  const long long m = blockIdx.x / across, n = blockIdx.x % across * static_cast<long long>(THREADS) + threadIdx.x;
  if (n >= N) return;
  const C sum = load<C>(sums, m * sums.stride[0] + n * sums.stride[1]);
  store<C>(out, m * out.stride[0] + n * out.stride[1], epilogue.apply<C>(sum, m, n));
}

extern "C" int gemm_bias_act_epilogue(const Tensor* sums, const Tensor* bias, const Tensor* c,
                                      const Tensor* out, Scalar alpha, Scalar beta, int act,
                                      cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(out->size[0] * blocks_for(out->size[1])));
  const Epilogue epilogue = epilogue_of(bias, c, alpha, beta, act);
  WITH_FLOATING_TYPE(sums->dtype, LAUNCH(gemm_epilogue_kernel<C>, blocks, THREADS, 0, stream, *sums, *out, epilogue));
  return cudaGetLastError();
}
