"""The CUDA execution model on the CPU: what kernels may rely on, and what breaking it reports."""

from __future__ import annotations

import ctypes
import math
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cuda_reference import _build, _compilers

pytestmark = pytest.mark.skipif(
    _build.unavailable("host") is not None, reason=str(_build.unavailable("host"))
)

INVALID_CONFIGURATION, LAUNCH_FAILURE = 9, 719

KERNELS = r"""
#include "crosscheck.cuh"

__global__ void indices(int* out) {
  const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const int size = blockDim.x * blockDim.y * blockDim.z;
  out[block * size + thread] = block * 10000 + threadIdx.z * 100 + threadIdx.y * 10 + threadIdx.x;
}
extern "C" int run_indices(int* out) {
  LAUNCH(indices, dim3(2, 3, 2), dim3(5, 3, 2), 0, nullptr, out);
  return cudaGetLastError();
}

// Reads shared memory before it is written; a later block is the first to use the branch's array.
template <class T>
__global__ void unset(float* out) {
  SHARED(T, tile, [2][32]);
  DYNAMIC_SHARED(float, dynamic);
  out[blockIdx.x * 64 + threadIdx.x] = float(tile[1][threadIdx.x]);
  out[blockIdx.x * 64 + 32 + threadIdx.x] = dynamic[threadIdx.x];
  if (blockIdx.x >= 1) {
    SHARED(T, late, [32]);
    out[blockIdx.x * 64 + threadIdx.x] += float(late[threadIdx.x]);
    late[threadIdx.x] = T(2.0f);
  }
  tile[1][threadIdx.x] = T(1.0f);
  dynamic[threadIdx.x] = 1.0f;
}
extern "C" int run_unset(float* out, int type) {
  if (type == 0) LAUNCH(unset<float>, 3, 32, 128, nullptr, out);
  else LAUNCH((unset<__half>), 3, 32, 128, nullptr, out);
  return cudaGetLastError();
}

// out[i] = in[i - 1], through shared memory.
__global__ void shift(const float* in, float* out, bool barrier) {
  SHARED(float, tile, [256]);
  const unsigned i = threadIdx.x;
  tile[i] = in[i];
  if (barrier) __syncthreads();
  out[i] = tile[i == 0 ? blockDim.x - 1 : i - 1];
}
extern "C" int run_shift(const float* in, float* out, int n, bool barrier) {
  LAUNCH(shift, 1, n, 0, nullptr, in, out, barrier);
  return cudaGetLastError();
}

__global__ void gemm(const float* a, const float* b, float* c, int n) {
  SHARED(float, as, [16][17]);
  SHARED(float, bs, [16][17]);
  const int x = threadIdx.x, y = threadIdx.y;
  const int row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
  float sum = 0.0f;
  for (int k = 0; k < n; k += 16) {
    as[y][x] = a[row * n + k + x];
    bs[y][x] = b[(k + y) * n + column];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 16; ++j) sum = fmaf(as[y][j], bs[j][x], sum);
    __syncthreads();
  }
  c[row * n + column] = sum;
}
extern "C" int run_gemm(const float* a, const float* b, float* c, int n) {
  LAUNCH(gemm, dim3(n / 16, n / 16), dim3(16, 16), 0, nullptr, a, b, c, n);
  return cudaGetLastError();
}

__global__ void shuffles(int* out) {
  const int i = threadIdx.x, n = blockDim.x;
  const unsigned all = 0xFFFFFFFFu;
  out[i] = __shfl_sync(all, i, 5);
  out[n + i] = __shfl_sync(all, i, 5, 8);
  out[2 * n + i] = __shfl_xor_sync(all, i, 3);
  out[3 * n + i] = __shfl_down_sync(all, i, 4, 16);
  out[4 * n + i] = __shfl_up_sync(all, i, 1);
  // Half-warps that have gone different ways, then the whole warp again.
  if (i % 32 < 16) out[5 * n + i] = __shfl_sync(0x0000FFFFu, i, 1);
  else out[5 * n + i] = __shfl_sync(0xFFFF0000u, __shfl_sync(0xFFFF0000u, i, 17) + 100, 18);
  out[6 * n + i] = __shfl_xor_sync(all, i, 31);
}
extern "C" int run_shuffles(int* out, int n) {
  LAUNCH(shuffles, 1, n, 0, nullptr, out);
  return cudaGetLastError();
}

// The last 12 lanes return before the others meet; those then read one of them.
__global__ void early(int* out) {
  if (threadIdx.x >= 20) return;
  __syncwarp();
  out[threadIdx.x] = __shfl_down_sync(0xFFFFFFFFu, int(threadIdx.x), 1);
}
extern "C" int run_early(int* out) {
  LAUNCH(early, 1, 32, 0, nullptr, out);
  return cudaGetLastError();
}

__global__ void votes(int* out) {
  const int i = threadIdx.x;
  const unsigned all = 0xFFFFFFFFu;
  out[i] = int(__ballot_sync(all, i % 3 == 0));
  out[32 + i] = __any_sync(all, i == 7) + 10 * __any_sync(all, i > 40);
  out[64 + i] = __all_sync(all, i < 32) + 10 * __all_sync(all, i != 7);
  out[96 + i] = __reduce_add_sync(all, i) + 1000 * __reduce_max_sync(all, i);
  out[128 + i] = __syncthreads_count(i < 5) + 100 * __syncthreads_or(i == 3) +
                 1000 * __syncthreads_and(i == 3) + __syncthreads_count(i < 2) * 10000;
}
extern "C" int run_votes(int* out) {
  LAUNCH(votes, 1, 32, 0, nullptr, out);
  return cudaGetLastError();
}

__global__ void atomics(int* ints, float* floats, __half* halves) {
  const int i = threadIdx.x;
  atomicAdd(&ints[0], 1);
  atomicMax(&ints[1], i);
  atomicMin(&ints[2], -i);
  atomicOr(&ints[3], 1 << (i % 8));
  atomicExch(&ints[4], 77);
  int seen = atomicAdd(&ints[5], 0), expected;
  do {
    expected = seen;
    seen = atomicCAS(&ints[5], expected, expected + 2);
  } while (seen != expected);
  atomicSub(reinterpret_cast<unsigned*>(&ints[6]), 1);
  atomicAdd(floats, 0.5f);
  atomicAdd(halves, __float2half(1.0f));
}
extern "C" int run_atomics(int* ints, float* floats, __half* halves) {
  LAUNCH(atomics, 4, 64, 0, nullptr, ints, floats, halves);
  return cudaGetLastError();
}

__global__ void vectors(const float4* in, float4* out, const __half2* h, __half2* hout) {
  const float4 v = __ldg(&in[threadIdx.x]);
  out[threadIdx.x] = make_float4(v.w, fmaxf(v.x, v.y), min(v.y, v.z), rsqrtf(v.w));
  hout[threadIdx.x] = __hadd2(h[threadIdx.x], __float2half2_rn(1.0f));
}
extern "C" int run_vectors(const float4* in, float4* out, const __half2* h, __half2* hout) {
  LAUNCH(vectors, 1, 8, 0, nullptr, in, out, h, hout);
  return cudaGetLastError();
}

__global__ void fused(const __half* h, __half* hout, const __nv_bfloat16* b, __nv_bfloat16* bout,
                      int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  hout[i] = __hfma(h[3 * i], h[3 * i + 1], h[3 * i + 2]);
  bout[i] = __hfma(b[3 * i], b[3 * i + 1], b[3 * i + 2]);
}
extern "C" int run_fused(const __half* h, __half* hout, const __nv_bfloat16* b,
                         __nv_bfloat16* bout, int n) {
  LAUNCH(fused, (n + 127) / 128, 128, 0, nullptr, h, hout, b, bout, n);
  return cudaGetLastError();
}

// What the sanitizers look for, on demand.
__global__ void mirror(const float* in, float* out, bool barrier, int shared_over,
                       int global_over) {
  SHARED(float, tile, [64]);
  const int i = threadIdx.x;
  tile[i + shared_over] = in[i];  // WRITE
  if (barrier) __syncthreads();
  out[i + global_over] = tile[63 - i];  // READ
}
extern "C" int run_mirror(const float* in, float* out, bool barrier, int shared_over,
                          int global_over) {
  LAUNCH(mirror, 4, 64, 0, nullptr, in, out, barrier, shared_over, global_over);
  return cudaGetLastError();
}

// What a kernel must not do.
__global__ void faulty(int fault) {
  const int i = threadIdx.x;
  if (fault == 1) {
    if (i >= 40) return;
    __syncthreads();  // AFTER_RETURN
  }
  if (fault == 2) {
    if (i < 16) __syncthreads();  // DIVERGENT_A
    else __syncthreads();         // DIVERGENT_B
  }
  if (fault == 3 && i != 9) __syncwarp();  // fine: lane 9 returns
  if (fault == 4 && blockIdx.x == 2 && i == 3) __syncwarp(1);
  if (fault == 5) {
    if (i == 0) __shfl_sync(0xFFFFFFFFu, i, 0);  // LONELY
    __syncthreads();                             // REST
  }
  if (fault == 6) {
    SHARED(float, large, [13000]);
    large[i] = 0.0f;
  }
}

__global__ void aligned(const float4* in, float4* out) {
  out[threadIdx.x] = in[threadIdx.x];  // ALIGNED
}
extern "C" int run_aligned(const float4* in, float4* out) {
  LAUNCH(aligned, 1, 2, 0, nullptr, in, out);
  return cudaGetLastError();
}
extern "C" int run_faulty(int fault) {
  LAUNCH(faulty, 3, 64, 0, nullptr, fault);
  return cudaGetLastError();
}
extern "C" int run_shape(int gx, int gy, int bx, int by, int bz, int smem) {
  LAUNCH(faulty, dim3(gx, gy), dim3(bx, by, bz), smem, nullptr, 0);
  return cudaGetLastError();
}
"""


