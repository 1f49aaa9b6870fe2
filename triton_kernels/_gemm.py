"""The kernels under the matrix products, their tiles, and which of them a problem gets.

``gemm_bias_act_kernel`` reads through pointers: any dtype, strides and GPU, one tile of out a
program. ``gemm_tma_kernel`` is for products of 16-bit matrices on GPUs with a tensor memory
accelerator (compute capability 9.0 and newer): a program a multiprocessor takes tile after tile, so
that the next one's loads run during this one's epilogue. Both share the epilogue.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from triton_kernels import _elementwise, _launch, activations
from triton_kernels._launch import REMEMBERED, Launch, specialization_key
from triton_kernels._scalars import as_argument, scalar_value

HALVES = (torch.float16, torch.bfloat16)


class Tiles(NamedTuple):
    """How one launch is cut into tiles."""

    BLOCK_M: int
    BLOCK_N: int
    BLOCK_K: int
    GROUP_M: int
    num_warps: int
    num_stages: int


class TmaTiles(NamedTuple):
    """The same for gemm_tma_kernel.

    ``SUBTILES``: 2 if the epilogue takes half a tile at a time: that leaves memory for a stage.
    ``cost``: the time of one tile relative to the first's, measured on an H200.
    ``stages_with_c``: num_stages where there is c, which passes through shared memory, too.
    ``long``: instead for K from LONG on, without c: the loop counts there, not the epilogue.
    """

    tiles: Tiles
    SUBTILES: int
    cost: float
    stages_with_c: int
    long: Tiles | None = None


TMA_TILES = (
    TmaTiles(Tiles(128, 256, 64, 16, 8, 4), 2, 1.0, 3),
    TmaTiles(Tiles(128, 128, 64, 16, 8, 4), 1, 0.53, 4, long=Tiles(128, 128, 64, 8, 4, 5)),
    TmaTiles(Tiles(64, 128, 128, 16, 4, 4), 1, 0.31, 3),
    TmaTiles(Tiles(64, 64, 128, 16, 4, 6), 1, 0.2, 5),
    TmaTiles(Tiles(64, 32, 128, 16, 4, 6), 1, 0.17, 5),
)
LONG = 3072
SMALL = 32  # rows, columns or steps of K up to which pointers are as fast as descriptors
# On 132 multiprocessors:
WIDE = 96 * 64  # columns that keep a GPU busy with tiles of 64
LARGE = 1024 * 1024 * 2  # results, beyond which large tiles do


def tiles_for(
    M: int,
    N: int,
    dtype: torch.dtype,
    precision: str,
    multiprocessors: int = _launch.MULTIPROCESSORS,
) -> Tiles:
    """The tiles of gemm_bias_act_kernel for a problem."""
    busy = multiprocessors / _launch.MULTIPROCESSORS
    if dtype == torch.float64:
        return Tiles(32, 32, 16, 8, 4, 2)
    if dtype == torch.float32:
        if precision == "ieee":
            return Tiles(64, 64, 16, 8, 4, 3)
        if precision == "tf32" and M > 64:
            return Tiles(128, 128, 32, 8, 8, 3)
        return Tiles(64, 64, 32, 8, 4, 2)
    if M <= 32:
        return Tiles(32 if M > 16 else 16, 64 if N >= WIDE * busy else 32, 128, 8, 4, 6)
    if M * N <= LARGE * busy:
        return Tiles(64, 128, 64, 8, 4, 4)
    return Tiles(128, 256, 64, 8, 8, 3)


def cdiv(a: int, b: int) -> int:
    """⌈a/b⌉. triton.cdiv, made for kernels, too, takes microseconds."""
    return -(-a // b)


@functools.lru_cache(4096)
def tma_tiles_for(M: int, N: int, multiprocessors: int) -> tuple[TmaTiles, int]:
    """The tiles of gemm_tma_kernel and their number: those whose waves over the multiprocessors
    cost least."""

    def number(tiles: Tiles) -> int:
        return cdiv(M, tiles.BLOCK_M) * cdiv(N, tiles.BLOCK_N)

    best = min(TMA_TILES, key=lambda c: cdiv(number(c.tiles), multiprocessors) * c.cost)
    return best, number(best.tiles)


@triton.jit
def place(tile, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """Row and column of a tile. Tiles go down GROUP_M rows before they step to the next column, so
    that those in flight share rows of a and columns of b in L2."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    first_m = tile // (GROUP_M * tiles_n) * GROUP_M
    group_m = min(tiles_m - first_m, GROUP_M)
    return first_m + tile % (GROUP_M * tiles_n) % group_m, tile % (GROUP_M * tiles_n) // group_m


