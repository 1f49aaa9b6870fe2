// cuda_on_cpu_intrinsics.h: conversions and arithmetic with given rounding, integer intrinsics, and mathematics that
// the C++ library lacks. Included by cuda_on_cpu.h.
#pragma once

namespace cuda_on_cpu {

// ---- Numbers to integers -----------------------------------------------------------------------------------

// Values outside of the type become its nearest number. NaN becomes 0, or the highest bit if a double or 64 bits are
// involved.
template <class To, class From>
To integer_of(From rounded) {
  constexpr bool wide = sizeof(To) == 8 || sizeof(From) == 8;
  if (rounded != rounded) return wide ? To(uint64_t(1) << (8 * sizeof(To) - 1)) : To(0);
  constexpr To lowest = std::numeric_limits<To>::min(), highest = std::numeric_limits<To>::max();
  const From above = 2 * From(highest / 2 + 1);  // a power of two
  return rounded < From(lowest) ? lowest : rounded >= above ? highest : To(rounded);
}

// ---- Other rounding modes ----------------------------------------------------------------------------------

// Volatile, because the compiler would compute before the mode is set.
template <class T, class Operation>
__attribute__((noinline)) auto rounded(int mode, Operation operation, T a, T b = T(), T c = T()) {
  volatile T x = a, y = b, z = c;
  const int before = fegetround();
  fesetround(mode);
  volatile auto result = operation(T(x), T(y), T(z));
  fesetround(before);
  return decltype(operation(a, b, c))(result);
}

template <class To, class From>
To number_of(int mode, From x) {
  return rounded(mode, [](From value, From, From) { return To(value); }, x);
}

}  // namespace cuda_on_cpu

#define CUDA_ON_CPU_TO_INTEGER(from, From, to, To)                                                                \
  inline To __##from##2##to##_rn(From x) { return cuda_on_cpu::integer_of<To>(std::nearbyint(x)); }               \
  inline To __##from##2##to##_rz(From x) { return cuda_on_cpu::integer_of<To>(std::trunc(x)); }                   \
  inline To __##from##2##to##_rd(From x) { return cuda_on_cpu::integer_of<To>(std::floor(x)); }                   \
  inline To __##from##2##to##_ru(From x) { return cuda_on_cpu::integer_of<To>(std::ceil(x)); }
#define CUDA_ON_CPU_TO_INTEGERS(from, From)                                                              \
  CUDA_ON_CPU_TO_INTEGER(from, From, int, int) CUDA_ON_CPU_TO_INTEGER(from, From, uint, unsigned)        \
  CUDA_ON_CPU_TO_INTEGER(from, From, ll, long long)                                                      \
  CUDA_ON_CPU_TO_INTEGER(from, From, ull, unsigned long long)
CUDA_ON_CPU_TO_INTEGERS(float, float)
CUDA_ON_CPU_TO_INTEGERS(double, double)
#undef CUDA_ON_CPU_TO_INTEGER
// The headers of half and bfloat16 have _rz themselves.
#define CUDA_ON_CPU_TO_INTEGER(from, From, to, To)                                                                \
  inline To __##from##2##to##_rn(From x) { return cuda_on_cpu::integer_of<To>(std::nearbyint(float(x))); }        \
  inline To __##from##2##to##_rd(From x) { return cuda_on_cpu::integer_of<To>(std::floor(float(x))); }            \
  inline To __##from##2##to##_ru(From x) { return cuda_on_cpu::integer_of<To>(std::ceil(float(x))); }
CUDA_ON_CPU_TO_INTEGERS(half, __half)
CUDA_ON_CPU_TO_INTEGERS(bfloat16, __nv_bfloat16)
CUDA_ON_CPU_TO_INTEGER(half, __half, short, short)
CUDA_ON_CPU_TO_INTEGER(half, __half, ushort, unsigned short)
CUDA_ON_CPU_TO_INTEGER(bfloat16, __nv_bfloat16, short, short)
CUDA_ON_CPU_TO_INTEGER(bfloat16, __nv_bfloat16, ushort, unsigned short)
#undef CUDA_ON_CPU_TO_INTEGER
#undef CUDA_ON_CPU_TO_INTEGERS

