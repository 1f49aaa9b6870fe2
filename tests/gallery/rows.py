"""A row in, a number or a row out: reductions, softmax, losses."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gallery.exhibits import FLOATS, Launch, exhibit, near, normal, ulps


@triton.jit
def row_max_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    n = tl.arange(0, BLOCK)
    row = x_ptr + tl.program_id(0) * N + n
    x = tl.load(row, mask=n < N, other=-float("inf"))
    # fault neutral element of a sum: x = tl.load(row, mask=n < N, other=0.0)
    # fault no neutral element: x = tl.load(row, mask=n < N)
    tl.store(out_ptr + tl.program_id(0), tl.max(x))


@exhibit(
    {
        "neutral element of a sum": ("wrong values", "got 0.0", "24/32 on"),
        "no neutral element": ("undefined value", "x_ptr"),
    }
)
def row_max(dtype: torch.dtype) -> Launch:
    x, out = -normal(5, 24, dtype=dtype).abs(), torch.empty(5, dtype=dtype)
    return Launch(row_max_kernel, (5,), (x, out, 24), {"out_ptr": x.amax(1)}, BLOCK=32)


@triton.jit
def row_sum_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    n = tl.arange(0, BLOCK)
    row = x_ptr + tl.program_id(0) * N + n
    x = tl.load(row, mask=n < N, other=0.0)
    # fault undefined lanes in a sum: x = tl.load(row, mask=n < N)
    tl.store(out_ptr + tl.program_id(0), tl.sum(x.to(tl.float32)))


@exhibit({"undefined lanes in a sum": ("undefined value", "x_ptr")})
def row_sum(dtype: torch.dtype) -> Launch:
    x, out = normal(5, 24, dtype=dtype), torch.empty(5, dtype=dtype)
    right = {"out_ptr": x.double().sum(1)}
    return Launch(row_sum_kernel, (5,), (x, out, 24), right, bound=near(dtype, 24), BLOCK=32)


@triton.jit
def softmax_kernel(x_ptr, out_ptr, stride_xm, stride_om, M, N, BLOCK: tl.constexpr):
    """Each program takes every so many rows."""
    step = tl.num_programs(0)
    # fault a row step too long: step = tl.num_programs(0) + 1
    n = tl.arange(0, BLOCK)
    for m in tl.range(tl.program_id(0), M, step, num_stages=2):
        x = tl.load(x_ptr + m * stride_xm + n, mask=n < N, other=-float("inf")).to(tl.float32)
        # fault lanes of zeros: x = tl.load(x_ptr + m * stride_xm + n, mask=n < N, other=0.0)
        powers = tl.exp(x - tl.max(x, axis=0))
        # fault maximum not subtracted: powers = tl.exp(x)
        out = powers / tl.sum(powers, axis=0)
        tl.store(out_ptr + m * stride_om + n, out, mask=n < N)
        # fault the other's row stride: tl.store(out_ptr + m * stride_xm + n, out, mask=n < N)


@exhibit(
    {
        "a row step too long": ("wrong values", "never stored"),
        "lanes of zeros": ("wrong values", "24/32 on"),
        "maximum not subtracted": ("wrong values", "inf"),
        "the other's row stride": ("out of bounds", "out_ptr"),
    }
)
def softmax(dtype: torch.dtype) -> Launch:
    x = normal(7, 28, dtype=dtype)[:, :24]
    x[3, 7] = 100.0
    args = (x, torch.full((7, 24), 5.0, dtype=dtype), 28, 24, 7, 24)
    right = {"out_ptr": x.double().softmax(1)}
    return Launch(softmax_kernel, (3,), args, right, bound=near(dtype), BLOCK=32)


@triton.jit
def online_softmax_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    x_ptr += tl.program_id(0) * N
    out_ptr += tl.program_id(0) * N
    largest = -float("inf")
    total = 0.0
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + n, mask=n < N, other=-float("inf")).to(tl.float32)
        new = tl.maximum(largest, tl.max(x))
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(x - new))
        # fault sum not rescaled: total = total + tl.sum(tl.exp(x - new))
        largest = new
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + n, mask=n < N).to(tl.float32)
        tl.store(out_ptr + n, tl.exp(x - largest) / total, mask=n < N)
        # fault mask of the block: tl.store(out_ptr + n, tl.exp(x - largest) / total)


@exhibit(
    {
        "sum not rescaled": ("wrong values", "total"),
        "mask of the block": ("race", "out_ptr"),
    }
)
def online_softmax(dtype: torch.dtype) -> Launch:
    x, out = 3 * normal(4, 50, dtype=dtype), torch.empty(4, 50, dtype=dtype)
    right = {"out_ptr": x.double().softmax(1)}
    return Launch(online_softmax_kernel, (4,), (x, out, 50), right, bound=near(dtype), BLOCK=16)


@triton.jit
def log_softmax_backward_kernel(grad_ptr, out_ptr, dx_ptr, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, BLOCK)
    mask = tl.arange(0, BLOCK) < N
    grad = tl.load(grad_ptr + at, mask=mask, other=0.0).to(tl.float32)
    # fault padding in the gradient's sum: grad = tl.load(grad_ptr + at, mask=mask, other=1.0)
    out = tl.load(out_ptr + at, mask=mask, other=0.0).to(tl.float32)
    dx = grad - tl.exp(out) * tl.sum(grad)
    # fault sum forgotten: dx = grad - tl.exp(out) * grad
    tl.store(dx_ptr + at, dx, mask=mask)


@exhibit(
    {
        "padding in the gradient's sum": ("wrong values", "20/32 on"),
        "sum forgotten": ("wrong values", "dx ="),
    }
)
def log_softmax_backward(dtype: torch.dtype) -> Launch:
    grad, out = normal(3, 20, dtype=dtype), normal(3, 20, seed=1).log_softmax(1).to(dtype)
    wide = grad.double()
    right = {"dx_ptr": wide - out.double().exp() * wide.sum(1, keepdim=True)}
    args = (grad, out, torch.empty_like(grad), 20)
    return Launch(log_softmax_backward_kernel, (3,), args, right, bound=near(dtype, 20), BLOCK=32)


@triton.jit
def cross_entropy_kernel(x_ptr, target_ptr, loss_ptr, N, ignored, scale, BLOCK: tl.constexpr):
    """The losses; the logits' gradients take the logits' place."""
    target = tl.load(target_ptr + tl.program_id(0))
    x_ptr += tl.program_id(0).to(tl.int64) * N
    if target == ignored:
        # fault ignore_index forgotten: if target == -1:
        for start in range(0, N, BLOCK):
            n = start + tl.arange(0, BLOCK)
            tl.store(x_ptr + n, 0.0, mask=n < N)
        tl.store(loss_ptr + tl.program_id(0), 0.0)
        return
    at_target = tl.load(x_ptr + target).to(tl.float32)
    largest = -float("inf")
    total = 0.0
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + n, mask=n < N, other=-float("inf")).to(tl.float32)
        new = tl.maximum(largest, tl.max(x))
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(x - new))
        largest = new
        # fault the last block's maximum: largest = tl.max(x)
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + n, mask=n < N, other=-float("inf")).to(tl.float32)
        probability = tl.exp(x - largest) / total
        grad = tl.where(n == target, probability - 1, probability) * scale
        # fault target of the block:
        #    grad = tl.where(n - start == target, probability - 1, probability) * scale
        tl.store(x_ptr + n, grad, mask=n < N)
    tl.store(loss_ptr + tl.program_id(0), largest + tl.log(total) - at_target)


@exhibit(
    {
        "ignore_index forgotten": ("out of bounds", "x_ptr"),
        "the last block's maximum": ("wrong values", "largest"),
        "target of the block": ("wrong values", "grad"),
    }
)
def cross_entropy(dtype: torch.dtype) -> Launch:
    x, target = 2 * normal(6, 40, dtype=dtype), torch.tensor([3, 39, -100, 17, 0, 20])
    leaf = x.double().requires_grad_()
    loss = torch.nn.functional.cross_entropy(leaf, target, reduction="none")
    (loss.sum() / 5).backward()
    args = (x, target, torch.empty(6), 40, -100, 1 / 5)
    right = {"x_ptr": leaf.grad, "loss_ptr": loss.detach()}
    return Launch(cross_entropy_kernel, (6,), args, right, bound=near(dtype, 4), BLOCK=16)


@triton.jit
def logsumexp_kernel(x_ptr, out_ptr, N, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows too long for a program: one logsumexp a part, which another kernel joins."""
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * N + n, mask=n < N, other=-float("inf")).to(tl.float32)
    largest = tl.max(x)
    total = largest + tl.log(tl.sum(tl.exp(x - largest)))
    # fault maximum not added back: total = tl.log(tl.sum(tl.exp(x - largest)))
    tl.store(out_ptr + tl.program_id(0) * PARTS + tl.program_id(1), total)
    # fault parts of a row that overlap:
    #    tl.store(out_ptr + tl.program_id(0) + tl.program_id(1), total)


