"""Inline kernels that write beside their tensors or crash: an error that says where, not the end of
the process. All of these would end this very process, now or later."""

from __future__ import annotations

import mmap

import pytest
import torch
from cached import needs_host_target

from cuda_reference import BuildError, _compilers, _guards, load_inline
from cuda_reference._guards import Given
from cuda_reference._inline import InlineModule

pytestmark = [needs_host_target, pytest.mark.usefixtures("own_library_cache", "forked_tools")]

SOURCE = """#include <cassert>
__global__ void rows_kernel(const float* x, float* out, int rows, int columns, long skip) {
  int row = blockIdx.x, column = threadIdx.x;
  if (row > rows || column >= columns) return;
  out[row * columns + column + skip] = x[row * columns + column];
}
void rows(const float* x, float* out, int blocks, int rows, int columns, long skip,
          cudaStream_t stream) {
  LAUNCH(rows_kernel, blocks, 32, 0, stream, x, out, rows, columns, skip);
}
__global__ void sneak_kernel(const float* x) { const_cast<float*>(x)[threadIdx.x + 1] = 1; }
void sneak(const float* x, cudaStream_t stream) { LAUNCH(sneak_kernel, 1, 2, 0, stream, x); }
__global__ void divide_kernel(int* x, int by) { if (threadIdx.x == 3) *x = *x / by; }
void divide(int* x, int by, cudaStream_t stream) { LAUNCH(divide_kernel, 1, 8, 0, stream, x, by); }
__global__ void asserts_kernel(int* x) { assert(*x == 1); }
int asserts(int* x, cudaStream_t stream) { LAUNCH(asserts_kernel, 1, 1, 0, stream, x); return 0; }
void on_the_host(float* x, long i, cudaStream_t stream) { x[i] = 1; }
__device__ int deeper(volatile int* x, int n) {
  volatile char room[4096];
  room[n % 4096] = *x;
  return n ? deeper(x, n - 1) + room[0] : 0;
}
__global__ void recursion_kernel(int* x) { *x = deeper(x, 100000); }
void recursion(int* x, cudaStream_t stream) { LAUNCH(recursion_kernel, 1, 1, 0, stream, x); }
__global__ void neighbour_kernel(const float* x, float* out) {
  SHARED(float, tile, [32]);
  int i = threadIdx.x;
  tile[i] = x[i];
  out[i] = tile[(i + 1) % 32];
}
void neighbour(const float* x, float* out, cudaStream_t stream) {
  LAUNCH(neighbour_kernel, 1, 32, 0, stream, x, out);
}
void addresses(const float* x, const float* y, float* z, long long* out, cudaStream_t stream) {
  out[0] = reinterpret_cast<long long>(x), out[1] = y - x, out[2] = z - x;
}
"""
FUNCTIONS = {
    "rows": "const float* x, float* out, int blocks, int rows, int columns, long skip, "
    "cudaStream_t stream",
    "sneak": "const float* x, cudaStream_t stream",
    "divide": "int* x, int by, cudaStream_t stream",
    "asserts": "int* x, cudaStream_t stream",
    "on_the_host": "float* x, long i, cudaStream_t stream",
    "recursion": "int* x, cudaStream_t stream",
    "neighbour": "const float* x, float* out, cudaStream_t stream",
    "addresses": "const float* x, const float* y, float* z, long long* out, cudaStream_t stream",
}


@pytest.fixture(scope="module")
def module() -> InlineModule:
    return load_inline(SOURCE, FUNCTIONS, name="faulty")


X = torch.arange(15.0).view(3, 5)


def works(module: InlineModule) -> None:
    out = torch.zeros(3, 5)
    module.rows(X, out, 3, 3, 5, 0)
    assert torch.equal(out, X)


def test_a_row_too_many(module: InlineModule) -> None:
    out = torch.zeros(3, 5)
    with pytest.raises(RuntimeError) as error:
        module.rows(X, out, 4, 3, 5, 0)
    first, *others = str(error.value).splitlines()
    assert first.startswith(
        "rows() on x [3, 5], out [3, 5]: launch failed: rows_kernel, block (3, 0, 0) of 32 "
        "threads: thread (1, 0, 0) crashed: SIGSEGV at address 0x"
    )
    assert others == [
        "out-of-bounds read of 4 bytes: x[3, 0], outside of x's shape (3, 5) (5 times)",
        "  read by kernel rows_kernel, block (3, 0, 0), thread (0, 0, 0)",
        "    faulty.cu:5: out[row * columns + column + skip] = x[row * columns + column];",
        "out-of-bounds write of 4 bytes: out[3, 0], outside of out's shape (3, 5) (5 times)",
        "  write by kernel rows_kernel, block (3, 0, 0), thread (0, 0, 0)",
        "    faulty.cu:5: out[row * columns + column + skip] = x[row * columns + column];",
    ]
    assert not out.any()  # what a failed call wrote is not copied back
    works(module)


def test_wild_writes(module: InlineModule) -> None:
    with pytest.raises(RuntimeError) as error:
        module.rows(X, torch.zeros(3, 5), 3, 3, 5, -3)
    assert str(error.value) == (
        "rows() on x [3, 5], out [3, 5]: wrote out[-1, 2], outside of out's shape (3, 5)\n"
        "out-of-bounds write of 4 bytes: out[-1, 2], outside of out's shape (3, 5) (3 times)\n"
        "  write by kernel rows_kernel, block (0, 0, 0), thread (0, 0, 0)\n"
        "    faulty.cu:5: out[row * columns + column + skip] = x[row * columns + column];"
    )
    works(module)
    with pytest.raises(RuntimeError) as error:
        module.rows(X, torch.zeros(3, 5), 3, 3, 5, 100_000)
    assert "thread (0, 0, 0) crashed: SIGSEGV" in str(error.value)
    assert "write of 4 bytes: out[20000, 0], outside of out's shape (3, 5)\n" in str(error.value)
    works(module)


