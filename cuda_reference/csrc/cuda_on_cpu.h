// cuda_on_cpu.h: the CUDA execution model on the CPU, for g++ and clang++ (C++17, Linux).
//
// The blocks of a grid run one after another. Inside a block a fiber runs thread after thread until one has to
// wait at a barrier; that thread keeps the fiber and the next thread gets another, so that a kernel without
// barriers never switches. Shared arrays are static and refilled with NaN bytes (0xFF) for every block.
// A kernel that breaks the model (a barrier that not every thread reaches, an impossible launch) ends its grid;
// the error and its story come back through cudaGetLastError and cudaGetErrorString, and the next launch works.
//
//   CROSSCHECK_THREAD_ORDER=reverse   threads run from the last to the first; read at every launch
//   -fsanitize=address                out-of-bounds accesses, in shared arrays too
//   -fsanitize=thread                 races between the threads of a block
//
// Not modelled: blocks that wait for each other, inline PTX, wmma, clusters, streams (a launch is synchronous).
#pragma once

#include <cuda_runtime_api.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector_functions.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifdef __has_feature
#define CUDA_ON_CPU_HAS_FEATURE(name) __has_feature(name)
#else
#define CUDA_ON_CPU_HAS_FEATURE(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || CUDA_ON_CPU_HAS_FEATURE(address_sanitizer)
#define CUDA_ON_CPU_ASAN
extern "C" void __sanitizer_start_switch_fiber(void**, const void*, size_t);
extern "C" void __sanitizer_finish_switch_fiber(void*, const void**, size_t*);
extern "C" void __asan_unpoison_memory_region(const volatile void*, size_t);
#endif
#if defined(__SANITIZE_THREAD__) || CUDA_ON_CPU_HAS_FEATURE(thread_sanitizer)
#define CUDA_ON_CPU_TSAN
extern "C" void* __tsan_get_current_fiber(void);
extern "C" void* __tsan_create_fiber(unsigned);
extern "C" void __tsan_destroy_fiber(void*);
extern "C" void __tsan_switch_to_fiber(void*, unsigned);
extern "C" void __tsan_acquire(void*);
extern "C" void __tsan_release(void*);
// The machinery below shares its state between fibers on purpose; only kernels are to be judged.
#define CUDA_ON_CPU_MACHINERY __attribute__((no_sanitize_thread, noinline))
#else
#define CUDA_ON_CPU_MACHINERY
#endif

// ---- Keywords ----------------------------------------------------------------------------------------------

#undef __constant__
#undef __launch_bounds__
#undef __shared__
#define __constant__ static
#define __launch_bounds__(...)
#define __shared__ write_SHARED_T_name_dims_instead_of___shared__  // else it would silently be a local variable

