// Common parts of the elementwise kernels: tensors of any dtype and layout, read in the compute type.
//
// The compute type C is float for float16, bfloat16 and float32, double for float64, and unsigned
// 64-bit for the integers: arithmetic modulo 2^64, truncated to the result's width, wraps exactly as
// arithmetic in that width does. The dtype is a run-time switch, because plain code matters more than speed here.
#pragma once
#include "crosscheck.cuh"

enum DType { F16, BF16, F32, F64, U8, I8, I16, I32, I64 };

constexpr int MAX_DIMS = 64;  // torch's own limit
using u64 = unsigned long long;

// A tensor as passed by Python; strides in elements. Mirrored by _elementwise.py.
struct Tensor {
  void* data;
  int dtype;
  int ndim;
  long long size[MAX_DIMS];
  long long stride[MAX_DIMS];

  __host__ __device__ long long numel() const {
    long long n = 1;
    for (int d = 0; d < ndim; ++d) n *= size[d];
    return n;
  }

  // The offset of element i in row-major order.
  __device__ long long offset(long long i) const {
    long long at = 0;
    for (int d = ndim - 1; d >= 0; --d) {
      at += i % size[d] * stride[d];
      i /= size[d];
    }
    return at;
  }
};

// A Python number in both forms; the result's dtype selects one.
struct Scalar {
  double real;
  long long integer;
};

template <class C>
__device__ C value(Scalar s) {
  return static_cast<C>(s.real);
}
template <>
__device__ inline u64 value<u64>(Scalar s) {
  return static_cast<u64>(s.integer);
}

template <class C>
__device__ C load(const Tensor& t, long long at) {
  switch (t.dtype) {
    case F16: return static_cast<C>(__half2float(static_cast<const __half*>(t.data)[at]));
    case BF16: return static_cast<C>(__bfloat162float(static_cast<const __nv_bfloat16*>(t.data)[at]));
    case F32: return static_cast<C>(static_cast<const float*>(t.data)[at]);
    case F64: return static_cast<C>(static_cast<const double*>(t.data)[at]);
    case U8: return static_cast<C>(static_cast<const unsigned char*>(t.data)[at]);
    case I8: return static_cast<C>(static_cast<const signed char*>(t.data)[at]);
    case I16: return static_cast<C>(static_cast<const short*>(t.data)[at]);
    case I32: return static_cast<C>(static_cast<const int*>(t.data)[at]);
    default: return static_cast<C>(static_cast<const long long*>(t.data)[at]);
  }
}

// Rounds once (floating) or wraps (integers).
template <class C>
__device__ void store(const Tensor& t, long long at, C v) {
  switch (t.dtype) {
    case F16: static_cast<__half*>(t.data)[at] = __float2half_rn(static_cast<float>(v)); break;
    case BF16:
      static_cast<__nv_bfloat16*>(t.data)[at] = __float2bfloat16_rn(static_cast<float>(v));
      break;
    case F32: static_cast<float*>(t.data)[at] = static_cast<float>(v); break;
    case F64: static_cast<double*>(t.data)[at] = static_cast<double>(v); break;
    case U8: static_cast<unsigned char*>(t.data)[at] = static_cast<unsigned char>(v); break;
    case I8: static_cast<signed char*>(t.data)[at] = static_cast<signed char>(v); break;
    case I16: static_cast<short*>(t.data)[at] = static_cast<short>(v); break;
    case I32: static_cast<int*>(t.data)[at] = static_cast<int>(v); break;
    default: static_cast<long long*>(t.data)[at] = static_cast<long long>(v); break;
  }
}

// An operand as the formula gets it: converted to the result's dtype, as torch promotes, then to C.
template <class C>
__device__ C promoted(const Tensor& t, long long at, int) {
  return load<C>(t, at);
}
template <>
__device__ inline float promoted<float>(const Tensor& t, long long at, int result) {
  const float v = load<float>(t, at);
  if (result == F16) return __half2float(__float2half_rn(v));
  if (result == BF16) return __bfloat162float(__float2bfloat16_rn(v));
  return v;
}

__device__ inline float fused(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double fused(double a, double b, double c) { return fma(a, b, c); }
__device__ inline u64 fused(u64 a, u64 b, u64 c) { return a * b + c; }

__device__ inline long long global_thread() {
  return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
}

constexpr int THREADS = 256;

inline unsigned blocks_for(long long threads) {
  return static_cast<unsigned>((threads + THREADS - 1) / THREADS);
}

// nvcc takes many seconds for all kernels of an op. So Python lets it compile the part that a call needs: with ONLY_PLAIN
// a library has no rungs, with ONLY_RUNGS_OF only those of this dtype. Launchers of what is left out return an error.
#ifdef ONLY_RUNGS_OF
#pragma nv_diag_suppress 177  // variables that only plain kernels use
#define WITH_FLOATING_TYPE(dtype, ...) return cudaErrorInvalidValue
#define WITH_COMPUTE_TYPE(dtype, ...) return cudaErrorInvalidValue
#else

// Runs the statement with C = the compute type of a floating result dtype.
#define WITH_FLOATING_TYPE(dtype, ...) \
  do {                                  \
    if ((dtype) == F64) {               \
      using C = double;                 \
      __VA_ARGS__;                          \
    } else {                            \
      using C = float;                  \
      __VA_ARGS__;                          \
    }                                   \
  } while (0)

// The same for any result dtype.
#define WITH_COMPUTE_TYPE(dtype, ...) \
  do {                                 \
    if ((dtype) > F64) {               \
      using C = u64;                   \
      __VA_ARGS__;                         \
    } else {                           \
      WITH_FLOATING_TYPE(dtype, __VA_ARGS__); \
    }                                  \
  } while (0)

#endif
