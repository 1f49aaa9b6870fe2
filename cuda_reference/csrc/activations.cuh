// The activations and their derivatives for one number, a record each.
#pragma once
#include "elementwise.cuh"

__device__ inline float erf_of(float x) { return erff(x); }
__device__ inline double erf_of(double x) { return erf(x); }
__device__ inline float tanh_of(float x) { return tanhf(x); }
__device__ inline double tanh_of(double x) { return tanh(x); }
__device__ inline float exp_of(float x) { return expf(x); }
__device__ inline double exp_of(double x) { return exp(x); }
__device__ inline float cosh_of(float x) { return coshf(x); }
__device__ inline double cosh_of(double x) { return cosh(x); }

// x clamped to ±limit, so that an infinite x is not multiplied by 0; NaN stays NaN.
template <class C>
__device__ C bounded(C x, C limit) {
  if (x > limit) return limit;
  return x < -limit ? -limit : x;
}

// The argument of a record's derivative: act's argument x, or act's result. Where a record drops it, the gradient is 0,
// even that of infinity or NaN.
struct OfArgument {
  template <class C>
  static __device__ C saved(C x, C) {
    return x;
  }
  template <class C>
  static __device__ bool drops(C) {
    return false;
  }
};
struct OfResult {
  template <class C>
  static __device__ C saved(C, C result) {
    return result;
  }
  template <class C>
  static __device__ bool drops(C) {
    return false;
  }
};
// A piecewise linear activation, whose second derivative is 0.
struct Straight : OfResult {};

// A record has act(x) and act' of the saved value, at kinks as in torch. Python reads the records, their bases, and
// EACH_ACTIVATION below: a new activation is a record and a line there. LeakyRelu is "leaky_relu" in Python.
struct None : Straight {
  template <class C>
  static __device__ C forward(C x) {
    return x;
  }
  template <class C>
  static __device__ C derivative(C) {
    return C(1);
  }
};

struct Relu : Straight {
  template <class C>
  static __device__ C forward(C x) {
    return x < C(0) ? C(0) : x;
  }
  template <class C>
  static __device__ C derivative(C) {
    return C(1);
  }
  template <class C>
  static __device__ bool drops(C result) {
    return result <= C(0);
  }
};

struct Gelu : OfArgument {
  template <class C>
  static __device__ C forward(C x) {
    return C(0.5) * x * (C(1) + erf_of(x * C(0.70710678118654752)));
  }
  template <class C>
  static __device__ C derivative(C argument) {
    const C x = bounded(argument, C(40));
    const C density = exp_of(-(x * x) / C(2)) * C(0.39894228040143268);
    return (C(1) + erf_of(x / C(1.41421356237309505))) / C(2) + x * density;
  }
};

struct GeluTanh : OfArgument {
  template <class C>
  static __device__ C forward(C x) {
    const C cubic = x + C(0.044715) * x * x * x;
    return C(0.5) * x * (C(1) + tanh_of(C(0.79788456080286536) * cubic));
  }
  template <class C>
  static __device__ C derivative(C argument) {
    const C x = bounded(argument, C(10)), root = C(0.79788456080286536);
    const C inner = root * (x + C(0.044715) * x * x * x);
    const C secant = C(1) / cosh_of(inner);  // secant² = 1 − tanh²
    return (C(1) + tanh_of(inner) + x * secant * secant * root * (C(1) + C(0.134145) * x * x)) / C(2);
  }
};

struct Silu : OfArgument {
  template <class C>
  static __device__ C forward(C x) {
    return x / (C(1) + exp_of(-x));
  }
  template <class C>
  static __device__ C derivative(C argument) {
    const C x = bounded(argument, C(1000));
    const C on = C(1) / (C(1) + exp_of(-x)), off = C(1) / (C(1) + exp_of(x));
    return on + x * on * off;
  }
};

struct Sigmoid : OfResult {
  template <class C>
  static __device__ C forward(C x) {
    return C(1) / (C(1) + exp_of(-x));
  }
  template <class C>
  static __device__ C derivative(C result) {
    return result - result * result;
  }
};

struct Tanh : OfResult {
  template <class C>
  static __device__ C forward(C x) {
    return tanh_of(x);
  }
  template <class C>
  static __device__ C derivative(C result) {
    return C(1) - result * result;
  }
};

struct LeakyRelu : Straight {
  template <class C>
  static __device__ C forward(C x) {
    return x < C(0) ? C(0.01) * x : x;
  }
  template <class C>
  static __device__ C derivative(C result) {
    return result > C(0) ? C(1) : C(0.01);
  }
};

// The records by number, as Python passes it.
#define EACH_ACTIVATION(CASE, ...) \
  CASE(0, None, __VA_ARGS__)       \
  CASE(1, Relu, __VA_ARGS__)       \
  CASE(2, Gelu, __VA_ARGS__)       \
  CASE(3, GeluTanh, __VA_ARGS__)   \
  CASE(4, Silu, __VA_ARGS__)       \
  CASE(5, Sigmoid, __VA_ARGS__)    \
  CASE(6, Tanh, __VA_ARGS__)       \
  CASE(7, LeakyRelu, __VA_ARGS__)

// A library with a registered activation, whose text is part of its source, is asked for no other: each would be
// compiled into every kernel.
#ifdef REGISTERED_ACTIVATION
#undef EACH_ACTIVATION
#define EACH_ACTIVATION(CASE, ...) CASE(-1, Registered, __VA_ARGS__)

namespace registered {
#include REGISTERED_ACTIVATION
}

// The result of a user's function. A float for a float64 tensor would silently lose digits, so it is refused.
template <class C, class R>
__device__ C exactly(R result) {
  static_assert(sizeof(R) == sizeof(C),
                "forward and derivative return the type of their argument, float or double: write them as "
                "template <class C> __device__ C forward(C x)");
  return result;
}

struct Registered : OfArgument {
  template <class C>
  static __device__ C forward(C x) {
    return exactly<C>(registered::forward(x));
  }
  template <class C>
  static __device__ C derivative(C argument) {
    return exactly<C>(registered::derivative(argument));
  }
#ifdef REGISTERED_DROPS
  template <class C>
  static __device__ bool drops(C argument) {
    return registered::drops(argument);
  }
#endif
};
#endif

#define CASE_OF_ACTIVATION(NUMBER, RECORD, ...) \
  case NUMBER: {                                \
    using A = RECORD;                           \
    __VA_ARGS__;                                \
    break;                                      \
  }

// Runs the statement with A = the record of a number; unknown numbers are None.
#define WITH_ACTIVATION(number, ...)                 \
  switch (number) {                                  \
    EACH_ACTIVATION(CASE_OF_ACTIVATION, __VA_ARGS__) \
    default: {                                       \
      using A = None;                                \
      __VA_ARGS__;                                   \
    }                                                \
  }

// An activation chosen at run time.
struct Activation {
  int number;

  template <class C>
  __device__ C forward(C x) const {
    WITH_ACTIVATION(number, return A::forward(x))
  }
  template <class C>
  __device__ C derivative(C saved) const {
    WITH_ACTIVATION(number, return A::derivative(saved))
  }
  template <class C>
  __device__ C saved(C x, C result) const {
    WITH_ACTIVATION(number, return A::saved(x, result))
  }
  template <class C>
  __device__ bool drops(C saved) const {
    WITH_ACTIVATION(number, return A::drops(saved))
  }
};
