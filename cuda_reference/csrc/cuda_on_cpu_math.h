// cuda_on_cpu_math.h: device functions that CUDA's headers have only under nvcc, for the CPU. Included by
// cuda_on_cpu.h. Fast variants (__expf …) are the accurate functions: only a GPU tells their precision.
#pragma once

// As in CUDA: of a number and a NaN the number; mixed integers in their common type.
template <class A, class B> auto min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point<T>::value) return std::fmin(T(a), T(b));
  else return T(b) < T(a) ? T(b) : T(a);
}
template <class A, class B> auto max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point<T>::value) return std::fmax(T(a), T(b));
  else return T(a) < T(b) ? T(b) : T(a);
}

inline unsigned umin(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned umax(unsigned a, unsigned b) { return a < b ? b : a; }
inline long long llmin(long long a, long long b) { return a < b ? a : b; }
inline long long llmax(long long a, long long b) { return a < b ? b : a; }
inline unsigned long long ullmin(unsigned long long a, unsigned long long b) { return a < b ? a : b; }
inline unsigned long long ullmax(unsigned long long a, unsigned long long b) { return a < b ? b : a; }

// A template, because sources that also compile for the CPU define this one themselves.
template <class T> float rsqrtf(T x) { return 1.0f / std::sqrt(static_cast<float>(x)); }
// No templates, as in CUDA, so that they go before a source's own template.
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float rsqrt(float x) { return 1.0f / std::sqrt(x); }
template <class T, class = std::enable_if_t<std::is_integral<T>::value>> double rsqrt(T x) { return rsqrt(double(x)); }
inline float __expf(float x) { return std::exp(x); }
inline float __exp10f(float x) { return std::pow(10.0f, x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __log10f(float x) { return std::log10(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __tanf(float x) { return std::tan(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }  // NaN to 0

namespace cuda_on_cpu {
template <class To, class From> To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}
}  // namespace cuda_on_cpu
inline int __float_as_int(float x) { return cuda_on_cpu::bits_as<int>(x); }
inline unsigned __float_as_uint(float x) { return cuda_on_cpu::bits_as<unsigned>(x); }
inline float __int_as_float(int x) { return cuda_on_cpu::bits_as<float>(x); }
inline float __uint_as_float(unsigned x) { return cuda_on_cpu::bits_as<float>(x); }
inline long long __double_as_longlong(double x) { return cuda_on_cpu::bits_as<long long>(x); }
inline double __longlong_as_double(long long x) { return cuda_on_cpu::bits_as<double>(x); }

// ---- half and bfloat16: the device-only functions of cuda_fp16.h and cuda_bf16.h ----------------------------

namespace cuda_on_cpu {
// x*y + z rounded to odd in double, so that the following rounding to 16 bits is the only one. The product of two
// 16-bit floats is exact in double; the sum's error is computed by Knuth's two-sum.
inline double fma_to_odd(double x, double y, double z) {
  const double product = x * y, sum = product + z, part = sum - product;
  const double error = (product - (sum - part)) + (z - part);
  if (error == 0.0 || !(error - error == 0.0)) return sum;  // exact, or infinite
  const long long bits = bits_as<long long>(sum);
  if (bits & 1) return sum;
  return bits_as<double>((error > 0.0) == (sum > 0.0) ? bits + 1 : bits - 1);
}
}  // namespace cuda_on_cpu
inline __half __hfma(__half x, __half y, __half z) {
  return __double2half(cuda_on_cpu::fma_to_odd(__half2float(x), __half2float(y), __half2float(z)));
}
inline __nv_bfloat16 __hfma(__nv_bfloat16 x, __nv_bfloat16 y, __nv_bfloat16 z) {
  return __double2bfloat16(
      cuda_on_cpu::fma_to_odd(__bfloat162float(x), __bfloat162float(y), __bfloat162float(z)));
}
inline __half2 __hfma2(__half2 x, __half2 y, __half2 z) {
  return __half2(__hfma(x.x, y.x, z.x), __hfma(x.y, y.y, z.y));
}
inline __nv_bfloat162 __hfma2(__nv_bfloat162 x, __nv_bfloat162 y, __nv_bfloat162 z) {
  return __nv_bfloat162(__hfma(x.x, y.x, z.x), __hfma(x.y, y.y, z.y));
}

#define CUDA_ON_CPU_UNARY(name, expression)                                                         \
  inline __half h##name(__half h) {                                                                 \
    const float x = __half2float(h);                                                                \
    return __float2half_rn(expression);                                                             \
  }                                                                                                 \
  inline __nv_bfloat16 h##name(__nv_bfloat16 h) {                                                   \
    const float x = __bfloat162float(h);                                                            \
    return __float2bfloat16_rn(expression);                                                         \
  }                                                                                                 \
  inline __half2 h2##name(__half2 h) { return __half2(h##name(h.x), h##name(h.y)); }                \
  inline __nv_bfloat162 h2##name(__nv_bfloat162 h) { return __nv_bfloat162(h##name(h.x), h##name(h.y)); }
CUDA_ON_CPU_UNARY(exp, std::exp(x))
CUDA_ON_CPU_UNARY(exp2, std::exp2(x))
CUDA_ON_CPU_UNARY(log, std::log(x))
CUDA_ON_CPU_UNARY(log2, std::log2(x))
CUDA_ON_CPU_UNARY(sqrt, std::sqrt(x))
CUDA_ON_CPU_UNARY(rsqrt, 1.0f / std::sqrt(x))
CUDA_ON_CPU_UNARY(rcp, 1.0f / x)
CUDA_ON_CPU_UNARY(tanh, std::tanh(x))
CUDA_ON_CPU_UNARY(sin, std::sin(x))
CUDA_ON_CPU_UNARY(cos, std::cos(x))
CUDA_ON_CPU_UNARY(floor, std::floor(x))
CUDA_ON_CPU_UNARY(ceil, std::ceil(x))
CUDA_ON_CPU_UNARY(rint, std::rint(x))
CUDA_ON_CPU_UNARY(trunc, std::trunc(x))
#undef CUDA_ON_CPU_UNARY
