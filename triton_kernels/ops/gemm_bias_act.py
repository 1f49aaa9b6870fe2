"""gemm_bias_act: out = act(alpha·(a@b) + beta·c + bias), in the GEMM kernels.

Shapes: a […, K], b [K, N], bias [N], c broadcasts to […, N], out […, N]; any strides. Dtypes:
float16, bfloat16, float32, float64, the same for all inputs. Products are accumulated in float32
(float64 for float64), the epilogue runs in that type, and out is rounded once.

float32 has four precisions. "ieee": float32 products. "tf32": tensor cores, with 10 mantissa bits
per operand. "tf32x3", "f16x3": three tf32 or float16 products of split operands, nearly float32.
Reference for the conventions: torch.addmm, torch.nn.functional.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from triton_kernels import _arguments, _launch, _precision
from triton_kernels._fusion import Entry, Fusion, Probe
from triton_kernels._gemm_op import Product, ProductOperator, wants_pre
from triton_kernels._placements import P, R, Rule, Shard, Sharding, beside, twice
from triton_kernels.activations import checked_act
from triton_kernels.gemm.arguments import Gemm
from triton_kernels.gemm.configurations import HALVES
from triton_kernels.gemm.kernels import gemm_bias_act_kernel
from triton_kernels.gemm.launch import launch

__all__ = ["gemm_bias_act"]

DTYPES = _arguments.FLOATS
# The largest dimensions. Indices have 32 bits, also those past a matrix's end up to the end of a
# tile. In precision "f16x3" the two parts of an operand are one matrix.
MOST, MOST_IN_PARTS = 2**31 - 1024, 2**30 - 1024


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
    precision: str | None = None,
) -> Tensor:
    """act(alpha·(a@b) + beta·c + bias) in one kernel.

    Args:
        a: […, K], float16, bfloat16, float32 or float64, any strides. Leading dimensions that do
            not merge into one stride are copied once.
        b: [K, N], a's dtype, any strides; a weight [N, K] is passed as ``weight.t()``.
        bias: [N], a's dtype.
        act: none, relu, gelu, gelu_tanh, silu, sigmoid, tanh or leaky_relu (slope 0.01).
        alpha: factor of the product, rounded once to the accumulator's type.
        beta: factor of c; None means 1 if c is given, else 0. With beta = 0, c is not read.
        c: a's dtype; broadcasts to […, N].
        out: written and returned if given; […, N] of the result's dtype, with leading dimensions
            that merge into one stride; overlaps no input.
        out_dtype: the result's dtype, a floating one; a's by default.
        precision: of float32 products: "ieee", "tf32", "tf32x3" or "f16x3" (three float16 products
            of operands whose rows and columns are scaled by powers of two; on compute capability
            9.0 that of "ieee" where it takes less time, of few rows). None follows torch's setting:
            "tf32" where torch allows it, else "ieee". Other dtypes take "ieee" only: their products
            are exact.

    Raises:
        TypeError: an argument is no tensor or number, or has a wrong dtype.
        ValueError: an unknown act or precision, a precision that the dtype does not have, beta
            without c.
        RuntimeError: shapes do not fit, a dimension exceeds 2³¹ − 1024 (in "f16x3" 2³⁰ − 1024),
            devices differ, out overlaps, out is given and an input requires grad.
    """
    precision = _precision.resolved(precision, a)
    if _in_rows(a, b):
        shape = (*a.shape[:-1], b.shape[1])
        rows = None
        if out is not None:
            if not torch.compiler.is_compiling():
                a = _arguments.tensor("gemm_bias_act", "a", a, DTYPES)
            rows = out_by_rows("gemm_bias_act", out, shape)
        result = gemm_bias_act(
            a.reshape(math.prod(shape[:-1]), a.shape[-1]),
            b,
            bias,
            act=act,
            alpha=alpha,
            beta=beta,
            c=_addend_by_rows(c, shape),
            out=rows,
            out_dtype=out_dtype,
            precision=precision,
        )
        return unrolled(result, shape) if out is None else out  # type: ignore[no-any-return]
    args = (a, b, bias, act, alpha, beta, c, out_dtype, precision)
    if out is None and wants_pre(act, a, b, bias, c):
        return _with_pre(*args)[0]  # type: ignore[no-any-return]
    return _gemm_bias_act(*args, out=out)  # type: ignore[no-any-return]


def _in_rows(a: Any, b: Any) -> bool:
    """Whether a has leading dimensions other than one M, in a call that is otherwise valid."""
    tensors = isinstance(a, Tensor) and isinstance(b, Tensor)
    return tensors and not a.is_nested and a.dim() not in (0, 2) and b.dim() == 2


def _addend_by_rows(c: Any, shape: tuple[int, ...]) -> Any:
    """c, which broadcasts to shape […, N], in a shape that broadcasts to [M, N]."""
    if not isinstance(c, Tensor) or c.dim() < 2:
        return c
    try:
        return c.expand(shape).reshape(math.prod(shape[:-1]), shape[-1])
    except RuntimeError:
        raise RuntimeError(
            f"gemm_bias_act(): 'c' must broadcast to {shape}, but has shape {tuple(c.shape)}"
        ) from None


def unrolled(rows: Any, shape: tuple[int, ...]) -> Any:
    """[M, N] as […, N]. Autograd does not record a view, as for torch's own products: FSDP warns of
    views. That is safe, because no other tensor shares this memory."""
    if rows is None or len(shape) == 2:
        return rows
    return torch.ops.aten._unsafe_view.default(rows, shape)


def out_by_rows(op: str, out: Tensor, shape: tuple[int, ...]) -> Tensor:
    """out […, N] as [M, N], without a copy."""
    if not torch.compiler.is_compiling():  # a traced tensor has no memory to check
        out = _arguments.tensor(op, "out", out, DTYPES)
    if tuple(out.shape) != shape:
        raise RuntimeError(
            f"{op}(): argument 'out' has shape {tuple(out.shape)}, but the result has {shape}; "
            "out is never resized"
        )
    try:
        return out.view(math.prod(shape[:-1]), shape[-1])
    except RuntimeError:
        raise RuntimeError(
            f"{op}(): the leading dimensions of 'out', of shape {shape} and strides "
            f"{out.stride()}, do not merge into one"
        ) from None


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
    names: tuple[str, str] = ("a", "b"),
    with_pre: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Check the arguments and launch. Returns the result and, with ``with_pre``, the
    pre-activation. Error texts call the op ``op``, and a and b by ``names``."""
    a = _arguments.tensor(op, names[0], a, DTYPES)
    b = _arguments.tensor(op, names[1], b, (a.dtype,))
    bias = None if bias is None else _arguments.tensor(op, "bias", bias, (a.dtype,))
    c = None if c is None else _arguments.tensor(op, "c", c, (a.dtype,))
    checked_act(op, act)
    _arguments.one_of(op, "precision", precision, _precision.PRECISIONS)
    if precision != "ieee" and a.dtype != torch.float32:
        raise ValueError(
            f"{op}(): precision '{precision}' is for float32, but the inputs are {a.dtype}"
        )
    alpha = float(_arguments.number(op, "alpha", alpha, a.dtype))
    if beta is not None:
        beta = float(_arguments.number(op, "beta", beta, a.dtype))
        if c is None and beta != 0:
            raise ValueError(f"{op}(): argument 'beta' is {beta}, but there is no 'c'")
    dtype = _arguments.floating_dtype(op, "out_dtype", out_dtype, a.dtype)
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise RuntimeError(
            f"{op}(): '{names[0]}' and '{names[1]}' must be matrices [M, K] and [K, N], but have "
            f"shapes {tuple(a.shape)} and {tuple(b.shape)}"
        )
    (M, K), N = a.shape, b.shape[1]
    most = MOST_IN_PARTS if precision == "f16x3" else MOST
    if max(M, N, K) > most:
        raise RuntimeError(
            f"{op}(): M, N and K are {M}, {N} and {K}, but may not exceed {most} in precision "
            f"'{precision}'"
        )
    if bias is not None and tuple(bias.shape) != (N,):
        raise RuntimeError(f"{op}(): 'bias' must have shape ({N},), but has {tuple(bias.shape)}")
    device = _arguments.same_device(op, **{names[0]: a, names[1]: b, "bias": bias, "c": c})
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
    if out is not None:
        inputs = {names[0]: a, names[1]: b, "bias": bias, "c": given_c}
        if torch.is_grad_enabled():
            _arguments.refuse_gradients(op, _arguments.NO_GRADIENT_WITH_OUT, inputs.items())
        _arguments.check_out(op, out, (M, N), dtype, device, inputs, in_place=False)
    else:
        out = torch.empty((M, N), dtype=dtype, device=device)
    pre = torch.empty_like(out) if with_pre else None
    launch(Gemm(op, a, b, bias, c, out, act, alpha, beta or 0.0, precision, pre))
    return out, pre


