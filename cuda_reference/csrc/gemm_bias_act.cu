// gemm_bias_act: out = act(alpha·(a@b) + beta·c + bias), accumulated in float (double for float64).
//
//   naive   one thread per output element
//   tiled   the same with tiles in shared memory
//   wmma    on tensor cores: float16, bfloat16, and float32 as tf32, tf32x3 or f16x3
//
// epilogue computes everything after a@b, for products by cublasLt (_cublaslt.py).
#include "gemm_wmma.cuh"
#include "places.cuh"
#include "rungs.cuh"
#include "short_forms.cuh"

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

// Products without c, of sums whose rows start at multiples of 16 bytes; elements of out and bias are side by side. Numbers
// of elements have 32 bits.
struct Rows {
  const float* sums;
  const void* bias;
  void* out;
  int sums_step, out_step, N;  // steps: elements from row to row
  unsigned parts;              // all packs or elements
  Divisor<int> each;           // those of a row
  float alpha;
  int act;
};

// A record in its form for elements of out.
template <class A, class T, int SIZE>
__device__ void finish(const Pack<float, float4, SIZE>& sum, const Pack<T, float4, SIZE>& added, float alpha,
                       Pack<T, float4, SIZE>& result) {
#pragma unroll
  for (int e = 0; e < SIZE; ++e)
    round_to(result.element[e], FormFor<T, A>::forward(alpha * sum.element[e] + widened(added.element[e])));
}

// The last rows come first: of a large product they are still in the cache.
__device__ inline unsigned block_from_the_end() { return gridDim.x - 1 - blockIdx.x; }

// 16 bytes of out per thread, if rows of out and bias, too, start at multiples of these.
template <class T>
__global__ void gemm_epilogue_packs_kernel(Rows rows) {
  constexpr int SIZE = 16 / sizeof(T);
  const unsigned pack = block_from_the_end() * THREADS + threadIdx.x;
  if (pack >= rows.parts) return;
  const int m = rows.each.quotient(static_cast<int>(pack)), n = (static_cast<int>(pack) - m * rows.each.size) * SIZE;
  const float* sums = rows.sums + static_cast<long long>(m) * rows.sums_step + n;
  const T* bias = rows.bias ? static_cast<const T*>(rows.bias) + n : nullptr;
  T* out = static_cast<T*>(rows.out) + static_cast<long long>(m) * rows.out_step + n;
  const Span span(n, rows.N, SIZE);
  Pack<float, float4, SIZE> sum;
  Pack<T, float4, SIZE> added, result;
  added.access[0] = float4{};
  if (span.whole) {
#pragma unroll
    for (int a = 0; a < SIZE / 4; ++a) sum.access[a] = reinterpret_cast<const float4*>(sums)[a];
    if (bias) added.access[0] = *reinterpret_cast<const float4*>(bias);
  } else {
#pragma unroll
    for (int e = 0; e < SIZE; ++e) {
      sum.element[e] = span.has(e) ? sums[e] : 0.0f;
      if (bias && span.has(e)) added.element[e] = bias[e];
    }
  }
  WITH_ACTIVATION(rows.act, finish<A>(sum, added, rows.alpha, result))
  if (span.whole) {
    __stcs(reinterpret_cast<float4*>(out), result.access[0]);  // an assignment would become four stores
  } else {
#pragma unroll
    for (int e = 0; e < SIZE; ++e)
      if (span.has(e)) out[e] = result.element[e];
  }
}

// As many elements per thread, a block's width apart.
template <class T>
__global__ void gemm_epilogue_elements_kernel(Rows rows) {
  constexpr int SIZE = 16 / sizeof(T);
  const unsigned first = block_from_the_end() * (THREADS * SIZE) + threadIdx.x;
  int m[SIZE], n[SIZE];
  Pack<float, float4, SIZE> sum;
  Pack<T, float4, SIZE> added, result;
  added.access[0] = float4{};
#pragma unroll
  for (int e = 0; e < SIZE; ++e) {
    const int place = static_cast<int>(first + e * THREADS);
    m[e] = rows.each.quotient(place), n[e] = place - m[e] * rows.each.size;
    sum.element[e] = 0.0f;
    if (first + e * THREADS >= rows.parts) continue;
    sum.element[e] = rows.sums[static_cast<long long>(m[e]) * rows.sums_step + n[e]];
    if (rows.bias) added.element[e] = static_cast<const T*>(rows.bias)[n[e]];
  }
  WITH_ACTIVATION(rows.act, finish<A>(sum, added, rows.alpha, result))
#pragma unroll
  for (int e = 0; e < SIZE; ++e)
    if (first + e * THREADS < rows.parts)
      static_cast<T*>(rows.out)[static_cast<long long>(m[e]) * rows.out_step + n[e]] = result.element[e];
}

// Whether a product without c has rows of that kind; those of sums are always aligned.
static bool has_rows(const Tensor& sums, const Tensor* bias, const Tensor& out) {
  if (sums.dtype != F32 || out.dtype > F32 || out.stride[1] != 1) return false;
  if (out.size[0] * sums.stride[0] >= NEAR || out.stride[0] >= NEAR) return false;
  return !bias || (bias->dtype == out.dtype && bias->stride[0] == 1);
}

