"""csrc/cuda_on_cpu_cub.h: CUB's reductions, scans, loads and stores of blocks and warps."""

from __future__ import annotations

import pytest
import torch
from cached import needs_host_target

from cuda_reference import load_inline
from cuda_reference._extension import Extension

pytestmark = [
    needs_host_target,
    pytest.mark.usefixtures("own_library_cache", "forked_tools", "no_gpu"),
]

CUDA = """
#include <cub/cub.cuh>

// The mean of squares of a row by blocks that may be smaller than the reduction's size.
template <typename T, int THREADS>
__global__ void squares_kernel(const T* x, T* out, int n, bool sync) {
  using BlockReduce = cub::BlockReduce<float, THREADS>;
  __shared__ typename BlockReduce::TempStorage storage;
  __shared__ float shared[2];
  float sum = 0, largest = -INFINITY;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    sum += x[blockIdx.x * n + i] * x[blockIdx.x * n + i];
    largest = fmaxf(largest, x[blockIdx.x * n + i]);
  }
  sum = BlockReduce(storage).Reduce(sum, cub::Sum{}, blockDim.x);
  if (threadIdx.x == 0) shared[0] = sum;
  if (sync) __syncthreads();
  largest = BlockReduce(storage).Reduce(largest, cub::Max(), blockDim.x);
  if (threadIdx.x == 0) shared[1] = largest;
  __syncthreads();
  if (threadIdx.x < 2) out[2 * blockIdx.x + threadIdx.x] = shared[threadIdx.x];
}
torch::Tensor squares(torch::Tensor x, int64_t threads, bool sync) {
  auto out = torch::empty({x.size(0), 2}, x.options());
  squares_kernel<float, 128><<<x.size(0), threads>>>(x.data_ptr<float>(), out.data_ptr<float>(),
                                                     x.size(1), sync);
  return out;
}

template <int ITEMS>
__global__ void scan_kernel(const int* x, int* inclusive, int* exclusive, int* total, int n) {
  using Load = cub::BlockLoad<int, 64, ITEMS, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
  using Store = cub::BlockStore<int, 64, ITEMS, cub::BLOCK_STORE_WARP_TRANSPOSE>;
  using Scan = cub::BlockScan<int, 64>;
  __shared__ union {
    typename Load::TempStorage load;
    typename Store::TempStorage store;
    typename Scan::TempStorage scan;
  } storage;
  int items[ITEMS], sums[ITEMS], all;
  Load(storage.load).Load(x, items, n, 0);
  __syncthreads();
  Scan(storage.scan).InclusiveSum(items, sums, all);
  __syncthreads();
  Store(storage.store).Store(inclusive, sums, n);
  Scan(storage.scan).ExclusiveSum(items, sums);
  Store(storage.store).Store(exclusive, sums, n);
  if (threadIdx.x == 63) *total = all;
}
std::tuple<torch::Tensor, torch::Tensor, torch::Tensor> scans(torch::Tensor x) {
  auto a = torch::empty_like(x), b = torch::empty_like(x), c = torch::empty({}, x.options());
  scan_kernel<3><<<1, 64>>>(x.data_ptr<int>(), a.data_ptr<int>(), b.data_ptr<int>(),
                            c.data_ptr<int>(), x.numel());
  return {a, b, c};
}

// Sums of a row longer than the block: what came before is kept by a functor.
struct Running {
  int sum;
  __device__ int operator()(int total) {
    int before = sum;
    sum += total;
    return before;
  }
};
__global__ void running_kernel(const int* x, int* inclusive, int* exclusive, int n) {
  using Scan = cub::BlockScan<int, 64, cub::BLOCK_SCAN_WARP_SCANS>;
  __shared__ Scan::TempStorage storage[2];
  Running one{0}, other{0};
  for (int at = 0; at < n; at += 64) {
    const int i = at + threadIdx.x, item = i < n ? x[i] : 0;
    int sum, items[1] = {item}, before[1];
    Scan(storage[0]).InclusiveSum(item, sum, one);
    Scan(storage[1]).ExclusiveScan(items, before, cub::Sum(), other);
    if (i < n) inclusive[i] = sum, exclusive[i] = before[0];
    __syncthreads();
  }
}
std::tuple<torch::Tensor, torch::Tensor> running(torch::Tensor x) {
  auto a = torch::empty_like(x), b = torch::empty_like(x);
  running_kernel<<<1, 64>>>(x.data_ptr<int>(), a.data_ptr<int>(), b.data_ptr<int>(), x.numel());
  return {a, b};
}

// Storages one behind another in memory of the kernel's own.
__global__ void laid_out_kernel(const int* x, int* out) {
  using Load = cub::BlockLoad<int, 64, 1>;
  using Scan = cub::BlockScan<double, 64>;
  extern __shared__ char memory[];
  int item[1];
  Load(reinterpret_cast<Load::TempStorage&>(memory[sizeof(Scan::TempStorage)])).Load(x, item);
  double sum;
  auto& storage = reinterpret_cast<Scan::TempStorage&>(memory);  // of an array, not a pointer
  Scan(storage).InclusiveSum(item[0], sum);
  out[threadIdx.x] = sum;
}
torch::Tensor laid_out(torch::Tensor x) {
  auto out = torch::empty_like(x);
  laid_out_kernel<<<1, 64, 1024>>>(x.data_ptr<int>(), out.data_ptr<int>());
  return out;
}

using Pair = cub::KeyValuePair<int, float>;
__global__ void argmax_kernel(const float* x, int* at, float* sums, int n) {
  __shared__ typename cub::WarpReduce<Pair>::TempStorage storage[2];
  __shared__ typename cub::WarpScan<float>::TempStorage scans[2];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Pair best{0, -INFINITY};
  for (int i = lane; i < n; i += 32)
    best = cub::ArgMax()(best, Pair(i, x[warp * n + i]));
  best = cub::WarpReduce<Pair>(storage[warp]).Reduce(best, cub::ArgMax());
  if (lane == 0) at[warp] = best.key;
  float sum = lane < n ? x[warp * n + lane] : 0;
  cub::WarpScan<float>(scans[warp]).InclusiveSum(sum, sum);
  sums[threadIdx.x] = sum;
}
std::tuple<torch::Tensor, torch::Tensor> argmax(torch::Tensor x) {
  auto at = torch::empty({2}, x.options().dtype(torch::kInt));
  auto sums = torch::empty({2, 32}, x.options());
  argmax_kernel<<<1, 64>>>(x.data_ptr<float>(), at.data_ptr<int>(), sums.data_ptr<float>(),
                           x.size(1));
  return {at, sums};
}

__global__ void everywhere_kernel(const float* x, float* out) {
  __shared__ cub::BlockReduce<float, 64>::TempStorage storage;
  out[threadIdx.x] = cub::BlockReduce<float, 64>(storage).Sum(x[threadIdx.x]);
}
torch::Tensor everywhere(torch::Tensor x) {
  auto out = torch::empty_like(x);
  everywhere_kernel<<<1, x.numel()>>>(x.data_ptr<float>(), out.data_ptr<float>());
  return out;
}
"""
DEVICE = """
#include <cub/cub.cuh>
#include <cub/device/device_radix_sort.cuh>

// Asks for the storage, then calls.
template <class Call>
void with_storage(Call call, size_t less = 0) {
  size_t bytes = 0;
  C10_CUDA_CHECK(call(nullptr, bytes));
  auto options = torch::dtype(torch::kByte).device(torch::kCUDA);
  auto storage = torch::empty({(int64_t)bytes}, options);
  bytes -= less;
  C10_CUDA_CHECK(call(storage.data_ptr(), bytes));
}
#define CALL(...) with_storage([&](void* s, size_t& b) { return __VA_ARGS__; })
using Five = std::vector<torch::Tensor>;
Five sorted(torch::Tensor keys, torch::Tensor items, int64_t begin, int64_t end) {
  auto up = torch::empty_like(keys), down = torch::empty_like(keys);
  auto first = keys.clone(), second = torch::empty_like(keys);
  auto up_items = torch::empty_like(items), down_items = torch::empty_like(items);
  const int n = keys.numel(), *from = items.data_ptr<int>();
  int *rising = up_items.data_ptr<int>(), *falling = down_items.data_ptr<int>();
  AT_DISPATCH_ALL_TYPES(keys.scalar_type(), "sorted", [&] {
    scalar_t *in = keys.data_ptr<scalar_t>(), *a = up.data_ptr<scalar_t>();
    scalar_t *c = down.data_ptr<scalar_t>();
    CALL(cub::DeviceRadixSort::SortPairs(s, b, in, a, from, rising, n, begin, end));
    CALL(cub::DeviceRadixSort::SortPairsDescending(s, b, in, c, from, falling, n));
    cub::DoubleBuffer<scalar_t> both(first.data_ptr<scalar_t>(), second.data_ptr<scalar_t>());
    CALL(cub::DeviceRadixSort::SortKeysDescending(s, b, both, n));
    TORCH_CHECK(both.Current() == second.data_ptr<scalar_t>());
  });
  return {up, up_items, down, down_items, second};
}
std::vector<torch::Tensor> arrays(torch::Tensor x, torch::Tensor chosen, int64_t less) {
  auto sums = torch::empty_like(x), before = torch::empty_like(x), some = torch::empty_like(x);
  auto numbers = torch::empty({4}, x.options());
  const int n = x.numel();
  int *in = x.data_ptr<int>(), *out = numbers.data_ptr<int>(), *kept = some.data_ptr<int>();
  CALL(cub::DeviceScan::InclusiveSum(s, b, in, sums.data_ptr<int>(), n));
  CALL(cub::DeviceScan::ExclusiveSum(s, b, in, before.data_ptr<int>(), n));
  with_storage([&](void* s, size_t& b) { return cub::DeviceReduce::Sum(s, b, in, out, n); }, less);
  CALL(cub::DeviceReduce::Max(s, b, in, out + 1, n));
  CALL(cub::DeviceReduce::Min(s, b, in, out + 2, n));
  CALL(cub::DeviceSelect::Flagged(s, b, in, chosen.data_ptr<bool>(), kept, out + 3, n));
  return {sums, before, numbers, some};
}
"""


