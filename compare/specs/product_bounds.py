"""Matrix products: the oracle in float64 and the derived bound.

A result is right if |out − ref| ≤ E + u_out·(|ref| + E) + η_out with E = L_act·P + δ_act(pre) and
P = [2·u_in + u_in² + (1 + u_in)²·γ_K]·|alpha|·(|A|·|B|)
  + 4·u_epilogue·(|alpha|·|A|·|B| + |beta·c| + |bias|) + (K + 4)·max(1, |alpha|)·η_acc.
For precision "f16x3" the first term of P is :func:`split_error`. docs/ARCHITECTURE.md derives the
rest. Lattice inputs involve no rounding, so bits must agree.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from compare import tensor_cores
from compare.cases import Arguments
from compare.specs.activations import ACTIVATIONS

# The relative error of an operand of the multiplication, by side and precision. Triton passes
# float32 bits to the tensor cores, which truncate to 10 bits of mantissa; wmma rounds first.
# cuBLASLt's way is unknown, so it may truncate. tf32x3: each operand has an error of 2⁻²³, and the
# product of the two low parts, 2⁻²², is dropped.
U_IN = {
    ("triton", "tf32"): 2.0**-10,
    ("cuda", "tf32"): 2.0**-11,
    ("triton", "tf32x3"): 1.5 * 2.0**-22,
    ("cuda", "tf32x3"): 1.5 * 2.0**-22,
}
# The rounding of one accumulation step: of FMA loops, and of tensor cores that were not measured.
U_FMA = 2.0**-24
U_TENSOR_CORE = 2.0**-22
U_DOUBLE = 2.0**-53
# The error of cuBLASLt's GELU relative to its argument: 2⁻¹⁹·⁸ over all 16-bit numbers on an H200
# (tests/cuda/test_cublaslt_on_gpu.py), plus a margin.
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
    """A scalar as the kernels use it, rounded once to the accumulator's type."""
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
    """act(alpha·(a@b) + beta·c + bias) in float64 on the unrounded inputs; with training = "pre"
    the pre-activation."""
    act = "none" if training == "pre" else act
    beta = beta if beta is None else _rounded(beta, a)
    pre = _pre_activation(a, b, bias, _rounded(alpha, a), beta, c)
    return ACTIVATIONS[act].function(pre)


def gamma(n: int, u: float) -> float:
    """γ_n(u) = n·u / (1 − n·u): the largest error of n roundings in a sum, relative to Σ|terms|."""
    if n * u >= 1:
        raise ValueError(f"the bound needs n·u < 1, but n = {n} and u = {u}")
    return n * u / (1 - n * u)


def growth(n: int, u: float) -> float:
    """(1 + u)ⁿ − 1: γ_n(u) for small n, but also finite for n·u ≥ 1."""
    return math.expm1(n * math.log1p(u))


def _accumulation(implementation: str, dtype: torch.dtype, precision: str, K: int) -> float:
    """The error of a sum of K products relative to Σ|products|: γ_K(u), or the measured error of
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
    if not hopper and mode != "cuda-host":  # the host emulates the measured GPU
        return gamma(passes * K, U_TENSOR_CORE)
    if dtype == torch.float32:
        kind = "float16" if precision == "f16x3" else "tf32"
    else:
        kind = str(dtype).removeprefix("torch.")
    return tensor_cores.HOPPER[kind].accumulation_error(K, passes)


def split_error(a: Tensor, b: Tensor, accumulation: float) -> Tensor:
    """The error of "f16x3" for |alpha|·a@b, in float64.

    A row of a is scaled by a power of two so that its largest element lies in [2¹⁴, 2¹⁵), or by
    2¹²⁶ if that is not enough. Each scaled element y is split: |y − high − low| ≤ 2⁻²³·|y| + 2⁻²⁵,
    because float16 ends at 2⁻²⁴, and |low| ≤ 2⁻¹¹·|y| + 2⁻²⁴. Let α be the row's largest element,
    at least 2⁻¹¹². In the element's own scale the absolute terms are 2⁻³⁹·α and 2⁻³⁸·α; a column of
    b has β likewise. The splits of both operands and the dropped product low·low make

        (2⁻²¹ + 2⁻⁴⁰)·Σ|a·b| + 2⁻³⁹·(1 + 2⁻⁸)·(α·Σ|b| + β·Σ|a|) + K·2⁻⁷⁵·α·β.

    The accumulated magnitude is at most 1 + 2⁻⁹ times Σ|a·b| + 2⁻³⁷·(α·Σ|b| + β·Σ|a|). It is
    rounded when it leaves the tensor cores' accumulator, every 16 of K or less often. The first
    term is that of a float32 product. The others matter where a row's large elements meet small
    ones of the columns: the row's small elements keep fewer bits.
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
    """The tolerance |out − reference| of each element, for an implementation by its name."""
    (a, b, *rest), options = arguments
    bias = rest[0] if rest else options.get("bias")
    c, precision = options.get("c"), options.get("precision", "ieee")
    name = "none" if options.get("training") == "pre" else options.get("act", "none")
    act = ACTIVATIONS[name]
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
    # A subnormal step rounds to a multiple of the smallest number.
    wide = torch.finfo(torch.float64 if a.dtype == torch.float64 else torch.float32)
    pre_error += (a.shape[1] + 4) * max(1.0, abs(alpha)) * (wide.tiny * wide.eps)
    pre = _pre_activation(a, b, bias, alpha, beta, c)
    # An infinite pre-activation has no rounding error; only the activation's own error remains.
    pre_error = torch.where(pre.isinf(), 0.0, pre_error)
    error = act.amplified(pre, pre_error) + u_epilogue * act.error(pre)
    halves = out_dtype.itemsize == 2 and a.dtype != torch.float64
    if act.half is not None and halves and cut_off:  # the same ones have the short formulas
        relative, absolute = act.half
        formula = relative * reference.abs() + absolute
        if implementation.endswith("/cublaslt") and name == "gelu_tanh":  # or the library's
            formula = formula.maximum(torch.where(pre.isinf(), 0.0, U_GELU * pre.abs()))
        error = error + formula
    u_out = torch.finfo(out_dtype).eps / 2
    smallest = torch.finfo(out_dtype).tiny * torch.finfo(out_dtype).eps
    return error + u_out * (reference.abs() + error) + smallest / 2
