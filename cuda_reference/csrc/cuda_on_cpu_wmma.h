// cuda_on_cpu_wmma.h: nvcuda::wmma. Fragments of float16, bfloat16 and tf32 with float accumulators. A warp's lanes
// meet in every operation, and the last to arrive multiplies for all. Included by cuda_on_cpu.h.
//
// The arithmetic is that of the tensor cores of compute capability 9.0, bit for bit, as measured in docs/FACTS.md. The
// accumulator and 16 products (4 of tf32) are added in fixed point, in units of 2⁻²⁵ of the largest term's power of
// two. Lower bits are truncated, and so is the sum's excess over float.
#pragma once

namespace nvcuda {
namespace wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32;
}

}  // namespace wmma
}  // namespace nvcuda

namespace cuda_on_cpu {

namespace wmma = nvcuda::wmma;

// Properties of a fragment of T: its elements, their value as float, how many products are summed at a time, and the
// instruction's possible shapes (M × N × K) and leading dimensions.
template <class T> struct FragmentOf;
template <> struct FragmentOf<__half> {
  using Element = __half;
  static float value(Element x) { return __half2float(x); }
  static constexpr int group = 16, ldm_multiple = 8;
  static constexpr bool shape(int m, int n, int k) {
    return k == 16 && ((m == 16 && n == 16) || (m == 32 && n == 8) || (m == 8 && n == 32));
  }
};
template <> struct FragmentOf<__nv_bfloat16> : FragmentOf<__half> {
  using Element = __nv_bfloat16;
  static float value(Element x) { return __bfloat162float(x); }
};
template <> struct FragmentOf<wmma::precision::tf32> {
  using Element = float;
  // The tensor core reads 19 bits of a float.
  static float value(Element x) { return x == x ? bits_as<float>(bits_as<uint32_t>(x) & 0xFFFFE000u) : x; }
  static constexpr int group = 4, ldm_multiple = 4;
  static constexpr bool shape(int m, int n, int k) { return m == 16 && n == 16 && k == 8; }
};
template <> struct FragmentOf<float> {  // accumulators
  using Element = float;
  static constexpr int ldm_multiple = 4;
  static constexpr bool shape(int m, int n, int k) { return m * n == 256 && (k == 16 || k == 8); }
};

template <class Use, int M, int N, int K>
constexpr int rows_of = std::is_same<Use, wmma::matrix_b>::value ? K : M;
template <class Use, int M, int N, int K>
constexpr int columns_of = std::is_same<Use, wmma::matrix_a>::value ? K : N;

// Truncated to float towards zero; infinite from 2¹²⁸ on.
CUDA_ON_CPU_MACHINERY inline float chopped(double x) {
  const float nearest = static_cast<float>(x);
  if (std::fabs(x) >= 0x1p128 || std::fabs(static_cast<double>(nearest)) <= std::fabs(x)) return nearest;
  return std::nextafter(nearest, 0.0f);
}

// A fixed-point sum of products and an accumulator. Products of 11-bit factors are exact in double, and so are sums
// of terms with a common unit.
CUDA_ON_CPU_MACHINERY inline float tensor_core_sum(const float* a, const float* b, int count, float c) {
  double special = c;
  int top = c != 0.0f && std::isfinite(c) ? std::ilogb(c) : INT_MIN;
  for (int k = 0; k < count; ++k) {
    special += static_cast<double>(a[k]) * b[k];
    // Only the factors' powers of two count, not the product's: 1.5 · 1.5 counts as 2⁰.
    if (a[k] != 0.0f && b[k] != 0.0f) top = std::max(top, std::ilogb(a[k]) + std::ilogb(b[k]));
  }
  if (!std::isfinite(special) || top == INT_MIN) return static_cast<float>(special);
  const double unit = std::ldexp(1.0, top - 25);
  double sum = std::trunc(c / unit);
  for (int k = 0; k < count; ++k) sum += std::trunc(static_cast<double>(a[k]) * b[k] / unit);
  return chopped(sum * unit);
}

// Every lane of the warp must take part; each gets the set of lanes that did.
CUDA_ON_CPU_MACHINERY inline void tell_who(Warp& warp, uint32_t lanes) {
  for (Value& result : warp.out) __builtin_memcpy(&result, &lanes, sizeof lanes);
}

CUDA_ON_CPU_MACHINERY inline void meet_all(const char* what, int line, Combine combine) {
  meet(what, line, 0xFFFFFFFFu, combine, false);
  uint32_t lanes;
  __builtin_memcpy(&lanes, &self->warp->out[self->lane], sizeof lanes);
  if (lanes != 0xFFFFFFFFu)
    fail_here("calls %s() at line %d without all lanes of its warp: 0x%08x came", what, line, lanes);
}

// The operands of a lane: pointers to its fragments while it waits.
struct Factors {
  const void *a, *b, *c;
  void* d;
};

template <class A, class B, class C>
CUDA_ON_CPU_MACHINERY void multiply(Warp& warp, uint32_t lanes) {
  tell_who(warp, lanes);
  if (lanes != 0xFFFFFFFFu) return;
  constexpr int M = A::M, N = A::N, K = A::K, group = FragmentOf<typename A::Type>::group;
  static float a[M][K], b[N][K], c[M][N];  // b by columns
  Factors factors[32];
  for (int lane = 0; lane < 32; ++lane) {
    __builtin_memcpy(&factors[lane], &warp.in[lane], sizeof(void*));
    __builtin_memcpy(&factors[lane], *reinterpret_cast<Factors**>(&factors[lane]), sizeof(Factors));
  }
  for (int i = 0; i < M * K; ++i)
    a[i / K][i % K] = FragmentOf<typename A::Type>::value(static_cast<const A*>(factors[i % 32].a)->x[i / 32]);
  for (int i = 0; i < K * N; ++i)
    b[i % N][i / N] = FragmentOf<typename B::Type>::value(static_cast<const B*>(factors[i % 32].b)->x[i / 32]);
  for (int i = 0; i < M * N; ++i) c[i / N][i % N] = static_cast<const C*>(factors[i % 32].c)->x[i / 32];
  for (int i = 0; i < M * N; ++i) {
    float sum = c[i / N][i % N];
    for (int k = 0; k < K; k += group) sum = tensor_core_sum(&a[i / N][k], &b[i % N][k], group, sum);
    static_cast<C*>(factors[i % 32].d)->x[i / 32] = sum;
  }
}

CUDA_ON_CPU_MACHINERY inline void check_tile(const char* what, int line, const void* address, unsigned ldm,
                                             int multiple) {
  if (reinterpret_cast<uintptr_t>(address) % 32)
    fail_here("calls %s() at line %d with an address that is not a multiple of 32 bytes", what, line);
  if (ldm % multiple)
    fail_here("calls %s() at line %d with a leading dimension of %u, not a multiple of %d", what, line, ldm, multiple);
}

}  // namespace cuda_on_cpu

