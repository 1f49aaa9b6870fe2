"""The matrix product on the tensor cores of compute capability 9.0, in Gluon: of 16-bit matrices,
and of float32 matrices in tf32, which is Gluon's precision for them.

A program consists of a producer, which is one warp that loads, and of one to three consumers, which
are groups of four warps that multiply. It computes one tile after the other. Shared memory has
STAGES stages, each for one step of K. A stage is full when its loads have arrived, and empty when
every consumer that reads it has multiplied it; there is a barrier for each. The producer runs ahead
of the consumers by up to STAGES stages, also past the end of a tile. So the next tile's loads run
during this tile's epilogue.

With several consumers each has an equal share of a tile's rows. With ALTERNATE each of two has its
own tiles, so that one multiplies while the other does its epilogue, and a third barrier passes the
turn to multiply from one to the other.

The number of a block's columns is a power of two. So other tiles have several blocks, each with its
accumulator: of 160 and 192 columns two, BLOCK_N = 128 + 32 and 128 + 64, of 224 three,
128 + 64 + 32, of 288 and 320 two again, 256 + 32 and 256 + 64. So is the number of a block's rows:
with three consumers each loads a block of its own.

If WIDE, these blocks are only loaded: one instruction multiplies by all columns of a tile, see
:mod:`triton_kernels.gemm.gluon.wide`, whose sums are blocks of 8 columns. Its epilogue stores parts
of more columns than divide a tile, and the last part some of them once more: where sums are short
alternating 184×128 takes 0.92 times as long with parts of 32 columns as of 8, though its threads
met once for four of these (H200).

A consumer's products read its rows of a from shared memory once for each block of columns, and
all columns of b. With three blocks or three consumers these reads take longer than the products.
Then, with BY_REGISTERS, a consumer loads its rows to registers first, multiplies them by all
blocks, and waits for these products, while the other consumers multiply.

An epilogue stores a tile in parts, from two buffers of each consumer in turn, so that one part is
stored while the next is computed. All else that a tile needs, its place and its bias, is known
before its products end.

The kernel and its jit functions take related arguments as one tuple: ``size`` is (M, N, K), strides
are (of rows, of columns). A launch may compute a region of the result only: it begins at ``begin``,
which is (row, column), and M and N are its end. The functions also take ``descs`` and ``buffers``
of a and of each block of b, ``barriers`` as (full, empty, turn), ``scalars`` as (alpha, beta),
``outs`` as (out, pre, buffers), ``split`` as (workspace, counters, parts), and ``accs``, the
accumulators of the blocks. The kernel takes these one by one, because a launch does not look for
descriptors and tensors inside tuples. Strides are passed on as they are: a stride of 1 that is
assigned to a name would not be a constant to the workers.
"""

from __future__ import annotations