def line_of(mark: str) -> int:
    return next(n for n, text in enumerate(KERNELS.splitlines(), 1) if f"// {mark}" in text)


def pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


@pytest.fixture(autouse=True, scope="module")
def csrc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The sources above, with a cache of these tests' own."""
    folder = tmp_path_factory.mktemp("csrc")
    (folder / "kernels.cu").write_text(KERNELS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_REFERENCE_CACHE", str(tmp_path_factory.mktemp("cache")))
        for name in ("CROSSCHECK_SANITIZE", "CROSSCHECK_THREAD_ORDER"):
            patch.delenv(name, raising=False)
        yield folder


@pytest.fixture(scope="module")
def library(csrc: Path) -> ctypes.CDLL:
    return _build.library("kernels", "host", csrc=csrc)


@pytest.fixture(params=["forward", "reverse"])
def order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("CROSSCHECK_THREAD_ORDER", request.param)
    return str(request.param)


def test_indices(library: ctypes.CDLL, order: str) -> None:
    out = torch.full((2, 3, 2, 2, 3, 5), -1, dtype=torch.int32)
    assert library.run_indices(pointer(out)) == 0
    z, y, x = torch.meshgrid(*(torch.arange(n) for n in (2, 3, 5)), indexing="ij")
    expected = torch.arange(12).view(2, 3, 2, 1, 1, 1) * 10000 + z * 100 + y * 10 + x
    assert torch.equal(out, expected.int())


@pytest.mark.parametrize("half", [0, 1])
def test_shared_memory_is_nan_in_every_block(library: ctypes.CDLL, half: int) -> None:
    for _ in range(2):
        out = torch.zeros(3, 64)
        assert library.run_unset(pointer(out), half) == 0
        assert out.isnan().all()


def test_barrier(library: ctypes.CDLL, order: str) -> None:
    x, out = torch.randn(256), torch.empty(256)
    assert library.run_shift(pointer(x), pointer(out), 256, True) == 0
    assert torch.equal(out, x.roll(1))


def test_reverse_order_reveals_a_missing_barrier(library: ctypes.CDLL, order: str) -> None:
    x, out = torch.randn(256), torch.empty(256)
    assert library.run_shift(pointer(x), pointer(out), 256, False) == 0
    wrong = (out != x.roll(1)).nonzero().flatten().tolist()
    assert wrong == ([0] if order == "forward" else list(range(1, 256)))
    assert out[wrong].isnan().all()


def test_gemm(library: ctypes.CDLL, order: str) -> None:
    a, b = torch.randint(-9, 9, (2, 64, 64)).float()
    out = torch.empty(64, 64)
    assert library.run_gemm(pointer(a), pointer(b), pointer(out), 64) == 0
    assert torch.equal(out, a @ b)


def test_shuffles(library: ctypes.CDLL, order: str) -> None:
    i = torch.arange(64)
    lane, warp = i % 32, i // 32 * 32
    out = torch.empty(7, 64, dtype=torch.int32)
    assert library.run_shuffles(pointer(out), 64) == 0
    expected = [
        warp + 5,
        i // 8 * 8 + 5,
        i ^ 3,
        torch.where(lane % 16 < 12, i + 4, i),
        torch.where(lane > 0, i - 1, i),
        torch.where(lane < 16, warp + 1, warp + 117),
        i ^ 31,
    ]
    assert torch.equal(out, torch.stack(expected).int())


def test_lanes_that_returned_do_not_hold_up_the_warp(library: ctypes.CDLL, order: str) -> None:
    out = torch.zeros(20, dtype=torch.int32)
    assert library.run_early(pointer(out)) == 0
    assert out.tolist() == [*range(1, 20), -1]  # the last reads a lane that is gone


def test_votes_and_counts(library: ctypes.CDLL, order: str) -> None:
    out = torch.zeros(5, 32, dtype=torch.int32)
    assert library.run_votes(pointer(out)) == 0
    ballot = sum(1 << i for i in range(0, 32, 3))
    expected = [ballot, 1, 1, sum(range(32)) + 31000, 5 + 100 + 20000]
    assert (out == torch.tensor(expected).int()[:, None]).all(), out[:, 0]


def test_atomics(library: ctypes.CDLL, order: str) -> None:
    ints = torch.zeros(7, dtype=torch.int32)
    single, half = torch.zeros(1), torch.zeros(1, dtype=torch.float16)
    assert library.run_atomics(pointer(ints), pointer(single), pointer(half)) == 0
    assert ints.tolist() == [256, 63, -63, 255, 77, 512, -256]
    assert (single.item(), half.item()) == (128.0, 256.0)


def test_vector_types_and_mathematics(library: ctypes.CDLL) -> None:
    x = torch.rand(8, 4) + 0.5
    x[0, 1] = math.nan
    h = torch.randn(8, 2).half()
    out, hout = torch.empty_like(x), torch.empty_like(h)
    assert library.run_vectors(pointer(x), pointer(out), pointer(h), pointer(hout)) == 0
    fewer = torch.fmin(x[:, 1], x[:, 2])  # of a number and a NaN the number, as in CUDA
    expected = [x[:, 3], torch.fmax(x[:, 0], x[:, 1]), fewer, 1 / x[:, 3].sqrt()]
    torch.testing.assert_close(out, torch.stack(expected, 1), rtol=2e-7, atol=0)
    assert torch.equal(hout, h + 1)


def test_half_fma_rounds_once(library: ctypes.CDLL) -> None:
    n = 20000
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-32768, 32768, (3 * n,), generator=generator).short()
    # Near ties, where rounding to float32 first goes wrong.
    ties = torch.tensor([1 + 2**-10, 1 + 2**-10, 2**-13], dtype=torch.float16).view(torch.int16)
    bits[:3] = ties
    operands = [bits.view(dtype) for dtype in (torch.float16, torch.bfloat16)]
    outs = [torch.empty(n, dtype=x.dtype) for x in operands]
    arguments = [pointer(t) for pair in zip(operands, outs, strict=True) for t in pair]
    assert library.run_fused(*arguments, n) == 0
    for x, out in zip(operands, outs, strict=True):
        step = torch.finfo(x.dtype)
        for (a, b, c), result in zip(x.view(-1, 3).tolist(), out, strict=True):
            if not all(map(math.isfinite, (a, b, c, result.item()))):
                continue
            exact = Fraction(a) * Fraction(b) + Fraction(c)
            error = abs(Fraction(result.item()) - exact)
            for direction in (math.inf, -math.inf):
                neighbour = torch.nextafter(result, torch.tensor(direction, dtype=x.dtype)).item()
                if math.isfinite(neighbour):
                    assert error <= abs(Fraction(neighbour) - exact), (a, b, c, step.dtype)


