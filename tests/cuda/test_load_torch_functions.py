"""load: what wrappers ask of torch, in the forms in which its C++ has them."""

from __future__ import annotations

import pytest
import torch
from cached import needs_host_target

from cuda_reference import BuildError, load_inline

pytestmark = [
    needs_host_target,
    pytest.mark.usefixtures("own_library_cache", "forked_tools", "no_gpu"),
]

CPP = """
std::vector<at::Tensor> made(const at::Tensor& x);
std::vector<at::Tensor> parts(const at::Tensor& x);
at::Tensor rows(const at::Tensor& x, const at::Tensor& at);
at::Tensor squared(const at::Tensor& x);
at::Tensor powers(double real, double imag);
void launched(at::Tensor x, double by);
"""
CUDA = """
std::vector<at::Tensor> made(const at::Tensor& x) {
  auto indices = torch::TensorOptions().dtype(torch::kLong).device(x.device());
  return {torch::arange(1, x.size(0), 2, indices), torch::arange(x.size(0), x.options()),
          torch::linspace(0, 1, 5, x.options()), torch::eye(3, x.options()),
          torch::tensor({1.5, 2.5}, x.options()), torch::tensor({1, 2}),
          torch::randn({2, 3}, x.options()), torch::scalar_tensor(4, x.options())};
}
std::vector<at::Tensor> parts(const at::Tensor& x) {
  TORCH_CHECK(!x.is_complex() && x.layout() == torch::kStrided && !x.is_sparse());
  const auto elements = x.accessor<float, 2>();
  TORCH_CHECK(elements[1][0] == x.select(0, 1).select(0, 0).item<float>());
  return {x.chunk(2)[1], x.split(2, 1)[1], torch::split(x, 3)[0], x.unbind(1)[2],
          torch::sum(x, {1}, true), x.mean({0, 1}), x.amax({0}), x.flip({0, 1}),
          at::linear(x, x), x.erf().logical_or(x.square())};
}

// The accessors' default pointers are those that a kernel's parameters name so.
template <typename T>
__global__ void rows_kernel(at::PackedTensorAccessor64<T, 2> out,
                            const at::PackedTensorAccessor64<T, 2> x,
                            const at::PackedTensorAccessor32<int64_t, 1> at) {
  for (int j = threadIdx.x; j < x.size(1); j += 32) out[blockIdx.x][j] = x[at[blockIdx.x]][j];
}
at::Tensor rows(const at::Tensor& x, const at::Tensor& at) {
  auto out = at::empty({at.size(0), x.size(1)}, x.options());
  rows_kernel<float><<<at.size(0), 32>>>(
      out.packed_accessor64<float, 2>(), x.packed_accessor64<float, 2>(),
      at.packed_accessor32<int64_t, 1>());
  return out;
}

template <typename T>
__global__ void squared_kernel(const T* x, T* out, int n) {
  if (threadIdx.x < n) out[threadIdx.x] = x[threadIdx.x] * x[threadIdx.x];
}
at::Tensor squared(const at::Tensor& x) {
  auto out = at::empty_like(x);
  AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "f", [&] {
    squared_kernel<scalar_t><<<1, 32>>>(
        x.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), x.numel());
  });
  return out;
}

template <typename T>
__global__ void powers_kernel(c10::complex<T> z, T* out) {
  c10::complex<T> power(1);
  for (int i = 0; i < 4; ++i, power *= z) out[2 * i] = power.real_, out[2 * i + 1] = power.imag();
  power /= z * z;
  out[8] = (-power).real(), out[9] = (power - z + 1).imag_;
}
at::Tensor powers(double real, double imag) {
  auto out = at::empty({10}, at::TensorOptions().dtype(at::kFloat).device(at::kCUDA));
  TORCH_CHECK(out.scalar_type() != at::ScalarType::ComplexFloat);
  powers_kernel<<<1, 1>>>(c10::complex<float>(real, imag), out.data_ptr<float>());
  return out;
}

__global__ void launched_kernel(float* x, float by, int n) {
  if (threadIdx.x < n) x[threadIdx.x] *= by;
}
void launched(at::Tensor x, double by) {
  float *data = x.data_ptr<float>(), factor = by;
  int n = x.numel();
  void* arguments[] = {&data, &factor, &n};
  C10_CUDA_CHECK(cudaLaunchKernel((const void*)launched_kernel, dim3(1), dim3(32), arguments, 0,
                                  at::cuda::getCurrentCUDAStream()));
  C10_CUDA_CHECK(cudaLaunchCooperativeKernel(launched_kernel, 1, 32, arguments));
}
"""


def test_functions_as_torchs_cpp_has_them() -> None:
    names = ["made", "parts", "rows", "squared", "powers", "launched"]
    module = load_inline("functions", CPP, CUDA, functions=names)
    x = torch.randn(5, 4)
    indices, counted, line, eye, halves, integers, random, scalar = module.made(x)
    assert torch.equal(indices, torch.arange(1, 5, 2))
    assert torch.equal(counted, torch.arange(5.0))
    assert torch.equal(line, torch.linspace(0, 1, 5))
    assert torch.equal(eye, torch.eye(3))
    assert torch.equal(halves, torch.tensor([1.5, 2.5]))
    assert torch.equal(integers, torch.tensor([1, 2]))
    assert random.shape == (2, 3)
    assert torch.equal(scalar, torch.tensor(4.0))
    wanted = [x[3:], x[:, 2:], x[:3], x[:, 2], x.sum(1, True), x.mean(), x.amax(0), x.flip(0, 1)]
    wanted += [x @ x.t(), x.erf().logical_or(x.square())]
    for found, expected in zip(module.parts(x), wanted, strict=True):
        torch.testing.assert_close(found, expected)
    assert torch.equal(module.rows(x, indices), x[1::2])
    for dtype in (torch.float16, torch.int16, torch.float64):
        numbers = torch.arange(8).to(dtype)
        assert torch.equal(module.squared(numbers), numbers * numbers)
    powers, z = module.powers(0.5, 1.5), 0.5 + 1.5j
    wanted = [part for i in range(4) for part in ((z**i).real, (z**i).imag)]
    wanted += [-(z**2).real, (z**2 - z).imag]
    torch.testing.assert_close(powers, torch.tensor(wanted))
    launched = torch.ones(20)
    module.launched(launched, 3.0)
    assert torch.equal(launched, torch.full((20,), 9.0))