#define CUDA_ON_CPU_TO_NUMBER(from, From, to, To)                                                     \
  inline To __##from##2##to##_rn(From x) { return To(x); }                                            \
  inline To __##from##2##to##_rz(From x) { return cuda_on_cpu::number_of<To>(FE_TOWARDZERO, x); }     \
  inline To __##from##2##to##_rd(From x) { return cuda_on_cpu::number_of<To>(FE_DOWNWARD, x); }       \
  inline To __##from##2##to##_ru(From x) { return cuda_on_cpu::number_of<To>(FE_UPWARD, x); }
CUDA_ON_CPU_TO_NUMBER(int, int, float, float)
CUDA_ON_CPU_TO_NUMBER(uint, unsigned, float, float)
CUDA_ON_CPU_TO_NUMBER(ll, long long, float, float)
CUDA_ON_CPU_TO_NUMBER(ull, unsigned long long, float, float)
CUDA_ON_CPU_TO_NUMBER(ll, long long, double, double)
CUDA_ON_CPU_TO_NUMBER(ull, unsigned long long, double, double)
CUDA_ON_CPU_TO_NUMBER(double, double, float, float)
#undef CUDA_ON_CPU_TO_NUMBER
inline double __int2double_rn(int x) { return x; }
inline double __uint2double_rn(unsigned x) { return x; }

#define CUDA_ON_CPU_OPERATION(T, expression) \
  []([[maybe_unused]] T x, [[maybe_unused]] T y, [[maybe_unused]] T z) -> T { return expression; }
#define CUDA_ON_CPU_ROUNDED(name, T, parameters, a, b, c, expression)                                              \
  inline T __##name##_rn parameters { return CUDA_ON_CPU_OPERATION(T, expression)(a, b, c); }                      \
  inline T __##name##_rz parameters {                                                                              \
    return cuda_on_cpu::rounded(FE_TOWARDZERO, CUDA_ON_CPU_OPERATION(T, expression), a, b, c);                     \
  }                                                                                                                \
  inline T __##name##_rd parameters {                                                                              \
    return cuda_on_cpu::rounded(FE_DOWNWARD, CUDA_ON_CPU_OPERATION(T, expression), a, b, c);                       \
  }                                                                                                                \
  inline T __##name##_ru parameters {                                                                              \
    return cuda_on_cpu::rounded(FE_UPWARD, CUDA_ON_CPU_OPERATION(T, expression), a, b, c);                         \
  }