# ---- Faults ----------------------------------------------------------------------------------


def failure(library: ctypes.CDLL, code: int, expected: int = LAUNCH_FAILURE) -> str:
    assert code == expected
    return str(library.crosscheck_error_string(code).decode())


def test_barrier_after_a_return_is_an_error(library: ctypes.CDLL, order: str) -> None:
    message = failure(library, library.run_faulty(1))
    line = line_of("AFTER_RETURN")
    assert message == (
        "faulty, block (0, 0, 0) of 64 threads: deadlock, a barrier that not every thread "
        f"reaches: 40 threads wait in __syncthreads() at line {line}, 24 have returned"
    )
    test_barrier(library, order)  # the next launch works


def test_barriers_on_different_lines_are_an_error(library: ctypes.CDLL, order: str) -> None:
    message = failure(library, library.run_faulty(2))
    first, second = line_of("DIVERGENT_A"), line_of("DIVERGENT_B")
    assert "divergent __syncthreads()" in message
    here, there = (16, 47) if order == "forward" else (15, 48)
    assert f"{here} threads wait in __syncthreads() at line {first}, " in message
    assert f"{there} threads wait in __syncthreads() at line {second}, " in message
    test_barrier(library, order)


def test_warp_operations_gone_wrong(library: ctypes.CDLL) -> None:
    assert library.run_faulty(3) == 0
    message = failure(library, library.run_faulty(4))
    assert message.startswith("faulty, block (2, 0, 0) of 64 threads: thread (3, 0, 0) calls")
    assert "mask 0x00000001, which leaves out its lane 3" in message
    message = failure(library, library.run_faulty(5))
    assert f"1 thread waits in __shfl_sync() at line {line_of('LONELY')}" in message
    assert f"63 threads wait in __syncthreads() at line {line_of('REST')}" in message
    assert "0 have returned" in message