def test_whole_arrays() -> None:
    module = load_inline("whole", cuda_sources=DEVICE, functions=["sorted", "arrays"])
    items = torch.arange(100, dtype=torch.int32)
    for dtype in (torch.float32, torch.int32, torch.uint8, torch.int64, torch.float64):
        keys = (torch.randn(100) * 9).to(dtype) if dtype != torch.uint8 else items.to(dtype) % 7
        keys[3] = -0.0
        got = module.sorted(keys, items, 0, 8 * dtype.itemsize)
        for sorted_keys, order, falling in ((*got[:2], False), (*got[2:4], True)):
            wanted, wanted_order = keys.sort(stable=True, descending=falling)
            assert torch.equal(sorted_keys, wanted)
            assert torch.equal(order, wanted_order.int())
        assert torch.equal(got[4], got[2])
    keys = torch.randint(0, 1 << 20, (100,), dtype=torch.int32)
    order = module.sorted(keys, items, 4, 9)[1]
    assert torch.equal(order, (keys >> 4 & 31).sort(stable=True).indices.int())
    x, chosen = torch.randint(-9, 9, (50,), dtype=torch.int32), torch.rand(50) > 0.5
    sums, before, numbers, some = module.arrays(x, chosen, 0)
    assert torch.equal(sums, x.cumsum(0).int())
    assert torch.equal(before, sums - x)
    assert numbers.tolist() == [x.sum(), x.max(), x.min(), chosen.sum()]
    assert torch.equal(some[: numbers[3]], x[chosen])
    with pytest.raises(RuntimeError, match="invalid argument"):
        module.arrays(x, chosen, 1)  # less storage than it asked for


