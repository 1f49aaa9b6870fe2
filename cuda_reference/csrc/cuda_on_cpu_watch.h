// cuda_on_cpu_watch.h: records reads and writes, byte by byte. With CUDA_ON_CPU_WATCH the compiler calls a hook before
// every access, as for ThreadSanitizer. The hooks are ours, so no preloaded runtime is needed. They check shared
// arrays and the memory given to crosscheck_watch(). Included by cuda_on_cpu.h. They find:
//
//   a read of a shared array or an output before any write
//   an access beside a tensor, or between the elements of a view
//   two unordered accesses of two threads to one element: writes of different values, or a read and a write
//   the thread that stored an element last; all accesses of one thread
//
// Accesses are ordered within a thread, within a block by a __syncthreads() in between, and within a warp by a
// __syncwarp(). A launch with atomics outside of shared memory, be it a __device__ variable, may order its blocks by
// them, so accesses of different blocks are not judged.
#pragma once

#ifndef CUDA_ON_CPU_WATCH
namespace cuda_on_cpu {
inline void watch_shared(const SharedArray&) {}
inline void watch_dynamic_shared(const char*, size_t) {}
inline void watch_launch() {}
inline void watch_block() {}
inline void watch_block_end() {}
inline void watch_crash() {}
}  // namespace cuda_on_cpu
#else
#include <unordered_map>
#include <vector>

