"""Scans, sorting, and the pieces that sorts are made of."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gallery.exhibits import FLOATS, Launch, exhibit, integers, near, normal


@triton.jit
def added(a, b):
    return a + b
    # fault the scan keeps the later one: return b


@triton.jit
def cumsum_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    """Rows longer than a block: what went before is carried."""
    carry = 0.0
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + tl.program_id(0) * N + n, mask=n < N, other=0.0).to(tl.float32)
        out = carry + tl.associative_scan(x, 0, added)
        # fault carry forgotten: out = tl.associative_scan(x, 0, added)
        tl.store(out_ptr + tl.program_id(0) * N + n, out, mask=n < N)
        carry += tl.sum(x)
        # fault carry of one block: carry = tl.sum(x)


@exhibit(
    {
        "the scan keeps the later one": ("wrong values",),
        "carry forgotten": ("wrong values",),
        "carry of one block": ("wrong values",),
    }
)
def cumsum(dtype: torch.dtype) -> Launch:
    x = normal(3, 40, dtype=dtype)
    right = {"out_ptr": x.double().cumsum(1)}
    args = (x, torch.empty_like(x), 40)
    return Launch(cumsum_kernel, (3,), args, right, bound=near(dtype, 40), BLOCK=16)


@triton.jit
def recurrence(decay_a, value_a, decay_b, value_b):
    return decay_a * decay_b, value_a * decay_b + value_b
    # fault the earlier decay: return decay_a * decay_b, value_a * decay_a + value_b


@triton.jit
def linear_recurrence_kernel(a_ptr, x_ptr, out_ptr, T, D, BLOCK: tl.constexpr):
    """h[t] = a[t]·h[t − 1] + x[t], a channel a program."""
    at = tl.arange(0, BLOCK) * D + tl.program_id(0)
    # fault time and channel turned round: at = tl.arange(0, BLOCK) + tl.program_id(0) * T
    mask = tl.arange(0, BLOCK) < T
    a = tl.load(a_ptr + at, mask=mask, other=1.0).to(tl.float32)
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    _, h = tl.associative_scan((a, x), 0, recurrence)
    # fault scanned from the end: _, h = tl.associative_scan((a, x), 0, recurrence, reverse=True)
    tl.store(out_ptr + at, h, mask=mask)


@exhibit(
    {
        "the earlier decay": ("wrong values",),
        "time and channel turned round": ("wrong values",),
        "scanned from the end": ("wrong values",),
    }
)
def linear_recurrence(dtype: torch.dtype) -> Launch:
    a, x = normal(20, 3, dtype=dtype).sigmoid(), normal(20, 3, seed=1, dtype=dtype)
    states = [x.double()[0]]
    for decay, value in zip(a.double()[1:], x.double()[1:]):
        states.append(decay * states[-1] + value)
    right = {"out_ptr": torch.stack(states)}
    args = (a, x, torch.empty_like(x), 20, 3)
    return Launch(linear_recurrence_kernel, (3,), args, right, bound=near(dtype, 16), BLOCK=32)


@triton.jit
def larger(value_a, index_a, value_b, index_b):
    later = value_b >= value_a
    # fault ties keep the first: later = value_b > value_a
    return tl.where(later, value_b, value_a), tl.where(later, index_b, index_a)


@triton.jit
def cummax_kernel(x_ptr, value_ptr, index_ptr, N, BLOCK: tl.constexpr):
    n = tl.arange(0, BLOCK)
    at = tl.program_id(0) * N + n
    x = tl.load(x_ptr + at, mask=n < N, other=-float("inf"))
    value, index = tl.associative_scan((x, n), 0, larger)
    tl.store(value_ptr + at, value, mask=n < N)
    tl.store(index_ptr + at, index, mask=n < N)
    # fault the lane for the index: tl.store(index_ptr + at, n, mask=n < N)


@exhibit(
    {
        "ties keep the first": ("wrong values", "index_ptr"),
        "the lane for the index": ("wrong values", "index_ptr"),
    }
)
def cummax(dtype: torch.dtype) -> Launch:
    x = (2 * normal(4, 24, dtype=dtype)).round()
    value, index = x.float().cummax(1)
    right = {"value_ptr": value.to(dtype), "index_ptr": index}
    args = (x, torch.empty_like(x), torch.empty_like(index), 24)
    return Launch(cummax_kernel, (4,), args, right, BLOCK=32)


@triton.jit
def sort_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    n = tl.arange(0, BLOCK)
    at = tl.program_id(0) * N + n
    x = tl.load(x_ptr + at, mask=n < N, other=float("inf"))
    # fault padding that sorts first: x = tl.load(x_ptr + at, mask=n < N, other=-float("inf"))
    # fault padding in the midst: x = tl.load(x_ptr + at, mask=n < N, other=0.0)
    tl.store(out_ptr + at, tl.sort(x), mask=n < N)
    # fault sorted the other way: tl.store(out_ptr + at, tl.sort(x, descending=True), mask=n < N)


@exhibit(
    {
        "padding that sorts first": ("wrong values", "-inf"),
        "padding in the midst": ("wrong values",),
        "sorted the other way": ("wrong values",),
    }
)
def row_sort(dtype: torch.dtype) -> Launch:
    x = normal(3, 12, dtype=dtype)
    args = (x, torch.empty_like(x), 12)
    return Launch(sort_kernel, (3,), args, {"out_ptr": x.sort(1)[0]}, BLOCK=16)


@triton.jit
def top_k_kernel(x_ptr, value_ptr, index_ptr, N, K: tl.constexpr, BLOCK: tl.constexpr):
    """The largest, K times: each round strikes out what the last one took."""
    n = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * N + n, mask=n < N, other=-float("inf")).to(tl.float32)
    for i in tl.static_range(K):
        value = tl.max(x, axis=0)
        index = tl.argmax(x, axis=0)
        tl.store(value_ptr + tl.program_id(0) * K + i, value)
        # fault rows of another width: tl.store(value_ptr + tl.program_id(0) * N + i, value)
        tl.store(index_ptr + tl.program_id(0) * K + i, index)
        x = tl.where(n == index, -float("inf"), x)
        # fault nothing struck out: x = tl.where(n == N, -float("inf"), x)
        # fault everything like it struck out: x = tl.where(n <= index, -float("inf"), x)


@exhibit(
    {
        "rows of another width": ("out of bounds", "value_ptr"),
        "nothing struck out": ("wrong values",),
        "everything like it struck out": ("wrong values",),
    }
)
def top_k(dtype: torch.dtype) -> Launch:
    x = torch.stack([torch.randperm(24, generator=torch.Generator().manual_seed(i))
                     for i in range(4)]).to(dtype)  # fmt: skip
    value, index = x.float().topk(3, 1)
    right = {"value_ptr": value.to(dtype), "index_ptr": index}
    args = (x, torch.empty(4, 3, dtype=dtype), torch.empty(4, 3, dtype=torch.int64), 24)
    return Launch(top_k_kernel, (4,), args, right, K=3, BLOCK=32)


@triton.jit
def ordered_bits(x, BITS: tl.constexpr):
    """A float's bits as an unsigned number of the same order."""
    sign: tl.constexpr = 1 << (BITS - 1)
    return tl.where((x & sign) != 0, x ^ ((1 << BITS) - 1), x ^ sign)
    # fault negative ones in reverse: return x ^ sign


