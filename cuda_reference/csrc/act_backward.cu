// act_backward: dx = grad·act'(saved), and its column sums, the gradient of a bias, in the compute type.
// saved is act's result for none, relu, leaky_relu, sigmoid and tanh; its argument x for gelu, gelu_tanh and silu.
//
// One thread a column, from the first row to the last.
#include "gemm.cuh"

// x between −limit and limit, so that an infinite x is not multiplied by 0; NaN stays NaN.
template <class C>
__device__ C bounded(C x, C limit) {
  if (x > limit) return limit;
  return x < -limit ? -limit : x;
}

__device__ inline float cosh_of(float x) { return coshf(x); }
__device__ inline double cosh_of(double x) { return cosh(x); }

// act'(x), by what was saved; at the kinks as torch has it.
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
    default: return C(1);
  }
}

template <class C>
__global__ void act_backward_kernel(Tensor grad, Tensor saved, Tensor dx, Tensor sums, bool has_sums, int act) {
  const long long n = global_thread();
  if (n >= grad.size[1]) return;
  C total = C(0);
  for (long long m = 0; m < grad.size[0]; ++m) {
    const C g = load<C>(grad, m * grad.stride[0] + n * grad.stride[1]);
    const C s = load<C>(saved, m * saved.stride[0] + n * saved.stride[1]);
    const C product = g * derivative(s, act);
    store<C>(dx, m * dx.stride[0] + n * dx.stride[1], product);
    total += product;
  }
  if (has_sums) store<C>(sums, n * sums.stride[0], total);
}

extern "C" int act_backward(const Tensor* grad, const Tensor* saved, const Tensor* dx, const Tensor* sums, int act,
                            cudaStream_t stream) {
  const Tensor g = *grad, s = *saved, d = *dx, t = sums ? *sums : Tensor{};
  const bool has_sums = sums != nullptr;
  const int wide = g.dtype == F64 || s.dtype == F64 ? F64 : d.dtype;
  WITH_FLOATING_TYPE(wide, LAUNCH(act_backward_kernel<C>, blocks_for(g.size[1]), THREADS, 0, stream, g, s, d, t,
                                  has_sums, act));
  return cudaGetLastError();
}