namespace cuda_on_cpu {

// ---- What Python sees: mirrored by cuda_reference/_watch.py ------------------------------------------------

constexpr int watch_frames = 6, watched_memories = 64;

// A thread in a launch, with the call stack of an access: return addresses, innermost first.
struct Access {
  uint64_t frames[watch_frames];
  uint32_t block[3], thread[3];
  uint32_t launch, epoch;  // epoch: the barriers that the block had passed
  uint32_t turn, warp;     // turn: the meetings of the warp that had ordered its memory
  uint32_t atomic;
};

// A tensor's memory and its surroundings. The state of a byte: 0 no element, 1 written, 2 unwritten.
struct WatchedMemory {
  uint64_t low, bytes;
  uint8_t* state;
  uint32_t *writer, *reader;  // the number of the last access to each byte, 0 for none
};

struct Finding {
  enum Kind : uint32_t {
    UNWRITTEN_SHARED, OUTSIDE_SHARED, UNWRITTEN, OUTSIDE, CLASH, READ_AFTER_WRITE, WRITE_AFTER_READ
  } kind;
  uint32_t size, write;    // of the access
  uint32_t here, other;    // accesses; other is 0 if there is only one
  uint64_t count, address;
  const char* name;        // of a shared array, else null
  uint64_t offset, item;   // of the access in it, and its elements' size
  uint64_t extents[4];
  uint32_t rank;
};

struct Followed {
  uint64_t address;
  uint32_t access, size, write;
  const char* name;
  uint64_t offset, item, extents[4];
  uint32_t rank;
};

// ---- State -------------------------------------------------------------------------------------------------

// The last accesses to a byte of a shared array. Two unordered readers are kept: the next writer is another thread
// than one of them.
struct Touched {
  uint32_t writer = 0, reader = 0, another = 0;
};

struct WatchedArray {
  const char* name;
  uint64_t low, bytes, item, extents[4];
  uint32_t rank;
  uint64_t guard;  // bytes before and after it that belong to nothing
  std::vector<uint8_t> written;
  std::vector<Touched> touched;
};

struct Watch {
  bool on = false, inside = false, atomics = false;
  WatchedMemory memories[watched_memories];
  int memory_count = 0;
  std::vector<WatchedArray> arrays;
  std::vector<Access> accesses{1};
  std::unordered_map<uint64_t, uint32_t> known;  // hash of an access → its number
  std::vector<Finding> findings;
  std::vector<Followed> followed;
  bool following = false;
  uint32_t follow[7] = {};  // launch, block, thread
  uint32_t first_launch = 0;
  // A write over another thread's value; whether the value differs is checked after the write.
  bool pending = false;
  uint64_t pending_at = 0;
  uint32_t pending_size = 0, pending_here = 0, pending_other = 0;
  uint8_t pending_bytes[16];
  // The last access that began; if the kernel crashed, it was the cause.
  uint64_t last_address = 0, last_size = 0, last_frame[3] = {};
  bool last_write = false;
};
CUDA_ON_CPU_STATE Watch watch;

// ---- Notes -------------------------------------------------------------------------------------------------

#define CUDA_ON_CPU_HOOK __attribute__((no_sanitize_thread, noinline, visibility("hidden")))

// The call stack begins with a frame's address and content: the caller's frame and the return address.
CUDA_ON_CPU_HOOK inline uint32_t number_of_access(uint64_t at, uint64_t caller, uint64_t returns, bool atomic) {
  Access access{};
  const uint64_t low = reinterpret_cast<uint64_t>(self->stack), high = low + stack_size;
  for (int i = 0; i < watch_frames; ++i) {
    access.frames[i] = returns;
    if (caller <= at || caller < low || caller + 16 > high) break;
    at = caller;
    const uint64_t* frame = reinterpret_cast<const uint64_t*>(at);
    caller = frame[0];
    returns = frame[1];
  }
  const uint32_t numbers[] = {blockIdx.x,      blockIdx.y, blockIdx.z, self->thread.x, self->thread.y, self->thread.z,
                              launch_number - watch.first_launch, block.barrier.generation, self->warp->orderings,
                              static_cast<uint32_t>(self->warp - warps)};
  for (int i = 0; i < 3; ++i) access.block[i] = numbers[i], access.thread[i] = numbers[3 + i];
  access.launch = numbers[6];
  access.epoch = numbers[7];
  access.turn = numbers[8];
  access.warp = numbers[9];
  access.atomic = atomic;
  uint64_t hash = 0xcbf29ce484222325u ^ atomic;
  for (uint64_t part : access.frames) hash = (hash ^ part) * 0x9E3779B97F4A7C15u, hash ^= hash >> 29;
  for (uint64_t part : numbers) hash = (hash ^ part) * 0x9E3779B97F4A7C15u, hash ^= hash >> 29;
  uint32_t& number = watch.known[hash];
  if (!number) {
    number = static_cast<uint32_t>(watch.accesses.size());
    watch.accesses.push_back(access);
  }
  return number;
}

// The order of two threads: by block, then by thread.
CUDA_ON_CPU_HOOK inline bool before(uint32_t one, uint32_t two) {
  const Access &a = watch.accesses[one], &b = watch.accesses[two];
  for (int i = 2; i >= 0; --i)
    if (a.block[i] != b.block[i]) return a.block[i] < b.block[i];
  for (int i = 2; i >= 0; --i)
    if (a.thread[i] != b.thread[i]) return a.thread[i] < b.thread[i];
  return false;
}

// Counts a finding. Per kind and place that of the first thread is kept; null if there is one already.
CUDA_ON_CPU_HOOK inline Finding* found(Finding::Kind kind, uint32_t here, uint32_t other, uint64_t address,
                                       uint32_t size, bool write) {
  const Finding fresh{kind, size, write, here, other, 1, address, nullptr, 0, 0, {}, 0};
  for (Finding& f : watch.findings) {
    if (f.kind != kind || watch.accesses[f.here].frames[0] != watch.accesses[here].frames[0] ||
        watch.accesses[f.other].frames[0] != watch.accesses[other].frames[0])
      continue;
    const uint64_t count = f.count + 1;
    const bool earlier = before(here, f.here);
    if (earlier) f = fresh;
    f.count = count;
    return earlier ? &f : nullptr;
  }
  watch.findings.push_back(fresh);
  return &watch.findings.back();
}

// Whether two accesses of one launch are unordered.
CUDA_ON_CPU_HOOK inline bool unordered(uint32_t one, uint32_t two) {
  if (!one || !two) return false;
  const Access &a = watch.accesses[one], &b = watch.accesses[two];
  if (a.launch != b.launch || (a.atomic && b.atomic)) return false;
  if (memcmp(a.block, b.block, sizeof a.block)) return !watch.atomics;
  if (a.epoch != b.epoch || (a.warp == b.warp && a.turn != b.turn)) return false;
  return memcmp(a.thread, b.thread, sizeof a.thread);
}

// The shared array in or beside which an address lies.
CUDA_ON_CPU_HOOK inline WatchedArray* array_at(uint64_t address) {
  for (WatchedArray& a : watch.arrays)
    if (address - a.low + a.guard < a.bytes + 2 * a.guard) return &a;
  return nullptr;
}

CUDA_ON_CPU_HOOK inline void name_shared(Finding* f, const WatchedArray& array) {
  if (!f) return;
  f->name = array.name;
  f->offset = f->address - array.low;
  f->item = array.item;
  f->rank = array.rank;
  memcpy(f->extents, array.extents, sizeof f->extents);
}

CUDA_ON_CPU_HOOK inline void settle() {
  if (!watch.pending) return;
  watch.pending = false;
  if (!memcmp(watch.pending_bytes, reinterpret_cast<void*>(watch.pending_at), watch.pending_size)) return;
  Finding* f =
      found(Finding::CLASH, watch.pending_here, watch.pending_other, watch.pending_at, watch.pending_size, true);
  if (const WatchedArray* array = array_at(watch.pending_at)) name_shared(f, *array);
}

// A write over another thread's write.
CUDA_ON_CPU_HOOK inline void settle_later(uint32_t here, uint32_t wrote, uint64_t address, uint32_t size) {
  if (size > sizeof watch.pending_bytes) return;
  watch.pending = true;
  watch.pending_at = address;
  watch.pending_size = size;
  watch.pending_here = here;
  watch.pending_other = wrote;
  memcpy(watch.pending_bytes, reinterpret_cast<void*>(address), size);
}

CUDA_ON_CPU_HOOK inline void follow(uint64_t address, uint32_t size, bool write, uint32_t here,
                                    const WatchedArray* array) {
  const Access& access = watch.accesses[here];
  const uint32_t* wanted = watch.follow;
  if (access.launch != wanted[0] || memcmp(access.block, wanted + 1, 12) || memcmp(access.thread, wanted + 4, 12))
    return;
  if (watch.followed.size() >= 1u << 20) return;
  Followed event{address, here, size, write, nullptr, 0, 0, {}, 0};
  if (array) {
    event.name = array->name;
    event.offset = address - array->low;
    event.item = array->item;
    event.rank = array->rank;
    memcpy(event.extents, array->extents, sizeof event.extents);
  }
  watch.followed.push_back(event);
}

CUDA_ON_CPU_HOOK inline void note_shared(WatchedArray& array, uint64_t address, uint32_t size, bool write,
                                         uint32_t here) {
  const uint64_t offset = address - array.low;
  bool unwritten = false, outside = offset >= array.bytes || offset + size > array.bytes;
  uint32_t wrote = 0, read = 0;
  for (uint64_t i = offset; i < offset + size && i < array.bytes; ++i) {
    Touched& byte = array.touched[i];
    const bool raced = unordered(byte.reader, here);
    unwritten |= !array.written[i];
    if (unordered(byte.writer, here)) wrote = byte.writer;
    if (write && (raced || unordered(byte.another, here))) read = raced ? byte.reader : byte.another;
    if (write) array.written[i] = 1;
    else if (raced) byte.another = byte.reader;
    (write ? byte.writer : byte.reader) = here;
  }
  auto tell = [&](Finding::Kind kind, uint32_t other) {
    name_shared(found(kind, here, other, address, size, write), array);
  };
  if (outside) return tell(Finding::OUTSIDE_SHARED, 0);
  if (unwritten && !write) tell(Finding::UNWRITTEN_SHARED, 0);
  if (write && read) tell(Finding::WRITE_AFTER_READ, read);
  if (!write && wrote) tell(Finding::READ_AFTER_WRITE, wrote);
  if (write && wrote) settle_later(here, wrote, address, size);
}

CUDA_ON_CPU_HOOK inline void note_global(WatchedMemory& memory, uint64_t address, uint32_t size, bool write,
                                         uint32_t here) {
  const uint64_t first = address - memory.low;
  bool outside = false, unwritten = false;
  uint32_t wrote = 0, read = 0;
  for (uint64_t i = first; i < first + size && i < memory.bytes; ++i) {
    outside |= memory.state[i] == 0;
    unwritten |= memory.state[i] == 2;
    if (unordered(memory.writer[i], here)) wrote = memory.writer[i];
    if (write && unordered(memory.reader[i], here)) read = memory.reader[i];
    if (write && memory.state[i] == 2) memory.state[i] = 1;
    (write ? memory.writer : memory.reader)[i] = here;
  }
  if (outside) return void(found(Finding::OUTSIDE, here, 0, address, size, write));
  if (unwritten && !write) found(Finding::UNWRITTEN, here, 0, address, size, false);
  if (write && read) found(Finding::WRITE_AFTER_READ, here, read, address, size, true);
  if (!write && wrote) found(Finding::READ_AFTER_WRITE, here, wrote, address, size, false);
  if (write && wrote) settle_later(here, wrote, address, size);
}

enum class Touch { READ, WRITE, ATOMIC };

// What the host stores between launches, as cudaMemset does, has a value.
CUDA_ON_CPU_HOOK inline void note_host(uint64_t address, uint64_t size) {
  for (int i = 0; i < watch.memory_count; ++i) {
    WatchedMemory& memory = watch.memories[i];
    const uint64_t first = address - memory.low;
    if (first >= memory.bytes) continue;
    for (uint64_t at = first; at < first + size && at < memory.bytes; ++at)
      if (memory.state[at] == 2) memory.state[at] = 1;
  }
}

CUDA_ON_CPU_HOOK inline void note(const volatile void* pointer, uint64_t size, Touch touch, void* frame) {
  if (watch.inside) return;  // an access of the recording itself
  const uint64_t address = reinterpret_cast<uint64_t>(pointer);
  if (!watch.on && touch != Touch::READ) note_host(address, size);
  if (!watch.on) return;
  watch.inside = true;
  settle();
  const uint64_t* words = static_cast<const uint64_t*>(frame);
  watch.last_address = address;
  watch.last_size = size;
  watch.last_write = touch != Touch::READ;
  watch.last_frame[0] = reinterpret_cast<uint64_t>(frame);
  watch.last_frame[1] = words[0];
  watch.last_frame[2] = words[1];
  WatchedArray* array = array_at(address);
  WatchedMemory* memory = nullptr;
  for (int i = 0; i < watch.memory_count && !array; ++i)
    if (address - watch.memories[i].low < watch.memories[i].bytes) memory = &watch.memories[i];
  if (touch == Touch::ATOMIC && !array) watch.atomics = true;
  if (array || memory) {
    const uint32_t here = number_of_access(watch.last_frame[0], words[0], words[1], touch == Touch::ATOMIC);
    const uint32_t bytes = static_cast<uint32_t>(size);
    if (watch.following) follow(address, bytes, touch != Touch::READ, here, array);
    for (bool write : {false, true}) {
      if (touch != Touch::ATOMIC && write != (touch == Touch::WRITE)) continue;
      if (array) note_shared(*array, address, bytes, write, here);
      else note_global(*memory, address, bytes, write, here);
    }
  }
  watch.inside = false;
}

// ---- Calls from the other headers --------------------------------------------------------------------------

CUDA_ON_CPU_MACHINERY inline void watch_shared(const SharedArray& array) {
  watch.inside = true;
  WatchedArray known{array.name, reinterpret_cast<uint64_t>(array.data), array.bytes, array.item, {}, array.rank,
                     shared_guard, std::vector<uint8_t>(array.bytes), std::vector<Touched>(array.bytes)};
  for (int i = 0; i < 4; ++i) known.extents[i] = array.extents[i];
  watch.arrays.push_back(std::move(known));
  watch.inside = false;
}

// The kernel's name for its dynamic shared memory, and the size of its elements.
CUDA_ON_CPU_MACHINERY inline void watch_dynamic_shared(const char* name, size_t item) {
  for (WatchedArray& array : watch.arrays) {
    if (array.low != reinterpret_cast<uint64_t>(block.dynamic_shared)) continue;
    array.name = name;
    array.item = item;
    array.extents[0] = array.bytes / item;
  }
}

CUDA_ON_CPU_MACHINERY inline void watch_launch() {
  watch.arrays.clear();
  watch.atomics = false;
  watch.last_address = 0;
  if (block.dynamic_bytes) {
    const uint64_t low = reinterpret_cast<uint64_t>(block.dynamic_shared);
    watch.arrays.push_back({"dynamic shared memory", low, block.dynamic_bytes, 1, {block.dynamic_bytes}, 1, 0,
                            std::vector<uint8_t>(block.dynamic_bytes), std::vector<Touched>(block.dynamic_bytes)});
  }
}

CUDA_ON_CPU_MACHINERY inline void watch_block() {
  for (WatchedArray& array : watch.arrays) {
    memset(array.written.data(), 0, array.bytes);
    array.touched.assign(array.bytes, {});
  }
  watch.on = watch.memory_count > 0;
}

CUDA_ON_CPU_MACHINERY inline void watch_block_end() {
  watch.inside = true;
  settle();
  watch.inside = watch.on = false;
}

// A thread crashed in the last access that began. The recording itself touches only valid memory.
CUDA_ON_CPU_MACHINERY inline void watch_crash() {
  if (!watch.on || !watch.last_address) return;
  watch.inside = true;
  watch.pending = false;
  const uint64_t* frame = watch.last_frame;
  found(Finding::OUTSIDE, number_of_access(frame[0], frame[1], frame[2], false), 0, watch.last_address,
        static_cast<uint32_t>(watch.last_size), watch.last_write);
  watch.inside = false;
}

}  // namespace cuda_on_cpu

