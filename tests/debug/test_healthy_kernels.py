"""No sanitizer complains of healthy kernels or of the catalogue, or changes a result of theirs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from sanitized import dropout
from triton.tools.tensor_descriptor import TensorDescriptor

import triton_kernels
from compare import debug, numerics
from compare.cases import CPU
from compare.copies import tensors
from compare.debugging.observers.values import Values
from compare.debugging.subjects import Kernel, Op
from compare.ops import SPECS
from triton_kernels import interpreter
from triton_kernels.interpreter import Observer, handles

# ---- healthy kernels ----


@triton.jit
def softmax(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    row, n = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * N + n, mask=n < N, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * N + n, e / tl.sum(e, axis=0), mask=n < N)


@triton.jit
def layer_norm(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    """Loads without other=, and puts the undefined lanes right before they count."""
    row, n = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * N + n, mask=n < N)
    mean = tl.sum(tl.where(n < N, x, 0.0)) / N
    centred = tl.where(n < N, x - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred) / N + 1e-5)
    tl.store(out_ptr + row * N + n, (x - mean) * rstd, mask=n < N)


@triton.jit
def attention(q_ptr, k_ptr, v_ptr, out_ptr, M, N, D: tl.constexpr, BLOCK: tl.constexpr):
    m, d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, D)
    q = tl.load(q_ptr + m[:, None] * D + d[None, :], mask=m[:, None] < M)
    best = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    acc = tl.zeros((BLOCK, D), tl.float32)
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        k = tl.load(k_ptr + n[:, None] * D + d[None, :], mask=n[:, None] < N)
        qk = tl.dot(q, k.T, input_precision="ieee")
        qk = tl.where((n[None, :] < N) & (n[None, :] <= m[:, None]), qk, -float("inf"))
        new = tl.maximum(best, tl.max(qk, 1))
        p = tl.exp(qk - new[:, None])
        scale = tl.exp(best - new)
        v = tl.load(v_ptr + n[:, None] * D + d[None, :], mask=n[:, None] < N, other=0.0)
        acc = tl.dot(p, v, acc * scale[:, None], input_precision="ieee")
        total = total * scale + tl.sum(p, 1)
        best = new
    out = acc / total[:, None]
    tl.store(out_ptr + m[:, None] * D + d[None, :], out, mask=m[:, None] < M)


@triton.jit
def split_k(a_ptr, b_ptr, out_ptr, M, N, K, BLOCK: tl.constexpr):
    """The rows wrap around at M, as in Triton's own tutorial; the sums are atomic."""
    i = tl.arange(0, BLOCK)
    m, n = (tl.program_id(0) * BLOCK + i), i
    k = tl.program_id(1) * BLOCK + i
    a = tl.load(a_ptr + (m % M)[:, None] * K + k[None, :], mask=k[None, :] < K, other=0.0)
    b = tl.load(b_ptr + k[:, None] * N + (n % N)[None, :], mask=k[:, None] < K, other=0.0)
    c = tl.dot(a, b, input_precision="ieee")
    mask = (m[:, None] < M) & (n[None, :] < N)
    tl.atomic_add(out_ptr + m[:, None] * N + n[None, :], c, mask=mask)


