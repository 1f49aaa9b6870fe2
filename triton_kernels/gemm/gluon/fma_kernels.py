"""The product of float32 matrices by multiply-adds ("ieee"), for compute capability 9.0, in Gluon.

All threads of a program multiply; one of them also loads, by descriptors, STAGES - 1 steps of K
ahead. A thread computes a small block of the tile, for which it reads four elements at once from
each row of K. Where K is contiguous in shared memory, these are four neighbours along K of one row
of a or column of b, and neighbouring threads have neighbouring rows, which the swizzle spreads over
all banks. Otherwise they are four neighbouring rows or columns.

Multiply-adds one after the other would let the error grow with √K. So a sum over EVERY steps starts
at 0, and is added to the sum of those before. If a thread has too many elements to hold both sums
in registers, shared memory keeps the latter (KEPT).

Arguments are as in gemm.gluon.kernels.
"""

from __future__ import annotations

from triton_kernels.gemm.gluon.kernels import (
    _advanced,
    _bias_row,
    _item,
    _leave,
    _load,
    _parts,
    _places,
    _ptrs,
    _with_addend,
)
from triton_kernels.gemm.gluon.versions import (
    fence_async_shared,
    gdc_wait,
    gl,
    gluon,
    mbarrier,
    thread_barrier,
)
from triton_kernels.gemm.kernels import named, swizzle

VECTOR = gl.constexpr(4)  # elements that a thread reads at once
ROWS = gl.constexpr(8)  # after so many rows of shared memory the swizzle repeats


