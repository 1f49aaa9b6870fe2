"""Attention: scores are never whole in memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from gallery.exhibits import FLOATS, Launch, exhibit, near, normal

LOG2E = 1.4426950408889634


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """softmax(q·kᵀ/√d)·v in float64; the last query sees the last key."""
    scores = q.double() @ k.double().mT / q.shape[-1] ** 0.5
    if causal:
        seen = torch.ones(scores.shape[-2:]).tril(k.shape[-2] - q.shape[-2]).bool()
        scores = scores.masked_fill(~seen, -float("inf"))
    return scores.softmax(-1) @ v.double()


def attention_bound(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False
) -> Callable[..., torch.Tensor]:
    """Probabilities are rounded to the dtype before the second product."""
    unit = max(torch.finfo(q.dtype).eps, 2.0**-20)
    return near(q.dtype, reference(q, k, v.abs(), causal), unit)


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, scale, HEADS, M, N, stride_batch, stride_head,
    DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Pointers; a program has BLOCK_M queries of one head."""
    start_m = tl.program_id(0) * BLOCK_M
    batch, head = tl.program_id(1) // HEADS, tl.program_id(1) % HEADS
    # fault batch and head turned round:
    #    batch, head = tl.program_id(1) % HEADS, tl.program_id(1) // HEADS
    base = batch.to(tl.int64) * stride_batch + head.to(tl.int64) * stride_head
    m = start_m + tl.arange(0, BLOCK_M)
    d = tl.arange(0, DIM)
    q = tl.load(q_ptr + base + m[:, None] * DIM + d[None, :], mask=m[:, None] < M, other=0.0)
    largest = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, DIM), tl.float32)
    end = N
    if CAUSAL:
        end = min(N, start_m + BLOCK_M)
        # fault one block of keys short: end = min(N, start_m)
    for start_n in range(0, end, BLOCK_N):
        n = start_n + tl.arange(0, BLOCK_N)
        k = tl.load(k_ptr + base + n[None, :] * DIM + d[:, None], mask=n[None, :] < N, other=0.0)
        scores = tl.dot(q, k, input_precision="ieee") * scale
        # fault scale left out: scores = tl.dot(q, k, input_precision="ieee")
        scores = tl.where(n[None, :] < N, scores, -float("inf"))
        # fault padded keys count: scores = tl.where(n[None, :] < N + 1, scores, -float("inf"))
        if CAUSAL:
            scores = tl.where(m[:, None] >= n[None, :], scores, -float("inf"))
            # fault causal mask off by one:
            #    scores = tl.where(m[:, None] >= n[None, :] - 1, scores, -float("inf"))
        new = tl.maximum(largest, tl.max(scores, axis=1))
        powers = tl.exp2(scores - new[:, None])
        rescale = tl.exp2(largest - new)
        total = total * rescale + tl.sum(powers, axis=1)
        # fault total not rescaled: total = total + tl.sum(powers, axis=1)
        acc = acc * rescale[:, None]
        # fault accumulator not rescaled: acc = acc * 1.0
        v = tl.load(v_ptr + base + n[:, None] * DIM + d[None, :], mask=n[:, None] < N, other=0.0)
        # fault values without other:
        #    v = tl.load(v_ptr + base + n[:, None] * DIM + d[None, :], mask=n[:, None] < N)
        acc = tl.dot(powers.to(v.dtype), v, acc, input_precision="ieee")
        largest = new
    tl.store(lse_ptr + tl.program_id(1) * M + m, largest + tl.log2(total), mask=m < M)
    # fault lse not masked: tl.store(lse_ptr + tl.program_id(1) * M + m, largest + tl.log2(total))
    out = acc / total[:, None]
    tl.store(out_ptr + base + m[:, None] * DIM + d[None, :], out, mask=m[:, None] < M)


def by_pointers(dtype: torch.dtype, causal: bool) -> Launch:
    q, k, v = (normal(1, 3, 24, 16, seed=i, dtype=dtype) for i in range(3))
    scale = 16**-0.5
    scores = q.double() @ k.double().mT * scale
    if causal:
        scores = scores.masked_fill(~torch.ones(24, 24).tril().bool(), -float("inf"))
    bound = attention_bound(q, k, v, causal)
    right = {"out_ptr": reference(q, k, v, causal), "lse_ptr": scores.logsumexp(-1) * LOG2E}
    args = (q, k, v, torch.empty_like(q), torch.empty(1, 3, 24), scale * LOG2E, 3, 24, 24)
    return Launch(
        attention_kernel,
        (2, 3),
        (*args, 3 * 24 * 16, 24 * 16),
        right,
        bound=lambda each, *_: bound(each) if each.dim() == 4 else 1e-5,
        DIM=16,
        BLOCK_M=16,
        BLOCK_N=16,
        CAUSAL=causal,
    )


