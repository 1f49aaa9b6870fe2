// cuda_on_cpu_warp.h: operations of a warp's lanes: shuffles, votes, reductions, __syncwarp. Included by
// cuda_on_cpu.h.
#pragma once

namespace cuda_on_cpu {

// ---- Meeting -----------------------------------------------------------------------------------------------

struct alignas(16) Value {
  unsigned char bytes[16];
};

using Combine = void (*)(Warp&, uint32_t lanes);

// The lanes that meet in one warp operation, found by the lowest lane of their mask.
struct Rendezvous {
  uint32_t mask = 0, arrived = 0;
  unsigned generation = 0;
  Combine combine = nullptr;
  bool orders = false;  // whether the meeting orders memory among its lanes
  char order[2] = {0, 0};
};

struct Warp {
  uint32_t alive = 0, pending = 0;  // lanes that have not returned; rendezvous at which someone waits
  Rendezvous meeting[32];
  Value in[32], out[32];  // a lane's own until its meeting is complete, then until its next operation
  int source[32];         // the lane that a shuffle reads
  int gathers[32] = {};   // the line at which a lane gathers; 0: none
  uint32_t gathered[32];  // the lanes that gathered with it
  unsigned gatherings[32] = {};
  unsigned orderings = 0;  // meetings that ordered memory
};

CUDA_ON_CPU_STATE Warp warps[32];  // of the running block

CUDA_ON_CPU_MACHINERY inline void open_if_complete(Warp& warp, unsigned index) {
  Rendezvous& meeting = warp.meeting[index];
  if (meeting.arrived != (meeting.mask & warp.alive)) return;
  meeting.combine(warp, meeting.arrived);
  meeting.arrived = 0;
  ++meeting.generation;
  warp.orderings += meeting.orders;
  warp.pending &= ~(1u << index);
}

// The lanes of mask that have not returned meet. The last to arrive combines the values in warp.in and leaves each
// lane's result in warp.out. Only __syncwarp orders memory, as in CUDA.
CUDA_ON_CPU_MACHINERY inline void meet(const char* what, int line, uint32_t mask, Combine combine, bool orders) {
  Warp& warp = *self->warp;
  const uint32_t own = 1u << self->lane;
  if (!(mask & own))
    fail_here("calls %s() at line %d with mask 0x%08x, which leaves out its lane %u", what, line, mask, self->lane);
  const unsigned index = __builtin_ctz(mask);
  Rendezvous& meeting = warp.meeting[index];
  if (meeting.arrived == 0) {
    meeting.mask = mask;
    meeting.combine = combine;
    meeting.orders = orders;
    warp.pending |= 1u << index;
  } else if (meeting.mask != mask || meeting.combine != combine) {
    fail_here("calls %s() at line %d with mask 0x%08x while lanes of its warp wait in another operation or mask", what,
              line, mask);
  }
  char* order = &meeting.order[meeting.generation & 1];
  if (orders) __tsan_release(order);
  meeting.arrived |= own;
  const unsigned generation = meeting.generation;
  open_if_complete(warp, index);
  if (meeting.generation == generation) wait(meeting.generation, what, line);
  if (orders) __tsan_acquire(order);
}

// ---- Gathering ---------------------------------------------------------------------------------------------

CUDA_ON_CPU_MACHINERY inline void open_gathering(Warp& warp, int line) {
  uint32_t lanes = 0;
  for (unsigned lane = 0; lane < 32; ++lane) lanes |= uint32_t(warp.gathers[lane] == line) << lane;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (!(lanes >> lane & 1)) continue;
    warp.gathers[lane] = 0;
    warp.gathered[lane] = lanes;
    ++warp.gatherings[lane];
  }
}

// Finds the lanes that run together, which a GPU knows: a lane waits until all lanes of its warp are at the same line,
// or until no other can continue.
CUDA_ON_CPU_MACHINERY inline uint32_t gather(const char* what, int line) {
  Warp& warp = *self->warp;
  const unsigned lane = self->lane, generation = warp.gatherings[lane];
  warp.gathers[lane] = line;
  bool all = true;
  for (unsigned other = 0; other < 32; ++other)
    if (warp.alive >> other & 1) all = all && warp.gathers[other] == line;
  if (all) open_gathering(warp, line);
  if (warp.gatherings[lane] == generation) wait(warp.gatherings[lane], what, line);
  return warp.gathered[lane];
}

// Releases gathering lanes; whether there were any.
CUDA_ON_CPU_MACHINERY inline bool open_gatherings(unsigned threads) {
  bool any = false;
  for (unsigned warp = 0; warp * 32 < threads; ++warp)
    for (unsigned lane = 0; lane < 32; ++lane)
      if (const int line = warps[warp].gathers[lane]) {
        open_gathering(warps[warp], line);
        any = true;
      }
  return any;
}