@gluon.constexpr_function
def _block(A_T, B_T, LANES_M, WARPS_M, WARPS):
    """The layout of the tile over the threads: LANES_M threads of a warp along M, and WARPS_M
    warps. A thread's rows and columns are neighbours in fours, or apart if K is contiguous."""
    return gl.BlockedLayout(
        [4 if A_T else 1, 1 if B_T else 4],
        [LANES_M, 32 // LANES_M],
        [WARPS_M, WARPS // WARPS_M],
        [1, 0],
    )


@gluon.constexpr_function
def _by_vectors(M, N, WARPS):
    """The layout of an M × N tile in which a thread's elements are vectors of a row."""
    lanes = min(32, N // 4)
    return gl.BlockedLayout([1, 4], [32 // lanes, lanes], [WARPS, 1], [1, 0])


@gluon.jit
def _multiply_add(a, b, acc, A_T: gl.constexpr, B_T: gl.constexpr):
    """Add the products of one step: of a, [M, K] or [K, M] if A_T, and b, [K, N] or [N, K] if B_T,
    in shared memory."""
    lying: gl.constexpr = acc.type.layout
    M: gl.constexpr = acc.shape[0]
    N: gl.constexpr = acc.shape[1]
    DEPTH: gl.constexpr = VECTOR if B_T and not A_T else ROWS
    STEP: gl.constexpr = a.shape[0 if A_T else 1]
    for k in gl.static_range(0, STEP, DEPTH):
        if A_T:
            x = a.slice(k, DEPTH, 0).permute((1, 0))
        else:
            x = a.slice(k, DEPTH, 1)
        if B_T:
            y = b.slice(k, DEPTH, 1).permute((1, 0))
        else:
            y = b.slice(k, DEPTH, 0)
        x = x.load(gl.DotOperandLayout(0, lying, 0))
        columns = _parts(x, DEPTH)
        y = y.load(gl.DotOperandLayout(1, lying, 0))
        rows = _parts(y.permute((1, 0)), DEPTH)
        for i in gl.static_range(DEPTH):
            column = gl.convert_layout(columns[i], lying, assert_trivial=True)
            row = gl.convert_layout(rows[i].permute((1, 0)), lying, assert_trivial=True)
            acc = gl.fma(column.broadcast_to(M, N), row.broadcast_to(M, N), acc)
    return acc


@gluon.jit
def _sum(sums, parts, SIZE: gl.constexpr, acc):
    """The sum of a block's parts, which are SIZE elements apart, added in their order."""
    ELEMENTS: gl.constexpr = acc.shape[0] * acc.shape[1] // (32 * gl.num_warps())
    LOADS: gl.constexpr = 4 if ELEMENTS <= 32 else 1  # in flight, as registers allow
    acc = gl.load(sums + _places(acc), cache_modifier=".cg")
    together = (parts - 1) // LOADS * LOADS
    for i in range(1, 1 + together, LOADS):
        loaded = ()
        for j in gl.static_range(LOADS):
            ptrs = sums + (i + j) * SIZE + _places(acc)
            loaded += (gl.load(ptrs, cache_modifier=".cg"),)
        for j in gl.static_range(LOADS):
            acc += loaded[j]
    for i in range(1 + together, parts):
        acc += gl.load(sums + i * SIZE + _places(acc), cache_modifier=".cg")
    return acc


@gluon.jit(do_not_specialize=["alpha", "beta", "parts"], repr=named("gluon_fma"))
def gemm_gluon_fma_kernel(
    a_desc,
    b_desc,
    bias_ptr,
    c_ptr,
    out,
    pre,
    workspace,
    counters,
    size,
    c_strides,
    out_strides,
    alpha,
    beta,
    parts,
    OP: gl.constexpr,
    ACT: gl.constexpr,
    A_T: gl.constexpr,
    B_T: gl.constexpr,
    LANES_M: gl.constexpr,
    WARPS_M: gl.constexpr,
    EVERY: gl.constexpr,
    KEPT: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr,
    STAGES: gl.constexpr,
    WAITS: gl.constexpr,
):
    """Each program computes one tile of out, or a part of its sum over K.

    If A_T, a_desc describes a's transpose, [K, M]; if B_T, b_desc describes b's, [N, K]. WAITS:
    whether the launch that copies an operand may still run.
    """
    M, N, K = size
    lying: gl.constexpr = _block(A_T, B_T, LANES_M, WARPS_M, gl.num_warps())
    stages: gl.constexpr = [STAGES]
    a_buffer = gl.allocate_shared_memory(a_desc.dtype, stages + a_desc.block_shape, a_desc.layout)
    b_buffer = gl.allocate_shared_memory(b_desc.dtype, stages + b_desc.block_shape, b_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
    fence_async_shared()
    shape: gl.constexpr = [BLOCK_M, BLOCK_N]
    if KEPT:
        kept = gl.allocate_shared_memory(
            gl.float32, shape, gl.SwizzledSharedLayout(8, 1, 4, [1, 0])
        )
    else:
        total = gl.zeros(shape, gl.float32, lying)
    acc = gl.zeros(shape, gl.float32, lying)
    if WAITS:
        gdc_wait()
    descs = (a_desc, b_desc)
    buffers = (a_buffer, b_buffer)
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    split = (workspace, counters, parts)
    tile, part, first, end = _item(gl.program_id(0), tiles, gl.cdiv(K, BLOCK_K), split)
    tile_m, tile_n = swizzle(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
    for i in gl.static_range(STAGES - 1):
        step = first + i
        _load(descs, buffers, full, i, m, n, step * BLOCK_K, step < end, A_T, B_T)
    stage = gl.to_tensor(0)
    phase = gl.to_tensor(0)
    for begin in range(first, end, EVERY):
        acc = gl.zeros(shape, gl.float32, lying)
        for step in range(begin, gl.minimum(begin + EVERY, end)):
            thread_barrier()  # all threads have read the stage that is filled next
            before = gl.where(stage == 0, STAGES - 1, stage - 1)
            ahead = step + STAGES - 1
            _load(descs, buffers, full, before, m, n, ahead * BLOCK_K, ahead < end, A_T, B_T)
            mbarrier.wait(full.index(stage), phase)
            acc = _multiply_add(a_buffer.index(stage), b_buffer.index(stage), acc, A_T, B_T)
            stage, phase = _advanced(stage, phase, STAGES)
        if KEPT:
            if begin > first:
                acc += kept.load(lying)
            if begin + EVERY < end:
                kept.store(acc)
        else:
            total += acc
    if not KEPT:
        acc = total
    last = True
    if workspace is not None:
        SIZE: gl.constexpr = BLOCK_M * BLOCK_N
        if SIZE <= 16 * 32 * gl.num_warps():  # larger tiles have few parts, so it does not pay
            acc = gl.convert_layout(acc, _by_vectors(BLOCK_M, BLOCK_N, gl.num_warps()))
        sums = workspace + tile.to(gl.int64) * parts * SIZE
        _leave(sums, part, SIZE, acc)
        thread_barrier()
        last = gl.atomic_add(counters + tile, 1, sem="acq_rel") == parts - 1
        if last:
            gl.store(counters + tile, 0)
            acc = _sum(sums, parts, SIZE, acc)
    if last:
        now: gl.constexpr = acc.type.layout
        acc = alpha * acc
        if bias_ptr is not None:
            acc += _bias_row(bias_ptr, n, N, BLOCK_N, now).to(gl.float32)[None, :]
        acc = _with_addend(acc, m, n, size, c_ptr, c_strides, beta)
        if pre is not None:
            ptrs, mask = _ptrs(pre, acc, m, n, size, out_strides)
            gl.store(ptrs, acc.to(pre.dtype.element_ty), mask=mask)
        ptrs, mask = _ptrs(out, acc, m, n, size, out_strides)
        gl.store(ptrs, ACT(acc).to(out.dtype.element_ty), mask=mask)
