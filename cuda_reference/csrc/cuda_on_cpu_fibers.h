// cuda_on_cpu_fibers.h: fibers, the stacks on which CUDA threads run and stay while they wait, the switches
// between them and the scheduler, and the sanitizers' hooks. Included by cuda_on_cpu.h.
#pragma once

// ---- Hooks of the sanitizers -------------------------------------------------------------------------------

#ifdef __has_feature
#define CUDA_ON_CPU_HAS_FEATURE(name) __has_feature(name)
#else
#define CUDA_ON_CPU_HAS_FEATURE(name) 0
#endif

// Both sanitizers must be told of every switch, and TSan of every barrier. Without a sanitizer its hooks are empty
// functions in this namespace, so that the code below can call them in every build.
#if defined(__SANITIZE_ADDRESS__) || CUDA_ON_CPU_HAS_FEATURE(address_sanitizer)
#define CUDA_ON_CPU_ASAN
extern "C" void __sanitizer_start_switch_fiber(void**, const void*, size_t);
extern "C" void __sanitizer_finish_switch_fiber(void*, const void**, size_t*);
extern "C" void __asan_unpoison_memory_region(const volatile void*, size_t);
extern "C" void __asan_poison_memory_region(const volatile void*, size_t);
#else
namespace cuda_on_cpu {
inline void __sanitizer_start_switch_fiber(void**, const void*, size_t) {}
inline void __sanitizer_finish_switch_fiber(void*, const void**, size_t*) {}
inline void __asan_unpoison_memory_region(const volatile void*, size_t) {}
}  // namespace cuda_on_cpu
#endif
#if (defined(__SANITIZE_THREAD__) || CUDA_ON_CPU_HAS_FEATURE(thread_sanitizer)) && !defined(CUDA_ON_CPU_WATCH)
#define CUDA_ON_CPU_TSAN
extern "C" void* __tsan_get_current_fiber(void);
extern "C" void* __tsan_create_fiber(unsigned);
extern "C" void __tsan_destroy_fiber(void*);
extern "C" void __tsan_switch_to_fiber(void*, unsigned);
extern "C" void __tsan_acquire(void*);
extern "C" void __tsan_release(void*);
extern "C" void __tsan_set_fiber_name(void*, const char*);
#else
namespace cuda_on_cpu {
inline void* __tsan_get_current_fiber() { return nullptr; }
inline void* __tsan_create_fiber(unsigned) { return nullptr; }
inline void __tsan_destroy_fiber(void*) {}
inline void __tsan_switch_to_fiber(void*, unsigned) {}
inline void __tsan_acquire(void*) {}
inline void __tsan_release(void*) {}
inline void __tsan_set_fiber_name(void*, const char*) {}
}  // namespace cuda_on_cpu
#endif
// This code shares its state between fibers on purpose; only kernels are checked.
#if defined(CUDA_ON_CPU_TSAN) || defined(CUDA_ON_CPU_WATCH)
#define CUDA_ON_CPU_MACHINERY __attribute__((no_sanitize_thread, noinline))
#else
#define CUDA_ON_CPU_MACHINERY
#endif
// The callback's output is the last of ASan and UBSan, which end the process; null without them.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*)(void));

// Sanitizers understand swapcontext. Without them _setjmp and _longjmp switch without a system call.
#if defined(CUDA_ON_CPU_ASAN) || defined(CUDA_ON_CPU_TSAN)
#define CUDA_ON_CPU_SWAPCONTEXT
#endif

// ---- Fibers ------------------------------------------------------------------------------------------------

namespace cuda_on_cpu {

constexpr size_t stack_size = 256 * 1024, guard_size = 64 * 1024;

struct Warp;

// A copy that a thread has started, in a group numbered from 0: see cuda_on_cpu_async.h.
struct AsyncCopy {
  void* to;
  const void* from;
  size_t bytes, filled;
  unsigned group;
};

struct Fiber {
  uint3 thread{};
  unsigned lane = 0;
  Warp* warp = nullptr;
  bool busy = false;                  // holds a CUDA thread
  const unsigned* awaits = nullptr;   // the generation whose change it awaits
  unsigned awaited = 0;
  const char* waits_in = "";
  int line = 0;
  AsyncCopy* copies = nullptr;        // started, not waited for; no vector, whose code TSan would watch
  size_t copy_count = 0, copy_room = 0;
  unsigned groups = 0;                // of copies, committed