#define SHARED(T, name, dims)                                                      \
  alignas(16) static T name dims;                                                  \
  static cuda_on_cpu::SharedArray name##_shared_array{#name, &name, sizeof(name)}; \
  cuda_on_cpu::use(name##_shared_array)
#define DYNAMIC_SHARED(T, name) T* name = reinterpret_cast<T*>(cuda_on_cpu::block.dynamic_shared)
#define LAUNCH(kernel, grid, block, smem, stream, ...) \
  cuda_on_cpu::launch(#kernel, (grid), (block), (smem), (stream), [=] { (kernel)(__VA_ARGS__); })

// Plain variables, set whenever a thread gets the CPU: one launch runs at a time, and a debugger can print them.
static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
static constexpr int warpSize = 32;

namespace cuda_on_cpu {

// ---- State of the running block (static, not inline: every library has its own) ------------------------------

constexpr size_t shared_limit = 227 * 1024, static_shared_limit = 48 * 1024;
constexpr size_t stack_size = 256 * 1024, guard_size = 64 * 1024;

struct Barrier {
  unsigned arrived = 0, generation = 0;  // generation counts the openings; a waiter leaves when it moves on
  int line = 0;
  bool mixed = false;         // threads arrived from different lines
  int count[2] = {0, 0};      // of __syncthreads_count, by the generation's parity
  char order[2] = {0, 0};     // addresses that carry TSan's happens-before edges, by parity
};

struct alignas(16) Value {
  unsigned char bytes[16];
};

struct Warp;
using Combine = void (*)(Warp&, uint32_t lanes);

// A set of lanes that meet in one warp operation, found by the lowest lane of their mask.
struct Rendezvous {
  uint32_t mask = 0, arrived = 0;
  unsigned generation = 0;
  Combine combine = nullptr;
  char order[2] = {0, 0};
};

struct Warp {
  uint32_t alive = 0, pending = 0;  // lanes that have not returned; rendezvous at which someone waits
  Rendezvous meeting[32];
  Value in[32], out[32];  // a lane's own until its meeting is complete, then until its next operation
  int source[32];         // the lane a shuffle reads
};

struct Fiber {
  uint3 thread{};
  unsigned lane = 0;
  Warp* warp = nullptr;
  bool busy = false;                  // holds a CUDA thread
  const unsigned* awaits = nullptr;   // the generation it waits to see changed
  unsigned awaited = 0;
  const char* waits_in = "";
  int line = 0;

  char* stack = nullptr;
  size_t usable = 0;
  bool started = false;
  ucontext_t context;
  jmp_buf jump;
  void *asan_stack = nullptr, *tsan = nullptr;
};

struct Block {
  const std::function<void()>* body = nullptr;
  unsigned size = 0, next = 0, returned = 0;  // threads: in all, started so far, returned
  bool reverse = false;
  std::vector<Warp> warps;
  Barrier barrier;
  unsigned char* dynamic_shared = nullptr;
  size_t dynamic_bytes = 0;
  bool failed = false;
  std::string reason;
};

struct SharedArray {
  const char* name;
  void* data;
  size_t bytes;
  unsigned launch = 0;  // the last launch that used it
  SharedArray* next = nullptr;
  constexpr SharedArray(const char* n, void* d, size_t b) : name(n), data(d), bytes(b) {}
};

static Block block;
#ifdef CUDA_ON_CPU_TSAN
static char block_start, block_end;  // addresses of happens-before edges, as Barrier::order
#endif
static Fiber* self = nullptr;
static std::vector<std::unique_ptr<Fiber>> fibers;
static SharedArray* shared_arrays = nullptr;  // a list, those of the running launch
static size_t shared_bytes = 0;
static unsigned launch_number = 0;
static std::mutex launch_mutex;
static ucontext_t scheduler_context;
static jmp_buf scheduler_jump;
static void *scheduler_asan_stack = nullptr, *scheduler_tsan = nullptr;
static const void* scheduler_stack = nullptr;
static size_t scheduler_stack_size = 0;
// CUDA keeps the last error by host thread; the story outlives cudaGetLastError, which clears the code.
static thread_local cudaError_t last_error = cudaSuccess, told_error = cudaSuccess;
static thread_local std::string told;

// ---- Fibers ------------------------------------------------------------------------------------------------

// Sanitizers follow swapcontext; without them _setjmp and _longjmp switch with no system call.
#if defined(CUDA_ON_CPU_ASAN) || defined(CUDA_ON_CPU_TSAN)
#define CUDA_ON_CPU_SWAPCONTEXT
#endif

CUDA_ON_CPU_MACHINERY inline void to_scheduler() {
  Fiber* const fiber = self;
#ifdef CUDA_ON_CPU_TSAN
  __tsan_switch_to_fiber(scheduler_tsan, 1);  // 1: a switch orders nothing
#endif
#ifdef CUDA_ON_CPU_ASAN
  __sanitizer_start_switch_fiber(&fiber->asan_stack, scheduler_stack, scheduler_stack_size);
#endif
#ifdef CUDA_ON_CPU_SWAPCONTEXT
  swapcontext(&fiber->context, &scheduler_context);
#else
  if (!_setjmp(fiber->jump)) _longjmp(scheduler_jump, 1);
#endif
#ifdef CUDA_ON_CPU_ASAN
  __sanitizer_finish_switch_fiber(fiber->asan_stack, &scheduler_stack, &scheduler_stack_size);
#endif
}

CUDA_ON_CPU_MACHINERY inline void run_threads();

CUDA_ON_CPU_MACHINERY inline void fiber_main() {
#ifdef CUDA_ON_CPU_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_size);
#endif
  for (;;) {
    run_threads();
    to_scheduler();
  }
}

CUDA_ON_CPU_MACHINERY inline void start(Fiber* fiber) {
  fiber->started = true;
#ifdef CUDA_ON_CPU_ASAN
  __asan_unpoison_memory_region(fiber->stack, stack_size);  // left by a kernel that was abandoned
#endif
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack;
  fiber->context.uc_stack.ss_size = fiber->usable;
  fiber->context.uc_link = nullptr;
  makecontext(&fiber->context, fiber_main, 0);
#ifdef CUDA_ON_CPU_ASAN
  fiber->context.uc_stack.ss_size = 0;  // else ASan clears the shadow of the whole stack at every switch
#endif
}

// Runs a fiber until it waits or has no thread left to run.
CUDA_ON_CPU_MACHINERY inline void resume(Fiber* fiber) {
  const bool fresh = !fiber->started;
  if (fresh) start(fiber);
  self = fiber;
  threadIdx = fiber->thread;
#ifdef CUDA_ON_CPU_TSAN
  if (!fiber->tsan) fiber->tsan = __tsan_create_fiber(0);
  __tsan_switch_to_fiber(fiber->tsan, 1);
#endif
#ifdef CUDA_ON_CPU_ASAN
  __sanitizer_start_switch_fiber(&scheduler_asan_stack, fiber->stack, fiber->usable);
#endif
#ifdef CUDA_ON_CPU_SWAPCONTEXT
  swapcontext(&scheduler_context, &fiber->context);
#else
  if (!_setjmp(scheduler_jump)) {
    if (fresh) setcontext(&fiber->context);
    _longjmp(fiber->jump, 1);
  }
#endif
#ifdef CUDA_ON_CPU_ASAN
  __sanitizer_finish_switch_fiber(scheduler_asan_stack, nullptr, nullptr);
#endif
}

// The index-th fiber. Stacks end in a guard region, and start at staggered offsets, since equally aligned stacks
// would share the same few cache sets. They are kept for the life of the process.
CUDA_ON_CPU_MACHINERY inline Fiber* fiber_at(size_t index) {
  if (index == fibers.size()) {
    void* memory = mmap(nullptr, guard_size + stack_size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    mprotect(memory, guard_size, PROT_NONE);
    fibers.push_back(std::make_unique<Fiber>());
    fibers.back()->stack = static_cast<char*>(memory) + guard_size;
    fibers.back()->usable = stack_size - index * 320 % 16384;
  }
  return fibers[index].get();
}

// Forgets what the fibers were doing: a launch never continues the last one's, whichever OS thread made it.
CUDA_ON_CPU_MACHINERY inline void abandon_fibers() {
  for (auto& fiber : fibers) {
#ifdef CUDA_ON_CPU_TSAN
    if (fiber->tsan && fiber->busy) {
      __tsan_destroy_fiber(fiber->tsan);
      fiber->tsan = nullptr;
    }
#endif
    fiber->started = fiber->busy = false;
    fiber->awaits = nullptr;
  }
}

// ---- Failure -----------------------------------------------------------------------------------------------

inline std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));
inline std::string text(const char* format, ...) {
  char buffer[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  return buffer;
}

CUDA_ON_CPU_MACHINERY inline void fail(const std::string& reason) {
  block.failed = true;
  block.reason = reason;
#ifdef CUDA_ON_CPU_TSAN
  __tsan_release(&block_end);
#endif
}

// For a thread that cannot go on; it is never resumed.
[[noreturn]] CUDA_ON_CPU_MACHINERY inline void fail_here(const std::string& reason) {
  fail(text("thread (%u, %u, %u) ", threadIdx.x, threadIdx.y, threadIdx.z) + reason);
  for (;;) to_scheduler();
}

// "31 threads wait in __syncthreads() at line 12, 1 has returned"
CUDA_ON_CPU_MACHINERY inline std::string whereabouts() {
  std::map<std::tuple<int, std::string>, unsigned> waiting;
  for (auto& fiber : fibers)
    if (fiber->busy && fiber->awaits) ++waiting[{fiber->line, fiber->waits_in}];
  std::string result;
  for (auto& [place, count] : waiting)
    result += text("%u thread%s in %s() at line %d, ", count, count == 1 ? " waits" : "s wait",
                   std::get<1>(place).c_str(), std::get<0>(place));
  result += text("%u %s returned", block.returned, block.returned == 1 ? "has" : "have");
  return block.next == block.size ? result : result + text(", %u not started", block.size - block.next);
}

// ---- Waiting -----------------------------------------------------------------------------------------------

CUDA_ON_CPU_MACHINERY inline void wait(const unsigned& generation, const char* what, int line) {
  self->awaits = &generation;
  self->awaited = generation;
  self->waits_in = what;
  self->line = line;
#ifdef CUDA_ON_CPU_TSAN
  __tsan_release(&block_end);  // the scheduler may have to end the block here
#endif
  to_scheduler();
  self->awaits = nullptr;
}

// Every thread of the block must arrive, from one and the same line. Returns the sum of the arrivals' counts.
CUDA_ON_CPU_MACHINERY inline int arrive(const char* what, int line, int count) {
  Barrier& barrier = block.barrier;
  const unsigned parity = barrier.generation & 1;
#ifdef CUDA_ON_CPU_TSAN
  __tsan_release(&barrier.order[parity]);
#endif
  if (barrier.arrived == 0) {
    barrier.line = line;
    barrier.mixed = false;
    barrier.count[parity] = 0;
  }
  barrier.mixed |= barrier.line != line;
  barrier.count[parity] += count;
  if (++barrier.arrived < block.size) {
    wait(barrier.generation, what, line);
  } else if (barrier.mixed) {
    fail_here(text("completes a barrier at line %d that others wait for elsewhere: divergent __syncthreads()",
                   line));
  } else {
    barrier.arrived = 0;
    ++barrier.generation;
  }
#ifdef CUDA_ON_CPU_TSAN
  __tsan_acquire(&barrier.order[parity]);
#endif
  return barrier.count[parity];
}

CUDA_ON_CPU_MACHINERY inline void open_if_complete(Warp& warp, unsigned index) {
  Rendezvous& meeting = warp.meeting[index];
  if (meeting.arrived != (meeting.mask & warp.alive)) return;
  meeting.combine(warp, meeting.arrived);
  meeting.arrived = 0;
  ++meeting.generation;
  warp.pending &= ~(1u << index);
}

// The lanes of mask that have not returned meet; the last to arrive combines what they brought in warp.in and
// leaves each lane's result in warp.out. Only __syncwarp orders memory, as in CUDA.
CUDA_ON_CPU_MACHINERY inline void meet(const char* what, int line, uint32_t mask, Combine combine, bool orders) {
  Warp& warp = *self->warp;
  const uint32_t own = 1u << self->lane;
  if (!(mask & own))
    fail_here(text("calls %s() at line %d with mask 0x%08x, which leaves out its lane %u", what, line, mask,
                   self->lane));
  const unsigned index = __builtin_ctz(mask);
  Rendezvous& meeting = warp.meeting[index];
  if (meeting.arrived == 0) {
    meeting.mask = mask;
    meeting.combine = combine;
    warp.pending |= 1u << index;
  } else if (meeting.mask != mask || meeting.combine != combine) {
    fail_here(text("calls %s() at line %d with mask 0x%08x while lanes of its warp wait in another operation or "
                   "mask", what, line, mask));
  }
#ifdef CUDA_ON_CPU_TSAN
  char* order = &meeting.order[meeting.generation & 1];
  if (orders) __tsan_release(order);
#endif
  meeting.arrived |= own;
  const unsigned generation = meeting.generation;
  open_if_complete(warp, index);
  if (meeting.generation == generation) wait(meeting.generation, what, line);
#ifdef CUDA_ON_CPU_TSAN
  if (orders) __tsan_acquire(order);
#else
  (void)orders;
#endif
}

CUDA_ON_CPU_MACHINERY inline void nothing(Warp&, uint32_t) {}

template <class T>
CUDA_ON_CPU_MACHINERY void shuffle(Warp& warp, uint32_t lanes) {
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (!(lanes >> lane & 1)) continue;
    if (lanes >> warp.source[lane] & 1)
      warp.out[lane] = warp.in[warp.source[lane]];
    else
      __builtin_memset(&warp.out[lane], 0xFF, sizeof(T));  // CUDA leaves it undefined: a NaN shows
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

template <class T>
CUDA_ON_CPU_MACHINERY T exchange(const char* what, int line, uint32_t mask, T value, int source, Combine combine) {
  static_assert(sizeof(T) <= sizeof(Value), "a warp operation moves at most 16 bytes");
  Warp& warp = *self->warp;
  const unsigned lane = self->lane;
  __builtin_memcpy(&warp.in[lane], &value, sizeof(T));
  warp.source[lane] = source;
  meet(what, line, mask, combine, false);
  __builtin_memcpy(&value, &warp.out[lane], sizeof(T));
  return value;
}

// ---- Running a block -----------------------------------------------------------------------------------------

CUDA_ON_CPU_MACHINERY inline void take_next_thread() {
  const unsigned index = block.reverse ? block.size - 1 - block.next : block.next;
  ++block.next;
  threadIdx.x = index % blockDim.x;
  threadIdx.y = index / blockDim.x % blockDim.y;
  threadIdx.z = index / blockDim.x / blockDim.y;
  self->thread = threadIdx;
  self->lane = index % 32;
  self->warp = &block.warps[index / 32];
  self->busy = true;
}

CUDA_ON_CPU_MACHINERY inline void thread_returned() {
  Warp& warp = *self->warp;
  ++block.returned;
  warp.alive &= ~(1u << self->lane);
  for (unsigned index = 0; warp.pending >> index; ++index)  // who waited for this lane no longer does
    if (warp.pending >> index & 1) open_if_complete(warp, index);
  self->busy = false;
}

CUDA_ON_CPU_MACHINERY inline void run_threads() {
#ifdef CUDA_ON_CPU_TSAN
  // One thread a fiber, since TSan tells threads apart by fiber; nothing orders one after another.
  __tsan_acquire(&block_start);
  take_next_thread();
  (*block.body)();
  __tsan_release(&block_end);
  thread_returned();
#else
  while (block.next < block.size && !block.failed) {
    take_next_thread();
    (*block.body)();
    thread_returned();
  }
#endif
}

CUDA_ON_CPU_MACHINERY inline void run_threads_to_the_end() {
  size_t used = 0;
  while (block.next < block.size && !block.failed) {
    Fiber* fiber = fiber_at(used);
    if (!fiber) return fail("no memory for the stack of another thread");
    resume(fiber);
#ifdef CUDA_ON_CPU_TSAN
    ++used;
#else
    used += fiber->busy;
#endif
  }
  while (block.returned < block.size && !block.failed) {
    bool progress = false;
    for (size_t index = 0; index < used && !block.failed; ++index) {
      Fiber* fiber = fibers[index].get();
      if (!fiber->busy || *fiber->awaits == fiber->awaited) continue;
      progress = true;
      resume(fiber);
    }
    if (!progress) return fail("deadlock, a barrier that not every thread reaches");
  }
}

CUDA_ON_CPU_MACHINERY inline void run_block() {
  block.next = block.returned = 0;
  for (unsigned warp = 0; warp < block.warps.size(); ++warp) {
    const unsigned lanes = std::min(32u, block.size - warp * 32);
    block.warps[warp].alive = lanes == 32 ? 0xFFFFFFFFu : (1u << lanes) - 1;
  }
  if (block.dynamic_bytes) memset(block.dynamic_shared, 0xFF, block.dynamic_bytes);
  for (SharedArray* array = shared_arrays; array; array = array->next)
    memset(array->data, 0xFF, array->bytes);
#ifdef CUDA_ON_CPU_TSAN
  __tsan_release(&block_start);
#endif
  run_threads_to_the_end();
#ifdef CUDA_ON_CPU_TSAN
  __tsan_acquire(&block_end);
#endif
}

// A launch learns of a shared array when its first thread comes past the declaration, and fills it there and
// then; the blocks that follow find it filled.
CUDA_ON_CPU_MACHINERY inline void first_use(SharedArray& array) {
  array.launch = launch_number;
  array.next = shared_arrays;
  shared_arrays = &array;
  shared_bytes += array.bytes;
  if (shared_bytes > static_shared_limit || shared_bytes + block.dynamic_bytes > shared_limit)
    fail_here(text("declares '%s': %zu bytes of static shared memory (at most %zu) and %zu dynamic (at most %zu "
                   "in all)", array.name, shared_bytes, static_shared_limit, block.dynamic_bytes, shared_limit));
  // Byte by byte through volatile: TSan must not take the fill, which other threads see without a barrier, for
  // the kernel's own write, as it would take memset.
  volatile unsigned char* bytes = static_cast<volatile unsigned char*>(array.data);
  for (size_t i = 0; i < array.bytes; ++i) bytes[i] = 0xFF;
}

CUDA_ON_CPU_MACHINERY inline void use(SharedArray& array) {
  if (array.launch != launch_number) first_use(array);
}

// ---- Launching -----------------------------------------------------------------------------------------------

inline void report(cudaError_t error, const std::string& story) {
  last_error = told_error = error;
  told = story;
}

inline std::string shape(const dim3& d) { return text("(%u, %u, %u)", d.x, d.y, d.z); }

inline const char* impossible(const dim3& grid, const dim3& threads, size_t dynamic_bytes) {
  if (threads.x == 0 || threads.y == 0 || threads.z == 0) return "a block has at least 1 thread";
  if (threads.x > 1024 || threads.y > 1024 || uint64_t(threads.x) * threads.y * threads.z > 1024)
    return "a block has at most 1024 threads";
  if (threads.z > 64) return "a block has at most 64 threads along z";
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return "a grid has at least 1 block";
  if (grid.x > 0x7FFFFFFF || grid.y > 65535 || grid.z > 65535)
    return "a grid has at most 2147483647 x 65535 x 65535 blocks";
  if (dynamic_bytes > shared_limit) return "a block has at most 232448 bytes (227 KiB) of shared memory";
  return nullptr;
}

CUDA_ON_CPU_MACHINERY inline void launch(const char* name, dim3 grid, dim3 threads, size_t dynamic_bytes,
                                         cudaStream_t, const std::function<void()>& body) {
  const std::lock_guard<std::mutex> lock(launch_mutex);
  const std::string written = name;  // with its parentheses, where the macro needed them
  const std::string kernel = name[0] == '(' ? written.substr(1, written.size() - 2) : written;
  if (const char* reason = impossible(grid, threads, dynamic_bytes))
    return report(cudaErrorInvalidConfiguration,
                  text("%s, grid %s, block %s, %zu bytes of shared memory: invalid configuration: %s", kernel.c_str(),
                       shape(grid).c_str(), shape(threads).c_str(), dynamic_bytes, reason));

  const char* order = getenv("CROSSCHECK_THREAD_ORDER");
  ++launch_number;
  shared_arrays = nullptr;
  shared_bytes = 0;
  abandon_fibers();
  block.body = &body;
  block.size = threads.x * threads.y * threads.z;
  block.reverse = order && strcmp(order, "reverse") == 0;
  block.warps.assign((block.size + 31) / 32, Warp());
  block.barrier = Barrier();
  block.failed = false;
  // Exactly as large as asked for, so that ASan sees one byte too many.
  std::unique_ptr<unsigned char, void (*)(void*)> dynamic_shared(nullptr, free);
  if (dynamic_bytes) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 128, dynamic_bytes))
      return report(cudaErrorMemoryAllocation, kernel + ": no memory for its shared memory");
    dynamic_shared.reset(static_cast<unsigned char*>(memory));
  }
  block.dynamic_shared = dynamic_shared.get();
  block.dynamic_bytes = dynamic_bytes;
  blockDim = threads;
  gridDim = grid;
#ifdef CUDA_ON_CPU_TSAN
  scheduler_tsan = __tsan_get_current_fiber();
#endif
  for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
        run_block();
        if (block.failed)
          return report(cudaErrorLaunchFailure,
                        text("%s, block %s of %u threads: ", kernel.c_str(), shape(blockIdx).c_str(), block.size) +
                            block.reason + ": " + whereabouts());
      }
}

