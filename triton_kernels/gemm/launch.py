"""Launches of matrix products: descriptors, and cached launches for repeated calls."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from triton_kernels import _elementwise, _launch
from triton_kernels._gpu import Gpu
from triton_kernels._launch import REMEMBERED, Launch, specialization_key
from triton_kernels.activations import ACTIVATIONS
from triton_kernels.gemm import splitting
from triton_kernels.gemm.arguments import Gemm
from triton_kernels.gemm.choice import (
    choose,
    parts_pay,
    tma_compatible,
    tma_writable,
    too_large,
)
from triton_kernels.gemm.configurations import ALIGNED, SLOW, Configuration, Problem, Tiles
from triton_kernels.gemm.descriptors import Block, Descriptor
from triton_kernels.gemm.gluon import availability, forms
from triton_kernels.gemm.kernels import gemm_bias_act_kernel, gemm_tma_kernel
from triton_kernels.gemm.parts import by_parts
from triton_kernels.gemm.repacking import repacked


def launch(gemm: Gemm) -> None:
    """Run a product with the kernel and tiles chosen for it.

    Raises:
        RuntimeError: only the Gluon kernel is allowed, and it does not support the problem.
    """
    out = gemm.out
    gpu = _launch.gpu(gemm_bias_act_kernel, out.device)
    M, N, K = gemm.shape
    if M == 1 < K and gemm.a.stride() == (1, 1):  # a column's transpose is as well a row
        gemm = gemm._replace(a=gemm.a.as_strided((1, K), (K, 1)))
    kind = _kind(gemm.c, out)
    problem = Problem(M, N, K, gemm.a.dtype, out.dtype, gemm.precision, kind)
    # An empty matrix has no descriptor.
    if not K or (gemm.precision == "f16x3" and _is_faster_whole(problem, gpu, out.device)):
        gemm = gemm._replace(precision="ieee")
        problem = problem._replace(precision="ieee")
    multiply_adds = not problem.by_cores
    kernels = availability.kernels(gpu, out.device, multiply_adds)
    problem = lying(Problem(*problem[:7], kernels), gemm.a.stride(), gemm.b.stride())
    while True:
        chosen = choose(problem, gpu)
        if problem.kernels == "gluon" and not chosen.gluon:
            raise RuntimeError(f"gemm_gluon_kernel is not made for {problem}")
        try:
            if gemm.precision == "f16x3":
                by_parts(chosen, gpu.multiprocessors, gemm)
            elif chosen.tma:
                by_descriptors(chosen, gpu.multiprocessors, gemm, multiply_adds)
            else:
                through_pointers(chosen, gemm)
            return
        except OutOfResources as error:
            if not too_large(chosen, problem, gpu, error):
                raise
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if not chosen.gluon or problem.kernels == "gluon":
                raise
            if chosen.kind in forms.CLUSTERS:  # a part of a GPU may have no place for them
                availability.give_up_clusters(error)
                continue
            availability.give_up(out.device, error)
            problem = problem._replace(kernels="tl")


def _is_faster_whole(problem: Problem, gpu: Gpu, device: torch.device) -> bool:
    """Whether float32's own product takes less time than one in parts. Where Gluon's kernel for it
    cannot run, or kernels are prescribed, parts are taken."""
    if availability.kernels(gpu, device, True) != "any":
        return False
    return not parts_pay(problem._replace(kernels="any"), gpu)


def lying(problem: Problem, a: tuple[int, ...], b: tuple[int, ...]) -> Problem:
    """The problem with how operands with these strides lie in memory. Of float32 matrices only slow
    pitches count, in tf32 and of rows of K, because nothing else was measured; others are copied
    for tf32."""
    (am, ak), (bk, bn) = a, b
    if problem.dtype.itemsize == 2:
        pitches = _divisor(2 * max(am, ak)), _divisor(2 * max(bk, bn))
        across = _columns_lie_together(am, ak), bn == 1 < bk
        return problem._replace(pitches=pitches, across=across)
    if problem.precision != "tf32":
        return problem
    of_a, of_b = (_divisor(4 * pitch * (step == 1)) for pitch, step in ((am, ak), (bn, bk)))
    slow = SLOW if of_a == SLOW else ALIGNED, SLOW if of_b == SLOW else ALIGNED
    return problem._replace(pitches=slow)


def _columns_lie_together(row: int, column: int) -> bool:
    """Whether the columns of a matrix with these strides are taken as the rows of its transpose. If
    both strides are 1, its rows overlap, as those of windows do, and are taken as they are."""
    return row == 1 != column


def _divisor(pitch: int) -> int:
    """The largest power of two up to ALIGNED that divides a number of bytes."""
    pitch |= ALIGNED
    return pitch & -pitch  # the lowest bit


def _kind(c: Tensor | None, out: Tensor) -> str:
    """The ``c`` of a Problem."""
    if c is None:
        return ""
    even = all(stride == 1 or stride % 16 == 0 for stride in c.stride())
    return "even" if even or not tma_writable(out) else "odd"


def by_descriptors(
    chosen: Configuration, most: int, gemm: Gemm, multiply_adds: bool = False
) -> None:
    """Launch gemm_tma_kernel or gemm_gluon_kernel, with at most ``most`` programs, or more for the
    rest of a pair; or gemm_gluon_fma_kernel for multiply-adds."""
    M, N, K = shape = gemm.shape
    (a, a_t), (b, b_t), copied = _tma_operands(gemm.a, gemm.b, chosen.copies, multiply_adds)
    waits = copied and _launch.overlaps(gemm_tma_kernel, gemm.out.device)
    bias, c, out, pre = gemm.bias, gemm.c, gemm.out, gemm.pre
    # Not every Triton can import what is in Gluon.
    if multiply_adds:
        from triton_kernels.gemm.gluon.fma import launch as multiply_add

        multiply_add(chosen, gemm, (a, b), (a_t, b_t), chosen.parts(K), waits)
        return
    how = a_t, b_t, tma_writable(out)
    if chosen.cluster[0]:
        from triton_kernels.gemm.gluon.clusters import launch as multiply_in_clusters

        multiply_in_clusters(chosen, gemm, (a, b), how, waits)
        return
    if chosen.gluon:
        from triton_kernels.gemm.gluon.launch import launch as multiply

        multiply(chosen, most, gemm, (a, b), how, waits)
        return
    strides = gemm.strides
    kinds = _launch.kinds((shape, *strides))
    prepared, a_block, b_block, out_block = _tma_launch(
        gemm.prefix, chosen, most, kinds, gemm.keys(a, b), gemm.act, how, waits
    )
    results = [out, pre]
    if how[2]:
        results = [t if t is None else Descriptor.of(t, out_block) for t in results]
    operands = Descriptor.of(a, a_block), Descriptor.of(b, b_block)
    grid = (min(chosen.tiles_of(M, N), most), 1, 1)
    prepared(out.device, *operands, bias, c, *results, shape, *strides, *gemm.scalars, grid=grid)


def through_pointers(chosen: Configuration, gemm: Gemm) -> None:
    """Launch gemm_bias_act_kernel."""
    M, N, K = shape = gemm.shape
    a, b, out, tiles = gemm.a, gemm.b, gemm.out, chosen.tiles
    waits = False
    if a.dtype == torch.float32 and gemm.precision == "ieee" and M > 64 and b.stride(0) == 1:
        # Multiply-adds read b's rows. If its columns are contiguous, they take twice as long.
        (b,) = repacked((b.t(), True))
        waits = _launch.overlaps(gemm_bias_act_kernel, out.device)
    strides, scalars = (a.stride(), b.stride(), *gemm.strides), gemm.scalars
    keys = *gemm.keys(a, b), *map(specialization_key, scalars)
    (am, ak), (bk, bn), *_ = strides
    vector = 16 // a.dtype.itemsize
    steps = [(ak, am, K), (am, ak, M), (bk, bn, K), (bn, bk, N)]
    units = [math.gcd(pitch, length, vector) if step == 1 else 1 for step, pitch, length in steps]
    # A matrix that is read only once need not stay in L2.
    policy = "evict_first" if M <= tiles.BLOCK_M else ""
    parts, count = chosen.parts(K), chosen.tiles_of(M, N)
    kinds = _launch.kinds((shape, *strides, parts))
    prepared = _pointer_launch(
        gemm.prefix, tiles, tuple(units), policy, kinds, keys, gemm.act, gemm.precision, waits
    )
    sums = torch.float64 if a.dtype == torch.float64 else torch.float32
    split = splitting.memory(count, tiles.BLOCK_M * tiles.BLOCK_N, parts, sums, out.device)
    tensors, grid = (a, b, gemm.bias, gemm.c, out, gemm.pre), (count * parts, 1, 1)
    prepared(out.device, *tensors, *split, shape, *strides, *scalars, parts, grid=grid)


@functools.lru_cache(REMEMBERED)
def _pointer_launch(
    op: str,
    tiles: Tiles,
    units: tuple[int, ...],
    policy: str,
    kinds: tuple[Any, ...],
    keys: tuple[Any, ...],
    act: str,
    precision: str,
    waits: bool,
) -> Launch:
    """The launch of gemm_bias_act_kernel for tensors and scalars of these keys and integers of
    these kinds. It serves all sizes, so that a new size need not ask Triton for the kernel."""
    (dtype, _), _, _, _, (out_dtype, _), *_ = keys
    return Launch(
        gemm_bias_act_kernel,
        (),
        OP=op,
        ACT=ACTIVATIONS[act].forward_for(out_dtype, dtype),
        C=_elementwise.compute_type(dtype),
        PRECISION=precision,
        UNITS=units,
        B_POLICY=policy,
        **tiles._asdict(),
        **_launch.waiting(waits),
    )


@functools.lru_cache(REMEMBERED)
def _tma_launch(
    op: str,
    chosen: Configuration,
    most: int,
    kinds: tuple[Any, ...],
    keys: tuple[Any, ...],
    act: str,
    how: tuple[bool, bool, bool],
    waits: bool,
) -> tuple[Launch, Block, Block, Block]:
    """The launch of gemm_tma_kernel with at most ``most`` programs, for tensors of these keys and
    integers of these kinds; and the blocks of the descriptors of a, b and out. ``how`` is (A_T,
    B_T, OUT_TMA)."""
    a_t, b_t, out_tma = how
    (dtype, _), _, _, _, (out_dtype, _), _ = keys
    prepared = Launch(
        gemm_tma_kernel,
        (),
        OP=op,
        ACT=ACTIVATIONS[act].forward_for(out_dtype, dtype),
        A_T=a_t,
        B_T=b_t,
        OUT_TMA=out_tma,
        PROGRAMS=most,  # even with fewer tiles: otherwise each size would compile a kernel
        SUBTILES=chosen.SUBTILES,
        **chosen.tiles._asdict(),
        **_launch.waiting(waits),
    )
    m, n, k, *_ = chosen.tiles
    a_block, b_block = [k, m] if a_t else [m, k], [n, k] if b_t else [k, n]
    return prepared, a_block, b_block, [m, n // chosen.SUBTILES]


def _tma_operands(
    a: Tensor, b: Tensor, copies: tuple[bool, bool], multiply_adds: bool
) -> tuple[tuple[Tensor, bool], tuple[Tensor, bool], bool]:
    """For a and b each, a matrix for a descriptor, and whether it is the transpose. Last, whether
    one of the two was copied by a launch.

    A matrix without a possible descriptor is copied, to rows that start at lines of L2. So is one
    whose pitch makes loads slower, if ``copies`` says so. float32 matrices must be contiguous along
    K for the tensor cores.
    """
    (a, a_t, a_fits), (b, b_t, b_fits) = _by_rows(a), _by_rows(b)
    turns = a.dtype == torch.float32 and not multiply_adds
    turned = (a_t, not b_t) if turns else (False, False)
    copied = [turned[0] or copies[0] or not a_fits, turned[1] or copies[1] or not b_fits]
    if any(copied):
        wanted = zip((a, b), turned, copied)
        new = iter(repacked(*((t, turn) for t, turn, copy in wanted if copy)))
        a, b = (next(new) if copy else t for t, copy in zip((a, b), copied))
    return (a, a_t != turned[0]), (b, b_t != turned[1]), any(copied)


def _by_rows(matrix: Tensor) -> tuple[Tensor, bool, bool]:
    """The matrix, its transpose or a copy, whichever has rows of stride 1; whether it is the
    transpose; and whether a descriptor can be of it."""
    row, column = matrix.stride()
    by_columns = _columns_lie_together(row, column)
    if by_columns:
        matrix = matrix.t()
    elif column != 1:
        matrix = matrix.contiguous()
    return matrix, by_columns, tma_compatible(matrix)
