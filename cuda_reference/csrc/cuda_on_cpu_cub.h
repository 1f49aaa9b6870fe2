// cuda_on_cpu_cub.h: what CUB has for the threads of a block or a warp: reductions, scans, loads and stores in blocks;
// cuda_on_cpu_cub_device.h has what it does with whole arrays. Included where a source includes cub. Sums run in the
// order in which a GPU makes them. Without a barrier before it is used again, temporary storage is a race here, too.
// Storages are laid one behind another in memory of a kernel's own, so that even an empty one has a size and an
// alignment.
#pragma once

#include "crosscheck.cuh"

namespace cub {

// Of the call; no number, which the count of items could be taken for.
struct Line {
  int number;
};
#define CUB_LINE Line line = {__builtin_LINE()}

// ---- Operations --------------------------------------------------------------------------------------------

struct Sum {
  template <class T> T operator()(const T& a, const T& b) const { return a + b; }
};
struct Max {
  template <class T> T operator()(const T& a, const T& b) const { return a < b ? b : a; }
};
struct Min {
  template <class T> T operator()(const T& a, const T& b) const { return b < a ? b : a; }
};
template <class Key, class Item>
struct KeyValuePair {
  Key key;
  Item value;
  KeyValuePair() = default;
  KeyValuePair(const Key& of, const Item& is) : key(of), value(is) {}
};
struct ArgMax {  // of equal ones the first
  template <class T> T operator()(const T& a, const T& b) const {
    return a.value < b.value || (a.value == b.value && b.key < a.key) ? b : a;
  }
};
struct ArgMin {
  template <class T> T operator()(const T& a, const T& b) const {
    return b.value < a.value || (a.value == b.value && b.key < a.key) ? b : a;
  }
};

enum BlockReduceAlgorithm { BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY, BLOCK_REDUCE_RAKING, BLOCK_REDUCE_WARP_REDUCTIONS };
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };
enum BlockLoadAlgorithm {
  BLOCK_LOAD_DIRECT, BLOCK_LOAD_STRIPED, BLOCK_LOAD_VECTORIZE, BLOCK_LOAD_TRANSPOSE, BLOCK_LOAD_WARP_TRANSPOSE,
  BLOCK_LOAD_WARP_TRANSPOSE_TIMESLICED
};
enum BlockStoreAlgorithm {
  BLOCK_STORE_DIRECT, BLOCK_STORE_STRIPED, BLOCK_STORE_VECTORIZE, BLOCK_STORE_TRANSPOSE, BLOCK_STORE_WARP_TRANSPOSE,
  BLOCK_STORE_WARP_TRANSPOSE_TIMESLICED
};

// ---- A block's threads -------------------------------------------------------------------------------------

namespace crosscheck {

inline int rank() { return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x; }

// A thread of a block that is larger than its algorithm was told has no place in the storage; a smaller block leaves
// places open that the algorithm reads.
inline void check_block(const char* what, Line line, int threads, bool all) {
  const int size = cuda_on_cpu::block.size;
  if (size > threads || (all && size < threads))
    cuda_on_cpu::fail_here("calls %s() at line %d, which is for %d threads, in a block of %d", what, line.number, threads, size);
}

template <class T, int N, class Op>
T folded(const T (&items)[N], Op op) {
  T result = items[0];
  for (int i = 1; i < N; ++i) result = op(result, items[i]);
  return result;
}

// What CUB leaves undefined.
template <class T>
T undefined() {
  T value{};
  if constexpr (std::is_trivially_copyable<T>::value) __builtin_memset(static_cast<void*>(&value), 0xFF, sizeof value);
  return value;
}

}  // namespace crosscheck

template <class T, int X, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int Y = 1, int Z = 1, int arch = 0>
class BlockReduce {
 public:
  struct alignas(16) TempStorage {
    T values[X * Y * Z];
  };
  explicit BlockReduce(TempStorage& storage) : storage_(storage) {}