SHAPES = """
#include <thrust/tuple.h>
__global__ void ends_kernel(const float* x, float* out, int n) {
  float low, high;
  thrust::tie(low, high) = thrust::make_tuple(x[0], x[n - 1]);
  out[0] = thrust::get<1>(thrust::tuple<float, float>(high, low));
}
// The sizes of a pair and a tuple of Python's, and sums written to a tensor of another shape.
at::Tensor ends(at::Tensor x, std::tuple<int, double> both, std::pair<int64_t, int64_t> sizes) {
  auto out = at::empty({0}, x.options()), first = at::empty({1}, x.options());
  at::cumsum_out(out, x.view({sizes.first, sizes.second}), std::get<0>(both));
  ends_kernel<<<1, 1>>>(x.data_ptr<float>(), first.data_ptr<float>(), x.numel());
  return out * std::get<1>(both) + first;
}
std::vector<at::Tensor> shapes(at::Tensor x, at::Tensor y) {
  TORCH_CHECK(DeviceTypeName(x.device().type(), true) == "cuda" && x.device().type() != at::kMPS);
  static_assert(int8_t(at::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES) > int8_t(at::kCUDA), "");
  at::TensorArg x_arg{x, "x", 1}, y_arg{y, "y", 2};
  at::CheckedFrom here = "shapes";
  at::checkAllSameGPU(here, {x_arg, y_arg});
  at::checkAllSameType(here, {x_arg, y_arg});
  at::checkDim(here, x_arg, 2);
  auto z = x.clone(), same = z, empty = at::empty({0}, x.options());
  z.unsqueeze_(0);
  z.transpose_(0, 2);  // 4×5×1
  TORCH_CHECK(same.size(0) == 4 && same.dim() == 3);
  z += 1;
  z *= z.view(at::IntList({4, 5, 1}));
  empty.resize_({2, 3}).fill_(7);
  auto more = at::ones({3}, x.options());
  more.resize_({2});
  more.resize_({2, 2});
  return {z, empty, more};
}
"""


def test_a_tensor_of_another_shape_and_checks_of_arguments() -> None:
    module = load_inline("shapes", cuda_sources=SHAPES, functions=["shapes", "ends"])
    x = torch.randn(5, 4)
    ends = module.ends(x, (1, 0.5), (2, 10))
    torch.testing.assert_close(ends, x.view(2, 10).cumsum(1) * 0.5 + x[0, 0])
    with pytest.raises(TypeError, match=r"Tuple\[int,float\]\) must be a tuple of 2"):
        module.ends(x, (1, 2.0, 3), (2, 10))
    z, empty, more = module.shapes(x, x)
    torch.testing.assert_close(z, (x.t()[..., None] + 1) ** 2)
    assert torch.equal(empty, torch.full((2, 3), 7.0))
    assert torch.equal(more[0], torch.ones(2))
    assert more[1].isnan().all()  # nobody has set it
    says = r"argument #2 'y'; but type Float does not equal Double \(while checking argumen"
    with pytest.raises(RuntimeError, match=says):
        module.shapes(x, x.double())
    with pytest.raises(RuntimeError, match=r"Expected 2-dimensional tensor, but got 1-dimensional"):
        module.shapes(x[0], x)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("class F : public torch::autograd::Function<F> {};", "torch::autograd has no form on the"),
        ('void f() { AT_DISPATCH_V2(x, "f", [] {}); }', "AT_DISPATCH_V2 has no form on the CPU"),
        ('void f() { py::class_<int>(0, "f"); }', "class_ of c10 or pybind11 has no form on the"),
        ("curandState_t f();", "curandState_t has no form on the CPU"),
    ],
)
def test_what_has_no_form_is_named(line: str, says: str) -> None:
    with pytest.raises(BuildError, match=says):
        load_inline("nothing", cuda_sources=line, functions=[])


SETTINGS = """
#define CHECK_MATRIX(x) TORCH_CHECK(x.dim() == 2, #x " must be a matrix")
bool deterministic(const at::Tensor& x) {
  CHECK_MATRIX(x)  // a semicolon is not needed, as in torch
  if (x.size(0) > 5) AT_ERROR("too many rows");
  else at::globalContext().alertNotDeterministic("deterministic");
  return at::globalContext().deterministicAlgorithms();
}
"""


def test_torchs_settings_and_checks_without_a_semicolon() -> None:
    cpp = "bool deterministic(const at::Tensor& x);"
    module = load_inline("settings", cpp, SETTINGS, functions="deterministic")
    assert module.deterministic(torch.ones(2, 2)) is False
    torch.use_deterministic_algorithms(True)
    try:
        assert module.deterministic(torch.ones(2, 2)) is True
    finally:
        torch.use_deterministic_algorithms(False)
    with pytest.raises(RuntimeError, match="x must be a matrix"):
        module.deterministic(torch.ones(2))
    with pytest.raises(RuntimeError, match="too many rows"):
        module.deterministic(torch.ones(6, 2))
