// cuda_on_cpu_groups.h: cooperative_groups: the block, tiles within a warp, coalesced lanes, and the grid without
// sync(), because blocks run one after another.
// Included where a source includes <cooperative_groups.h>.
#pragma once

#include "crosscheck.cuh"

namespace cooperative_groups {

class thread_block {
 public:
  static void sync(CUDA_ON_CPU_LINE) { cuda_on_cpu::arrive("thread_block::sync", line, 0); }
  static void barrier_wait(CUDA_ON_CPU_LINE) { sync(line); }
  static unsigned thread_rank() {
    return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  }
  static unsigned num_threads() { return cuda_on_cpu::block.size; }
  static unsigned size() { return num_threads(); }
  static dim3 group_index() { return dim3(blockIdx.x, blockIdx.y, blockIdx.z); }
  static dim3 thread_index() { return dim3(threadIdx.x, threadIdx.y, threadIdx.z); }
  static dim3 group_dim() { return blockDim; }
  static dim3 dim_threads() { return blockDim; }
};

inline thread_block this_thread_block() { return {}; }

class grid_group {
 public:
  static bool is_valid() { return false; }
  [[noreturn]] static void sync(CUDA_ON_CPU_LINE) {
    cuda_on_cpu::fail_here("calls grid_group::sync() at line %d; on the CPU blocks run one after another", line);
  }
  static unsigned long long block_rank() {
    return (blockIdx.z * uint64_t(gridDim.y) + blockIdx.y) * gridDim.x + blockIdx.x;
  }
  static unsigned long long thread_rank() { return block_rank() * thread_block::size() + thread_block::thread_rank(); }
  static unsigned long long num_blocks() { return uint64_t(gridDim.x) * gridDim.y * gridDim.z; }
  static unsigned long long num_threads() { return num_blocks() * thread_block::size(); }
  static unsigned long long size() { return num_threads(); }
  static dim3 group_dim() { return gridDim; }
};
inline grid_group this_grid() { return {}; }

// Lanes of one warp that act together, given by a mask.
class WarpGroup {
 public:
  void sync(CUDA_ON_CPU_LINE) const { __syncwarp(mask_, line); }
  unsigned thread_rank() const { return __builtin_popcount(mask_ & ((1u << cuda_on_cpu::self->lane) - 1)); }
  unsigned num_threads() const { return __builtin_popcount(mask_); }
  unsigned size() const { return num_threads(); }
  template <class T>
  T shfl(T value, int rank, CUDA_ON_CPU_LINE) const {
    return exchange("shfl", line, value, rank % static_cast<int>(size()));
  }
  template <class T>
  T shfl_down(T value, unsigned delta, CUDA_ON_CPU_LINE) const {
    const unsigned rank = thread_rank();
    return exchange("shfl_down", line, value, rank + delta < size() ? rank + delta : rank);
  }
  template <class T>
  T shfl_up(T value, unsigned delta, CUDA_ON_CPU_LINE) const {
    const unsigned rank = thread_rank();
    return exchange("shfl_up", line, value, rank >= delta ? rank - delta : rank);
  }
  template <class T>
  T shfl_xor(T value, unsigned bits, CUDA_ON_CPU_LINE) const {
    const unsigned other = thread_rank() ^ bits;
    return exchange("shfl_xor", line, value, other < size() ? other : thread_rank());
  }
  int any(int p, CUDA_ON_CPU_LINE) const { return __any_sync(mask_, p, line); }
  int all(int p, CUDA_ON_CPU_LINE) const { return __all_sync(mask_, p, line); }
  unsigned ballot(int p, CUDA_ON_CPU_LINE) const { return ranks(__ballot_sync(mask_, p, line)); }
  template <class T>
  unsigned match_any(T value, CUDA_ON_CPU_LINE) const {
    return ranks(__match_any_sync(mask_, value, line));
  }

  explicit WarpGroup(uint32_t mask) : mask_(mask) {}

 protected:
  uint32_t mask_;

  unsigned ranks(unsigned lanes) const {
    unsigned found = 0, rank = 0;
    for (unsigned lane = 0; lane < 32; ++lane)
      if (mask_ >> lane & 1) found |= (lanes >> lane & 1) << rank++;
    return found;
  }
  template <class T>
  T exchange(const char* what, int line, T value, unsigned rank) const {
    uint32_t left = mask_;
    while (rank--) left &= left - 1;
    return cuda_on_cpu::exchange(what, line, mask_, value, __builtin_ctz(left), cuda_on_cpu::shuffle);
  }
};

// The lanes of a warp that arrive at the same line.
class coalesced_group : public WarpGroup {
 public:
  explicit coalesced_group(uint32_t mask) : WarpGroup(mask) {}
};
inline coalesced_group coalesced_threads(CUDA_ON_CPU_LINE) {
  return coalesced_group(cuda_on_cpu::gather("coalesced_threads", line));
}

template <unsigned Size, class Parent = thread_block>
class thread_block_tile : public WarpGroup {
  static_assert(Size && Size <= 32 && !(Size & (Size - 1)), "a tile has 1, 2, 4, 8, 16 or 32 threads here");

