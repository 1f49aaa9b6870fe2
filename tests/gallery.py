"""Broken Triton kernels, one fault each, beside what they should have been.

Every kernel takes ``BROKEN``: the same kernel is the healthy one that no tool may complain of. The
comment ``# fault: …`` marks the line that a tool must name. tests/debug/test_gallery.py runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from compare import Findings, debug


class Exhibit(NamedTuple):
    """A broken kernel and what has to be said of it.

    Attributes:
        run: debugs the kernel, broken or healthy.
        caught: what finds it: "out of bounds", "assertion", "wrong values", or a hazard's kind.
        says: words of the printed findings.
        line: of the fault; None where the kernel is right and its launch is not.
    """

    run: Callable[[bool], Findings]
    caught: str
    says: tuple[str, ...]
    line: int | None


GALLERY: dict[str, Exhibit] = {}
SOURCE = Path(__file__).read_text().splitlines()


def exhibit(caught: str, *says: str) -> Callable[[Callable[[bool], Findings]], None]:
    """Enter a function that debugs a kernel; the line ``# fault: its name`` is at fault."""

    def enter(run: Callable[[bool], Findings]) -> None:
        name = run.__name__.replace("_", " ")
        lines = [n for n, text in enumerate(SOURCE, 1) if text.endswith(f"# fault: {name}")]
        GALLERY[name] = Exhibit(run, caught, says, lines[0] if lines else None)

    return enter


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# ---- masks ----


@triton.jit
def scale_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr, BROKEN: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < N
    if BROKEN:
        x = tl.load(x_ptr + offsets)  # fault: no mask
    else:
        x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, 2 * x, mask=mask)


@exhibit("out of bounds", "28 of 32 active lanes", "x_ptr")
def no_mask(broken: bool) -> Findings:
    x, out = normal(100), torch.empty(100)
    return debug(scale_kernel, (4,), (x, out, 100), oracle=lambda: 2 * x, BLOCK=32, BROKEN=broken)


@triton.jit
def negate_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr, BROKEN: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < N)
    if BROKEN:
        tl.store(out_ptr + offsets, -x, mask=offsets <= N)  # fault: mask off by one
    else:
        tl.store(out_ptr + offsets, -x, mask=offsets < N)


@exhibit("out of bounds", "1 of 5 active lanes", "out_ptr")
def mask_off_by_one(broken: bool) -> Findings:
    x, out = normal(100), torch.empty(100)
    return debug(negate_kernel, (4,), (x, out, 100), oracle=lambda: -x, BLOCK=32, BROKEN=broken)


@triton.jit
def copy_kernel(x_ptr, out_ptr, M, N, BLOCK: tl.constexpr, BROKEN: tl.constexpr):
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if BROKEN:
        mask = (m[:, None] < N) & (n[None, :] < M)  # fault: swapped M and N
    else:
        mask = (m[:, None] < M) & (n[None, :] < N)
    x = tl.load(x_ptr + m[:, None] * N + n[None, :], mask=mask)
    tl.store(out_ptr + m[:, None] * N + n[None, :], x, mask=mask)


@exhibit("out of bounds", "x_ptr")
def swapped_M_and_N(broken: bool) -> Findings:
    x, out = normal(20, 40), torch.empty(20, 40)
    return debug(copy_kernel, (2, 3), (x, out, 20, 40), oracle=lambda: x, BLOCK=16, BROKEN=broken)


@triton.jit
def row_max_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr, BROKEN: tl.constexpr):
    n = tl.arange(0, BLOCK)
    row = x_ptr + tl.program_id(0) * N + n
    if BROKEN:
        x = tl.load(row, mask=n < N, other=0.0)  # fault: neutral element of a maximum
    else:
        x = tl.load(row, mask=n < N, other=-float("inf"))
    tl.store(out_ptr + tl.program_id(0), tl.max(x))


@exhibit("wrong values", "got 0.0", "24/32 on")
def neutral_element_of_a_maximum(broken: bool) -> Findings:
    x, out = -normal(5, 24).abs(), torch.empty(5)
    return debug(
        row_max_kernel, (5,), (x, out, 24), oracle=lambda: x.amax(1), BLOCK=32, BROKEN=broken
    )


@triton.jit
def row_sum_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr, BROKEN: tl.constexpr):
    n = tl.arange(0, BLOCK)
    row = x_ptr + tl.program_id(0) * N + n
    if BROKEN:
        x = tl.load(row, mask=n < N)  # fault: undefined lanes in a sum
    else:
        x = tl.load(row, mask=n < N, other=0.0)
    tl.store(out_ptr + tl.program_id(0), tl.sum(x))


