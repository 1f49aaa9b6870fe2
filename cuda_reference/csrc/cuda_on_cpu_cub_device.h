// cuda_on_cpu_cub_device.h: what CUB has for whole arrays: sums, scans, sorts, selections. Included by
// cuda_on_cpu_cub.h. The host computes them, one element after the other. A call without temporary storage asks for its
// size, as on a GPU; what is in the storage afterwards is of no use to anybody.
#pragma once

#include <algorithm>
#include <numeric>

namespace cub {

template <class T>
struct DoubleBuffer {
  T* d_buffers[2] = {};
  int selector = 0;
  DoubleBuffer() = default;
  DoubleBuffer(T* current, T* alternate) : d_buffers{current, alternate} {}
  T* Current() const { return d_buffers[selector]; }
  T* Alternate() const { return d_buffers[!selector]; }
};

namespace crosscheck {

// As much as a GPU may ask for, so that too little is an error here, too.
template <class Compute>
cudaError_t with_storage(void* storage, size_t& bytes, int64_t items, int64_t each, Compute compute) {
  const size_t needed = 1024 + items * each;
  if (!storage) {
    bytes = needed;
    return cudaSuccess;
  }
  if (bytes < needed) return cudaErrorInvalidValue;
  __builtin_memset(storage, 0xFF, needed);
  compute();
  return cudaSuccess;
}

template <class T> using Value = std::decay_t<decltype(*std::declval<T>())>;

// A key's bits in an order that is the keys' own; of −0 those of 0, which equals it.
template <class Key>
unsigned long long ordered(Key key) {
  constexpr int size = 8 * sizeof(Key);
  constexpr bool narrow = std::is_same<Key, __half>::value || std::is_same<Key, __nv_bfloat16>::value;
  constexpr unsigned long long top = 1ull << (size - 1);
  unsigned long long bits = 0;
  __builtin_memcpy(&bits, &key, sizeof key);
  if constexpr (narrow || std::is_floating_point<Key>::value) {
    if (bits == top) bits = 0;
    return bits & top ? ~bits & (top | (top - 1)) : bits | top;
  }
  return std::is_signed<Key>::value ? bits ^ top : bits;
}

template <bool falling, class Key, class Item>
void sort(const Key* keys, Key* sorted_keys, const Item* items, Item* sorted_items, int64_t n, int begin, int end) {
  const unsigned long long mask = end - begin >= 64 ? ~0ull : (1ull << (end - begin)) - 1;
  std::vector<std::pair<unsigned long long, int64_t>> order(n);
  for (int64_t i = 0; i < n; ++i) order[i] = {ordered(keys[i]) >> begin & mask, i};
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return falling ? b.first < a.first : a.first < b.first;
  });
  const std::vector<Key> old_keys(keys, keys + n);
  for (int64_t i = 0; i < n; ++i) sorted_keys[i] = old_keys[order[i].second];
  if (!items) return;
  const std::vector<Item> old_items(items, items + n);
  for (int64_t i = 0; i < n; ++i) sorted_items[i] = old_items[order[i].second];
}

}  // namespace crosscheck

struct DeviceScan {
  template <class In, class Out, class Op>
  static cudaError_t InclusiveScan(void* storage, size_t& bytes, In in, Out out, Op op, int64_t n, cudaStream_t = 0) {
    return crosscheck::with_storage(storage, bytes, n, 1, [&] {
      crosscheck::Value<In> sum{};
      for (int64_t i = 0; i < n; ++i) out[i] = sum = i ? op(sum, in[i]) : in[i];
    });
  }
  template <class In, class Out, class Op, class T>
  static cudaError_t ExclusiveScan(void* storage, size_t& bytes, In in, Out out, Op op, T first, int64_t n,
                                   cudaStream_t = 0) {
    return crosscheck::with_storage(storage, bytes, n, 1, [&] {
      T sum = first;
      for (int64_t i = 0; i < n; ++i) {
        const T with = op(sum, in[i]);
        out[i] = sum;
        sum = with;
      }
    });
  }
  template <class In, class Out>
  static cudaError_t InclusiveSum(void* storage, size_t& bytes, In in, Out out, int64_t n, cudaStream_t stream = 0) {
    return InclusiveScan(storage, bytes, in, out, Sum(), n, stream);
  }
  template <class In, class Out>
  static cudaError_t ExclusiveSum(void* storage, size_t& bytes, In in, Out out, int64_t n, cudaStream_t stream = 0) {
    return ExclusiveScan(storage, bytes, in, out, Sum(), crosscheck::Value<In>{}, n, stream);
  }
};

