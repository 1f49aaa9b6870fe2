// act_backward: dx = grad·act'(saved), and its column sums, the gradient of a bias, in the compute type.
// saved is act's result for none, relu, leaky_relu, sigmoid and tanh; its argument x for the others. Where relu drops
// the gradient, dx is 0 even for an infinite grad or NaN.
//
// One thread per column, from the first row to the last.
#include "activations.cuh"

template <class C>
__global__ void act_backward_kernel(Tensor grad, Tensor saved, Tensor dx, Tensor sums, bool has_sums,
                                    Activation act) {
  const long long n = global_thread();
  if (n >= grad.size[1]) return;
  C total = C(0);
  for (long long m = 0; m < grad.size[0]; ++m) {
    const C g = load<C>(grad, m * grad.stride[0] + n * grad.stride[1]);
    const C s = load<C>(saved, m * saved.stride[0] + n * saved.stride[1]);
    const C product = act.drops(s) ? C(0) : g * act.derivative(s);
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
                                  has_sums, Activation{act}));
  return cudaGetLastError();
}
