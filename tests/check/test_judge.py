"""The judge: nothing wrong passes, through whatever door it comes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from judged import outcome_of, tensor
from torch import Tensor, nn

import compare
import triton_kernels
from compare import debug
from compare.cases import Case
from compare.checking import exhaustive, judging, running
from compare.checking.implementations import Implementation, implementations
from compare.checking.verdicts import Row, check
from compare.ops import SPECS

INF, NAN = math.inf, math.nan
HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64


# ---- judging ----

# result, oracle, whether it may pass; whatever the tolerance
SPECIAL = [
    (NAN, NAN, True),
    (NAN, 1.0, False),
    (NAN, INF, False),
    (1.0, NAN, False),
    (INF, NAN, False),
    (INF, INF, True),
    (-INF, -INF, True),
    (-INF, INF, False),
    (-5.0, INF, False),
    (65504.0, INF, False),
    (65504.0, -INF, False),
    (INF, 1.0, False),
    (INF, 65504.0, False),  # the largest number lies not past the end
    (-INF, 70000.0, False),
    (INF, 70000.0, True),  # which rounds to it
    (-INF, -70000.0, True),
    (65504.0, 1e9, False),  # saturated
]


@pytest.mark.parametrize(("result", "oracle", "passes"), SPECIAL)
def test_infinities_and_nan(result: float, oracle: float, passes: bool) -> None:
    given, reference = tensor(result, dtype=HALF), tensor(oracle, dtype=DOUBLE)
    for found in (
        judging.by_ulps(given, reference, 1.0),
        judging.by_ulps(given, reference, 1e6),
        judging.by_bound(given, reference, tensor(100.0, dtype=DOUBLE)),
        judging.by_bits(given, reference),
    ):
        assert found.right.tolist() == [passes]
        if passes:  # nothing reads "inf ulp … right"
            assert found.error.tolist() == found.score.tolist() == [0.0]


def test_a_bound_that_is_infinite_where_the_oracle_is() -> None:
    """As |ref|·u: of no use there, and none is needed."""
    reference = tensor(INF, -INF, NAN, 2.0, dtype=DOUBLE)
    given = tensor(NAN, -5.0, 1.0, 2.0)
    found = judging.by_bound(given, reference, 1e-3 * reference.abs())
    assert found.right.tolist() == [False, False, False, True]
    found = judging.by_bound(reference.float(), reference, 1e-3 * reference.abs())
    assert bool(found.right.all())


@pytest.mark.parametrize("bound", [INF, NAN, -1.0, -INF])
def test_a_bound_that_proves_nothing_is_an_error(bound: float) -> None:
    reference = tensor(INF, 3.0, dtype=DOUBLE)
    with pytest.raises(ValueError, match=r"the bound is .* at element \(1,\), where the oracle"):
        judging.by_bound(reference.float(), reference, tensor(1.0, bound, dtype=DOUBLE))


@pytest.mark.parametrize("max_ulps", [INF, NAN, -1.0])
def test_a_tolerance_that_proves_nothing_is_an_error(max_ulps: float) -> None:
    with pytest.raises(ValueError, match="max_ulps must be a finite number and not negative"):
        judging.by_ulps(tensor(1.0), tensor(1.0), max_ulps)


def test_a_value_that_saturates_is_measured_from_where_it_should_be() -> None:
    """65520 and more round to infinity in float16; the numbers there lie 32 apart."""
    oracle = tensor(65520.0, 65600.0, dtype=DOUBLE)
    given = tensor(65504.0, 65504.0, dtype=HALF)
    assert judging.by_ulps(given, oracle, 1.0).right.tolist() == [True, False]
    assert judging.by_ulps(given, oracle, 3.0).error.tolist() == [0.5, 3.0]


def test_integers_are_exact() -> None:
    large = torch.tensor([2**60 + 1, 2**60, 7, -(2**63)])
    near = torch.tensor([2**60, 2**60, 8, 2**63 - 1])
    found = judging.by_ulps(large, near, 1000.0)
    assert found.right.tolist() == [False, True, False, False]
    assert found.error.tolist()[:3] == [1.0, 0.0, 1.0]
    assert found.error.tolist()[3] == 2.0**64
    found = judging.by_bound(large, near, torch.ones(4, dtype=DOUBLE))
    assert found.right.tolist() == [True, True, True, False]
    # An oracle in float64 holds 2⁶⁰, but not 2⁶⁰ + 1.
    assert judging.by_ulps(large[:1], near[:1].double(), 1.0).right.tolist() == [False]
    assert judging.by_ulps(large[2:3], tensor(7.5, dtype=DOUBLE), 1.0).right.tolist() == [False]


def test_float8() -> None:
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        reference = tensor(1.0, NAN, -0.5, dtype=DOUBLE)
        given = reference.to(dtype)
        assert bool(judging.by_ulps(given, reference, 0.0).right.all())
        bound = torch.zeros(3, dtype=DOUBLE)
        assert bool(judging.by_bound(given, reference, bound).right.all())
        wrong = tensor(NAN, NAN, 1.0).to(dtype)
        assert judging.by_ulps(wrong, reference, 1.0).right.tolist() == [False, True, False]


# ---- check ----


def gelu_of_c(values: str = "special") -> Case:
    options = {"act": "tanh", "c": "full", "beta": 1.0}
    return Case("gemm_bias_act", "float32", (33, 65, 70), values=values, options=options)


def test_check_refuses_nan_and_infinities_where_the_oracle_is_finite() -> None:
    spec, case = SPECS["gemm_bias_act"], gelu_of_c()
    arguments = spec.inputs(case)
    finite = spec.oracle(*arguments[0], **arguments[1]).isfinite()
    infinite_c = arguments[1]["c"].isinf() & finite
    assert outcome_of(spec, case, lambda result: None).mismatch is None
    for value in (NAN, INF, 3.0):
        for where in (infinite_c, finite & ~infinite_c):
            at = tuple(where.nonzero()[0].tolist()) if bool(where.any()) else None
            if at is None:
                continue
            outcome = outcome_of(spec, case, lambda r, at=at, v=value: r.__setitem__(at, v))
            assert outcome.mismatch is not None, (value, at)
            assert outcome.mismatch.problem == "wrong values"


@pytest.mark.parametrize("act", ["relu", "sigmoid", "tanh", "leaky_relu", "none"])
@pytest.mark.parametrize("name", ["triton-compiled", "triton-interpreted", "cuda-host"])
def test_bounds_of_the_products_are_finite_where_the_oracle_is(act: str, name: str) -> None:
    """With a pre-activation of ±inf only the activation's own error and rounding remain."""
    spec = SPECS["gemm_bias_act"]
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    c = torch.randn(3, 5)
    c[0], c[1] = INF, -INF
    arguments = ((a, b), {"act": act, "c": c})
    reference = spec.oracle(*arguments[0], **arguments[1])
    assert spec.bounded
    bound = spec.bound(name, arguments, reference, SINGLE)
    judging.check_bound(bound, reference)
    settled = reference.isfinite() & c.isinf()
    assert bool((bound[settled] < 1e-6).all())