struct DeviceReduce {
  template <class In, class Out, class Op, class T>
  static cudaError_t Reduce(void* storage, size_t& bytes, In in, Out out, int64_t n, Op op, T first, cudaStream_t = 0) {
    return crosscheck::with_storage(storage, bytes, n, 1, [&] {
      T result = first;
      for (int64_t i = 0; i < n; ++i) result = op(result, in[i]);
      *out = result;
    });
  }
  template <class In, class Out>
  static cudaError_t Sum(void* storage, size_t& bytes, In in, Out out, int64_t n, cudaStream_t stream = 0) {
    return Reduce(storage, bytes, in, out, n, cub::Sum(), crosscheck::Value<In>{}, stream);
  }
  template <class In, class Out>
  static cudaError_t Max(void* storage, size_t& bytes, In in, Out out, int64_t n, cudaStream_t stream = 0) {
    return Reduce(storage, bytes, in, out, n, cub::Max(), std::numeric_limits<crosscheck::Value<In>>::lowest(), stream);
  }
  template <class In, class Out>
  static cudaError_t Min(void* storage, size_t& bytes, In in, Out out, int64_t n, cudaStream_t stream = 0) {
    return Reduce(storage, bytes, in, out, n, cub::Min(), std::numeric_limits<crosscheck::Value<In>>::max(), stream);
  }
};

struct DeviceRadixSort {
#define CUB_SORT(Suffix, falling)                                                                                    \
  template <class Key, class Item>                                                                                   \
  static cudaError_t SortPairs##Suffix(void* storage, size_t& bytes, const Key* keys, Key* sorted_keys,              \
                                       const Item* items, Item* sorted_items, int64_t n, int begin = 0,              \
                                       int end = 8 * sizeof(Key), cudaStream_t = 0) {                                \
    return crosscheck::with_storage(storage, bytes, n, sizeof(Key) + sizeof(Item), [&] {                             \
      crosscheck::sort<falling>(keys, sorted_keys, items, sorted_items, n, begin, end);                              \
    });                                                                                                              \
  }                                                                                                                  \
  template <class Key>                                                                                               \
  static cudaError_t SortKeys##Suffix(void* storage, size_t& bytes, const Key* keys, Key* sorted_keys, int64_t n,    \
                                      int begin = 0, int end = 8 * sizeof(Key), cudaStream_t stream = 0) {           \
    char* none = nullptr;                                                                                            \
    return SortPairs##Suffix(storage, bytes, keys, sorted_keys, none, none, n, begin, end, stream);                  \
  }                                                                                                                  \
  template <class Key, class Item>                                                                                   \
  static cudaError_t SortPairs##Suffix(void* storage, size_t& bytes, DoubleBuffer<Key>& keys,                        \
                                       DoubleBuffer<Item>& items, int64_t n, int begin = 0,                          \
                                       int end = 8 * sizeof(Key), cudaStream_t stream = 0) {                         \
    const cudaError_t status = SortPairs##Suffix(storage, bytes, keys.Current(), keys.Alternate(), items.Current(),  \
                                                 items.Alternate(), n, begin, end, stream);                          \
    if (storage) keys.selector ^= 1, items.selector ^= 1;                                                            \
    return status;                                                                                                   \
  }                                                                                                                  \
  template <class Key>                                                                                               \
  static cudaError_t SortKeys##Suffix(void* storage, size_t& bytes, DoubleBuffer<Key>& keys, int64_t n,              \
                                      int begin = 0, int end = 8 * sizeof(Key), cudaStream_t stream = 0) {           \
    const cudaError_t status = SortKeys##Suffix(storage, bytes, keys.Current(), keys.Alternate(), n, begin, end, stream); \
    if (storage) keys.selector ^= 1;                                                                                 \
    return status;                                                                                                   \
  }
  CUB_SORT(, false)
  CUB_SORT(Descending, true)
#undef CUB_SORT
};

struct DeviceSelect {
  template <class In, class Flag, class Out, class Count>
  static cudaError_t Flagged(void* storage, size_t& bytes, In in, Flag flags, Out out, Count count, int64_t n,
                             cudaStream_t = 0) {
    return crosscheck::with_storage(storage, bytes, n, 1, [&] {
      int64_t chosen = 0;
      for (int64_t i = 0; i < n; ++i)
        if (flags[i]) out[chosen++] = in[i];
      *count = chosen;
    });
  }
  template <class In, class Out, class Count, class Wanted>
  static cudaError_t If(void* storage, size_t& bytes, In in, Out out, Count count, int64_t n, Wanted wanted,
                        cudaStream_t = 0) {
    return crosscheck::with_storage(storage, bytes, n, 1, [&] {
      int64_t chosen = 0;
      for (int64_t i = 0; i < n; ++i)
        if (wanted(in[i])) out[chosen++] = in[i];
      *count = chosen;
    });
  }
  template <class In, class Out, class Count>
  static cudaError_t Unique(void* storage, size_t& bytes, In in, Out out, Count count, int64_t n, cudaStream_t = 0) {
    return crosscheck::with_storage(storage, bytes, n, 1, [&] {
      int64_t chosen = 0;
      for (int64_t i = 0; i < n; ++i)
        if (!i || !(in[i] == in[i - 1])) out[chosen++] = in[i];
      *count = chosen;
    });
  }
};

}  // namespace cub