def _launch_gemm_bias_act(*args: Any, out: Tensor | None = None) -> Tensor:
    a, b, bias, act, alpha, beta, c, out_dtype, precision = args
    op = "gemm_bias_act"
    return run(op, a, b, bias, act, alpha, beta, c, out, out_dtype, precision)[0]


def _launch_with_pre(*args: Any) -> tuple[Tensor, Tensor | None]:
    a, b, bias, act, alpha, beta, c, out_dtype, precision = args
    op = "gemm_bias_act"
    return run(op, a, b, bias, act, alpha, beta, c, None, out_dtype, precision, with_pre=True)


def _fake(
    a: Tensor, b: Tensor, bias: Any, act: Any, alpha: Any, beta: Any, c: Any, out_dtype: Any, _: Any
) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype or a.dtype)


def _product(
    a: Any, b: Any, bias: Any, act: Any, alpha: Any, beta: Any, c: Any, _: Any, precision: Any
) -> Product:
    return Product(a, b, bias, act, alpha, beta, c, precision)


_PARAMETERS = (
    "Tensor a, Tensor b, Tensor? bias, str act, float alpha, float? beta, Tensor? c, "
    "ScalarType? out_dtype, str precision"
)


def _rules(
    a: Any,
    b: Any,
    bias: Any,
    act: str,
    alpha: Any,
    beta: Any,
    c: Any,
    out_dtype: Any,
    precision: Any,
) -> Iterator[Rule]:
    """Sharding by rows or columns; without an activation also along K. Shards along K give partial
    sums, so bias and c are partial, too: DTensor divides a replicated addend by the ranks."""
    shape = (a.shape[0], b.shape[1])
    yield (R,), (R, R, R, R)
    for dim, operands in enumerate([(Shard(0), R), (R, Shard(1))]):
        others = [R if t is None else beside(t, dim, shape) for t in (bias, c)]
        yield (Shard(dim),), (*operands, *others)
    if act == "none":
        yield (P,), (Shard(1), Shard(0), P, P)


