// sum_to: out = factor·Σx over the dimensions that out lacks, in the compute type, rounded once.
//
// One thread per result, which adds its addends in order. ``first`` is x in out's shape, at the first
// addend of each sum; ``rest`` is x in the shape of one sum. An addend's offset is the sum of both
// offsets.
#include "elementwise.cuh"

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