template <class T>
static int launch_rows(Rows rows, long long M, cudaStream_t stream) {
  constexpr int SIZE = 16 / sizeof(T);
  const bool packs = (reinterpret_cast<size_t>(rows.out) | reinterpret_cast<size_t>(rows.bias)) % 16 == 0 &&
                     rows.out_step % SIZE == 0;
  rows.each = Divisor<int>(packs ? (rows.N + SIZE - 1) / SIZE : rows.N);
  rows.parts = static_cast<unsigned>(M * rows.each.size);
  if (packs) {
    LAUNCH(gemm_epilogue_packs_kernel<T>, blocks_for(rows.parts), THREADS, 0, stream, rows);
  } else {
    LAUNCH(gemm_epilogue_elements_kernel<T>, blocks_for((rows.parts + SIZE - 1) / SIZE), THREADS, 0, stream, rows);
  }
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
  if (!c && has_rows(*sums, bias, *out)) {
    Rows rows = {};
    rows.sums = static_cast<const float*>(sums->data), rows.sums_step = static_cast<int>(sums->stride[0]);
    rows.out = out->data, rows.out_step = static_cast<int>(out->stride[0]), rows.N = static_cast<int>(out->size[1]);
    rows.bias = bias ? bias->data : nullptr, rows.alpha = static_cast<float>(alpha.real), rows.act = act;
    if (out->dtype == F16) return launch_rows<__half>(rows, out->size[0], stream);
    if (out->dtype == BF16) return launch_rows<__nv_bfloat16>(rows, out->size[0], stream);
    return launch_rows<float>(rows, out->size[0], stream);
  }
  const dim3 blocks(static_cast<unsigned>(out->size[0] * blocks_for(out->size[1])));
  const Epilogue epilogue = epilogue_of(bias, c, alpha, beta, act);
  WITH_FLOATING_TYPE(sums->dtype, LAUNCH(gemm_epilogue_kernel<C>, blocks, THREADS, 0, stream, *sums, *out, epilogue));
  return cudaGetLastError();
}

// ---- Copies of operands, extended by zeros, for products by cublasLt (_cublaslt_copies.py) ----

// A matrix and its copy, whose lines are whole packs: rows or columns, along which the copy's elements are side by side.
template <class W>
struct Lines {
  const W* from = nullptr;
  W* to = nullptr;
  long long lines = 0, length = 0, step = 0, along = 0, to_step = 0;  // of the matrix; the copy's pitch
  unsigned packs = 0, each = 1;                                       // of the copy, and of a line of it

  Lines() = default;
  Lines(const Tensor& matrix, const Tensor& copy) {
    const int inner = copy.stride[1] == 1 ? 1 : 0;
    from = static_cast<const W*>(matrix.data), to = static_cast<W*>(copy.data);
    lines = matrix.size[1 - inner], length = matrix.size[inner];
    step = matrix.stride[1 - inner], along = matrix.stride[inner], to_step = copy.stride[1 - inner];
    each = static_cast<unsigned>(copy.size[inner] / (16 / sizeof(W)));
    packs = static_cast<unsigned>(copy.size[1 - inner] * each);
  }
};

// A pack of a copy per thread.
template <class W>
__global__ void gemm_copies_kernel(Lines<W> first, Lines<W> second) {
  constexpr int SIZE = 16 / sizeof(W);
  const unsigned thread = static_cast<unsigned>(global_thread());
  const bool of_second = thread >= first.packs;
  const Lines<W> copied = of_second ? second : first;
  const unsigned pack = of_second ? thread - first.packs : thread;
  if (pack >= copied.packs) return;
  const unsigned line = pack / copied.each, begin = (pack - line * copied.each) * SIZE;
  const W* from = copied.from + line * copied.step + begin * copied.along;
  Pack<W, float4, SIZE> made;
#pragma unroll
  for (int e = 0; e < SIZE; ++e)
    made.element[e] = line < copied.lines && begin + e < copied.length ? from[e * copied.along] : W(0);
  *reinterpret_cast<float4*>(copied.to + line * copied.to_step + begin) = made.access[0];
}

template <class W>
static int launch_copies(const Tensor* a, const Tensor* a_copy, const Tensor* b, const Tensor* b_copy,
                         cudaStream_t stream) {
  const Lines<W> first = a_copy ? Lines<W>(*a, *a_copy) : Lines<W>(), second = b_copy ? Lines<W>(*b, *b_copy) : Lines<W>();
  LAUNCH(gemm_copies_kernel<W>, blocks_for(static_cast<long long>(first.packs) + second.packs), THREADS, 0, stream,
         first, second);
  return cudaGetLastError();
}

// Copies a and b, or the one of them whose copy is not null. Elements have 16 or 32 bits.
extern "C" int gemm_bias_act_copies(const Tensor* a, const Tensor* a_copy, const Tensor* b, const Tensor* b_copy,
                                    cudaStream_t stream) {
  if (a->dtype == F32) return launch_copies<unsigned>(a, a_copy, b, b_copy, stream);
  return launch_copies<unsigned short>(a, a_copy, b, b_copy, stream);
}