_gemm_bias_act = ProductOperator(
    "gemm_bias_act",
    _PARAMETERS,
    _launch_gemm_bias_act,
    _fake,
    with_pre=False,
    act=lambda args: args[3],
    product=_product,
    multiply=gemm_bias_act,
    label="gemm_bias_act",
    sharding=Sharding(_rules, decisive="act"),
)
_with_pre = ProductOperator(
    "gemm_bias_act_with_pre",
    _PARAMETERS,
    _launch_with_pre,
    lambda *args: (_fake(*args), _fake(*args)),
    with_pre=True,
    act=lambda args: args[3],
    product=_product,
    multiply=gemm_bias_act,
    label="gemm_bias_act",
    sharding=Sharding(twice(_rules), decisive="act"),
)

# gemm_bias_act takes every product with an epilogue that no other op matches.
GRAPH = Fusion(
    speeds={
        "gemm_bias_act": (
            Entry(HALVES, eager=0.8, inductor=0.8, aligned=False, estimated=True, timed=True),
            Entry(HALVES, eager=0.8, inductor=0.8, estimated=True, timed=True),
            # "ieee" products, by multiply-add. In Gluon: nearly the least, so that plans time them.
            Entry((torch.float32,), eager=0.8, inductor=0.8, capabilities=(90,), elsewhere=0.1),
        )
    },
    probes={
        "gemm_bias_act": Probe(
            ("MK", "KN", "N"),
            lambda a, b, bias, act: gemm_bias_act(a, b, bias, act=act),
            lambda a, b, bias: torch.addmm(bias, a, b),
        )
    },
)