def test_a_useless_bound_is_a_finding_of_check(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SPECS["sum_to"]
    useless: Any = lambda *args: torch.tensor(INF, dtype=DOUBLE)  # noqa: E731
    broken = spec.changed(bound=useless)
    outcome = outcome_of(broken, Case("sum_to", "float32", (3, 4), options={"to": "row"}), id)
    assert outcome.mismatch is not None
    assert outcome.mismatch.problem.startswith("no verdict: the bound is inf at element (0,)")


def test_sums_of_very_many_have_a_bound() -> None:
    spec = SPECS["sum_to"]
    x = torch.ones(1).expand(2**25)
    reference = torch.full((), 2.0**25, dtype=DOUBLE)
    assert spec.bounded
    bound = spec.bound("cuda-host", ((x, ()), {}), reference, SINGLE)
    assert 2**25 < float(bound) < 2**28  # (1 + u)ⁿ − 1 = e² − 1


def test_check_wants_out_to_be_written_and_returned() -> None:
    spec = SPECS["square"]
    implementation = Implementation("triton-interpreted", None, lambda x, out: x * x)
    (result,) = check(spec, [Case("square", "float32", (33, 129))], [implementation])
    assert result.outcomes[0].mismatch is not None
    assert "returned another tensor than out" in result.outcomes[0].mismatch.problem


@pytest.mark.parametrize("layout", ["contiguous", "padded"])
def test_check_sees_a_write_to_the_inputs(layout: str) -> None:
    """Into an element, and into the memory between rows."""
    spec = SPECS["square"]

    def scribbles(x: Tensor, out: Tensor) -> Tensor:
        torch.mul(x, x, out=out)
        whole = torch.empty(0).set_(x.untyped_storage())
        whole[-1] = 7.0
        return out

    case = Case("square", "float32", (33, 129), layout)
    healthy = implementations(spec, ["cuda-host"])[0]
    candidates = [Implementation("triton-interpreted", None, scribbles), healthy]
    (result,) = check(spec, [case], candidates)
    assert [o.mismatch and o.mismatch.problem for o in result.outcomes] == [
        "wrote to its inputs",
        None,
    ]


# ---- exhaustive ----


class OnGpu(Implementation):
    """Runs on the CPU, and says that it is compiled."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda")


@pytest.mark.parametrize(
    ("square", "problem"),
    [
        (lambda x, out: torch.mul(x, x, out=out), None),
        (lambda x, out: torch.mul(x, x, out=out).fill_(1.0), "wrong values"),
        (lambda x, out: out, "wrong values"),  # what nobody writes is poison
        (lambda x, out: x * x, "RuntimeError: returned another tensor than out"),
        (lambda x, out: (x.double() * x).view(torch.int64), "RuntimeError: returned another"),
    ],
)
def test_exhaustive(square: Any, problem: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [(torch.tensor([0x3F800000, 0x40000000], dtype=torch.int32).view(SINGLE),)] * 2
    monkeypatch.setattr(exhaustive, "CHUNK", 2)
    monkeypatch.setattr(exhaustive, "_every_input", lambda dtype, arity: iter(inputs))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(running, "gpu_is_lost", lambda: False)
    row = Row("square", "float32", True)
    implementation = OnGpu("triton-compiled", None, square)
    exhaustive.prove(SPECS["square"], "float32", row, [implementation])
    assert len(row.mismatches) == (problem is not None)
    if problem is not None:
        assert row.mismatches[0].problem.startswith(problem)
    if problem == "wrong values":
        assert row.mismatches[0].case.values in ("0x3f800000", "0x40000000")


# ---- debug ----


@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n, other=0), mask=i < n)


def test_debug_has_the_same_judge() -> None:
    x, out = tensor(INF, 1.0, 65504.0), torch.empty(3)
    assert debug(copy_kernel, (1,), (x, out, 3), oracle=lambda: x.double(), BLOCK=4)
    for wrong in (-5.0, NAN):
        given = x.clone()
        given[0] = wrong
        for tolerance in ({"max_ulps": 1e9}, {"bound": lambda ref, *a: 1e-3 * ref.abs()}):
            found = debug(
                copy_kernel, (1,), (given, out, 3), oracle=lambda: x.double(), BLOCK=4, **tolerance
            )
            assert not found
    with pytest.raises(ValueError, match="max_ulps must be"):
        debug(copy_kernel, (1,), (x, out, 3), oracle=lambda: x, BLOCK=4, max_ulps=INF)
    with pytest.raises(ValueError, match=r"debug\(\): argument 'bound', for out_ptr: the bound is"):
        debug(copy_kernel, (1,), (x, out, 3), oracle=lambda: x, bound=lambda *a: INF, BLOCK=4)


# ---- check_fused ----


class Scaled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) * 0.5


@pytest.mark.parametrize("value", [NAN, -5.0, 3e38])
def test_check_fused_wants_the_infinity(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    original = triton_kernels.relu_scale

    def wrong(x: Tensor, scale: float) -> Tensor:
        out = original(x, scale)
        return torch.where(out.isinf(), value, out)

    monkeypatch.setattr(triton_kernels.ops.relu_scale, "relu_scale", wrong)
    report = compare.check_fused(Scaled(), [(tensor(INF, 1.0, 2.0),)])
    assert not report


def test_check_fused_of_nothing_but_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """One unit in the last place of 0 is the smallest number, not 2⁻²⁴."""
    original = triton_kernels.relu_scale

    def wrong(x: Tensor, scale: float) -> Tensor:
        return original(x, scale) + 1e-8

    monkeypatch.setattr(triton_kernels.ops.relu_scale, "relu_scale", wrong)
    assert not compare.check_fused(Scaled(), [(torch.full((3,), -1.0),)])


def test_check_fused_wants_the_modules_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    original = triton_kernels.relu_scale
    monkeypatch.setattr(
        triton_kernels.ops.relu_scale, "relu_scale", lambda x, scale: original(x, scale).double()
    )
    report = compare.check_fused(Scaled(), [(tensor(1.0, 2.0),)])
    assert not report
    assert "returned torch.float64, expected torch.float32" in str(report)


@pytest.mark.parametrize("layout", ["contiguous", "functional"])
def test_a_workspace_holds_nothing_of_an_earlier_call(layout: str) -> None:
    """What reads its parts before they are written is seen, and what writes beside it."""
    spec, case = SPECS["square"], Case("square", "float32", (8, 8), layout)

    def changed(by: Any) -> Any:
        def change(result: Tensor) -> None:
            torch.empty(64).fill_(0)  # freed, and found again by the next of its size
            by(torch.empty(64), result)

        return outcome_of(spec, case, change).mismatch

    def reads(space: Tensor, result: Tensor) -> None:
        result.view(-1).add_(space)

    def writes(space: Tensor, result: Tensor) -> None:
        space.as_strided((65,), (1,)).fill_(0)

    assert changed(reads) is not None
    assert "outside" in changed(writes).problem
    assert changed(lambda space, result: result.view(-1).add_(space.zero_())) is None


@pytest.mark.parametrize("layout", ["contiguous", "functional"])
@pytest.mark.parametrize("extreme", [torch.fmax, torch.fmin])
def test_a_workspace_does_not_always_hold_nan(extreme: Any, layout: str) -> None:
    """Which these ignore. A few cases show that nobody wrote to it."""

    def change(result: Tensor) -> None:
        result.copy_(extreme(result, torch.empty(result.shape)))

    cases = [Case("square", "float32", (rows, 8), layout) for rows in range(1, 12)]
    outcomes = [outcome_of(SPECS["square"], case, change) for case in cases]
    assert {outcome.mismatch is None for outcome in outcomes} == {True, False}


@pytest.mark.parametrize("garbage", running.GARBAGE)
def test_new_memory_of_few_bits(garbage: float) -> None:
    """The number nearest to the garbage, which these cannot hold."""
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.bool):
        with running.GuardedAllocations([], garbage=garbage):
            space = torch.empty(3, dtype=dtype)
        assert bool(space.float().isnan().all()) == (dtype.is_floating_point and garbage != garbage)