 public:
  thread_block_tile()
      : WarpGroup((0xFFFFFFFFu >> (32 - Size)) << (cuda_on_cpu::self->lane & ~(Size - 1))) {}
  static unsigned thread_rank() { return cuda_on_cpu::self->lane & (Size - 1); }
  static constexpr unsigned num_threads() { return Size; }
  static constexpr unsigned size() { return Size; }
  static unsigned meta_group_rank() { return thread_block::thread_rank() / Size; }
  static unsigned meta_group_size() { return (thread_block::size() + Size - 1) / Size; }
};

template <unsigned Size>
thread_block_tile<Size> tiled_partition(const thread_block&) {
  return {};
}
template <unsigned Size, unsigned Outer, class Parent>
thread_block_tile<Size, Parent> tiled_partition(const thread_block_tile<Outer, Parent>&) {
  static_assert(Size <= Outer, "a tile of a tile is no larger");
  return {};
}

// Any of the groups above, chosen at run time.
class thread_group {
 public:
  thread_group(const thread_block&) {}
  thread_group(const WarpGroup& group) : group_(group), in_warp_(true) {}
  void sync(CUDA_ON_CPU_LINE) const { in_warp_ ? group_.sync(line) : thread_block::sync(line); }
  unsigned thread_rank() const { return in_warp_ ? group_.thread_rank() : thread_block::thread_rank(); }
  unsigned num_threads() const { return in_warp_ ? group_.num_threads() : thread_block::num_threads(); }
  unsigned size() const { return num_threads(); }

 private:
  WarpGroup group_{0xFFFFFFFFu};
  bool in_warp_ = false;
};
inline thread_group tiled_partition(const thread_group& of, unsigned size, CUDA_ON_CPU_LINE) {
  if (!size || size > 32 || size & (size - 1) || size > of.size())
    cuda_on_cpu::fail_here("calls tiled_partition() at line %d for tiles of %u threads", line, size);
  return WarpGroup((0xFFFFFFFFu >> (32 - size)) << (cuda_on_cpu::self->lane & ~(size - 1)));
}

template <class Group>
void sync(const Group& group, CUDA_ON_CPU_LINE) {
  group.sync(line);
}

// ---- cooperative_groups/reduce.h ---------------------------------------------------------------------------

template <class T> struct plus { T operator()(T a, T b) const { return a + b; } };
template <class T> struct less { T operator()(T a, T b) const { return b < a ? b : a; } };
template <class T> struct greater { T operator()(T a, T b) const { return a < b ? b : a; } };
template <class T> struct bit_and { T operator()(T a, T b) const { return a & b; } };
template <class T> struct bit_or { T operator()(T a, T b) const { return a | b; } };
template <class T> struct bit_xor { T operator()(T a, T b) const { return a ^ b; } };

// A function's address that the compiler cannot see through: GCC refuses a pointer to a __forceinline__ function that
// it learns too late to inline.
template <class Operation>
Operation called_at(Operation operation) {
  if constexpr (std::is_pointer<Operation>::value) asm("" : "+r"(operation));
  return operation;
}

// Reduces in a tree, in the order of a GPU's lanes.
template <unsigned Size, class Parent, class T, class Operation>
T reduce(const thread_block_tile<Size, Parent>& tile, T value, Operation given, CUDA_ON_CPU_LINE) {
  const Operation operation = called_at(given);
  for (unsigned bits = Size / 2; bits; bits /= 2) value = operation(value, tile.shfl_xor(value, bits, line));
  return value;
}

template <class T, class Operation>
T reduce(const coalesced_group& group, T value, Operation given, CUDA_ON_CPU_LINE) {
  const Operation operation = called_at(given);
  T result = group.shfl(value, 0, line);
  for (unsigned rank = 1; rank < group.size(); ++rank) result = operation(result, group.shfl(value, rank, line));
  return result;
}

// ---- cooperative_groups/scan.h -----------------------------------------------------------------------------

// Of the values of all ranks up to this thread's; exclusive, of those before it, and T() in the first thread.
template <class Group, class T, class Operation = plus<T>>
T inclusive_scan(const Group& group, T value, Operation given = {}, CUDA_ON_CPU_LINE) {
  const Operation operation = called_at(given);
  T result = group.shfl(value, 0, line);
  for (unsigned rank = 1; rank < group.size(); ++rank) {
    const T other = group.shfl(value, rank, line);
    if (rank <= group.thread_rank()) result = operation(result, other);
  }
  return result;
}

template <class Group, class T, class Operation = plus<T>>
T exclusive_scan(const Group& group, T value, Operation given = {}, CUDA_ON_CPU_LINE) {
  const Operation operation = called_at(given);
  T result = T();
  for (unsigned rank = 0; rank + 1 < group.size(); ++rank) {
    const T other = group.shfl(value, rank, line);
    if (rank < group.thread_rank()) result = rank ? operation(result, other) : other;
  }
  return result;
}

}  // namespace cooperative_groups
