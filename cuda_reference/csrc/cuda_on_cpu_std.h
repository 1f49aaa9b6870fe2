// cuda_on_cpu_std.h: libcu++ for the CPU. cuda::std is the standard library there. Included where a source includes
// one of its headers; its atomics and barriers have no form for the CPU.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

namespace cuda {
namespace std = ::std;

template <class T = void>
struct maximum {
  constexpr T operator()(const T& a, const T& b) const { return a < b ? b : a; }
};

template <>
struct maximum<void> {
  template <class T, class U>
  constexpr ::std::common_type_t<T, U> operator()(const T& a, const U& b) const {
    return a < b ? b : a;
  }
};

template <class T = void>
struct minimum {
  constexpr T operator()(const T& a, const T& b) const { return b < a ? b : a; }
};

template <>
struct minimum<void> {
  template <class T, class U>
  constexpr ::std::common_type_t<T, U> operator()(const T& a, const U& b) const {
    return b < a ? b : a;
  }
};

template <class Result, class F>
constexpr F proclaim_return_type(F function) {
  return function;
}

template <class T, class U>
constexpr auto ceil_div(T a, U b) {
  return (a + b - 1) / b;
}
}  // namespace cuda