@exhibit(
    {
        "batch and head turned round": ("out of bounds", "q_ptr"),
        "scale left out": ("wrong values",),
        "padded keys count": ("wrong values",),
        "total not rescaled": ("wrong values",),
        "accumulator not rescaled": ("wrong values",),
        "values without other": ("undefined value", "v_ptr"),
        "lse not masked": ("out of bounds", "lse_ptr"),
    }
)
def attention(dtype: torch.dtype) -> Launch:
    return by_pointers(dtype, causal=False)


@exhibit(
    {
        "one block of keys short": ("wrong values",),
        "causal mask off by one": ("wrong values",),
    }
)
def causal_attention(dtype: torch.dtype) -> Launch:
    return by_pointers(dtype, causal=True)


@triton.jit
def block_pointer_attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, scale, M, N,
    DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1)
    q_block = tl.make_block_ptr(
        q_ptr + head * M * DIM, (M, DIM), (DIM, 1), (start, 0), (BLOCK_M, DIM), (1, 0)
    )
    k_block = tl.make_block_ptr(
        k_ptr + head * N * DIM, (DIM, N), (1, DIM), (0, 0), (DIM, BLOCK_N), (0, 1)
    )
    v_block = tl.make_block_ptr(
        v_ptr + head * N * DIM, (N, DIM), (DIM, 1), (0, 0), (BLOCK_N, DIM), (1, 0)
    )
    q = tl.load(q_block, boundary_check=(0,), padding_option="zero")
    largest = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, DIM), tl.float32)
    for start_n in range(0, N, BLOCK_N):
        k = tl.load(k_block, boundary_check=(1,), padding_option="zero")
        scores = tl.dot(q, k, input_precision="ieee") * scale
        scores = tl.where(start_n + tl.arange(0, BLOCK_N)[None, :] < N, scores, -float("inf"))
        new = tl.maximum(largest, tl.max(scores, axis=1))
        powers = tl.exp2(scores - new[:, None])
        # fault scores of the old maximum: powers = tl.exp2(scores - largest[:, None])
        rescale = tl.exp2(largest - new)
        total = total * rescale + tl.sum(powers, axis=1)
        v = tl.load(v_block, boundary_check=(0,), padding_option="zero")
        acc = tl.dot(powers.to(v.dtype), v, acc * rescale[:, None], input_precision="ieee")
        # fault products of blocks not rescaled:
        #    acc = tl.dot(powers.to(v.dtype), v, acc, input_precision="ieee")
        largest = new
        k_block = tl.advance(k_block, (0, BLOCK_N))
        v_block = tl.advance(v_block, (BLOCK_N, 0))
        # fault values advanced by half: v_block = tl.advance(v_block, (BLOCK_N // 2, 0))
        # fault values advanced along the columns: v_block = tl.advance(v_block, (0, BLOCK_N))
    out_block = tl.make_block_ptr(
        out_ptr + head * M * DIM, (M, DIM), (DIM, 1), (start, 0), (BLOCK_M, DIM), (1, 0)
    )
    out = acc / total[:, None]
    tl.store(out_block, out.to(out_ptr.dtype.element_ty), boundary_check=(0,))
    # fault last rows not checked: tl.store(out_block, out.to(out_ptr.dtype.element_ty))


@exhibit(
    {
        "scores of the old maximum": ("wrong values",),
        "products of blocks not rescaled": ("wrong values",),
        "values advanced by half": ("wrong values",),
        "values advanced along the columns": ("wrong values",),
        "last rows not checked": ("out of bounds", "out_ptr"),
    }
)
def attention_by_block_pointers(dtype: torch.dtype) -> Launch:
    q = normal(2, 24, 16, dtype=dtype)
    k, v = normal(2, 40, 16, seed=1, dtype=dtype), normal(2, 40, 16, seed=2, dtype=dtype)
    right = {"out_ptr": reference(q, k, v, causal=False)}
    args = (q, k, v, torch.empty_like(q), LOG2E / 4, 24, 40)
    return Launch(
        block_pointer_attention_kernel,
        (2, 2),
        args,
        right,
        bound=attention_bound(q, k, v),
        DIM=16,
        BLOCK_M=16,
        BLOCK_N=16,
    )


@triton.jit
def scores_of(q, k, m, n, scale, STAGE: tl.constexpr):
    scores = tl.dot(q, k.T, input_precision="ieee") * scale
    if STAGE == 2:
        scores = tl.where(m[:, None] >= n[None, :], scores, -1.0e6)
        # fault keys see queries: scores = tl.where(m[:, None] <= n[None, :], scores, -1.0e6)
    return scores