@triton.jit
def radix_count_kernel(
    keys_ptr, counts_ptr, N, shift, BITS: tl.constexpr, RADIX: tl.constexpr, BLOCK: tl.constexpr
):
    """How many keys of each block have each digit."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < N
    keys = tl.load(keys_ptr + at, mask=mask, other=0).to(tl.int32) & ((1 << BITS) - 1)
    digits = (ordered_bits(keys, BITS) >> shift) & (RADIX - 1)
    # fault the digit beside it: digits = (ordered_bits(keys, BITS) >> (shift + 1)) & (RADIX - 1)
    bins = tl.arange(0, RADIX)
    hits = (digits[:, None] == bins[None, :]) & mask[:, None]
    # fault a radix pass that counts masked lanes: hits = digits[:, None] == bins[None, :]
    to = bins * tl.num_programs(0) + tl.program_id(0)
    # fault counts by block: to = tl.program_id(0) * RADIX + bins
    tl.store(counts_ptr + to, tl.sum(hits.to(tl.int32), axis=0))


@exhibit(
    {
        "negative ones in reverse": ("wrong values",),
        "the digit beside it": ("wrong values",),
        "a radix pass that counts masked lanes": ("wrong values", "counts_ptr"),
        "counts by block": ("wrong values",),
    },
    FLOATS[1:],
)
def radix_counts(dtype: torch.dtype) -> Launch:
    keys = normal(100, dtype=dtype).view(torch.int16)
    bits = keys.int() & 0xFFFF
    digits = (torch.where(bits >= 0x8000, bits ^ 0xFFFF, bits ^ 0x8000) >> 12) & 15
    right = torch.stack([torch.bincount(part, minlength=16) for part in digits.split(32)], 1)
    args = (keys, torch.full((16, 4), -1, dtype=torch.int32), 100, 12)
    return Launch(
        radix_count_kernel, (4,), args, {"counts_ptr": right.int()}, BITS=16, RADIX=16, BLOCK=32
    )


@triton.jit
def radix_scatter_kernel(
    keys_ptr, starts_ptr, out_ptr, N, shift, RADIX: tl.constexpr, BLOCK: tl.constexpr
):
    """Keys to their places, in order: after those of smaller digits and of blocks before."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < N
    keys = tl.load(keys_ptr + at, mask=mask, other=0)
    digits = (keys >> shift) & (RADIX - 1)
    bins = tl.arange(0, RADIX)
    hits = ((digits[:, None] == bins[None, :]) & mask[:, None]).to(tl.int32)
    before = tl.cumsum(hits, axis=0) - hits
    # fault counts itself: before = tl.cumsum(hits, axis=0)
    rank = tl.sum(before * hits, axis=1)
    start = tl.load(starts_ptr + digits * tl.num_programs(0) + tl.program_id(0))
    # fault the first block's start: start = tl.load(starts_ptr + digits * tl.num_programs(0))
    tl.store(out_ptr + start + rank, keys, mask=mask)