  // For thread 0 alone.
  template <class Op>
  T Reduce(T input, Op op, int valid, CUB_LINE) {
    return reduced(input, op, valid, false, line);
  }
  template <class Op>
  T Reduce(T input, Op op, CUB_LINE) {
    return reduced(input, op, X * Y * Z, true, line);
  }
  template <int N, class Op>
  T Reduce(T (&inputs)[N], Op op, CUB_LINE) {
    return reduced(crosscheck::folded(inputs, op), op, X * Y * Z, true, line);
  }
  T Sum(T input, CUB_LINE) { return reduced(input, cub::Sum(), X * Y * Z, true, line); }
  T Sum(T input, int valid, CUB_LINE) { return Reduce(input, cub::Sum(), valid, line); }
  template <int N>
  T Sum(T (&inputs)[N], CUB_LINE) {
    return reduced(crosscheck::folded(inputs, cub::Sum()), cub::Sum(), X * Y * Z, true, line);
  }

 private:
  TempStorage& storage_;
  template <class Op>
  T reduced(T input, Op op, int valid, bool all, Line line) {
    crosscheck::check_block("cub::BlockReduce", line, X * Y * Z, all);
    const int rank = crosscheck::rank();
    storage_.values[rank] = input;
    cuda_on_cpu::arrive("cub::BlockReduce", line.number, 0);
    if (rank) return crosscheck::undefined<T>();
    T result{};
    for (int warp = 0; warp < valid; warp += 32) {
      T lanes[32];
      const int count = std::min(32, valid - warp);
      for (int lane = 0; lane < count; ++lane) lanes[lane] = storage_.values[warp + lane];
      for (int step = 1; step < 32; step *= 2)  // in place: a lane reads those after it before they change
        for (int lane = 0; lane + step < count; ++lane) lanes[lane] = op(lanes[lane], lanes[lane + step]);
      result = warp ? op(result, lanes[0]) : lanes[0];
    }
    return result;
  }
};

// Of one item a thread, or of N that lie side by side. A functor may stand for what comes before the block: the first
// warp calls it with the block's total, and what it returns to thread 0 counts.
template <class T, int X, BlockScanAlgorithm = BLOCK_SCAN_RAKING, int Y = 1, int Z = 1, int arch = 0>
class BlockScan {
 public:
  struct alignas(16) TempStorage {
    T values[X * Y * Z], prefix;
  };
  explicit BlockScan(TempStorage& storage) : storage_(storage) {}

#define CUB_SCANS(ITEMS, IN, OUT, in, out, count)                                                                      \
  template <ITEMS class Op> void InclusiveScan(IN, OUT, Op op, CUB_LINE) { inclusive(in, out, count, op, line); }        \
  template <ITEMS class Op>                                                                                            \
  void InclusiveScan(IN, OUT, Op op, T& total, CUB_LINE) {                                                             \
    total = inclusive(in, out, count, op, line);                                                                       \
  }                                                                                                                    \
  template <ITEMS class Op, class Prefix>                                                                              \
  void InclusiveScan(IN, OUT, Op op, Prefix& prefix, CUB_LINE) {                                                       \
    scan(in, out, count, op, true, &prefix, line);                                                                     \
  }                                                                                                                    \
  template <ITEMS class Op>                                                                                            \
  void ExclusiveScan(IN, OUT, T first, Op op, CUB_LINE) {                                                              \
    exclusive(in, out, count, first, op, line);                                                                        \
  }                                                                                                                    \
  template <ITEMS class Op>                                                                                            \
  void ExclusiveScan(IN, OUT, T first, Op op, T& total, CUB_LINE) {                                                    \
    total = exclusive(in, out, count, first, op, line);                                                                \
  }                                                                                                                    \
  template <ITEMS class Op, class Prefix>                                                                              \
  void ExclusiveScan(IN, OUT, Op op, Prefix& prefix, CUB_LINE) {                                                       \
    scan(in, out, count, op, false, &prefix, line);                                                                    \
  }
#define CUB_NONE
#define CUB_ITEMS int N,
  CUB_SCANS(CUB_NONE, T item, T& sum, &item, &sum, 1)
  CUB_SCANS(CUB_ITEMS, T (&items)[N], T (&sums)[N], items, sums, N)
#undef CUB_SCANS
#undef CUB_NONE
#undef CUB_ITEMS
  template <class In, class Out> void InclusiveSum(In&& in, Out& out, CUB_LINE) { InclusiveScan(in, out, Sum(), line); }
  template <class In, class Out, class More>
  void InclusiveSum(In&& in, Out& out, More& more, CUB_LINE) {
    InclusiveScan(in, out, Sum(), more, line);
  }
  template <class In, class Out> void ExclusiveSum(In&& in, Out& out, CUB_LINE) { ExclusiveScan(in, out, T(0), Sum(), line); }
  template <class In, class Out>
  void ExclusiveSum(In&& in, Out& out, T& total, CUB_LINE) {
    ExclusiveScan(in, out, T(0), Sum(), total, line);
  }
  template <class In, class Out, class Prefix>
  void ExclusiveSum(In&& in, Out& out, Prefix& prefix, CUB_LINE) {
    ExclusiveScan(in, out, Sum(), prefix, line);
  }

