"""The CUDA execution model on the CPU: what kernels may rely on, and what breaking it reports."""

from __future__ import annotations

import ctypes
import math
import threading
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from host_kernels import line_of
from torch import Tensor

from cuda_reference import _build

pytestmark = pytest.mark.skipif(
    _build.unavailable("host") is not None, reason=str(_build.unavailable("host"))
)

INVALID_CONFIGURATION, LAUNCH_FAILURE = 9, 719


def pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


@pytest.fixture
def library(sources: Path) -> ctypes.CDLL:
    return _build.library("kernels", "host", csrc=sources)


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


def test_blocks_from_the_last(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block leaves its number, of which the last to run stays."""
    for order, last in (("forward", 23), ("reverse", 0)):
        monkeypatch.setenv("CROSSCHECK_BLOCK_ORDER", order)
        out = torch.full((1,), -1, dtype=torch.int32)
        assert library.run_last(pointer(out)) == 0
        assert out.item() == last


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
    assert out.tolist() == [0, *range(19)]


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


# ---- faults ----


def failure(library: ctypes.CDLL, code: int, expected: int = LAUNCH_FAILURE) -> str:
    assert code == expected
    return str(library.crosscheck_error_string(code).decode())


def test_a_barrier_waits_for_nobody_who_has_returned(library: ctypes.CDLL, order: str) -> None:
    assert library.run_faulty(1) == 0


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
    assert "deadlock, a barrier that not every thread reaches: " in message
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
                message = failure(library, library.run_faulty(5))
                good = "0 have returned" in message
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
