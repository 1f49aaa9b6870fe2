"""Matrix products whose work is dealt out otherwise: persistent programs, split K, tables."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gallery.exhibits import Launch, exhibit, near, normal
from gallery.products import product_bound

TL_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@triton.jit
def tile_of(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    in_group = GROUP_M * tiles_n
    first = tile // in_group * GROUP_M
    group_size = min(tiles_m - first, GROUP_M)
    return first + tile % group_size, (tile % in_group) // group_size


@triton.jit
def persistent_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bk, stride_cm,
    BLOCK: tl.constexpr, GROUP_M: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(M, BLOCK), tl.cdiv(N, BLOCK)
    # The epilogue counts the tiles itself, so that the compiler can overlap it with the next loads.
    stored = tl.program_id(0) - PROGRAMS
    # fault tile id off by the number of programs: stored = tl.program_id(0)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, PROGRAMS, flatten=True):
        # fault last tile left out:
        #    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n - 1, PROGRAMS):
        tile_m, tile_n = tile_of(tile, tiles_m, tiles_n, GROUP_M)
        m = tile_m * BLOCK + tl.arange(0, BLOCK)
        n = tile_n * BLOCK + tl.arange(0, BLOCK)
        m = tl.where(m < M, m, 0)
        # fault rows past the last: m = tl.where(m < M + 1, m, 0)
        n = tl.where(n < N, n, 0)
        acc = tl.zeros((BLOCK, BLOCK), tl.float32)
        for step in range(tl.cdiv(K, BLOCK)):
            k = step * BLOCK + tl.arange(0, BLOCK)
            a_ptrs = a_ptr + m[:, None] * stride_am + k[None, :]
            b_ptrs = b_ptr + k[:, None] * stride_bk + n[None, :]
            a = tl.load(a_ptrs, mask=k[None, :] < K, other=0.0)
            b = tl.load(b_ptrs, mask=k[:, None] < K, other=0.0)
            acc = tl.dot(a, b, acc, input_precision="ieee")
        stored += PROGRAMS
        # fault the tile after the next: stored += 2 * PROGRAMS
        tile_m, tile_n = tile_of(stored, tiles_m, tiles_n, GROUP_M)
        m = tile_m * BLOCK + tl.arange(0, BLOCK)
        n = tile_n * BLOCK + tl.arange(0, BLOCK)
        c_ptrs = c_ptr + m[:, None] * stride_cm + n[None, :]
        tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


@exhibit(
    {
        "tile id off by the number of programs": ("wrong values",),
        "last tile left out": ("wrong values", "never stored"),
        "rows past the last": ("out of bounds", "a_ptr"),
        "the tile after the next": ("wrong values",),
    }
)
def persistent_matmul(dtype: torch.dtype) -> Launch:
    a, b = normal(40, 20, dtype=dtype), normal(20, 40, seed=1, dtype=dtype)
    args = (a, b, torch.zeros(40, 40, dtype=dtype), 40, 40, 20, 20, 40, 40)
    right = {"c_ptr": a.double() @ b.double()}
    bound = product_bound(dtype, a, b)
    return Launch(
        persistent_kernel, (4,), args, right, bound=bound, BLOCK=16, GROUP_M=2, PROGRAMS=4
    )


@triton.jit
def descriptor_kernel(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
    """c = a @ b.T by tensor descriptors; a tile is stored in two halves."""
    a_desc = tl.make_tensor_descriptor(
        a_ptr, shape=[M, K], strides=[K, 1], block_shape=[BLOCK, BLOCK]
    )
    shape = [N, K]
    # fault rows of the other operand: shape = [M, K]
    b_desc = tl.make_tensor_descriptor(b_ptr, shape, strides=[K, 1], block_shape=[BLOCK, BLOCK])
    c_desc = tl.make_tensor_descriptor(
        c_ptr, shape=[M, N], strides=[N, 1], block_shape=[BLOCK, BLOCK // 2]
    )
    tiles_n = tl.cdiv(N, BLOCK)
    for tile in range(tl.program_id(0), tl.cdiv(M, BLOCK) * tiles_n, PROGRAMS):
        m, n = tile // tiles_n * BLOCK, tile % tiles_n * BLOCK
        acc = tl.zeros((BLOCK, BLOCK), tl.float32)
        for k in range(0, K, BLOCK):
            # fault K remainder dropped: for k in range(0, K // BLOCK * BLOCK, BLOCK):
            a = a_desc.load([m, k])
            b = b_desc.load([n, k])
            # fault coordinates turned round: b = b_desc.load([k, n])
            acc = tl.dot(a, b.T, acc, input_precision="ieee")
        acc = tl.permute(tl.reshape(acc, (BLOCK, 2, BLOCK // 2)), (0, 2, 1))
        left, right = tl.split(acc)
        c_desc.store([m, n], left.to(c_ptr.dtype.element_ty))
        c_desc.store([m, n + BLOCK // 2], right.to(c_ptr.dtype.element_ty))
        # fault second half over the first: c_desc.store([m, n], right.to(c_ptr.dtype.element_ty))


@exhibit(
    {
        "rows of the other operand": ("wrong values",),
        "K remainder dropped": ("wrong values",),
        "coordinates turned round": ("wrong values",),
        "second half over the first": ("wrong values", "never stored"),
    }
)
def matmul_by_descriptors(dtype: torch.dtype) -> Launch:
    a, b = normal(24, 40, dtype=dtype), normal(48, 40, seed=1, dtype=dtype)
    args = (a, b, torch.zeros(24, 48, dtype=dtype), 24, 48, 40)
    right = {"c_ptr": a.double() @ b.T.double()}
    bound = product_bound(dtype, a, b.T)
    return Launch(descriptor_kernel, (4,), args, right, bound=bound, BLOCK=16, PROGRAMS=4)


@triton.jit
def split_k_kernel(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK: tl.constexpr, SPLIT: tl.constexpr):
    """Each program takes every SPLIT-th block of K, and adds what it got."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    part = tl.program_id(2)
    k = part * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for step in range(tl.cdiv(K, BLOCK * SPLIT)):
        left = K - step * BLOCK * SPLIT
        # fault what is left of K miscounted: left = K - step * BLOCK
        a = tl.load(a_ptr + m * K + k[None, :] + step * BLOCK * SPLIT,
                    mask=(m < M) & (k[None, :] < left), other=0.0)  # fmt: skip
        b = tl.load(b_ptr + (k[:, None] + step * BLOCK * SPLIT) * N + n,
                    mask=(k[:, None] < left) & (n < N), other=0.0)  # fmt: skip
        acc = tl.dot(a, b, acc, input_precision="ieee")
    c_ptrs = c_ptr + m * N + n
    mask = (m < M) & (n < N)
    tl.atomic_add(c_ptrs, acc, mask=mask)
    # fault stored instead of added: tl.store(c_ptrs, acc, mask=mask)
    # fault added by the first part alone: tl.atomic_add(c_ptrs, acc, mask=mask & (part == 0))
    # fault added without atomics: tl.store(c_ptrs, acc + tl.load(c_ptrs, mask=mask), mask=mask)


