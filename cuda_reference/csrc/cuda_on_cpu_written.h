// cuda_on_cpu_written.h: the targets of rewritten sources (cuda_reference/_rewriting.py): launches with <<<>>>, shared
// variables declared as in CUDA, and the few supported PTX instructions. Included by cuda_on_cpu.h.
#pragma once

namespace cuda_on_cpu {

// ---- kernel<<<grid, block, shared, stream>>>(arguments) ----------------------------------------------------

struct Configuration {
  dim3 grid, block;
  size_t shared;
  Configuration(dim3 g, dim3 b, size_t bytes = 0, cudaStream_t = nullptr) : grid(g), block(b), shared(bytes) {}
};

// Evaluates the arguments once; every thread gets a copy of them.
template <class Kernel>
struct Launcher {
  const char* name;
  Configuration configuration;
  Kernel kernel;
  template <class... Argument>
  __attribute__((noinline)) void operator()(Argument&&... argument) const {
    const std::tuple<std::decay_t<Argument>...> arguments(std::forward<Argument>(argument)...);
    launch(name, configuration.grid, configuration.block, configuration.shared, nullptr,
           Body([&] { std::apply(kernel, arguments); }));
  }
};

template <class Kernel>
Launcher<Kernel> launcher(const char* name, const Configuration& configuration, const Kernel& kernel) {
  return {name, configuration, kernel};
}

// ---- Shared variables --------------------------------------------------------------------------------------

template <class Function> struct ArgumentOf;
template <class T> struct ArgumentOf<void(T)> { using Type = T; };
template <class Function> using Named = typename ArgumentOf<Function>::Type;  // a type with commas, for a macro

// For extern __shared__ T name[]; outside of functions.
template <class T>
struct DynamicShared {
  operator T*() const { return reinterpret_cast<T*>(block.dynamic_shared); }
};

// ---- PTX ---------------------------------------------------------------------------------------------------

// The pointer for a 32-bit address in shared memory, as from __cvta_generic_to_shared; null if there is none.
CUDA_ON_CPU_MACHINERY inline void* shared_pointer(uint64_t address) {
  const uint32_t low = static_cast<uint32_t>(address);
  auto in = [low](const void* data, size_t bytes) {
    return low - static_cast<uint32_t>(reinterpret_cast<uintptr_t>(data)) < bytes;
  };
  auto at = [low](void* data) {
    return static_cast<char*>(data) + (low - static_cast<uint32_t>(reinterpret_cast<uintptr_t>(data)));
  };
  if (in(block.dynamic_shared, block.dynamic_bytes)) return at(block.dynamic_shared);
  for (SharedArray* array = shared_arrays; array; array = array->next)
    if (in(array->data, array->bytes)) return at(array->data);
  return nullptr;
}

template <class T>
uint64_t operand(const T& value) {
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, std::min(sizeof bits, sizeof value));
  return bits;
}

CUDA_ON_CPU_MACHINERY inline void run_ptx(int line, const char* text, const uint64_t* operands, size_t count) {
  while (*text == ' ' || *text == '\n' || *text == '\t' || *text == '{') ++text;
  auto is = [text](const char* name) { return strncmp(text, name, strlen(name)) == 0; };
  if (is("cp.async.commit_group")) return commit_copies();
  if (is("cp.async.wait_all")) {
    commit_copies();
    return wait_for_copies(0);
  }
  if (is("cp.async.wait_group"))
    return wait_for_copies(count ? static_cast<unsigned>(operands[0]) : strtoul(text + 19, nullptr, 10));
  const bool copies = is("cp.async.ca.shared.global") || is("cp.async.cg.shared.global");
  if (copies && !strchr(text, '@') && (count == 3 || count == 4)) {
    void* to = shared_pointer(operands[0]);
    if (!to) fail_here("cp.async at line %d writes to an address outside of shared memory", line);
    return copy_async("cp.async", line, to, reinterpret_cast<const void*>(operands[1]), operands[2],
                      count == 4 ? operands[3] : operands[2]);
  }
  fail_here("comes to inline PTX at line %d, which has no form on the CPU: %.*s", line,
            static_cast<int>(strcspn(text, "\n")), text);
}

template <class... Operand>
void ptx(int line, const char* text, const Operand&... operands) {
  const uint64_t bits[] = {operand(operands)..., 0};
  run_ptx(line, text, bits, sizeof...(operands));
}

}  // namespace cuda_on_cpu

#define CUDA_ON_CPU_LAUNCH(kernel, configuration) \
  cuda_on_cpu::launcher(#kernel, cuda_on_cpu::Configuration configuration, [&](const auto&... a) { kernel(a...); })

inline size_t __cvta_generic_to_shared(const void* address) { return reinterpret_cast<size_t>(address); }