@exhibit(
    {
        "maximum not added back": ("wrong values", "total"),
        "parts of a row that overlap": ("race", "out_ptr"),
    }
)
def logsumexp_of_parts(dtype: torch.dtype) -> Launch:
    x = normal(4, 40, dtype=dtype)
    right = {"out_ptr": torch.stack([p.logsumexp(1) for p in x.double().split(16, 1)], 1)}
    args = (x, torch.empty(4, 3), 40)
    return Launch(
        logsumexp_kernel, (4, 3), args, right, bound=near(torch.float32, 4), PARTS=3, BLOCK=16
    )


@triton.jit
def argmax_kernel(x_ptr, value_ptr, index_ptr, N, BLOCK: tl.constexpr):
    largest = tl.full((BLOCK,), -float("inf"), tl.float32)
    where = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + tl.program_id(0) * N + n, mask=n < N, other=-float("inf"))
        better = x > largest
        # fault the worst instead: better = x < largest
        largest = tl.where(better, x, largest)
        where = tl.where(better, n, where)
        # fault lane for index: where = tl.where(better, n - start, where)
    value = tl.max(largest)
    index = tl.min(tl.where(largest == value, where, N))
    tl.store(value_ptr + tl.program_id(0), value)
    tl.store(index_ptr + tl.program_id(0), index)


