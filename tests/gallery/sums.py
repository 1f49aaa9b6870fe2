"""Programs that add to one place: atomics, parts, locks, flags."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gallery.exhibits import FLOATS, Launch, exhibit, integers, near, normal


@triton.jit
def column_sum_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    n = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * N + n, mask=n < N).to(tl.float32)
    tl.atomic_add(out_ptr + n, x, mask=n < N)
    # fault a non-atomic accumulation:
    #    tl.store(out_ptr + n, tl.load(out_ptr + n, mask=n < N) + x, mask=n < N)
    # fault the last program's values: tl.store(out_ptr + n, x, mask=n < N)


@exhibit(
    {
        "a non-atomic accumulation": ("race", "out_ptr"),
        "the last program's values": ("race", "out_ptr"),
    }
)
def column_sums_by_atomics(dtype: torch.dtype) -> Launch:
    x = normal(6, 24, dtype=dtype)
    args = (x, torch.zeros(24), 24)
    right = {"out_ptr": x.double().sum(0)}
    bound = near(torch.float32, 6)
    return Launch(column_sum_kernel, (6,), args, right, bound=bound, BLOCK=32)


@triton.jit
def sum_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < N, other=0.0).to(tl.float32)
    # fault lanes that count as one: x = tl.load(x_ptr + at, mask=at < N, other=1.0).to(tl.float32)
    tl.atomic_add(out_ptr, tl.sum(x))
    # fault maximum for a sum: tl.atomic_max(out_ptr, tl.sum(x))


@exhibit(
    {
        "lanes that count as one": ("wrong values",),
        "maximum for a sum": ("wrong values",),
        "an output with something in it": ("wrong values",),
    }
)
def sum_by_atomics(dtype: torch.dtype) -> Launch:
    x, out = normal(100, dtype=dtype), torch.zeros(1)
    # fault an output with something in it: x, out = normal(100, dtype=dtype), torch.ones(1)
    right = {"out_ptr": x.double().sum()[None]}
    bound = near(torch.float32, 100)
    return Launch(sum_kernel, (4,), (x, out, 100), right, bound=bound, BLOCK=32)


@triton.jit
def count_kernel(x_ptr, parts_ptr, N, BLOCK: tl.constexpr):
    """How many are not zero; one count a program, which another kernel sums."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < N, other=0.0)
    # fault NaN is not zero either: x = tl.load(x_ptr + at, mask=at < N, other=float("nan"))
    count = tl.sum((x != 0).to(tl.int32))
    # fault positive ones: count = tl.sum((x > 0).to(tl.int32))
    tl.store(parts_ptr + tl.program_id(0), count)


@exhibit({"NaN is not zero either": ("wrong values",), "positive ones": ("wrong values",)})
def count_nonzero(dtype: torch.dtype) -> Launch:
    x = torch.relu(normal(100, dtype=dtype)) - torch.relu(normal(100, seed=1, dtype=dtype))
    x[::3] = 0
    right = torch.stack([part.count_nonzero() for part in x.split(32)]).int()
    args = (x, torch.empty(4, dtype=torch.int32), 100)
    return Launch(count_kernel, (4,), args, {"parts_ptr": right}, BLOCK=32)


