// cuda_on_cpu_block.h: the running block: its state, failures of a kernel, and how threads wait for each other.
// Included by cuda_on_cpu.h.
#pragma once

namespace cuda_on_cpu {

// ---- State -------------------------------------------------------------------------------------------------

struct Barrier {
  unsigned arrived = 0, generation = 0;  // generation counts openings; a waiter leaves when it changes
  int line = 0;
  bool mixed = false;         // threads arrived from different lines
  int count[2] = {0, 0};      // of __syncthreads_count, by the generation's parity
  char order[2] = {0, 0};     // addresses that carry TSan's happens-before edges, by parity
};

// The function that every thread of a launch runs. This and Text replace std::function, std::string and the like, which
// each library would compile again: that took longer than its kernels.
template <class Function>
void call_body(const void* function) {  // the debugger recognises this name
  (*static_cast<const Function*>(function))();
}
struct Body {
  void (*call)(const void*);
  const void* function;
  template <class Function>
  explicit Body(const Function& f) : call(call_body<Function>), function(&f) {}
};

// A text that is truncated if it gets too long.
struct Text {
  char chars[2048] = "";
  CUDA_ON_CPU_MACHINERY void add(const char* format, va_list arguments) {
    const size_t used = strlen(chars);
    vsnprintf(chars + used, sizeof chars - used, format, arguments);
  }
  CUDA_ON_CPU_MACHINERY __attribute__((format(printf, 2, 3))) void add(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    add(format, arguments);
    va_end(arguments);
  }
};

struct Block {
  const Body* body = nullptr;
  unsigned size = 0, next = 0, returned = 0;  // threads: in all, started so far, returned
  bool reverse = false, running = false;
  const char* kernel = "";
  int kernel_length = 0;
  Barrier barrier;
  unsigned char* dynamic_shared = nullptr;
  size_t dynamic_bytes = 0;
  bool failed = false;
  Text reason;
};

CUDA_ON_CPU_STATE Block block;
CUDA_ON_CPU_STATE char block_start, block_end;  // addresses of happens-before edges, as Barrier::order

// ---- Failure -----------------------------------------------------------------------------------------------

// CUDA keeps the last error per host thread. The text outlives cudaGetLastError, which clears the code.
CUDA_ON_CPU_STATE thread_local cudaError_t last_error = cudaSuccess, told_error = cudaSuccess;
CUDA_ON_CPU_STATE thread_local Text told;

// Returns the text to write the report to.
inline Text& report(cudaError_t error) {
  last_error = told_error = error;
  told.chars[0] = 0;
  return told;
}

// Returns the text to write the reason to.
CUDA_ON_CPU_MACHINERY inline Text& fail() {
  block.failed = true;
  block.reason.chars[0] = 0;
  return block.reason;
}

// Ends a thread that cannot continue; it is never resumed.
[[noreturn]] CUDA_ON_CPU_MACHINERY __attribute__((format(printf, 1, 2))) inline void fail_here(const char* format,
                                                                                               ...) {
  Text& reason = fail();
  reason.add("thread (%u, %u, %u) ", threadIdx.x, threadIdx.y, threadIdx.z);
  va_list arguments;
  va_start(arguments, format);
  reason.add(format, arguments);
  va_end(arguments);
  __tsan_release(&block_end);
  for (;;) to_scheduler();
}

// "31 threads wait in __syncthreads() at line 12, 1 has returned"
CUDA_ON_CPU_MACHINERY inline void tell_whereabouts(Text& story) {
  auto order = [](const Fiber* a, const Fiber* b) {
    return a->line != b->line ? a->line - b->line : strcmp(a->waits_in, b->waits_in);
  };
  const Fiber* told_last = nullptr;
  for (;;) {
    const Fiber* next = nullptr;
    unsigned count = 0;
    for (size_t index = 0; index < fiber_count; ++index) {
      const Fiber* fiber = fibers[index];
      if (!fiber->busy || !fiber->awaits || (told_last && order(fiber, told_last) <= 0)) continue;
      const int before = next ? order(fiber, next) : -1;
      if (before < 0) next = fiber;
      count = before < 0 ? 1 : count + (before == 0);
    }
    if (!next) break;
    story.add("%u thread%s in %s() at line %d, ", count, count == 1 ? " waits" : "s wait", next->waits_in, next->line);
    told_last = next;
  }
  story.add("%u %s returned", block.returned, block.returned == 1 ? "has" : "have");
  if (block.next != block.size) story.add(", %u not started", block.size - block.next);
}

// ---- Waiting -----------------------------------------------------------------------------------------------

CUDA_ON_CPU_MACHINERY inline void wait(const unsigned& generation, const char* what, int line) {
  self->awaits = &generation;
  self->awaited = generation;
  self->waits_in = what;
  self->line = line;
  __tsan_release(&block_end);  // the scheduler may have to end the block here
  to_scheduler();
  self->awaits = nullptr;
}

// A barrier. Every thread of the block that has not returned must arrive, all at the same line. Returns the sum of
// the counts.
CUDA_ON_CPU_MACHINERY inline int arrive(const char* what, int line, int count) {
  Barrier& barrier = block.barrier;
  const unsigned parity = barrier.generation & 1;
  __tsan_release(&barrier.order[parity]);
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
    fail_here("completes a barrier at line %d that others wait for elsewhere: divergent __syncthreads()", line);
  } else {
    barrier.arrived = 0;
    ++barrier.generation;
  }
  __tsan_acquire(&barrier.order[parity]);
  return barrier.count[parity];
}

// A barrier opens when all threads that have not returned are there (since Volta).
CUDA_ON_CPU_MACHINERY inline bool open_barrier() {
  Barrier& barrier = block.barrier;
  if (!barrier.arrived || barrier.mixed || barrier.arrived + block.returned < block.size) return false;
  barrier.arrived = 0;
  ++barrier.generation;
  return true;
}

}  // namespace cuda_on_cpu

// ---- What a kernel calls -----------------------------------------------------------------------------------

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
