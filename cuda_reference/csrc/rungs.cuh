// The faster kernels of elementwise ops: rungs between an op's plain kernel and the fastest, one idea each. They take
// dense tensors of one shape and one floating dtype. All give the same bits, which are the plain kernel's unless a formula
// has a short form for elements of 16 bits (short_forms.cuh). docs/CUDA_LADDER.md explains them.
//
//   scalar    one element per thread; dtype and layout are template parameters: no switch, no division
//   pack64    one access of 64 bits per tensor and thread
//   pack128   one access of 128 bits, the widest
//   stream    several accesses of 128 bits in flight; a grid of no more blocks than the GPU holds, which loop over the
//             tensors; hints that no cache line is needed again
//
// A formula is a struct with the numbers of tensors that it reads and writes, the size of the widest element that it
// supports, and an operator() from numbers of the compute type C to numbers of C. Elements are converted to C before
// it, and rounded once after it.
#pragma once
#include "elementwise.cuh"

enum Rung { SCALAR, PACK64, PACK128, STREAM };  // in the order of RUNGS in _rungs.py

__device__ inline float widened(float v) { return v; }
__device__ inline double widened(double v) { return v; }
__device__ inline float widened(__half v) { return __half2float(v); }
__device__ inline float widened(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ inline void round_to(float& out, float v) { out = v; }
__device__ inline void round_to(double& out, double v) { out = v; }
__device__ inline void round_to(__half& out, float v) { out = __float2half_rn(v); }
__device__ inline void round_to(__nv_bfloat16& out, float v) { out = __float2bfloat16_rn(v); }

// The addresses of a call's tensors.
template <int INPUTS, int OUTPUTS>
struct Addresses {
  const void* in[INPUTS];
  void* out[OUTPUTS];

  // Whether all are multiples of so many bytes.
  bool aligned(size_t bytes) const {
    size_t bits = 0;
    for (const void* each : in) bits |= reinterpret_cast<size_t>(each);
    for (const void* each : out) bits |= reinterpret_cast<size_t>(each);
    return bits % bytes == 0;
  }
};
template <class Formula>
using Operands = Addresses<Formula::INPUTS, Formula::OUTPUTS>;

// Computes element i.
template <class T, class Formula>
__device__ void compute_one(const Formula& formula, const Operands<Formula>& at, long long i) {
  using C = decltype(widened(T()));
  C in[Formula::INPUTS], out[Formula::OUTPUTS];
#pragma unroll
  for (int k = 0; k < Formula::INPUTS; ++k) in[k] = widened(static_cast<const T*>(at.in[k])[i]);
  formula(in, out);
#pragma unroll
  for (int k = 0; k < Formula::OUTPUTS; ++k) round_to(static_cast<T*>(at.out[k])[i], out[k]);
}

// SIZE elements in registers, loaded and stored in accesses of type V.
template <class T, class V, int SIZE>
union Pack {
  static constexpr int ACCESSES = SIZE * sizeof(T) / sizeof(V);
  V access[ACCESSES];
  T element[SIZE];
  __device__ Pack() {}
};

// Computes packs, one of each tensor.
template <class T, class V, int SIZE, class Formula>
__device__ void compute_pack(const Formula& formula, const Pack<T, V, SIZE>* in, Pack<T, V, SIZE>* out) {
  using C = decltype(widened(T()));
#pragma unroll
  for (int e = 0; e < SIZE; ++e) {
    C from[Formula::INPUTS], to[Formula::OUTPUTS];
#pragma unroll
    for (int k = 0; k < Formula::INPUTS; ++k) from[k] = widened(in[k].element[e]);
    formula(from, to);
#pragma unroll
    for (int k = 0; k < Formula::OUTPUTS; ++k) round_to(out[k].element[e], to[k]);
  }
}

// ---- scalar, pack64, pack128 -------------------------------------------------------------------------------

// SIZE elements per thread in accesses of type V, at addresses that are multiples of these. After the whole packs come
// single elements, each in a thread of its own.
template <class Formula, class T, class V, int SIZE>
__global__ void pack_kernel(Formula formula, Operands<Formula> at, long long n) {
  using P = Pack<T, V, SIZE>;
  const long long thread = global_thread(), packs = n / SIZE, start = thread * SIZE;
  if (thread < packs) {
    P in[Formula::INPUTS], out[Formula::OUTPUTS];
#pragma unroll
    for (int a = 0; a < P::ACCESSES; ++a) {
#pragma unroll
      for (int k = 0; k < Formula::INPUTS; ++k)
        in[k].access[a] = reinterpret_cast<const V*>(static_cast<const T*>(at.in[k]) + start)[a];
    }
    compute_pack(formula, in, out);
#pragma unroll
    for (int a = 0; a < P::ACCESSES; ++a) {
#pragma unroll
      for (int k = 0; k < Formula::OUTPUTS; ++k)
        reinterpret_cast<V*>(static_cast<T*>(at.out[k]) + start)[a] = out[k].access[a];
    }
  } else if (SIZE > 1 && thread - packs < n - packs * SIZE) {
    compute_one<T>(formula, at, packs * SIZE + (thread - packs));
  }
}

// Where a tensor is not aligned to the access, single elements.
template <class T, class V, int SIZE, class Formula>
void launch_packs(Formula formula, Operands<Formula> at, long long n, cudaStream_t stream) {
  if (!at.aligned(sizeof(V))) return launch_packs<T, T, 1>(formula, at, n, stream);
  LAUNCH((pack_kernel<Formula, T, V, SIZE>), blocks_for(n / SIZE + n % SIZE), THREADS, 0, stream, formula, at, n);
}

// ---- stream ------------------------------------------------------------------------------------------------

// Accesses of one tensor that a thread has in flight: about four loads in all.
template <class Formula>
constexpr int DEPTH = Formula::INPUTS == 1 ? 4 : 2;

// All tensors' addresses have the same remainder modulo 16 bytes. The first block computes the elements before the
// first multiple and after the last one by one. In between each thread takes a pack, DEPTH times, and then the whole
// grid moves on.
template <class Formula, class T>
__global__ void stream_kernel(Formula formula, Operands<Formula> at, long long n) {
  constexpr int SIZE = 16 / sizeof(T), DEEP = DEPTH<Formula>;
  using P = Pack<T, float4, SIZE>;
  const long long before = (16 - reinterpret_cast<size_t>(at.out[0]) % 16) % 16 / sizeof(T);
  const long long head = before < n ? before : n;
  const long long packs = (n - head) / SIZE;
  if (global_thread() < n - packs * SIZE)
    compute_one<T>(formula, at, global_thread() < head ? global_thread() : packs * SIZE + global_thread());
  const long long all = static_cast<long long>(gridDim.x) * THREADS * DEEP;
  for (long long first = static_cast<long long>(blockIdx.x) * THREADS * DEEP; first < packs; first += all) {
    P in[DEEP][Formula::INPUTS];
#pragma unroll
    for (int d = 0; d < DEEP; ++d) {
      const long long pack = first + d * THREADS + threadIdx.x;
      if (pack < packs) {
#pragma unroll
        for (int k = 0; k < Formula::INPUTS; ++k) {
          const T* body = static_cast<const T*>(at.in[k]) + head;
          in[d][k].access[0] = __ldcs(reinterpret_cast<const float4*>(body) + pack);
        }
      }
    }
#pragma unroll
    for (int d = 0; d < DEEP; ++d) {
      const long long pack = first + d * THREADS + threadIdx.x;
      if (pack < packs) {
        P out[Formula::OUTPUTS];
        compute_pack(formula, in[d], out);
#pragma unroll
        for (int k = 0; k < Formula::OUTPUTS; ++k) {
          T* body = static_cast<T*>(at.out[k]) + head;
          __stcs(reinterpret_cast<float4*>(body) + pack, out[k].access[0]);
        }
      }
    }
  }
}

// Launches at most ``most`` blocks.
template <class T, class Formula>
void launch_stream(Formula formula, Operands<Formula> at, long long n, int most, cudaStream_t stream) {
  constexpr long long a_block = 16 / sizeof(T) * DEPTH<Formula> * THREADS;
  const long long blocks = (n + a_block - 1) / a_block;
  LAUNCH((stream_kernel<Formula, T>), static_cast<unsigned>(blocks < most ? blocks : most), THREADS, 0, stream,
         formula, at, n);
}

// ---- All rungs ---------------------------------------------------------------------------------------------

// A call as described by Python: the rung, the tensors' dtype and length, the most blocks of a looping grid, which are as
// many as the GPU holds, and of how many elements strided takes a result one by one.
struct Call {
  int rung, dtype, most, few;
  long long n;
};

// Whether this library has the rungs of a dtype.
#if defined(ONLY_PLAIN)
#define HAS_RUNGS_OF(dtype) false
#elif defined(ONLY_RUNGS_OF)
#define HAS_RUNGS_OF(dtype) ((dtype) == ONLY_RUNGS_OF)
#else
#define HAS_RUNGS_OF(dtype) true
#endif

// For a function that ends with it: runs the statement with T = the type of a floating dtype that is no wider than
// WIDEST, and returns CUDA's status.
#define WITH_ELEMENT(dtype, WIDEST, ...)                                         \
  do {                                                                           \
    IF_ELEMENT(F16, __half, dtype, __VA_ARGS__)                                  \
    IF_ELEMENT(BF16, __nv_bfloat16, dtype, __VA_ARGS__)                          \
    IF_ELEMENT(F32, float, dtype, __VA_ARGS__)                                   \
    if constexpr (WIDEST == 8) { IF_ELEMENT(F64, double, dtype, __VA_ARGS__) }   \
    return cudaErrorInvalidValue;                                                \
  } while (0)
#define IF_ELEMENT(DTYPE, TYPE, dtype, ...) \
  if constexpr (HAS_RUNGS_OF(DTYPE)) {      \
    if ((dtype) == DTYPE) {                 \
      using T = TYPE;                       \
      __VA_ARGS__;                          \
      return cudaGetLastError();            \
    }                                       \
  }

template <class T, class Formula>
void launch_pack_rung(int rung, Formula formula, Operands<Formula> at, long long n, cudaStream_t stream) {
  if (rung == SCALAR) {
    launch_packs<T, T, 1>(formula, at, n, stream);
  } else if (rung == PACK128) {
    launch_packs<T, float4, 16 / sizeof(T)>(formula, at, n, stream);
  } else if constexpr (sizeof(T) < 8) {  // pack64 of float64 is scalar
    launch_packs<T, float2, 8 / sizeof(T)>(formula, at, n, stream);
  }
}

// Run a call on one of the rungs below stream, or on stream.
template <class Formula>
int launch_packs_of(const Call& call, Formula formula, Operands<Formula> at, cudaStream_t stream) {
  WITH_ELEMENT(call.dtype, Formula::WIDEST, launch_pack_rung<T>(call.rung, formula, at, call.n, stream));
}

template <class Formula>
int launch_stream_of(const Call& call, Formula formula, Operands<Formula> at, cudaStream_t stream) {
  WITH_ELEMENT(call.dtype, Formula::WIDEST, launch_stream<T>(formula, at, call.n, call.most, stream));
}

template <class Formula>
int launch_rung(const Call& call, Formula formula, Operands<Formula> at, cudaStream_t stream) {
  if (call.rung == STREAM) return launch_stream_of(call, formula, at, stream);
  return launch_packs_of(call, formula, at, stream);
}
