// inline.cuh: what load_inline puts around a source given as a string: the proof that a launcher takes what its
// declaration in Python says, and one entry for launchers that return a cudaError_t, an int or nothing.
#pragma once
#include <type_traits>

#include "crosscheck.cuh"

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

// After a launcher that returns nothing, CUDA is asked.
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
  return cuda_on_cpu::surviving([&] { return status_of(call); });
#endif
}

}  // namespace crosscheck_inline
