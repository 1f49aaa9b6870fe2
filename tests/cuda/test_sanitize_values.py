"""sanitize="thread" and "undefined" of load and load_inline. The other two: test_guards, test_load
and test_load_as_found."""

from __future__ import annotations

import pytest
import torch
from cached import needs_host_target

from cuda_reference import BuildError, _compilers, load_inline

pytestmark = [needs_host_target, pytest.mark.usefixtures("own_library_cache", "forked_tools")]

SOURCE = """\
__global__ void shifted_kernel(int* x, int n) {
  __shared__ int row[64];
  row[threadIdx.x] = x[threadIdx.x];
  x[threadIdx.x] = row[(threadIdx.x + 1) % n];
}
__global__ void next_kernel(int* x, int n) {
  if (threadIdx.x < n) x[threadIdx.x] = x[threadIdx.x] + 1;
}
"""
LAUNCHERS = """\
void shifted(int* x, int n, cudaStream_t stream) { shifted_kernel<<<1, n, 0, stream>>>(x, n); }
void next(int* x, int n, cudaStream_t stream) { next_kernel<<<1, 64, 0, stream>>>(x, n); }
"""
WRAPPERS = """\
torch::Tensor next(torch::Tensor x) {
  auto y = x.clone();
  next_kernel<<<1, 64>>>(y.data_ptr<int>(), y.numel());
  return y;
}
"""


def needs(kind: str) -> None:
    try:
        _compilers.sanitizer_environment(kind)
    except BuildError as error:
        pytest.skip(str(error))


def test_a_race_between_threads_of_a_block() -> None:
    needs("thread")
    parameters = dict.fromkeys(("shifted", "next"), "int* x, int n, cudaStream_t stream")
    module = load_inline(SOURCE + LAUNCHERS, parameters, name="raced", sanitize="thread")
    x = torch.arange(32, dtype=torch.int32)
    module.next(x, 32)
    assert torch.equal(x, torch.arange(1, 33, dtype=torch.int32))
    with pytest.raises(RuntimeError) as error:
        module.shifted(x, 32)
    text = str(error.value)
    if "unexpected memory mapping" in text:
        pytest.skip("ThreadSanitizer does not start on this kernel")
    assert "ThreadSanitizer: data race" in text
    assert "raced.cu:4 in shifted_kernel" in text
    assert "raced.cu:3 in shifted_kernel" in text
    assert torch.equal(x, torch.arange(1, 33, dtype=torch.int32))


def test_an_integer_that_overflows() -> None:
    """In a function that takes and returns tensors."""
    module = load_inline(
        "counted", cuda_sources=SOURCE + WRAPPERS, functions=["next"], sanitize="undefined"
    )
    x = torch.tensor([3, 4], dtype=torch.int32)
    assert module.next(x).tolist() == [4, 5]
    with pytest.raises(RuntimeError) as error:
        module.next(torch.tensor([3, 2**31 - 1], dtype=torch.int32))
    text = str(error.value)
    assert "runtime error: signed integer overflow: 2147483647 + 1" in text
    assert "counted.cu:7" in text