// ---- The hooks that the compiler calls ---------------------------------------------------------------------

#define CUDA_ON_CPU_NOTE(pointer, size, touch) \
  cuda_on_cpu::note(pointer, size, cuda_on_cpu::Touch::touch, __builtin_frame_address(0))
#define CUDA_ON_CPU_HOOKS(bytes)                                                                          \
  CUDA_ON_CPU_HOOK void __tsan_read##bytes(void* p) { CUDA_ON_CPU_NOTE(p, bytes, READ); }                 \
  CUDA_ON_CPU_HOOK void __tsan_write##bytes(void* p) { CUDA_ON_CPU_NOTE(p, bytes, WRITE); }               \
  CUDA_ON_CPU_HOOK void __tsan_unaligned_read##bytes(void* p) { CUDA_ON_CPU_NOTE(p, bytes, READ); }       \
  CUDA_ON_CPU_HOOK void __tsan_unaligned_write##bytes(void* p) { CUDA_ON_CPU_NOTE(p, bytes, WRITE); }     \
  CUDA_ON_CPU_HOOK void __tsan_volatile_read##bytes(void* p) { CUDA_ON_CPU_NOTE(p, bytes, READ); }        \
  CUDA_ON_CPU_HOOK void __tsan_volatile_write##bytes(void* p) { CUDA_ON_CPU_NOTE(p, bytes, WRITE); }