@exhibit(
    {
        "the worst instead": ("wrong values",),
        "lane for index": ("wrong values", "where"),
    }
)
def argmax(dtype: torch.dtype) -> Launch:
    x = normal(5, 40, dtype=dtype)
    right = {"value_ptr": x.amax(1), "index_ptr": (x == x.amax(1)[:, None]).int().argmax(1)}
    args = (x, torch.empty(5, dtype=dtype), torch.empty(5, dtype=torch.int64), 40)
    return Launch(argmax_kernel, (5,), args, right, BLOCK=16)


@triton.jit
def variance_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    n = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * N + n, mask=n < N, other=0.0).to(tl.float32)
    mean = tl.sum(x) / N
    # fault divided by the block: mean = tl.sum(x) / BLOCK
    centered = tl.where(n < N, x - mean, 0.0)
    # fault padded lanes counted: centered = x - mean
    tl.store(out_ptr + tl.program_id(0), tl.sum(centered * centered) / (N - 1))


@exhibit(
    {
        "divided by the block": ("wrong values", "mean"),
        "padded lanes counted": ("wrong values", "centered"),
    }
)
def variance(dtype: torch.dtype) -> Launch:
    x = 1 + normal(5, 24, dtype=dtype)
    right = {"out_ptr": x.double().var(1)}
    args = (x, torch.empty(5, dtype=dtype), 24)
    return Launch(variance_kernel, (5,), args, right, bound=near(dtype, 4), BLOCK=32)


