// act_mul: out = act(gate)·up, in the compute type, rounded once. Any layout, one thread per element.
// act_mul_backward: dgate = grad·(up·act'(gate)), dup = grad·act(gate), each rounded once. Where relu's slope is 0, dgate
// is 0 even for infinities and NaN.
// Both also have the rungs of rungs.cuh and strided.cuh, in the short forms of activations for elements of 16 bits.
#include "short_forms.cuh"
#include "strided.cuh"

// One switch per pack instead of one per element.
template <class T, class V, int SIZE, template <class> class Formula>
__device__ void compute_pack(const Formula<Activation>& formula, const Pack<T, V, SIZE>* in, Pack<T, V, SIZE>* out) {
  WITH_ACTIVATION(formula.act.number, using Form = Formula<FormFor<T, A>>; return compute_pack(Form{}, in, out))
}
template <class T, template <class> class Formula>
__device__ void compute_one(const Formula<Activation>& formula, const Operands<Formula<Activation>>& at, long long i) {
  WITH_ACTIVATION(formula.act.number, using Form = Formula<FormFor<T, A>>; return compute_one<T>(Form{}, at, i))
}

template <class C>
__global__ void act_mul_kernel(Tensor gate, Tensor up, Tensor out, Activation act, long long n) {
  const long long i = global_thread();
  if (i >= n) return;
  const C x = promoted<C>(gate, gate.offset(i), out.dtype);
  const C y = promoted<C>(up, up.offset(i), out.dtype);
  store<C>(out, out.offset(i), act.forward(x) * y);
}

extern "C" int act_mul(const Tensor* gate, const Tensor* up, const Tensor* out, int act, cudaStream_t stream) {
  const long long n = out->numel();
  const Tensor gt = *gate, ut = *up, ot = *out;
  WITH_FLOATING_TYPE(out->dtype, LAUNCH(act_mul_kernel<C>, blocks_for(n), THREADS, 0, stream, gt, ut, ot,
                                        Activation{act}, n));
  return cudaGetLastError();
}

template <class A>
struct ActMul {
  static constexpr int INPUTS = 2, OUTPUTS = 1, WIDEST = 4;
  A act;
  template <class C>
  __device__ void operator()(const C* in, C* out) const {
    out[0] = act.forward(in[0]) * in[1];
  }
};

extern "C" int act_mul_rung(const Call* call, const void* gate, const void* up, void* out, int act,
                            cudaStream_t stream) {
  return launch_rung(*call, ActMul<Activation>{{act}}, {{gate, up}, {out}}, stream);
}

extern "C" int act_mul_strided(const Call* call, const Tensor* gate, const Tensor* up, const Tensor* out, int act,
                               cudaStream_t stream) {
  return launch_strided_rung<ActMul<Activation>>(*call, {{act}}, {gate, up, out}, stream);
}

template <class C>
__global__ void act_mul_backward_kernel(Tensor grad, Tensor gate, Tensor up, Tensor dgate, Tensor dup,
                                        Activation act, long long n) {
  const long long i = global_thread();
  if (i >= n) return;
  const C g = promoted<C>(grad, grad.offset(i), dup.dtype);
  const C x = promoted<C>(gate, gate.offset(i), dup.dtype);
  const C y = promoted<C>(up, up.offset(i), dup.dtype);
  const C value = act.forward(x);
  const C saved = act.saved(x, value);
  store<C>(dgate, dgate.offset(i), act.drops(saved) ? C(0) : g * (y * act.derivative(saved)));
  store<C>(dup, dup.offset(i), g * value);
}

extern "C" int act_mul_backward(const Tensor* grad, const Tensor* gate, const Tensor* up, const Tensor* dgate,
                                const Tensor* dup, int act, cudaStream_t stream) {
  const long long n = dup->numel();
  const Tensor g = *grad, x = *gate, y = *up, dx = *dgate, dy = *dup;
  WITH_FLOATING_TYPE(dup->dtype, LAUNCH(act_mul_backward_kernel<C>, blocks_for(n), THREADS, 0, stream, g, x, y, dx, dy,
                                        Activation{act}, n));
  return cudaGetLastError();
}

template <class A>
struct ActMulBackward {
  static constexpr int INPUTS = 3, OUTPUTS = 2, WIDEST = 4;
  A act;
  template <class C>
  __device__ void operator()(const C* in, C* out) const {
    const C value = act.forward(in[1]);
    const C saved = act.saved(in[1], value);
    out[0] = act.drops(saved) ? C(0) : in[0] * (in[2] * act.derivative(saved));
    out[1] = in[0] * value;
  }
};

extern "C" int act_mul_backward_rung(const Call* call, const void* grad, const void* gate, const void* up,
                                     void* dgate, void* dup, int act, cudaStream_t stream) {
  return launch_rung(*call, ActMulBackward<Activation>{{act}}, {{grad, gate, up}, {dgate, dup}}, stream);
}

extern "C" int act_mul_backward_strided(const Call* call, const Tensor* grad, const Tensor* gate, const Tensor* up,
                                        const Tensor* dgate, const Tensor* dup, int act, cudaStream_t stream) {
  return launch_strided_rung<ActMulBackward<Activation>>(*call, {{act}}, {grad, gate, up, dgate, dup}, stream);
}