// These replace the built-in atomic operations.
#define CUDA_ON_CPU_ATOMIC_HOOK(bits, T, name)                                                            \
  CUDA_ON_CPU_HOOK T __tsan_atomic##bits##_##name(volatile T* p, T value, int) {                          \
    CUDA_ON_CPU_NOTE(p, bits / 8, ATOMIC);                                                                \
    return __atomic_##name(p, value, __ATOMIC_SEQ_CST);                                                   \
  }
#define CUDA_ON_CPU_ATOMIC_HOOKS(bits, T)                                                                 \
  CUDA_ON_CPU_HOOK T __tsan_atomic##bits##_load(const volatile T* p, int) {                               \
    CUDA_ON_CPU_NOTE(p, bits / 8, ATOMIC);                                                                \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                          \
  }                                                                                                       \
  CUDA_ON_CPU_HOOK void __tsan_atomic##bits##_store(volatile T* p, T value, int) {                        \
    CUDA_ON_CPU_NOTE(p, bits / 8, ATOMIC);                                                                \
    __atomic_store_n(p, value, __ATOMIC_SEQ_CST);                                                         \
  }                                                                                                       \
  CUDA_ON_CPU_HOOK T __tsan_atomic##bits##_exchange(volatile T* p, T value, int) {                        \
    CUDA_ON_CPU_NOTE(p, bits / 8, ATOMIC);                                                                \
    return __atomic_exchange_n(p, value, __ATOMIC_SEQ_CST);                                               \
  }                                                                                                       \
  CUDA_ON_CPU_ATOMIC_HOOK(bits, T, fetch_add)                                                             \
  CUDA_ON_CPU_ATOMIC_HOOK(bits, T, fetch_sub)                                                             \
  CUDA_ON_CPU_ATOMIC_HOOK(bits, T, fetch_and)                                                             \
  CUDA_ON_CPU_ATOMIC_HOOK(bits, T, fetch_or)                                                              \
  CUDA_ON_CPU_ATOMIC_HOOK(bits, T, fetch_xor)                                                             \
  CUDA_ON_CPU_ATOMIC_HOOK(bits, T, fetch_nand)                                                            \
  CUDA_ON_CPU_HOOK bool __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* old, T value,     \
                                                                      int, int) {                         \
    CUDA_ON_CPU_NOTE(p, bits / 8, ATOMIC);                                                                \
    return __atomic_compare_exchange_n(p, old, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);         \
  }                                                                                                       \
  CUDA_ON_CPU_HOOK bool __tsan_atomic##bits##_compare_exchange_weak(volatile T* p, T* old, T value,       \
                                                                    int, int) {                           \
    CUDA_ON_CPU_NOTE(p, bits / 8, ATOMIC);                                                                \
    return __atomic_compare_exchange_n(p, old, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);         \
  }

