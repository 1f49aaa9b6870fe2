// Shorter formulas of activations for results of 16 bits, which need fewer digits. The rungs compute them, since the
// formulas of activations.cuh are more instructions than memory leaves time for. The plain kernels do not.
#pragma once
#include "activations.cuh"

// 2^x and 1/x within two units in the last place, subnormal numbers as 0: one instruction each.
__device__ inline float fast_exp2(float x) {
#ifdef __CUDA_ARCH__
  asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
#else
  return exp2f(x);
#endif
}
__device__ inline float fast_reciprocal(float x) {
#ifdef __CUDA_ARCH__
  asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
#else
  return 1.0f / x;
#endif
}

constexpr float LOG2_E = 1.44269504f;

// s(y) = 1/(1 + 2⁻ʸ), and s + z·s·(1 − s), without 1 − s, which would lose digits.
__device__ inline float sigmoid_of_log2(float y) { return fast_reciprocal(1.0f + fast_exp2(-y)); }
__device__ inline float sigmoid_and_slope(float y, float z) {
  const float least = fast_exp2(-fabsf(y)), larger = fast_reciprocal(1.0f + least), smaller = least * larger;
  return (y < 0.0f ? smaller : larger) + z * smaller * larger;
}

// log₂(Φ(x)/Φ(−x)) ≈ x·q(x²), with the polynomial that triton_kernels/activations.py explains.
__device__ inline float normal_odds(float x) {
  const float s = fminf(x * x, 25.0f);
  float q = 3.249581062201871e-06f - s * 4.980163975415861e-08f;
  q = -6.382900477412452e-05f + s * q;
  q = -0.0006337557467964516f + s * q;
  q = 0.10613248649745968f + s * q;
  q = 2.301320533857351f + s * q;
  return x * q;
}

// A record in its short form: the same where there is none.
template <class A>
struct Short : A {};

template <>
struct Short<Gelu> : Gelu {
  static __device__ float forward(float x) { return x * sigmoid_of_log2(normal_odds(x)); }
  static __device__ float derivative(float argument) {
    const float x = bounded(argument, 40.0f);
    // The logarithm of the density: −x²/2·log₂e − log₂√(2π).
    const float density = fast_exp2(-0.72134752f * x * x - 1.32574806f);
    return sigmoid_of_log2(normal_odds(x)) + x * density;
  }
};

template <>
struct Short<GeluTanh> : GeluTanh {
  // (1 + tanh(u))/2 = 1/(1 + exp(−2u)). The factors are 2·log₂e·√(2/π), and 0.044715 times that.
  static __device__ float forward(float x) { return x * sigmoid_of_log2(x * (2.302208198f + 0.1029432397f * x * x)); }
  static __device__ float derivative(float argument) {
    const float x = bounded(argument, 10.0f), square = x * x;
    const float y = x * (2.302208198f + 0.1029432397f * square);
    return sigmoid_and_slope(y, x * (1.59576912f + 0.214064449f * square));
  }
};

template <>
struct Short<Silu> : Silu {
  static __device__ float forward(float x) { return x * sigmoid_of_log2(x * LOG2_E); }
  static __device__ float derivative(float argument) {
    const float x = bounded(argument, 1000.0f);
    return sigmoid_and_slope(x * LOG2_E, x);
  }
};

template <>
struct Short<Sigmoid> : Sigmoid {
  static __device__ float forward(float x) { return sigmoid_of_log2(x * LOG2_E); }
};

// The form of a record for elements of type T.
template <class T, class A>
struct FormOf {
  using Is = A;
};
template <class A>
struct FormOf<__half, A> {
  using Is = Short<A>;
};
template <class A>
struct FormOf<__nv_bfloat16, A> {
  using Is = Short<A>;
};
template <class T, class A>
using FormFor = typename FormOf<T, A>::Is;

// An activation chosen at run time, in its form for elements of type T.
template <class T>
struct ActivationFor {
  int number;

  __device__ float derivative(float saved) const { WITH_ACTIVATION(number, return FormFor<T, A>::derivative(saved)) }
  __device__ bool drops(float saved) const { WITH_ACTIVATION(number, return A::drops(saved)) }
};