#define CUDA_ON_CPU_ARITHMETIC(T, f, fma)                                   \
  CUDA_ON_CPU_ROUNDED(f##add, T, (T a, T b), a, b, T(), x + y)              \
  CUDA_ON_CPU_ROUNDED(f##sub, T, (T a, T b), a, b, T(), x - y)              \
  CUDA_ON_CPU_ROUNDED(f##mul, T, (T a, T b), a, b, T(), x * y)              \
  CUDA_ON_CPU_ROUNDED(f##div, T, (T a, T b), a, b, T(), x / y)              \
  CUDA_ON_CPU_ROUNDED(f##rcp, T, (T a), a, T(), T(), T(1) / x)              \
  CUDA_ON_CPU_ROUNDED(f##sqrt, T, (T a), a, T(), T(), std::sqrt(x))         \
  CUDA_ON_CPU_ROUNDED(fma, T, (T a, T b, T c), a, b, c, std::fma(x, y, z))
CUDA_ON_CPU_ARITHMETIC(float, f, fmaf)
CUDA_ON_CPU_ARITHMETIC(double, d, fma)
#undef CUDA_ON_CPU_ARITHMETIC
#undef CUDA_ON_CPU_ROUNDED
#undef CUDA_ON_CPU_OPERATION
inline float __frsqrt_rn(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }

// ---- Bits --------------------------------------------------------------------------------------------------

inline int __double2hiint(double x) { return static_cast<int>(__double_as_longlong(x) >> 32); }
inline int __double2loint(double x) { return static_cast<int>(__double_as_longlong(x)); }
inline double __hiloint2double(int high, int low) {
  return __longlong_as_double(static_cast<long long>(uint64_t(uint32_t(high)) << 32 | uint32_t(low)));
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned long long __brevll(unsigned long long x) {
  unsigned long long reversed = 0;
  for (int i = 0; i < 64; ++i) reversed |= (x >> i & 1) << (63 - i);
  return reversed;
}
inline unsigned __brev(unsigned x) { return static_cast<unsigned>(__brevll(x) >> 32); }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = uint64_t(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned choice = selector >> 4 * i & 15;
    const unsigned byte = bytes >> 8 * (choice & 7) & 255;
    result |= (choice & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
  }
  return result;
}
inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t(high) << 32 | low) << std::min(shift, 32u) >> 32);
}
inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t(high) << 32 | low) >> std::min(shift, 32u));
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned n) { return __funnelshift_lc(low, high, n & 31); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n) { return __funnelshift_rc(low, high, n & 31); }

// ---- Integers ----------------------------------------------------------------------------------------------

inline int __mulhi(int x, int y) { return static_cast<int>(int64_t(x) * y >> 32); }
inline unsigned __umulhi(unsigned x, unsigned y) { return static_cast<unsigned>(uint64_t(x) * y >> 32); }
inline long long __mul64hi(long long x, long long y) { return static_cast<long long>(__int128(x) * y >> 64); }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}
inline int __mul24(int x, int y) {
  return static_cast<int>(int64_t(int(unsigned(x) << 8) >> 8) * (int(unsigned(y) << 8) >> 8));
}
inline unsigned __umul24(unsigned x, unsigned y) { return (x & 0xFFFFFF) * (y & 0xFFFFFF); }
inline unsigned __sad(int x, int y, unsigned sum) { return sum + (x < y ? unsigned(y) - x : unsigned(x) - y); }
inline unsigned __usad(unsigned x, unsigned y, unsigned sum) { return sum + (x < y ? y - x : x - y); }
inline int __hadd(int x, int y) { return static_cast<int>((int64_t(x) + y) >> 1); }
inline int __rhadd(int x, int y) { return static_cast<int>((int64_t(x) + y + 1) >> 1); }
inline unsigned __uhadd(unsigned x, unsigned y) { return static_cast<unsigned>((uint64_t(x) + y) >> 1); }
inline unsigned __urhadd(unsigned x, unsigned y) { return static_cast<unsigned>((uint64_t(x) + y + 1) >> 1); }

namespace cuda_on_cpu {

// Applies an operation to each Lane of two words.
template <class Lane, class Operation>
unsigned by_lane(unsigned x, unsigned y, Operation operation) {
  constexpr int bits = 8 * sizeof(Lane);
  unsigned result = 0;
  for (int at = 0; at < 32; at += bits) {
    const unsigned lane = static_cast<unsigned>(operation(int(Lane(x >> at)), int(Lane(y >> at))));
    result |= (lane & ((1u << bits) - 1)) << at;
  }
  return result;
}
template <class Lane>
int within(int x) {
  return std::clamp<int>(x, std::numeric_limits<Lane>::min(), std::numeric_limits<Lane>::max());
}
template <class Lane, class T>
T dot(unsigned x, unsigned y, T sum) {
  for (int at = 0; at < 32; at += 8) sum += T(Lane(x >> at)) * T(Lane(y >> at));
  return sum;
}

}  // namespace cuda_on_cpu

inline int __dp4a(int x, int y, int sum) { return int(cuda_on_cpu::dot<int8_t, unsigned>(x, y, sum)); }
inline unsigned __dp4a(unsigned x, unsigned y, unsigned sum) { return cuda_on_cpu::dot<uint8_t>(x, y, sum); }
inline int __dp4a(char4 x, char4 y, int sum) {
  return __dp4a(cuda_on_cpu::bits_as<int>(x), cuda_on_cpu::bits_as<int>(y), sum);
}
inline unsigned __dp4a(uchar4 x, uchar4 y, unsigned sum) {
  return __dp4a(cuda_on_cpu::bits_as<unsigned>(x), cuda_on_cpu::bits_as<unsigned>(y), sum);
}

