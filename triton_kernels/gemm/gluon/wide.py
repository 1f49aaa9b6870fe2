"""Products by wgmma of any width that is a multiple of 8.

A block of Gluon has a power of two of columns. The instruction has any multiple of 8, so here a
consumer's sums are many blocks of 8 columns, and the instruction is PTX that names all of them. It
reads its rows of a from shared memory once, whatever the width, where blocks of 128, 64 and 16
columns read them three times: tiles of 208 columns are faster so, and all other widths are there.

PTX needs addresses in shared memory, which Gluon does not tell. So the stages of a and b are one
buffer, which the kernel allocates first: it begins where the shared memory of the program begins. A
future Triton may allocate in another order: then the self-test of
:mod:`triton_kernels.gemm.gluon.availability`, which multiplies in such a tile, gives these up. A
stage has the rows of a, then the columns of b. Each row, and each column, has 128 bytes along K, 8
of them are a unit, whose bytes are swizzled; of a that lies across K a unit has 64 rows of it and 8
of K.

The widths, layouts and waits are those of PTX's wgmma.mma_async, and its matrix descriptors.
"""

from __future__ import annotations

from triton_kernels.gemm.gluon.versions import (
    SLICES,
    gl,
    gluon,
    load_tile,
    mbarrier,
    reinterpret,
)

UNIT = gl.constexpr(8)
UNIT_BYTES = gl.constexpr(1024)


@gluon.constexpr_function
def _layout():
    """The layout of 8 columns of sums over four warps."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 16])


@gluon.jit
def wide_stages(
    desc, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr
):  # fmt: skip
    """The stages, in units."""
    units: gl.constexpr = STAGES * (BLOCK_M + BLOCK_N) // UNIT
    return gl.allocate_shared_memory(
        desc.dtype, [units, UNIT, 64], gl.NVMMASharedLayout(128, 16, 2)
    )


@gluon.constexpr_function
def _column(descs, i):
    """The first of the tile's columns that the i-th descriptor loads."""
    return sum(desc.block_shape[0] for desc in [*descs][1:i])


