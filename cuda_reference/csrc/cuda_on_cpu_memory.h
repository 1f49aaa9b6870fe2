// cuda_on_cpu_memory.h: shared arrays, alignment, atomics, fences, cached loads and stores. Included by cuda_on_cpu.h.
#pragma once

namespace cuda_on_cpu {

// ---- Shared arrays -----------------------------------------------------------------------------------------

constexpr size_t shared_limit = 227 * 1024, static_shared_limit = 48 * 1024;

// Shared arrays have guards if accesses are checked. g++'s ASan has none for arrays in templates.
#if defined(CUDA_ON_CPU_ASAN) || defined(CUDA_ON_CPU_WATCH)
constexpr size_t shared_guard = 1024;
template <class T>
struct Guarded {
  alignas(32) unsigned char before[shared_guard];
  alignas(32) T array;
  alignas(32) unsigned char after[shared_guard];
};
#define CUDA_ON_CPU_ARRAY(T, name, dims)                       \
  typedef T name##_type dims;                                  \
  static cuda_on_cpu::Guarded<name##_type> name##_guarded;     \
  name##_type& name = name##_guarded.array
#else
#define CUDA_ON_CPU_ARRAY(T, name, dims) alignas(32) static T name dims
#endif

struct SharedArray {
  const char* name;
  void* data;
  size_t bytes, item;  // item: the size of an element
  unsigned rank;
  size_t extents[4];
  unsigned launch = 0;  // the last launch that used it
  SharedArray* next = nullptr;
  template <class T>
  constexpr SharedArray(const char* n, T* array)
      : name(n), data(array), bytes(sizeof(T)), item(sizeof(std::remove_all_extents_t<T>)), rank(std::rank<T>::value),
        extents{std::extent<T, 0>::value, std::extent<T, 1>::value, std::extent<T, 2>::value,
                std::extent<T, 3>::value} {}
};

CUDA_ON_CPU_STATE SharedArray* shared_arrays = nullptr;  // the list of the running launch's arrays
CUDA_ON_CPU_STATE size_t shared_bytes = 0;
CUDA_ON_CPU_STATE unsigned launch_number = 0;

CUDA_ON_CPU_MACHINERY inline void watch_shared(const SharedArray& array);  // in cuda_on_cpu_watch.h
CUDA_ON_CPU_MACHINERY inline void watch_dynamic_shared(const char* name, size_t item);

template <class T>
CUDA_ON_CPU_MACHINERY T* dynamic_shared(const char* name) {
  watch_dynamic_shared(name, sizeof(T));
  return reinterpret_cast<T*>(block.dynamic_shared);
}

// A shared array becomes known when the launch's first thread reaches its declaration. It is filled then; later
// blocks find it filled.
CUDA_ON_CPU_MACHINERY inline void first_use(SharedArray& array) {
  array.launch = launch_number;
  array.next = shared_arrays;
  shared_arrays = &array;
  shared_bytes += array.bytes;
  if (shared_bytes > static_shared_limit || shared_bytes + block.dynamic_bytes > shared_limit)
    fail_here("declares '%s': %zu bytes of static shared memory (at most %zu) and %zu dynamic (at most %zu in all)",
              array.name, shared_bytes, static_shared_limit, block.dynamic_bytes, shared_limit);
  // Byte by byte through volatile: TSan would take memset for a write of the kernel, which other threads see without
  // a barrier.
  volatile unsigned char* bytes = static_cast<volatile unsigned char*>(array.data);
  for (size_t i = 0; i < array.bytes; ++i) bytes[i] = 0xFF;
#ifdef CUDA_ON_CPU_ASAN
  __asan_poison_memory_region(bytes - shared_guard, shared_guard);
  __asan_poison_memory_region(bytes + array.bytes, shared_guard);
#endif
  watch_shared(array);
}

CUDA_ON_CPU_MACHINERY inline void use(SharedArray& array) {
  if (array.launch != launch_number) first_use(array);
}

// ---- Alignment ---------------------------------------------------------------------------------------------

// The compiler's argument about an access at an address that is no multiple of its type's alignment.
struct Misaligned {
  const char* file;
  uint32_t line, column;
  const struct {
    uint16_t kind, info;
    char name[1];  // the first character of a name in quotes
  }* type;
  unsigned char log_alignment, kind;
};

}  // namespace cuda_on_cpu