 private:
  TempStorage& storage_;
  struct First {
    T value;
    T operator()(const T&) const { return value; }
  };

  template <class Op>
  T inclusive(const T* in, T* out, int count, Op op, Line line) {
    return scan<Op, First>(in, out, count, op, true, nullptr, line);
  }
  template <class Op>
  T exclusive(const T* in, T* out, int count, T first, Op op, Line line) {
    First prefix{first};
    return scan(in, out, count, op, false, &prefix, line);
  }
  // Returns the total of the block's items.
  template <class Op, class Prefix>
  T scan(const T* in, T* out, int count, Op op, bool inclusive, Prefix* prefix, Line line) {
    crosscheck::check_block("cub::BlockScan", line, X * Y * Z, true);
    T own = in[0];
    for (int i = 1; i < count; ++i) own = op(own, in[i]);
    const int rank = crosscheck::rank();
    storage_.values[rank] = own;
    cuda_on_cpu::arrive("cub::BlockScan", line.number, 0);
    T before{}, all{};  // of the threads before this one, and of all
    for (int other = 0; other < X * Y * Z; ++other) {
      if (other == rank) before = all;
      all = other ? op(all, storage_.values[other]) : storage_.values[other];
    }
    if (prefix) {
      if (rank < 32) {
        const T first = (*prefix)(all);
        if (!rank) storage_.prefix = first;
      }
      cuda_on_cpu::arrive("cub::BlockScan", line.number, 0);
      before = rank ? op(storage_.prefix, before) : storage_.prefix;
    }
    for (int i = 0; i < count; ++i) {
      const T item = in[i], next = prefix || rank || i ? op(before, item) : item;
      out[i] = inclusive ? next : before;
      before = next;
    }
    return all;
  }
};

// A thread's items lie one after another in memory, or, striped, a block's threads apart.
template <class T, int X, int N, BlockLoadAlgorithm how = BLOCK_LOAD_DIRECT, int Y = 1, int Z = 1, int arch = 0>
class BlockLoad {
 public:
  struct alignas(16) TempStorage {};
  BlockLoad() = default;
  explicit BlockLoad(TempStorage&) {}
  template <class From> void Load(From from, T (&items)[N]) { Load(from, items, X * Y * Z * N); }
  template <class From>
  void Load(From from, T (&items)[N], int valid) {
    for (int i = 0; i < N; ++i)
      if (place(i) < valid) items[i] = from[place(i)];
  }
  template <class From, class Other>
  void Load(From from, T (&items)[N], int valid, Other other) {
    for (T& item : items) item = other;
    Load(from, items, valid);
  }

