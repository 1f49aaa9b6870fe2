"""The matrix products as compare sees them: the oracle in float64 and the derived bound.

A result is right if |out − ref| ≤ E + u_out·(|ref| + E) + η_out with E = L_act·P + δ_act(pre) and
P = [2·u_in + u_in² + (1 + u_in)²·γ_K]·|alpha|·(|A|·|B|)
  + 4·u_epilogue·(|alpha|·|A|·|B| + |beta·c| + |bias|) + (K + 4)·max(1, |alpha|)·η_acc.
In precision "f16x3" its first term is another one, of :func:`split_error`. docs/ARCHITECTURE.md
derives the rest. On lattice inputs there is no rounding, and bits must agree.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from compare import tensor_cores
from compare.cases import Arguments
from compare.specs.activations import ACTIVATIONS

# How far one input is from what is multiplied, relative to it, by side. Triton hands float32 bits
# to the tensor cores, which cut off all but 10 bits of mantissa; wmma's contract is to round first.
# Of cuBLASLt it is not told, so that it may cut off. tf32x3: 2⁻²³ left over in each operand, and
# the product of the two low parts, 2⁻²², is dropped.
U_IN = {
    ("triton", "tf32"): 2.0**-10,
    ("cuda", "tf32"): 2.0**-11,
    ("triton", "tf32x3"): 1.5 * 2.0**-22,
    ("cuda", "tf32x3"): 1.5 * 2.0**-22,
}
# The rounding of one accumulation step: IEEE FMA loops, and tensor cores that nobody measured.
U_FMA = 2.0**-24
U_TENSOR_CORE = 2.0**-22
U_DOUBLE = 2.0**-53
# How far cuBLASLt's GELU is off, relative to its argument: 2⁻¹⁹·⁸ of all numbers of 16 bits on an
# H200 (tests/cuda/test_cublaslt_on_gpu.py), and a margin.
U_GELU = 2.0**-19


def _pre_activation(
    a: Tensor, b: Tensor, bias: Tensor | None, alpha: float, beta: float | None, c: Tensor | None
) -> Tensor:
    pre = alpha * (a.double() @ b.double())
    beta = (0.0 if c is None else 1.0) if beta is None else beta
    if c is not None and beta != 0:
        pre = pre + beta * c.double()
    return pre if bias is None else pre + bias.double()


def _rounded(scalar: float, a: Tensor) -> float:
    """A scalar as the kernels get it: rounded once to the accumulator's type."""
    wide = torch.float64 if a.dtype == torch.float64 else torch.float32
    return float(torch.tensor(scalar, dtype=wide))


def oracle(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    *,
    act: str = "none",
    alpha: float = 1.0,
    beta: float | None = None,
    c: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    precision: str = "ieee",
    training: str = "out",
) -> Tensor:
    """act(alpha·(a@b) + beta·c + bias) in float64 on the exact inputs; without act where training
    is "pre"."""
    act = "none" if training == "pre" else act
    beta = beta if beta is None else _rounded(beta, a)
    pre = _pre_activation(a, b, bias, _rounded(alpha, a), beta, c)
    return ACTIVATIONS[act].function(pre)


def gamma(n: int, u: float) -> float:
    """γ_n(u) = n·u / (1 − n·u): how far n roundings can take a sum, relative to Σ|terms|."""
    if n * u >= 1:
        raise ValueError(f"the bound needs n·u < 1, but n = {n} and u = {u}")
    return n * u / (1 - n * u)


def growth(n: int, u: float) -> float:
    """(1 + u)ⁿ − 1: γ_n(u) for small n, and finite where that ends, at n·u = 1."""
    return math.expm1(n * math.log1p(u))


def _accumulation(implementation: str, dtype: torch.dtype, precision: str, K: int) -> float:
    """How far a sum of K products can be off, relative to Σ|products|: γ_K(u), or what is known of
    the tensor cores that the implementation uses."""
    mode, _, variant = implementation.partition("/")
    compiled = mode == "triton-compiled"
    on_tensor_cores = (
        variant == "wmma"
        or (precision != "ieee" and mode != "triton-interpreted")
        or ((compiled or variant == "cublaslt") and dtype in (torch.float16, torch.bfloat16))
    )
    passes = 3 if precision in ("tf32x3", "f16x3") else 1
    if not on_tensor_cores:
        return gamma(passes * K, U_DOUBLE if dtype == torch.float64 else U_FMA)
    hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    if not hopper and mode != "cuda-host":  # which adds as the GPU that was measured does
        return gamma(passes * K, U_TENSOR_CORE)
    if dtype == torch.float32:
        kind = "float16" if precision == "f16x3" else "tf32"
    else:
        kind = str(dtype).removeprefix("torch.")
    return tensor_cores.HOPPER[kind].accumulation_error(K, passes)


