"""sanitize="watch" on shared memory: what no __syncthreads() or __syncwarp() orders is a race."""

from __future__ import annotations

import pytest
import torch
from cached import needs_host_target

from cuda_reference import load_inline
from cuda_reference._inline import InlineModule

pytestmark = [needs_host_target, pytest.mark.usefixtures("own_library_cache", "forked_tools")]

# Every barrier is needed; two threads that write the same are no race, nor are two atomics.
HEALTHY = """
  out += 64 * blockIdx.x;
  SHARED(float, tile, [64]);
  SHARED(int, bins, [4]);
  SHARED(bool, any, [1]);
  int i = threadIdx.x;
  if (i < 4) bins[i] = 0;
  any[0] = true;
  __syncthreads();
  tile[i] = x[i];
  __syncwarp();
  float neighbour = tile[i ^ 1];
  __syncwarp();
  tile[i] = neighbour;
  atomicAdd(&bins[i % 4], 1);
  __syncthreads();
  for (int step = 32; step > 0; step /= 2) {
    if (i < step) tile[i] += tile[i + step];
    __syncthreads();
  }
  out[i] = tile[0] + bins[i % 4] + any[0];
  __syncwarp();
  if (i % 2 == 0) out[i] = out[i + 1];  // of global memory, too
"""
# Each thread reads its own element last: the other reader must not be forgotten.
OVERWRITTEN = """
  SHARED(float, tile, [64]);
  int i = threadIdx.x;
  tile[i] = x[i];
  __syncthreads();
  float sum = i < 32 ? tile[i + 32] : 0;
  sum += tile[i];
  tile[i] = sum;
  out[i] = sum;
"""
BODIES = {
    "healthy": HEALTHY,
    "overwritten": OVERWRITTEN,
    "no_barrier": "  SHARED(float, tile, [64]);\n  int i = threadIdx.x;\n  tile[i] = 0;\n"
    "  __syncthreads();\n  tile[i] = x[i];\n  out[i] = tile[i ^ 1];\n",
    "other_warp": "  SHARED(float, tile, [64]);\n  int i = threadIdx.x;\n  tile[i] = 0;\n"
    "  __syncthreads();\n  tile[i] = x[i];\n  __syncwarp();\n  out[i] = tile[63 - i];\n",
    "clash": "  extern __shared__ float held[];\n  int i = threadIdx.x;\n  held[i / 2] = x[i];\n"
    "  __syncthreads();\n  out[i] = held[i / 2];\n",
    "bins": "  SHARED(int, bins, [4]);\n  int i = threadIdx.x;\n  if (i < 4) bins[i] = 0;\n"
    "  __syncthreads();\n  atomicAdd(&bins[i % 4], 1);\n"
    "  out[i] = bins[i % 4];\n",
}
SOURCE = "".join(
    f"__global__ void {name}_kernel(const float* x, float* out) {{\n{body}}}\n"
    f"void {name}(const float* x, float* out, cudaStream_t stream) {{\n"
    f"  LAUNCH({name}_kernel, 2, 64, 256, stream, x, out);\n}}\n"
    for name, body in BODIES.items()
)
PARAMETERS = dict.fromkeys(BODIES, "const float* x, float* out, cudaStream_t stream")


@pytest.fixture(scope="module")
def module() -> InlineModule:
    return load_inline(SOURCE, PARAMETERS, name="shared_races", sanitize="watch")


def said(module: InlineModule, name: str) -> str:
    with pytest.raises(RuntimeError) as error:
        getattr(module, name)(torch.arange(64.0), torch.zeros(64))
    return str(error.value)


def test_what_barriers_order_is_no_race(module: InlineModule) -> None:
    out = torch.zeros(128)
    module.healthy(torch.arange(64.0), out)
    assert (out == 63 * 32 + 16 + 1).all()


def test_a_barrier_that_is_missing_before_a_read(module: InlineModule) -> None:
    text = said(module, "no_barrier")
    assert "reads what another thread wrote, nothing orders them: tile[0]" in text
    assert "overwrites what another thread read, nothing orders them: tile[1]" in text
    assert "out[i] = tile[i ^ 1];" in text
    assert "tile[i] = x[i];" in text


def test_syncwarp_orders_nothing_across_warps(module: InlineModule) -> None:
    text = said(module, "other_warp")
    assert "nothing orders them: tile[" in text
    assert "out[i] = tile[63 - i];" in text


def test_a_read_before_the_writers_own_is_remembered(module: InlineModule) -> None:
    text = said(module, "overwritten")
    assert "overwrites what another thread read, nothing orders them: tile[32]" in text
    assert "float sum = i < 32 ? tile[i + 32] : 0;" in text


def test_two_threads_write_one_element(module: InlineModule) -> None:
    text = said(module, "clash")
    assert "two threads write different values, nothing orders them: held[0] (64 times)" in text


def test_a_plain_access_races_with_an_atomic(module: InlineModule) -> None:
    text = said(module, "bins")
    assert "nothing orders them: bins[3]" in text
    assert "atomicAdd(&bins[i % 4], 1);" in text