template <class T, class Operation>
T read_modify_write(T* address, Operation operation) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8, "an atomic is 2, 4 or 8 bytes");
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
  Bits* bits = reinterpret_cast<Bits*>(address);
  Bits before = __atomic_load_n(bits, __ATOMIC_RELAXED), after;
  T value;
  do {
    __builtin_memcpy(&value, &before, sizeof(T));
    const T result = operation(value);
    __builtin_memcpy(&after, &result, sizeof(T));
  } while (!__atomic_compare_exchange_n(bits, &before, after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return value;
}

}  // namespace cuda_on_cpu

// ---- What a kernel calls ---------------------------------------------------------------------------------------

// __builtin_LINE as a default argument is the caller's line.
#define CUDA_ON_CPU_LINE int line = __builtin_LINE()

inline void __syncthreads(CUDA_ON_CPU_LINE) { cuda_on_cpu::arrive("__syncthreads", line, 0); }
inline int __syncthreads_count(int p, CUDA_ON_CPU_LINE) {
  return cuda_on_cpu::arrive("__syncthreads_count", line, p != 0);
}
inline int __syncthreads_and(int p, CUDA_ON_CPU_LINE) {
  return cuda_on_cpu::arrive("__syncthreads_and", line, p == 0) == 0;
}
inline int __syncthreads_or(int p, CUDA_ON_CPU_LINE) {
  return cuda_on_cpu::arrive("__syncthreads_or", line, p != 0) != 0;
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, CUDA_ON_CPU_LINE) {
  cuda_on_cpu::meet("__syncwarp", line, mask, cuda_on_cpu::nothing, true);
}
inline void __threadfence() {}
inline void __threadfence_block() {}

