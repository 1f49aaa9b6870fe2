"""gemm_bias_act: out = act(alpha·(a@b) + beta·c + bias), one kernel.

Shapes: a [M, K], b [K, N], bias [N], c broadcasts to [M, N], out [M, N]; any strides. Dtypes:
float16, bfloat16, float32, float64, the same for all inputs. Products are accumulated in float32
(float64 for float64), the epilogue runs in that type, and out is rounded once.

float32 has three precisions. "ieee": float32 products. "tf32": tensor cores read the operands with
10 bits of mantissa. "tf32x3": each operand is split in two tf32 parts, three products, nearly
float32. Reference for the conventions: torch.addmm, torch.nn.functional.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from triton_kernels import _arguments, _elementwise, _launch
from triton_kernels._scalars import as_argument, scalar_value
from triton_kernels.activations import ACTIVATIONS

DTYPES = _arguments.FLOATS
PRECISIONS = ("ieee", "tf32", "tf32x3")


class Config(NamedTuple):
    """How one launch is cut into tiles."""

    BLOCK_M: int
    BLOCK_N: int
    BLOCK_K: int
    GROUP_M: int
    num_warps: int
    num_stages: int


def config(M: int, N: int, dtype: torch.dtype, precision: str) -> Config:
    """The tile sizes for a problem: the one place where they are chosen."""
    if dtype == torch.float64:
        return Config(32, 32, 16, 8, 4, 2)
    if dtype == torch.float32:
        if precision == "ieee":
            return Config(64, 64, 16, 8, 4, 3)
        if precision == "tf32" and M > 64:
            return Config(128, 128, 32, 8, 8, 3)
        return Config(64, 64, 32, 8, 4, 2)
    if M <= 32:
        return Config(32 if M > 16 else 16, 64, 128, 8, 4, 4)
    if M * N <= 1024 * 1024 * 2:
        return Config(64, 128, 64, 8, 4, 4)
    return Config(128, 256, 64, 8, 8, 3)


@triton.jit(do_not_specialize=["alpha", "beta"])
def gemm_bias_act_kernel(
    a_ptr,
    b_ptr,
    bias_ptr,
    c_ptr,
    out_ptr,
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
    # Programs go down GROUP_M rows of tiles before they step to the next column, so that the tiles
    # in flight share rows of a and columns of b in L2.
    pid = tl.program_id(0)
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    first_m = pid // (GROUP_M * tiles_n) * GROUP_M
    group_m = min(tiles_m - first_m, GROUP_M)
    pid_m = first_m + pid % (GROUP_M * tiles_n) % group_m
    pid_n = pid % (GROUP_M * tiles_n) // group_m

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

    pre = scalar_value(alpha, C) * acc
    if c_ptr is not None:
        c_ptrs = c_ptr + m[:, None] * stride_cm + n[None, :] * stride_cn
        c = tl.load(c_ptrs, mask=(m[:, None] < M) & (n[None, :] < N), other=0.0)
        pre += scalar_value(beta, C) * c.to(C)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + n * stride_bias, mask=n < N, other=0.0)
        pre += bias[None, :].to(C)
    out = ACT(pre).to(out_ptr.dtype.element_ty)
    out_ptrs = out_ptr + m[:, None] * stride_om + n[None, :] * stride_on
    tl.store(out_ptrs, out, mask=(m[:, None] < M) & (n[None, :] < N))


def gemm_bias_act(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    *,
    act: str = "none",
    alpha: float = 1.0,
    beta: float | None = None,
    c: Tensor | None = None,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    precision: str = "ieee",
) -> Tensor:
    """act(alpha·(a@b) + beta·c + bias) in one kernel.

    Args:
        a: [M, K], float16, bfloat16, float32 or float64, any strides.
        b: [K, N], a's dtype, any strides; a weight [N, K] is passed as ``weight.t()``.
        bias: [N], a's dtype.
        act: none, relu, gelu, gelu_tanh, silu, sigmoid, tanh or leaky_relu (slope 0.01).
        alpha: factor of the product, rounded once to the accumulator's type.
        beta: factor of c; None means 1 if c is given, else 0. With beta = 0, c is not read.
        c: a's dtype; broadcasts to [M, N].
        out: written and returned if given; [M, N] of the result's dtype; overlaps no input.
        out_dtype: the result's dtype, a floating one; a's by default.
        precision: how float32 products are computed: "ieee", "tf32" or "tf32x3". Other dtypes take
            "ieee" only; it means their exact products.

    Raises:
        TypeError: an argument is no tensor or number, or has a wrong dtype.
        ValueError: an unknown act or precision, a precision that the dtype does not have, beta
            without c.
        RuntimeError: shapes do not fit, devices differ, out overlaps, an input requires grad.
    """
    if out is None and torch.compiler.is_compiling():
        result: Tensor = torch.ops.triton_kernels.gemm_bias_act(
            a, b, bias, act, alpha, beta, c, out_dtype, precision
        )
        return result
    return run(
        "gemm_bias_act", a, b, bias, act, alpha, beta, c, out, out_dtype, precision, ("a", "b")
    )


def run(
    op: str,
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    act: str,
    alpha: float,
    beta: float | None,
    c: Tensor | None,
    out: Tensor | None,
    out_dtype: torch.dtype | None,
    precision: str,
    names: tuple[str, str],
) -> Tensor:
    """Check everything, then launch. ``op`` and ``names`` are what errors call op, a and b."""
    a = _arguments.tensor(op, names[0], a, DTYPES)
    b = _arguments.tensor(op, names[1], b, (a.dtype,))
    bias = None if bias is None else _arguments.tensor(op, "bias", bias, (a.dtype,))
    c = None if c is None else _arguments.tensor(op, "c", c, (a.dtype,))
    _arguments.one_of(op, "act", act, tuple(ACTIVATIONS))
    _arguments.one_of(op, "precision", precision, PRECISIONS)
    if precision != "ieee" and a.dtype != torch.float32:
        raise ValueError(
            f"{op}(): precision '{precision}' is for float32, but the inputs are {a.dtype}"
        )
    alpha = float(_arguments.number(op, "alpha", alpha, a.dtype))
    if beta is not None:
        beta = float(_arguments.number(op, "beta", beta, a.dtype))
        if c is None and beta != 0:
            raise ValueError(f"{op}(): argument 'beta' is {beta}, but there is no 'c'")
    if out_dtype not in (None, *DTYPES):
        raise TypeError(
            f"{op}(): argument 'out_dtype' must be a floating dtype, but got {out_dtype}"
        )
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise RuntimeError(
            f"{op}(): '{names[0]}' and '{names[1]}' must be matrices [M, K] and [K, N], but have "
            f"shapes {tuple(a.shape)} and {tuple(b.shape)}"
        )
    (M, K), N = a.shape, b.shape[1]
    if bias is not None and tuple(bias.shape) != (N,):
        raise RuntimeError(f"{op}(): 'bias' must have shape ({N},), but has {tuple(bias.shape)}")
    device = _arguments.same_device(op, **{names[0]: a, names[1]: b, "bias": bias, "c": c})
    _arguments.refuse_grad(op, **{names[0]: a, names[1]: b, "bias": bias, "c": c})
    given_c = c
    if c is not None:
        try:
            c = c.expand(M, N)
        except RuntimeError:
            raise RuntimeError(
                f"{op}(): 'c' must broadcast to ({M}, {N}), but has shape {tuple(c.shape)}"
            ) from None
        beta = 1.0 if beta is None else beta
        c = c if beta != 0 else None
    _launch.check_device(op, device, gemm_bias_act_kernel)
    dtype = out_dtype or a.dtype
    if out is not None:
        inputs = {names[0]: a, names[1]: b, "bias": bias, "c": given_c}
        _arguments.check_out(op, out, (M, N), dtype, device, inputs, in_place=False)
    else:
        out = torch.empty((M, N), dtype=dtype, device=device)
    tiles = config(M, N, a.dtype, precision)
    _launch.launch(
        gemm_bias_act_kernel,
        (triton.cdiv(M, tiles.BLOCK_M) * triton.cdiv(N, tiles.BLOCK_N),),
        device,
        a,
        b,
        bias,
        c,
        out,
        M,
        N,
        K,
        *a.stride(),
        *b.stride(),
        0 if bias is None else bias.stride(0),
        *((0, 0) if c is None else c.stride()),
        *out.stride(),
        as_argument(alpha, a.dtype),
        as_argument(beta or 0.0, a.dtype),
        ACT=ACTIVATIONS[act],
        C=_elementwise.compute_type(a.dtype),
        PRECISION=precision,
        **tiles._asdict(),
    )
    return out


@torch.library.custom_op(
    "triton_kernels::gemm_bias_act",
    mutates_args=(),
    schema="(Tensor a, Tensor b, Tensor? bias, str act, float alpha, float? beta, Tensor? c, "
    "ScalarType? out_dtype, str precision) -> Tensor",
)
def _gemm_bias_act_op(a, b, bias, act, alpha, beta, c, out_dtype, precision):
    return gemm_bias_act(
        a,
        b,
        bias,
        act=act,
        alpha=alpha,
        beta=beta,
        c=c,
        out_dtype=out_dtype,
        precision=precision,
    )


@_gemm_bias_act_op.register_fake
def _gemm_bias_act_fake(a, b, bias, act, alpha, beta, c, out_dtype, precision):
    return a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype or a.dtype)
