// cuda_on_cpu_absent.h: names of CUDA's host libraries, such as cuBLAS, which have no form for the CPU. A source uses
// them through cuda_reference/_absent.py, which declares those that occur in it with these macros.
#pragma once

#include <library_types.h>

#include <cstddef>
#include <stdexcept>
#include <string>

namespace cuda_on_cpu {
struct Absent : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void absent(const char* name) {
  throw Absent(std::string(name) + "() has no form on the CPU: call what needs it with CUDA tensors");
}
}  // namespace cuda_on_cpu

// A function is a template, so that one of the same name in another file of the source's own comes first.
#define ABSENT_FUNCTION(name) \
  template <class... Argument> \
  int name(Argument&&...) { \
    cuda_on_cpu::absent(#name); \
  }
// Handles, streams and modes are set to nothing: a program does so at its start, before it runs kernels of its own.
#define ABSENT_SETTING(name) \
  template <class... Argument> \
  int name(Argument&&...) { \
    return 0; \
  }
#define ABSENT_TEXT(name) \
  template <class... Argument> \
  const char* name(Argument&&...) { \
    return #name "() of the CPU"; \
  }
#define ABSENT_TYPE(name) typedef int name;
#define ABSENT_HANDLE(name) typedef struct name##_on_cpu* name;
#define ABSENT_RESULT(name) \
  struct name { \
    int algo, state, status; \
    size_t workspaceSize, memory; \
  };
#define ABSENT_SUCCESS(name) enum { name = 0 };
#define ABSENT_CONSTANT(name) enum { name = __LINE__ };
