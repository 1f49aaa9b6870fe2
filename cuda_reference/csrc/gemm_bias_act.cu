// gemm_bias_act: out = act(alpha·(a@b) + beta·c + bias), accumulated in float (double for float64).
//
//   naive   one thread per output element
//   tiled   the same with tiles in shared memory
//   wmma    on tensor cores: float16, bfloat16, and float32 as tf32, tf32x3 or f16x3
//
// epilogue computes everything after a@b, for products by cublasLt (_cublaslt.py).
#include "gemm_wmma.cuh"
#include "rungs.cuh"

static Epilogue epilogue_of(const Tensor* bias, const Tensor* c, Scalar alpha, Scalar beta,
                            int act) {
  Epilogue epilogue{};
  epilogue.has_bias = bias != nullptr;
  epilogue.has_c = c != nullptr;
  if (bias) epilogue.bias = *bias;
  if (c) epilogue.c = *c;
  epilogue.alpha = alpha;
  epilogue.beta = beta;
  epilogue.act.number = act;
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

// Products without c, where rows of all tensors are dense and start at multiples of 16 bytes.
struct Rows {
  const float* sums;
  const void* bias;
  void* out;
  long long sums_step, out_step, M, N;  // steps: elements from row to row
  float alpha;
  Activation act;
};

// Blocks along rows, 16 bytes of out per thread.
template <class T>
__global__ void gemm_epilogue_rows_kernel(Rows rows) {
  constexpr int SIZE = 16 / sizeof(T);
  const unsigned across = static_cast<unsigned>((rows.N + THREADS * SIZE - 1) / (THREADS * SIZE));
  const long long m = blockIdx.x / across;
  const long long n = (blockIdx.x % across * static_cast<long long>(THREADS) + threadIdx.x) * SIZE;
  const float* sums = rows.sums + m * rows.sums_step + n;
  const T* bias = rows.bias ? static_cast<const T*>(rows.bias) + n : nullptr;
  T* out = static_cast<T*>(rows.out) + m * rows.out_step + n;
  if (n + SIZE <= rows.N) {
    Pack<float, float4, SIZE> sum;
    Pack<T, float4, SIZE> added, result;
#pragma unroll
    for (int a = 0; a < SIZE / 4; ++a) sum.access[a] = reinterpret_cast<const float4*>(sums)[a];
    if (bias) added.access[0] = *reinterpret_cast<const float4*>(bias);
#pragma unroll
    for (int e = 0; e < SIZE; ++e) {
      const float pre = rows.alpha * sum.element[e] + (bias ? widened(added.element[e]) : 0.0f);
      round_to(result.element[e], rows.act.forward(pre));
    }
    __stcs(reinterpret_cast<float4*>(out), result.access[0]);  // an assignment would become four stores
  } else {
    for (int e = 0; e < SIZE && n + e < rows.N; ++e) {
      const float pre = rows.alpha * sums[e] + (bias ? widened(bias[e]) : 0.0f);
      round_to(out[e], rows.act.forward(pre));
    }
  }
}

// Whether the tensors have rows of that kind; those of sums always do.
static bool packs_take(const Tensor& sums, const Tensor* bias, const Tensor& out) {
  const int size = out.dtype == F32 ? 4 : 2;
  if (sums.dtype != F32 || out.dtype > F32 || out.stride[1] != 1) return false;
  if (out.stride[0] * size % 16 != 0 || reinterpret_cast<size_t>(out.data) % 16 != 0) return false;
  if (!bias) return true;
  return bias->dtype == out.dtype && bias->stride[0] == 1 && reinterpret_cast<size_t>(bias->data) % 16 == 0;
}

template <class T>
static int launch_rows(const Rows& rows, cudaStream_t stream) {
  constexpr long long EACH = THREADS * (16 / sizeof(T));
  const unsigned blocks = static_cast<unsigned>(rows.M * ((rows.N + EACH - 1) / EACH));
  LAUNCH(gemm_epilogue_rows_kernel<T>, blocks, THREADS, 0, stream, rows);
  return cudaGetLastError();
}

// For all other tensors: one thread per element, blocks along rows.
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
  if (!c && packs_take(*sums, bias, *out)) {
    const Rows rows{static_cast<const float*>(sums->data), bias ? bias->data : nullptr, out->data, sums->stride[0],
                    out->stride[0], out->size[0], out->size[1], static_cast<float>(alpha.real), {act}};
    if (out->dtype == F16) return launch_rows<__half>(rows, stream);
    return out->dtype == BF16 ? launch_rows<__nv_bfloat16>(rows, stream) : launch_rows<float>(rows, stream);
  }
  const dim3 blocks(static_cast<unsigned>(out->size[0] * blocks_for(out->size[1])));
  const Epilogue epilogue = epilogue_of(bias, c, alpha, beta, act);
  WITH_FLOATING_TYPE(sums->dtype, LAUNCH(gemm_epilogue_kernel<C>, blocks, THREADS, 0, stream, *sums, *out, epilogue));
  return cudaGetLastError();
}