#undef CUDA_ON_CPU_HOOK
#define CUDA_ON_CPU_HOOK __attribute__((weak, no_sanitize_thread, noinline, visibility("hidden")))
extern "C" {
CUDA_ON_CPU_HOOKS(1)
CUDA_ON_CPU_HOOKS(2)
CUDA_ON_CPU_HOOKS(4)
CUDA_ON_CPU_HOOKS(8)
CUDA_ON_CPU_HOOKS(16)
CUDA_ON_CPU_HOOK void __tsan_read_range(void* p, long n) { CUDA_ON_CPU_NOTE(p, uint64_t(n), READ); }
CUDA_ON_CPU_HOOK void __tsan_write_range(void* p, long n) { CUDA_ON_CPU_NOTE(p, uint64_t(n), WRITE); }
CUDA_ON_CPU_ATOMIC_HOOKS(8, unsigned char)
CUDA_ON_CPU_ATOMIC_HOOKS(16, unsigned short)
CUDA_ON_CPU_ATOMIC_HOOKS(32, unsigned)
CUDA_ON_CPU_ATOMIC_HOOKS(64, unsigned long)
CUDA_ON_CPU_HOOK void __tsan_atomic_thread_fence(int) {}
CUDA_ON_CPU_HOOK void __tsan_atomic_signal_fence(int) {}
CUDA_ON_CPU_HOOK void __tsan_init() {}
CUDA_ON_CPU_HOOK void __tsan_func_entry(void*) {}
CUDA_ON_CPU_HOOK void __tsan_func_exit() {}
CUDA_ON_CPU_HOOK void __tsan_vptr_read(void*) {}
CUDA_ON_CPU_HOOK void __tsan_vptr_update(void*, void*) {}

// The linker redirects these calls (--wrap).
void* __real_memcpy(void*, const void*, size_t);
void* __real_memmove(void*, const void*, size_t);
void* __real_memset(void*, int, size_t);
CUDA_ON_CPU_HOOK void* __wrap_memcpy(void* to, const void* from, size_t n) {
  CUDA_ON_CPU_NOTE(from, n, READ);
  CUDA_ON_CPU_NOTE(to, n, WRITE);
  return __real_memcpy(to, from, n);
}
CUDA_ON_CPU_HOOK void* __wrap_memmove(void* to, const void* from, size_t n) {
  CUDA_ON_CPU_NOTE(from, n, READ);
  CUDA_ON_CPU_NOTE(to, n, WRITE);
  return __real_memmove(to, from, n);
}
CUDA_ON_CPU_HOOK void* __wrap_memset(void* to, int value, size_t n) {
  CUDA_ON_CPU_NOTE(to, n, WRITE);
  return __real_memset(to, value, n);
}

// ---- What Python calls -------------------------------------------------------------------------------------

// Resets everything; nothing is watched.
CUDA_ON_CPU_ONCE void crosscheck_forget() {
  using cuda_on_cpu::watch;
  watch.inside = true;
  watch.memory_count = 0;
  watch.accesses.assign(1, {});
  watch.known.clear();
  watch.findings.clear();
  watch.followed.clear();
  watch.following = false;
  watch.first_launch = cuda_on_cpu::launch_number + 1;
  watch.inside = false;
}
// Watches another memory. Returns 0, or 1 if there is no room.
CUDA_ON_CPU_ONCE int crosscheck_watch(const cuda_on_cpu::WatchedMemory* memory) {
  using cuda_on_cpu::watch;
  if (watch.memory_count == cuda_on_cpu::watched_memories) return 1;
  watch.memories[watch.memory_count++] = *memory;
  return 0;
}
// Torch stored to memory between launches.
CUDA_ON_CPU_ONCE void crosscheck_stored(uint64_t address, uint64_t bytes) { cuda_on_cpu::note_host(address, bytes); }
// Records all accesses of one thread, given as seven numbers: launch, block, thread.
CUDA_ON_CPU_ONCE void crosscheck_follow(const unsigned* numbers) {
  for (int i = 0; i < 7; ++i) cuda_on_cpu::watch.follow[i] = numbers[i];
  cuda_on_cpu::watch.following = true;
}
CUDA_ON_CPU_ONCE const cuda_on_cpu::Access* crosscheck_access(unsigned number) {
  return number < cuda_on_cpu::watch.accesses.size() ? &cuda_on_cpu::watch.accesses[number] : nullptr;
}
CUDA_ON_CPU_ONCE const cuda_on_cpu::Finding* crosscheck_finding(unsigned number) {
  return number < cuda_on_cpu::watch.findings.size() ? &cuda_on_cpu::watch.findings[number] : nullptr;
}
CUDA_ON_CPU_ONCE const cuda_on_cpu::Followed* crosscheck_followed(unsigned number) {
  return number < cuda_on_cpu::watch.followed.size() ? &cuda_on_cpu::watch.followed[number] : nullptr;
}
}  // extern "C"
#endif
