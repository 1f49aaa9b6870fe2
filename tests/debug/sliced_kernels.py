"""Kernels with one fault each, far from the line that stores the wrong value.

``FAULT`` names the fault; the line that ends in ``# fault: that name`` has it.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def centred_kernel(x_ptr, out_ptr, M, N, stride, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    """Rows, less their mean, over what is left of them; a program takes every other row."""
    first = tl.program_id(0)
    if FAULT == "step":
        step = tl.num_programs(0) + 1  # fault: step
    else:
        step = tl.num_programs(0)
    for row in range(first, M, step):
        n = tl.arange(0, BLOCK)
        if FAULT == "mask":
            inside = n < N - 1  # fault: mask
        else:
            inside = n < N
        x = tl.load(x_ptr + row * stride + n, mask=inside, other=0.0)
        mean = tl.sum(x) / N
        if FAULT == "padding":
            left = x - mean  # fault: padding
        else:
            left = tl.where(n < N, x - mean, 0.0)
        scale = tl.sum(left * left)
        tl.store(out_ptr + row * stride + n, left / scale, mask=inside)


@triton.jit
def tile_of(number, columns, FAULT: tl.constexpr):
    if FAULT == "tile":
        i = number % columns  # fault: tile
    else:
        i = number // columns
    return i, number % columns


@triton.jit
def matmul_kernel(a_ptr, b_ptr, out_ptr, M, N, K, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    """A persistent product: many lines between indices and store."""
    rows, columns = tl.cdiv(M, BLOCK), tl.cdiv(N, BLOCK)
    if FAULT == "steps":
        steps = K // BLOCK  # fault: steps
    else:
        steps = tl.cdiv(K, BLOCK)
    for number in range(tl.program_id(0), rows * columns, tl.num_programs(0)):
        i, j = tile_of(number, columns, FAULT)
        m = i * BLOCK + tl.arange(0, BLOCK)
        n = j * BLOCK + tl.arange(0, BLOCK)
        k = tl.arange(0, BLOCK)
        a_ptrs = a_ptr + m[:, None] * K + k[None, :]
        b_ptrs = b_ptr + k[:, None] * N + n[None, :]
        acc = tl.zeros((BLOCK, BLOCK), tl.float32)
        for step in range(steps):
            left = K - step * BLOCK
            a = tl.load(a_ptrs, mask=(m[:, None] < M) & (k[None, :] < left), other=0.0)
            b = tl.load(b_ptrs, mask=(k[:, None] < left) & (n[None, :] < N), other=0.0)
            if FAULT == "tf32":
                acc = tl.dot(a, b, acc)  # fault: tf32
            else:
                acc = tl.dot(a, b, acc, input_precision="ieee")
            a_ptrs += BLOCK
            if FAULT == "advance":
                b_ptrs += BLOCK * K  # fault: advance
            else:
                b_ptrs += BLOCK * N
        tl.store(out_ptr + m[:, None] * N + n, acc, mask=(m[:, None] < M) & (n < N))


@triton.jit
def buckets_kernel(x_ptr, scratch_ptr, out_ptr, N, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    """Through memory that the program itself wrote: scratch holds prefix sums."""
    n = tl.arange(0, BLOCK)
    inside = n < N
    x = tl.load(x_ptr + n, mask=inside, other=0)
    if FAULT == "weight":
        weighed = x * 3  # fault: weight
    else:
        weighed = x * 2
    tl.store(scratch_ptr + n, tl.cumsum(weighed, 0), mask=inside)
    before = tl.load(scratch_ptr + n - 1, mask=inside & (n > 0), other=0)
    noise = tl.load(x_ptr + N - 1 - n, mask=inside, other=0) * 5  # goes nowhere
    tl.store(out_ptr + N + n, noise, mask=inside)
    tl.store(out_ptr + n, before, mask=inside)


@triton.jit
def chain_kernel(x_ptr, out_ptr, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    """Each program adds what the one before it left; only the first begins from nothing."""
    n = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + n)
    turn = tl.load(out_ptr + BLOCK)
    if turn > 0:
        if FAULT == "forgotten":
            x = tl.load(out_ptr + n)  # fault: forgotten
        else:
            x += tl.load(out_ptr + n)
    tl.store(out_ptr + n, x)
    tl.store(out_ptr + BLOCK, turn + 1)


@triton.jit
def guarded_kernel(x_ptr, out_ptr, N, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    """The first program has nothing to do, as out holds x there."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if FAULT == "guard":
        begins = 1  # fault: guard
    else:
        begins = 0
    if tl.program_id(0) > begins:
        x = tl.load(x_ptr + n, mask=n < N)
        tl.store(out_ptr + n, x + 1, mask=n < N)


@triton.jit
def look_back_kernel(x_ptr, state_ptr, out_ptr, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    """A sum over all programs before: each leaves its own in one word, with a flag."""
    program = tl.program_id(0)
    n = program * BLOCK + tl.arange(0, BLOCK)
    mine = tl.sum(tl.load(x_ptr + n))
    before = 0
    if program > 0:
        word = tl.load(state_ptr + program - 1, volatile=True)
        while word == 0:
            word = tl.load(state_ptr + program - 1, volatile=True)  # waits
        before = word - 1
    if FAULT == "flag":
        if program != 1:
            tl.store(state_ptr + program, before + mine + 1)
    else:
        tl.store(state_ptr + program, before + mine + 1)
    tl.store(out_ptr + program, before)


@triton.jit
def rows_kernel(x_ptr, out_ptr, N, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    """A row a program, in blocks that reach into the next row."""
    row, n = tl.program_id(0), tl.arange(0, BLOCK)
    if FAULT == "row":
        row = tl.where(row == 2, 1, row)  # fault: row
    x = tl.load(x_ptr + row * N + n, mask=n < N, other=0.0)
    tl.store(out_ptr + row * N + n, x, mask=n < N)


@triton.jit
def assembly_kernel(x_ptr, out_ptr, ASM: tl.constexpr, BLOCK: tl.constexpr):
    n = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + n)
    y = tl.inline_asm_elementwise(ASM, "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(out_ptr + n, y)


@triton.jit
def stepping_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    row, n = tl.program_id(0), tl.arange(0, BLOCK)
    for _ in range(0, N, BLOCK):
        tl.store(out_ptr + row * N + n, tl.load(x_ptr + row * N + n, mask=n < N), mask=n < N)
        n += BLOCK // 2  # fault: half a step


@triton.jit
def ends_of(x):
    return tl.min(x), tl.max(x), tl.min(x)


@triton.jit
def range_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """Of each row the difference of its ends; two too much."""
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    low, high, _ = ends_of(x)
    both = (low, high)
    tl.store(out_ptr + tl.program_id(0), both[1] - both[0] + 2)
