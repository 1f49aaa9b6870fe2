// linear_act: out = act(x @ weight.T + bias), accumulated in float (double for float64).
// x [M, I], weight [O, I], bias [O], out [M, O].
//
//   naive   one thread per output element
//   tiled   the same with tiles in shared memory
//   wmma    on tensor cores: float16, bfloat16, and float32 as tf32, tf32x3 or f16x3
#include "gemm_wmma.cuh"

// weight [O, I] read as the right-hand matrix [I, O].
static Tensor transposed(Tensor t) {
  Tensor result = t;
  for (int d = 0; d < 2; ++d) {
    result.size[d] = t.size[1 - d];
    result.stride[d] = t.stride[1 - d];
  }
  return result;
}

static Epilogue epilogue_of(const Tensor* bias, int act) {
  Epilogue epilogue{};
  epilogue.has_bias = bias != nullptr;
  if (bias) epilogue.bias = *bias;
  epilogue.alpha = {1.0, 1};
  epilogue.act.number = act;
  return epilogue;
}

extern "C" int linear_act_naive(const Tensor* x, const Tensor* weight, const Tensor* bias,
                                const Tensor* out, int act, cudaStream_t stream) {
  return gemm_naive(*x, transposed(*weight), *out, epilogue_of(bias, act), stream);
}

extern "C" int linear_act_tiled(const Tensor* x, const Tensor* weight, const Tensor* bias,
                                const Tensor* out, int act, cudaStream_t stream) {
  return gemm_tiled(*x, transposed(*weight), *out, epilogue_of(bias, act), stream);
}

extern "C" int linear_act_wmma(const Tensor* x, const Tensor* weight, const Tensor* bias,
                               const Tensor* out, int act, int precision, cudaStream_t stream) {
  return gemm_wmma(*x, transposed(*weight), *out, epilogue_of(bias, act), precision, stream);
}