@triton.jit
def descriptor_attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, scale, HEADS, N,
    DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Causal, in two stages: blocks that every query sees, then those on the diagonal."""
    rows = HEADS * N
    q_desc = tl.make_tensor_descriptor(q_ptr, [rows, DIM], [DIM, 1], [BLOCK_M, DIM])
    k_desc = tl.make_tensor_descriptor(k_ptr, [rows, DIM], [DIM, 1], [BLOCK_N, DIM])
    v_desc = tl.make_tensor_descriptor(v_ptr, [rows, DIM], [DIM, 1], [BLOCK_N, DIM])
    out_desc = tl.make_tensor_descriptor(out_ptr, [rows, DIM], [DIM, 1], [BLOCK_M, DIM])
    first = tl.program_id(1) * N
    # fault rows of another head: first = tl.program_id(1) * BLOCK_M
    start_m = tl.program_id(0) * BLOCK_M
    m = start_m + tl.arange(0, BLOCK_M)
    q = q_desc.load([first + start_m, 0])
    largest = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.full((BLOCK_M,), 0.0, tl.float32)
    acc = tl.zeros((BLOCK_M, DIM), tl.float32)
    for stage in tl.static_range(1, 3):
        # fault a static range one short: for stage in tl.static_range(1, 2):
        low = 0 if stage == 1 else start_m
        high = start_m if stage == 1 else start_m + BLOCK_M
        # fault diagonal left out: high = start_m if stage == 1 else start_m + BLOCK_M - BLOCK_N
        for start_n in range(low, high, BLOCK_N):
            n = start_n + tl.arange(0, BLOCK_N)
            k = k_desc.load([first + start_n, 0])
            scores = scores_of(q, k, m, n, scale, stage)
            new = tl.maximum(largest, tl.max(scores, 1))
            powers = tl.exp2(scores - new[:, None])
            rescale = tl.exp2(largest - new)
            total = total * rescale + tl.sum(powers, 1)
            v = v_desc.load([first + start_n, 0])
            # fault values of the first head: v = v_desc.load([start_n, 0])
            acc = tl.dot(powers.to(v.dtype), v, acc * rescale[:, None], input_precision="ieee")
            largest = new
    out_desc.store([first + start_m, 0], (acc / total[:, None]).to(out_ptr.dtype.element_ty))


@exhibit(
    {
        "rows of another head": ("wrong values", "never stored"),
        "a static range one short": ("wrong values",),
        "diagonal left out": ("wrong values",),
        "keys see queries": ("wrong values",),
        "values of the first head": ("wrong values",),
    }
)
def attention_by_descriptors(dtype: torch.dtype) -> Launch:
    q, k, v = (normal(2, 64, 16, seed=i, dtype=dtype) for i in range(3))
    right = {"out_ptr": reference(q, k, v, causal=True)}
    args = (q, k, v, torch.zeros_like(q), LOG2E / 4, 2, 64)
    return Launch(
        descriptor_attention_kernel,
        (2, 2),
        args,
        right,
        bound=attention_bound(q, k, v, causal=True),
        DIM=16,
        BLOCK_M=32,
        BLOCK_N=16,
    )


@triton.jit
def varlen_attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, ends_ptr, scale, DIM: tl.constexpr, BLOCK: tl.constexpr
):
    """Sequences of different lengths, one after another; ends_ptr holds where each ends."""
    begin = tl.load(ends_ptr + tl.program_id(1))
    end = tl.load(ends_ptr + tl.program_id(1) + 1)
    # fault the next sequence too: end = tl.load(ends_ptr + tl.program_id(1) + 2)
    start = begin + tl.program_id(0) * BLOCK
    if start >= end:
        return
    m = start + tl.arange(0, BLOCK)
    d = tl.arange(0, DIM)
    q = tl.load(q_ptr + m[:, None] * DIM + d[None, :], mask=m[:, None] < end, other=0.0)
    largest = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    acc = tl.zeros((BLOCK, DIM), tl.float32)
    for start_n in range(begin, end, BLOCK):
        # fault keys of the sequences before: for start_n in range(0, end, BLOCK):
        n = start_n + tl.arange(0, BLOCK)
        k = tl.load(k_ptr + n[:, None] * DIM + d[None, :], mask=n[:, None] < end, other=0.0)
        v = tl.load(v_ptr + n[:, None] * DIM + d[None, :], mask=n[:, None] < end, other=0.0)
        scores = tl.dot(q, k.T, input_precision="ieee") * scale
        scores = tl.where(n[None, :] < end, scores, -float("inf"))
        # fault keys of the next sequence:
        #    scores = tl.where(n[None, :] < end + BLOCK, scores, -float("inf"))
        new = tl.maximum(largest, tl.max(scores, 1))
        powers = tl.exp2(scores - new[:, None])
        rescale = tl.exp2(largest - new)
        total = total * rescale + tl.sum(powers, 1)
        acc = tl.dot(powers.to(v.dtype), v, acc * rescale[:, None], input_precision="ieee")
        largest = new
    out = acc / total[:, None]
    tl.store(out_ptr + m[:, None] * DIM + d[None, :], out, mask=m[:, None] < end)
    # fault rows of the next sequence stored:
    #    tl.store(out_ptr + m[:, None] * DIM + d[None, :], out, mask=m[:, None] < 45)


@exhibit(
    {
        "the next sequence too": ("out of bounds", "ends_ptr"),
        "keys of the sequences before": ("wrong values",),
        "keys of the next sequence": ("wrong values",),
        "rows of the next sequence stored": ("race", "out_ptr"),
    }
)
def attention_of_varied_lengths(dtype: torch.dtype) -> Launch:
    q, k, v = (normal(45, 16, seed=i, dtype=dtype) for i in range(3))
    lengths = [20, 7, 18]
    parts = zip(*(t.split(lengths) for t in (q, k, v)))
    right = torch.cat([reference(*part, causal=False) for part in parts])
    bound = near(dtype, 1.0, max(torch.finfo(dtype).eps, 2.0**-20))
    ends = torch.tensor([0, 20, 27, 45], dtype=torch.int32)
    args = (q, k, v, torch.empty_like(q), ends, LOG2E / 4)
    return Launch(
        varlen_attention_kernel, (2, 3), args, {"out_ptr": right}, bound=bound, DIM=16, BLOCK=16
    )


@triton.jit
def join_kernel(part_ptr, lse_ptr, out_ptr, PARTS: tl.constexpr, DIM: tl.constexpr):
    """One query's results over parts of the keys, weighted by their sums of powers."""
    row = tl.program_id(0)
    parts, d = tl.arange(0, PARTS), tl.arange(0, DIM)
    lse = tl.load(lse_ptr + row * PARTS + parts)
    weight = tl.exp(lse - tl.max(lse))
    # fault parts weighted alike: weight = tl.exp(lse - lse)
    part = tl.load(part_ptr + (row * PARTS + parts[:, None]) * DIM + d[None, :]).to(tl.float32)
    # fault parts of the first query:
    #    part = tl.load(part_ptr + parts[:, None] * DIM + d[None, :]).to(tl.float32)
    out = tl.sum(part * weight[:, None], axis=0) / tl.sum(weight)
    # fault weights not normalised: out = tl.sum(part * weight[:, None], axis=0)
    tl.store(out_ptr + row * DIM + d, out)


