"""load: what wrappers ask of torch's C++ on tensors, and spellings of older extensions."""

from __future__ import annotations

import pytest
import torch
from cached import needs_host_target
from torch.nn import functional as F

import compare
from cuda_reference import _replay, load
from cuda_reference._extension import Extension

pytestmark = [needs_host_target, pytest.mark.usefixtures("own_library_cache", "no_gpu")]

SOURCE = r"""
#include <torch/extension.h>
#include <THC/THCAtomics.cuh>
#include <cuda.h>
#if CUDA_VERSION < 9000
#error this is for newer ones
#endif
#include <cooperative_groups.h>
using at::Tensor;
using namespace torch::indexing;

// ---- on tensors

Tensor kept(Tensor scores, double least) {
  auto order = std::get<1>(scores.sort(0, /*descending=*/true));
  auto good = scores.index({order}) > least;
  return order.masked_select(good);
}
std::vector<Tensor> slices(Tensor x) {
  x.index_put_({0, Slice()}, x.index({1, "..."}) * 2);
  return {x.index({Slice(1, None), Slice(None, None, 2)}), x.slice(1, 1, 3), -x, 1 - x / 2};
}
std::vector<Tensor> made(Tensor x) {
  auto old = at::zeros({2, 3}, x.type());
  auto wide = torch::zeros_like(x, torch::TensorOptions().dtype(torch::kDouble));
  auto both = torch::cat({x, torch::full_like(x, 2)}, 1);
  namespace F = torch::nn::functional;
  return {old, wide, both, F::pad(x, F::PadFuncOptions({1, 2}).value(7)),
          torch::arange(5, x.device()), std::get<0>(x.max(1)), x.to(torch::kDouble).sum(0),
          torch::empty({2, 3, 4, 5}, x.options(), x.unsqueeze(0).suggest_memory_format()),
          torch::empty({2, 3, 4, 5}, x.options(), at::MemoryFormat::ChannelsLast)};
}

// A flat kernel does to a tensor that is dense in any order what it does to a contiguous one.
__global__ void twice_kernel(const float* x, float* y, const float* bias, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2 * x[i] + (bias ? *bias : 0);
}
std::vector<Tensor> twice(Tensor x) {
  auto y = torch::empty_like(x), plain = torch::empty_like(x, at::MemoryFormat::Contiguous);
  const int n = x.numel();
  twice_kernel<<<(n + 31) / 32, 32>>>(x.data_ptr<float>(), y.data_ptr<float>(), NULL, n);
  TORCH_CHECK(x.is_non_overlapping_and_dense());
  TORCH_CHECK(!x.slice(1, 0, 3, 2).is_non_overlapping_and_dense());
  plain.copy_(y);
  return {y, plain};
}

// ---- parameters and results

Tensor sizes_that_stay(Tensor x, at::IntArrayRef normalized,
                       std::vector<std::vector<Tensor>> lists) {
  const auto before = x.sizes();
  TORCH_CHECK(before.slice(1).equals(normalized), "got ", normalized);
  x = x.reshape({-1}).clone();
  for (const auto& list : lists)
    for (const auto& each : list) x = x + each;
  return x.reshape(before);
}
std::tuple<Tensor, std::optional<Tensor>> perhaps(Tensor x, bool also) {
  std::optional<Tensor> second;
  if (also) second = x + 1;
  return {x.clone(), second};
}

// ---- in kernels

__device__ void add_half(at::Half* address, at::Half value) {
  unsigned* word = (unsigned*)((char*)address - ((size_t)address & 2));
  unsigned old = *word, assumed;
  do {
    assumed = old;
    at::Half sum;
    sum.x = (size_t)address & 2 ? old >> 16 : old & 0xffff;
    sum = sum + value;
    old = (size_t)address & 2 ? (old & 0xffff) | (sum.x << 16)
                              : (old & 0xffff0000) | sum.x;
    old = atomicCAS(word, assumed, old);
  } while (assumed != old);
}
using namespace at::cuda::detail;
__global__ void rows_kernel(TensorInfo<float, int> x, at::Half* out, int n) {
  __shared__ float first[N >> 1], second[N >> 1];
  const int i = blockIdx.x * N + threadIdx.x;
  if (i >= n) return;  // barriers do not wait for it
  float* half = threadIdx.x < N / 2 ? first : second;
  half[threadIdx.x % (N / 2)] = x.data[IndexToOffset<float, int, -1>::get(i, x)];
  __syncthreads();
  if (threadIdx.x == 0)
    for (int k = 0; k < N && blockIdx.x * N + k < n; ++k)
      add_half(&out[1], k < N / 2 ? first[k] : second[k - N / 2]);
}
Tensor total(Tensor x) {
  auto out = at::zeros({3}, x.options().dtype(at::kHalf));
  const int n = x.numel();
  rows_kernel<<<(n + N - 1) / N, N>>>(getTensorInfo<float, int>(x), out.data_ptr<at::Half>(), n);
  return out;
}

// Lanes beyond the last element have returned; what the last one gets from the next is left unused.
__global__ void runs_kernel(const int64_t* key, const float* x, float* out, int n, bool used) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int64_t own = key[i], next = __shfl_down_sync(0xffffffff, own, 1);
  float beside = __shfl_down_sync(0xffffffff, x[i], 1);
  if (i + 1 == n || own != next) atomicAdd(&out[own], 1);
  if (used) out[0] += beside;
}
Tensor runs(Tensor key, Tensor x, bool used) {
  auto out = at::zeros({4}, x.options());
  runs_kernel<<<1, 64>>>(key.data_ptr<int64_t>(), x.data_ptr<float>(), out.data_ptr<float>(),
                         key.numel(), used);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("runs", &runs);
  m.def("slices", &slices);
  m.def("made", &made);
  m.def("twice", &twice);
  m.def("sizes_that_stay", &sizes_that_stay);
  m.def("perhaps", &perhaps);
  m.def("total", &total);
  m.def("kept", &kept);
}
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Extension:
    path = tmp_path_factory.mktemp("sources") / "calls.cu"
    path.write_text(SOURCE)
    return load("calls", [str(path)], extra_cuda_cflags=["-O3", "-DN=8"])


def test_indexing_sorting_and_operators(module: Extension) -> None:
    scores = torch.tensor([0.5, 0.1, 0.9, 0.7])
    assert module.kept(scores, 0.4).tolist() == [2, 3, 0]
    x = torch.arange(12.0).view(3, 4)
    expected = x.clone()
    expected[0] = 2 * x[1]
    results = module.slices(x)
    assert torch.equal(x, expected)
    wanted = (expected[1:, ::2], expected[:, 1:3], -expected, 1 - expected / 2)
    assert all(map(torch.equal, results, wanted))


def test_new_tensors_take_what_is_left_open_from_others(module: Extension) -> None:
    x = torch.randn(2, 3)
    old, wide, both, padded, numbers, largest, total, plain, last = module.made(x)
    assert torch.equal(old, torch.zeros(2, 3))
    assert (wide.dtype, wide.shape) == (torch.float64, x.shape)
    assert torch.equal(both, torch.cat((x, torch.full_like(x, 2)), 1))
    assert torch.equal(padded, F.pad(x, (1, 2), value=7))
    assert torch.equal(numbers, torch.arange(5))
    assert torch.equal(largest, x.amax(1))
    assert torch.equal(total, x.double().sum(0))
    assert plain.is_contiguous()
    assert last.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_a_tensor_like_a_dense_one_has_its_strides(
    module: Extension, order: tuple[int, ...]
) -> None:
    x = torch.randn(3, 4, 5).permute(order)
    y, plain = module.twice(x)
    assert torch.equal(y, 2 * x)
    assert y.stride() == torch.empty_like(x).stride()
    assert torch.equal(plain, 2 * x)
    assert plain.is_contiguous()


def test_lists_of_lists_sizes_and_results_that_may_be_missing(module: Extension) -> None:
    x, a, b = torch.randn(3, 20)
    lists = [[a], [], [b, b]]
    result = module.sizes_that_stay(x.view(4, 5), [5], lists)
    assert torch.equal(result, (x + a + b + b).view(4, 5))
    with pytest.raises(RuntimeError, match=r"got \[4\]"):
        module.sizes_that_stay(x.view(4, 5), [4], lists)
    assert module.perhaps(x, False)[1] is None
    assert torch.equal(module.perhaps(x, True)[1], x + 1)


def test_bits_of_halves_definitions_and_threads_that_return(module: Extension) -> None:
    x = torch.arange(30.0).view(5, 6).T
    assert module.total(x).tolist() == [0, x.sum(), 0]


def test_the_value_of_a_lane_that_has_returned_may_be_left_unused(module: Extension) -> None:
    key, x = torch.tensor([0, 0, 1, 1, 1, 3, 3]), torch.ones(7)
    assert module.runs(key, x, False).tolist() == [1, 1, 0, 1]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="for the value of lane 7, which has returned"):
            module.runs(key, x, True)
    report = compare.debug_cuda(module.runs, (key, x, False), tools=["values", "initcheck"])
    assert report, report
    assert "has returned" in str(compare.debug_cuda(module.runs, (key, x, True), tools=["values"]))


@pytest.mark.parametrize("kind", ["address", "watch"])
def test_a_lent_value_is_no_error_under_a_tool(module: Extension, kind: str) -> None:
    key, x = torch.tensor([0, 0, 1, 1, 1, 3, 3]), torch.ones(7)
    with _replay.under(kind):
        assert module.runs(key, x, False).tolist() == [1, 1, 0, 1]
        with pytest.raises(RuntimeError, match="for the value of lane 7, which has returned"):
            module.runs(key, x, True)