// ---- What a kernel calls -----------------------------------------------------------------------------------

namespace nvcuda {
namespace wmma {

// Element i of the matrix, row by row, is x[i / 32] of lane i % 32; CUDA does not specify the places.
template <class Use, int M_, int N_, int K_, class T, class Layout = void>
struct fragment {
  static_assert(cuda_on_cpu::FragmentOf<T>::shape(M_, N_, K_), "wmma has no such shape for this type");
  using Type = T;
  using Element = typename cuda_on_cpu::FragmentOf<T>::Element;
  static constexpr int M = M_, N = N_, K = K_;
  static constexpr int rows = cuda_on_cpu::rows_of<Use, M_, N_, K_>;
  static constexpr int columns = cuda_on_cpu::columns_of<Use, M_, N_, K_>;
  enum { num_elements = rows * columns / 32, num_storage_elements = num_elements };
  Element x[num_elements];
};

// To nearest, ties away from zero, as cvt.rna.tf32 does.
inline float __float_to_tf32(float x) {
  if (!std::isfinite(x)) return x;
  return cuda_on_cpu::bits_as<float>((cuda_on_cpu::bits_as<uint32_t>(x) + 0x1000u) & 0xFFFFE000u);
}

template <class Use, int M, int N, int K, class T, class Layout, class Value>
void fill_fragment(fragment<Use, M, N, K, T, Layout>& f, const Value& value) {
  for (auto& x : f.x) x = value;
}

template <class Use, int M, int N, int K, class T, class Layout>
void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& f,
                      const typename cuda_on_cpu::FragmentOf<T>::Element* tile, unsigned ldm, CUDA_ON_CPU_LINE) {
  constexpr bool by_rows = std::is_same<Layout, row_major>::value;
  static_assert(by_rows || std::is_same<Layout, col_major>::value, "the fragment has no layout");
  cuda_on_cpu::check_tile("load_matrix_sync", line, tile, ldm, cuda_on_cpu::FragmentOf<T>::ldm_multiple);
  cuda_on_cpu::meet_all("load_matrix_sync", line, cuda_on_cpu::tell_who);
  for (int s = 0; s < f.num_elements; ++s) {
    const int i = s * 32 + cuda_on_cpu::self->lane, row = i / f.columns, column = i % f.columns;
    f.x[s] = tile[by_rows ? row * ldm + column : column * ldm + row];
  }
}

template <int M, int N, int K>
void load_matrix_sync(fragment<accumulator, M, N, K, float>& f, const float* tile, unsigned ldm, layout_t layout,
                      CUDA_ON_CPU_LINE) {
  cuda_on_cpu::check_tile("load_matrix_sync", line, tile, ldm, 4);
  cuda_on_cpu::meet_all("load_matrix_sync", line, cuda_on_cpu::tell_who);
  for (int s = 0; s < f.num_elements; ++s) {
    const int i = s * 32 + cuda_on_cpu::self->lane, row = i / N, column = i % N;
    f.x[s] = tile[layout == mem_row_major ? row * ldm + column : column * ldm + row];
  }
}

template <int M, int N, int K>
void store_matrix_sync(float* tile, const fragment<accumulator, M, N, K, float>& f, unsigned ldm, layout_t layout,
                       CUDA_ON_CPU_LINE) {
  cuda_on_cpu::check_tile("store_matrix_sync", line, tile, ldm, 4);
  cuda_on_cpu::meet_all("store_matrix_sync", line, cuda_on_cpu::tell_who);
  for (int s = 0; s < f.num_elements; ++s) {
    const int i = s * 32 + cuda_on_cpu::self->lane, row = i / N, column = i % N;
    tile[layout == mem_row_major ? row * ldm + column : column * ldm + row] = f.x[s];
  }
}

template <int M, int N, int K, class T, class LayoutA, class LayoutB>
void mma_sync(fragment<accumulator, M, N, K, float>& d, const fragment<matrix_a, M, N, K, T, LayoutA>& a,
              const fragment<matrix_b, M, N, K, T, LayoutB>& b, const fragment<accumulator, M, N, K, float>& c,
              CUDA_ON_CPU_LINE) {
  using A = fragment<matrix_a, M, N, K, T, LayoutA>;
  using B = fragment<matrix_b, M, N, K, T, LayoutB>;
  using C = fragment<accumulator, M, N, K, float>;
  const cuda_on_cpu::Factors factors{&a, &b, &c, &d};
  const cuda_on_cpu::Factors* own = &factors;
  __builtin_memcpy(&cuda_on_cpu::self->warp->in[cuda_on_cpu::self->lane], &own, sizeof own);
  cuda_on_cpu::meet_all("mma_sync", line, cuda_on_cpu::multiply<A, B, C>);
}

}  // namespace wmma
}  // namespace nvcuda
