// cuda_on_cpu_block.h: the running block: its state, what happens when a kernel breaks the rules, and how its
// threads wait for each other. Included by cuda_on_cpu.h.
#pragma once

namespace cuda_on_cpu {

// ---- State -------------------------------------------------------------------------------------------------

struct Barrier {
  unsigned arrived = 0, generation = 0;  // generation counts the openings; a waiter leaves when it moves on
  int line = 0;
  bool mixed = false;         // threads arrived from different lines
  int count[2] = {0, 0};      // of __syncthreads_count, by the generation's parity
  char order[2] = {0, 0};     // addresses that carry TSan's happens-before edges, by parity
};

struct Block {
  const std::function<void()>* body = nullptr;
  unsigned size = 0, next = 0, returned = 0;  // threads: in all, started so far, returned
  bool reverse = false, running = false;
  std::string kernel;
  Barrier barrier;
  unsigned char* dynamic_shared = nullptr;
  size_t dynamic_bytes = 0;
  bool failed = false;
  std::string reason;
};

CUDA_ON_CPU_STATE Block block;
CUDA_ON_CPU_STATE char block_start, block_end;  // addresses of happens-before edges, as Barrier::order

// ---- Failure -----------------------------------------------------------------------------------------------

__attribute__((format(printf, 1, 2))) inline std::string text(const char* format, ...) {
  char buffer[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  return buffer;
}

// CUDA keeps the last error by host thread; the story outlives cudaGetLastError, which clears the code.
CUDA_ON_CPU_STATE thread_local cudaError_t last_error = cudaSuccess, told_error = cudaSuccess;
CUDA_ON_CPU_STATE thread_local std::string told;

inline void report(cudaError_t error, const std::string& story) {
  last_error = told_error = error;
  told = story;
}

CUDA_ON_CPU_MACHINERY inline void fail(const std::string& reason) {
  block.failed = true;
  block.reason = reason;
  __tsan_release(&block_end);
}

// For a thread that cannot go on; it is never resumed.
[[noreturn]] CUDA_ON_CPU_MACHINERY inline void fail_here(const std::string& reason) {
  fail(text("thread (%u, %u, %u) ", threadIdx.x, threadIdx.y, threadIdx.z) + reason);
  for (;;) to_scheduler();
}

// "31 threads wait in __syncthreads() at line 12, 1 has returned"
CUDA_ON_CPU_MACHINERY inline std::string whereabouts() {
  std::map<std::pair<int, std::string>, unsigned> waiting;
  for (auto& fiber : fibers)
    if (fiber->busy && fiber->awaits) ++waiting[{fiber->line, fiber->waits_in}];
  std::string result;
  for (auto& [place, count] : waiting)
    result += text("%u thread%s in %s() at line %d, ", count, count == 1 ? " waits" : "s wait",
                   place.second.c_str(), place.first);
  result += text("%u %s returned", block.returned, block.returned == 1 ? "has" : "have");
  return block.next == block.size ? result : result + text(", %u not started", block.size - block.next);
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

// Every thread of the block must arrive, from one and the same line. Returns the sum of the arrivals' counts.
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
    fail_here(text("completes a barrier at line %d that others wait for elsewhere: divergent __syncthreads()",
                   line));
  } else {
    barrier.arrived = 0;
    ++barrier.generation;
  }
  __tsan_acquire(&barrier.order[parity]);
  return barrier.count[parity];
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
