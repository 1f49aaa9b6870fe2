// act_mul: out = act(gate)·up, in the compute type, rounded once. Any layout, one thread an element.
// act_mul_backward: dgate = grad·(up·act'(gate)), dup = grad·act(gate), each rounded once.
// Both also in the rungs of rungs.cuh; in stream the activation, too, is known to the compiler.
#include "activations.cuh"
#include "rungs.cuh"

constexpr int ANY = REGISTERED + 1;  // the activation is told at run time

template <template <int> class Formula>
int launch_rung_of_act(const Call& call, int act, Operands<Formula<ANY>> at, cudaStream_t stream) {
  if (call.rung != STREAM) return launch_packs_of(call, Formula<ANY>{act}, at, stream);
  switch (act) {
    case RELU: return launch_stream_of(call, Formula<RELU>{act}, at, stream);
    case GELU: return launch_stream_of(call, Formula<GELU>{act}, at, stream);
    case GELU_TANH: return launch_stream_of(call, Formula<GELU_TANH>{act}, at, stream);
    case SILU: return launch_stream_of(call, Formula<SILU>{act}, at, stream);
    case SIGMOID: return launch_stream_of(call, Formula<SIGMOID>{act}, at, stream);
    case TANH: return launch_stream_of(call, Formula<TANH>{act}, at, stream);
    case LEAKY_RELU: return launch_stream_of(call, Formula<LEAKY_RELU>{act}, at, stream);
#ifdef REGISTERED_ACTIVATION
    case REGISTERED: return launch_stream_of(call, Formula<REGISTERED>{act}, at, stream);
#endif
    default: return launch_stream_of(call, Formula<NONE>{act}, at, stream);
  }
}

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

template <int ACT>
struct ActMul {
  static constexpr int INPUTS = 2, OUTPUTS = 1, WIDEST = 4;
  int act;
  template <class C>
  __device__ void operator()(const C* in, C* out) const {
    out[0] = activate(in[0], ACT == ANY ? act : ACT) * in[1];
  }
};

extern "C" int act_mul_rung(const Call* call, const void* gate, const void* up, void* out, int act,
                            cudaStream_t stream) {
  return launch_rung_of_act<ActMul>(*call, act, {{gate, up}, {out}}, stream);
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
  const bool of_x = of_argument(act);
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

template <int ACT>
struct ActMulBackward {
  static constexpr int INPUTS = 3, OUTPUTS = 2, WIDEST = 4;
  int told;
  template <class C>
  __device__ void operator()(const C* in, C* out) const {
    const int act = ACT == ANY ? told : ACT;
    const C value = activate(in[1], act);
    const bool of_x = of_argument(act);
    out[0] = in[0] * (in[2] * derivative(of_x ? in[1] : value, act));
    out[1] = in[0] * value;
  }
};

extern "C" int act_mul_backward_rung(const Call* call, const void* grad, const void* gate, const void* up,
                                     void* dgate, void* dup, int act, cudaStream_t stream) {
  return launch_rung_of_act<ActMulBackward>(*call, act, {{grad, gate, up}, {dgate, dup}}, stream);
}
