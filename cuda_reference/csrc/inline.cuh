// inline.cuh: helpers of the code that load_inline puts around a source string: a check that a launcher's parameters
// match its declaration in Python, and a common status for launchers that return cudaError_t, int or void.
#pragma once
#include <type_traits>

#include "crosscheck.cuh"
#ifndef __CUDACC__
#include "cuda_on_cpu_absent.h"
#endif

namespace crosscheck_inline {

template <class... T>
struct Types {};

template <class Result, class... T>
Types<T...> parameters(Result (*)(T...));

template <class Result, class... T>
Result result(Result (*)(T...));

template <class Launcher>
constexpr bool returns_status() {
  using R = decltype(result(static_cast<Launcher*>(nullptr)));
  return std::is_void<R>::value || std::is_same<R, int>::value || std::is_same<R, cudaError_t>::value;
}

// The status of a launcher that returns void is CUDA's last error.
template <class Call>
int status_of(Call call) {
  if constexpr (std::is_void<decltype(call())>::value) {
    call();
    return static_cast<int>(cudaGetLastError());
  } else {
    return static_cast<int>(call());
  }
}

template <class Call>
int status(Call call) {
#ifdef __CUDACC__
  return status_of(call);
#else
  return cuda_on_cpu::surviving([&] {
    try {
      return status_of(call);
    } catch (const cuda_on_cpu::Absent& error) {
      cuda_on_cpu::report(cudaErrorNotSupported).add("%s", error.what());
      return static_cast<int>(cudaGetLastError());
    }
  });
#endif
}

}  // namespace crosscheck_inline