@exhibit("undefined value", "x_ptr")
def undefined_lanes_in_a_sum(broken: bool) -> Findings:
    x, out = normal(5, 24), torch.empty(5)
    return debug(
        row_sum_kernel,
        (5,),
        (x, out, 24),
        oracle=lambda: x.double().sum(1),
        max_ulps=16,
        BLOCK=32,
        BROKEN=broken,
    )


# ---- indices ----


@triton.jit
def strided_kernel(
    x_ptr, out_ptr, M, N, stride_xm, stride_xn, BLOCK: tl.constexpr, BROKEN: tl.constexpr
):
    m, n = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    mask = (m < M) & (n < N)
    if BROKEN:
        x = tl.load(x_ptr + m * stride_xn + n * stride_xm, mask=mask)  # fault: wrong stride
    else:
        x = tl.load(x_ptr + m * stride_xm + n * stride_xn, mask=mask)
    tl.store(out_ptr + m * N + n, x, mask=mask)


@exhibit("wrong values", "x_ptr[0:16, 0:16].T")
def wrong_stride(broken: bool) -> Findings:
    x, out = normal(16, 16), torch.empty(16, 16)
    args = (x, out, 16, 16, *x.stride())
    return debug(strided_kernel, (1,), args, oracle=lambda: x, BLOCK=16, BROKEN=broken)


@triton.jit
def channels_kernel(x_ptr, scale_ptr, out_ptr, N, BLOCK: tl.constexpr, BROKEN: tl.constexpr):
    m, n = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if BROKEN:
        scale = tl.load(scale_ptr + tl.program_id(1))  # fault: wrong program id axis
    else:
        scale = tl.load(scale_ptr + tl.program_id(0))
    x = tl.load(x_ptr + m * N + n, mask=n < N)
    tl.store(out_ptr + m * N + n, x * scale, mask=n < N)


@exhibit("wrong values", "scale_ptr[", "scale =")
def wrong_program_id_axis(broken: bool) -> Findings:
    x, scale, out = normal(4, 48), normal(4, seed=1), torch.empty(4, 48)
    args = (x, scale, out, 48)
    return debug(
        channels_kernel, (4, 3), args, oracle=lambda: x * scale[:, None], BLOCK=16, BROKEN=broken
    )


@triton.jit
def gather_rows_kernel(x_ptr, out_ptr, stride, BLOCK: tl.constexpr, BROKEN: tl.constexpr):
    n = tl.arange(0, BLOCK)
    if BROKEN:
        start = tl.program_id(0) * stride  # fault: int32 overflow at a large offset
    else:
        start = tl.program_id(0).to(tl.int64) * stride
    tl.store(out_ptr + tl.program_id(0) * BLOCK + n, tl.load(x_ptr + start + n))


@exhibit("int32 overflow", "2147483648", "int64")
def int32_overflow_at_a_large_offset(broken: bool) -> Findings:
    x = torch.empty_strided((3, 8), (2**30, 1), dtype=torch.int8)
    x.copy_(torch.arange(24).view(3, 8))
    out = torch.empty(3, 8, dtype=torch.int8)
    return debug(
        gather_rows_kernel, (3,), (x, out, 2**30), oracle=lambda: x, BLOCK=8, BROKEN=broken
    )


# ---- matrix products ----


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, bias_ptr, out_ptr, beta, M, N, K,
    BLOCK: tl.constexpr, FAULT: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    k = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    if FAULT == "tail":
        steps = K // BLOCK  # fault: tail dropped
    else:
        steps = tl.cdiv(K, BLOCK)
    for step in range(steps):
        at = step * BLOCK + k
        a_ptrs = a_ptr + m * K + at[None, :]
        if FAULT == "K mask":
            a = tl.load(a_ptrs, mask=m < M, other=0.0)  # fault: K tail not masked
        else:
            a = tl.load(a_ptrs, mask=(m < M) & (at[None, :] < K), other=0.0)
        b = tl.load(b_ptr + at[:, None] * N + n, mask=(at[:, None] < K) & (n < N), other=0.0)
        if FAULT == "tf32":
            acc = tl.dot(a, b, acc, input_precision="tf32")  # fault: tf32 where ieee was asked
        elif FAULT == "float16":
            half = acc.to(tl.float16)  # fault: float16 accumulator
            acc = tl.dot(a, b, half, out_dtype=tl.float16).to(tl.float32)
        else:
            acc = tl.dot(a, b, acc, input_precision="ieee")
    if FAULT == "beta":
        acc += tl.load(c_ptr + m * N + n, mask=(m < M) & (n < N))  # fault: beta ignored
    else:
        acc += beta * tl.load(c_ptr + m * N + n, mask=(m < M) & (n < N))
    if FAULT == "bias":
        acc += tl.load(bias_ptr + m, mask=m < M)  # fault: bias by row
    else:
        acc += tl.load(bias_ptr + n, mask=n < N)
    tl.store(out_ptr + m * N + n, acc, mask=(m < M) & (n < N))


