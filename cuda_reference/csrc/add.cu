// add: out = x + alpha·y, as fma(alpha, y, x) in the compute type, rounded once.
//
//   add                any dtypes and layouts, one thread an element: evidently right
//   f32, f16, bf16     dense, one element a thread
//   f32x4              dense, four elements a thread in one 128-bit access
//   f16x2, bf16x2      two elements a thread in one 32-bit access
//   f16x8, bf16x8      eight elements a thread in four 32-bit accesses
//   f16x8_pack, …      eight elements a thread in one 128-bit access
//
// Every vector variant takes any n and any alignment: where a full vector does not fit, or a
// pointer is not aligned to the access, its thread goes element by element.
#include "elementwise.cuh"

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

// x, y and out have out's shape (stride 0 where broadcast); one of x and y may be null: the number.
extern "C" int add(const Tensor* x, const Tensor* y, Scalar given, const Tensor* out, Scalar alpha,
                   cudaStream_t stream) {
  const long long n = out->numel();
  const Tensor xt = x ? *x : *y, yt = y ? *y : *x, ot = *out;
  const Number number = !x ? X : !y ? Y : NEITHER;
  WITH_COMPUTE_TYPE(out->dtype, LAUNCH(add_kernel<C>, blocks_for(n), THREADS, 0, stream, xt, yt,
                                       number, given, ot, alpha, n));
  return cudaGetLastError();
}

__device__ inline float to_float(float v) { return v; }
__device__ inline float to_float(__half v) { return __half2float(v); }
__device__ inline float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ inline void round_to(float& out, float v) { out = v; }
__device__ inline void round_to(__half& out, float v) { out = __float2half_rn(v); }
__device__ inline void round_to(__nv_bfloat16& out, float v) { out = __float2bfloat16_rn(v); }

template <class V>
__device__ bool aligned(const void* p) {
  return reinterpret_cast<size_t>(p) % sizeof(V) == 0;
}

// PER_THREAD elements of T a thread, moved in accesses of type V.
template <class T, class V, int PER_THREAD>
__global__ void add_vector_kernel(T* out, const T* x, const T* y, float alpha, long long n) {
  constexpr int ACCESSES = PER_THREAD * sizeof(T) / sizeof(V);
  const long long start = global_thread() * PER_THREAD;
  if (start + PER_THREAD <= n && aligned<V>(x) && aligned<V>(y) && aligned<V>(out)) {
    union Pack {
      V access[ACCESSES];
      T element[PER_THREAD];
      __device__ Pack() {}
    } a, b, sum;
#pragma unroll
    for (int k = 0; k < ACCESSES; ++k) {
      a.access[k] = reinterpret_cast<const V*>(x + start)[k];
      b.access[k] = reinterpret_cast<const V*>(y + start)[k];
    }
#pragma unroll
    for (int k = 0; k < PER_THREAD; ++k)
      round_to(sum.element[k], fmaf(alpha, to_float(b.element[k]), to_float(a.element[k])));
#pragma unroll
    for (int k = 0; k < ACCESSES; ++k) reinterpret_cast<V*>(out + start)[k] = sum.access[k];
  } else {
    for (long long i = start; i < start + PER_THREAD && i < n; ++i)
      round_to(out[i], fmaf(alpha, to_float(y[i]), to_float(x[i])));
  }
}

#define ADD_VARIANT(NAME, T, V, PER_THREAD)                                                     \
  extern "C" int add_##NAME(T* out, const T* x, const T* y, float alpha, long long n,           \
                            cudaStream_t stream) {                                              \
    LAUNCH((add_vector_kernel<T, V, PER_THREAD>),                                               \
           blocks_for((n + PER_THREAD - 1) / PER_THREAD), THREADS, 0, stream, out, x, y, alpha, \
           n);                                                                                  \
    return cudaGetLastError();                                                                  \
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