@pytest.fixture
def not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is repeated under the watching runtime, which takes seconds."""
    monkeypatch.setattr("cuda_reference._replay.Replay.outside", lambda self: ["again"])
    monkeypatch.setattr("cuda_reference._replay.Replay.__init__", lambda *_: None)


@pytest.mark.usefixtures("not_repeated")
def test_far_away(module: InlineModule) -> None:
    with pytest.raises(RuntimeError, match=r"thread \(0, 0, 0\) crashed: SIG"):
        module.rows(X, torch.zeros(3, 5), 3, 3, 5, 1 << 40)
    works(module)


def test_writes_to_what_is_declared_const(module: InlineModule) -> None:
    says = r"unexpected write of 4 bytes: x\[0, 1\], which is declared const\n.*sneak_kernel"
    with pytest.raises(RuntimeError, match=says):
        module.sneak(X)


@pytest.mark.usefixtures("not_repeated")
def test_other_crashes(module: InlineModule) -> None:
    x = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(RuntimeError, match=r"thread \(3, 0, 0\) crashed: SIGFPE.*division by zero"):
        module.divide(x, 0)
    with pytest.raises(RuntimeError, match=r"asserts_kernel.* crashed: SIGABRT.*assert"):
        module.asserts(x)  # though this launcher says that all went well
    with pytest.raises(RuntimeError, match=r"recursion_kernel.* crashed: SIGSEGV"):
        module.recursion(x)
    with pytest.raises(RuntimeError, match="the launcher crashed outside of its kernels: SIG"):
        module.on_the_host(torch.zeros(1), 1 << 40)
    works(module)


def test_addresses_relate_as_the_tensors_do(module: InlineModule) -> None:
    memory = torch.zeros(100)
    out = torch.zeros(3, dtype=torch.int64)
    x, y, z = memory[1:5], memory[20:90], memory[3:9]
    module.addresses(x, y, z, out)
    assert out[0] % 64 == x.data_ptr() % 64
    assert out[1:].tolist() == [19, 2]


@pytest.mark.usefixtures("not_repeated")
def test_views_of_one_memory(module: InlineModule) -> None:
    memory = torch.arange(30.0)
    module.rows(memory[:15], memory[15:], 3, 3, 5, 0)
    assert memory.tolist() == [*range(15), *range(15)]
    memory = torch.arange(30.0)
    with pytest.raises(RuntimeError, match="wrote"):  # between the two
        module.rows(memory[:10], memory[20:30], 3, 2, 5, -4)
    assert torch.equal(memory, torch.arange(30.0))


def test_gigabytes_between_views_cost_nothing(module: InlineModule) -> None:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
    memory = torch.frombuffer(mmap.mmap(-1, 64 << 30, flags=flags), dtype=torch.float32)
    x, out = memory[:15], memory[-15:]
    x.copy_(X.view(-1))
    module.rows(x, out, 3, 3, 5, 0)
    assert torch.equal(out.view(3, 5), X)


def test_overlapping_memory_of_several_storages_is_one_group() -> None:
    memory = torch.arange(16.0)
    other = torch.from_numpy(memory.numpy()[4:12])
    given = [Given("x", memory[:8], False), Given("y", other, True), Given("e", memory[:0], True)]
    groups = _guards.grouped(given)
    assert sorted(sorted(group.members) for group in groups) == [[0, 1], [2]]
    guards = _guards.Guards(given)
    assert guards.addresses[1] - guards.addresses[0] == 16
    assert guards.damaged() is None


# ---- sanitize ----


def test_watched_calls(module: InlineModule) -> None:
    watched = load_inline(SOURCE, FUNCTIONS, name="faulty", sanitize="watch")
    out = torch.zeros(3, 5)
    watched.rows(X, out, 3, 3, 5, 0)
    assert torch.equal(out, X)
    says = r"neighbour\(\) on x \[32\].*: shared memory is read before it was written: tile\[1\]"
    with pytest.raises(RuntimeError, match=says):
        watched.neighbour(torch.ones(32), torch.zeros(32))


def test_calls_under_a_sanitizer() -> None:
    try:
        _compilers.sanitizer_environment("address")
    except BuildError as error:
        pytest.skip(str(error))
    sanitized = load_inline(SOURCE, FUNCTIONS, name="faulty", sanitize="address")
    with pytest.raises(RuntimeError) as error:
        sanitized.rows(X, torch.zeros(3, 5), 4, 3, 5, 0)
    text = str(error.value)
    assert "AddressSanitizer: heap-buffer-overflow" in text
    assert ": x[3, 0], outside of x's shape (3, 5)" in text
    assert "faulty.cu:5 in rows_kernel" in text
    assert "in kernel rows_kernel, block (3, 0, 0) thread (0, 0, 0)" in text


def test_bad_sanitizer() -> None:
    with pytest.raises(ValueError, match="must be one of address, thread, undefined, watch, got"):
        load_inline(SOURCE, FUNCTIONS, sanitize="memory")
