"""One element in, one element out."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gallery.exhibits import Launch, exhibit, near, normal, ulps


@triton.jit
def scale_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < N
    x = tl.load(x_ptr + offsets, mask=mask)
    # fault no mask: x = tl.load(x_ptr + offsets)
    tl.store(out_ptr + offsets, 2 * x, mask=mask)
    # fault store without its mask: tl.store(out_ptr + offsets, 2 * x)


@exhibit(
    {
        "no mask": ("out of bounds", "28 of 32 active lanes", "x_ptr"),
        "store without its mask": ("out of bounds", "out_ptr"),
        "grid one block short": ("wrong values", "the tail", "never stored by any of 3 programs"),
    }
)
def scale(dtype: torch.dtype) -> Launch:
    x, out = normal(100, dtype=dtype), torch.zeros(100, dtype=dtype)
    grid = (triton.cdiv(100, 32),)
    # fault grid one block short: grid = (100 // 32,)
    return Launch(scale_kernel, grid, (x, out, 100), {"out_ptr": 2 * x}, BLOCK=32)


@triton.jit
def negate_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < N)
    tl.store(out_ptr + offsets, -x, mask=offsets < N)
    # fault mask off by one: tl.store(out_ptr + offsets, -x, mask=offsets <= N)


@exhibit({"mask off by one": ("out of bounds", "1 of 5 active lanes", "out_ptr")})
def negate(dtype: torch.dtype) -> Launch:
    x, out = normal(100, dtype=dtype), torch.empty(100, dtype=dtype)
    return Launch(negate_kernel, (4,), (x, out, 100), {"out_ptr": -x}, BLOCK=32)


@triton.autotune([triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["N"])
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, N, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    # fault a block size of the author's: start = tl.program_id(0) * 16
    offsets = start + tl.arange(0, BLOCK)
    mask = offsets < N
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    # fault one operand twice: y = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + y, mask=mask)


@exhibit(
    {
        "a block size of the author's": ("wrong values", "never stored"),
        "one operand twice": ("wrong values", "x_ptr"),
    }
)
def autotuned_add(dtype: torch.dtype) -> Launch:
    x, y = normal(150, dtype=dtype), normal(150, seed=1, dtype=dtype)
    args = (x, y, torch.zeros(150, dtype=dtype), 150)
    return Launch(add_kernel, lambda meta: (triton.cdiv(150, meta["BLOCK"]),), args,
                  {"out_ptr": x + y})  # fmt: skip


@triton.heuristics({"EVEN": lambda args: args["N"] % args["BLOCK"] == 0})
@triton.jit
def multiply_kernel(x_ptr, y_ptr, out_ptr, N, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        # fault an unmasked path for all: if EVEN or N > BLOCK:
        x, y = tl.load(x_ptr + offsets), tl.load(y_ptr + offsets)
        tl.store(out_ptr + offsets, x * y)
    else:
        x = tl.load(x_ptr + offsets, mask=offsets < N)
        y = tl.load(y_ptr + offsets, mask=offsets < N)
        # fault mask one short: y = tl.load(y_ptr + offsets, mask=offsets < N - 1)
        tl.store(out_ptr + offsets, x * y, mask=offsets < N)


@exhibit(
    {
        "an unmasked path for all": ("out of bounds", "x_ptr"),
        "mask one short": ("undefined value", "y_ptr[99]"),
    }
)
def heuristic_multiply(dtype: torch.dtype) -> Launch:
    x, y = normal(100, dtype=dtype), normal(100, seed=1, dtype=dtype)
    args = (x, y, torch.empty(100, dtype=dtype), 100)
    return Launch(multiply_kernel, (4,), args, {"out_ptr": x * y}, BLOCK=32)


@triton.jit
def gelu_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < N).to(tl.float32)
    inner = 0.7978845608 * (x + 0.044715 * x * x * x)
    # fault wrong constant: inner = 0.7978845608 * (x + 0.0044715 * x * x * x)
    out = x * tl.sigmoid(2 * inner)
    tl.store(out_ptr + offsets, out, mask=offsets < N)


@exhibit({"wrong constant": ("wrong values", "inner =")})
def gelu(dtype: torch.dtype) -> Launch:
    x, out = normal(100, dtype=dtype), torch.empty(100, dtype=dtype)
    right = torch.nn.functional.gelu(x.double(), approximate="tanh")
    return Launch(gelu_kernel, (4,), (x, out, 100), {"out_ptr": right}, bound=near(dtype), BLOCK=32)


@triton.jit
def relu_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < N)
    out = tl.where(x < 0, 0.0, x)
    # fault NaN swallowed: out = tl.where(x > 0, x, 0.0)
    tl.store(out_ptr + offsets, out, mask=offsets < N)


@exhibit({"NaN swallowed": ("wrong values", "expected nan", "x = nan", "this one only")})
def relu(dtype: torch.dtype) -> Launch:
    x, out = normal(100, dtype=dtype), torch.empty(100, dtype=dtype)
    x[37] = float("nan")
    return Launch(relu_kernel, (4,), (x, out, 100), {"out_ptr": torch.relu(x)}, BLOCK=32)


@triton.jit
def accumulate_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < N
    x = tl.load(x_ptr + offsets, mask=mask)
    total = x + x
    # fault uninitialised output as input: total = x + x + tl.load(out_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, total, mask=mask)


@exhibit({"uninitialised output as input": ("uninitialised memory", "out_ptr")})
def accumulate(dtype: torch.dtype) -> Launch:
    x, out = normal(100, dtype=dtype), torch.zeros(100, dtype=dtype)  # zeros: right by luck
    return Launch(
        accumulate_kernel,
        (4,),
        (x, out, 100),
        {"out_ptr": x + x},
        uninitialized=("out_ptr",),
        BLOCK=32,
    )


@triton.jit
def swiglu_kernel(gate_ptr, up_ptr, out_ptr, stride, N, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * stride
    n = tl.arange(0, BLOCK)
    gate = tl.load(gate_ptr + start + n, mask=n < N, other=0.0).to(tl.float32)
    # fault row stride forgotten: gate = tl.load(gate_ptr + n, mask=n < N, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + start + n, mask=n < N, other=0.0)
    silu = gate * tl.sigmoid(gate)
    # fault an intermediate in 16 bits: silu = gate * tl.sigmoid(gate).to(tl.bfloat16)
    tl.store(out_ptr + start + n, silu.to(up.dtype) * up, mask=n < N)


@exhibit(
    {
        "row stride forgotten": ("wrong values", "gate"),
        "an intermediate in 16 bits": ("wrong values", "silu"),
    }
)
def swiglu(dtype: torch.dtype) -> Launch:
    gate, up = normal(6, 40, dtype=dtype), normal(6, 40, seed=1, dtype=dtype)
    right = torch.nn.functional.silu(gate.double()).to(dtype) * up
    args = (gate, up, torch.empty(6, 40, dtype=dtype), 40, 40)
    return Launch(swiglu_kernel, (6,), args, {"out_ptr": right}, max_ulps=ulps(dtype, 8), BLOCK=64)


@triton.jit
def swiglu_backward_kernel(grad_ptr, gate_ptr, up_ptr, N, BLOCK: tl.constexpr):
    """The gradients take the operands' places."""
    at = tl.program_id(0) * N + tl.arange(0, BLOCK)
    mask = tl.arange(0, BLOCK) < N
    grad = tl.load(grad_ptr + at, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + at, mask=mask, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    silu = gate * sigmoid
    slope = silu * (1 - sigmoid) + sigmoid
    # fault derivative of a neighbour: slope = sigmoid * (1 - sigmoid) + sigmoid
    tl.store(gate_ptr + at, grad * up * slope, mask=mask)
    # fault no store mask: tl.store(gate_ptr + at, grad * up * slope)
    tl.store(up_ptr + at, grad * silu, mask=mask)


@exhibit(
    {
        "derivative of a neighbour": ("wrong values", "slope ="),
        "no store mask": ("out of bounds", "gate_ptr"),
    }
)
def swiglu_backward(dtype: torch.dtype) -> Launch:
    grad, gate, up = (normal(4, 24, seed=i, dtype=dtype) for i in range(3))
    leaves = [t.double().requires_grad_() for t in (gate, up)]
    (torch.nn.functional.silu(leaves[0]) * leaves[1]).backward(grad.double())
    right = dict(zip(("gate_ptr", "up_ptr"), (leaf.grad for leaf in leaves)))
    return Launch(
        swiglu_backward_kernel, (4,), (grad, gate, up, 24), right, bound=near(dtype, 4), BLOCK=32
    )


@triton.jit
def geglu_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    """Rows of 2·N: values, then gates."""
    row = x_ptr + tl.program_id(0) * 2 * N
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(row + n, mask=n < N).to(tl.float32)
    gate = tl.load(row + N + n, mask=n < N).to(tl.float32)
    # fault halves that overlap: gate = tl.load(row + N - 1 + n, mask=n < N).to(tl.float32)
    gelu = 0.5 * gate * (1 + tl.math.erf(gate * 0.7071067811865476))
    # fault a constant for another: gelu = 0.5 * gate * (1 + tl.math.erf(gate * 0.7978845608))
    tl.store(out_ptr + tl.program_id(0) * N + n, x * gelu, mask=n < N)


@exhibit(
    {
        "halves that overlap": ("wrong values", "gate ="),
        "a constant for another": ("wrong values", "gelu ="),
    }
)
def geglu(dtype: torch.dtype) -> Launch:
    x = normal(3, 80, dtype=dtype)
    right = x.double()[:, :40] * torch.nn.functional.gelu(x.double()[:, 40:])
    args = (x, torch.empty(3, 40, dtype=dtype), 40)
    return Launch(geglu_kernel, (3, 2), args, {"out_ptr": right}, bound=near(dtype, 4), BLOCK=32)


@triton.jit
def dropout_kernel(x_ptr, out_ptr, N, p, seed, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < N
    x = tl.load(x_ptr + offsets, mask=mask)
    keep = tl.rand(seed, offsets) > p
    # fault the same numbers in every block: keep = tl.rand(seed, tl.arange(0, BLOCK)) > p
    out = tl.where(keep, x / (1 - p), 0.0)
    # fault not scaled: out = tl.where(keep, x, 0.0)
    tl.store(out_ptr + offsets, out, mask=mask)


@triton.jit
def keep_kernel(out_ptr, N, p, seed, BLOCK: tl.constexpr):
    """What the first kernel keeps, in another grid: which elements depends on seed and place."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.rand(seed, offsets) > p, mask=offsets < N)


@exhibit(
    {
        "the same numbers in every block": ("wrong values", "keep ="),
        "not scaled": ("wrong values", "out ="),
    }
)
def dropout(dtype: torch.dtype) -> Launch:
    import triton_kernels

    x, kept = normal(100, dtype=dtype), torch.empty(100, dtype=torch.bool)
    with triton_kernels.interpret():
        keep_kernel[(1,)](kept, 100, 0.5, 123, BLOCK=128)
    args = (x, torch.empty(100, dtype=dtype), 100, 0.5, 123)
    right = torch.where(kept, 2 * x, 0)
    return Launch(dropout_kernel, (4,), args, {"out_ptr": right}, BLOCK=32)


@triton.jit
def rope_kernel(
    q_ptr, cos_ptr, sin_ptr, HEADS, stride_token,
    DIM: tl.constexpr, BLOCK_HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Turns the halves of each head, in place; a program has one token's heads."""
    token = tl.program_id(0)
    half: tl.constexpr = DIM // 2
    # fault the padded half: half: tl.constexpr = BLOCK
    n = tl.arange(0, BLOCK)[None, :]
    heads = tl.arange(0, BLOCK_HEADS)[:, None]
    cos = tl.load(cos_ptr + token * (DIM // 2) + n, mask=n < half, other=0.0)
    sin = tl.load(sin_ptr + token * (DIM // 2) + n, mask=n < half, other=0.0)
    left = q_ptr + token * stride_token + heads * DIM + n
    mask = (heads < HEADS) & (n < half)
    # fault one head too many: mask = (heads <= HEADS) & (n < half)
    x = tl.load(left, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(left + half, mask=mask, other=0.0).to(tl.float32)
    tl.store(left, x * cos - y * sin, mask=mask)
    # fault turned the other way: tl.store(left, x * cos + y * sin, mask=mask)
    tl.store(left + half, y * cos + x * sin, mask=mask)
    # fault rope without a store mask: tl.store(left + half, y * cos + x * sin)


@exhibit(
    {
        "the padded half": ("race",),
        "one head too many": ("race",),
        "turned the other way": ("wrong values", "q_ptr"),
        "rope without a store mask": ("race", "q_ptr"),
    }
)
def rope(dtype: torch.dtype) -> Launch:
    q = normal(5, 3, 12, dtype=dtype)
    angles = torch.outer(torch.arange(5.0), 1000 ** -torch.linspace(0, 1, 6))
    cos, sin = angles.cos(), angles.sin()
    x, y = q.double()[..., :6], q.double()[..., 6:]
    c, s = cos.double()[:, None], sin.double()[:, None]
    right = torch.cat([x * c - y * s, y * c + x * s], -1)
    return Launch(
        rope_kernel,
        (5,),
        (q, cos, sin, 3, 36),
        {"q_ptr": right},
        bound=near(dtype, 4),
        DIM=12,
        BLOCK_HEADS=4,
        BLOCK=8,
    )


@triton.jit
def adam_kernel(
    p_ptr, grad_ptr, m_ptr, v_ptr, rate, beta1, beta2, eps, correction1, correction2, N,
    BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < N
    grad = tl.load(grad_ptr + at, mask=mask).to(tl.float32)
    m = beta1 * tl.load(m_ptr + at, mask=mask) + (1 - beta1) * grad
    v = beta2 * tl.load(v_ptr + at, mask=mask) + (1 - beta2) * grad * grad
    # fault not squared: v = beta2 * tl.load(v_ptr + at, mask=mask) + (1 - beta2) * grad
    step = (m / correction1) / (tl.sqrt(v / correction2) + eps)
    # fault no bias correction: step = m / (tl.sqrt(v) + eps)
    tl.store(p_ptr + at, tl.load(p_ptr + at, mask=mask) - rate * step, mask=mask)
    tl.store(m_ptr + at, m, mask=mask)
    tl.store(v_ptr + at, v, mask=mask)


@exhibit({"not squared": ("wrong values", "v ="), "no bias correction": ("wrong values", "step =")})
def adam(dtype: torch.dtype) -> Launch:
    """Masters in float32, gradients in the dtype."""
    p, m, grad = normal(50), 0.1 * normal(50, seed=1), normal(50, seed=2, dtype=dtype)
    v = normal(50, seed=3).square()
    right_m = 0.9 * m.double() + 0.1 * grad.double()
    right_v = 0.99 * v.double() + 0.01 * grad.double().square()
    step = (right_m / 0.271) / ((right_v / 0.0297).sqrt() + 1e-8)
    right = {"p_ptr": p.double() - 0.01 * step, "m_ptr": right_m, "v_ptr": right_v}
    args = (p, grad, m, v, 0.01, 0.9, 0.99, 1e-8, 0.271, 0.0297, 50)
    return Launch(adam_kernel, (2,), args, right, bound=near(torch.float32, 4), BLOCK=32)