// A GPU ends the kernel. This is the compiler's hook for -fsanitize=alignment; a sanitizer has its own.
#ifdef CUDA_ON_CPU_ALIGNMENT
extern "C" __attribute__((used, weak, visibility("hidden"))) void __ubsan_handle_type_mismatch_v1(
    cuda_on_cpu::Misaligned* access, uintptr_t address) {
  if (!cuda_on_cpu::block.running) return;
  const char* slash = strrchr(access->file, '/');
  cuda_on_cpu::fail_here(
      "misaligned address: reads or writes %s at 0x%zx, no multiple of %u bytes, in %s:%u", access->type->name,
      static_cast<size_t>(address), 1u << access->log_alignment, slash ? slash + 1 : access->file, access->line);
}
#endif

namespace cuda_on_cpu {

// ---- Atomics -----------------------------------------------------------------------------------------------

template <class T>
using Given = std::common_type_t<T>;  // not deduced: atomicAdd(unsigned*, 1) gets T from the pointer

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

// Counts up to a limit, then starts again from 0.
inline unsigned atomicInc(unsigned* address, unsigned limit) {
  return cuda_on_cpu::read_modify_write(address, [=](unsigned old) { return old >= limit ? 0 : old + 1; });
}
inline unsigned atomicDec(unsigned* address, unsigned limit) {
  return cuda_on_cpu::read_modify_write(address, [=](unsigned old) { return old == 0 || old > limit ? limit : old - 1; });
}
#define CUDA_ON_CPU_SCOPES(name)                                                                               \
  template <class T, class... Value> T name##_block(T* address, Value... value) { return name(address, value...); } \
  template <class T, class... Value> T name##_system(T* address, Value... value) { return name(address, value...); }
CUDA_ON_CPU_SCOPES(atomicAdd) CUDA_ON_CPU_SCOPES(atomicSub) CUDA_ON_CPU_SCOPES(atomicMin) CUDA_ON_CPU_SCOPES(atomicMax)
CUDA_ON_CPU_SCOPES(atomicAnd) CUDA_ON_CPU_SCOPES(atomicOr) CUDA_ON_CPU_SCOPES(atomicXor) CUDA_ON_CPU_SCOPES(atomicExch)
CUDA_ON_CPU_SCOPES(atomicCAS) CUDA_ON_CPU_SCOPES(atomicInc) CUDA_ON_CPU_SCOPES(atomicDec)
#undef CUDA_ON_CPU_SCOPES

// ---- Fences, cached loads and stores: plain ones here ------------------------------------------------------

inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) {}
[[noreturn]] inline void __trap(CUDA_ON_CPU_LINE) { cuda_on_cpu::fail_here("calls __trap() at line %d", line); }
template <class T> T __ldg(const T* address) { return *address; }
template <class T> T __ldca(const T* address) { return *address; }
template <class T> T __ldcg(const T* address) { return *address; }
template <class T> T __ldcs(const T* address) { return *address; }
template <class T> T __ldlu(const T* address) { return *address; }
template <class T> T __ldcv(const T* address) { return *address; }
template <class T> void __stwb(T* address, cuda_on_cpu::Given<T> value) { *address = value; }
template <class T> void __stcg(T* address, cuda_on_cpu::Given<T> value) { *address = value; }
template <class T> void __stcs(T* address, cuda_on_cpu::Given<T> value) { *address = value; }
template <class T> void __stwt(T* address, cuda_on_cpu::Given<T> value) { *address = value; }