// Shuffles stay inside segments of width lanes; a lane whose source lies outside keeps its own value.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, CUDA_ON_CPU_LINE) {
  const int lane = cuda_on_cpu::self->lane, first = lane & ~(width - 1);
  return cuda_on_cpu::exchange("__shfl_sync", line, mask, value, first | (source & (width - 1)),
                               cuda_on_cpu::shuffle<T>);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, CUDA_ON_CPU_LINE) {
  const int lane = cuda_on_cpu::self->lane, source = lane ^ bits;
  return cuda_on_cpu::exchange("__shfl_xor_sync", line, mask, value,
                               (source & ~(width - 1)) > lane ? lane : source & 31, cuda_on_cpu::shuffle<T>);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDA_ON_CPU_LINE) {
  const unsigned lane = cuda_on_cpu::self->lane, last = lane | (width - 1);
  return cuda_on_cpu::exchange("__shfl_down_sync", line, mask, value, delta > last - lane ? lane : lane + delta,
                               cuda_on_cpu::shuffle<T>);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDA_ON_CPU_LINE) {
  const unsigned lane = cuda_on_cpu::self->lane, first = lane & ~(width - 1);
  return cuda_on_cpu::exchange("__shfl_up_sync", line, mask, value, delta > lane - first ? lane : lane - delta,
                               cuda_on_cpu::shuffle<T>);
}

