// cuda_on_cpu_thrust.h: Thrust's tuples and pairs, which kernels use as values. Included where a source includes their
// headers. Thrust's algorithms and vectors have no form for the CPU.
#pragma once

#include <tuple>
#include <utility>

namespace thrust {
using std::get;
using std::ignore;
using std::make_pair;
using std::make_tuple;
using std::pair;
using std::swap;
using std::tie;
using std::tuple;
using std::tuple_element;
using std::tuple_size;
}  // namespace thrust