def matmul(fault: str, M: int, N: int, K: int, dtype: torch.dtype = torch.float32) -> Findings:
    """c·beta + a@b + bias, against float64; the bound is that of a float32 accumulation."""
    a, b = normal(M, K, dtype=dtype), normal(K, N, seed=1, dtype=dtype)
    c, bias, out = normal(M, N, seed=2), normal(max(M, N), seed=3), torch.empty(M, N)
    wide = [t.double() for t in (a, b, c, bias[:N])]
    magnitude = wide[0].abs() @ wide[1].abs() + wide[2].abs() + wide[3].abs()
    return debug(
        matmul_kernel,
        (triton.cdiv(M, 16), triton.cdiv(N, 16)),
        (a, b, c, bias, out, 0.5, M, N, K),
        oracle=lambda: wide[0] @ wide[1] + 0.5 * wide[2] + wide[3],
        bound=lambda *_: (K + 4) * 2.0**-24 * magnitude,
        BLOCK=16,
        FAULT=fault,
    )


@exhibit("wrong values")
def tail_dropped(broken: bool) -> Findings:
    return matmul("tail" if broken else "", 20, 24, 40)


@exhibit("out of bounds", "a_ptr")
def K_tail_not_masked(broken: bool) -> Findings:
    return matmul("K mask" if broken else "", 20, 24, 40)


@exhibit("wrong values", "tf32")
def tf32_where_ieee_was_asked(broken: bool) -> Findings:
    return matmul("tf32" if broken else "", 16, 16, 32)


@exhibit("wrong values", "acc =")
def float16_accumulator(broken: bool) -> Findings:
    return matmul("float16" if broken else "", 16, 16, 64, torch.float16)


@exhibit("wrong values", "c_ptr")
def beta_ignored(broken: bool) -> Findings:
    return matmul("beta" if broken else "", 16, 24, 16)


@exhibit("wrong values", "bias_ptr[0:16]")
def bias_by_row(broken: bool) -> Findings:
    return matmul("bias" if broken else "", 16, 16, 16)


# ---- arithmetic ----


@triton.jit
def gelu_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr, BROKEN: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < N)
    if BROKEN:
        inner = 0.7978845608 * (x + 0.0044715 * x * x * x)  # fault: wrong constant in the tanh form
    else:
        inner = 0.7978845608 * (x + 0.044715 * x * x * x)
    out = x * tl.sigmoid(2 * inner)
    tl.store(out_ptr + offsets, out, mask=offsets < N)


@exhibit("wrong values", "inner =")
def wrong_constant_in_the_tanh_form(broken: bool) -> Findings:
    x, out = normal(100), torch.empty(100)
    return debug(
        gelu_kernel,
        (4,),
        (x, out, 100),
        oracle=lambda: torch.nn.functional.gelu(x.double(), approximate="tanh"),
        bound=lambda reference, x, *_: 1e-6 * x.abs(),
        BLOCK=32,
        BROKEN=broken,
    )


@triton.jit
def relu_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr, BROKEN: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < N)
    if BROKEN:
        out = tl.where(x > 0, x, 0.0)  # fault: NaN swallowed
    else:
        out = tl.where(x < 0, 0.0, x)
    tl.store(out_ptr + offsets, out, mask=offsets < N)


@exhibit("wrong values", "expected nan", "x = nan", "this one only")
def NaN_swallowed(broken: bool) -> Findings:
    x, out = normal(100), torch.empty(100)
    x[37] = float("nan")
    return debug(
        relu_kernel, (4,), (x, out, 100), oracle=lambda: torch.relu(x), BLOCK=32, BROKEN=broken
    )


@triton.jit
def softmax_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr, BROKEN: tl.constexpr):
    n = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * N + n, mask=n < N, other=-float("inf"))
    if BROKEN:
        powers = tl.exp(x)  # fault: softmax without the maximum
    else:
        powers = tl.exp(x - tl.max(x))
    out = powers / tl.sum(powers)
    tl.store(out_ptr + tl.program_id(0) * N + n, out, mask=n < N)


