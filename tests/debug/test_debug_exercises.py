"""compare.debug_cuda on files as exercises have them: launchers without a stream, pitched copies,
a warp that stores one value from all its threads, and operations passed as function pointers."""

from __future__ import annotations

import pytest
import torch

from compare import debug_cuda
from compare.checking.implementations import unavailable
from cuda_reference import load_inline
from cuda_reference._inline import InlineModule

needs_host = pytest.mark.skipif(
    "cuda-host" in unavailable(), reason=f"cuda-host: {unavailable().get('cuda-host')}"
)
pytestmark = [needs_host, pytest.mark.usefixtures("own_library_cache", "forked_tools")]

SOURCE = """\
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;

struct Pair { float most, sum; };
__device__ __forceinline__ Pair both(Pair a, Pair b) {
  return {fmaxf(a.most, b.most), a.sum + b.sum};
}

__global__ void row_kernel(const float* x, float* out, int columns, int by_lane) {
  __shared__ float part[2];
  auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  Pair own = {-INFINITY, 0};
  x += blockIdx.x * columns;
  for (int k = threadIdx.x; k < columns; k += 64) own = both(own, {x[k], x[k]});
  Pair all = cg::reduce(warp, own, both);
  part[threadIdx.x / 32] = by_lane ? own.sum : all.sum;
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = part[0] + part[1];
}
extern "C" void row_sums(const float* x, float* out, int rows, int columns) {
  row_kernel<<<rows, 64>>>(x, out, columns, 0);
  cudaDeviceSynchronize();
}
extern "C" void racing_sums(const float* x, float* out, int rows, int columns) {
  row_kernel<<<rows, 64>>>(x, out, columns, 1);
}
__global__ void scan_kernel(const int* x, int* out) {
  auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  const int i = threadIdx.x;
  out[i] = cg::inclusive_scan(warp, x[i], cg::plus<int>());
  out[32 + i] = cg::exclusive_scan(warp, x[i]);
  out[64 + i] = cg::inclusive_scan(warp, x[i], cg::greater<int>());
}
void scans(const int* x, int* out, int n) { scan_kernel<<<1, n>>>(x, out); }

__global__ void pitched_kernel(float* rows, size_t pitch, int columns) {
  float* row = reinterpret_cast<float*>(reinterpret_cast<char*>(rows) + blockIdx.x * pitch);
  if (threadIdx.x < columns) row[threadIdx.x] += 1;
}
int pitched(const float* x, float* out, int rows, int columns) {
  float *device, *staged, *seen;
  size_t pitch, width = columns * sizeof(float), free_bytes, all_bytes;
  cudaMemGetInfo(&free_bytes, &all_bytes);
  cudaHostAlloc(&staged, rows * width, cudaHostAllocMapped);
  cudaHostGetDevicePointer(&seen, staged, 0);
  cudaMallocPitch(&device, &pitch, width, rows);
  cudaMemset2D(device, pitch, 0, width, rows);
  cudaMemcpy2D(device, pitch, x, width, width, rows, cudaMemcpyDefault);
  pitched_kernel<<<rows, 64>>>(device, pitch, columns);
  cudaMemcpy2DAsync(seen, width, device, pitch, width, rows, cudaMemcpyDefault, 0);
  cudaMemcpy(out, staged, rows * width, cudaMemcpyDefault);
  cudaMemPrefetchAsync(staged, rows * width, 0, 0);
  cudaFuncAttributes about;
  cudaFuncGetAttributes(&about, pitched_kernel);
  cudaFree(device), cudaFreeHost(staged);
  return free_bytes > all_bytes || about.maxThreadsPerBlock != 1024;
}
"""
ROWS = "const float* x, float* out, int rows, int columns"
DECLARED = dict.fromkeys(("row_sums", "racing_sums", "pitched"), ROWS)
X = torch.arange(200.0).view(2, 100)


@pytest.fixture(scope="module")
def module() -> InlineModule:
    return load_inline(SOURCE, DECLARED | {"scans": "const int* x, int* out, int n"}, name="drill")


def test_one_value_from_all_threads_of_a_warp_is_no_race(module: InlineModule) -> None:
    call = (X, torch.empty(2), 2, 100)
    tools = ("values", "initcheck", "thread")
    found = debug_cuda(module.row_sums, call, oracle=lambda x, *_: x.sum(1), tools=tools)
    assert found, found
    # Of ThreadSanitizer alone nobody knows what was stored.
    found = debug_cuda(module.row_sums, call, tools=["thread"])
    assert found or "thread: data race, write: part[" in str(found) or "not run" in str(found)


def test_several_values_are_one(module: InlineModule) -> None:
    call = (X, torch.empty(2), 2, 100)
    found = debug_cuda(module.racing_sums, call, tools=("values", "initcheck", "thread"))
    assert "initcheck: two threads write different values, nothing orders them: part[" in str(found)
    assert "drill.cu:18 in row_kernel: part[threadIdx.x / 32] = by_lane ?" in str(found)


def test_scans_of_a_warp(module: InlineModule) -> None:
    x = torch.randint(-9, 9, (32,), dtype=torch.int32)
    out = torch.empty(96, dtype=torch.int32)
    module.scans(x, out, 32)
    sums = x.cumsum(0)
    assert torch.equal(out, torch.cat([sums, sums - x, x.cummax(0).values]).int())


def test_pitched_memory(module: InlineModule) -> None:
    x = torch.randn(3, 50)
    out = torch.empty_like(x)
    module.pitched(x, out, 3, 50)
    assert torch.equal(out, x + 1)
    assert "and waits for the device." in str(module.pitched.__doc__)
