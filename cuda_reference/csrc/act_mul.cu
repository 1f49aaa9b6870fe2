// act_mul: out = act(gate)·up, in the compute type, rounded once. Any layout, one thread an element.
// act_mul_backward: dgate = grad·(up·act'(gate)), dup = grad·act(gate), each rounded once.
#include "activations.cuh"

template <class C>
__global__ void act_mul_kernel(Tensor gate, Tensor up, Tensor out, int act, long long n) {
  const long long i = global_thread();
  if (i >= n) return;
  const C x = promoted<C>(gate, gate.offset(i), out.dtype);
  const C y = promoted<C>(up, up.offset(i), out.dtype);
  store<C>(out, out.offset(i), activate(x, act) * y);
}

extern "C" int act_mul(const Tensor* gate, const Tensor* up, const Tensor* out, int act, cudaStream_t stream) {
  const long long n = out->numel();
  const Tensor gt = *gate, ut = *up, ot = *out;
  WITH_FLOATING_TYPE(out->dtype, LAUNCH(act_mul_kernel<C>, blocks_for(n), THREADS, 0, stream, gt, ut, ot, act, n));
  return cudaGetLastError();
}

template <class C>
__global__ void act_mul_backward_kernel(Tensor grad, Tensor gate, Tensor up, Tensor dgate, Tensor dup, int act,
                                        long long n) {
  const long long i = global_thread();
  if (i >= n) return;
  const C g = promoted<C>(grad, grad.offset(i), dup.dtype);
  const C x = promoted<C>(gate, gate.offset(i), dup.dtype);
  const C y = promoted<C>(up, up.offset(i), dup.dtype);
  const C value = activate(x, act);
  const bool of_x = act == GELU || act == GELU_TANH || act == SILU;
  store<C>(dgate, dgate.offset(i), g * (y * derivative(of_x ? x : value, act)));
  store<C>(dup, dup.offset(i), g * value);
}

extern "C" int act_mul_backward(const Tensor* grad, const Tensor* gate, const Tensor* up, const Tensor* dgate,
                                const Tensor* dup, int act, cudaStream_t stream) {
  const long long n = dup->numel();
  const Tensor g = *grad, x = *gate, y = *up, dx = *dgate, dy = *dup;
  WITH_FLOATING_TYPE(dup->dtype, LAUNCH(act_mul_backward_kernel<C>, blocks_for(n), THREADS, 0, stream, g, x, y, dx, dy,
                                        act, n));
  return cudaGetLastError();
}
