// sum_to: out = factor·Σx over the dimensions that out lacks, in the compute type, rounded once.
//
// One thread per result, which adds its addends in order. ``first`` is x in out's shape, at the first
// addend of each sum; ``rest`` is x in the shape of one sum. An addend's offset is the sum of both
// offsets. sum_to also has the rungs of sums.cuh.
#include "sums.cuh"

template <class C>
__global__ void sum_to_kernel(Tensor first, Tensor rest, Tensor out, Scalar factor,
                              long long results, long long addends) {
  const long long i = global_thread();
  if (i >= results) return;
  const long long start = first.offset(i);
  C total = C(0);
  for (long long j = 0; j < addends; ++j) total += load<C>(first, start + rest.offset(j));
  store<C>(out, out.offset(i), total * value<C>(factor));
}

extern "C" int sum_to(const Tensor* first, const Tensor* rest, const Tensor* out, Scalar factor,
                      cudaStream_t stream) {
  const long long results = out->numel(), addends = rest->numel();
  const Tensor ft = *first, rt = *rest, ot = *out;
  const int wide = ft.dtype == F64 ? F64 : ot.dtype;
  WITH_FLOATING_TYPE(wide, LAUNCH(sum_to_kernel<C>, blocks_for(results), THREADS, 0, stream, ft, rt,
                                  ot, factor, results, addends));
  return cudaGetLastError();
}

// The sizes and strides of at most two dimensions, innermost first.
void last_two(const Tensor& t, long long* size, long long* stride) {
  for (int d = 0; d < 2; ++d) {
    const int from = t.ndim - 1 - d;
    size[d] = from < 0 ? 1 : t.size[from];
    stride[d] = from < 0 ? 0 : t.stride[from];
  }
}

extern "C" int sum_to_rung(const Tensor* first, const Tensor* rest, const Tensor* out, Scalar factor, int rung,
                           int blocks, void* workspace, int floats, cudaStream_t stream) {
  Sum sum;
  Sink sink = {out->data, out->dtype, static_cast<float>(factor.real), {}, 0};
  last_two(*out, sum.kept, sink.stride);
  last_two(*first, sum.kept, sum.kept_stride);
  last_two(*rest, sum.reduced, sum.reduced_stride);
  const Means means = {rung, blocks, workspace, floats, stream};
  WITH_ELEMENT(first->dtype, 4, launch_sum(static_cast<const T*>(first->data), sum, sink, means));
}