@triton.jit
def pre_activation(
    acc,
    m,
    n,
    bias_ptr,
    c_ptr,
    M,
    N,
    stride_bias,
    stride_cm,
    stride_cn,
    alpha,
    beta,
    C: tl.constexpr,
):
    """alpha·acc + beta·c + bias for rows m and columns n."""
    pre = scalar_value(alpha, C) * acc
    if c_ptr is not None:
        c_ptrs = c_ptr + m[:, None] * stride_cm + n[None, :] * stride_cn
        c = tl.load(c_ptrs, mask=(m[:, None] < M) & (n[None, :] < N), other=0.0)
        pre += scalar_value(beta, C) * c.to(C)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + n * stride_bias, mask=n < N, other=0.0)
        pre += bias[None, :].to(C)
    return pre


def _named(kernel: str) -> Callable[[Any], str]:
    """What profiles call a compiled kernel: gemm_gelu_tma, gemm_pointers without an activation."""

    def name(specialization: Any) -> str:
        act: str = specialization.constants["ACT"].fn.__name__.removeprefix("half_")
        return f"gemm_{kernel}" if act == "none" else f"gemm_{act}_{kernel}"

    return name


@triton.jit(do_not_specialize=["alpha", "beta"], repr=_named("pointers"))
def gemm_bias_act_kernel(
    a_ptr,
    b_ptr,
    bias_ptr,
    c_ptr,
    out_ptr,
    pre_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_bias,
    stride_cm,
    stride_cn,
    stride_om,
    stride_on,
    alpha,
    beta,
    ACT: tl.constexpr,
    C: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """One BLOCK_M × BLOCK_N tile of out a program; C is the accumulator's type."""
    pid_m, pid_n = place(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    m = pid_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = pid_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + m[:, None] * stride_am + k[None, :].to(tl.int64) * stride_ak
    b_ptrs = b_ptr + k[:, None].to(tl.int64) * stride_bk + n[None, :] * stride_bn
    # A tall matrix by columns has strides that 32 bits hold, but not BLOCK_K of them.
    step = tl.full((), BLOCK_K, tl.int64)
    acc = tl.zeros((BLOCK_M, BLOCK_N), C)
    for k0 in range(0, K, BLOCK_K):
        a = tl.load(a_ptrs, mask=(m[:, None] < M) & (k[None, :] < K - k0), other=0.0)
        b = tl.load(b_ptrs, mask=(k[:, None] < K - k0) & (n[None, :] < N), other=0.0)
        if PRECISION == "ieee" and a_ptr.dtype.element_ty == tl.float32:
            # A sum of BLOCK_K products at a time: the error grows with K / BLOCK_K, not with K. As
            # fma, because the compiler makes acc + dot(a, b) one dot that accumulates on.
            part = tl.dot(a, b, input_precision=PRECISION, out_dtype=C)
            acc = tl.fma(part, tl.full(part.shape, 1.0, C), acc)
        else:
            acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=C)
        a_ptrs += step * stride_ak
        b_ptrs += step * stride_bk
    pre = pre_activation(
        acc, m, n, bias_ptr, c_ptr, M, N, stride_bias, stride_cm, stride_cn, alpha, beta, C
    )
    offsets = m[:, None] * stride_om + n[None, :] * stride_on
    mask = (m[:, None] < M) & (n[None, :] < N)
    if pre_ptr is not None:
        tl.store(pre_ptr + offsets, pre.to(pre_ptr.dtype.element_ty), mask=mask)
    tl.store(out_ptr + offsets, ACT(pre).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def store_tile(out, tile, m0, n0, m, n, M, N, stride_om, stride_on, OUT_TMA: tl.constexpr):
    """The tile whose corner is (m0, n0); out is a descriptor if OUT_TMA."""
    if OUT_TMA:
        out.store([m0, n0], tile.to(out.dtype))
    else:
        out_ptrs = out + m[:, None] * stride_om + n[None, :] * stride_on
        mask = (m[:, None] < M) & (n[None, :] < N)
        tl.store(out_ptrs, tile.to(out.dtype.element_ty), mask=mask)


@triton.jit
def finish_and_store(
    acc,
    m0,
    n0,
    bias_ptr,
    c_ptr,
    out,
    pre,
    M,
    N,
    stride_bias,
    stride_cm,
    stride_cn,
    stride_om,
    stride_on,
    alpha,
    beta,
    ACT: tl.constexpr,
    OUT_TMA: tl.constexpr,
):
    """The epilogue of the tile whose corner is (m0, n0), of acc's shape."""
    m = m0.to(tl.int64) + tl.arange(0, acc.shape[0])
    n = n0.to(tl.int64) + tl.arange(0, acc.shape[1])
    tile = pre_activation(
        acc,
        m,
        n,
        bias_ptr,
        c_ptr,
        M,
        N,
        stride_bias,
        stride_cm,
        stride_cn,
        alpha,
        beta,
        tl.float32,
    )
    if pre is not None:
        store_tile(pre, tile, m0, n0, m, n, M, N, stride_om, stride_on, OUT_TMA)
    store_tile(out, ACT(tile), m0, n0, m, n, M, N, stride_om, stride_on, OUT_TMA)


@triton.jit(do_not_specialize=["alpha", "beta"], repr=_named("tma"))
def gemm_tma_kernel(
    a_desc,
    b_desc,
    bias_ptr,
    c_ptr,
    out,
    pre,
    M,
    N,
    K,
    stride_bias,
    stride_cm,
    stride_cn,
    stride_om,
    stride_on,
    alpha,
    beta,
    ACT: tl.constexpr,
    A_T: tl.constexpr,
    B_T: tl.constexpr,
    OUT_TMA: tl.constexpr,
    PROGRAMS: tl.constexpr,
    SUBTILES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """Every PROGRAMS-th tile of out; A_T: a_desc is of a's transpose, [K, M]; B_T: [N, K].

    out and pre are descriptors if OUT_TMA.
    """
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=True):
        pid_m, pid_n = place(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m = pid_m * BLOCK_M
        n = pid_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(tl.cdiv(K, BLOCK_K)):
            k = step * BLOCK_K
            if A_T:
                a = a_desc.load([k, m]).T
            else:
                a = a_desc.load([m, k])
            if B_T:
                b = b_desc.load([n, k]).T
            else:
                b = b_desc.load([k, n])
            acc = tl.dot(a, b, acc, input_precision="ieee")
        if SUBTILES == 2:
            parts = tl.split(tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1)))
        else:
            parts = (acc,)
        for i in tl.static_range(SUBTILES):
            finish_and_store(
                parts[i],
                m,
                n + i * (BLOCK_N // SUBTILES),
                bias_ptr,
                c_ptr,
                out,
                pre,
                M,
                N,
                stride_bias,
                stride_cm,
                stride_cn,
                stride_om,
                stride_on,
                alpha,
                beta,
                ACT,
                OUT_TMA,
            )


def multiply(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    c: Tensor | None,
    out: Tensor,
    act: str,
    alpha: float,
    beta: float,
    precision: str,
    pre: Tensor | None = None,
) -> None:
    """out = act(alpha·(a@b) + beta·c + bias), of arguments that fit.

    pre, of out's dtype and strides, gets the same before the activation.
    """
    M, N = out.shape
    shape = M, N, a.shape[1]
    strides = (
        0 if bias is None else bias.stride(0),
        *((0, 0) if c is None else c.stride()),
        *out.stride(),
    )
    scalars = as_argument(alpha, a.dtype), as_argument(beta, a.dtype)
    if a.dtype in HALVES and out.dtype in HALVES and min(shape) > SMALL:
        gpu = _launch.gpu(gemm_tma_kernel, out.device)
        if gpu.capability >= 90:
            a, a_t = _by_descriptor(a)
            b, b_t = _by_descriptor(b)
            out_tma = _by_rows(out)
            choice, count = tma_tiles_for(M, N, gpu.multiprocessors)
            programs = min(count, gpu.multiprocessors)
            keys = tuple(map(specialization_key, (a, b, bias, c, out, pre)))
            launch, a_block, b_block, out_block = _tma_launch(
                choice, programs, shape, strides, keys, act, a_t, b_t, out_tma
            )
            results = [out, pre]
            if out_tma:
                results = [t if t is None else _Descriptor.of(t, out_block) for t in results]
            launch(
                out.device,
                _Descriptor.of(a, a_block),
                _Descriptor.of(b, b_block),
                bias,
                c,
                *results,
                *shape,
                *strides,
                *scalars,
            )
            return
    if a.dtype == torch.float32 and precision == "ieee" and M > 64 and b.stride(0) == 1:
        b = b.contiguous()  # the multiply-adds read b by rows; by columns they take twice as long
    strides = (*a.stride(), *b.stride(), *strides)
    keys = tuple(map(specialization_key, (a, b, bias, c, out, pre, *scalars)))
    launch = _pointer_launch(shape, strides, keys, act, precision, _launch.pretended())
    launch(out.device, a, b, bias, c, out, pre, *shape, *strides, *scalars)


@functools.lru_cache(REMEMBERED)
def _pointer_launch(
    shape: tuple[int, int, int],
    strides: tuple[int, ...],
    keys: tuple[Any, ...],
    act: str,
    precision: str,
    multiprocessors: int | None,
) -> Launch:
    """The launch of gemm_bias_act_kernel for arguments of these integers and keys; every GPU
    counts as one of 132 multiprocessors, unless another number is asked for."""
    M, N, _ = shape
    (dtype, _), _, _, _, (out_dtype, _), *_ = keys
    tiles = tiles_for(M, N, dtype, precision, multiprocessors or _launch.MULTIPROCESSORS)
    return Launch(
        gemm_bias_act_kernel,
        (cdiv(M, tiles.BLOCK_M) * cdiv(N, tiles.BLOCK_N),),
        ACT=activations.for_result(act, out_dtype, dtype),
        C=_elementwise.compute_type(dtype),
        PRECISION=precision,
        **tiles._asdict(),
    )


Block = list[int]


@functools.lru_cache(REMEMBERED)
def _tma_launch(
    choice: TmaTiles,
    programs: int,
    shape: tuple[int, int, int],
    strides: tuple[int, ...],
    keys: tuple[Any, ...],
    act: str,
    a_t: bool,
    b_t: bool,
    out_tma: bool,
) -> tuple[Launch, Block, Block, Block]:
    """The launch of gemm_tma_kernel, and the blocks of the descriptors of a, b, out."""
    (dtype, _), _, _, c, (out_dtype, _), _ = keys
    tiles = choice.tiles
    if c is not None:
        tiles = tiles._replace(num_stages=choice.stages_with_c)
    elif shape[2] >= LONG and choice.long is not None:
        tiles = choice.long
    launch = Launch(
        gemm_tma_kernel,
        (programs,),
        ACT=activations.for_result(act, out_dtype, dtype),
        A_T=a_t,
        B_T=b_t,
        OUT_TMA=out_tma,
        PROGRAMS=programs,
        SUBTILES=choice.SUBTILES,
        **tiles._asdict(),
    )
    m, n, k, *_ = tiles
    return launch, [k, m] if a_t else [m, k], [n, k] if b_t else [k, n], [m, n // choice.SUBTILES]


class _Descriptor(TensorDescriptor):  # type: ignore[misc]
    """Triton's, without its checks, which take longer than the rest: _by_rows has made them."""

    def __post_init__(self) -> None:
        pass

    @staticmethod
    def of(matrix: Tensor, block: Block) -> _Descriptor:
        return _Descriptor(matrix, matrix.shape, matrix.stride(), block)


def _by_rows(matrix: Tensor) -> bool:
    """Whether a descriptor takes the matrix: rows without gaps, all on multiples of 16 bytes."""
    row, column = matrix.stride()
    size = matrix.element_size()
    return column == 1 and row > 0 and row * size % 16 == 0 and matrix.data_ptr() % 16 == 0


def _by_descriptor(matrix: Tensor) -> tuple[Tensor, bool]:
    """The matrix as a descriptor takes it, and whether that is the transpose.

    What no descriptor takes is copied to rows that start on multiples of 16 bytes.
    """
    if _by_rows(matrix):
        return matrix, False
    transposed = matrix.stride(0) == 1
    if transposed:
        matrix = matrix.t()
    if not _by_rows(matrix):
        step = 16 // matrix.element_size()
        pitch = cdiv(matrix.shape[1], step) * step
        padded = matrix.new_empty(matrix.shape[0], pitch)[:, : matrix.shape[1]]
        matrix = padded.copy_(matrix)
    return matrix, transposed
