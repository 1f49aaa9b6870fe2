// cuda_on_cpu_launch.h: a launch, from its checks to its error; runs the blocks of a grid and the threads of a
// block. Included by cuda_on_cpu.h.
#pragma once

namespace cuda_on_cpu {

// ---- Running a block ---------------------------------------------------------------------------------------

// The thread that a sanitizer's report is about; the debugger reads it.
struct ThreadText {
  char chars[128];
  CUDA_ON_CPU_MACHINERY ThreadText() {
    const uint3& thread = self->thread;
    snprintf(chars, sizeof chars, "block (%u, %u, %u) thread (%u, %u, %u)", blockIdx.x, blockIdx.y, blockIdx.z,
             thread.x, thread.y, thread.z);
  }
};

inline void say_shared_arrays() {
  for (SharedArray* array = shared_arrays; array; array = array->next) {
    fprintf(stderr, "shared array %s at %p, %zu bytes of %zu:", array->name, array->data, array->bytes, array->item);
    for (unsigned i = 0; i < array->rank && i < 4; ++i) fprintf(stderr, " %zu", array->extents[i]);
    fprintf(stderr, "\n");
  }
}

inline void on_death() {
  if (!block.running) return;
  fprintf(stderr, "in kernel %.*s, %s\n", block.kernel_length, block.kernel, ThreadText().chars);
  say_shared_arrays();
}

// Two sanitizers may be loaded, each with its own callback.
inline void hear_of_death() {
  if (!__sanitizer_set_death_callback) return;
  __sanitizer_set_death_callback(on_death);
  void* library = dlopen("libubsan.so.1", RTLD_LAZY | RTLD_NOLOAD);
  void* set = library ? dlsym(library, "__sanitizer_set_death_callback") : nullptr;
  if (set) reinterpret_cast<void (*)(void (*)())>(set)(on_death);
}

CUDA_ON_CPU_MACHINERY inline void take_next_thread() {
  const unsigned index = block.reverse ? block.size - 1 - block.next : block.next;
  ++block.next;
  threadIdx.x = index % blockDim.x;
  threadIdx.y = index / blockDim.x % blockDim.y;
  threadIdx.z = index / blockDim.x / blockDim.y;
  self->thread = threadIdx;
  self->lane = index % 32;
  self->warp = &warps[index / 32];
  self->busy = true;
#ifdef CUDA_ON_CPU_TSAN
  __tsan_set_fiber_name(self->tsan, ThreadText().chars);
#endif
}

CUDA_ON_CPU_MACHINERY inline void thread_returned() {
  Warp& warp = *self->warp;
  commit_copies();
  wait_for_copies(0);
  self->groups = 0;
  ++block.returned;
  warp.alive &= ~(1u << self->lane);
  for (uint32_t left = warp.pending; left; left &= left - 1)  // meetings stop waiting for this lane
    open_if_complete(warp, __builtin_ctz(left));
  self->busy = false;
}

// TSan distinguishes threads by fiber: each thread needs its own fiber, and nothing may order them.
#ifdef CUDA_ON_CPU_TSAN
constexpr bool thread_per_fiber = true;
#else
constexpr bool thread_per_fiber = false;
#endif

// The main function of a fiber; it is resumed only while a thread is left.
CUDA_ON_CPU_MACHINERY inline void run_threads() {
  do {
    __tsan_acquire(&block_start);
    take_next_thread();
    block.body->call(block.body->function);
    __tsan_release(&block_end);
    thread_returned();
  } while (!thread_per_fiber && block.next < block.size && !block.failed);
}

CUDA_ON_CPU_MACHINERY inline void run_threads_to_the_end() {
  size_t used = 0;
  while (block.next < block.size && !block.failed) {
    Fiber* fiber = fiber_at(used);
    if (!fiber) return fail().add("no memory for the stack of another thread");
    run(fiber);
    used += thread_per_fiber || fiber->busy;
  }
  while (block.returned < block.size && !block.failed) {
    bool progress = false;
    for (size_t index = 0; index < used && !block.failed; ++index) {
      Fiber* fiber = fibers[index];
      if (!fiber->busy || *fiber->awaits == fiber->awaited) continue;
      progress = true;
      run(fiber);
    }
    if (!progress && !open_gatherings(block.size) && !open_barrier())
      return fail().add("deadlock, a barrier that not every thread reaches");
  }
}

CUDA_ON_CPU_MACHINERY inline void run_block() {
  block.next = block.returned = 0;
  for (unsigned warp = 0; warp * 32 < block.size; ++warp)
    warps[warp].alive = 0xFFFFFFFFu >> (32 - std::min(32u, block.size - warp * 32));
  if (block.dynamic_bytes) memset(block.dynamic_shared, 0xFF, block.dynamic_bytes);
  for (SharedArray* array = shared_arrays; array; array = array->next)
    memset(array->data, 0xFF, array->bytes);
  watch_block();
  __tsan_release(&block_start);
  block.running = true;
  run_threads_to_the_end();
  block.running = false;
  __tsan_acquire(&block_end);
  watch_block_end();
}

// ---- Launching ---------------------------------------------------------------------------------------------

CUDA_ON_CPU_STATE pthread_mutex_t launch_mutex = PTHREAD_MUTEX_INITIALIZER;

struct Launching {
  void* dynamic_shared = nullptr;
  Launching() { pthread_mutex_lock(&launch_mutex); }
  ~Launching() {
    free(dynamic_shared);
    pthread_mutex_unlock(&launch_mutex);
  }
};

// A fork waits for another thread's launch. Otherwise the child would find the mutex locked for ever, by a thread that
// it does not have, and the launch's state incomplete.
CUDA_ON_CPU_STATE const int fork_handlers = pthread_atfork(
    [] { pthread_mutex_lock(&launch_mutex); }, [] { pthread_mutex_unlock(&launch_mutex); },
    [] { pthread_mutex_unlock(&launch_mutex); });

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

inline bool backwards(const char* setting) {
  const char* order = getenv(setting);
  return order && strcmp(order, "reverse") == 0;
}

CUDA_ON_CPU_MACHINERY inline void launch(const char* name, dim3 grid, dim3 threads, size_t dynamic_bytes,
                                         cudaStream_t, const Body& body) {
  const NoLauncherJump no_jump;
  Launching launching;
  const bool in_parentheses = name[0] == '(';  // if the macro needed them
  const int length = static_cast<int>(strlen(name)) - 2 * in_parentheses;
  const char* const kernel = name + in_parentheses;
  if (const char* reason = impossible(grid, threads, dynamic_bytes))
    return report(cudaErrorInvalidConfiguration)
        .add("%.*s, grid (%u, %u, %u), block (%u, %u, %u), %zu bytes of shared memory: invalid configuration: %s",
             length, kernel, grid.x, grid.y, grid.z, threads.x, threads.y, threads.z, dynamic_bytes, reason);

  const bool last_block_first = backwards("CROSSCHECK_BLOCK_ORDER");
  ++launch_number;
  shared_arrays = nullptr;
  shared_bytes = 0;
  abandon_fibers();
  block.body = &body;
  block.kernel = kernel;
  block.kernel_length = length;
  block.size = threads.x * threads.y * threads.z;
  block.reverse = backwards("CROSSCHECK_THREAD_ORDER");
  for (unsigned warp = 0; warp * 32 < block.size; ++warp) warps[warp] = Warp();
  block.barrier = Barrier();
  block.failed = false;
  // Of exactly this size, so that ASan finds an access one byte beyond it.
  if (dynamic_bytes && posix_memalign(&launching.dynamic_shared, 128, dynamic_bytes))
    return report(cudaErrorMemoryAllocation).add("%.*s: no memory for its shared memory", length, kernel);
  block.dynamic_shared = static_cast<unsigned char*>(launching.dynamic_shared);
  block.dynamic_bytes = dynamic_bytes;
  blockDim = threads;
  gridDim = grid;
  watch_launch();
  catch_crashes();
  static const bool once = (hear_of_death(), true);
  static_cast<void>(once);
  const uint64_t blocks = uint64_t(grid.x) * grid.y * grid.z;
  for (uint64_t ran = 0; ran < blocks; ++ran) {
    const uint64_t at = last_block_first ? blocks - 1 - ran : ran;
    blockIdx.x = at % grid.x;
    blockIdx.y = at / grid.x % grid.y;
    blockIdx.z = at / grid.x / grid.y;
    run_block();
    if (!block.failed) continue;
    Text& story = report(cudaErrorLaunchFailure);
    story.add("%.*s, block (%u, %u, %u) of %u threads: %s: ", length, kernel, blockIdx.x, blockIdx.y, blockIdx.z,
              block.size, block.reason.chars);
    return tell_whereabouts(story);
  }
}

}  // namespace cuda_on_cpu

// Prints the shared arrays of the last launch to stderr, for readers of a sanitizer's report.
extern "C" CUDA_ON_CPU_ONCE void crosscheck_say_shared_arrays() { cuda_on_cpu::say_shared_arrays(); }
