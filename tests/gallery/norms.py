"""Normalisations, forward and backward."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.libdevice import rsqrt

from gallery.exhibits import Launch, exhibit, near, normal

EPS = 1e-5


@triton.jit
def layer_norm_kernel(
    x_ptr, w_ptr, b_ptr, out_ptr, mean_ptr, rstd_ptr, stride, N, eps, BLOCK: tl.constexpr
):
    m = tl.program_id(0)
    x_ptr += m * stride
    out_ptr += m * stride
    # fault row of the first program: out_ptr += stride
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        sums += tl.load(x_ptr + n, mask=n < N, other=0.0).to(tl.float32)
    mean = tl.sum(sums, axis=0) / N
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + n, mask=n < N, other=0.0).to(tl.float32)
        x = tl.where(n < N, x - mean, 0.0)
        # fault statistics over padded lanes: x = x - mean
        squares += x * x
    rstd = 1 / tl.sqrt(tl.sum(squares, axis=0) / N + eps)
    # fault epsilon outside of the root: rstd = 1 / (tl.sqrt(tl.sum(squares, axis=0) / N) + eps)
    tl.store(mean_ptr + m, mean)
    tl.store(rstd_ptr + m, rstd)
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        mask = n < N
        # fault a mask of more columns: mask = n <= N
        w = tl.load(w_ptr + n, mask=mask)
        b = tl.load(b_ptr + n, mask=mask)
        x = tl.load(x_ptr + n, mask=mask, other=0.0).to(tl.float32)
        tl.store(out_ptr + n, (x - mean) * rstd * w + b, mask=mask)


@exhibit(
    {
        "row of the first program": ("race", "out_ptr"),
        "statistics over padded lanes": ("wrong values", "rstd_ptr"),
        "epsilon outside of the root": ("wrong values",),
        "a mask of more columns": ("out of bounds", "w_ptr"),
    }
)
def layer_norm(dtype: torch.dtype) -> Launch:
    x, w, b = normal(5, 40, dtype=dtype), normal(40, seed=1, dtype=dtype), normal(40, seed=2)
    x[1] /= 256  # where epsilon counts
    wide, b = x.double(), b.to(dtype)
    mean, variance = wide.mean(1), wide.var(1, correction=0)
    right = {"mean_ptr": mean, "rstd_ptr": (variance + EPS).rsqrt()}
    normed = torch.nn.functional.layer_norm(wide, (40,), w.double(), b.double(), EPS)
    args = (x, w, b, torch.empty_like(x), torch.empty(5), torch.empty(5), 40, 40, EPS)
    return Launch(
        layer_norm_kernel,
        (5,),
        args,
        right | {"out_ptr": normed},
        bound=near(dtype, 16),
        BLOCK=16,
    )


@triton.jit
def layer_norm_dx_kernel(
    grad_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, dx_ptr, dw_ptr, db_ptr, lock_ptr, N,
    GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row's dx; its part of dw and db is added to one of GROUPS rows, under that row's lock."""
    m = tl.program_id(0)
    n = tl.arange(0, BLOCK)
    mask = n < N
    group = m % GROUPS
    # fault a lock for each program: group = m
    count_ptr = lock_ptr + GROUPS + group
    lock_ptr += group
    # fault a count for a lock: lock_ptr += group + 1
    x = tl.load(x_ptr + m * N + n, mask=mask, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + m * N + n, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + n, mask=mask).to(tl.float32)
    mean = tl.load(mean_ptr + m)
    rstd = tl.load(rstd_ptr + m)
    normed = tl.where(mask, (x - mean) * rstd, 0.0)
    scaled = tl.where(mask, w * grad, 0.0)
    # fault padded lanes summed: scaled = w * grad
    along = tl.sum(normed * scaled, axis=0) / N
    level = tl.sum(scaled, axis=0) / N
    dx = (scaled - (normed * along + level)) * rstd
    # fault gradient of the mean left out: dx = (scaled - normed * along) * rstd
    tl.store(dx_ptr + m * N + n, dx, mask=mask)
    dw = grad * normed
    db = grad
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        # fault lock removed: while tl.load(lock_ptr) == 1:
        pass
    count = tl.load(count_ptr)
    if count == 0:
        # fault first one adds too: if count == 7:
        tl.atomic_xchg(count_ptr, 1)
    else:
        dw += tl.load(dw_ptr + group * N + n, mask=mask)
        db += tl.load(db_ptr + group * N + n, mask=mask)
    tl.store(dw_ptr + group * N + n, dw, mask=mask)
    tl.store(db_ptr + group * N + n, db, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)
    # fault lock released by a plain store: tl.store(lock_ptr, 0)
    # fault lock never released: tl.atomic_xchg(lock_ptr, 1)