namespace cuda_on_cpu {
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
template <class T, class Operation>
T reduce(const char* what, int line, unsigned mask, T value) {
  return exchange(what, line, mask, value, 0, fold<T, Operation>);
}
template <class T>
using Integer = std::enable_if_t<std::is_integral<T>::value, T>;
template <class T>
using Given = std::common_type_t<T>;  // not deduced: atomicAdd(unsigned*, 1) finds T from the pointer
}  // namespace cuda_on_cpu

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
inline unsigned __activemask() { return cuda_on_cpu::self->warp->alive; }

template <class T>
T atomicAdd(T* address, cuda_on_cpu::Given<T> value) {
  return cuda_on_cpu::read_modify_write(address, [=](T old) { return T(old + value); });
}
template <class T>
cuda_on_cpu::Integer<T> atomicSub(T* address, cuda_on_cpu::Given<T> value) {
  return cuda_on_cpu::read_modify_write(address, [=](T old) { return T(old - value); });
}
template <class T>
cuda_on_cpu::Integer<T> atomicMin(T* address, cuda_on_cpu::Given<T> value) {
  return cuda_on_cpu::read_modify_write(address, [=](T old) { return value < old ? value : old; });
}
template <class T>
cuda_on_cpu::Integer<T> atomicMax(T* address, cuda_on_cpu::Given<T> value) {
  return cuda_on_cpu::read_modify_write(address, [=](T old) { return old < value ? value : old; });
}
template <class T>
cuda_on_cpu::Integer<T> atomicAnd(T* address, cuda_on_cpu::Given<T> value) {
  return cuda_on_cpu::read_modify_write(address, [=](T old) { return T(old & value); });
}
template <class T>
cuda_on_cpu::Integer<T> atomicOr(T* address, cuda_on_cpu::Given<T> value) {
  return cuda_on_cpu::read_modify_write(address, [=](T old) { return T(old | value); });
}
template <class T>
cuda_on_cpu::Integer<T> atomicXor(T* address, cuda_on_cpu::Given<T> value) {
  return cuda_on_cpu::read_modify_write(address, [=](T old) { return T(old ^ value); });
}
template <class T>
T atomicExch(T* address, cuda_on_cpu::Given<T> value) {
  return cuda_on_cpu::read_modify_write(address, [=](T) { return value; });
}
template <class T>
cuda_on_cpu::Integer<T> atomicCAS(T* address, cuda_on_cpu::Given<T> expected, cuda_on_cpu::Given<T> value) {
  return cuda_on_cpu::read_modify_write(address, [=](T old) { return old == expected ? value : old; });
}

// ---- What a launcher calls -------------------------------------------------------------------------------------
// Hidden: a process may hold the real libcudart too, and these must not meet it.

extern "C" {
__attribute__((visibility("hidden"))) cudaError_t cudaPeekAtLastError() { return cuda_on_cpu::last_error; }
__attribute__((visibility("hidden"))) cudaError_t cudaGetLastError() {
  const cudaError_t error = cuda_on_cpu::last_error;
  cuda_on_cpu::last_error = cudaSuccess;
  return error;
}
__attribute__((visibility("hidden"))) const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaSuccess) return "no error";
  if (error == cuda_on_cpu::told_error) return cuda_on_cpu::told.c_str();
  if (error == cudaErrorInvalidValue) return "invalid argument";
  return "an error that the host target did not raise";
}
}

#include "cuda_on_cpu_math.h"