// ---- What the lanes bring ----------------------------------------------------------------------------------

CUDA_ON_CPU_MACHINERY inline void nothing(Warp&, uint32_t) {}

constexpr int nobody = -1;

CUDA_ON_CPU_MACHINERY inline void shuffle(Warp& warp, uint32_t lanes) {
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (!(lanes >> lane & 1)) continue;
    if (lanes >> warp.source[lane] & 1)
      warp.out[lane] = warp.in[warp.source[lane]];
    else
      warp.source[lane] = nobody;
  }
}

template <class T, class Operation>
CUDA_ON_CPU_MACHINERY void fold(Warp& warp, uint32_t lanes) {
  T result{};
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (!(lanes >> lane & 1)) continue;
    T value;
    __builtin_memcpy(&value, &warp.in[lane], sizeof(T));
    result = (lanes & ((1u << lane) - 1)) ? Operation()(result, value) : value;
  }
  for (unsigned lane = 0; lane < 32; ++lane)
    if (lanes >> lane & 1) __builtin_memcpy(&warp.out[lane], &result, sizeof(T));
}

// For each lane the lanes with the same bits.
CUDA_ON_CPU_MACHINERY inline void match(Warp& warp, uint32_t lanes) {
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (!(lanes >> lane & 1)) continue;
    uint32_t same = 0;
    for (unsigned other = 0; other < 32; ++other)
      if (lanes >> other & 1 && memcmp(&warp.in[lane], &warp.in[other], sizeof(Value)) == 0) same |= 1u << other;
    __builtin_memcpy(&warp.out[lane], &same, sizeof same);
  }
}

// In CUDA the value of an absent lane is undefined. It is an error or, when the caller tests whether anything depends
// on it, one of two numbers far apart.
CUDA_ON_CPU_STATE thread_local int lent_lanes = 0;
CUDA_ON_CPU_STATE thread_local bool lacked_lane = false;

[[noreturn]] CUDA_ON_CPU_MACHINERY inline void no_source(const char* what, int line, uint32_t mask, int source) {
  const unsigned first = (self->warp - warps) * 32;
  const char* why = first + source >= block.size ? "which does not exist: the block ends before it"
                    : !(mask >> source & 1)      ? "which its mask leaves out"
                                                 : "which has returned";
  lacked_lane = true;
  fail_here("calls %s() at line %d for the value of lane %d, %s", what, line, source, why);
}

template <class T>
CUDA_ON_CPU_MACHINERY T exchange(const char* what, int line, uint32_t mask, T value, int source, Combine combine) {
  static_assert(sizeof(T) <= sizeof(Value), "a warp operation moves at most 16 bytes");
  Warp& warp = *self->warp;
  const unsigned lane = self->lane;
  __builtin_memcpy(&warp.in[lane], &value, sizeof(T));
  warp.source[lane] = source;
  meet(what, line, mask, combine, false);
  if (warp.source[lane] != nobody) __builtin_memcpy(&value, &warp.out[lane], sizeof(T));
  else if (lent_lanes) __builtin_memset(&value, lent_lanes == 1 ? 0xFB : 0x7B, sizeof(T));
  else no_source(what, line, mask, source);
  return value;
}

struct Add {
  template <class T> T operator()(T a, T b) const { return a + b; }
};
struct Smaller {
  template <class T> T operator()(T a, T b) const { return b < a ? b : a; }
};
struct Larger {
  template <class T> T operator()(T a, T b) const { return a < b ? b : a; }
};
struct Either {
  template <class T> T operator()(T a, T b) const { return a | b; }
};
struct Both {
  template <class T> T operator()(T a, T b) const { return a & b; }
};
struct One {
  template <class T> T operator()(T a, T b) const { return a ^ b; }
};
template <class T, class Operation>
T reduce(const char* what, int line, unsigned mask, T value) {
  return exchange(what, line, mask, value, 0, fold<T, Operation>);
}
template <class T>
using Integer = std::enable_if_t<std::is_integral<T>::value, T>;

}  // namespace cuda_on_cpu

extern "C" CUDA_ON_CPU_ONCE void crosscheck_lend_lanes(int which) { cuda_on_cpu::lent_lanes = which; }
// Whether a launch failed for that reason since the last call of this function.
extern "C" CUDA_ON_CPU_ONCE int crosscheck_lacked_lane() {
  const bool lacked = cuda_on_cpu::lacked_lane;
  cuda_on_cpu::lacked_lane = false;
  return lacked;
}