@exhibit(
    {
        "a lock for each program": ("waits forever", "lock_ptr"),
        "a count for a lock": ("waits forever", "lock_ptr[2]"),
        "padded lanes summed": ("undefined value", "w_ptr"),
        "gradient of the mean left out": ("wrong values", "dx_ptr"),
        "lock removed": ("race", "dw_ptr"),
        "first one adds too": ("uninitialised memory", "dw_ptr"),
        "lock released by a plain store": ("race", "lock_ptr"),
        "lock never released": ("waits forever",),
    }
)
def layer_norm_backward_with_locks(dtype: torch.dtype) -> Launch:
    grad, x, w = normal(6, 24, dtype=dtype), normal(6, 24, seed=1, dtype=dtype), normal(24, seed=2)
    w = w.to(dtype)
    wide = x.double().requires_grad_()
    mean, rstd = wide.detach().mean(1), (wide.detach().var(1, correction=0) + EPS).rsqrt()
    torch.nn.functional.layer_norm(wide, (24,), w.double(), None, EPS).backward(grad.double())
    normed = (wide.detach() - mean[:, None]) * rstd[:, None]
    dw = (grad.double() * normed).view(3, 2, 24).sum(0)
    right = {"dx_ptr": wide.grad, "dw_ptr": dw, "db_ptr": grad.double().view(3, 2, 24).sum(0)}
    parts = [torch.zeros(2, 24), torch.zeros(2, 24), torch.zeros(4, dtype=torch.int32)]
    args = (grad, x, w, mean.float(), rstd.float(), torch.empty_like(x), *parts, 24)
    return Launch(
        layer_norm_dx_kernel,
        (6,),
        args,
        right,
        bound=near(dtype, 32),
        uninitialized=("dw_ptr", "db_ptr"),
        GROUPS=2,
        BLOCK=32,
    )