@pytest.mark.parametrize("moved", ["in", "out"])
def test_a_misaligned_access_ends_the_launch(library: ctypes.CDLL, moved: str) -> None:
    x, out = torch.arange(12.0), torch.zeros(12)
    assert library.run_aligned(pointer(x), pointer(out)) == 0
    assert torch.equal(out[:8], x[:8])
    x, out = (x[1:], out) if moved == "in" else (x, out.zero_()[1:])
    message = failure(library, library.run_aligned(pointer(x), pointer(out)))
    assert "thread (0, 0, 0) misaligned address: reads or writes '" in message
    assert "float4' at 0x" in message
    assert f"no multiple of 16 bytes, in kernels.cu:{line_of('ALIGNED')}" in message
    assert library.run_aligned(pointer(torch.zeros(8)), pointer(torch.zeros(8))) == 0


def test_too_much_static_shared_memory(library: ctypes.CDLL) -> None:
    message = failure(library, library.run_faulty(6))
    assert "'large': 52000 bytes of static shared memory (at most 49152)" in message


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((1, 1, 0, 1, 1, 0), "at least 1 thread"),
        ((1, 1, 1025, 1, 1, 0), "at most 1024 threads"),
        ((1, 1, 64, 32, 1, 0), "at most 1024 threads"),
        ((1, 1, 65536, 65536, 1, 0), "at most 1024 threads"),
        ((1, 1, 1, 1, 65, 0), "at most 64 threads along z"),
        ((0, 1, 1, 1, 1, 0), "at least 1 block"),
        ((1, 65536, 1, 1, 1, 0), "65535"),
        ((1, 1, 1, 1, 1, 227 * 1024 + 1), "227 KiB"),
    ],
)
def test_impossible_launch(library: ctypes.CDLL, shape: tuple[int, ...], reason: str) -> None:
    message = failure(library, library.run_shape(*shape), INVALID_CONFIGURATION)
    assert message.startswith("faulty, grid (")
    assert reason in message


