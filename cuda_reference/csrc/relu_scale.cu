// relu_scale: out = relu(x)·scale; relu_scale_add: out = fma(relu(x), scale, y); rounded once.
// relu(x) is 0 where x < 0, else x: NaN stays NaN, −0 stays −0. Any layout, one thread per element.
// relu_scale_backward: out = 0 where x <= 0, else grad·scale: the gradient of x. Where x is NaN it
// is grad·scale, as in torch.
// Each also has the rungs of rungs.cuh and strided.cuh, and a form <op>_tensor for a tensor scale.
#include "strided.cuh"

template <class C>
__device__ C relu(C x) {
  return x < C(0) ? C(0) : x;
}

template <class C>
__global__ void relu_scale_kernel(Tensor x, Tensor out, Scalar scale, long long n) {
  const long long i = global_thread();
  if (i >= n) return;
  store<C>(out, out.offset(i), relu(load<C>(x, x.offset(i))) * value<C>(scale));
}

extern "C" int relu_scale(const Tensor* x, const Tensor* out, Scalar scale, cudaStream_t stream) {
  const long long n = out->numel();
  const Tensor xt = *x, ot = *out;
  WITH_FLOATING_TYPE(out->dtype, LAUNCH(relu_scale_kernel<C>, blocks_for(n), THREADS, 0, stream, xt,
                                       ot, scale, n));
  return cudaGetLastError();
}

struct ReluScale {
  static constexpr int INPUTS = 1, OUTPUTS = 1, WIDEST = 8;
  Scalar scale;
  template <class C>
  __device__ void operator()(const C* in, C* out) const {
    out[0] = relu(in[0]) * value<C>(scale);
  }
};

extern "C" int relu_scale_rung(const Call* call, const void* x, void* out, Scalar scale, cudaStream_t stream) {
  return launch_rung<ReluScale>(*call, {scale}, {{x}, {out}}, stream);
}

extern "C" int relu_scale_strided(const Call* call, const Tensor* x, const Tensor* out,
                                  Scalar scale, cudaStream_t stream) {
  return launch_strided_rung<ReluScale>(*call, {scale}, {x, out}, stream);
}

template <class C>
__global__ void relu_scale_tensor_kernel(Tensor x, Tensor scale, Tensor out, long long n) {
  const long long i = global_thread();
  if (i >= n) return;
  const C a = promoted<C>(x, x.offset(i), out.dtype);
  const C s = promoted<C>(scale, scale.offset(i), out.dtype);
  store<C>(out, out.offset(i), relu(a) * s);
}

extern "C" int relu_scale_tensor(const Tensor* x, const Tensor* scale, const Tensor* out, cudaStream_t stream) {
  const long long n = out->numel();
  const Tensor xt = *x, st = *scale, ot = *out;
  WITH_FLOATING_TYPE(out->dtype, LAUNCH(relu_scale_tensor_kernel<C>, blocks_for(n), THREADS, 0,
                                       stream, xt, st, ot, n));
  return cudaGetLastError();
}

template <class C>
__global__ void relu_scale_add_kernel(Tensor x, Tensor y, Tensor out, Scalar scale, long long n) {
  const long long i = global_thread();
  if (i >= n) return;
  const C a = promoted<C>(x, x.offset(i), out.dtype);
  const C b = promoted<C>(y, y.offset(i), out.dtype);
  store<C>(out, out.offset(i), fused(relu(a), value<C>(scale), b));
}

extern "C" int relu_scale_add(const Tensor* x, const Tensor* y, const Tensor* out, Scalar scale,
                              cudaStream_t stream) {
  const long long n = out->numel();
  const Tensor xt = *x, yt = *y, ot = *out;
  WITH_FLOATING_TYPE(out->dtype, LAUNCH(relu_scale_add_kernel<C>, blocks_for(n), THREADS, 0, stream,
                                       xt, yt, ot, scale, n));
  return cudaGetLastError();
}

struct ReluScaleAdd {
  static constexpr int INPUTS = 2, OUTPUTS = 1, WIDEST = 8;
  Scalar scale;
  template <class C>
  __device__ void operator()(const C* in, C* out) const {
    out[0] = fused(relu(in[0]), value<C>(scale), in[1]);
  }
};

extern "C" int relu_scale_add_rung(const Call* call, const void* x, const void* y, void* out, Scalar scale,
                                   cudaStream_t stream) {
  return launch_rung<ReluScaleAdd>(*call, {scale}, {{x, y}, {out}}, stream);
}