@exhibit(
    {
        "parts weighted alike": ("wrong values",),
        "parts of the first query": ("wrong values", "part_ptr"),
        "weights not normalised": ("wrong values",),
    },
    FLOATS,
)
def attention_joined_from_parts(dtype: torch.dtype) -> Launch:
    part, lse = normal(5, 4, 16, dtype=dtype), 3 * normal(5, 4, seed=1)
    right = {"out_ptr": (part.double() * lse.double().softmax(1)[..., None]).sum(1)}
    args = (part, lse, torch.empty(5, 16, dtype=dtype))
    return Launch(join_kernel, (5,), args, right, bound=near(dtype, 4), PARTS=4, DIM=16)


@triton.jit
def delta_kernel(out_ptr, grad_ptr, delta_ptr, M, DIM: tl.constexpr, BLOCK: tl.constexpr):
    """The backward pass's first step: rows of out·grad."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, DIM)
    at = m[:, None] * DIM + d[None, :]
    out = tl.load(out_ptr + at, mask=m[:, None] < M, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + at, mask=m[:, None] < M, other=0.0).to(tl.float32)
    delta = tl.sum(out * grad, axis=1)
    # fault out squared: delta = tl.sum(out * out, axis=1)
    tl.store(delta_ptr + m, delta, mask=m < M)
    # fault delta past the last row: tl.store(delta_ptr + m, delta)


@exhibit(
    {
        "out squared": ("wrong values",),
        "delta past the last row": ("out of bounds", "delta_ptr"),
    }
)
def attention_backward_delta(dtype: torch.dtype) -> Launch:
    out, grad = normal(40, 16, dtype=dtype), normal(40, 16, seed=1, dtype=dtype)
    right = {"delta_ptr": (out.double() * grad.double()).sum(1)}
    args = (out, grad, torch.empty(40), 40)
    bound = near(torch.float32, 16)
    return Launch(delta_kernel, (3,), args, right, bound=bound, DIM=16, BLOCK=16)