  char* stack = nullptr;
  size_t usable = 0;
  bool started = false;
  ucontext_t context;
  jmp_buf jump;
  void *asan_stack = nullptr, *tsan = nullptr;
};

CUDA_ON_CPU_STATE Fiber* self = nullptr;
CUDA_ON_CPU_STATE Fiber* fibers[1024];  // made so far; a block has at most so many threads
CUDA_ON_CPU_STATE size_t fiber_count = 0;
CUDA_ON_CPU_STATE ucontext_t scheduler_context;
CUDA_ON_CPU_STATE jmp_buf scheduler_jump;
CUDA_ON_CPU_STATE void *scheduler_asan_stack = nullptr, *scheduler_tsan = nullptr;
CUDA_ON_CPU_STATE const void* scheduler_stack = nullptr;
CUDA_ON_CPU_STATE size_t scheduler_stack_size = 0;

CUDA_ON_CPU_MACHINERY inline void to_scheduler() {
  Fiber* const fiber = self;
  __tsan_switch_to_fiber(scheduler_tsan, 1);  // 1: a switch orders nothing
  __sanitizer_start_switch_fiber(&fiber->asan_stack, scheduler_stack, scheduler_stack_size);
#ifdef CUDA_ON_CPU_SWAPCONTEXT
  swapcontext(&fiber->context, &scheduler_context);
#else
  if (!_setjmp(fiber->jump)) _longjmp(scheduler_jump, 1);
#endif
  __sanitizer_finish_switch_fiber(fiber->asan_stack, &scheduler_stack, &scheduler_stack_size);
}

CUDA_ON_CPU_MACHINERY inline void run_threads();  // in cuda_on_cpu_launch.h

CUDA_ON_CPU_MACHINERY inline void fiber_main() {
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_size);
  for (;;) {
    run_threads();
    to_scheduler();
  }
}

CUDA_ON_CPU_MACHINERY inline void start(Fiber* fiber) {
  fiber->started = true;
  __asan_unpoison_memory_region(fiber->stack, stack_size);  // poisoned by an abandoned kernel
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack;
  fiber->context.uc_stack.ss_size = fiber->usable;
  fiber->context.uc_link = nullptr;
  makecontext(&fiber->context, fiber_main, 0);
#ifdef CUDA_ON_CPU_ASAN
  fiber->context.uc_stack.ss_size = 0;  // else ASan clears the whole stack's shadow at every switch
#endif
}

// Runs a fiber until it waits or has no thread left to run.
CUDA_ON_CPU_MACHINERY inline void resume(Fiber* fiber) {
  const bool fresh = !fiber->started;
  if (fresh) start(fiber);
  self = fiber;
  threadIdx = fiber->thread;
  if (!fiber->tsan) fiber->tsan = __tsan_create_fiber(0);
  __tsan_switch_to_fiber(fiber->tsan, 1);
  __sanitizer_start_switch_fiber(&scheduler_asan_stack, fiber->stack, fiber->usable);
#ifdef CUDA_ON_CPU_SWAPCONTEXT
  swapcontext(&scheduler_context, &fiber->context);
#else
  if (!_setjmp(scheduler_jump)) {
    if (fresh) setcontext(&fiber->context);
    _longjmp(fiber->jump, 1);
  }
#endif
  __sanitizer_finish_switch_fiber(scheduler_asan_stack, nullptr, nullptr);
}

// The index-th fiber. Stacks end in a guard region. They start at staggered offsets, because equally aligned stacks
// would share a few cache sets. They are kept for the life of the process.
CUDA_ON_CPU_MACHINERY inline Fiber* fiber_at(size_t index) {
  if (index == fiber_count) {
    void* memory = mmap(nullptr, guard_size + stack_size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    mprotect(memory, guard_size, PROT_NONE);
    Fiber* fiber = fibers[fiber_count++] = new Fiber;
    fiber->stack = static_cast<char*>(memory) + guard_size;
    fiber->usable = stack_size - index * 320 % 16384;
  }
  return fibers[index];
}

// Resets the fibers: a launch never continues the last one, whichever OS thread made it.
CUDA_ON_CPU_MACHINERY inline void abandon_fibers() {
  scheduler_tsan = __tsan_get_current_fiber();
  for (size_t index = 0; index < fiber_count; ++index) {
    Fiber* fiber = fibers[index];
    if (fiber->tsan && fiber->busy) {
      __tsan_destroy_fiber(fiber->tsan);
      fiber->tsan = nullptr;
    }
    fiber->started = fiber->busy = false;
    fiber->awaits = nullptr;
    fiber->copy_count = 0;
    fiber->groups = 0;
  }
}

}  // namespace cuda_on_cpu
