// add: out = x + alpha·y, as fma(alpha, y, x) in the compute type, rounded once.
//
//   add                any dtypes and layouts, one thread per element: evidently right
//   f32, f16, bf16     dense, one element per thread
//   f32x4              dense, four elements per thread in one 128-bit access
//   f16x2, bf16x2      two elements per thread in one 32-bit access
//   f16x8, bf16x8      eight elements per thread in four 32-bit accesses
//   f16x8_pack, …      eight elements per thread in one 128-bit access
//   rung               dense: the rungs of rungs.cuh; two of them equal variants above
//   strided            other layouts: the rungs of strided.cuh
//
// Every vector variant takes any n and any alignment: where a full vector does not fit, or a
// pointer is not aligned to the access, the thread goes element by element.
#include "strided.cuh"

enum Number { NEITHER, X, Y };  // which operand is a number

template <class C>
__global__ void add_kernel(Tensor x, Tensor y, Number number, Scalar given, Tensor out,
                           Scalar alpha, long long n) {
  const long long i = global_thread();
  if (i >= n) return;
  const C a = number == X ? value<C>(given) : promoted<C>(x, x.offset(i), out.dtype);
  const C b = number == Y ? value<C>(given) : promoted<C>(y, y.offset(i), out.dtype);
  store<C>(out, out.offset(i), fused(value<C>(alpha), b, a));
}

// x, y and out have out's shape (stride 0 where broadcast). If one operand is a number, its tensor is null.
extern "C" int add(const Tensor* x, const Tensor* y, Scalar given, const Tensor* out, Scalar alpha,
                   cudaStream_t stream) {
  const long long n = out->numel();
  const Tensor xt = x ? *x : *y, yt = y ? *y : *x, ot = *out;
  const Number number = !x ? X : !y ? Y : NEITHER;
  WITH_COMPUTE_TYPE(out->dtype, LAUNCH(add_kernel<C>, blocks_for(n), THREADS, 0, stream, xt, yt,
                                       number, given, ot, alpha, n));
  return cudaGetLastError();
}

struct Add {
  static constexpr int INPUTS = 2, OUTPUTS = 1, WIDEST = 8;
  Scalar alpha;
  template <class C>
  __device__ void operator()(const C* in, C* out) const {
    out[0] = fused(value<C>(alpha), in[1], in[0]);
  }
};

extern "C" int add_rung(const Call* call, const void* x, const void* y, void* out, Scalar alpha, cudaStream_t stream) {
  return launch_rung<Add>(*call, {alpha}, {{x, y}, {out}}, stream);
}

extern "C" int add_strided(const Call* call, const Tensor* x, const Tensor* y, const Tensor* out, Scalar alpha,
                           cudaStream_t stream) {
  return launch_strided_rung<Add>(*call, {alpha}, {x, y, out}, stream);
}

#define ADD_VARIANT(NAME, T, V, PER_THREAD)                                                                    \
  extern "C" int add_##NAME(const Call* call, const void* x, const void* y, void* out, Scalar alpha,           \
                            cudaStream_t stream) {                                                             \
    launch_packs<T, V, PER_THREAD>(Add{alpha}, Operands<Add>{{x, y}, {out}}, call->n, stream);                \
    return cudaGetLastError();                                                                                 \
  }

ADD_VARIANT(f32, float, float, 1)
ADD_VARIANT(f32x4, float, float4, 4)
ADD_VARIANT(f16, __half, __half, 1)
ADD_VARIANT(f16x2, __half, unsigned, 2)
ADD_VARIANT(f16x8, __half, unsigned, 8)
ADD_VARIANT(f16x8_pack, __half, float4, 8)
ADD_VARIANT(bf16, __nv_bfloat16, __nv_bfloat16, 1)
ADD_VARIANT(bf16x2, __nv_bfloat16, unsigned, 2)
ADD_VARIANT(bf16x8, __nv_bfloat16, unsigned, 8)
ADD_VARIANT(bf16x8_pack, __nv_bfloat16, float4, 8)
