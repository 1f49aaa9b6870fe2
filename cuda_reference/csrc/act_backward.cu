// act_backward: dx = grad·act'(saved), and its column sums, the gradient of a bias, in the compute type.
// saved is act's result for none, relu, leaky_relu, sigmoid and tanh; its argument x for the others. Where relu drops
// the gradient, dx is 0 even for an infinite grad or NaN.
//
// One thread per column, from the first row to the last. act_backward also has the rungs of sums.cuh, of which those
// with packs have the activation as a template parameter. All have the short forms for elements of 16 bits.
#include "short_forms.cuh"
#include "sums.cuh"

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

// The addends of act_backward: elements of dx, which are stored on the way.
template <class A, class T>
struct Products {
  static constexpr bool FLAT = true;
  template <int SIZE>
  static constexpr int DEPTH = LOADS<SIZE> / 2;
  template <int SIZE>
  struct Loaded {
    Wide<T, SIZE> grad, saved;
  };
  const T* grad;
  const T* saved;
  T* dx;
  long long grad_stride[2], saved_stride[2], dx_stride[2];  // of columns, and of rows
  A act;

  template <int SIZE>
  static __device__ long long offset(const long long* stride, Place p) {
    return p.inner * stride[1] + (SIZE == 1 ? p.column * stride[0] : p.column);
  }
  __device__ void go_to(unsigned) {}  // there is one matrix
  template <int SIZE>
  __device__ void load(Loaded<SIZE>& to, Place p) const {
    read<T, SIZE>(to.grad, grad + offset<SIZE>(grad_stride, p));
    read<T, SIZE>(to.saved, saved + offset<SIZE>(saved_stride, p));
  }
  template <int SIZE>
  __device__ void add(const Loaded<SIZE>& loaded, Place p, float* total) const {
    Wide<T, SIZE> result;
#pragma unroll
    for (int e = 0; e < SIZE; ++e) {
      const float s = widened(loaded.saved.element[e]);
      const float product = act.drops(s) ? 0.0f : widened(loaded.grad.element[e]) * act.derivative(s);
      round_to(result.element[e], product);
      total[e] += product;
    }
    write<T, SIZE>(dx + offset<SIZE>(dx_stride, p), result);
  }
};

template <class A, class T>
Products<A, T> products(const Tensor& grad, const Tensor& saved, const Tensor& dx, long long merged, A act) {
  Products<A, T> made = {static_cast<const T*>(grad.data), static_cast<const T*>(saved.data),
                         static_cast<T*>(dx.data), {}, {}, {}, act};
  for (int d = 0; d < 2; ++d) {
    const long long times = d == 1 ? merged : 1;
    made.grad_stride[d] = times * grad.stride[1 - d];
    made.saved_stride[d] = times * saved.stride[1 - d];
    made.dx_stride[d] = times * dx.stride[1 - d];
  }
  return made;
}

template <class T>
void launch_products(const Tensor& grad, const Tensor& saved, const Tensor& dx, const Tensor* sums, int act,
                     const Means& means) {
  constexpr int SIZE = 16 / sizeof(T);
  const long long rows = grad.size[0], columns = grad.size[1], kept[2] = {columns, 1};
  Columns at = {columns, rows, rows};
  at.summed = sums != nullptr;
  Sink out = {};
  if (sums) out = {sums->data, sums->dtype, 1.0f, {sums->stride[0], 0}, 0};
  bool packs = means.rung != LANES, dense = true;
  long long pitches = 0;
  for (const Tensor* t : {&grad, &saved, &dx}) {
    packs = packs && aligned(t->data) && t->stride[1] == 1;
    dense = dense && t->stride[0] == columns;
    pitches |= t->stride[0];
  }
  const long long merged = packs && dense ? merge<SIZE>(at, means) : 1;
  if (packs && (merged > 1 || pitches % SIZE == 0)) {
    WITH_ACTIVATION(act, const auto source = products<FormFor<T, A>, T>(grad, saved, dx, merged, {});
                    return launch_columns<SIZE>(source, at, kept, merged, out, means))
  }
  launch_columns<1>(products<ActivationFor<T>, T>(grad, saved, dx, 1, {act}), at, kept, 1, out, means);
}

extern "C" int act_backward_rung(const Tensor* grad, const Tensor* saved, const Tensor* dx, const Tensor* sums,
                                 int act, int rung, int blocks, void* workspace, int floats, cudaStream_t stream) {
  const Means means = {rung, blocks, workspace, floats, stream};
  WITH_ELEMENT(dx->dtype, 4, launch_products<T>(*grad, *saved, *dx, sums, act, means));
}