@exhibit(
    {
        "what is left of K miscounted": ("out of bounds", "a_ptr"),
        "stored instead of added": ("race", "c_ptr"),
        "added by the first part alone": ("wrong values",),
        "added without atomics": ("race", "c_ptr"),
        "an output that nobody initialised": ("uninitialised memory", "c_ptr"),
    }
)
def split_k_matmul(dtype: torch.dtype) -> Launch:
    a, b = normal(16, 72, dtype=dtype), normal(72, 24, seed=1, dtype=dtype)
    args = (a, b, torch.zeros(16, 24), 16, 24, 72)
    holds_nothing: tuple[str, ...] = ()
    # fault an output that nobody initialised: holds_nothing = ("c_ptr",)
    return Launch(
        split_k_kernel,
        (1, 2, 2),
        args,
        {"c_ptr": a.double() @ b.double()},
        bound=product_bound(torch.float32, a, b),
        uninitialized=holds_nothing,
        BLOCK=16,
        SPLIT=2,
    )


@triton.jit
def grouped_gemm_kernel(
    addresses_ptr, sizes_ptr, c_ptr, GROUPS,
    DTYPE: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Products of different sizes; the operands' addresses stand in a table, c's lie in one row."""
    tile = tl.program_id(0)
    end = 0
    for g in range(GROUPS):
        M = tl.load(sizes_ptr + g * 3)
        N = tl.load(sizes_ptr + g * 3 + 1)
        K = tl.load(sizes_ptr + g * 3 + 2)
        start = end
        end += tl.cdiv(M, BLOCK) * tl.cdiv(N, BLOCK)
        # fault tiles rounded down: end += (M // BLOCK) * tl.cdiv(N, BLOCK)
        while tile >= start and tile < end:
            a_ptr = tl.load(addresses_ptr + g * 2).to(tl.pointer_type(DTYPE))
            b_ptr = tl.load(addresses_ptr + g * 2 + 1).to(tl.pointer_type(DTYPE))
            # fault the first product's operand:
            #    b_ptr = tl.load(addresses_ptr + 1).to(tl.pointer_type(DTYPE))
            tiles_n = tl.cdiv(N, BLOCK)
            m = (tile - start) // tiles_n * BLOCK + tl.arange(0, BLOCK)[:, None]
            n = (tile - start) % tiles_n * BLOCK + tl.arange(0, BLOCK)[None, :]
            acc = tl.zeros((BLOCK, BLOCK), tl.float32)
            for k in range(0, K, BLOCK):
                a_k = k + tl.arange(0, BLOCK)[None, :]
                b_k = k + tl.arange(0, BLOCK)[:, None]
                a = tl.load(a_ptr + m * K + a_k, mask=(m < M) & (a_k < K), other=0.0)
                # fault a stride for another:
                #    a = tl.load(a_ptr + m * N + a_k, mask=(m < M) & (a_k < K), other=0.0)
                b = tl.load(b_ptr + b_k * N + n, mask=(b_k < K) & (n < N), other=0.0)
                acc = tl.dot(a, b, acc, input_precision="ieee")
            tl.store(c_ptr + m * N + n, acc, mask=(m < M) & (n < N))
            # fault rows not masked: tl.store(c_ptr + m * N + n, acc, mask=n < N)
            tile += PROGRAMS
        c_ptr += M * N
        # fault the next product's place: c_ptr += M * K


@exhibit(
    {
        "tiles rounded down": ("wrong values", "never stored"),
        "the first product's operand": ("out of bounds", "a tensor that is no argument"),
        "a stride for another": ("out of bounds", "a tensor that is no argument"),
        "rows not masked": ("out of bounds", "c_ptr"),
        "the next product's place": ("wrong values",),
    }
)
def grouped_gemm(dtype: torch.dtype) -> Launch:
    sizes = [(20, 24, 16), (24, 16, 32)]
    pairs = [(normal(m, k, seed=m, dtype=dtype), normal(k, n, seed=n, dtype=dtype))
             for m, n, k in sizes]  # fmt: skip
    right = torch.cat([(a.double() @ b.double()).flatten() for a, b in pairs])
    bounds = torch.cat([(a.double().abs() @ b.double().abs()).flatten() for a, b in pairs])
    table = torch.tensor([t.data_ptr() for pair in pairs for t in pair])
    c = torch.zeros(len(right))
    launch = Launch(
        grouped_gemm_kernel,
        (3,),
        (table, torch.tensor(sizes, dtype=torch.int32), c, 2),
        {"c_ptr": right},
        bound=near(torch.float32, bounds, 44 * 2.0**-24),
        DTYPE=TL_TYPES[dtype],
        BLOCK=16,
        PROGRAMS=3,
    )
    launch.alive = pairs
    return launch


@triton.jit
def flat_index(pid, N, BLOCK: tl.constexpr):
    return pid // tl.cdiv(N, BLOCK), pid % tl.cdiv(N, BLOCK)


@triton.jit
def atomic_order_kernel(a_ptr, b_ptr, c_ptr, next_ptr, M, N, K, BLOCK: tl.constexpr):
    """Stream of tiles: whoever is free draws the next one's number."""
    tiles = tl.cdiv(M, BLOCK) * tl.cdiv(N, BLOCK)
    tile = tl.atomic_add(next_ptr, 1)
    # fault read instead of drawn: tile = tl.load(next_ptr)
    while tile < tiles:
        # fault one tile too few: while tile < tiles - 1:
        tile_m, tile_n = flat_index(tile, N, BLOCK)
        m = tile_m * BLOCK + tl.arange(0, BLOCK)[:, None]
        n = tile_n * BLOCK + tl.arange(0, BLOCK)[None, :]
        acc = tl.zeros((BLOCK, BLOCK), tl.float32)
        for start in range(0, K, BLOCK):
            k = start + tl.arange(0, BLOCK)
            a = tl.load(a_ptr + m * K + k[None, :], mask=(m < M) & (k[None, :] < K), other=0.0)
            b = tl.load(b_ptr + k[:, None] * N + n, mask=(k[:, None] < K) & (n < N), other=0.0)
            acc += tl.dot(a, b, input_precision="ieee")
        tl.store(c_ptr + m * N + n, acc, mask=(m < M) & (n < N))
        # fault no mask for the last rows: tl.store(c_ptr + m * N + n, acc, mask=n < N)
        tile = tl.atomic_add(next_ptr, 1)


@exhibit(
    {
        "read instead of drawn": ("race", "next_ptr"),
        "one tile too few": ("wrong values", "never stored"),
        "no mask for the last rows": ("out of bounds", "c_ptr"),
    }
)
def matmul_that_draws_tiles(dtype: torch.dtype) -> Launch:
    a, b = normal(24, 20, dtype=dtype), normal(20, 24, seed=1, dtype=dtype)
    args = (a, b, torch.zeros(24, 24, dtype=dtype), torch.zeros(1, dtype=torch.int32), 24, 24, 20)
    right = {"c_ptr": a.double() @ b.double()}
    bound = product_bound(dtype, a, b)
    return Launch(atomic_order_kernel, (3,), args, right, bound=bound, BLOCK=16)