def split_error(a: Tensor, b: Tensor, accumulation: float) -> Tensor:
    """What "f16x3" may be off |alpha|·a@b by, in float64.

    A row of a is scaled so that its largest element lies in [2¹⁴, 2¹⁵), or by 2¹²⁶, and each y of
    it is split: |y − high − low| ≤ 2⁻²³·|y| + 2⁻²⁵, for float16 ends at 2⁻²⁴, and
    |low| ≤ 2⁻¹¹·|y| + 2⁻²⁴. With α the row's largest element, 2⁻¹¹² at least, that is 2⁻³⁹·α and
    2⁻³⁸·α of the element's own scale; likewise β of a column of b. Both operands' splits, and
    low·low, which is left out, make

        (2⁻²¹ + 2⁻⁴⁰)·Σ|a·b| + 2⁻³⁹·(1 + 2⁻⁸)·(α·Σ|b| + β·Σ|a|) + K·2⁻⁷⁵·α·β,

    and what is added up, and rounded when it leaves the tensor cores' accumulator every 16 of K or
    less often, is at most 1 + 2⁻⁹ times Σ|a·b| + 2⁻³⁷·(α·Σ|b| + β·Σ|a|). The first term is a
    float32 product's. The others are not: where the large elements of a row meet small ones of the
    columns, they are all of the result, and the row's small elements keep fewer bits.
    """
    a, b = a.abs().double(), b.abs().double()
    K = a.shape[1]
    products = a @ b
    if not K:
        return products
    a_largest, b_largest = a.amax(1, keepdim=True), b.amax(0, keepdim=True)
    a_largest, b_largest = a_largest.clamp_min(2.0**-112), b_largest.clamp_min(2.0**-112)
    by_rows = a_largest * b.sum(0, keepdim=True) + b_largest * a.sum(1, keepdim=True)
    split = (2.0**-21 + 2.0**-40) * products + 2.0**-39 * (1 + 2.0**-8) * by_rows
    split += K * 2.0**-75 * a_largest * b_largest
    accumulation += growth(K // 16 + 2, U_FMA)
    return split + accumulation * (1 + 2.0**-9) * (products + 2.0**-37 * by_rows)


def bound(
    implementation: str, arguments: Arguments, reference: Tensor, out_dtype: torch.dtype
) -> Tensor:
    """The largest right |out − reference| of each element, for an implementation by its name."""
    (a, b, *rest), options = arguments
    bias = rest[0] if rest else options.get("bias")
    c, precision = options.get("c"), options.get("precision", "ieee")
    act = ACTIVATIONS[options.get("act", "none")]
    alpha, beta = options.get("alpha", 1.0), options.get("beta")
    u_epilogue = U_DOUBLE if a.dtype == torch.float64 else U_FMA
    cut_off = implementation.startswith("triton") or implementation.endswith("/cublaslt")
    u_in = U_IN.get(("triton" if cut_off else "cuda", precision), 0.0)
    accumulation = _accumulation(implementation, a.dtype, precision, a.shape[1])
    spread = 2 * u_in + u_in**2 + (1 + u_in) ** 2 * accumulation
    magnitude = _pre_activation(
        a.abs(),
        b.abs(),
        None if bias is None else bias.abs(),
        abs(alpha),
        None if beta is None else abs(beta),
        None if c is None else c.abs(),
    )
    product = abs(alpha) * (a.abs().double() @ b.abs().double())
    if precision == "f16x3":
        pre_error = abs(alpha) * split_error(a, b, accumulation)
    else:
        pre_error = spread * product
    pre_error += 4 * u_epilogue * magnitude
    # Where a result is subnormal, a step rounds to multiples of the smallest number instead.
    wide = torch.finfo(torch.float64 if a.dtype == torch.float64 else torch.float32)
    pre_error += (a.shape[1] + 4) * max(1.0, abs(alpha)) * (wide.tiny * wide.eps)
    pre = _pre_activation(a, b, bias, alpha, beta, c)
    # Nothing rounds to or from an infinity: what an activation makes of it has its own error only.
    pre_error = torch.where(pre.isinf(), 0.0, pre_error)
    error = act.lipschitz * pre_error + u_epilogue * act.error(pre)
    halves = out_dtype.itemsize == 2 and a.dtype != torch.float64
    if act.half is not None and halves and implementation.startswith("triton"):
        relative, absolute = act.half
        error = error + relative * reference.abs() + absolute
    if implementation.endswith("/cublaslt") and halves and options.get("act") == "gelu_tanh":
        error = error + torch.where(pre.isinf(), 0.0, U_GELU * pre.abs())
    u_out = torch.finfo(out_dtype).eps / 2
    smallest = torch.finfo(out_dtype).tiny * torch.finfo(out_dtype).eps
    return error + u_out * (reference.abs() + error) + smallest / 2
