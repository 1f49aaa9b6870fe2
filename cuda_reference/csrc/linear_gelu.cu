// linear_gelu: out = gelu(x @ weight.T + bias), accumulated in float (double for float64).
// x [M, I], weight [O, I], bias [O], out [M, O].
//
//   naive   one thread an output element
//   tiled   the same through tiles in shared memory
//   wmma    on tensor cores: float16 and bfloat16
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

static Epilogue gelu_of(const Tensor* bias, bool tanh_form) {
  Epilogue epilogue{};
  epilogue.has_bias = bias != nullptr;
  if (bias) epilogue.bias = *bias;
  epilogue.alpha = {1.0, 1};
  epilogue.act = tanh_form ? GELU_TANH : GELU;
  return epilogue;
}

extern "C" int linear_gelu_naive(const Tensor* x, const Tensor* weight, const Tensor* bias,
                                 const Tensor* out, int tanh_form, cudaStream_t stream) {
  return gemm_naive(*x, transposed(*weight), *out, gelu_of(bias, tanh_form), stream);
}

extern "C" int linear_gelu_tiled(const Tensor* x, const Tensor* weight, const Tensor* bias,
                                 const Tensor* out, int tanh_form, cudaStream_t stream) {
  return gemm_tiled(*x, transposed(*weight), *out, gelu_of(bias, tanh_form), stream);
}

extern "C" int linear_gelu_wmma(const Tensor* x, const Tensor* weight, const Tensor* bias,
                                const Tensor* out, int tanh_form, cudaStream_t stream) {
  return gemm_wmma(*x, transposed(*weight), *out, gelu_of(bias, tanh_form), IEEE, stream);
}