@triton.jit
def histogram_kernel(x_ptr, bins_ptr, N, BINS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < N
    x = tl.load(x_ptr + at, mask=mask, other=0)
    counts = tl.histogram(x, BINS, mask=mask)
    # fault extra lanes in the first bin: counts = tl.histogram(x, BINS)
    tl.atomic_add(bins_ptr + tl.arange(0, BINS), counts)
    # fault bins of the last block: tl.store(bins_ptr + tl.arange(0, BINS), counts)


@exhibit(
    {
        "extra lanes in the first bin": ("wrong values", "bins_ptr[0]"),
        "bins of the last block": ("race", "bins_ptr"),
    },
    [torch.int32],
)
def histogram(dtype: torch.dtype) -> Launch:
    x = integers(0, 16, 100)
    args = (x, torch.zeros(16, dtype=torch.int32), 100)
    right = {"bins_ptr": torch.bincount(x, minlength=16).int()}
    return Launch(histogram_kernel, (4,), args, right, BINS=16, BLOCK=32)


@triton.jit
def binned_kernel(x_ptr, bins_ptr, N, low, width, BINS: tl.constexpr, BLOCK: tl.constexpr):
    """Counts of floats, by one atomic each; what lies outside counts in the bins at the ends."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < N, other=0.0).to(tl.float32)
    bin = tl.floor((x - low) / width).to(tl.int32)
    bin = tl.minimum(tl.maximum(bin, 0), BINS - 1)
    # fault what lies outside: bin = bin + 0
    tl.atomic_add(bins_ptr + bin, 1, mask=at < N)
    # fault lanes past the end counted: tl.atomic_add(bins_ptr + bin, 1)


@exhibit(
    {
        "what lies outside": ("out of bounds", "bins_ptr"),
        "lanes past the end counted": ("wrong values", "bins_ptr"),
    }
)
def histogram_of_floats(dtype: torch.dtype) -> Launch:
    x = 2 * normal(100, dtype=dtype)
    bins = ((x.float() + 2) / 0.5).floor().int().clamp(0, 7)
    args = (x, torch.zeros(8, dtype=torch.int32), 100, -2.0, 0.5)
    right = {"bins_ptr": torch.bincount(bins, minlength=8).int()}
    return Launch(binned_kernel, (4,), args, right, BINS=8, BLOCK=32)


@triton.jit
def chained_scan_kernel(x_ptr, sums_ptr, flags_ptr, out_ptr, N, BLOCK: tl.constexpr):
    """A running sum in one pass: a program waits for the flag of the one before it."""
    pid = tl.program_id(0)
    at = pid * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < N, other=0.0).to(tl.float32)
    before = 0.0
    if pid > 0:
        while tl.atomic_add(flags_ptr + pid - 1, 0, sem="acquire") == 0:
            # fault volatile flags: while tl.load(flags_ptr + pid - 1, volatile=True) == 0:
            # fault flag not waited for:
            #    while tl.atomic_add(flags_ptr + pid - 1, 0, sem="acquire") < 0:
            pass
        before = tl.load(sums_ptr + pid - 1)
        # fault sum of two before: before = tl.load(sums_ptr + tl.maximum(pid - 2, 0))
    tl.store(sums_ptr + pid, before + tl.sum(x))
    # fault only the block's sum: tl.store(sums_ptr + pid, tl.sum(x))
    tl.debug_barrier()
    tl.atomic_xchg(flags_ptr + pid, 1, sem="release")
    # fault flag that nobody sets: tl.atomic_xchg(flags_ptr + pid, 0, sem="release")
    tl.store(out_ptr + at, before + tl.cumsum(x, axis=0), mask=at < N)


@exhibit(
    {
        "volatile flags": ("race", "flags_ptr"),
        "flag not waited for": ("race", "sums_ptr"),
        "sum of two before": ("wrong values",),
        "only the block's sum": ("wrong values",),
        "flag that nobody sets": ("waits forever", "flags_ptr[0]"),
    }
)
def chained_scan(dtype: torch.dtype) -> Launch:
    x = normal(100, dtype=dtype)
    flags = torch.zeros(4, dtype=torch.int32)
    args = (x, torch.full((4,), 7.0), flags, torch.empty(100, dtype=dtype), 100)
    right = {"out_ptr": x.double().cumsum(0)}
    bound = near(dtype, 100)
    return Launch(chained_scan_kernel, (4,), args, right, bound=bound, BLOCK=32)


@triton.jit
def last_block_kernel(
    x_ptr, parts_ptr, done_ptr, out_ptr, N, PARTS: tl.constexpr, BLOCK: tl.constexpr
):
    """Whoever is last to finish adds up everybody's part."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < N, other=0.0).to(tl.float32)
    tl.store(parts_ptr + tl.program_id(0), tl.sum(x * x))
    tl.debug_barrier()
    before = tl.atomic_add(done_ptr, 1)
    # fault finished before it stored: before = tl.load(done_ptr)
    if before == tl.num_programs(0) - 1:
        # fault the last but one: if before == tl.num_programs(0) - 2:
        parts = tl.load(parts_ptr + tl.arange(0, PARTS))
        tl.store(out_ptr, tl.sqrt(tl.sum(parts)))
        # fault root of each part: tl.store(out_ptr, tl.sum(tl.sqrt(parts)))


@exhibit(
    {
        "finished before it stored": ("wrong values", "never stored"),
        "the last but one": ("uninitialised memory", "parts_ptr"),
        "root of each part": ("wrong values",),
    }
)
def norm_by_the_last_program(dtype: torch.dtype) -> Launch:
    x = normal(100, dtype=dtype)
    args = (x, torch.zeros(4), torch.zeros(1, dtype=torch.int32), torch.zeros(1), 100)
    right = {"out_ptr": x.double().square().sum().sqrt()[None]}
    return Launch(
        last_block_kernel,
        (4,),
        args,
        right,
        bound=near(torch.float32, 16),
        uninitialized=("parts_ptr",),
        PARTS=4,
        BLOCK=32,
    )


@triton.jit
def tiles_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    # fault tiles that overlap: start = tl.program_id(0) * (BLOCK - 1)
    offsets = start + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < N, other=0.0)
    running = tl.cumsum(x.to(tl.float32))
    tl.store(out_ptr + offsets, running, mask=offsets < N)


@exhibit({"tiles that overlap": ("race", "out_ptr[31]")}, FLOATS)
def running_sums_of_tiles(dtype: torch.dtype) -> Launch:
    x = torch.ones(100, dtype=dtype)
    right = torch.cat([part.cumsum(0) for part in x.split(32)])
    return Launch(tiles_kernel, (4,), (x, torch.empty_like(x), 100), {"out_ptr": right}, BLOCK=32)
