"""The product of float32 matrices that gemm.parts_kernels has split ("f16x3"), for the tensor cores
of compute capability 9.0, in Gluon.

Its workers are those of gemm.gluon.kernels: a producer and one or two consumers, each with 64 rows
of a tile. A stage holds high and low parts of a and b. A consumer adds the products of a step to
its float32 sums while the tensor cores multiply the next step. So it has two accumulators, of which
they take turns to fill one.

``descs`` is (a, b), ``lows`` the indices at which the low parts begin, ``buffers`` is (high parts
of a, low parts of a, high parts of b, low parts of b), ``scales`` is (of a's rows, of b's columns);
the rest is as in gemm.gluon.kernels.
"""

from __future__ import annotations

from triton_kernels.gemm.gluon.kernels import (
    PART_M,
    _accumulator,
    _advanced,
    _bias_row,
    _finish,
    _result_buffers,
)
from triton_kernels.gemm.gluon.versions import (
    fence_async_shared,
    gdc_wait,
    gl,
    gluon,
    load_tile,
    mbarrier,
    store_wait,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton_kernels.gemm.kernels import named, swizzle

PRODUCTS = gl.constexpr(3)  # of parts in a step


@gluon.jit
def _produce_parts(
    descs, lows, buffers, barriers, size,
    A_T: gl.constexpr, B_T: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The producer's work: all loads."""
    a_desc, b_desc = descs
    a_low, b_low = lows
    a_high_buffer, a_low_buffer, b_high_buffer, b_low_buffer = buffers
    full, empty = barriers
    M, N, K = size
    step_bytes: gl.constexpr = 2 * (a_desc.block_type.nbytes + b_desc.block_type.nbytes)
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    stage = gl.to_tensor(0)
    phase = gl.to_tensor(1)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        tile_m, tile_n = swizzle(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        for k in range(0, K, BLOCK_K):
            mbarrier.wait(empty.index(stage), phase)
            bar = full.index(stage)
            mbarrier.expect(bar, step_bytes)
            load_tile(a_desc, [k, m] if A_T else [m, k], bar, a_high_buffer.index(stage))
            load_tile(b_desc, [n, k] if B_T else [k, n], bar, b_high_buffer.index(stage))
            am, bn = a_low + m, b_low + n
            load_tile(a_desc, [k, am] if A_T else [am, k], bar, a_low_buffer.index(stage))
            load_tile(b_desc, [bn, k] if B_T else [k, bn], bar, b_low_buffer.index(stage))
            stage, phase = _advanced(stage, phase, STAGES)


@gluon.jit
def _multiply(
    buffers, full, stage, phase, acc,
    ROW: gl.constexpr, ROWS: gl.constexpr, A_T: gl.constexpr, B_T: gl.constexpr,
):  # fmt: skip
    """Start the products of a step; acc will hold only these. The smallest come first, because the
    tensor cores truncate, and so much the more the larger a sum is."""
    mbarrier.wait(full.index(stage), phase)
    a_high, a_low = buffers[0].index(stage), buffers[1].index(stage)
    b_high, b_low = buffers[2].index(stage), buffers[3].index(stage)
    if A_T:
        a_high = a_high.slice(ROW, ROWS, 1).permute((1, 0))
        a_low = a_low.slice(ROW, ROWS, 1).permute((1, 0))
    else:
        a_high = a_high.slice(ROW, ROWS, 0)
        a_low = a_low.slice(ROW, ROWS, 0)
    if B_T:
        b_high = b_high.permute((1, 0))
        b_low = b_low.permute((1, 0))
    acc = warpgroup_mma(a_low, b_high, acc, use_acc=False, is_async=True)
    acc = warpgroup_mma(a_high, b_low, acc, is_async=True)
    return warpgroup_mma(a_high, b_high, acc, is_async=True)


@gluon.jit
def _consume_parts(
    CONSUMER: gl.constexpr,
    buffers, barriers, size, scales, bias_ptr, c_ptr, c_strides, scalars, outs, out_strides,
    ACT: gl.constexpr, A_T: gl.constexpr, B_T: gl.constexpr, OUT_TMA: gl.constexpr,
    UNIT: gl.constexpr, CONSUMERS: gl.constexpr, PART_N: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """A consumer's work: the products and the epilogue of its rows of every tile."""
    full, empty = barriers
    M, N, K = size
    ROWS: gl.constexpr = BLOCK_M // CONSUMERS
    ROW: gl.constexpr = CONSUMER * ROWS
    lying: gl.constexpr = _accumulator(BLOCK_N)
    steps = gl.cdiv(K, BLOCK_K)
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    stage = gl.to_tensor(0)
    phase = gl.to_tensor(0)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        tile_m, tile_n = swizzle(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m, n = tile_m * BLOCK_M + ROW, tile_n * BLOCK_N
        acc = gl.zeros([ROWS, BLOCK_N], gl.float32, lying)
        even = gl.zeros([ROWS, BLOCK_N], gl.float32, lying)
        odd = gl.zeros([ROWS, BLOCK_N], gl.float32, lying)
        even = _multiply(buffers, full, stage, phase, even, ROW, ROWS, A_T, B_T)
        even, odd = warpgroup_mma_wait(PRODUCTS, deps=(even, odd))  # for none, only for the type
        for _ in range(0, (steps - 1) // 2):
            last = stage
            stage, phase = _advanced(stage, phase, STAGES)
            odd = _multiply(buffers, full, stage, phase, odd, ROW, ROWS, A_T, B_T)
            even, odd = warpgroup_mma_wait(PRODUCTS, deps=(even, odd))
            mbarrier.arrive(empty.index(last), count=1)
            acc += even
            last = stage
            stage, phase = _advanced(stage, phase, STAGES)
            even = _multiply(buffers, full, stage, phase, even, ROW, ROWS, A_T, B_T)
            odd, even = warpgroup_mma_wait(PRODUCTS, deps=(odd, even))
            mbarrier.arrive(empty.index(last), count=1)
            acc += odd
        if steps % 2 == 0:
            last = stage
            stage, phase = _advanced(stage, phase, STAGES)
            odd = _multiply(buffers, full, stage, phase, odd, ROW, ROWS, A_T, B_T)
            even, odd = warpgroup_mma_wait(0, deps=(even, odd))
            mbarrier.arrive(empty.index(last), count=1)
            acc += even
            acc += odd
        else:
            even = warpgroup_mma_wait(0, deps=(even,))
            acc += even
        mbarrier.arrive(empty.index(stage), count=1)
        stage, phase = _advanced(stage, phase, STAGES)
        rows = m + gl.arange(0, ROWS, gl.SliceLayout(1, lying))
        columns = n + gl.arange(0, BLOCK_N, gl.SliceLayout(0, lying))
        by_row = gl.load(scales[0] + rows, mask=rows < M, other=1.0)[:, None]
        by_column = gl.load(scales[1] + columns, mask=columns < N, other=1.0)[None, :]
        # First the smaller scale: then only results that are too large in the end overflow.
        acc = acc * gl.minimum(by_row, by_column) * gl.maximum(by_row, by_column)
        row = _bias_row(bias_ptr, n, N, BLOCK_N, lying)
        _finish(
            (acc,), (row,), m, n, size, c_ptr, c_strides, scalars, outs, out_strides, CONSUMER,
            bias_ptr is not None, ACT, OUT_TMA, False, UNIT, PART_N, BLOCK_N, ROWS // PART_M,
        )  # fmt: skip
    if OUT_TMA:
        store_wait(0)


@gluon.jit(do_not_specialize=["alpha", "beta"], repr=named("gluon_f16x3"))
def gemm_gluon_f16x3_kernel(
    a_desc,
    b_desc,
    a_scales,
    b_scales,
    bias_ptr,
    c_ptr,
    out,
    pre,
    size,
    a_low,
    b_low,
    c_strides,
    out_strides,
    alpha,
    beta,
    OP: gl.constexpr,
    ACT: gl.constexpr,
    A_T: gl.constexpr,
    B_T: gl.constexpr,
    OUT_TMA: gl.constexpr,
    UNIT: gl.constexpr,
    CONSUMERS: gl.constexpr,
    PART_N: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr,
    STAGES: gl.constexpr,
    WAITS: gl.constexpr,
):
    """Each program computes every num_programs-th tile of out. If A_T, a's parts are [K, 2·M], else
    [2·M, K]; if B_T, b's parts are [2·N, K], else [K, 2·N]. If OUT_TMA, out and pre are descriptors
    with blocks of PART_M × PART_N."""
    stages: gl.constexpr = [STAGES]
    a_shape: gl.constexpr = stages + a_desc.block_shape
    b_shape: gl.constexpr = stages + b_desc.block_shape
    a_high_buffer = gl.allocate_shared_memory(a_desc.dtype, a_shape, a_desc.layout)
    a_low_buffer = gl.allocate_shared_memory(a_desc.dtype, a_shape, a_desc.layout)
    b_high_buffer = gl.allocate_shared_memory(b_desc.dtype, b_shape, b_desc.layout)
    b_low_buffer = gl.allocate_shared_memory(b_desc.dtype, b_shape, b_desc.layout)
    out_buffer = _result_buffers(out, CONSUMERS, PART_N, OUT_TMA, False)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=CONSUMERS)
    fence_async_shared()
    descs = (a_desc, b_desc)
    buffers = (a_high_buffer, a_low_buffer, b_high_buffer, b_low_buffer)
    barriers = (full, empty)
    scales = (a_scales, b_scales)
    scalars = (alpha, beta)
    outs = (out, pre, out_buffer)
    if WAITS:
        gdc_wait()
    # Registers per thread: 240 in consumers, 24 in the producer.
    if CONSUMERS == 2:
        gl.warp_specialize(
            [
                (_consume_parts, (0, buffers, barriers, size, scales, bias_ptr, c_ptr, c_strides,
                                  scalars, outs, out_strides, ACT, A_T, B_T, OUT_TMA, UNIT,
                                  CONSUMERS, PART_N, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES)),
                (_consume_parts, (1, buffers, barriers, size, scales, bias_ptr, c_ptr, c_strides,
                                  scalars, outs, out_strides, ACT, A_T, B_T, OUT_TMA, UNIT,
                                  CONSUMERS, PART_N, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES)),
                (_produce_parts, (descs, (a_low, b_low), buffers, barriers, size, A_T, B_T,
                                  BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_consume_parts, (0, buffers, barriers, size, scales, bias_ptr, c_ptr, c_strides,
                                  scalars, outs, out_strides, ACT, A_T, B_T, OUT_TMA, UNIT,
                                  CONSUMERS, PART_N, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES)),
                (_produce_parts, (descs, (a_low, b_low), buffers, barriers, size, A_T, B_T,
                                  BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES)),
            ],
            [1],
            [24],
        )  # fmt: skip