@triton.jit
def joined(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    """Welford's step for two parts."""
    count = count_a + count_b
    delta = mean_b - mean_a
    share = tl.where(count == 0, 0.0, count_b / tl.maximum(count, 1))
    mean = mean_a + delta * share
    # fault means weighted alike: mean = mean_a + delta * 0.5
    m2 = m2_a + m2_b + delta * delta * count_a * share
    # fault distance of the means forgotten: m2 = m2_a + m2_b
    return mean, m2, count


@triton.jit
def welford_kernel(x_ptr, mean_ptr, var_ptr, N, BLOCK: tl.constexpr):
    n = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * N + n, mask=n < N, other=0.0).to(tl.float32)
    count = (n < N).to(tl.float32)
    mean, m2, count = tl.reduce((x, tl.zeros_like(x), count), 0, joined)
    tl.store(mean_ptr + tl.program_id(0), mean)
    tl.store(var_ptr + tl.program_id(0), m2 / count)
    # fault another divisor: tl.store(var_ptr + tl.program_id(0), m2 / (count - 1))


@exhibit(
    {
        "means weighted alike": ("wrong values", "mean"),
        "distance of the means forgotten": ("wrong values", "m2"),
        "another divisor": ("wrong values", "var_ptr"),
    }
)
def welford(dtype: torch.dtype) -> Launch:
    x = 3 + normal(4, 24, dtype=dtype)
    wide = x.double()
    right = {"mean_ptr": wide.mean(1), "var_ptr": wide.var(1, correction=0)}
    args = (x, torch.empty(4, dtype=dtype), torch.empty(4, dtype=dtype), 24)
    return Launch(welford_kernel, (4,), args, right, bound=near(dtype, 8), BLOCK=32)


@triton.jit
def l2norm_kernel(x_ptr, out_ptr, M, N, eps, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr):
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    n = tl.arange(0, BLOCK)[None, :]
    mask = (m < M) & (n < N)
    x = tl.load(x_ptr + m * N + n, mask=mask, other=0.0).to(tl.float32)
    squares = tl.sum(x * x, axis=1)[:, None]
    # fault sums of columns: squares = tl.sum(x * x, axis=0)[None, :]
    out = x / tl.sqrt(squares + eps)
    tl.store(out_ptr + m * N + n, out, mask=mask)
    # fault the columns' mask alone: tl.store(out_ptr + m * N + n, out, mask=n < N)


@exhibit(
    {
        "sums of columns": ("wrong values", "squares"),
        "the columns' mask alone": ("out of bounds", "out_ptr"),
    }
)
def l2norm(dtype: torch.dtype) -> Launch:
    x = normal(6, 12, dtype=dtype)
    right = {"out_ptr": x.double() / (x.double().square().sum(1, keepdim=True) + 1e-6).sqrt()}
    args = (x, torch.empty_like(x), 6, 12, 1e-6)
    return Launch(l2norm_kernel, (2,), args, right, max_ulps=ulps(dtype, 8), BLOCK_M=4, BLOCK=16)


@triton.jit
def kl_kernel(input_ptr, target_ptr, loss_ptr, N, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        at = tl.program_id(0) * N + n
        log_q = tl.load(input_ptr + at, mask=n < N, other=0.0).to(tl.float32)
        p = tl.load(target_ptr + at, mask=n < N, other=0.0).to(tl.float32)
        term = tl.where(p > 0, p * (tl.log(p) - log_q), 0.0)
        # fault zero times log of zero: term = p * (tl.log(p) - log_q)
        total += term
        # fault only the last block: total = term
    tl.store(loss_ptr + tl.program_id(0), tl.sum(total))


@exhibit(
    {
        "zero times log of zero": ("wrong values", "nan"),
        "only the last block": ("wrong values", "total"),
    },
    FLOATS,
)
def kl_divergence(dtype: torch.dtype) -> Launch:
    log_q = normal(4, 40, dtype=dtype).float().log_softmax(1).to(dtype)
    p = normal(4, 40, seed=1).softmax(1).to(dtype)
    p[2, 11] = 0
    terms = torch.nn.functional.kl_div(log_q.double(), p.double(), reduction="none")
    args = (log_q, p, torch.empty(4), 40)
    bound = near(torch.float32, 4)
    return Launch(kl_kernel, (4,), args, {"loss_ptr": terms.sum(1)}, bound=bound, BLOCK=16)