@gluon.jit
def _load_block(desc, origin, rows, k, buffer, unit, bar, pred, ACROSS: gl.constexpr):
    """Load a block, before which the stage that begins at a unit has so many rows. ``origin`` is
    the row of the matrix that is the stage's first, ACROSS whether rows go across K. No name may
    hold ``unit``: it would not be a constant any more."""
    if SLICES:
        block = buffer.slice(unit + rows // UNIT, desc.block_type.nbytes // UNIT_BYTES)
    else:
        block = buffer.index(unit + rows // UNIT)
    block = reinterpret(block, desc.dtype, desc.block_shape, desc.layout)
    at = [k, origin + rows] if ACROSS else [origin + rows, k]
    load_tile(desc, at, bar, block, pred=pred)


@gluon.jit
def _load_stage(
    descs, m, n, k, buffer, unit, bar, pred, A_T: gl.constexpr, BLOCK_M: gl.constexpr
):  # fmt: skip
    """Load the blocks of one step of K to the units from this one on."""
    ROWS: gl.constexpr = descs[0].block_shape[1 if A_T else 0]
    for i in gl.static_range(BLOCK_M // ROWS):
        _load_block(descs[0], m, i * ROWS, k, buffer, unit, bar, pred, A_T)
    for i in gl.static_range(1, len(descs)):
        _load_block(
            descs[i], n - BLOCK_M, BLOCK_M + _column(descs, i), k, buffer, unit, bar, pred, False
        )


@gluon.jit
def wide_load(
    descs, buffer, full, stage, m, n, k, pred,
    A_T: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
):  # fmt: skip
    """Start the loads of one step of K into a stage."""
    bar = full.index(stage)
    UNITS: gl.constexpr = (BLOCK_M + BLOCK_N) // UNIT
    mbarrier.expect(bar, UNITS * UNIT_BYTES, pred=pred)
    if SLICES:
        for i in gl.static_range(buffer.shape[0] // UNITS):
            if stage == i:
                _load_stage(descs, m, n, k, buffer, i * UNITS, bar, pred, A_T, BLOCK_M)
    else:
        _load_stage(descs, m, n, k, buffer, stage * UNITS, bar, pred, A_T, BLOCK_M)


@gluon.jit
def wide_zeros(ROWS: gl.constexpr, BLOCK_N: gl.constexpr):
    """A consumer's sums: of each 64 of its rows of a tile blocks of 8 columns."""
    sums = ()
    for _ in gl.static_range(ROWS // 64 * (BLOCK_N // UNIT)):
        sums += (gl.zeros([64, UNIT], gl.float32, _layout()),)
    return sums


@gluon.constexpr_function
def _types(count):
    return [gl.float32] * count


@gluon.constexpr_function
def _constraints(count, integers):
    """Of 4 sums of a thread in each of ``count`` blocks, written in place, and of integers, which
    are the same 4 times."""
    sums = 4 * count
    return ",".join([*["=f"] * sums, *map(str, range(sums)), *["r"] * (4 * integers)])


@gluon.constexpr_function
def _instructions(count, groups, a_t, dtype):
    """The products of a step of 64 elements of K, by 16 of them, for ``groups`` times 64 rows and
    ``count`` blocks of columns. The operands after the sums are the places of a and of b, in 16
    bytes, and whether to add to the sums.

    The upper half of a descriptor says that units are 1024 bytes apart, and how they are swizzled.
    """
    sums = 4 * count * groups
    place_a, place_b, more = (f"${2 * sums + 4 * i}" for i in range(3))
    kind = {"bf16": "bf16", "fp16": "f16"}[str(dtype)]
    upper, along_a, along_b, rows = "0x40000040", 128 if a_t else 2, 2, 64 * 128 // 16
    lines = [
        "{ .reg .pred p; .reg .b32 base, la, lb; .reg .b64 a, a1, b;",
        f"setp.ne.b32 p, {more}, 0;",
        "mov.u32 base, global_smem; shr.u32 base, base, 4; or.b32 base, base, 0x10000;",
        f"add.u32 la, base, {place_a}; add.u32 lb, base, {place_b};",
        f"mov.b64 a, {{la, {upper}}}; mov.b64 b, {{lb, {upper}}};",
        "wgmma.fence.sync.aligned;",
    ]
    for k in range(4):
        if k:
            lines.append(f"add.u64 a, a, {along_a}; add.u64 b, b, {along_b};")
        for group in range(groups):
            if group:
                lines.append(f"add.u64 a1, a, {group * rows};")
            names = ", ".join(f"${4 * count * group + i}" for i in range(4 * count))
            lines.append(
                f"wgmma.mma_async.sync.aligned.m64n{8 * count}k16.f32.{kind}.{kind} "
                f"{{{names}}}, {'a1' if group else 'a'}, b, p, 1, 1, {int(a_t)}, 0;"
            )
        if not k:
            lines.append("setp.eq.b32 p, 0, 0;")
    return "\n".join([*lines, "wgmma.commit_group.sync.aligned; }"])


@gluon.constexpr_function
def _wait(left):
    return f"wgmma.wait_group.sync.aligned {left};"


@gluon.jit
def _integer(x):
    return gl.full([64, UNIT], x, gl.int32, _layout())


@gluon.jit
def wide_multiply(
    buffer, stage, sums, more,
    ROW: gl.constexpr, A_T: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
):  # fmt: skip
    """Start the products of a step, which add to the sums if ``more``."""
    COUNT: gl.constexpr = len(sums)
    GROUPS: gl.constexpr = COUNT * UNIT // BLOCK_N
    a = (stage * (BLOCK_M + BLOCK_N) + ROW) * (UNIT_BYTES // UNIT // 16)
    b = (stage * (BLOCK_M + BLOCK_N) + BLOCK_M) * (UNIT_BYTES // UNIT // 16)
    return gl.inline_asm_elementwise(
        _instructions(COUNT // GROUPS, GROUPS, A_T, buffer.dtype),
        _constraints(COUNT, 3),
        sums + (_integer(a), _integer(b), _integer(more)),  # noqa: RUF005 - Gluon has no stars
        dtype=_types(COUNT),
        is_pure=False,
        pack=4,
    )


@gluon.jit
def wide_awaited(sums, LEFT: gl.constexpr):
    """The sums when the products of all but the last LEFT steps have been added."""
    COUNT: gl.constexpr = len(sums)
    return gl.inline_asm_elementwise(
        _wait(LEFT), _constraints(COUNT, 0), sums, dtype=_types(COUNT), is_pure=False, pack=4
    )


@gluon.jit
def _joined(sums, FIRST: gl.constexpr, COUNT: gl.constexpr):
    if COUNT == 1:
        block = sums[FIRST]
    else:
        left = _joined(sums, FIRST, COUNT // 2)
        right = _joined(sums, FIRST + COUNT // 2, COUNT // 2)
        block = gl.join(left, right).permute((0, 2, 1)).reshape(left.shape[0], COUNT * UNIT)
    return block


@gluon.jit
def wide_columns(
    sums, GROUP: gl.constexpr, BEGIN: gl.constexpr, COLUMNS: gl.constexpr, BLOCK_N: gl.constexpr
):  # fmt: skip
    """One block of a power of two of COLUMNS, from the column BEGIN on, of the GROUP-th 64 rows.
    Only registers are renamed."""
    return _joined(sums, (GROUP * BLOCK_N + BEGIN) // UNIT, COLUMNS // UNIT)
