"""The judge itself: distances, fused multiply-add, and a bound that refuses what it must."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from compare import cases, numerics
from compare.cases import Case
from compare.checking import running
from compare.checking.implementations import Implementation
from compare.ops import SPECS
from compare.specs import product_bounds, product_inputs


def test_ulps() -> None:
    one = torch.tensor([1.0, -0.0, math.nan, math.nan, 1.0, -1.0, math.inf])
    other = torch.tensor([1.0 + 2**-23, 0.0, math.nan, 1.0, -1.0, -1.0, torch.finfo().max])
    found = numerics.ulps(one, other).tolist()
    assert found[:4] == [1.0, 0.5, 0.0, math.inf]
    assert found[4] == 2 * 0x3F800000  # all floats from −1 to 1
    assert found[5:] == [0.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_ulps_count_neighbours(dtype: torch.dtype) -> None:
    """On all finite values in order, each is one step from the next."""
    every = torch.arange(65536).to(torch.int16).view(dtype)
    finite = every[every.isfinite() & (every != 0)].double().sort().values.to(dtype)
    steps = numerics.ulps(finite[1:], finite[:-1])
    across_zero = (finite[1:] > 0) & (finite[:-1] < 0)
    assert bool((steps[~across_zero] == 1).all())
    assert steps[across_zero].tolist() == [2.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fma_is_correctly_rounded(dtype: torch.dtype) -> None:
    """Against exact rational arithmetic: every kind of bits, cancelling products, near-ties."""
    g = torch.Generator().manual_seed(0)
    n = 3000
    bits = 23 if dtype == torch.float32 else 52
    special = [cases.random_values((n,), dtype, "special", g) for _ in range(3)]
    near, far = torch.randn(2, n, generator=g, dtype=dtype)
    steps = torch.randint(-2, 3, (n,), generator=g).to(dtype) * 2.0**-bits
    triples = [special, [near, far, -(near * far) * (1 + steps)], [near, far, near * 2.0**-bits]]
    triples.append([near, far, far * 2.0 ** (bits + 1)])
    for a, b, c in triples:
        found = numerics.fma(a, b, c)
        for x, y, z, result in zip(a.tolist(), b.tolist(), c.tolist(), found.tolist()):
            if not all(map(math.isfinite, (x, y, z))):
                continue
            exact = Fraction(x) * Fraction(y) + Fraction(z)
            if exact == 0:
                assert result == 0
                continue
            assert _nearest(exact, dtype) == result, (x.hex(), y.hex(), z.hex())


def _nearest(exact: Fraction, dtype: torch.dtype) -> float:
    """A rational number rounded to the dtype, to nearest even, by integer arithmetic."""
    info = torch.finfo(dtype)
    digits = 24 if dtype == torch.float32 else 53
    exponent = abs(exact.numerator).bit_length() - exact.denominator.bit_length()
    if abs(exact) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** max(exponent - digits + 1, math.frexp(info.tiny)[1] - digits)
    rounded = round(exact / unit) * unit  # Fraction rounds half to even
    if abs(rounded) > Fraction(info.max):
        return math.inf if exact > 0 else -math.inf
    return float(rounded)


def _judge(case: Case, name: str, result: torch.Tensor) -> running.Outcome:
    spec = SPECS["gemm_bias_act"]
    arguments = spec.inputs(case)
    reference = spec.oracle(*arguments[0], **arguments[1])
    implementation = Implementation(name, None, spec.triton)
    return running.judge(spec, case, implementation, arguments, result, reference)


def _product(a: torch.Tensor, b: torch.Tensor, accumulator: torch.dtype) -> torch.Tensor:
    total = torch.zeros(a.shape[0], b.shape[1], dtype=accumulator)
    for k in range(a.shape[1]):
        total += (a[:, k, None].float() * b[k].float()).to(accumulator)
    return total


@pytest.mark.parametrize("shape", [(33, 65, 70), (16, 16, 301)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_bound_takes_a_float32_and_refuses_a_float16_accumulator(
    dtype: str, shape: tuple[int, int, int]
) -> None:
    for values in ("normal", "lattice"):
        case = Case("gemm_bias_act", dtype, shape, values=values)
        (a, b, _), _ = SPECS["gemm_bias_act"].inputs(case)
        right = _product(a, b, torch.float32).to(a.dtype)
        assert _judge(case, "triton-compiled", right).mismatch is None
        if values == "lattice" or dtype == "float16":
            wrong = _product(a, b, torch.float16).to(a.dtype)
            assert _judge(case, "triton-compiled", wrong).mismatch is not None


def test_ieee_refuses_tf32() -> None:
    for values in ("normal", "lattice-wide"):
        case = Case("gemm_bias_act", "float32", (33, 65, 70), values=values)
        (a, b, _), _ = SPECS["gemm_bias_act"].inputs(case)

        def cut(t: torch.Tensor) -> torch.Tensor:
            return (t.view(torch.int32) & ~0x1FFF).view(torch.float32)

        assert _judge(case, "cuda-host", a @ b).mismatch is None
        assert _judge(case, "cuda-host", cut(a) @ cut(b)).mismatch is not None
        tf32 = Case("gemm_bias_act", "float32", (33, 65, 70), options={"precision": "tf32"})
        if values == "normal":
            assert _judge(tf32, "triton-compiled", cut(a) @ cut(b)).mismatch is None


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (product_inputs.lattice, torch.float16),
        (product_inputs.lattice, torch.bfloat16),
        (product_inputs.lattice, torch.float32),
        (product_inputs.lattice_wide, torch.float32),  # whose operands have 13 bits
    ],
)
@pytest.mark.parametrize("K", [1, 2, 33, 70, 301, 600])
def test_lattices_are_exact_in_any_order(make, dtype: torch.dtype, K: int) -> None:
    g = torch.Generator().manual_seed(K)
    a, b = (t.double() for t in make(5, 7, K, dtype, g))
    result = a @ b
    partial = (a[:, :, None] * b[None]).cumsum(1).abs()
    assert float((a.abs() @ b.abs()).max()) < 2**24  # so that no order of summation rounds
    if make is product_inputs.lattice and K >= 33:
        assert float(partial.max()) > 2**12
        assert bool((result == result.to(torch.bfloat16).double()).all())


def test_gamma_needs_room() -> None:
    with pytest.raises(ValueError, match="n·u < 1"):
        product_bounds.gamma(2**22, 2.0**-22)


def test_guards_see_a_stray_write() -> None:
    for layout in ("contiguous", "misaligned", "strided", "transposed", "padded"):
        guarded = cases.Guarded((6, 5), torch.float16, torch.device("cpu"), layout)
        assert guarded.out.isnan().all()
        guarded.out.fill_(1)
        assert guarded.intact()
        outside = (guarded.buffer != 1).nonzero().flatten()
        guarded.buffer[outside[len(outside) // 2]] = 2
        assert not guarded.intact()


@pytest.mark.parametrize("op", SPECS)
def test_inputs_are_made_on_the_device(op: str) -> None:
    spec = SPECS[op]
    for case in spec.cases("float16", "quick"):
        args, options = spec.inputs(case, torch.device("meta"))
        tensors = [t for t in (*args, *options.values()) if isinstance(t, torch.Tensor)]
        assert {t.device.type for t in tensors} == {"meta"}, case