// ---- What a kernel calls -----------------------------------------------------------------------------------

inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, CUDA_ON_CPU_LINE) {
  cuda_on_cpu::meet("__syncwarp", line, mask, cuda_on_cpu::nothing, true);
}

// Shuffles stay within segments of width lanes; a lane whose source is outside keeps its own value.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, CUDA_ON_CPU_LINE) {
  const int lane = cuda_on_cpu::self->lane, first = lane & ~(width - 1);
  return cuda_on_cpu::exchange("__shfl_sync", line, mask, value, first | (source & (width - 1)),
                               cuda_on_cpu::shuffle);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, CUDA_ON_CPU_LINE) {
  const int lane = cuda_on_cpu::self->lane, source = lane ^ bits;
  return cuda_on_cpu::exchange("__shfl_xor_sync", line, mask, value,
                               (source & ~(width - 1)) > lane ? lane : source & 31, cuda_on_cpu::shuffle);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDA_ON_CPU_LINE) {
  const unsigned lane = cuda_on_cpu::self->lane, last = lane | (width - 1);
  return cuda_on_cpu::exchange("__shfl_down_sync", line, mask, value, delta > last - lane ? lane : lane + delta,
                               cuda_on_cpu::shuffle);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDA_ON_CPU_LINE) {
  const unsigned lane = cuda_on_cpu::self->lane, first = lane & ~(width - 1);
  return cuda_on_cpu::exchange("__shfl_up_sync", line, mask, value, delta > lane - first ? lane : lane - delta,
                               cuda_on_cpu::shuffle);
}

inline unsigned __ballot_sync(unsigned mask, int p, CUDA_ON_CPU_LINE) {
  return cuda_on_cpu::reduce<unsigned, cuda_on_cpu::Either>("__ballot_sync", line, mask,
                                                            p ? 1u << cuda_on_cpu::self->lane : 0u);
}
inline int __any_sync(unsigned mask, int p, CUDA_ON_CPU_LINE) {
  return cuda_on_cpu::reduce<int, cuda_on_cpu::Larger>("__any_sync", line, mask, p != 0);
}
inline int __all_sync(unsigned mask, int p, CUDA_ON_CPU_LINE) {
  return cuda_on_cpu::reduce<int, cuda_on_cpu::Smaller>("__all_sync", line, mask, p != 0);
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value, CUDA_ON_CPU_LINE) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a match is of 4 or 8 bytes");
  cuda_on_cpu::Value brought{}, found;
  __builtin_memcpy(&brought, &value, sizeof(T));
  found = cuda_on_cpu::exchange("__match_any_sync", line, mask, brought, 0, cuda_on_cpu::match);
  unsigned same;
  __builtin_memcpy(&same, &found, sizeof same);
  return same;
}
template <class T>
unsigned __match_all_sync(unsigned mask, T value, int* all, CUDA_ON_CPU_LINE) {
  const unsigned same = __match_any_sync(mask, value, line), lanes = mask & cuda_on_cpu::self->warp->alive;
  *all = same == lanes;
  return *all ? mask : 0;
}
template <class T>
cuda_on_cpu::Integer<T> __reduce_add_sync(unsigned mask, T value, CUDA_ON_CPU_LINE) {
  return cuda_on_cpu::reduce<T, cuda_on_cpu::Add>("__reduce_add_sync", line, mask, value);
}
template <class T>
cuda_on_cpu::Integer<T> __reduce_min_sync(unsigned mask, T value, CUDA_ON_CPU_LINE) {
  return cuda_on_cpu::reduce<T, cuda_on_cpu::Smaller>("__reduce_min_sync", line, mask, value);
}
template <class T>
cuda_on_cpu::Integer<T> __reduce_max_sync(unsigned mask, T value, CUDA_ON_CPU_LINE) {
  return cuda_on_cpu::reduce<T, cuda_on_cpu::Larger>("__reduce_max_sync", line, mask, value);
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value, CUDA_ON_CPU_LINE) {
  return cuda_on_cpu::reduce<unsigned, cuda_on_cpu::Both>("__reduce_and_sync", line, mask, value);
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value, CUDA_ON_CPU_LINE) {
  return cuda_on_cpu::reduce<unsigned, cuda_on_cpu::Either>("__reduce_or_sync", line, mask, value);
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned value, CUDA_ON_CPU_LINE) {
  return cuda_on_cpu::reduce<unsigned, cuda_on_cpu::One>("__reduce_xor_sync", line, mask, value);
}
inline unsigned __activemask(CUDA_ON_CPU_LINE) { return cuda_on_cpu::gather("__activemask", line); }
