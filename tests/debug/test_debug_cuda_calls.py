"""compare.debug_cuda: kernels in a string, each wrong in its own way, and one that is right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from compare import debug_cuda
from compare.checking.implementations import unavailable
from compare.debugging.cuda import public
from cuda_reference import load_inline
from cuda_reference._inline import InlineModule

pytestmark = pytest.mark.usefixtures("own_library_cache", "forked_tools")

needs_host = pytest.mark.skipif(
    "cuda-host" in unavailable(), reason=f"cuda-host: {unavailable().get('cuda-host')}"
)
FAST = ("values", "initcheck")  # one process, without the sanitizers

SOURCE = """template <bool BARRIER>
__global__ void row_sums(const float* x, float* out, int columns) {
  SHARED(float, part, [64]);
  int i = threadIdx.x;
  part[i] = i < columns ? x[blockIdx.x * columns + i] : 0;
  __syncthreads();
  for (int half = 32; half; half /= 2) {
    if (i < half) part[i] += part[i + half];
    if (BARRIER) __syncthreads();
  }
  if (i == 0) out[blockIdx.x] = part[0];
}
void right(const float* x, float* out, int rows, int columns, cudaStream_t stream) {
  LAUNCH((row_sums<true>), rows, 64, 0, stream, x, out, columns);
}
void race(const float* x, float* out, int rows, int columns, cudaStream_t stream) {
  LAUNCH((row_sums<false>), rows, 64, 0, stream, x, out, columns);
}
__global__ void count_kernel(const float* x, float* out) {
  SHARED(int, n, [1]);
  if (threadIdx.x == 0) n[0] = 0;
  atomicAdd(&n[0], 1);
  out[threadIdx.x] = n[0];
}
void count(const float* x, float* out, int rows, int columns, cudaStream_t stream) {
  LAUNCH(count_kernel, 1, rows, 0, stream, x, out);
}
__global__ void unwritten_shared(const float* x, float* out, int columns) {
  SHARED(float, row, [64]);
  int i = threadIdx.x;
  if (i < columns) row[i] = x[blockIdx.x * columns + i];
  __syncthreads();
  if (i == 0) {
    float sum = 0;
    for (int k = 0; k < 64; ++k) sum += row[k];
    out[blockIdx.x] = sum;
  }
}
void unwritten(const float* x, float* out, int rows, int columns, cudaStream_t stream) {
  LAUNCH(unwritten_shared, rows, 64, 0, stream, x, out, columns);
}
__global__ void add_bias(const float* x, const float* bias, float* out, int rows, int columns) {
  int row = blockIdx.x, column = threadIdx.x;
  if (column < columns) out[row * columns + column] = x[row * columns + column] + bias[row];
}
void wrong_bias(const float* x, const float* bias, float* y, int rows, int columns,
                cudaStream_t stream) {
  LAUNCH(add_bias, rows, 32, 0, stream, x, bias, y, rows, columns);
}
__global__ void outside_kernel(const float* x, float* out, int columns) {
  int i = blockIdx.x * columns + threadIdx.x;
  out[i] = x[i];
}
void outside(const float* x, float* out, int rows, int columns, cudaStream_t stream) {
  LAUNCH(outside_kernel, rows, 64, 0, stream, x, out, columns);
}
__global__ void barrier_kernel(float* x) {
  if (threadIdx.x == 0) x[0] = __shfl_sync(0xFF, x[0], 1);
  __syncthreads();
  x[threadIdx.x] = 1;
}
void barrier(float* x, cudaStream_t stream) { LAUNCH(barrier_kernel, 1, 8, 0, stream, x); }
__global__ void overflow_kernel(int* x) { x[0] = x[0] + 1; }
void overflow(int* x, cudaStream_t stream) { LAUNCH(overflow_kernel, 1, 1, 0, stream, x); }
__global__ void accumulate_kernel(const float* x, float* out, int columns) {
  for (int k = 0; k < columns; ++k) out[blockIdx.x] += x[blockIdx.x * columns + k];
}
void accumulate(const float* x, float* out, int rows, int columns, cudaStream_t stream) {
  LAUNCH(accumulate_kernel, rows, 1, 0, stream, x, out, columns);
}
__device__ unsigned int done = 0;
__global__ void last_block_kernel(const float* x, float* out, int columns) {
  float sum = 0;
  for (int k = 0; k < columns; ++k) sum += x[blockIdx.x * columns + k];
  out[blockIdx.x] = sum;
  __threadfence();
  if (atomicInc(&done, gridDim.x - 1) != gridDim.x - 1) return;
  for (int row = 1; row < gridDim.x; ++row) out[0] += out[row];
}
void last_block(const float* x, float* out, int rows, int columns, cudaStream_t stream) {
  LAUNCH(last_block_kernel, rows, 1, 0, stream, x, out, columns);
}
__global__ void counted_in_shared(const float* x, float* out) {
  SHARED(int, n, [1]);
  if (threadIdx.x == 0) n[0] = 0;
  __syncthreads();
  if (x[threadIdx.x] > 0) atomicAdd(n, 1);
  __syncthreads();
  if (threadIdx.x == 0) out[0] = n[0] + blockIdx.x;
}
void shared_count(const float* x, float* out, int rows, int columns, cudaStream_t stream) {
  LAUNCH(counted_in_shared, rows, columns, 0, stream, x, out);
}
__global__ void negate_kernel(const unsigned int* x, unsigned int* out) {
  out[threadIdx.x] = -x[threadIdx.x];
}
void negate(const unsigned int* x, unsigned int* out, int n, cudaStream_t stream) {
  LAUNCH(negate_kernel, 1, n, 0, stream, x, out);
}
"""
MATRIX = "const float* x, float* out, int rows, int columns, cudaStream_t stream"
FUNCTIONS = {
    **dict.fromkeys(("right", "race", "count", "unwritten", "outside", "accumulate"), MATRIX),
    **dict.fromkeys(("last_block", "shared_count"), MATRIX),
    "negate": "const unsigned int* x, unsigned int* out, int n, cudaStream_t stream",
    "wrong_bias": "const float* x, const float* bias, float* y, int rows, int columns, "
    "cudaStream_t stream",
    "barrier": "float* x, cudaStream_t stream",
    "overflow": "int* x, cudaStream_t stream",
}


@pytest.fixture(scope="module")
def module() -> InlineModule:
    return load_inline(SOURCE, FUNCTIONS, name="kernels")


def line(code: str) -> str:
    """Where the code stands, as reports write it."""
    numbers = [n for n, text in enumerate(SOURCE.splitlines(), 1) if code in text]
    assert len(numbers) == 1
    return f"kernels.cu:{numbers[0]}"


X = torch.arange(60.0).view(3, 20)


def sums(x: Tensor, *_: Any) -> Tensor:
    return x.sum(1)


def matrix(rows: int = 3) -> tuple[Any, ...]:
    return X, torch.zeros(rows), 3, 20


@needs_host
def test_a_race(module: InlineModule) -> None:
    found = debug_cuda(module.race, matrix(), oracle=sums, tools=(*FAST, "thread"))
    text = str(found)
    assert not found
    steps = {step.tool: step for _, step in found.steps}
    assert steps["values"].wrong
    assert "out[0] stored by block (0, 0, 0) thread (0, 0, 0)" in text
    assert "overwrites what another thread read, nothing orders them: part[1]" in text
    if not steps["thread"].missing:
        assert "thread: data race" in text
        assert text.count("  earlier ") == 1  # the pair of lines is told once, not by each tool
    assert line("part[i] += part[i + half]") in text


@needs_host
def test_a_race_with_an_atomic(module: InlineModule) -> None:
    text = str(debug_cuda(module.count, matrix(), tools=["initcheck"]))
    assert "nothing orders them: n[0]" in text
    assert line("atomicAdd(&n[0], 1);") in text
    assert "read_modify_write" not in text  # the author called atomicAdd


@needs_host
def test_a_variable_of_the_device_may_order_blocks(module: InlineModule) -> None:
    right = torch.tensor([X.sum(), *X.sum(1)[1:]])
    found = debug_cuda(module.last_block, matrix(), oracle=lambda *_: right, tools=FAST)
    assert found, found


@needs_host
def test_atomics_in_shared_memory_order_no_blocks(module: InlineModule) -> None:
    text = str(debug_cuda(module.shared_count, matrix(1), tools=["initcheck"]))
    assert "two threads write different values, nothing orders them: out[0]" in text
    assert line("out[0] = n[0] + blockIdx.x;") in text


@needs_host
@pytest.mark.parametrize("right", [True, False])
def test_results_of_unsigned_integers(module: InlineModule, right: bool) -> None:
    x = torch.arange(4, dtype=torch.int32)
    expected = (-x if right else x).view(torch.uint32)
    args = (x.view(torch.uint32), torch.zeros(4, dtype=torch.int32).view(torch.uint32), 4)
    found = debug_cuda(module.negate, args, oracle=lambda *_: expected, tools=["values"])
    assert bool(found) == right, found
    assert right or "worst out[" in str(found)


@needs_host
def test_a_kernel_that_is_right(module: InlineModule) -> None:
    found = debug_cuda(module.right, matrix(), oracle=sums, tools=FAST)
    assert found, found
    assert str(found).startswith("right, cuda")
    assert "nothing wrong found" in str(found)
    assert debug_cuda(module.right, matrix(), uninitialized=["out"], tools=FAST)


@needs_host
def test_shared_memory_that_nobody_wrote(module: InlineModule) -> None:
    text = str(debug_cuda(module.unwritten, matrix(), oracle=sums, tools=FAST))
    assert "3 of 3 elements wrong: all of them; all NaN" in text
    assert "initcheck: shared memory read before it was written: row[20]" in text
    assert line("sum += row[k]") in text


@needs_host
def test_who_stored_the_wrong_element(module: InlineModule) -> None:
    bias = torch.arange(20.0)
    found = debug_cuda(
        module.wrong_bias,
        (X, bias, torch.empty(3, 20), 3, 20),
        oracle=lambda x, bias, *_: {"y": x + bias},
        tools=FAST,
    )
    text = str(found)
    assert "worst y[0, 1]: got 1.0" in text
    assert "y[0, 1] stored by block (0, 0, 0) thread (1, 0, 0)" in text
    assert line("+ bias[row]") in text
    assert "load  bias[0] " in text  # of the wrong element's thread: the fault
    assert found.to_json()


@needs_host
def test_outside_of_the_tensors(module: InlineModule) -> None:
    args = (X, torch.zeros(3, 20), 3, 20)
    text = str(debug_cuda(module.outside, args, oracle=lambda x, *_: x, tools=FAST))
    assert "initcheck: out-of-bounds read of 4 bytes: " in text
    assert "initcheck: out-of-bounds write of 4 bytes: " in text
    assert line("out[i] = x[i];") in text
    assert "by block (0, 0, 0) thread (60, 0, 0)" in text


@needs_host
def test_barriers_and_outputs_that_hold_nothing(module: InlineModule) -> None:
    text = str(debug_cuda(module.barrier, (torch.zeros(8),), tools=FAST))
    assert "deadlock, a barrier that not every thread reaches" in text
    assert "1 thread waits in __shfl_sync()" in text
    found = debug_cuda(module.accumulate, matrix(), uninitialized=["out"], tools=FAST)
    assert "output read before it was written: out[0]" in str(found)


@needs_host
def test_undefined_behaviour(module: InlineModule) -> None:
    x = torch.tensor([2**31 - 1], dtype=torch.int32)
    text = str(debug_cuda(module.overflow, (x,), tools=["undefined"]))
    assert "undefined: signed integer overflow" in text
    assert line("x[0] = x[0] + 1") in text
    assert x.item() == 2**31 - 1


def test_unfit_arguments(module: InlineModule, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match=r"one that cuda_reference\.load or load_inline made"):
        debug_cuda(torch.add, ())
    with pytest.raises(TypeError, match=r"right\(\) takes 4 arguments"):
        debug_cuda(module.right, (X,))
    with pytest.raises(TypeError, match=r"each parameter that is not const \(out\)"):
        debug_cuda(module.right, matrix(), oracle=lambda *_: {"x": X})
    with pytest.raises(ValueError, match=r"returned shape \[20\] for out"):
        debug_cuda(module.right, matrix(), oracle=lambda: X[0])
    with pytest.raises(ValueError, match="uninitialized names 'x', which is never written"):
        debug_cuda(module.right, matrix(), uninitialized=["x"])
    with pytest.raises(ValueError, match="a bound needs an oracle"):
        debug_cuda(module.right, matrix(), bound=lambda r, *_: r)
    with pytest.raises(ValueError, match="argument 'bound', for out"):
        debug_cuda(module.right, matrix(), oracle=sums, bound=lambda *_: -1)
    with pytest.raises(ValueError, match="no tool 'lint'; there are values, initcheck"):
        debug_cuda(module.right, matrix(), tools=["lint"])
    monkeypatch.setattr(public.side, "missing", lambda mode: dict.fromkeys(public.TOOLS[mode], "x"))
    with pytest.raises(RuntimeError, match="no tool can run here: x"):
        debug_cuda(module.right, matrix())


@pytest.mark.gpu_only
def test_on_the_gpu(module: InlineModule) -> None:
    """compute-sanitizer, too, where it is installed."""
    args = (X.cuda(), torch.zeros(3, device="cuda"), 3, 20)
    found = debug_cuda(module.right, args, oracle=sums)
    assert found, found
    assert "on the GPU: values ok" in str(found)
    found = debug_cuda(module.unwritten, args, oracle=sums)
    assert not found