@triton.jit
def _welford(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    n = n_a + n_b
    delta = mean_b - mean_a
    ratio = tl.where(n == 0, 0.0, n_b / n)
    return mean_a + delta * ratio, m2_a + m2_b + delta * delta * n_a * ratio, n


@triton.jit
def _segments(flag_a, a, flag_b, b):
    return flag_a | flag_b, tl.where(flag_b, b, a + b)


@triton.jit
def odds_and_ends(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    inside = i < n
    x = tl.load(x_ptr + i, mask=inside)
    good = tl.where(inside, x, 1e30)
    tl.store(out_ptr + i, tl.sort(good), mask=inside)
    tl.store(out_ptr + BLOCK + tl.argmin(good, 0), tl.min(good))
    tl.store(out_ptr + BLOCK + i, tl.cumsum(x), mask=inside)  # lanes before n only
    tl.store(out_ptr + 2 * BLOCK + i, tl.flip(x), mask=i >= BLOCK - n)
    tl.store(out_ptr + 3 * BLOCK + i, tl.gather(x, i % n, 0))
    w = tl.where(inside, 1.0, 0.0)
    mean, m2, count = tl.reduce((tl.where(inside, x, 0.0), w * 0.0, w), 0, _welford)
    tl.store(out_ptr + 4 * BLOCK, mean + m2 / count)
    flags = (i == 0) | (i == n // 2)
    tl.store(out_ptr + 5 * BLOCK + i, tl.associative_scan((flags, x), 0, _segments)[1], mask=inside)
    small = tl.load(x_ptr + i, mask=inside & (x > -1.0))
    tl.store(out_ptr + 6 * BLOCK + i, small, mask=inside & (x > -1.0))
    tl.device_assert((x < 1e9) | (i >= n))
    bins = tl.where(inside, tl.abs(x).to(tl.int32), 3)
    tl.store(out_ptr + 7 * BLOCK + tl.arange(0, 4), tl.histogram(bins, 4).to(tl.float32))
    tl.store(out_ptr + 8 * BLOCK + i, 1 / (1 + tl.exp(-200.0 * x)), mask=inside)
    counts = tl.load(x_ptr + i, mask=inside).to(tl.int32) * inside.to(tl.int32)
    tl.store(out_ptr + 9 * BLOCK, tl.sum(counts).to(tl.float32))
    if tl.load(x_ptr) > 1e6:
        tl.store(out_ptr, 0.0)


@triton.jit
def described(x_ptr, out, M, N, BLOCK: tl.constexpr):
    """Out-of-bounds lanes of a descriptor are zeros, by contract."""
    x = tl.make_tensor_descriptor(x_ptr, [M, N], [N, 1], [BLOCK, BLOCK])
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for n in range(0, N, BLOCK):
        total += x.load([tl.program_id(0) * BLOCK, n])
    out.store([tl.program_id(0) * BLOCK, 0], tl.broadcast_to(tl.sum(total, 1)[:, None], (BLOCK, 4)))


@triton.jit
def block_pointers(x_ptr, out_ptr, M, N, BLOCK: tl.constexpr):
    at = (tl.program_id(0) * BLOCK, 0)
    x = tl.make_block_ptr(x_ptr, (M, N), (N, 1), at, (BLOCK, BLOCK), (1, 0))
    out = tl.make_block_ptr(out_ptr, (M, N), (N, 1), at, (BLOCK, BLOCK), (1, 0))
    for _ in range(0, N, BLOCK):
        tl.store(out, 2 * tl.load(x, boundary_check=(0, 1)), boundary_check=(0, 1))
        x, out = tl.advance(x, (0, BLOCK)), tl.advance(out, (0, BLOCK))


def healthy() -> dict[str, tuple[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]]]:
    """Kernels that have nothing wrong, with their launches; the output comes second to last."""
    torch.manual_seed(0)
    x, wide = torch.randn(7, 21), torch.randn(7, 24)
    q, k, v = torch.randn(3, 19, 16)
    out = torch.empty(7, 24)
    target = TensorDescriptor(torch.empty(7, 4), [7, 4], [4, 1], [8, 4])
    cases: dict[str, Any] = {
        "softmax": (softmax, (7,), (x, out, 21), {"BLOCK": 32}),
        "layer_norm": (layer_norm, (7,), (x, out, 21), {"BLOCK": 32}),
        "dropout": (dropout, (5,), (x, out, 147, 2**30 + 7), {"BLOCK": 32}),
        "attention": (
            attention, (2,), (q, k, v, torch.empty(19, 16), 19, 19), {"D": 16, "BLOCK": 16}
        ),
        "split_k": (
            split_k, (2, 2), (q, k.T.contiguous(), torch.zeros(19, 19), 19, 19, 16), {"BLOCK": 16}
        ),
        "odds_and_ends": (odds_and_ends, (1,), (x, torch.empty(10 * 32), 21), {"BLOCK": 32}),
        "described": (described, (1,), (wide, target, 7, 24), {"BLOCK": 8}),
    }  # fmt: skip
    if hasattr(tl, "make_block_ptr") and hasattr(
        handles.upstream.InterpreterBuilder, "create_make_block_ptr"
    ):
        cases["block_pointers"] = (block_pointers, (1,), (x, out, 7, 21), {"BLOCK": 8})
    return cases


@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
@pytest.mark.parametrize("name", list(healthy()))
def test_healthy_kernels_are_silent(name: str) -> None:
    kernel, grid, args, constexprs = healthy()[name]
    output = {"split_k": (), "described": ("out",), "attention": ("out_ptr",)}.get(
        name, ("out_ptr",)
    )
    found = debug(kernel, grid, args, uninitialized=output, **constexprs)
    assert found.failure is None, str(found)
    assert found.hazards == [], str(found)


def run_of(subject: Any, watch: Observer | None) -> list[torch.Tensor]:
    state = subject.prepare(CPU)
    with interpreter.interpreting(watch):
        subject.launch(state, watch.shadows if watch else None)
    return [state["result"]] if isinstance(state, dict) else list(tensors(state))


@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
@pytest.mark.parametrize("name", list(healthy()))
def test_shadows_change_no_result_of_kernels(name: str) -> None:
    kernel, grid, args, constexprs = healthy()[name]
    subject = Kernel(kernel, grid, args, constexprs, None, 0.0, None)
    pairs = zip(run_of(subject, None), run_of(subject, Values()), strict=True)
    assert all(bool(numerics.same_bits(a, b).all()) for a, b in pairs)


# ---- the catalogue ----


def catalogue(op: str) -> Iterator[Op]:
    """A share of the quick cases: every dtype, layout, option and variant, not all combined."""
    spec, seen = SPECS[op], set()
    for dtype in spec.dtypes:
        for case in spec.cases(dtype, "quick"):
            if case.values == "every" or not 20 < math.prod(case.shape) <= 300_000:
                continue
            for variant in (None, *triton_kernels.variants(op)):
                layout = (case.layout, case.values)
                new = {variant, dtype, layout, str(case.options)} - seen
                if new and spec.takes("triton", variant, case):
                    seen |= new
                    function = triton_kernels.variants(op)[variant] if variant else spec.triton
                    yield Op(spec, case, variant, function)


@pytest.mark.parametrize("op", list(SPECS))
def test_the_healthy_catalogue_is_silent_and_unchanged(op: str) -> None:
    subjects = list(catalogue(op))
    assert len(subjects) > len(SPECS[op].dtypes)
    for subject in subjects:
        watch = Values()
        with_shadows = run_of(subject, watch)
        assert not watch.hazards(), f"{subject.title}: {watch.hazards()}"
        for a, b in zip(run_of(subject, None), with_shadows, strict=True):
            assert bool(numerics.same_bits(a, b).all()), subject.title
