"""gemm_gluon_cluster_kernel: products of few tiles, whose programs load for each other.

A result of few tiles has small ones, so that each multiprocessor has one, and small tiles load
much: 762×768×4224 in tiles of 80×64 loads 146 MB, for which L2 needs 10 µs by the model's fit
(H200). Programs of a cluster run at the same time on multiprocessors that reach each other's shared
memory. There a block that several need is loaded once: each loads its share of it, and the load
writes the share, and counts its bytes, in all of them. Splitting K instead takes longer, since the
parts must be added in the end.

A cluster has CLUSTER programs, CLUSTER_M of them with tiles side by side in the result, the others
below. The kernel computes the transpose: a tile's BLOCK_N columns are rows of the result, and its
64 rows are columns. So the caller passes bᵀ and aᵀ as a and b. b lies along K. Tiles at the ends
of the result are moved inwards, for the reason given in gluon.kernels: a cluster's share of them
may be all beyond it. If rows of a go across K, their columns still begin at lines.

Gluon 3.6 has no such loads, and no addresses for PTX's. So the stages are one buffer, allocated
first, as in :mod:`triton_kernels.gemm.gluon.wide`, whose layout they share; before them are the
barriers: for each stage "full", which counts bytes, and "empty", which counts the warps that no
longer read it, in all programs that this one loads for. The descriptors' addresses are those of the
kernel's parameters. What is not so in a future Triton fails in the self-test of
:mod:`triton_kernels.gemm.gluon.availability`.

The loop is one block of PTX. The first four warps multiply; a thread of the next four loads, ahead
by all stages. All eight share the epilogue's instructions, where the rows of the last four are
beyond the tile's. No program ends before those that may still write to it: they wait for each other
at the start and at the end, which programs of a cluster may do.
"""

from __future__ import annotations

from triton_kernels.gemm import configurations
from triton_kernels.gemm.gluon.kernels import (
    _activated,
    _begin,
    _bias,
    _ptrs,
    _scaled,
    _with_addend,
)
from triton_kernels.gemm.gluon.versions import (
    fence_async_shared,
    gdc_wait,
    gl,
    gluon,
    store_tile,
    store_wait,
    thread_barrier,
)
from triton_kernels.gemm.gluon.wide import UNIT, UNIT_BYTES, _joined, _types
from triton_kernels.gemm.kernels import name_of, named

PART_M = gl.constexpr(configurations.PART_M)
BUFFERS = gl.constexpr(configurations.BUFFERS)
NAME = gl.constexpr("clusters")
WARPS = gl.constexpr(8)
# A descriptor is five parameters of the compiled kernel: itself, two lengths and two strides.
OF_DESCRIPTOR = gl.constexpr(5)
BARRIERS = gl.constexpr(16)  # bytes of a stage's two
_name = gluon.constexpr_function(name_of)


@gluon.constexpr_function
def _lying(columns):
    """The layout of a block's sums over all warps, of which four have sums."""
    return gl.NVMMADistributedLayout([3, 0], [WARPS.value, 1], [16, columns, 16])


@gluon.constexpr_function
def _beginning(stages, others):
    """Sets up the barriers, and waits for the cluster's programs. ``others``: how many programs
    read what this one loads, itself among them."""
    lines = [
        "{ .reg .pred p; .reg .b32 at; mov.u32 at, %tid.x; setp.eq.u32 p, at, 0;",
        "mov.u32 at, global_smem;",
    ]
    for stage in range(stages):
        full = BARRIERS.value * stage
        lines.append(
            f"@p mbarrier.init.shared::cta.b64 [at+{full}], 1;"
            f"@p mbarrier.init.shared::cta.b64 [at+{full + 8}], {4 * others};"
        )
    lines.append(
        "@p fence.mbarrier_init.release.cluster; barrier.cluster.arrive.relaxed.aligned;"
        "barrier.cluster.wait.acquire.aligned; mov.b32 $0, $2; mov.b32 $1, $3; }"
    )
    return "\n".join(lines)


@gluon.constexpr_function
def _ending():
    """Waits until no program of the cluster tells this one anything any more."""
    return (
        "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
        "mov.b32 $0, $2; mov.b32 $1, $3;"
    )


@gluon.constexpr_function
def _waiting(label, barrier, phase):
    return (
        f"{label}: mbarrier.try_wait.parity.shared::cta.b64 there, [{barrier}], {phase};"
        f"@!there bra {label};"
    )