@exhibit(
    {
        "counts itself": ("out of bounds", "out_ptr"),
        "the first block's start": ("race", "out_ptr"),
    },
    [torch.int32],
)
def radix_scatter(dtype: torch.dtype) -> Launch:
    keys = integers(0, 1000, 100)
    digits = (keys >> 4) & 15
    counts = torch.stack([torch.bincount(part, minlength=16) for part in digits.split(32)], 1)
    starts = (counts.flatten().cumsum(0) - counts.flatten()).int()
    right = {"out_ptr": keys[digits.argsort(stable=True)]}
    args = (keys, starts, torch.full_like(keys, -1), 100, 4)
    return Launch(radix_scatter_kernel, (4,), args, right, RADIX=16, BLOCK=32)


@triton.jit
def look_back_kernel(counts_ptr, states_ptr, out_ptr, RADIX: tl.constexpr):
    """Decoupled look-back: what the blocks before counted, by what they say of themselves.

    A state is 0 for nothing yet, else 1 or 2 in the top bits: the block's own count, or with all
    before it.
    """
    block = tl.program_id(0)
    digit = tl.program_id(1)
    own = tl.load(counts_ptr + block * RADIX + digit)
    states = states_ptr + digit
    if block == 0:
        tl.atomic_xchg(states, own | (2 << 24))
        tl.store(out_ptr + digit, 0)
    else:
        tl.atomic_xchg(states + block * RADIX, own | (1 << 24))
        total = own * 0
        back = block - 1
        while back >= 0:
            state = tl.atomic_add(states + back * RADIX, 0)
            # fault volatile states: state = tl.load(states + back * RADIX, volatile=True)
            kind = state >> 24
            if kind > 0:
                # fault a state that says nothing yet: if kind >= 0:
                total += state & 0xFFFFFF
                # fault the kind counted along: total += state
                back = tl.where(kind == 2, -1, back - 1)
                # fault looks on behind a whole sum: back = back - 1
        tl.atomic_xchg(states + block * RADIX, (total + own) | (2 << 24))
        tl.store(out_ptr + block * RADIX + digit, total)


@exhibit(
    {
        "volatile states": ("race", "states_ptr"),
        "a state that says nothing yet": ("order",),
        "the kind counted along": ("wrong values",),
        "looks on behind a whole sum": ("wrong values",),
    },
    [torch.int32],
)
def decoupled_look_back(dtype: torch.dtype) -> Launch:
    counts = integers(0, 30, 4, 3)
    right = {"out_ptr": counts.cumsum(0).int() - counts}
    args = (counts, torch.zeros(4, 3, dtype=dtype), torch.empty(4, 3, dtype=dtype))
    return Launch(look_back_kernel, (4, 3), args, right, RADIX=3)