extern "C" int relu_scale_add_strided(const Call* call, const Tensor* x, const Tensor* y, const Tensor* out,
                                      Scalar scale, cudaStream_t stream) {
  return launch_strided_rung<ReluScaleAdd>(*call, {scale}, {x, y, out}, stream);
}

template <class C>
__global__ void relu_scale_add_tensor_kernel(Tensor x, Tensor y, Tensor scale, Tensor out, long long n) {
  const long long i = global_thread();
  if (i >= n) return;
  const C a = promoted<C>(x, x.offset(i), out.dtype);
  const C b = promoted<C>(y, y.offset(i), out.dtype);
  const C s = promoted<C>(scale, scale.offset(i), out.dtype);
  store<C>(out, out.offset(i), fused(relu(a), s, b));
}

extern "C" int relu_scale_add_tensor(const Tensor* x, const Tensor* y, const Tensor* scale,
                                     const Tensor* out, cudaStream_t stream) {
  const long long n = out->numel();
  const Tensor xt = *x, yt = *y, st = *scale, ot = *out;
  WITH_FLOATING_TYPE(out->dtype, LAUNCH(relu_scale_add_tensor_kernel<C>, blocks_for(n), THREADS, 0,
                                       stream, xt, yt, st, ot, n));
  return cudaGetLastError();
}

template <class C>
__global__ void relu_scale_backward_kernel(Tensor grad, Tensor x, Tensor out, Scalar scale,
                                           long long n) {
  const long long i = global_thread();
  if (i >= n) return;
  const C g = promoted<C>(grad, grad.offset(i), out.dtype);
  const bool off = promoted<C>(x, x.offset(i), out.dtype) <= C(0);
  store<C>(out, out.offset(i), off ? C(0) : g * value<C>(scale));
}

extern "C" int relu_scale_backward(const Tensor* grad, const Tensor* x, const Tensor* out,
                                   Scalar scale, cudaStream_t stream) {
  const long long n = out->numel();
  const Tensor gt = *grad, xt = *x, ot = *out;
  WITH_FLOATING_TYPE(out->dtype, LAUNCH(relu_scale_backward_kernel<C>, blocks_for(n), THREADS, 0,
                                       stream, gt, xt, ot, scale, n));
  return cudaGetLastError();
}

struct ReluScaleBackward {
  static constexpr int INPUTS = 2, OUTPUTS = 1, WIDEST = 8;
  Scalar scale;
  template <class C>
  __device__ void operator()(const C* in, C* out) const {
    out[0] = in[1] <= C(0) ? C(0) : in[0] * value<C>(scale);
  }
};

extern "C" int relu_scale_backward_rung(const Call* call, const void* grad, const void* x, void* out, Scalar scale,
                                        cudaStream_t stream) {
  return launch_rung<ReluScaleBackward>(*call, {scale}, {{grad, x}, {out}}, stream);
}

extern "C" int relu_scale_backward_strided(const Call* call, const Tensor* grad, const Tensor* x, const Tensor* out,
                                           Scalar scale, cudaStream_t stream) {
  return launch_strided_rung<ReluScaleBackward>(*call, {scale}, {grad, x, out}, stream);
}

template <class C>
__global__ void relu_scale_backward_tensor_kernel(Tensor grad, Tensor x, Tensor scale, Tensor out,
                                                  long long n) {
  const long long i = global_thread();
  if (i >= n) return;
  const C g = promoted<C>(grad, grad.offset(i), out.dtype);
  const bool off = promoted<C>(x, x.offset(i), out.dtype) <= C(0);
  const C s = promoted<C>(scale, scale.offset(i), out.dtype);
  store<C>(out, out.offset(i), off ? C(0) : g * s);
}

extern "C" int relu_scale_backward_tensor(const Tensor* grad, const Tensor* x, const Tensor* scale,
                                          const Tensor* out, cudaStream_t stream) {
  const long long n = out->numel();
  const Tensor gt = *grad, xt = *x, st = *scale, ot = *out;
  WITH_FLOATING_TYPE(out->dtype, LAUNCH(relu_scale_backward_tensor_kernel<C>, blocks_for(n), THREADS,
                                       0, stream, gt, xt, st, ot, n));
  return cudaGetLastError();
}