@gluon.constexpr_function
def _advancing(stages):
    return (
        f"add.u32 step, step, 1; add.u32 stage, stage, 1; setp.eq.u32 p, stage, {stages};"
        "@p mov.u32 stage, 0; @p xor.b32 phase, phase, 1;"
    )


@gluon.constexpr_function
def _multiplying(first, columns, stages, a_t, kind):
    """A step of the loop of the four warps that multiply. When the products of the step before have
    ended, they tell the programs that loaded it."""
    sums = ", ".join(f"${i}" for i in range(columns // 2))
    lines = [
        f"mad.lo.u32 bar, stage, {BARRIERS.value}, base;",
        _waiting("FIRST" if first else "NEXT", "bar", "phase"),
        f"mad.lo.u32 low, stage, {(64 + columns) * 128}, base;",
        f"add.u32 low, low, {UNIT_BYTES.value};",
        "shr.u32 low, low, 4; or.b32 low, low, 0x10000; mov.b64 a, {low, 0x40000040};",
        f"add.u32 low, low, {64 * 128 // 16}; mov.b64 b, {{low, 0x40000040}};",
        f"setp.ne.b32 p, {int(not first)}, 0; wgmma.fence.sync.aligned;",
    ]
    for k in range(4):
        if k:
            lines.append(f"add.u64 a, a, {128 if a_t else 2}; add.u64 b, b, 2;")
        lines.append(
            f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{{sums}}}, a, b, p, "
            f"1, 1, {int(a_t)}, 0;"
        )
        if not k:
            lines.append("setp.eq.b32 p, 0, 0;")
    lines.append("wgmma.commit_group.sync.aligned;")
    if not first:
        lines.append(
            "wgmma.wait_group.sync.aligned 1; @tells mbarrier.arrive.shared::cluster.b64 _, [done];"
            f"mad.lo.u32 done, stage, {BARRIERS.value}, remote;"
        )
    return "\n".join([*lines, _advancing(stages)])


@gluon.constexpr_function
def _loading(columns, stages, cluster_m, cluster_n, box, a_t):
    """The loop of the thread that loads: its shares of each step's rows of a and columns of b, the
    latter by ``box`` columns."""
    rows, share = 64 // cluster_n, columns // cluster_m
    load = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"

    def loading(to, desc, x, y, others, many):
        several, mask = (".multicast::cluster", f", {others}") if many else ("", "")
        return f"{load}{several} [{to}], [{desc}, {{{x}, {y}}}], [bar]{mask};"

    lines = [
        f"FILL: mad.lo.u32 bar, stage, {BARRIERS.value}, base; add.u32 low, bar, 8;",
        _waiting("EMPTY", "low", "phase"),
        f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {(64 + columns) * 128};",
        f"mad.lo.u32 low, stage, {(64 + columns) * 128}, base;",
        f"add.u32 low, low, {UNIT_BYTES.value};",
        f"mad.lo.u32 to, along, {rows * 128}, low;",
    ]
    same, shared = ("row", "k") if a_t else ("k", "row")  # across K a unit has 64 rows
    lines.append(f"mad.lo.u32 at, along, {rows}, {shared};")
    lines.append(loading("to", "a", same, "at", "of_a", cluster_n > 1))
    lines.append(f"mad.lo.u32 to, across, {share * 128}, low; add.u32 to, to, {64 * 128};")
    lines.append(f"mad.lo.u32 at, across, {share}, column;")
    for _ in range(share // box):
        lines.append(loading("to", "b", "k", "at", "of_b", cluster_m > 1))
        lines.append(f"add.u32 to, to, {box * 128}; add.u32 at, at, {box};")
    lines.append(f"add.u32 k, k, 64; {_advancing(stages)} setp.lt.u32 p, step, steps; @p bra FILL;")
    return "\n".join(lines)


@gluon.constexpr_function
def _loop(name, columns, stages, cluster_m, cluster_n, box, a_t, dtype):
    """The loop over K. The operands after the sums are: the number of steps; the first row and
    column of the tile; its place in the cluster, across the columns and along the rows of the
    result; which programs share its a, and which its b, as bits. Without a cluster of this size,
    which a launch must ask for, the sums are 0."""
    count, readers = columns // 2, cluster_m + cluster_n - 1
    given = ("steps", "row", "column", "across", "along", "of_a", "of_b")
    kind = {"bf16": "bf16", "fp16": "f16"}[str(dtype)]
    lines = [
        "{ .reg .pred p, tells, there;",
        ".reg .b32 steps, row, column, across, along, thread, base, bar, low, to, at, step, stage;",
        ".reg .b32 phase, k, peer, other, remote, done; .reg .b64 a, b; .reg .b16 of_a, of_b;",
        *(f"mov.b32 {name}, ${count + 4 * i};" for i, name in enumerate(given[:5])),
        f"cvt.u16.u32 of_a, ${count + 20}; cvt.u16.u32 of_b, ${count + 24};",
        *(f"mov.f32 ${i}, 0f00000000;" for i in range(count)),
        "mov.u32 base, global_smem; mov.u32 step, 0; mov.u32 stage, 0; mov.u32 phase, 0;",
        f"mov.u32 at, %cluster_nctarank; setp.ne.u32 p, at, {cluster_m * cluster_n}; @p bra END;",
        "mov.u32 thread, %tid.x; setp.ge.u32 p, thread, 128; @p bra LOADS;",
        # Each of a warp's first threads tells one program: those with the same rows first.
        f"mov.u32 at, %laneid; setp.lt.u32 tells, at, {readers}; mov.u32 other, 0;",
        f"@tells sub.u32 other, at, {cluster_n}; setp.ge.u32 p, other, across;",
        f"@p add.u32 other, other, 1; mad.lo.u32 other, along, {cluster_m}, other;",
        f"mad.lo.u32 peer, at, {cluster_m}, across; setp.lt.u32 p, at, {cluster_n};",
        "selp.b32 peer, peer, other, p; @!tells mov.u32 peer, 0;",
        "mapa.shared::cluster.u32 remote, base, peer; add.u32 remote, remote, 8;",
        "mov.u32 done, remote;",
        _multiplying(True, columns, stages, a_t, kind),
        "setp.ge.u32 p, step, steps; @p bra LAST;",
        "AGAIN:",
        _multiplying(False, columns, stages, a_t, kind),
        "setp.lt.u32 p, step, steps; @p bra AGAIN;",
        "LAST: wgmma.wait_group.sync.aligned 0; bra END;",
        "LOADS: setp.ne.u32 p, thread, 128; @p bra END; mov.u32 k, 0; mov.u32 phase, 1;",
        f"mov.b64 a, {name}_param_0; cvta.param.u64 a, a;",
        f"mov.b64 b, {name}_param_{OF_DESCRIPTOR.value}; cvta.param.u64 b, b;",
        _loading(columns, stages, cluster_m, cluster_n, box, a_t),
        "END: bar.warp.sync 0xffffffff; }",
    ]
    return "\n".join(lines)


@gluon.constexpr_function
def _operands(sums, integers):
    """Constraints of sums that are only written, and of integers, which are the same 4 times."""
    return ",".join([*["=&f"] * (4 * sums), *["r"] * (4 * integers)])


@gluon.jit
def _once(ASM: gl.constexpr, unit):
    """Instructions that each thread executes once, after a unit has been read or written."""
    return gl.inline_asm_elementwise(
        ASM, "=r,=r,r,r", [unit], dtype=gl.int32, is_pure=False, pack=2
    )


@gluon.jit
def _integer(x):
    return gl.full([64 * 2, UNIT], x, gl.int32, _lying(UNIT.value))


@gluon.jit
def _bits(first, step, COUNT: gl.constexpr):
    """Bits for COUNT programs of a cluster."""
    bits = 0
    for i in gl.static_range(COUNT):
        bits |= 1 << (first + step * i)
    return bits


@gluon.jit
def _store(out, buffer, part, m, n, size, strides, OUT_TMA: gl.constexpr):
    """Store the first PART_M rows of a part of the transpose, whose first element is (m, n)."""
    if OUT_TMA:
        store_wait(BUFFERS - 1)
        buffer.permute((1, 0)).store(part.to(buffer.dtype))
        fence_async_shared()
        store_tile(out, [n, m], buffer.slice(0, PART_M, 1))
    else:
        ptrs, mask = _ptrs(out, part, m, n, (gl.minimum(size[0], m + PART_M), size[1]), strides)
        gl.store(ptrs, part.to(out.dtype.element_ty), mask=mask)


@gluon.jit(do_not_specialize=["alpha", "beta"], repr=named(NAME.value))
def gemm_gluon_cluster_kernel(
    a_desc,
    b_desc,
    bias_ptr,
    c_ptr,
    out,
    pre,
    size,
    c_strides,
    out_strides,
    alpha,
    beta,
    OP: gl.constexpr,
    ACT: gl.constexpr,
    A_T: gl.constexpr,
    OUT_TMA: gl.constexpr,
    CLUSTER: gl.constexpr,
    CLUSTER_M: gl.constexpr,
    BOX: gl.constexpr,
    PART_N: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    WAITS: gl.constexpr,
):
    """Each program computes one tile of out's transpose, of 64 × BLOCK_N.

    a_desc describes a, [M, K], with blocks of 64 / CLUSTER_N rows, or if A_T its transpose, [K, M],
    with blocks of as many rows of K; b_desc b's transpose, [N, K], with blocks of BOX rows. out and
    pre are M × N, and ``size`` is (M, N, K). If OUT_TMA they are descriptors of the transposes,
    with blocks of PART_N × PART_M. bias has M elements. c, strides and WAITS are as in
    :func:`triton_kernels.gemm.gluon.kernels.gemm_gluon_kernel`.
    """
    UNITS: gl.constexpr = (PART_M + BLOCK_N) // UNIT
    stages = gl.allocate_shared_memory(
        a_desc.dtype, [1 + STAGES * UNITS, UNIT, 64], gl.NVMMASharedLayout(128, 16, 2)
    )
    # The first and the last use of the buffer, so that it begins before all others and stays.
    FIRST: gl.constexpr = gl.BlockedLayout([1, 2], [1, 32], [WARPS, 1], [1, 0])
    nothing = gl.full([UNIT, 64], 0, gl.int16, FIRST)
    stages.index(0).store(nothing.to(stages.dtype, bitcast=True))
    thread_barrier()
    block: gl.constexpr = [BUFFERS, PART_N, 2 * PART_M]
    if OUT_TMA:
        buffers = gl.allocate_shared_memory(out.dtype, block, out.layout)
    M, N, K = size
    CLUSTER_N: gl.constexpr = CLUSTER // CLUSTER_M
    rank, cluster = gl.program_id(0) % CLUSTER, gl.program_id(0) // CLUSTER
    across, along = rank % CLUSTER_M, rank // CLUSTER_M
    clusters = gl.cdiv(M, PART_M * CLUSTER_M)
    m = _begin(cluster % clusters * CLUSTER_M + across, M, PART_M, PART_M if A_T else 1)
    n = _begin(cluster // clusters * CLUSTER_N + along, N, BLOCK_N, 1)
    _once(_beginning(STAGES, CLUSTER_M + CLUSTER_N - 1), nothing.to(gl.int32))
    lying: gl.constexpr = _lying(PART_N)
    bias = _bias(bias_ptr, m, M, 2 * PART_M, gl.SliceLayout(1, lying))
    if WAITS:
        gdc_wait()
    given = (
        _integer(gl.cdiv(K, 64)),
        _integer(m),
        _integer(n),
        _integer(across),
        _integer(along),
        _integer(_bits(across, CLUSTER_M, CLUSTER_N)),
        _integer(_bits(along * CLUSTER_M, 1, CLUSTER_M)),
    )
    sums = gl.inline_asm_elementwise(
        _loop(
            _name(NAME, OP, ACT), BLOCK_N, STAGES, CLUSTER_M, CLUSTER_N, BOX, A_T, stages.dtype
        ),
        _operands(BLOCK_N // UNIT, len(given)),
        given,
        dtype=_types(BLOCK_N // UNIT),
        is_pure=False,
        pack=4,
    )  # fmt: skip
    STORES: gl.constexpr = 1 if pre is None else 2
    for j in gl.static_range((BLOCK_N + PART_N - 1) // PART_N):
        column = n + min(j * PART_N, BLOCK_N - PART_N)  # the last may be moved inwards
        part = _joined(sums, min(j * PART_N, BLOCK_N - PART_N) // UNIT, PART_N // UNIT)
        part = gl.convert_layout(part, lying, assert_trivial=True)
        part = _scaled(part, alpha, bias, bias_ptr is not None, True)
        part = _with_addend(part, m, column, size, c_ptr, c_strides, beta)
        if pre is not None:
            before = buffers.index(0) if OUT_TMA else None
            _store(pre, before, part, m, column, size, out_strides, OUT_TMA)
        buffer = buffers.index(((j + 1) * STORES - 1) % BUFFERS) if OUT_TMA else None
        _store(out, buffer, _activated(part, ACT), m, column, size, out_strides, OUT_TMA)
    if OUT_TMA:
        store_wait(0)
    unit = stages.index(0).load(FIRST)
    _once(_ending(), unit.to(gl.int16, bitcast=True).to(gl.int32))
