"""The matrix products as compare sees them: the oracle in float64, the derived bound, the cases.

A result is right if |out − ref| ≤ E + u_out·(|ref| + E) + η_out with E = L_act·P + δ_act(pre) and
P = [2·u_in + u_in² + (1 + u_in)²·γ_K]·|alpha|·(|A|·|B|)
  + 4·u_epilogue·(|alpha|·|A|·|B| + |beta·c| + |bias|) + (K + 4)·max(1, |alpha|)·η_acc.
docs/ARCHITECTURE.md derives it. On lattice inputs there is no rounding, and bits must agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from compare import cases, elementwise, tensor_cores
from compare.case_options import FLOAT_DTYPE, NUMBER, TRUTH, choice
from compare.cases import Arguments, Case, Level
from cuda_reference.ops.gemm import takes as cuda_takes

# How far one input is from what is multiplied, relative to it, by side. Triton hands float32 bits
# to the tensor cores, which cut off all but 10 bits of mantissa; wmma's contract is to round first.
# tf32x3: 2⁻²³ left over in each operand, and the product of the two low parts, 2⁻²², is dropped.
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


class Activation(NamedTuple):
    """An activation for the oracle, and what the bound must know about it.

    ``lipschitz``: the largest |slope|. ``error``: the evaluation error of the kernels' formula in
    units of the epilogue's rounding, as a function of the pre-activation. ``half``: relative and
    absolute error of Triton's formula for results of 16 bits, where it is another one.
    """

    function: Callable[[Tensor], Tensor]
    lipschitz: float
    error: Callable[[Tensor], Tensor]
    half: tuple[float, float] | None = None


def _gelu_tanh(x: Tensor) -> Tensor:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + torch.tanh(inner))


# The evaluation errors: erf and tanh come within 2 ulp and multiply x/2 after an addition to 1, so
# that gelu's absolute error is a few roundings of x; gelu_tanh adds tanh' · |inner| ≤ 0.45 times
# its argument's few roundings. exp(−x) is computed as 2^(x·log₂e): relative error (|x| + 4)
# roundings, damped by sigmoid' = s·(1 − s) ≤ 1/4, and s·(1 − s)·|x| ≤ 0.23. Where a result has 16
# bits, gelu's exponent is a polynomial fitted to 2⁻¹², and its last value from |x| = 5 on, where
# gelu(−|x|) < 2⁻¹⁹; in all of these an exponent y < 128 with three roundings makes 2⁻¹⁵, and a
# divisor past 2¹²⁶ makes 0.
_SIGMOID_FORM = 2.0**-15, 2.0**-118
ACTIVATIONS = {
    "none": Activation(lambda x: x, 1.0, torch.zeros_like),
    "relu": Activation(lambda x: torch.where(x < 0, torch.zeros_like(x), x), 1.0, torch.zeros_like),
    "gelu": Activation(
        lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
        1.13,
        lambda x: 4 * x.abs(),
        (2.0**-12, 2.0**-21),
    ),
    "gelu_tanh": Activation(_gelu_tanh, 1.13, lambda x: 6 * x.abs(), _SIGMOID_FORM),
    "silu": Activation(lambda x: x * torch.sigmoid(x), 1.1, lambda x: 6 * x.abs(), _SIGMOID_FORM),
    "sigmoid": Activation(torch.sigmoid, 0.25, lambda x: torch.full_like(x, 6.0), _SIGMOID_FORM),
    "tanh": Activation(torch.tanh, 1.0, lambda x: 4 * torch.tanh(x).abs()),
    "leaky_relu": Activation(lambda x: torch.where(x < 0, 0.01 * x, x), 1.0, lambda x: 2 * x.abs()),
}


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


def gemm_bias_act_oracle(
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
) -> Tensor:
    """act(alpha·(a@b) + beta·c + bias) in float64 on the exact inputs."""
    beta = beta if beta is None else _rounded(beta, a)
    pre = _pre_activation(a, b, bias, _rounded(alpha, a), beta, c)
    return ACTIVATIONS[act].function(pre)


def linear_gelu_oracle(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, approximate: str = "none"
) -> Tensor:
    """gelu(x @ weight.T + bias) in float64 on the exact inputs."""
    act = "gelu" if approximate == "none" else "gelu_tanh"
    flat = x.reshape(x.shape[:-1].numel(), x.shape[-1])
    return gemm_bias_act_oracle(flat, weight.t(), bias, act=act).view(
        *x.shape[:-1], weight.shape[0]
    )


def gamma(n: int, u: float) -> float:
    """γ_n(u) = n·u / (1 − n·u): how far n roundings can take a sum, relative to Σ|terms|."""
    if n * u >= 1:
        raise ValueError(f"the bound needs n·u < 1, but n = {n} and u = {u}")
    return n * u / (1 - n * u)


def _accumulation(implementation: str, dtype: torch.dtype, precision: str, K: int) -> float:
    """How far a sum of K products can be off, relative to Σ|products|: γ_K(u), or what is known of
    the tensor cores that the implementation uses."""
    mode, _, variant = implementation.partition("/")
    compiled = mode == "triton-compiled"
    on_tensor_cores = (
        variant == "wmma"
        or (precision != "ieee" and mode != "triton-interpreted")
        or (compiled and dtype in (torch.float16, torch.bfloat16))
    )
    passes = 3 if precision == "tf32x3" else 1
    if not on_tensor_cores:
        return gamma(passes * K, U_DOUBLE if dtype == torch.float64 else U_FMA)
    hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    if not hopper and mode != "cuda-host":  # which adds as the GPU that was measured does
        return gamma(passes * K, U_TENSOR_CORE)
    kind = "tf32" if dtype == torch.float32 else str(dtype).removeprefix("torch.")
    return tensor_cores.HOPPER[kind].accumulation_error(K, passes)


def gemm_bias_act_bound(
    implementation: str, arguments: Arguments, reference: Tensor, out_dtype: torch.dtype
) -> Tensor:
    """The largest right |out − reference| of each element, for an implementation by its name."""
    (a, b, *rest), options = arguments
    bias = rest[0] if rest else options.get("bias")
    c, precision = options.get("c"), options.get("precision", "ieee")
    act = ACTIVATIONS[options.get("act", "none")]
    alpha, beta = options.get("alpha", 1.0), options.get("beta")
    u_epilogue = U_DOUBLE if a.dtype == torch.float64 else U_FMA
    u_in = U_IN.get((implementation.split("-")[0], precision), 0.0)
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
    pre_error = spread * product + 4 * u_epilogue * magnitude
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
    u_out = torch.finfo(out_dtype).eps / 2
    smallest = torch.finfo(out_dtype).tiny * torch.finfo(out_dtype).eps
    return error + u_out * (reference.abs() + error) + smallest / 2


def linear_gelu_bound(
    implementation: str, arguments: Arguments, reference: Tensor, out_dtype: torch.dtype
) -> Tensor:
    """The same for linear_gelu."""
    (x, weight, bias), options = arguments
    act = "gelu" if options.get("approximate", "none") == "none" else "gelu_tanh"
    flat = x.reshape(x.shape[:-1].numel(), x.shape[-1])
    inner: Arguments = ((flat, weight.t(), bias), {"act": act})
    flat_reference = reference.reshape(flat.shape[0], weight.shape[0])
    return gemm_bias_act_bound(implementation, inner, flat_reference, out_dtype).view(
        reference.shape
    )


# Shapes (M, N, K): one tile, tails in each dimension, vectors, nothing, all of K in one step or in
# many; sized so that an interpreted run takes few tile steps.
SHAPES = [(64, 64, 64), (33, 65, 70), (1, 1, 1), (1, 129, 40), (130, 1, 33), (7, 13, 200)]
SHAPES += [(3, 5, 0), (0, 4, 8), (4, 0, 8), (96, 80, 128)]
# For 16-bit matrices past 32 rows: rows on multiples of 16 bytes, read without a copy.
TMA = (130, 72, 136)
LARGE = {
    "standard": [(512, 512, 512)],
    "full": [(512, 512, 512), (333, 4097, 1023), (1, 4096, 4096), (2048, 2048, 2048)],
}
# More rows of tiles than the second dimension of a grid has room for; an a past 2³¹ elements.
TALL, HUGE = (2**20 + 17, 24, 16), (2**25 + 7, 3, 65)
SIZES = "M,N,K"
OPTIONS = {
    "act": choice(*ACTIVATIONS),
    "alpha": NUMBER,
    "beta": NUMBER,
    "c": choice("full", "row", "column", "0-d"),
    "bias": TRUTH,
    "precision": choice("ieee", "tf32", "tf32x3"),
    "out_dtype": FLOAT_DTYPE,
}
LAYOUTS = ("contiguous", "misaligned", "transposed", "padded", "strided", "functional")
VALUES = ("normal", "special", "lattice", "lattice-wide", "every", "integers")


def lattice(
    M: int, N: int, K: int, dtype: torch.dtype, g: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Integer matrices whose every partial sum is exact in 24 bits, in any order.

    The second half of K undoes the first but for one term a column: partial sums pass 2¹², where a
    16-bit accumulator loses units, before they cancel to a result that every dtype holds.
    """
    half = K // 2
    a, b = torch.zeros(M, K), torch.zeros(K, N)
    # Large enough to pass 2¹² in half of K, small enough for bfloat16 and for 24 bits.
    top = min(100, max(2, math.isqrt(4 * 2**13 // max(1, half)) + 1))
    a[:, :half] = torch.randint(1, top + 1, (M, half), generator=g).float()
    b[:half] = torch.randint(1, top + 1, (half, N), generator=g).float()
    a[:, half : 2 * half] = a[:, :half]
    b[half : 2 * half] = -b[:half]
    if half and N:
        at = torch.randint(half, (N,), generator=g)
        b[half + at, torch.arange(N)] += torch.randint(0, 2, (N,), generator=g).float() * 2 - 1
    return a.to(dtype), b.to(dtype)


def lattice_wide(
    M: int, N: int, K: int, dtype: torch.dtype, g: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The same for float32, with operands of 13 bits: what tf32 cuts off shows."""

    def odd(*shape: int) -> Tensor:
        return torch.randint(2**11, 2**12, shape, generator=g).float() * 2 + 1

    def small(*shape: int) -> Tensor:
        return torch.randint(-2, 3, shape, generator=g).float()

    even_k = torch.arange(K) % 2 == 0
    a = torch.where(even_k, odd(M, K), small(M, K))
    b = torch.where(even_k[:, None], small(K, N), odd(K, N))
    return a.to(dtype), b.to(dtype)


def is_exact(case: Case) -> bool:
    """Whether the case's sums and epilogue involve no rounding, so that bits must agree."""
    act = case.options.get("act", "none")
    return case.values.startswith("lattice") and act in ("none", "relu")


def _matrices(case: Case, g: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
    """On the CPU, or on the meta device, where nothing is drawn."""
    M, N, K = case.shape
    home = device if device.type == "meta" else cases.CPU
    if case.values == "lattice":
        return lattice(M, N, K, case.torch_dtype, g)
    if case.values == "lattice-wide":
        return lattice_wide(M, N, K, case.torch_dtype, g)
    kind = "integers" if case.values == "integers" else "normal"
    a = cases.random_values((M, K), case.torch_dtype, kind, g, home)
    b = cases.random_values((K, N), case.torch_dtype, kind, g, home)
    if case.values == "special" and a.numel() and b.numel():
        # A few rows and columns with one special value each, the others stay finite.
        special = (math.nan, math.inf, -math.inf, -0.0, torch.finfo(a.dtype).tiny / 4)
        for i, value in enumerate(special):
            a[i % M, i % K] = value
            b[(i + 1) % K, (2 * i) % N] = value
    return a, b


def _addend(case: Case, shape: tuple[int, ...], g: torch.Generator) -> Tensor:
    if case.values.startswith("lattice"):
        return torch.randint(-8, 9, shape, generator=g).to(case.torch_dtype)
    kind = "integers" if case.values == "integers" else "normal"
    return cases.random_values(shape, case.torch_dtype, kind, g)


def gemm_bias_act_inputs(case: Case, device: torch.device = cases.CPU) -> Arguments:
    """a and b in the case's layout; option bias adds one, c is full, row, column or 0-d."""
    g = case.generator()
    M, N, _ = case.shape
    a, b = (cases.arrange(t.to(device), case.layout) for t in _matrices(case, g, device))
    options = dict(case.options)
    bias = None
    if options.pop("bias", False):
        bias = cases.arrange(_addend(case, (N,), g).to(device), case.layout)
    if "c" in options:
        shapes = {"full": (M, N), "row": (N,), "column": (M, 1), "0-d": ()}
        if case.values == "every":
            options["c"] = cases.random_values((M, N), case.torch_dtype, "every", g)
        else:
            options["c"] = _addend(case, shapes[options["c"]], g)
        options["c"] = options["c"].to(device)
        if case.values == "special" and options["c"].dim() == 2:
            options["c"] = cases.arrange(options["c"], "transposed")
    if "out_dtype" in options:
        options["out_dtype"] = cases.DTYPES[options["out_dtype"]]
    return (a, b, bias), options


def linear_gelu_inputs(case: Case, device: torch.device = cases.CPU) -> Arguments:
    """x [M, I], or [2, M/2, I] where M is even, and weight [O, I] in the case's layout."""
    g = case.generator()
    M, N, K = case.shape
    x, b = _matrices(case, g, device)
    x, weight = (cases.arrange(t.contiguous().to(device), case.layout) for t in (x, b.t()))
    if M % 2 == 0 and x.is_contiguous():
        x = x.view(2, M // 2, K)
    options = dict(case.options)
    bias = (
        cases.arrange(_addend(case, (N,), g).to(device), case.layout)
        if options.pop("bias", True)
        else None
    )
    return (x, weight, bias), options


def _gemm_cases(
    op: str, dtype: str, level: Level, variations: list[dict[str, Any]]
) -> Iterator[Case]:
    """Every shape plain; then layouts, activations, scalars, lattices on shapes with tails."""
    base = variations[0]

    def case(
        shape: tuple[int, ...], layout: str = "contiguous", values: str = "normal", **o: Any
    ) -> Case:
        return Case(op, dtype, shape, layout, values, 0, {**base, **o})

    tails = (33, 65, 70)
    for shape in SHAPES:
        yield case(shape)
    for layout in LAYOUTS[1:]:
        yield case(tails, layout)
    for options in variations[1:]:
        yield case(tails, **options)
    yield case(tails, values="special")
    if dtype in ("float16", "bfloat16"):
        for layout in LAYOUTS:
            yield case(TMA, layout)
        for options in variations[1:]:
            yield case(TMA, **options)
    if level != "quick" and torch.cuda.is_available():
        for shape in LARGE[level]:
            yield case(shape)
            yield case(shape, "transposed")
            for options in variations[1:3]:
                yield case(shape, **options)
    if level == "full" and dtype == "float16" and torch.cuda.is_available():
        yield case(TALL)
        for layout in ("contiguous", "transposed"):
            yield case(HUGE, layout)


def gemm_bias_act_cases(dtype: str, level: Level) -> Iterator[Case]:
    """Every activation, scalar, kind of c and precision; lattices; every x for activations."""
    variations: list[dict[str, Any]] = [{}]
    variations += [{"act": act, "bias": True} for act in ACTIVATIONS]
    variations += [
        {"alpha": 0.3, "bias": True},
        {"alpha": -1.7, "beta": 0.6, "c": "full", "bias": True, "act": "gelu"},
        {"c": "row"},
        {"c": "column", "beta": 2.0},
        {"c": "0-d", "beta": 0.5, "act": "relu"},
        {"c": "full", "beta": 0.0},
        {"alpha": 0.0, "bias": True},
    ]
    if dtype != "float32":
        variations.append({"out_dtype": "float32", "bias": True})
    yield from _gemm_cases("gemm_bias_act", dtype, level, variations)
    if dtype in ("float16", "bfloat16"):
        # With K = 0 the pre-activation is c: every activation on every value of the dtype.
        for act in ACTIVATIONS:
            every: dict[str, Any] = {"act": act, "c": "full"}
            yield Case("gemm_bias_act", dtype, (256, 256, 0), values="every", options=every)
    precisions = ["ieee", "tf32", "tf32x3"] if dtype == "float32" else ["ieee"]
    for precision in precisions:
        o: dict[str, Any] = {} if precision == "ieee" else {"precision": precision}
        for shape in ((33, 65, 70), (96, 80, 128), (16, 16, 301), TMA):
            if o:
                yield Case("gemm_bias_act", dtype, shape, options=o)
            exact: dict[str, Any] = {**o, "alpha": 0.5, "beta": 2.0, "c": "full", "bias": True}
            yield Case("gemm_bias_act", dtype, shape, "contiguous", "lattice", 0, o)
            yield Case("gemm_bias_act", dtype, shape, "transposed", "lattice", 0, exact)
            relu = {**exact, "act": "relu"}
            yield Case("gemm_bias_act", dtype, shape, "padded", "lattice", 0, relu)
            if dtype in ("float32", "float64") and precision != "tf32":
                yield Case("gemm_bias_act", dtype, shape, "contiguous", "lattice-wide", 0, o)


def linear_gelu_cases(dtype: str, level: Level) -> Iterator[Case]:
    """Both forms of GELU, with and without bias."""
    variations: list[dict[str, Any]] = [{}, {"approximate": "tanh"}, {"bias": False}]
    return _gemm_cases("linear_gelu", dtype, level, variations)


def gemm_takes(side: str, variant: str | None, case: Case) -> bool:
    """Triton everything, a CUDA variant what it is made for; the CUDA default counts as naive."""
    precision = case.options.get("precision", "ieee")
    return side == "triton" or cuda_takes(variant or "naive", case.torch_dtype, precision)


def gemm_bias_act_refuses(case: Case) -> str:
    """Why there is no such call, in the words of the command line."""
    if case.options.get("precision", "ieee") != "ieee" and case.dtype != "float32":
        return "precisions but ieee are for float32"
    if case.options.get("beta") and "c" not in case.options:
        return "beta needs c"
    return ""


def gemm_cost(case: Case) -> tuple[int, int]:
    """2·M·N·K operations; each matrix moved once."""
    M, N, K = case.shape
    return 2 * M * N * K, (M * K + K * N + M * N) * case.torch_dtype.itemsize


def out_dtype(case: Case) -> torch.dtype:
    """The result's dtype."""
    return cases.DTYPES[case.options.get("out_dtype", case.dtype)]


# One shape for each tile configuration of triton_kernels._gemm; a test holds them to that.
# Multiples of 16, so that a launch is specialised as usual.
_SHAPES_TO_COMPILE = ((16, 2048, 64), (32, 2048, 64), (512, 2048, 64), (2048, 2048, 64))
_HALF_SHAPES_TO_COMPILE = (
    *((16, 2048, 128), (32, 2048, 128), (16, 8192, 128), (32, 8192, 128)),  # few rows
    *((512, 2048, 32), (2048, 2048, 32), (512, 4096, 4096)),  # short sums, a long one
    *((64, 2048, 128), (128, 4096, 128), (512, 2048, 128), (512, 4096, 128), (2048, 2048, 128)),
)


def _shapes_to_compile(dtype: str) -> tuple[tuple[int, int, int], ...]:
    return _HALF_SHAPES_TO_COMPILE if dtype in ("float16", "bfloat16") else _SHAPES_TO_COMPILE


def gemm_bias_act_to_compile(op: str, dtype: str, options: Mapping[str, Any]) -> Iterator[Case]:
    """Each tile configuration and precision, without an epilogue and with the heaviest."""
    heavy: dict[str, Any] = {"act": "gelu", "bias": True, "c": "full"}
    for precision in ("ieee", "tf32", "tf32x3") if dtype == "float32" else ("ieee",):
        for shape in _shapes_to_compile(dtype):
            for epilogue in ({}, heavy):
                yield Case(op, dtype, shape, options={**epilogue, "precision": precision})


def linear_gelu_to_compile(op: str, dtype: str, options: Mapping[str, Any]) -> Iterator[Case]:
    """Each tile configuration with the erf form of GELU, the largest also with the tanh form."""
    for shape in _shapes_to_compile(dtype):
        yield Case(op, dtype, shape)
    yield Case(op, dtype, _shapes_to_compile(dtype)[-1], options={"approximate": "tanh"})


_CORES = {
    "float16": "HalfCores, false",
    "bfloat16": "BFloat16Cores, false",
    "float32/tf32": "TF32Cores, false",
    "float32/tf32x3": "TF32Cores, true",
}


def cuda_kernel(op: str, dtype: str, variant: str | None) -> str:
    """The kernel in csrc that a variant runs, as the source writes it; of none the twin of what
    Triton does: on tensor cores where Triton uses them. dtype may be "float32/tf32"."""
    if dtype in _CORES and variant in (None, "wmma"):
        return f"gemm_wmma_kernel<{_CORES[dtype]}>"
    return f"gemm_{variant or 'naive'}_kernel<{elementwise.cuda_type(dtype)}>"