@exhibit("wrong values", "exp", "inf", "100")
def softmax_without_the_maximum(broken: bool) -> Findings:
    x, out = normal(5, 24), torch.empty(5, 24)
    x[3, 7] = 100.0
    return debug(
        softmax_kernel,
        (5,),
        (x, out, 24),
        oracle=lambda: x.double().softmax(1),
        bound=lambda reference, *_: 1e-6 * reference + 1e-12,
        BLOCK=32,
        BROKEN=broken,
    )


@triton.jit
def embedding_kernel(i_ptr, w_ptr, out_ptr, V, N: tl.constexpr, BROKEN: tl.constexpr):
    i = tl.load(i_ptr + tl.program_id(0))
    n = tl.arange(0, N)
    if BROKEN:
        i = i + 1
    tl.device_assert(i < V, "no such word")  # fault: a word too many
    tl.store(out_ptr + tl.program_id(0) * N + n, tl.load(w_ptr + i * N + n))


@exhibit("assertion", "no such word", "program (2, 0, 0)")
def a_word_too_many(broken: bool) -> Findings:
    words, table, out = torch.tensor([3, 0, 7, 1]), normal(8, 16), torch.empty(4, 16)
    return debug(
        embedding_kernel, (4,), (words, table, out, 8), oracle=lambda: table[words], N=16,
        BROKEN=broken,
    )  # fmt: skip


# ---- programs and memory ----


@exhibit("wrong values", "the tail", "never stored by any of 3 programs")
def grid_one_block_short(broken: bool) -> Findings:
    x, out = normal(100), torch.zeros(100)
    grid = (3,) if broken else (4,)
    return debug(scale_kernel, grid, (x, out, 100), oracle=lambda: 2 * x, BLOCK=32, BROKEN=False)


@triton.jit
def column_sum_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr, BROKEN: tl.constexpr):
    n = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * N + n, mask=n < N)
    if BROKEN:
        total = tl.load(out_ptr + n, mask=n < N)  # fault: race on an output
        tl.store(out_ptr + n, total + x, mask=n < N)
    else:
        tl.atomic_add(out_ptr + n, x, mask=n < N)


@exhibit("race", "out_ptr")
def race_on_an_output(broken: bool) -> Findings:
    x, out = torch.ones(6, 24), torch.zeros(24)
    return debug(
        column_sum_kernel, (6,), (x, out, 24), oracle=lambda: x.sum(0), BLOCK=32, BROKEN=broken
    )


@triton.jit
def tiles_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr, BROKEN: tl.constexpr):
    if BROKEN:
        start = tl.program_id(0) * (BLOCK - 1)
    else:
        start = tl.program_id(0) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < N, other=0.0)
    running = tl.cumsum(x)
    tl.store(out_ptr + offsets, running, mask=offsets < N)  # fault: tiles that overlap


@exhibit("race", "out_ptr[31]")
def tiles_that_overlap(broken: bool) -> Findings:
    x, out = torch.ones(100), torch.empty(100)
    return debug(tiles_kernel, (4,), (x, out, 100), BLOCK=32, BROKEN=broken)


@triton.jit
def shift_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets + 1, mask=offsets + 1 < N, other=0.0)  # fault: in-place aliasing
    tl.store(out_ptr + offsets, x, mask=offsets < N)


def in_place_aliasing(broken: bool) -> Findings:
    x, apart = normal(100), torch.empty(100)
    expected = torch.cat([x[1:], torch.zeros(1)])
    args = (x, x if broken else apart, 100)
    return debug(shift_kernel, (4,), args, oracle=lambda: expected, BLOCK=32)


in_place_aliasing.__name__ = "in-place aliasing"
exhibit("race", "x_ptr[32]")(in_place_aliasing)


@triton.jit
def accumulate_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr, BROKEN: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < N
    x = tl.load(x_ptr + offsets, mask=mask)
    if BROKEN:
        x += tl.load(out_ptr + offsets, mask=mask)  # fault: uninitialised output as input
    tl.store(out_ptr + offsets, x, mask=mask)


@exhibit("uninitialised memory", "out_ptr")
def uninitialised_output_as_input(broken: bool) -> Findings:
    x, out = normal(100), torch.zeros(100)  # zeros by luck: the result is right
    return debug(
        accumulate_kernel,
        (4,),
        (x, out, 100),
        oracle=lambda: x,
        uninitialized=("out_ptr",),
        BLOCK=32,
        BROKEN=broken,
    )