@triton.jit
def layer_norm_dwdb_kernel(
    dw_ptr, db_ptr, final_dw_ptr, final_db_ptr, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """The sums of the groups' rows."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    dw = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    db = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, M, BLOCK_M):
        # fault rows counted from one: for start in range(1, M, BLOCK_M):
        m = start + tl.arange(0, BLOCK_M)
        mask = (m[:, None] < M) & (n[None, :] < N)
        at = m[:, None] * N + n[None, :]
        dw += tl.load(dw_ptr + at, mask=mask, other=0.0)
        db += tl.load(db_ptr + at, mask=mask, other=0.0)
        # fault rows past the last: db += tl.load(db_ptr + at, mask=n[None, :] < N, other=0.0)
    tl.store(final_dw_ptr + n, tl.sum(dw, axis=0), mask=n < N)
    # fault final store mask removed: tl.store(final_dw_ptr + n, tl.sum(dw, axis=0))
    tl.store(final_db_ptr + n, tl.sum(db, axis=0), mask=n < N)


@exhibit(
    {
        "rows counted from one": ("wrong values",),
        "rows past the last": ("out of bounds", "db_ptr"),
        "final store mask removed": ("out of bounds", "final_dw_ptr"),
    }
)
def layer_norm_backward_sums(dtype: torch.dtype) -> Launch:
    dw, db = normal(10, 40), normal(10, 40, seed=1)
    right = {"final_dw_ptr": dw.double().sum(0), "final_db_ptr": db.double().sum(0)}
    args = (dw, db, torch.empty(40, dtype=dtype), torch.empty(40, dtype=dtype), 10, 40)
    return Launch(
        layer_norm_dwdb_kernel, (3,), args, right, bound=near(dtype, 16), BLOCK_M=4, BLOCK_N=16
    )


@triton.jit
def rms_norm_kernel(x_ptr, w_ptr, out_ptr, rstd_ptr, N, eps, offset, BLOCK: tl.constexpr):
    m = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + m * N + n, mask=n < N, other=0)
    w = tl.load(w_ptr + n, mask=n < N, other=0)
    # fault weights of the row: w = tl.load(w_ptr + m + n, mask=n < N, other=0)
    wide = x.to(tl.float32)
    mean = tl.sum(wide * wide, axis=0) / N
    # fault mean over the block: mean = tl.sum(wide * wide, axis=0) / BLOCK
    rstd = rsqrt(mean + eps)
    # fault root of the reciprocal: rstd = tl.sqrt(mean + eps)
    tl.store(rstd_ptr + m, rstd)
    tl.store(out_ptr + m * N + n, wide * rstd * (offset + w), mask=n < N)


@exhibit(
    {
        "weights of the row": ("out of bounds", "w_ptr"),
        "mean over the block": ("wrong values",),
        "root of the reciprocal": ("wrong values",),
    }
)
def rms_norm(dtype: torch.dtype) -> Launch:
    x, w = normal(5, 24, dtype=dtype), normal(24, seed=1, dtype=dtype)
    rstd = (x.double().square().mean(1) + EPS).rsqrt()
    right = {"out_ptr": x.double() * rstd[:, None] * (1 + w.double()), "rstd_ptr": rstd}
    args = (x, w, torch.empty_like(x), torch.empty(5), 24, EPS, 1.0)
    return Launch(rms_norm_kernel, (5,), args, right, bound=near(dtype, 16), BLOCK=32)


@triton.jit
def rms_norm_backward_kernel(
    grad_ptr, x_ptr, w_ptr, rstd_ptr, dw_ptr, M, N, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """dx takes the gradient's place; each program sums dw over its rows."""
    n = tl.arange(0, BLOCK)
    mask = n < N
    w = tl.load(w_ptr + n, mask=mask, other=0.0).to(tl.float32)
    dw = tl.zeros((BLOCK,), tl.float32)
    first = tl.program_id(0) * ROWS
    for m in range(first, min(first + ROWS, M)):
        # fault rows past the end: for m in range(first, first + ROWS):
        # fault one row short: for m in range(first, min(first + ROWS - 1, M)):
        x = tl.load(x_ptr + m * N + n, mask=mask, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + m * N + n, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + m)
        scaled = grad * w
        dx = rstd * scaled - rstd * rstd * rstd * x * (tl.sum(scaled * x, axis=0) / N)
        # fault a power too few:
        #    dx = rstd * scaled - rstd * rstd * x * (tl.sum(scaled * x, axis=0) / N)
        dw += grad * x * rstd
        tl.store(grad_ptr + m * N + n, dx, mask=mask)
    tl.store(dw_ptr + tl.program_id(0) * N + n, dw, mask=mask)


@exhibit(
    {
        "rows past the end": ("out of bounds", "x_ptr"),
        "one row short": ("wrong values",),
        "a power too few": ("wrong values", "grad_ptr"),
    }
)
def rms_norm_backward(dtype: torch.dtype) -> Launch:
    grad, x = normal(5, 24, dtype=dtype), normal(5, 24, seed=1, dtype=dtype)
    w = normal(24, seed=2, dtype=dtype)
    leaf = x.double().requires_grad_()
    rstd = (leaf.detach().square().mean(1) + EPS).rsqrt()
    torch.nn.functional.rms_norm(leaf, (24,), w.double(), EPS).backward(grad.double())
    parts = grad.double() * leaf.detach() * rstd[:, None]
    right = {"grad_ptr": leaf.grad, "dw_ptr": torch.stack([p.sum(0) for p in parts.split(2)])}
    args = (grad, x, w, rstd.float(), torch.empty(3, 24), 5, 24)
    return Launch(
        rms_norm_backward_kernel, (3,), args, right, bound=near(dtype, 32), ROWS=2, BLOCK=32
    )


@triton.jit
def group_norm_kernel(x_ptr, w_ptr, b_ptr, out_ptr, GROUPS, SIZE, PIXELS, eps, BLOCK: tl.constexpr):
    """x is [batch, channels, pixels]; SIZE channels make a group."""
    start = (tl.program_id(0) * GROUPS + tl.program_id(1)) * SIZE * PIXELS
    # fault batch stride of a group: start = (tl.program_id(0) + tl.program_id(1)) * SIZE * PIXELS
    at = tl.arange(0, BLOCK)
    mask = at < SIZE * PIXELS
    x = tl.load(x_ptr + start + at, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / (SIZE * PIXELS)
    centered = tl.where(mask, x - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(centered * centered, axis=0) / (SIZE * PIXELS) + eps)
    channel = tl.program_id(1) * SIZE + at // PIXELS
    # fault pixel for channel: channel = tl.program_id(1) * SIZE + at % PIXELS
    w = tl.load(w_ptr + channel, mask=mask)
    b = tl.load(b_ptr + channel, mask=mask)
    tl.store(out_ptr + start + at, centered * rstd * w + b, mask=mask)


@exhibit(
    {
        "batch stride of a group": ("wrong values", "never stored"),
        "pixel for channel": ("out of bounds", "w_ptr"),
    }
)
def group_norm(dtype: torch.dtype) -> Launch:
    x, w, b = normal(2, 6, 5, dtype=dtype), normal(6, seed=1, dtype=dtype), normal(6, seed=2)
    b = b.to(dtype)
    normed = torch.nn.functional.group_norm(x.double(), 3, w.double(), b.double(), EPS)
    args = (x, w, b, torch.zeros_like(x), 3, 2, 5, EPS)
    right = {"out_ptr": normed}
    return Launch(group_norm_kernel, (2, 3), args, right, bound=near(dtype, 16), BLOCK=16)