from triton_kernels._scalars import multiple
from triton_kernels.activations import half_sigmoid, half_silu, leaky_relu, none, relu
from triton_kernels.gemm import configurations
from triton_kernels.gemm.gluon.versions import (
    fence_async_shared,
    gdc_launch_dependents,
    gdc_wait,
    gl,
    gluon,
    load_tile,
    mbarrier,
    reinterpret,
    store_tile,
    store_wait,
    thread_barrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton_kernels.gemm.gluon.wide import (
    wide_awaited,
    wide_columns,
    wide_load,
    wide_multiply,
    wide_stages,
    wide_zeros,
)
from triton_kernels.gemm.kernels import named, part_of, swizzle

PART_M = gl.constexpr(configurations.PART_M)
BUFFERS = gl.constexpr(configurations.BUFFERS)


@gluon.constexpr_function
def _accumulator(columns, DEPTH=16):
    """The layout over four warps of the accumulator of a wgmma over DEPTH elements of K. A thread's
    elements do not depend on DEPTH, so the epilogue uses one layout."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, DEPTH])


@gluon.jit
def _advanced(stage, phase, STAGES: gl.constexpr):
    last = stage == STAGES - 1
    return gl.where(last, 0, stage + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def _items(tiles, split):
    """The number of work items: tiles, or parts of tiles if K is split."""
    items = tiles
    if split[0] is not None:
        items = tiles * split[2]
    return items


@gluon.jit
def _item(item, tiles, steps, split):
    """Tile and part of an item, and its range [first, end) of steps. The first parts of all tiles
    come first."""
    if split[0] is None:
        tile, part, first, end = item, item * 0, item * 0, steps
    else:
        tile, part = item % tiles, item // tiles
        first, end = part_of(steps, part, split[2])
    return tile, part, first, end


@gluon.constexpr_function
def _alignment(A_T, B_T, TURNED):
    """What the first row and column of a tile are multiples of: rows in memory, of a, b and out,
    are divided at multiples of a line."""
    return 64 if A_T or TURNED else 1, 1 if B_T and TURNED else 64


@gluon.jit
def _begin(index, length, BLOCK: gl.constexpr, ALIGN: gl.constexpr):
    """Where a block begins along a matrix. The last is moved inwards, to a multiple of ALIGN."""
    last = gl.cdiv(gl.maximum(length - BLOCK, 0), ALIGN) * ALIGN
    return gl.minimum(index * BLOCK, last)


@gluon.jit
def _tiles(size, begin, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    return gl.cdiv(size[0] - begin[0], BLOCK_M) * gl.cdiv(size[1] - begin[1], BLOCK_N)


@gluon.jit
def _origin(
    tile, size, begin, group_m, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, ALIGN: gl.constexpr
):  # fmt: skip
    """The first row and column of a tile.

    The tiles at the ends of out are moved inwards, so that nearly all of their rows and columns are
    within: programs compute what they have in common twice. Otherwise they would load less, and run
    ahead of the programs that load the same rows of b or columns of a. L2 combines only requests
    of about the same time. 1160×1664×8192 took 1.5 times as long in tiles of 128×128 (H100).
    """
    rows, columns = size[0] - begin[0], size[1] - begin[1]
    tile_m, tile_n = swizzle(tile, rows, columns, BLOCK_M, BLOCK_N, group_m)
    m = begin[0] + _begin(tile_m, rows, BLOCK_M, ALIGN[0])
    n = begin[1] + _begin(tile_n, columns, BLOCK_N, ALIGN[1])
    return m, n


@gluon.constexpr_function
def _blocks(buffers):
    """The blocks of a tile's rows, each of which has its buffers of all stages."""
    return buffers[0].shape[0] // buffers[1].shape[0]


@gluon.constexpr_function
def _bytes(descs, blocks):
    """The bytes of a stage."""
    return sum(desc.block_type.nbytes for desc in [descs[0]] * (blocks - 1) + [*descs])


@gluon.jit
def _load(
    descs, buffers, full, stage, m, n, k, pred,
    A_T: gl.constexpr, B_T: gl.constexpr, BLOCK_M: gl.constexpr = 0, BLOCK_N: gl.constexpr = 0,
):  # fmt: skip
    """Start the loads of one step of K into a stage."""
    if len(buffers) == 1:
        wide_load(descs, buffers[0], full, stage, m, n, k, pred, A_T, BLOCK_M, BLOCK_N)
    else:
        bar = full.index(stage)
        BLOCKS: gl.constexpr = _blocks(buffers)
        mbarrier.expect(bar, _bytes(descs, BLOCKS), pred=pred)
        for i in gl.static_range(BLOCKS):
            block = buffers[0].index(stage * BLOCKS + i)
            load_tile(descs[0], [k, m] if A_T else [m, k], bar, block, pred=pred)
            m += descs[0].block_shape[1 if A_T else 0]
        for i in gl.static_range(1, len(buffers)):
            load_tile(descs[i], [n, k] if B_T else [k, n], bar, buffers[i].index(stage), pred=pred)
            n += descs[i].block_shape[0 if B_T else 1]


@gluon.jit
def _produce(
    descs, buffers, barriers, size, begin, split, group_m, loaded,
    A_T: gl.constexpr, B_T: gl.constexpr, ALIGN: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The producer's work: all loads, except the first ``loaded`` steps of the first item, which
    have been started."""
    full, empty, _turn = barriers
    steps = gl.cdiv(size[2], BLOCK_K)
    tiles = _tiles(size, begin, BLOCK_M, BLOCK_N)
    start = gl.program_id(0)
    items = _items(tiles, split)
    stage = gl.where(loaded == STAGES, 0, loaded)
    phase = gl.where(loaded == STAGES, 0, 1)
    for item in range(start, items, gl.num_programs(0)):
        tile, _part, first, end = _item(item, tiles, steps, split)
        m, n = _origin(tile, size, begin, group_m, BLOCK_M, BLOCK_N, ALIGN)
        for step in range(gl.where(item == start, first + loaded, first), end):
            mbarrier.wait(empty.index(stage), phase)
            _load(
                descs, buffers, full, stage, m, n, step * BLOCK_K, True, A_T, B_T, BLOCK_M, BLOCK_N
            )
            stage, phase = _advanced(stage, phase, STAGES)


@gluon.jit
def _parts(x, PARTS: gl.constexpr):
    """A matrix cut into PARTS parts of equal width. Only registers are renamed; nothing moves."""
    parts = (x,)
    for _ in gl.static_range(PARTS.bit_length() - 1):
        halves = ()
        for i in gl.static_range(len(parts)):
            part = parts[i]
            part = part.reshape(part.shape[0], 2, part.shape[1] // 2).permute(0, 2, 1)
            halves += part.split()
        parts = halves
    return parts


@gluon.jit
def _bias(bias_ptr, first, size, LENGTH: gl.constexpr, LYING: gl.constexpr):
    """The bias from its element ``first`` on, with this layout; 0 without a bias."""
    if bias_ptr is not None:
        index = first + gl.arange(0, LENGTH, LYING)
        bias = gl.load(bias_ptr + index, mask=index < size, other=0.0)
    else:
        bias = 0.0
    return bias


@gluon.jit
def _bias_row(bias_ptr, n, N, COLUMNS: gl.constexpr, LYING: gl.constexpr):
    """The bias of the columns of a block with this layout."""
    return _bias(bias_ptr, n, N, COLUMNS, gl.SliceLayout(0, LYING))


@gluon.jit
def _bias_of(
    bias_ptr, m, n, size,
    ROWS: gl.constexpr, COLUMNS: gl.constexpr, TURNED: gl.constexpr,
):  # fmt: skip
    """The bias of the accumulator at (m, n): of its columns, or of its rows if TURNED."""
    LYING: gl.constexpr = _accumulator(COLUMNS)
    if TURNED:
        bias = _bias(bias_ptr, m, size[0], ROWS, gl.SliceLayout(1, LYING))
    else:
        bias = _bias_row(bias_ptr, n, size[1], COLUMNS, LYING)
    return bias


@gluon.jit
def _store(
    out, buffer, part, m, n, size, strides,
    OUT_TMA: gl.constexpr, TURNED: gl.constexpr, UNIT: gl.constexpr,
):  # fmt: skip
    """Store a part of a tile whose first element is (m, n), through a buffer in shared memory. out
    is a descriptor if OUT_TMA. If TURNED, the buffer and the descriptor are of the transpose."""
    if OUT_TMA:
        store_wait(BUFFERS - 1)  # until the buffer has been read, if they are used in turn
    if TURNED:
        buffer.permute((1, 0)).store(part.to(buffer.dtype))
    else:
        buffer.store(part.to(buffer.dtype))
    if OUT_TMA:
        fence_async_shared()
        store_tile(out, [n, m] if TURNED else [m, n], buffer)
    elif TURNED:
        _copy(out, buffer, n, m, (size[1], size[0]), (strides[1], strides[0]), UNIT)
    else:
        _copy(out, buffer, m, n, size, strides, UNIT)


@gluon.constexpr_function
def _by_rows(columns, unit):
    """The layout in which threads store ``unit`` neighbours each, and a warp up to 32 times as
    many, which is the best for unaligned rows."""
    across = min(32, columns // unit)
    return gl.BlockedLayout([1, unit], [32 // across, across], [4, 1], [1, 0])


@gluon.jit
def _copy(out, buffer, m, n, size, strides, UNIT: gl.constexpr):
    """Copy a buffer to the place in a matrix that begins at (m, n).

    A few rows at a time, in a loop that the compiler cannot unroll: together with the sums, the
    pointers to all elements would need more registers than a thread has. 11654×2457×188 took 1.3
    times as long so, 1.6 times with the pre-activation (H100).
    """
    ROWS: gl.constexpr = min(16, buffer.shape[0])
    CHUNKS: gl.constexpr = buffer.shape[0] // ROWS
    COLUMNS: gl.constexpr = buffer.shape[1]
    rows, columns = size[0], multiple(size[1], UNIT)
    chunks = reinterpret(buffer, buffer.dtype, [CHUNKS, ROWS, COLUMNS], buffer.layout)
    for i in range(gl.minimum(gl.cdiv(rows - m, ROWS), CHUNKS)):
        chunk = chunks.index(i).load(_by_rows(COLUMNS, UNIT))
        ptrs, mask = _ptrs(
            out, chunk, m + i * ROWS, n, (rows, columns), (multiple(strides[0], UNIT), strides[1])
        )
        gl.store(ptrs, chunk, mask=mask)


@gluon.jit
def _stages_of(desc, STAGES: gl.constexpr):
    """The stages of what a descriptor loads."""
    count: gl.constexpr = [STAGES]
    return gl.allocate_shared_memory(desc.dtype, count + desc.block_shape, desc.layout)


@gluon.jit
def _result_buffers(
    out,
    CONSUMERS: gl.constexpr, PART_N: gl.constexpr, OUT_TMA: gl.constexpr, TURNED: gl.constexpr,
):  # fmt: skip
    """BUFFERS buffers for each consumer: while one part of a tile is read from there, the next is
    written to another."""
    count: gl.constexpr = [BUFFERS * CONSUMERS]
    if OUT_TMA:
        buffers = gl.allocate_shared_memory(out.dtype, count + out.block_shape, out.layout)
    else:
        block: gl.constexpr = [PART_N, PART_M] if TURNED else [PART_M, PART_N]
        swizzled: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
        buffers = gl.allocate_shared_memory(out.dtype.element_ty, count + block, swizzled)
    return buffers


@gluon.jit
def _ptrs(matrix, part, m, n, size, strides):
    """Pointers to the elements of a matrix with these strides that a part has, whose first is at
    (m, n); and the mask of those that the matrix has."""
    lying: gl.constexpr = part.type.layout
    # 64 bits from the start: from rows and columns of 32, converted later, Triton 3.6 makes a
    # kernel that adds wrong biases in tiles of 160 columns (H100).
    rows = m.to(gl.int64) + gl.arange(0, part.shape[0], gl.SliceLayout(1, lying))
    columns = n.to(gl.int64) + gl.arange(0, part.shape[1], gl.SliceLayout(0, lying))
    # Added one by one, so that no thread keeps an offset for each of its elements in registers.
    of_rows = matrix + rows * strides[0]
    ptrs = of_rows[:, None] + (columns * strides[1])[None, :]
    return ptrs, (rows[:, None] < size[0]) & (columns[None, :] < size[1])


@gluon.jit
def _with_addend(part, m, n, size, c_ptr, c_strides, beta, C_UNIT: gl.constexpr = 1):
    """The part plus beta·c, or the part if there is no c."""
    if c_ptr is not None:
        size = size[0], multiple(size[1], C_UNIT)
        c_strides = multiple(c_strides[0], C_UNIT), c_strides[1]
        ptrs, mask = _ptrs(c_ptr, part, m, n, size, c_strides)
        part += beta * gl.load(ptrs, mask=mask, other=0.0).to(gl.float32)
    return part


@gluon.constexpr_function
def _is_relu(ACT):
    return ACT is relu


@gluon.jit
def _activated(part, ACT: gl.constexpr):
    """ACT of a part. relu is PTX, because LLVM would rather convert to 16 bits first and then
    select, one element after the other: alternating 128×128 had 1.23 times as many instructions."""
    if _is_relu(ACT):
        part = gl.inline_asm_elementwise(
            "{ .reg .pred p; setp.lt.f32 p, $1, 0f00000000; selp.f32 $0, 0f00000000, $1, p; }",
            "=r,r",
            [part],
            dtype=gl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        part = ACT(part)
    return part


@gluon.jit
def _cut(acc, PART_N: gl.constexpr):
    """The parts of a block, PART_M × PART_N each, column by column."""
    LYING: gl.constexpr = _accumulator(PART_N)
    parts = ()
    columns = _parts(acc, acc.shape[1] // PART_N)
    for j in gl.static_range(len(columns)):
        rows = _parts(columns[j].permute((1, 0)), acc.shape[0] // PART_M)
        for i in gl.static_range(len(rows)):
            part = rows[i].permute((1, 0))
            parts += (gl.convert_layout(part, LYING, assert_trivial=True),)
    return parts


@gluon.jit
def _scaled(acc, alpha, bias, HAS_BIAS: gl.constexpr, TURNED: gl.constexpr):
    """alpha·acc plus the bias."""
    acc = alpha * acc
    if HAS_BIAS:
        bias = bias.to(gl.float32)
        acc += bias[:, None] if TURNED else bias[None, :]
    return acc


@gluon.jit
def _wide_parts(
    sums, biases, alpha,
    ROWS: gl.constexpr, HAS_BIAS: gl.constexpr, TURNED: gl.constexpr, PART_N: gl.constexpr,
    BLOCK_N: gl.constexpr,
):  # fmt: skip
    """The parts of a consumer's sums of the whole width of a tile, column by column. The last may
    be moved inwards."""
    parts = ()
    for j in gl.static_range((BLOCK_N + PART_N - 1) // PART_N):
        for i in gl.static_range(ROWS):
            part = wide_columns(sums, i, min(j * PART_N, BLOCK_N - PART_N), PART_N, BLOCK_N)
            part = gl.convert_layout(part, _accumulator(PART_N), assert_trivial=True)
            parts += (_scaled(part, alpha, biases[i], HAS_BIAS, TURNED),)
    return parts


@gluon.constexpr_function
def _at_once(parts, ACT, OUT_TMA):
    """How many parts an iteration of the epilogue's loop stores: all if the activation takes up to
    five instructions and a descriptor stores them, else half of them."""
    short = ACT in (none, relu, leaky_relu, half_silu, half_sigmoid)
    return parts if short and OUT_TMA else (parts + 1) // 2


@gluon.jit
def _finish(
    accs, biases, m, n, size, c_ptr, c_strides, scalars, outs, out_strides,
    CONSUMER: gl.constexpr, HAS_BIAS: gl.constexpr, ACT: gl.constexpr, OUT_TMA: gl.constexpr,
    TURNED: gl.constexpr, UNIT: gl.constexpr, PART_N: gl.constexpr, BLOCK_N: gl.constexpr,
    ROWS: gl.constexpr, C_UNIT: gl.constexpr = 1, WIDE: gl.constexpr = False, bias_ptr=None,
    meeting=None,
):  # fmt: skip
    """The epilogue of blocks side by side, whose first element is (m, n). They have ROWS times
    PART_M rows.

    It has instructions for each element of a thread. A program of few tiles executes most of them
    once, and takes longer to fetch than to execute them: 204×6720×8000, one tile a program, took
    3 µs longer with gelu than with relu (H200). So long epilogues are in a loop of two iterations,
    before the second of which its parts move to the registers of the first's: 1 µs. Short ones
    would lose more by the moves, and all by more iterations.

    If K is split, ``meeting`` is what :func:`_meet` takes. Then programs meet in each of the two
    iterations, and alpha and the bias follow.
    """
    out, pre, buffers = outs
    STORES: gl.constexpr = 1 if pre is None else 2
    WHOLE: gl.constexpr = meeting is None
    HAS: gl.constexpr = HAS_BIAS and WHOLE
    alpha = scalars[0] if WHOLE else 1.0
    if WIDE:
        parts = _wide_parts(accs, biases, alpha, ROWS, HAS, TURNED, PART_N, BLOCK_N)
    else:
        parts = ()
        for block in gl.static_range(len(accs)):
            acc = _scaled(accs[block], alpha, biases[block], HAS, TURNED)
            parts += _cut(acc, PART_N)
    PARTS: gl.constexpr = len(parts)
    TOGETHER: gl.constexpr = _at_once(PARTS, ACT, OUT_TMA and WHOLE)
    end = PARTS
    if TOGETHER < PARTS:  # the compiler would unroll a loop whose end it knows
        end = gl.minimum(PARTS, gl.cdiv(size[1] - n, PART_N) * ROWS)
    swap = gl.to_tensor(0)
    seen = gl.to_tensor(0)
    if not WHOLE and TOGETHER < PARTS:
        swap = meeting[3] % 2 * (gl.cdiv(end, TOGETHER) - 1)
        parts = _swapped(parts, swap, TOGETHER)
    if OUT_TMA:
        store_wait(0)
    for begin in range(0, end, TOGETHER):
        first = begin
        last = True
        sums = parts[:TOGETHER]
        if not WHOLE:
            first = gl.where(swap != 0, TOGETHER - begin, begin)
            of_parts = ()
            for j in gl.static_range(TOGETHER):
                part_m, part_n = _corner(first + j, m, n, ROWS, PART_N, BLOCK_N)
                of_parts += (_bias_of(bias_ptr, part_m, part_n, size, PART_M, PART_N, TURNED),)
            last, seen, added = _meet(sums, gl.where(first > 0, 1, 0), seen, meeting)
            sums = ()
            for j in gl.static_range(TOGETHER):
                sums += (_scaled(added[j], scalars[0], of_parts[j], HAS_BIAS, TURNED),)
            if OUT_TMA:  # a half may end and the other begin with the same buffer
                store_wait(0)
        if last:
            for j in gl.static_range(TOGETHER):
                i = first + j
                if (WHOLE and PARTS % TOGETHER == 0) or i < PARTS:
                    part_m, part_n = _corner(i, m, n, ROWS, PART_N, BLOCK_N)
                    part = _with_addend(
                        sums[j], part_m, part_n, size, c_ptr, c_strides, scalars[1], C_UNIT
                    )
                    if pre is not None:
                        _store(
                            pre, buffers.index(BUFFERS * CONSUMER), part, part_m, part_n, size,
                            out_strides, OUT_TMA, TURNED, UNIT,
                        )  # fmt: skip
                    buffer = buffers.index(BUFFERS * CONSUMER + ((i + 1) * STORES - 1) % BUFFERS)
                    _store(
                        out, buffer, _activated(part, ACT), part_m, part_n, size, out_strides,
                        OUT_TMA, TURNED, UNIT,
                    )  # fmt: skip
        parts = parts[TOGETHER:] + parts[len(parts) - TOGETHER :]


@gluon.jit
def _corner(i, m, n, ROWS: gl.constexpr, PART_N: gl.constexpr, BLOCK_N: gl.constexpr):
    """The first element of the i-th part of a tile at (m, n). The last may be moved inwards."""
    return m + i % ROWS * PART_M, n + gl.minimum(i // ROWS * PART_N, BLOCK_N - PART_N)


@gluon.jit
def _swapped(parts, swap, TOGETHER: gl.constexpr):
    """The parts of both halves of an epilogue, of which the second comes first if ``swap``. Where
    it is shorter it ends with its last part again."""
    second = parts[TOGETHER:]
    if len(second) < TOGETHER:
        second += parts[len(parts) - 1 :]
    left = ()
    right = ()
    for j in gl.static_range(TOGETHER):
        left += (gl.where(swap != 0, second[j], parts[j]),)
        right += (gl.where(swap != 0, parts[j], second[j]),)
    return left + right


@gluon.jit
def _places(acc):
    """The offsets of a block's sums in the workspace, where they are stored as squares of 8 × 8. A
    warp has a square in one pair of registers per thread, so it moves 256 contiguous bytes at
    once."""
    lying: gl.constexpr = acc.type.layout
    rows = gl.arange(0, acc.shape[0], gl.SliceLayout(1, lying))
    columns = gl.arange(0, acc.shape[1], gl.SliceLayout(0, lying))
    by_rows = rows // 8 * (8 * acc.shape[1]) + rows % 8 * 8
    by_columns = columns // 8 * 64 + columns % 8
    return by_rows[:, None] + by_columns[None, :]


@gluon.jit
def _leave(sums, part, size: gl.constexpr, acc):
    """Store one part of a block's sums to the workspace. A part has ``size`` elements."""
    gl.store(sums + part * size + _places(acc), acc)


@gluon.jit
def _rows(buffers, stage, ROW: gl.constexpr, ROWS: gl.constexpr, A_T: gl.constexpr):
    """A consumer's rows of a stage of a: a part of the only block, or one of several blocks."""
    BLOCKS: gl.constexpr = _blocks(buffers)
    FIRST: gl.constexpr = ROW if BLOCKS == 1 else 0
    a = buffers[0].index(stage * BLOCKS + (ROW - FIRST) // ROWS)
    if A_T:
        a = a.slice(FIRST, ROWS, 1).permute((1, 0))
    else:
        a = a.slice(FIRST, ROWS, 0)
    return a


@gluon.jit
def _zeros(buffers, ROWS: gl.constexpr, B_T: gl.constexpr, BLOCK_N: gl.constexpr):
    """The accumulators of a consumer's rows of a tile, one for each block of b."""
    if len(buffers) == 1:
        accs = wide_zeros(ROWS, BLOCK_N)
    else:
        accs = ()
        for i in gl.static_range(1, len(buffers)):
            accs += (_zero(ROWS, _columns(buffers[i], B_T), _depth(buffers[i])),)
    return accs


@gluon.jit
def _zero(ROWS: gl.constexpr, COLUMNS: gl.constexpr, DEPTH: gl.constexpr):
    return gl.zeros([ROWS, COLUMNS], gl.float32, _accumulator(COLUMNS, DEPTH))


@gluon.constexpr_function
def _depth(buffer):
    """The elements of K of a wgmma, which are 32 bytes."""
    return 256 // buffer.dtype.primitive_bitwidth


@gluon.constexpr_function
def _columns(buffer, B_T):
    """The columns of a block of b, by its buffer of all stages."""
    return buffer.shape[1 if B_T else 2]


@gluon.jit
def _relaid(accs):
    """The accumulators with the layout of the epilogue."""
    relaid = ()
    for i in gl.static_range(len(accs)):
        acc = gl.convert_layout(accs[i], _accumulator(accs[i].shape[1]), assert_trivial=True)
        relaid += (acc,)
    return relaid


@gluon.jit
def _meet(parts, half, seen, meeting):
    """Meet the other programs of a tile for one half of it, of which these are the parts.
    ``meeting`` is (workspace, counters, number of programs, this one's number, the tile's). Returns
    whether all others have been here, the counter as far as it is known, and the sums of all, in
    the programs' order.

    A program leaves its sums in the workspace and counts itself, or, if it is the last, adds
    theirs. Odd ones come with the second half first. So if two arrive at the same time, each leaves
    a half and adds the other. Half a counter is a half's.
    """
    workspace, counters, programs, mine, tile = meeting
    SIZE: gl.constexpr = parts[0].shape[0] * parts[0].shape[1]
    ALL: gl.constexpr = len(parts) * SIZE
    sums = workspace + ((tile * 2 + half) * programs).to(gl.int64) * ALL
    shift = 16 * half
    here = seen >> shift & 0xFFFF
    count = here
    if here < programs - 1:
        for j in gl.static_range(len(parts)):
            _leave(sums + j * SIZE, mine, ALL, parts[j])
        thread_barrier()
        seen = gl.atomic_add(counters + tile, 1 << shift, sem="acq_rel")
        here = seen >> shift & 0xFFFF
        count = here + 1
    last = here == programs - 1
    added = parts
    if last:
        gl.atomic_add(counters + tile, -(count << shift), sem="relaxed")
        added = _added(sums, programs, mine, ALL, parts)
    return last, seen, added


@gluon.jit
def _added(sums, programs, mine, ALL: gl.constexpr, parts):
    """The sums of what all programs have of these parts, in their order. What one left is ALL
    elements after what the program before left; this program's own parts are in registers."""
    LOADS: gl.constexpr = _in_flight(ALL // (32 * gl.num_warps()))
    SIZE: gl.constexpr = parts[0].shape[0] * parts[0].shape[1]
    added = ()
    for j in gl.static_range(len(parts)):
        added += (_left(sums + j * SIZE, 0, programs, mine, parts[j]),)
    for i in range(1, programs, LOADS):
        loaded = ()
        for k in gl.static_range(LOADS):
            for j in gl.static_range(len(parts)):
                of_one = sums + (i + k) * ALL + j * SIZE
                loaded += (_left(of_one, i + k, programs, mine, parts[j]),)
        for k in gl.static_range(LOADS):
            more = ()
            for j in gl.static_range(len(parts)):
                more += (added[j] + loaded[k * len(parts) + j],)
            added = more
    return added


@gluon.constexpr_function
def _in_flight(elements):
    """Of how many programs a thread loads so many elements at once, as registers allow."""
    return max(1, min(4, 64 // elements))


@gluon.jit
def _left(sums, i, programs, mine, part):
    """What the i-th program left of a part, the part itself if this is the program, or nothing if
    there are fewer. Nothing is -0, which changes no sum."""
    own = gl.full(part.shape, mine == i, gl.int1, part.type.layout)
    there = gl.full(part.shape, (mine != i) & (i < programs), gl.int1, part.type.layout)
    other = gl.where(own, part, -0.0)
    return gl.load(sums + _places(part), mask=there, other=other, cache_modifier=".cg")


@gluon.jit
def _multiply(
    buffers, stage, accs, more,
    ROW: gl.constexpr, A_T: gl.constexpr, B_T: gl.constexpr, BY_REGISTERS: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
):  # fmt: skip
    """Start the products of a step, which add to the sums if ``more``, and wait for those of the
    step before; BY_REGISTERS for these themselves. Before the first step there are none; the wait
    only gives the sums their type."""
    if len(buffers) == 1:
        accs = wide_multiply(buffers[0], stage, accs, more, ROW, A_T, BLOCK_M, BLOCK_N)
        done = wide_awaited(accs, 1)
    else:
        a = _rows(buffers, stage, ROW, accs[0].shape[0], A_T)
        if BY_REGISTERS:
            a = a.load(_operand(accs[0]))
        started = ()
        for i in gl.static_range(len(accs)):
            b = buffers[i + 1].index(stage)
            if B_T:
                b = b.permute((1, 0))
            if BY_REGISTERS:  # only the name of the layout differs
                a = gl.convert_layout(a, _operand(accs[i]), assert_trivial=True)
            started += (warpgroup_mma(a, b, accs[i], use_acc=more, is_async=True),)
        if BY_REGISTERS:  # the wait keeps a until then
            started += (a,)
        done = _awaited(started, 0 if BY_REGISTERS else len(accs))[: len(accs)]
    return done


@gluon.constexpr_function
def _operand(acc):
    """The layout of 16-bit rows in registers that are multiplied for an accumulator."""
    return gl.DotOperandLayout(0, acc.type.layout, 2)


@gluon.jit
def _awaited(accs, left: gl.constexpr):
    """The sums when all but the last ``left`` products have been added."""
    if len(accs) == 1:
        done = (warpgroup_mma_wait(left, deps=accs),)
    else:
        done = warpgroup_mma_wait(left, deps=accs)
    return done


@gluon.jit
def _place(
    tile, size, begin, group_m, bias_ptr, accs,
    ROW: gl.constexpr, TURNED: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    ALIGN: gl.constexpr, ROWS: gl.constexpr, PART_N: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    """Where a consumer's part of a tile begins, and the bias of its blocks; if WIDE, that of each
    PART_M of its rows, which are those of a transpose."""
    m, n = _origin(tile, size, begin, group_m, BLOCK_M, BLOCK_N, ALIGN)
    m += ROW
    biases = ()
    if WIDE:
        for i in gl.static_range(ROWS // PART_M):
            bias = _bias_of(bias_ptr, m + i * PART_M, n, size, PART_M, PART_N, TURNED)
            biases += (bias,)
    else:
        column = n
        for i in gl.static_range(len(accs)):
            bias = _bias_of(bias_ptr, m, column, size, accs[i].shape[0], accs[i].shape[1], TURNED)
            biases += (bias,)
            column += accs[i].shape[1]
    return m, n, biases


@gluon.jit
def _consume(
    CONSUMER: gl.constexpr,
    buffers, barriers, size, begin, split, group_m, bias_ptr, c_ptr, c_strides, scalars, outs,
    out_strides,
    ACT: gl.constexpr, A_T: gl.constexpr, B_T: gl.constexpr, OUT_TMA: gl.constexpr,
    TURNED: gl.constexpr, UNIT: gl.constexpr, C_UNIT: gl.constexpr, ALIGN: gl.constexpr,
    CONSUMERS: gl.constexpr, ALTERNATE: gl.constexpr, PART_N: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    BY_REGISTERS: gl.constexpr,
):  # fmt: skip
    """A consumer's work: the products and epilogues of its own tiles if ALTERNATE, else of its rows
    of every tile."""
    full, empty, turn = barriers
    ROWS: gl.constexpr = BLOCK_M if ALTERNATE else BLOCK_M // CONSUMERS
    ROW: gl.constexpr = 0 if ALTERNATE else CONSUMER * ROWS
    WIDE: gl.constexpr = len(buffers) == 1
    steps = gl.cdiv(size[2], BLOCK_K)
    tiles = _tiles(size, begin, BLOCK_M, BLOCK_N)
    HAS_BIAS: gl.constexpr = bias_ptr is not None
    start = gl.program_id(0)
    programs = gl.num_programs(0)
    items = _items(tiles, split)
    if ALTERNATE:
        start += CONSUMER * programs
        programs *= 2
    stage = gl.to_tensor(0)
    phase = gl.to_tensor(0)
    turns = gl.to_tensor(1 - CONSUMER)  # the first consumer's first turn is at once
    if ALTERNATE and CONSUMER == 1:  # the stages of the other's first tile are skipped
        stage = steps % STAGES
        phase = steps // STAGES & 1
    for item in range(start, items, programs):
        tile, part, first, end = _item(item, tiles, steps, split)
        accs = _zeros(buffers, ROWS, B_T, BLOCK_N)
        if ALTERNATE:
            place = _place(
                tile, size, begin, group_m, bias_ptr, accs, ROW, TURNED, BLOCK_M, BLOCK_N, ALIGN,
                ROWS, PART_N, WIDE,
            )  # fmt: skip
            mbarrier.wait(turn.index(CONSUMER), turns)
            turns ^= 1
        mbarrier.wait(full.index(stage), phase)
        accs = _multiply(buffers, stage, accs, False, ROW, A_T, B_T, BY_REGISTERS, BLOCK_M, BLOCK_N)
        if BY_REGISTERS:
            mbarrier.arrive(empty.index(stage), count=1)
        stage, phase = _advanced(stage, phase, STAGES)
        if not ALTERNATE:
            place = _place(
                tile, size, begin, group_m, bias_ptr, accs, ROW, TURNED, BLOCK_M, BLOCK_N, ALIGN,
                ROWS, PART_N, WIDE,
            )  # fmt: skip
        m, n, biases = place
        for _ in range(first + 1, end):
            mbarrier.wait(full.index(stage), phase)
            accs = _multiply(
                buffers, stage, accs, True, ROW, A_T, B_T, BY_REGISTERS, BLOCK_M, BLOCK_N
            )
            if BY_REGISTERS:
                mbarrier.arrive(empty.index(stage), count=1)
            else:  # the step before has been multiplied; this one's products run on
                before = gl.where(stage == 0, STAGES - 1, stage - 1)
                mbarrier.arrive(empty.index(before), count=1)
            stage, phase = _advanced(stage, phase, STAGES)
        if ALTERNATE:
            mbarrier.arrive(turn.index(1 - CONSUMER), count=1)
        if not BY_REGISTERS:
            accs = wide_awaited(accs, 0) if WIDE else _awaited(accs, 0)
            before = gl.where(stage == 0, STAGES - 1, stage - 1)
            mbarrier.arrive(empty.index(before), count=1)
        if not WIDE:
            accs = _relaid(accs)
        meeting = None
        if split[0] is not None:
            meeting = (split[0], split[1], split[2], part, tile * CONSUMERS + CONSUMER)
        _finish(
            accs, biases, m, n, size, c_ptr, c_strides, scalars, outs, out_strides, CONSUMER,
            HAS_BIAS, ACT, OUT_TMA, TURNED, UNIT, PART_N, BLOCK_N, ROWS // PART_M, C_UNIT, WIDE,
            bias_ptr, meeting,
        )  # fmt: skip
        if ALTERNATE:
            ahead = stage + steps
            phase ^= ahead // STAGES & 1
            stage = ahead % STAGES
    if OUT_TMA:
        store_wait(0)


@gluon.jit(do_not_specialize=["alpha", "beta", "parts", "group_m"], repr=named("gluon"))
def gemm_gluon_kernel(
    a_desc,
    b_desc,
    second_desc,
    third_desc,
    fourth_desc,
    bias_ptr,
    c_ptr,
    out,
    pre,
    workspace,
    counters,
    size,
    begin,
    c_strides,
    out_strides,
    alpha,
    beta,
    parts,
    group_m,
    OP: gl.constexpr,
    ACT: gl.constexpr,
    A_T: gl.constexpr,
    B_T: gl.constexpr,
    OUT_TMA: gl.constexpr,
    TURNED: gl.constexpr,
    UNIT: gl.constexpr,
    C_UNIT: gl.constexpr,
    CONSUMERS: gl.constexpr,
    ALTERNATE: gl.constexpr,
    PART_N: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    BY_REGISTERS: gl.constexpr,
    WIDE: gl.constexpr,
    WAITS: gl.constexpr,
    BESIDE: gl.constexpr,
):
    """Each program computes every num_programs-th tile of out, or part of a tile.

    If A_T, a_desc describes a's transpose, [K, M]; if B_T, b_desc describes b's, [N, K]. A block
    of a_desc has all rows of a tile, or those of one of three consumers.
    second_desc, third_desc and fourth_desc also describe b, with blocks of the columns that those
    before leave of a tile, or are None.

    If OUT_TMA, out and pre are descriptors with blocks of PART_M × PART_N. If TURNED, they are of
    the transpose, whose columns the bias belongs to: a caller that wants tiles of 16, 32, 96, 160
    or more rows passes bᵀ and aᵀ as a and b.

    WIDE: whether one instruction has a tile's whole width; only for b along K.

    UNIT: if not OUT_TMA, a divisor of the length and pitch of the rows of out, at most 4, or 1 if
    their elements are not neighbours. C_UNIT: the same of c, or 1 if TURNED. WAITS: whether the
    launch that copies an operand may still run. BESIDE: "first" if the next launch, which computes
    another region, may start at any time; "second" for that launch, which waits at its end for the
    first, so that what follows waits for both; or "".
    """
    descs = (a_desc, b_desc)
    BLOCKS: gl.constexpr = BLOCK_M // a_desc.block_shape[1 if A_T else 0]
    if second_desc is not None:
        descs += (second_desc,)
    if third_desc is not None:
        descs += (third_desc,)
    if fourth_desc is not None:
        descs += (fourth_desc,)
    if WIDE:
        buffers = (wide_stages(a_desc, BLOCK_M, BLOCK_N, STAGES),)
    else:
        buffers = (_stages_of(a_desc, STAGES * BLOCKS),)
        for i in gl.static_range(1, len(descs)):
            buffers += (_stages_of(descs[i], STAGES),)
    out_buffer = _result_buffers(out, CONSUMERS, PART_N, OUT_TMA, TURNED)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turn = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1 if ALTERNATE else CONSUMERS)
    for i in gl.static_range(2):
        mbarrier.init(turn.index(i), count=1)
    fence_async_shared()
    barriers = (full, empty, turn)
    scalars = (alpha, beta)
    outs = (out, pre, out_buffer)
    split = (workspace, counters, parts)
    ALIGN: gl.constexpr = _alignment(A_T, B_T, TURNED)
    if WAITS:
        gdc_wait()
    if BESIDE == "first":
        gdc_launch_dependents()
    # The first loads start before the warps are specialised, which takes time.
    tiles = _tiles(size, begin, BLOCK_M, BLOCK_N)
    steps = gl.cdiv(size[2], BLOCK_K)
    tile, _, first, end = _item(gl.program_id(0), tiles, steps, split)
    loaded = gl.minimum(end - first, STAGES)
    m, n = _origin(tile, size, begin, group_m, BLOCK_M, BLOCK_N, ALIGN)
    for i in gl.static_range(STAGES):
        k = (first + i) * BLOCK_K
        _load(descs, buffers, full, i, m, n, k, i < loaded, A_T, B_T, BLOCK_M, BLOCK_N)
    # Registers per thread: 240 in consumers, 160 in three of them, 24 in the producer.
    if CONSUMERS == 3:
        gl.warp_specialize(
            [
                (_consume, (0, buffers, barriers, size, begin, split, group_m, bias_ptr,
                            c_ptr, c_strides, scalars, outs, out_strides, ACT, A_T, B_T,
                            OUT_TMA, TURNED, UNIT, C_UNIT, ALIGN, CONSUMERS, ALTERNATE, PART_N,
                            BLOCK_M, BLOCK_N, BLOCK_K, STAGES, BY_REGISTERS)),
                (_consume, (1, buffers, barriers, size, begin, split, group_m, bias_ptr,
                            c_ptr, c_strides, scalars, outs, out_strides, ACT, A_T, B_T,
                            OUT_TMA, TURNED, UNIT, C_UNIT, ALIGN, CONSUMERS, ALTERNATE, PART_N,
                            BLOCK_M, BLOCK_N, BLOCK_K, STAGES, BY_REGISTERS)),
                (_consume, (2, buffers, barriers, size, begin, split, group_m, bias_ptr,
                            c_ptr, c_strides, scalars, outs, out_strides, ACT, A_T, B_T,
                            OUT_TMA, TURNED, UNIT, C_UNIT, ALIGN, CONSUMERS, ALTERNATE, PART_N,
                            BLOCK_M, BLOCK_N, BLOCK_K, STAGES, BY_REGISTERS)),
                (_produce, (descs, buffers, barriers, size, begin, split, group_m, loaded, A_T,
                            B_T, ALIGN, BLOCK_M, BLOCK_N, BLOCK_K, STAGES)),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )  # fmt: skip
    elif CONSUMERS == 2:
        gl.warp_specialize(
            [
                (_consume, (0, buffers, barriers, size, begin, split, group_m, bias_ptr,
                            c_ptr, c_strides, scalars, outs, out_strides, ACT, A_T, B_T,
                            OUT_TMA, TURNED, UNIT, C_UNIT, ALIGN, CONSUMERS, ALTERNATE, PART_N,
                            BLOCK_M, BLOCK_N, BLOCK_K, STAGES, BY_REGISTERS)),
                (_consume, (1, buffers, barriers, size, begin, split, group_m, bias_ptr,
                            c_ptr, c_strides, scalars, outs, out_strides, ACT, A_T, B_T,
                            OUT_TMA, TURNED, UNIT, C_UNIT, ALIGN, CONSUMERS, ALTERNATE, PART_N,
                            BLOCK_M, BLOCK_N, BLOCK_K, STAGES, BY_REGISTERS)),
                (_produce, (descs, buffers, barriers, size, begin, split, group_m, loaded, A_T,
                            B_T, ALIGN, BLOCK_M, BLOCK_N, BLOCK_K, STAGES)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_consume, (0, buffers, barriers, size, begin, split, group_m, bias_ptr,
                            c_ptr, c_strides, scalars, outs, out_strides, ACT, A_T, B_T,
                            OUT_TMA, TURNED, UNIT, C_UNIT, ALIGN, CONSUMERS, ALTERNATE, PART_N,
                            BLOCK_M, BLOCK_N, BLOCK_K, STAGES, BY_REGISTERS)),
                (_produce, (descs, buffers, barriers, size, begin, split, group_m, loaded, A_T,
                            B_T, ALIGN, BLOCK_M, BLOCK_N, BLOCK_K, STAGES)),
            ],
            [1],
            [24],
        )  # fmt: skip
    if BESIDE == "second":
        gdc_wait()
