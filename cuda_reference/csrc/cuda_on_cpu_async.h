// cuda_on_cpu_async.h: copies from global to shared memory that a thread starts and waits for: __pipeline_* and
// cp.async. Included by cuda_on_cpu.h.
//
// A copy is done when its thread waits for it. So a missing or early wait shows: the kernel reads the old content.
#pragma once

namespace cuda_on_cpu {

CUDA_ON_CPU_MACHINERY inline void copy_now(const AsyncCopy& copy) {
  if (copy.filled) memcpy(copy.to, copy.from, copy.filled);
  if (copy.filled < copy.bytes) memset(static_cast<char*>(copy.to) + copy.filled, 0, copy.bytes - copy.filled);
}

// Copies the first `filled` bytes; the rest become zero.
CUDA_ON_CPU_MACHINERY inline void copy_async(const char* what, int line, void* to, const void* from, size_t bytes,
                                             size_t filled) {
  if (bytes != 4 && bytes != 8 && bytes != 16)
    fail_here("calls %s() at line %d with %zu bytes; it copies 4, 8 or 16", what, line, bytes);
  if (reinterpret_cast<uintptr_t>(to) % bytes || reinterpret_cast<uintptr_t>(from) % bytes)
    fail_here("calls %s() at line %d: misaligned address, no multiple of %zu bytes", what, line, bytes);
  if (self->copy_count == self->copy_room) {
    self->copy_room = 2 * self->copy_room + 8;
    self->copies = static_cast<AsyncCopy*>(realloc(self->copies, self->copy_room * sizeof(AsyncCopy)));
  }
  self->copies[self->copy_count++] = {to, from, bytes, filled < bytes ? filled : bytes, self->groups};
}

CUDA_ON_CPU_MACHINERY inline void commit_copies() { ++self->groups; }

// Waits for all groups but the last `pending` committed ones.
CUDA_ON_CPU_MACHINERY inline void wait_for_copies(unsigned pending) {
  size_t done = 0, left = 0;
  while (done < self->copy_count && self->copies[done].group + pending < self->groups) copy_now(self->copies[done++]);
  while (done < self->copy_count) self->copies[left++] = self->copies[done++];
  self->copy_count = left;
}

}  // namespace cuda_on_cpu

inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zeros = 0, CUDA_ON_CPU_LINE) {
  cuda_on_cpu::copy_async("__pipeline_memcpy_async", line, to, from, bytes, bytes - std::min(zeros, bytes));
}
inline void __pipeline_commit() { cuda_on_cpu::commit_copies(); }
inline void __pipeline_wait_prior(size_t pending) { cuda_on_cpu::wait_for_copies(pending); }
