"""act_backward: dx = grad·act'(saved), and its column sums, the bias gradient, in the same pass.

Shapes: grad and saved [M, N], any strides; dx [M, N], the sums [N]. Dtypes: float16, bfloat16,
float32, float64; grad and saved may differ. The compute type C is float32, or float64 if any of
them is float64. ``saved`` is the result of the forward pass for none, relu, leaky_relu, sigmoid and
tanh, and the pre-activation for gelu, gelu_tanh and silu; triton_kernels/activations.py has the
derivatives.

Steps: grad, saved → C; the derivative, one multiplication; dx is rounded once to its dtype. relu,
and activations that a graph composes of relu, hardtanh, clamp and the like, drop the gradient where
torch's own drop it, even if it is infinite or NaN. The sums add the products before that rounding,
in C, in an order that depends on shapes, strides, dtypes and the number of multiprocessors only,
and are rounded once.
Reference: torch.autograd.grad of torch.nn.functional's activations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from triton_kernels import _arguments, _elementwise, _launch
from triton_kernels._counts import cdiv, next_power_of_2
from triton_kernels._launch import REMEMBERED, Launch, specialization_key
from triton_kernels._operator import Operator, TensorMeta, one_by_one, saved_by
from triton_kernels._placements import P, R, Rule, Shard, Sharding
from triton_kernels._scalars import multiple
from triton_kernels._second_derivatives import of_saved
from triton_kernels.activations import ACTIVATIONS, checked_act
from triton_kernels.ops.add import add
from triton_kernels.ops.sum_to import add_rows

__all__ = ["act_backward"]

DTYPES = _arguments.FLOATS
TILE = 2048  # elements
COLUMNS = 64  # of a tile, where the matrix has that many; the rest of the tile are rows
PROGRAMS = 16  # per multiprocessor keep a GPU busy
SHARE = 25_000_000  # bytes of a matrix for which there are so many; of larger ones up to
MOST = 8  # times as many are faster
FOLDED = 1 << 15  # elements per multiprocessor from which whole vectors repay extra launches; of
# wide matrices twice as many


@triton.jit
def act_backward_kernel(
    grad_ptr,
    saved_ptr,
    dx_ptr,
    sums_ptr,
    M,
    N,
    rows,
    stride_gm,
    stride_gn,
    stride_sm,
    stride_sn,
    stride_dm,
    stride_dn,
    DERIVATIVE: tl.constexpr,
    DROPS: tl.constexpr,
    C: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Program (j, i): column block j of the i-th part of the rows. It stores the part's column sums
    in row i of sums_ptr. UNIT divides N and the row strides."""
    N = multiple(N, UNIT)
    stride_gm = multiple(stride_gm, UNIT)
    stride_sm = multiple(stride_sm, UNIT)
    stride_dm = multiple(stride_dm, UNIT)
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    begin = tl.program_id(1).to(tl.int64) * rows
    end = tl.minimum(begin + rows, M)
    total = tl.zeros((BLOCK_M, BLOCK_N), C)
    for start in range(begin, end, BLOCK_M):
        m = start + tl.arange(0, BLOCK_M).to(tl.int64)  # interpreted, start is a Python number
        mask = (m[:, None] < end) & (n[None, :] < N)
        grad_ptrs = grad_ptr + m[:, None] * stride_gm + n[None, :] * stride_gn
        saved_ptrs = saved_ptr + m[:, None] * stride_sm + n[None, :] * stride_sn
        grad = tl.load(grad_ptrs, mask=mask, other=0.0).to(C)
        saved = tl.load(saved_ptrs, mask=mask, other=0.0).to(C)
        dx = grad * DERIVATIVE(saved)
        if DROPS is not None:
            dx = tl.where(DROPS(saved), 0.0, dx)
        dx_ptrs = dx_ptr + m[:, None] * stride_dm + n[None, :] * stride_dn
        tl.store(dx_ptrs, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        if sums_ptr is not None:
            total += tl.where(mask, dx, 0.0)  # masked lanes may hold NaN: 0·inf
    if sums_ptr is not None:
        sums_ptrs = sums_ptr + tl.program_id(1).to(tl.int64) * N + n
        tl.store(sums_ptrs, tl.sum(total, axis=0).to(sums_ptr.dtype.element_ty), mask=n < N)


def act_backward(
    grad: Tensor,
    saved: Tensor,
    act: str,
    *,
    bias: bool = True,
    dtype: torch.dtype | None = None,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """The gradient of an activation's argument, and that of a bias which was added to it.

    Args:
        grad: [M, N], float16, bfloat16, float32 or float64: the gradient of act's result.
        saved: [M, N], of these dtypes: act's result, or its argument for gelu, gelu_tanh and silu.
        act: none, relu, gelu, gelu_tanh, silu, sigmoid, tanh or leaky_relu (slope 0.01).
        bias: whether the sums are wanted.
        dtype: of both results; ``torch.result_type(grad, saved)`` by default.
        out: both results, written and returned if given, apart from each other; the first may be
            grad or saved itself.

    Returns:
        grad·act'(saved), [M, N], and its sums over M, [N]; without bias, [0].

    Raises:
        TypeError: grad or saved is no tensor, bias no bool, or a dtype is unsupported.
        ValueError: an unknown act.
        RuntimeError: grad and saved are no matrices of one shape, devices differ, out does not fit
            or overlaps, out is given and an input requires grad.
        NotImplementedError: out is given where the call is traced or transformed; a second
            derivative of a registered activation that is not known in torch.
    """
    args = (grad, saved, act, bias, dtype)
    if out is None:
        return _act_backward(*args)  # type: ignore[no-any-return]
    if _act_backward.followed(args):
        raise NotImplementedError("act_backward(): out= is for plain tensors outside of tracing")
    written = _launch_act_backward(*args, out=out)
    torch.autograd.graph.increment_version(written)
    return written


def _launch_act_backward(
    grad: Tensor,
    saved: Tensor,
    act: str,
    bias: bool,
    dtype: torch.dtype | None,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    op = "act_backward"
    grad = _arguments.tensor(op, "grad", grad, DTYPES)
    saved = _arguments.tensor(op, "saved", saved, DTYPES)
    checked_act(op, act)
    _arguments.boolean(op, "bias", bias)
    dtype = _arguments.floating_dtype(op, "dtype", dtype, torch.result_type(grad, saved))
    if grad.dim() != 2 or grad.shape != saved.shape:
        raise RuntimeError(
            f"{op}(): 'grad' and 'saved' must be matrices of one shape, but have shapes "
            f"{tuple(grad.shape)} and {tuple(saved.shape)}"
        )
    device = _arguments.same_device(op, grad=grad, saved=saved)
    _launch.check_device(op, device, act_backward_kernel)
    M, N = grad.shape
    compute = torch.float64 if torch.float64 in (grad.dtype, saved.dtype, dtype) else torch.float32
    if out is None:
        dx = torch.empty((M, N), dtype=dtype, device=device)
        total = torch.empty(N if bias else 0, dtype=dtype, device=device)
    else:
        dx, total = _checked_out(out, grad, saved, dtype, N if bias else 0)
    _run((grad, saved, dx), total if bias else None, act, compute)
    return dx, total


def _run(matrices: Sequence[Tensor], total: Tensor | None, act: str, compute: torch.dtype) -> None:
    """Launch the kernel; where it leaves column sums of several parts, add those."""
    grad, saved, dx = matrices
    M, N = grad.shape
    multiprocessors = _launch.gpu(act_backward_kernel, grad.device).multiprocessors
    folded = FOLDED * (2 if N >= 8 * COLUMNS else 1) * multiprocessors
    if M * N >= folded and all(t.is_contiguous() for t in matrices):
        fold = _fold(M, N, 16 // min(t.itemsize for t in matrices))
        if fold > 1:
            _run_folded(fold, matrices, total, act, compute)
            return
    strides = (*grad.stride(), *saved.stride(), *dx.stride())
    keys = tuple(map(specialization_key, (grad, saved, dx, total)))
    dense = total is not None and total.is_contiguous()
    busy = PROGRAMS * multiprocessors
    launch, parts, rows = _prepared(M, N, busy, strides, keys, dense, act, dx.dtype, compute)
    sums = total
    if total is not None and not (parts == 1 and dense):  # else its sums are the results
        sums = _launch.workspace((parts, N), compute, grad.device)
    launch(grad.device, grad, saved, dx, sums, M, N, rows, *strides)
    if total is not None and sums is not None and sums is not total:
        add_rows(sums, total)


def _fold(M: int, N: int, vector: int) -> int:
    """How many rows of dense matrices form one row of the kernel. A merged row consists of whole
    vectors of ``vector`` elements and fills a tile's columns."""
    unit = vector if N % 16 == 0 or N >= 8 * COLUMNS else COLUMNS
    fold = unit // math.gcd(unit, N)
    return fold if fold <= M // 4 else 1


def _run_folded(
    fold: int,
    matrices: Sequence[Tensor],
    total: Tensor | None,
    act: str,
    compute: torch.dtype,
) -> None:
    """Launch with ``fold`` rows merged into one, then launch for the remaining rows."""
    M, N = matrices[0].shape
    body = M - M % fold
    wide = left = partial = None
    if total is not None:
        partial = _launch.workspace((fold + 1, N), compute, total.device)
        wide, left = partial[:fold].view(-1), partial[fold]
    _run([t[:body].view(-1, fold * N) for t in matrices], wide, act, compute)
    _run([t[body:] for t in matrices], left, act, compute)
    if total is not None and partial is not None:
        add_rows(partial, total)


@functools.lru_cache(REMEMBERED)
def _prepared(
    M: int,
    N: int,
    busy: int,
    strides: tuple[int, ...],
    keys: tuple[Any, ...],
    dense: bool,
    act: str,
    dtype: torch.dtype,
    compute: torch.dtype,
) -> tuple[Launch, int, int]:
    """The launch, the number of parts into which it cuts M, and the rows of each part."""
    unit = _unit(N, strides)
    busy *= max(1, min(MOST, M * N * dtype.itemsize // SHARE))
    even = N % 16 == 0 or unit * dtype.itemsize >= 16
    block_m, block_n = _tile(M, N, even, busy)
    # As many parts as keep the GPU busy, each of whole blocks; an empty sum needs one part.
    parts = max(1, min(cdiv(M, block_m), cdiv(busy, max(1, cdiv(N, block_n)))))
    rows = block_m * cdiv(max(1, M), parts * block_m)
    parts = max(1, cdiv(M, rows))
    launch = Launch(
        act_backward_kernel,
        (cdiv(N, block_n), parts),  # the second axis of a grid has at most 65535 programs
        DERIVATIVE=ACTIVATIONS[act].derivative_for(dtype, compute),
        DROPS=ACTIVATIONS[act].drops,
        C=_elementwise.compute_type(compute),
        UNIT=unit,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
    )
    return launch, parts, rows


def _unit(N: int, strides: tuple[int, ...]) -> int:
    """The common divisor, at most 16, of N and of the row strides, for the compiler. 1 where rows
    are not dense, and for 16, which Triton's specialization finds itself."""
    unit = math.gcd(16, N, *strides[::2]) if set(strides[1::2]) == {1} else 1
    return unit if unit < 16 else 1


def _tile(M: int, N: int, even: bool, busy: int) -> tuple[int, int]:
    """The rows and columns of a tile: COLUMNS at first, more rows of a narrow matrix, more
    columns of a low one. Where rows are not a whole number of vectors (``even`` is false) the tile
    has half the elements, or a quarter where tiles are few.

    Pitch and alignment are ignored, although they too may prevent vector loads: a smaller tile for
    even rows at odd pitches, transposed or expanded, was 4 % slower in the median of 60 matrices on
    an H200.
    """
    columns = min(COLUMNS, next_power_of_2(N))
    tile = TILE
    if columns == COLUMNS and not even:
        few = cdiv(M, TILE // 2 // columns) * cdiv(N, columns) * 8 < busy
        tile = TILE // 4 if few else TILE // 2
    rows = min(tile // columns, next_power_of_2(M))
    return rows, min(tile // rows, next_power_of_2(N))


def _checked_out(
    out: Any, grad: Tensor, saved: Tensor, dtype: torch.dtype, sums: int
) -> tuple[Tensor, Tensor]:
    op = "act_backward"
    if not isinstance(out, tuple) or len(out) != 2:
        raise TypeError(f"{op}(): argument 'out' must be a pair of tensors, but got {out!r:.60}")
    inputs: dict[str, Tensor | None] = {"grad": grad, "saved": saved}
    if torch.is_grad_enabled():
        _arguments.refuse_gradients(op, _arguments.NO_GRADIENT_WITH_OUT, inputs.items())
    dx, total = out
    _arguments.check_out(op, dx, grad.shape, dtype, grad.device, inputs, in_place=True)
    inputs["the other result"] = dx
    _arguments.check_out(op, total, (sums,), dtype, grad.device, inputs, in_place=False)
    return dx, total


def _fake(
    grad: Tensor, saved: Tensor, act: str, bias: bool, dtype: torch.dtype | None
) -> tuple[Tensor, Tensor]:
    dtype = dtype or torch.result_type(grad, saved)
    sums = grad.new_empty(grad.shape[1] if bias else 0, dtype=dtype)
    return grad.new_empty(grad.shape, dtype=dtype), sums


class _ActBackward(Operator):
    """Linear in grad. torch computes the gradient of saved, unless act is piecewise linear."""

    def _keep(self, ctx: Any, args: tuple[Any, ...], out: Any) -> None:
        ctx.set_materialize_grads(False)
        grad, saved, ctx.act, *_ = args
        ctx.like = TensorMeta(grad.shape, grad.dtype)
        ctx.curved = ctx.needs_input_grad[1] and not ACTIVATIONS[ctx.act].straight
        ctx.save_for_backward(saved, grad if ctx.curved else None)

    def _backward(
        self, ctx: Any, grad_dx: Tensor | None, grad_sums: Tensor | None = None
    ) -> tuple[Tensor | None, ...]:
        saved, grad = saved_by(ctx)
        total = grad_dx
        if grad_sums is not None and grad_sums.numel():  # without bias there are none
            each = grad_sums.expand(ctx.like.shape)
            total = each if grad_dx is None else add(grad_dx, each)
        dgrad = dsaved = None
        if total is not None and ctx.needs_input_grad[0]:
            total = total.resolve_neg()
            dgrad, _ = act_backward(total, saved, ctx.act, bias=False, dtype=ctx.like.dtype)
        if total is not None and ctx.curved and ctx.needs_input_grad[1]:
            dsaved = of_saved("act_backward", ctx.act, saved, (grad,), total)
        elif ctx.needs_input_grad[1]:
            dsaved = saved.new_zeros(saved.shape)
        return dgrad, dsaved, None, None, None


def _rules(grad: Any, saved: Any, act: Any, bias: bool, dtype: Any) -> Iterator[Rule]:
    """Sharding: linear in grad. The sums are over the rows; without bias they are empty."""
    for placement, sums in [(R, R), (Shard(0), P), (Shard(1), Shard(0))]:
        yield (placement, sums if bias else R), (placement, placement)
    yield (P, P if bias else R), (P, R)


_act_backward = _ActBackward(
    "act_backward",
    "Tensor grad, Tensor saved, str act, bool bias, ScalarType? dtype",
    _launch_act_backward,
    _fake,
    batched=one_by_one,
    results=2,
    sharding=Sharding(_rules, decisive="bias"),
)
