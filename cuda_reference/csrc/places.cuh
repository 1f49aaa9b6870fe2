// Places of elements: divisions by sizes, and which elements of a pack exist.
#pragma once
#include "elementwise.cuh"

constexpr long long NEAR = (1LL << 31) - 2 * 16 * THREADS;  // places and offsets below it have 32 bits, sums, too

// Divides by a size: 32-bit numbers from 0 on by a product and a shift, since x / size is the integer part of
// x·⌈2³¹⁺ᵏ / size⌉ / 2³¹⁺ᵏ if size is at most 2ᵏ. A size of 1 has the magic number 2³², of which 32 bits are 0.
template <class I>
struct Divisor {
  I size = 1;
  unsigned magic = 0, shift = 0;

  Divisor() = default;
  explicit Divisor(long long by) : size(static_cast<I>(by)) {
    if (sizeof(I) > 4) return;
    int k = 1;
    while (1LL << k < by) ++k;
    magic = static_cast<unsigned>(((1ULL << (31 + k)) + by - 1) / by);
    shift = k - 1;
  }
  __device__ I quotient(I x) const {
    if constexpr (sizeof(I) > 4) return x / size;
    return magic ? static_cast<I>(__umulhi(static_cast<unsigned>(x), magic) >> shift) : x;
  }
};

__device__ inline bool on_16_bytes(const void* address) { return reinterpret_cast<size_t>(address) % 16 == 0; }

// Which elements of a pack exist.
struct Span {
  int begin, end;
  bool whole;

  // Of the pack from ``place`` on of a line with n elements.
  __device__ Span(int place, int n, int size)
      : begin(place < 0 ? -place : 0), end(min(n - place, size)), whole(begin == 0 && end == size) {}
  __device__ bool has(int e) const { return e >= begin && e < end; }
};