def test_possible_launch(library: ctypes.CDLL) -> None:
    assert library.run_shape(2, 1, 4, 4, 64, 227 * 1024) == 0
    assert library.crosscheck_error_string(0) == b"no error"


def test_threads_of_the_host_keep_their_errors_apart(library: ctypes.CDLL) -> None:
    problems: list[str] = []

    def work(fault: bool) -> None:
        x, out = torch.randn(256), torch.empty(256)
        for _ in range(20):
            if fault:
                message = failure(library, library.run_faulty(1))
                good = "24 have returned" in message
            else:
                code = library.run_shift(pointer(x), pointer(out), 256, True)
                good = code == 0 and torch.equal(out, x.roll(1))
            if not good:
                problems.append(f"{fault=}")

    threads = [threading.Thread(target=work, args=(i % 2 == 0,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


# ---- Sanitizers ------------------------------------------------------------------------------

MIRROR = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
x, out = (ctypes.c_float * 256)(), (ctypes.c_float * 256)()
barrier, shared_over, global_over = map(int, sys.argv[2:])
sys.exit(library.run_mirror(x, out, ctypes.c_bool(barrier), shared_over, global_over))
"""

# Every kernel, and a correct one after each fault: the machinery must give a sanitizer no cause.
EVERYTHING = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
a, b, c, d = ((ctypes.c_char * 65536)() for _ in range(4))
codes = [
    library.run_indices(a), library.run_unset(a, 0), library.run_unset(a, 1),
    library.run_shift(a, b, 256, True), library.run_gemm(a, b, c, 32),
    library.run_shuffles(a, 64), library.run_early(a), library.run_votes(a),
    library.run_atomics(a, b, c), library.run_vectors(a, b, c, d),
    library.run_fused(a, b, c, d, 99),
]
assert not any(codes), codes
for fault in (1, 2, 4, 5, 6):
    assert library.run_faulty(fault)
    assert not library.run_shift(a, b, 256, True)
"""


def run_sanitized(
    kind: str, csrc: Path, monkeypatch: pytest.MonkeyPatch, program: str, *arguments: int
) -> subprocess.CompletedProcess[str]:
    try:
        variables = _compilers.sanitizer_environment(kind)
    except _compilers.BuildError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("CROSSCHECK_SANITIZE", kind)
    path = _build.build(["kernels"], "host", csrc=csrc)["kernels"]
    command = [sys.executable, "-c", program, str(path), *map(str, arguments)]
    environment = {**os.environ, **variables}
    ran = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    if "unexpected memory mapping" in ran.stderr:
        pytest.skip("ThreadSanitizer cannot live with this kernel's address randomisation")
    return ran


@pytest.mark.parametrize("kind", ["address", "thread", "undefined"])
def test_sanitizers_pass_correct_kernels(
    kind: str, csrc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CROSSCHECK_THREAD_ORDER", "reverse" if kind == "thread" else "forward")
    ran = run_sanitized(kind, csrc, monkeypatch, EVERYTHING)
    assert ran.returncode == 0, ran.stderr
    assert "ERROR" not in ran.stderr
    assert "data race" not in ran.stderr


def test_asan_finds_a_shared_array_overrun(csrc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run_sanitized("address", csrc, monkeypatch, MIRROR, 1, 1, 0)
    assert ran.returncode != 0
    assert "AddressSanitizer: use-after-poison" in ran.stderr
    assert f"kernels.cu:{line_of('WRITE')}" in ran.stderr
    assert re.search(r"in kernel mirror, block \(0, 0, 0\) thread \(63, 0, 0\)", ran.stderr)
    assert re.search(r"shared array tile at 0x\w+, 256 bytes of 4: 64\n", ran.stderr)


def test_asan_finds_a_global_overrun(csrc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run_sanitized("address", csrc, monkeypatch, MIRROR, 1, 0, 256 - 63)
    assert ran.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in ran.stderr
    assert f"kernels.cu:{line_of('READ')}" in ran.stderr


def test_tsan_names_both_lines_of_a_missing_barrier(
    csrc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = run_sanitized("thread", csrc, monkeypatch, MIRROR, 0, 0, 0)
    assert ran.returncode != 0
    assert "ThreadSanitizer: data race" in ran.stderr
    assert f"kernels.cu:{line_of('WRITE')}" in ran.stderr
    assert f"kernels.cu:{line_of('READ')}" in ran.stderr
    assert "mirror(" in ran.stderr
    assert "tile" in ran.stderr
    assert re.search(r"Thread T\d+ 'block \(0, 0, 0\) thread \(\d+, 0, 0\)'", ran.stderr)


# ---- The same sources under other compilers --------------------------------------------------


def test_the_same_source_compiles_with_nvcc(csrc: Path, tmp_path: Path) -> None:
    try:
        nvcc = _compilers._nvcc()
    except _compilers.BuildError as error:
        pytest.skip(str(error))
    source = csrc / "kernels.cu"
    output = tmp_path / "kernels.cubin"
    flags = ["-std=c++17", "-cubin", "-arch=sm_90", "-I", str(_compilers.CSRC)]
    # The faults are meant; a launch that -cubin drops makes its launcher look unused.
    subprocess.run([nvcc, *flags, "-o", output, source], check=True, capture_output=True)
    assert output.stat().st_size > 0


@pytest.mark.parametrize("stem", sorted(path.stem for path in _compilers.CSRC.glob("*.cu")))
def test_our_sources_compile_without_a_warning(stem: str, tmp_path: Path) -> None:
    toolchain = _compilers._toolchain("host")
    command = toolchain.command(_compilers.CSRC / f"{stem}.cu", tmp_path / "x", tmp_path / "x")
    strict = [*command, "-fsyntax-only", "-Werror"]
    ran = subprocess.run(strict, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("kind", ["address", "thread"])
def test_sanitized_processes_survive_torchs_exceptions(
    kind: str, csrc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import torch\ntry: torch.ones(2) @ torch.ones(3)\nexcept RuntimeError: print('ok')"
    ran = run_sanitized(kind, csrc, monkeypatch, program)
    assert ran.stdout == "ok\n", ran.stderr
    assert "ERROR" not in ran.stderr