#define CUDA_ON_CPU_LANES_OF(name, suffix, Lane, expression)                                           \
  inline unsigned name##suffix(unsigned a, unsigned b) {                                               \
    using cuda_on_cpu::within;                                                                         \
    using L [[maybe_unused]] = Lane;                                                                   \
    return cuda_on_cpu::by_lane<Lane>(a, b, [](int x, int y) -> int { return expression; });           \
  }
#define CUDA_ON_CPU_SIGNED(name, expression)             \
  CUDA_ON_CPU_LANES_OF(__v##name, 2, int16_t, expression) \
  CUDA_ON_CPU_LANES_OF(__v##name, 4, int8_t, expression)
#define CUDA_ON_CPU_UNSIGNED(name, expression)            \
  CUDA_ON_CPU_LANES_OF(__v##name, 2, uint16_t, expression) \
  CUDA_ON_CPU_LANES_OF(__v##name, 4, uint8_t, expression)
#define CUDA_ON_CPU_BOTH(name, expression) \
  CUDA_ON_CPU_SIGNED(name##s, expression) CUDA_ON_CPU_UNSIGNED(name##u, expression)
#define CUDA_ON_CPU_COMPARED(name, operator) \
  CUDA_ON_CPU_BOTH(cmp##name, x operator y ? -1 : 0) CUDA_ON_CPU_BOTH(set##name, x operator y ? 1 : 0)
CUDA_ON_CPU_SIGNED(add, x + y) CUDA_ON_CPU_SIGNED(sub, x - y)
CUDA_ON_CPU_SIGNED(addss, within<L>(x + y)) CUDA_ON_CPU_SIGNED(subss, within<L>(x - y))
CUDA_ON_CPU_UNSIGNED(addus, within<L>(x + y)) CUDA_ON_CPU_UNSIGNED(subus, within<L>(x - y))
CUDA_ON_CPU_BOTH(max, x < y ? y : x) CUDA_ON_CPU_BOTH(min, y < x ? y : x)
CUDA_ON_CPU_BOTH(absdiff, x < y ? y - x : x - y) CUDA_ON_CPU_BOTH(avg, (x + y + 1) >> 1)
CUDA_ON_CPU_UNSIGNED(haddu, (x + y) >> 1)
CUDA_ON_CPU_COMPARED(gt, >) CUDA_ON_CPU_COMPARED(ge, >=) CUDA_ON_CPU_COMPARED(lt, <) CUDA_ON_CPU_COMPARED(le, <=)
CUDA_ON_CPU_SIGNED(cmpeq, x == y ? -1 : 0) CUDA_ON_CPU_SIGNED(cmpne, x != y ? -1 : 0)
CUDA_ON_CPU_SIGNED(seteq, x == y ? 1 : 0) CUDA_ON_CPU_SIGNED(setne, x != y ? 1 : 0)
#undef CUDA_ON_CPU_COMPARED
#undef CUDA_ON_CPU_BOTH
#undef CUDA_ON_CPU_UNSIGNED
#undef CUDA_ON_CPU_SIGNED
#undef CUDA_ON_CPU_LANES_OF
inline unsigned __vneg2(unsigned x) { return __vsub2(0, x); }
inline unsigned __vneg4(unsigned x) { return __vsub4(0, x); }
inline unsigned __vabs2(unsigned x) { return __vmaxs2(x, __vneg2(x)); }
inline unsigned __vabs4(unsigned x) { return __vmaxs4(x, __vneg4(x)); }

// ---- Mathematics -------------------------------------------------------------------------------------------

using std::isfinite;
using std::isinf;
using std::isnan;
using std::signbit;

namespace cuda_on_cpu {

// sin and cos of pi·x: exact for multiples of 1/2.
template <class T> T sine_of_pi(T x) {
  const T rest = std::remainder(x, T(2));
  if (rest == std::trunc(rest)) return std::copysign(T(0), x);
  return std::abs(rest) == T(0.5) ? std::copysign(T(1), rest) : T(std::sin(3.14159265358979323846 * rest));
}
template <class T> T cosine_of_pi(T x) {
  const T rest = std::abs(std::remainder(x, T(2)));
  return rest == T(0.5) ? T(0) : T(std::cos(3.14159265358979323846 * rest));
}

// The x with erfc(x) = y, by Newton's method on log(erfc), which is nearly a parabola.
inline double inverse_erfc(double y) {
  if (!(y >= 0 && y <= 2)) return std::numeric_limits<double>::quiet_NaN();
  if (y == 0 || y == 2) return y == 0 ? INFINITY : -INFINITY;
  if (y > 1) return -inverse_erfc(2 - y);
  double x = y > 0.5 ? (1 - y) * 0.886226925452758 : std::sqrt(-std::log(y));
  for (int step = 0; step < 60; ++step) {
    const double value = std::erfc(x), slope = -1.1283791670955126 * std::exp(-x * x);
    const double change = value * std::log(value / y) / slope;
    x -= change;
    if (!(std::abs(change) > 1e-16 * std::abs(x))) break;
  }
  return x;
}
inline double inverse_erf(double x) {
  if (std::abs(x) > 0.5) return std::copysign(inverse_erfc(1 - std::abs(x)), x);
  double y = 0.886226925452758 * x;
  for (int step = 0; step < 8; ++step) y -= (std::erf(y) - x) / (1.1283791670955126 * std::exp(-y * y));
  return y;
}
inline double scaled_erfc(double x) {
  if (x < 25) return std::exp(x * x) * std::erfc(x);
  const double s = 1 / (2 * x * x);
  return 0.5641895835477563 / x * (1 - s * (1 - 3 * s * (1 - 5 * s)));
}

}  // namespace cuda_on_cpu

#define CUDA_ON_CPU_FUNCTION(name, expression)                                          \
  inline double name(double x) { return expression; }                                   \
  inline float name##f(float value) {                                                   \
    const double x = value;                                                             \
    return static_cast<float>(expression);                                              \
  }
CUDA_ON_CPU_FUNCTION(sinpi, cuda_on_cpu::sine_of_pi(x))
CUDA_ON_CPU_FUNCTION(cospi, cuda_on_cpu::cosine_of_pi(x))
CUDA_ON_CPU_FUNCTION(normcdf, 0.5 * std::erfc(-x * 0.7071067811865476))
CUDA_ON_CPU_FUNCTION(normcdfinv, -1.4142135623730951 * cuda_on_cpu::inverse_erfc(2 * x))
CUDA_ON_CPU_FUNCTION(erfinv, cuda_on_cpu::inverse_erf(x))
CUDA_ON_CPU_FUNCTION(erfcinv, cuda_on_cpu::inverse_erfc(x))
CUDA_ON_CPU_FUNCTION(erfcx, cuda_on_cpu::scaled_erfc(x))
CUDA_ON_CPU_FUNCTION(rcbrt, 1 / std::cbrt(x))
#undef CUDA_ON_CPU_FUNCTION
#define CUDA_ON_CPU_NORMS(T, f)                                                                                \
  inline void sincospi##f(T x, T* sine, T* cosine) {                                                           \
    *sine = sinpi##f(x);                                                                                       \
    *cosine = cospi##f(x);                                                                                     \
  }                                                                                                            \
  inline T norm3d##f(T a, T b, T c) { return std::hypot(a, b, c); }                                            \
  inline T norm4d##f(T a, T b, T c, T d) { return std::hypot(std::hypot(a, b), std::hypot(c, d)); }            \
  inline T rnorm3d##f(T a, T b, T c) { return 1 / norm3d##f(a, b, c); }                                        \
  inline T rnorm4d##f(T a, T b, T c, T d) { return 1 / norm4d##f(a, b, c, d); }                                \
  inline T rhypot##f(T a, T b) { return 1 / std::hypot(a, b); }
CUDA_ON_CPU_NORMS(float, f)
CUDA_ON_CPU_NORMS(double, )
#undef CUDA_ON_CPU_NORMS