CPP = """
torch::Tensor squares(torch::Tensor x, int64_t threads, bool sync);
std::tuple<torch::Tensor, torch::Tensor, torch::Tensor> scans(torch::Tensor x);
std::tuple<torch::Tensor, torch::Tensor> running(torch::Tensor x);
std::tuple<torch::Tensor, torch::Tensor> argmax(torch::Tensor x);
torch::Tensor everywhere(torch::Tensor x);
torch::Tensor laid_out(torch::Tensor x);
"""
FUNCTIONS = ["squares", "scans", "running", "argmax", "everywhere", "laid_out"]


@pytest.fixture(scope="module")
def module() -> Extension:
    return load_inline("with_cub", CPP, CUDA, functions=FUNCTIONS)


@pytest.mark.parametrize("threads", [128, 96, 40])
def test_reductions_of_blocks(module: Extension, threads: int) -> None:
    x = torch.randint(-9, 9, (3, 300)).float()
    out = module.squares(x, threads, True)
    assert torch.equal(out, torch.stack([x.square().sum(1), x.amax(1)], 1))


def test_scans_loads_and_stores(module: Extension) -> None:
    x = torch.randint(-9, 9, (170,), dtype=torch.int32)
    inclusive, exclusive, total = module.scans(x)
    sums = x.cumsum(0)
    assert torch.equal(inclusive.long(), sums)
    assert torch.equal(exclusive.long(), sums - x)
    assert total == x.sum()


def test_a_scan_goes_on_from_what_came_before(module: Extension) -> None:
    x = torch.randint(-9, 9, (150,), dtype=torch.int32)
    inclusive, exclusive = module.running(x)
    assert torch.equal(inclusive.long(), x.cumsum(0))
    assert torch.equal(exclusive.long(), x.cumsum(0) - x)


def test_storages_in_memory_of_the_kernels_own(module: Extension) -> None:
    x = torch.randint(-9, 9, (64,), dtype=torch.int32)
    assert torch.equal(module.laid_out(x).long(), x.cumsum(0))


def test_warps(module: Extension) -> None:
    x = torch.randint(-9, 9, (2, 29)).float()
    at, sums = module.argmax(x)
    assert at.tolist() == [int((row == row.max()).nonzero()[0]) for row in x]  # the first
    assert torch.equal(sums[:, :29], x.cumsum(1))


def test_a_result_is_thread_0s_alone(module: Extension) -> None:
    out = module.everywhere(torch.ones(64))
    assert out[0] == 64
    assert out[1:].isnan().all()


def test_a_block_of_another_size(module: Extension) -> None:
    says = r"calls cub::BlockReduce\(\) at line \d+, which is for 64 threads, in a block of 50"
    with pytest.raises(RuntimeError, match=says):
        module.everywhere(torch.ones(50))


def test_storage_used_again_without_a_barrier() -> None:
    watched = load_inline("with_cub", CPP, CUDA, functions=FUNCTIONS, sanitize="watch")
    x = torch.randint(-9, 9, (1, 300)).float()
    assert watched.squares(x, 128, True)[0, 1] == x.max()
    with pytest.raises(RuntimeError, match=r"overwrites what another thread read.*storage"):
        watched.squares(x, 128, False)
