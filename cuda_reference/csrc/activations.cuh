// The activations and their derivatives, for one number.
#pragma once
#include "elementwise.cuh"

// In the order of ACTS in cuda_reference/_activations.py; the last is there where a user's text is part of the source.
enum Act { NONE, RELU, GELU, GELU_TANH, SILU, SIGMOID, TANH, LEAKY_RELU, REGISTERED };

#ifdef REGISTERED_ACTIVATION
namespace registered {
#include REGISTERED_ACTIVATION
}

// The result of a user's function, which a float64 tensor would silently lose digits in as a float.
template <class C, class R>
__device__ C exactly(R result) {
  static_assert(sizeof(R) == sizeof(C),
                "forward and derivative return the type of their argument, float or double: write them as "
                "template <class C> __device__ C forward(C x)");
  return result;
}
#endif

__device__ inline float erf_of(float x) { return erff(x); }
__device__ inline double erf_of(double x) { return erf(x); }
__device__ inline float tanh_of(float x) { return tanhf(x); }
__device__ inline double tanh_of(double x) { return tanh(x); }
__device__ inline float exp_of(float x) { return expf(x); }
__device__ inline double exp_of(double x) { return exp(x); }
__device__ inline float cosh_of(float x) { return coshf(x); }
__device__ inline double cosh_of(double x) { return cosh(x); }

template <class C>
__device__ C activate(C x, int act) {
  switch (act) {
    case RELU: return x < C(0) ? C(0) : x;
    case GELU: return C(0.5) * x * (C(1) + erf_of(x * C(0.70710678118654752)));
    case GELU_TANH: {
      const C cubic = x + C(0.044715) * x * x * x;
      return C(0.5) * x * (C(1) + tanh_of(C(0.79788456080286536) * cubic));
    }
    case SILU: return x / (C(1) + exp_of(-x));
    case SIGMOID: return C(1) / (C(1) + exp_of(-x));
    case TANH: return tanh_of(x);
    case LEAKY_RELU: return x < C(0) ? C(0.01) * x : x;
#ifdef REGISTERED_ACTIVATION
    case REGISTERED: return exactly<C>(registered::forward(x));
#endif
    default: return x;
  }
}

// x between −limit and limit, so that an infinite x is not multiplied by 0; NaN stays NaN.
template <class C>
__device__ C bounded(C x, C limit) {
  if (x > limit) return limit;
  return x < -limit ? -limit : x;
}

// Whether act' is read from act's argument, not from its result.
__device__ inline bool of_argument(int act) {
  return act == GELU || act == GELU_TANH || act == SILU || act == REGISTERED;
}

// act'(x), at the kinks as torch has it; saved is x where of_argument(act), else act(x).
template <class C>
__device__ C derivative(C saved, int act) {
  switch (act) {
    case RELU: return saved <= C(0) ? C(0) : C(1);
    case LEAKY_RELU: return saved > C(0) ? C(1) : C(0.01);
    case SIGMOID: return saved - saved * saved;
    case TANH: return C(1) - saved * saved;
    case GELU: {
      const C x = bounded(saved, C(40));
      const C density = exp_of(-(x * x) / C(2)) * C(0.39894228040143268);
      return (C(1) + erf_of(x / C(1.41421356237309505))) / C(2) + x * density;
    }
    case GELU_TANH: {
      const C x = bounded(saved, C(10)), root = C(0.79788456080286536);
      const C inner = root * (x + C(0.044715) * x * x * x);
      const C secant = C(1) / cosh_of(inner);  // secant² = 1 − tanh²
      return (C(1) + tanh_of(inner) + x * secant * secant * root * (C(1) + C(0.134145) * x * x)) / C(2);
    }
    case SILU: {
      const C x = bounded(saved, C(1000));
      const C on = C(1) / (C(1) + exp_of(-x)), off = C(1) / (C(1) + exp_of(x));
      return on + x * on * off;
    }
#ifdef REGISTERED_ACTIVATION
    case REGISTERED: return exactly<C>(registered::derivative(saved));
#endif
    default: return C(1);
  }
}