 private:
  static int place(int i) { return how == BLOCK_LOAD_STRIPED ? i * X * Y * Z + crosscheck::rank() : crosscheck::rank() * N + i; }
};
template <class T, int X, int N, BlockStoreAlgorithm how = BLOCK_STORE_DIRECT, int Y = 1, int Z = 1, int arch = 0>
class BlockStore {
 public:
  struct alignas(16) TempStorage {};
  BlockStore() = default;
  explicit BlockStore(TempStorage&) {}
  template <class To> void Store(To to, T (&items)[N]) { Store(to, items, X * Y * Z * N); }
  template <class To>
  void Store(To to, T (&items)[N], int valid) {
    for (int i = 0; i < N; ++i)
      if (place(i) < valid) to[place(i)] = items[i];
  }

 private:
  static int place(int i) { return how == BLOCK_STORE_STRIPED ? i * X * Y * Z + crosscheck::rank() : crosscheck::rank() * N + i; }
};

// ---- A warp's lanes ----------------------------------------------------------------------------------------

namespace crosscheck {

// Size lanes side by side in a warp.
template <int Size>
struct Lanes {
  static_assert(Size > 0 && Size <= 32 && !(Size & (Size - 1)), "1, 2, 4, 8, 16 or 32 lanes of a warp are known here");
  static int rank() { return cuda_on_cpu::self->lane & (Size - 1); }
  template <class T>
  static T from(const char* what, Line line, T value, int source) {
    const int first = cuda_on_cpu::self->lane & ~(Size - 1);
    return cuda_on_cpu::exchange(what, line.number, (0xFFFFFFFFu >> (32 - Size)) << first, value, first + source,
                                 cuda_on_cpu::shuffle);
  }
};

}  // namespace crosscheck

template <class T, int Size = 32, int arch = 0>
class WarpReduce {
 public:
  struct alignas(16) TempStorage {};
  explicit WarpReduce(TempStorage&) {}
  // For the first lane alone.
  template <class Op>
  T Reduce(T input, Op op, int valid, CUB_LINE) {
    using Lanes = crosscheck::Lanes<Size>;
    for (int step = 1; step < Size; step *= 2) {
      const int other = Lanes::rank() + step;
      const T theirs = Lanes::from("cub::WarpReduce", line, input, other < valid ? other : Lanes::rank());
      if (other < valid) input = op(input, theirs);
    }
    return Lanes::rank() ? crosscheck::undefined<T>() : input;
  }
  template <class Op>
  T Reduce(T input, Op op, CUB_LINE) {
    return Reduce(input, op, Size, line);
  }
  T Sum(T input, CUB_LINE) { return Reduce(input, cub::Sum(), Size, line); }
  T Sum(T input, int valid, CUB_LINE) { return Reduce(input, cub::Sum(), valid, line); }
};

template <class T, int Size = 32, int arch = 0>
class WarpScan {
 public:
  struct alignas(16) TempStorage {};
  explicit WarpScan(TempStorage&) {}
  template <class Op>
  void InclusiveScan(T in, T& out, Op op, CUB_LINE) {
    using Lanes = crosscheck::Lanes<Size>;
    for (int step = 1; step < Size; step *= 2) {
      const int other = Lanes::rank() - step;
      const T theirs = Lanes::from("cub::WarpScan", line, in, other < 0 ? Lanes::rank() : other);
      if (other >= 0) in = op(theirs, in);
    }
    out = in;
  }
  template <class Op>
  void ExclusiveScan(T in, T& out, T first, Op op, CUB_LINE) {
    using Lanes = crosscheck::Lanes<Size>;
    InclusiveScan(in, in, op, line);
    const T before = Lanes::from("cub::WarpScan", line, in, Lanes::rank() ? Lanes::rank() - 1 : 0);
    out = Lanes::rank() ? op(first, before) : first;
  }
  void InclusiveSum(T in, T& out, CUB_LINE) { InclusiveScan(in, out, Sum(), line); }
  void ExclusiveSum(T in, T& out, CUB_LINE) { ExclusiveScan(in, out, T(0), Sum(), line); }
};

#undef CUB_LINE
}  // namespace cub

#include "cuda_on_cpu_cub_device.h"
