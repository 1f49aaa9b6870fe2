"""The judge: nothing wrong passes, through whatever door it comes."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from typer.testing import CliRunner

import compare
import triton_kernels
from compare import cross_check, debug, numerics, ops
from compare.cases import CPU, Case, Guarded
from compare.checking import exhaustive, judging, running
from compare.checking.implementations import Implementation, implementations
from compare.checking.verdicts import Row, check, eager_rule, find_writer
from compare.cli import app
from compare.debugging import investigation, subjects
from compare.debugging.compiled import bisection
from compare.ops import SPECS
from compare.specs import Spec

INF, NAN = math.inf, math.nan
HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64


def tensor(*values: float, dtype: torch.dtype = SINGLE) -> Tensor:
    return torch.tensor(values, dtype=dtype)


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


def outcome_of(spec: Spec, case: Case, change: Any) -> running.Outcome:
    """check's outcome for an implementation that computes the oracle, then changes it."""

    def function(*args: Any, out: Tensor | None = None, **kwargs: Any) -> Tensor:
        result = spec.oracle(*args, **kwargs).to(spec.out_dtype(case))
        change(result)
        if out is None:
            return result
        return out.copy_(result)

    (result,) = check(spec, [case], [Implementation("triton-interpreted", None, function)])
    return result.outcomes[0]


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
    way = Implementation("triton-interpreted", None, lambda x, out: x * x)
    (result,) = check(spec, [Case("square", "float32", (33, 129))], [way])
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
    ways = [Implementation("triton-interpreted", None, scribbles), healthy]
    (result,) = check(spec, [case], ways)
    assert [o.mismatch and o.mismatch.problem for o in result.outcomes] == [
        "wrote to its inputs",
        None,
    ]


# ---- the eager rule, inside check ----


def blurred(relative: float, op: str = "gemm_bias_act", **of_case: Any) -> running.Outcome:
    """check's outcome for the oracle's result with a relative error of random sign."""
    fields = {"dtype": "float32", "shape": (96, 80, 200), "options": {"bias": True}, **of_case}

    def change(result: Tensor) -> None:
        g = torch.Generator().manual_seed(0)
        result *= 1 + relative * (torch.rand(result.shape, generator=g) - 0.5).to(result.dtype)

    return outcome_of(SPECS[op], Case(op, **fields), change)


def test_results_less_accurate_than_eagers_are_refused() -> None:
    """Their errors are a small part of the bound, which is that of the unluckiest rounding."""
    outcome = blurred(1e-5)
    assert outcome.worst < 1
    assert outcome.mismatch is not None
    assert outcome.mismatch.problem.startswith("less accurate than eager: root mean square error")
    assert blurred(1e-7).mismatch is None


def test_the_eager_rule_is_for_normal_values_and_full_precision() -> None:
    assert blurred(1e-5, values="integers").mismatch is None
    assert blurred(1e-5, options={"precision": "tf32"}).mismatch is None
    assert blurred(1e-5, shape=(7, 9, 200)).mismatch is None  # 63 results


def test_an_eager_that_overflows_is_no_measure() -> None:
    overflowed = SPECS["gemm_bias_act"].changed(eager=lambda a, b, *rest, **options: a @ b * NAN)
    case = Case("gemm_bias_act", "float32", (96, 80, 200))
    assert outcome_of(overflowed, case, lambda result: None).mismatch is None


def test_a_narrow_accumulator_is_less_accurate() -> None:
    """Adding K/32 partial sums to an accumulator, as a compiler may make of a kernel: three times
    eager's error at K = 2048, far within the bound."""
    spec = SPECS["gemm_bias_act"]
    case = Case("gemm_bias_act", "float32", (64, 64, 2048))

    def serial(a: Tensor, b: Tensor, bias: None, out: Tensor) -> Tensor:
        out.zero_()
        for k in range(a.shape[1]):
            out += a[:, k, None] * b[k]
        return out

    way = Implementation("triton-interpreted", None, serial)
    (result,) = check(spec, [case], [way], limit=False)
    (outcome,) = result.outcomes
    assert outcome.worst < 0.1
    assert outcome.mismatch is not None
    assert "less accurate than eager" in outcome.mismatch.problem


@triton.jit
def narrow_product_kernel(a_ptr, b_ptr, out_ptr, K, SIZE: tl.constexpr, BLOCK_K: tl.constexpr):
    """SIZE×K times K×SIZE; the accumulator loses its last five bits after every block."""
    i, k = tl.arange(0, SIZE), tl.arange(0, BLOCK_K)
    acc = tl.zeros((SIZE, SIZE), tl.float32)
    for start in range(0, K, BLOCK_K):
        a = tl.load(a_ptr + i[:, None] * K + start + k)
        b = tl.load(b_ptr + (start + k[:, None]) * SIZE + i)
        acc += tl.dot(a, b, input_precision="ieee")
        acc = (acc.to(tl.int32, bitcast=True) & -32).to(tl.float32, bitcast=True)
    tl.store(out_ptr + i[:, None] * SIZE + i, acc)


def narrow_product(a: Tensor, b: Tensor, bias: None, *, out: Tensor) -> Tensor:
    size, k = a.shape
    narrow_product_kernel[(1,)](a, b, out, k, SIZE=size, BLOCK_K=32)
    return out


NARROW = ("gemm_bias_act", "--dtype", "float32", "--shape", "32,32,256", "--impl", "triton")
BESIDE = (
    r"every element keeps its bound, but the root mean square error, \S+, is more than twice "
    r"eager's, \S+"
)


def narrowed(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SPECS["gemm_bias_act"].changed(triton=narrow_product)
    monkeypatch.setitem(ops.SPECS, "gemm_bias_act", spec)


def flat(text: str) -> str:
    return " ".join(text.split())


def test_the_debug_line_of_a_less_accurate_result_says_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    narrowed(monkeypatch)
    checked = CliRunner().invoke(app, ["check", *NARROW, "--jobs", "1"])
    assert checked.exit_code == 1, checked.output
    assert "less accurate than eager" in checked.output
    line = next(x for x in checked.output.splitlines() if x.strip().startswith("debug: "))
    words = line.split("python -m compare ")[1].split()
    file = tmp_path / "findings.json"
    done = CliRunner().invoke(app, [*words, "--json", str(file)])
    assert done.exit_code == 1, done.output
    assert ": LESS ACCURATE " in flat(done.output)
    assert len(re.findall(BESIDE, flat(done.output))) == (2 if torch.cuda.is_available() else 1)
    assert "elements are right" not in done.output
    found = json.loads(file.read_text())
    assert (found["passed"], found["verdict"], found["wrong"]) == (False, "LESS ACCURATE", [])
    worse = found["less_accurate"]["interpreted"]
    assert worse["error"] > 2 * worse["eager"] > 0
    assert f"error {worse['error']:.3g}, eager's {worse['eager']:.3g};" in flat(checked.output)


def test_debug_of_an_accurate_result_says_nothing_of_eager(tmp_path: Path) -> None:
    file = tmp_path / "findings.json"
    done = CliRunner().invoke(app, ["debug", *NARROW, "--json", str(file)])
    assert done.exit_code == 0, done.output
    assert json.loads(file.read_text())["less_accurate"] == {}
    assert "eager" not in done.output


def test_a_less_accurate_case_is_not_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its elements are right one by one: there is nothing that a smaller case could keep."""
    narrowed(monkeypatch)
    done = CliRunner().invoke(app, ["debug", *NARROW, "--shrink"])
    assert done.exit_code == 1, done.output
    assert "nothing to shrink: every element keeps its bound" in flat(done.output)
    assert re.search(BESIDE, flat(done.output))


class Accurate:
    """A subject all of whose elements are right, on one device less accurate than eager."""

    title, outside_is_usage, in_ulps = "accurate", False, False

    def __init__(self, device: str) -> None:
        self.device = device

    def compilable(self) -> bool:
        return True

    def prepare(self, device: torch.device) -> Any:
        return device.type

    def launch(self, state: Any, shadows: Any = None) -> None:
        pass

    def judge(self, state: Any, stores: Any) -> list[subjects.Result]:
        out = torch.ones(5)
        found = judging.Comparison(out == 1, 0 * out, out, 0 * out)
        worse = eager_rule.LessAccurate(3e-5, 1e-5) if state == self.device else None
        return [subjects.Result("out", out, out, found, worse)]


@pytest.mark.parametrize(("device", "name"), [("cpu", "interpreted"), ("cuda", "compiled")])
def test_debug_says_which_run_is_less_accurate(
    device: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler may make it so, of a kernel that is accurate interpreted."""

    def never(*args: Any) -> Any:
        raise AssertionError("compares elements, which are right")

    monkeypatch.setattr(bisection, "impossible", lambda subject: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(bisection, "bisect", never)
    found = investigation.investigate(Accurate(device))
    assert not found
    assert (found.verdict, [*found.less_accurate]) == ("LESS ACCURATE", [name])
    assert found.compiled_right is (device == "cpu")
    (line,) = re.findall(BESIDE, flat(str(found)))
    assert "3e-05" in line
    assert f"compiled: {line if device == 'cuda' else 'right'}" in flat(str(found))
    neither = investigation.investigate(Accurate("neither"))
    assert neither
    assert neither.less_accurate == {}


# ---- memory ----


def test_a_case_that_runs_out_of_memory_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "CUDA out of memory. Tried to allocate 32.00 GiB. GPU 0 has a total capacity of 79 GiB"
    spec, shapes = SPECS["square"], [(33, 129), (7,), (5, 3)]

    def square(x: Tensor, out: Tensor) -> Tensor:
        if x.shape == (7,):
            raise torch.OutOfMemoryError(said)
        return torch.mul(x, x, out=out)

    way = Implementation("triton-interpreted", None, square)
    row = Row("square", "float32", True)
    for result in check(spec, [Case("square", "float32", shape) for shape in shapes], [way]):
        row.add(result)
    assert (row.cases, row.passed) == (2, True)
    (left,) = row.left_out
    assert left.startswith("square float32 7 contiguous normal seed=0 on cpu: ")
    assert left.endswith("out of memory, asked for 32.00 GiB")
    assert row.to_dict()["left_out"] == [left]


@pytest.mark.parametrize("op", ["square", "sum_to"])
def test_a_huge_result_is_judged_in_parts(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By bits, and by a bound: all that is wrong is counted, the worst of all parts is told."""
    spec = SPECS[op]
    case = Case(op, "float32", (33, 129), options={"to": "same"} if op == "sum_to" else {})
    way = Implementation("triton-interpreted", None, spec.triton)
    arguments = spec.inputs(case)
    reference = spec.oracle(*arguments[0], **arguments[1])
    wrong = reference.float().clone().reshape(33, 129)
    wrong[2, 3] += 1
    wrong[20, 5] += 1000
    wrong[31, 128] += 2

    def judged(result: Tensor) -> running.Outcome:
        return running.judge(spec, case, way, arguments, result, reference)

    whole, right = judged(wrong), judged(reference.float())
    monkeypatch.setattr(numerics, "CHUNK", 5 * 129)
    for again, before in ((judged(wrong), whole), (judged(reference.float()), right)):
        assert (again.worst, again.errors) == (before.worst, before.errors)
        assert again.mismatch == before.mismatch
    assert whole.mismatch is not None
    assert whole.mismatch.deviation is not None
    assert (whole.mismatch.deviation.wrong, whole.mismatch.deviation.index) == (3, (20, 5))
    assert sum(next(iter(whole.errors.values())).values()) == wrong.numel()


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "padded"])
def test_guards_of_a_huge_output_are_looked_at_in_parts(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numerics, "CHUNK", 16)
    for at in (0, -1):
        guarded = Guarded((5, 7), torch.float32, CPU, layout)
        guarded.out.fill_(1.0)
        assert guarded.intact()
        guarded.buffer[at] = 1.0
        assert not guarded.intact()


def test_nobody_interprets_a_huge_case_to_find_the_program() -> None:
    case = Case("square", "float32", (1 << 22,))
    found = judging.Deviation(1, 1, (0,), "", "", 1.0, 1.0, 0.0)
    mismatch = running.Mismatch(case, "cuda-gpu", "wrong values", found)
    assert find_writer(SPECS["square"], mismatch) is None  # else minutes
    mismatch.case = Case("square", "float32", (33, 129))
    assert find_writer(SPECS["square"], mismatch) == (0, 0, 0)


def test_what_torch_says_when_memory_ends() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    asked = running.memory_asked(caught.value)
    assert asked == f"out of memory, asked for {1 << 60} bytes"
    assert running.memory_asked(RuntimeError("illegal address")) is None
    assert running.memory_asked(MemoryError("too much")) == "out of memory: too much"


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
    way = OnGpu("triton-compiled", None, square)
    exhaustive.prove(SPECS["square"], "float32", row, [way])
    assert len(row.mismatches) == (problem is not None)
    if problem is not None:
        assert row.mismatches[0].problem.startswith(problem)
    if problem == "wrong values":
        assert row.mismatches[0].case.values in ("0x3f800000", "0x40000000")


# ---- cross_check ----


@triton.jit
def rows_kernel(x_ptr, y_ptr, out_ptr, N, stride_x, stride_y, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    n = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + n, mask=n < N, other=0.0)
    y = tl.load(y_ptr + row * stride_y + n, mask=n < N, other=0.0)
    tl.store(out_ptr + row * N + n, x + y, mask=n < N)


def add_rows(x: Tensor, y: Tensor, swapped: bool = False) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    strides = (y.stride(0), x.stride(0)) if swapped else (x.stride(0), y.stride(0))
    rows_kernel[(x.shape[0],)](x, y, out, x.shape[1], *strides, BLOCK=64)
    return out


def verdict(function: Any, oracle: Any, *inputs: Tensor, **tolerance: Any) -> compare.Report:
    """Of the same function on both sides."""
    return cross_check(triton=function, cuda=function, oracle=oracle, inputs=[inputs], **tolerance)


def set_first(value: float) -> Any:
    def function(x: Tensor) -> Tensor:
        out = x.clone()
        out[0] = value
        return out

    return function


@pytest.mark.parametrize("value", [NAN, -5.0, -INF, 3e38])
def test_cross_check_wants_the_oracles_infinity(value: float) -> None:
    x = tensor(INF, 1.0)
    for tolerance in ({}, {"max_ulps": 1e9}, {"bound": lambda ref, x: 1e-3 * ref.abs()}):
        report = verdict(set_first(value), lambda x: x.double(), x, **tolerance)
        assert not report, str(report)
    report = verdict(lambda x: x.clone(), lambda x: x.double(), x, **tolerance)
    assert report
    assert "inf ulp" not in str(report)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"max_ulps": INF}, "max_ulps must be a finite number"),
        ({"max_ulps": NAN}, "max_ulps must be a finite number"),
        ({"max_ulps": -1}, "max_ulps must be a finite number"),
        ({"bound": lambda ref, x: INF * ref.abs()}, r"argument 'bound': the bound is inf at"),
        ({"bound": lambda ref, x: -1.0}, r"argument 'bound': the bound is -1 at element \(0,\)"),
        ({"bound": lambda ref, x: torch.ones(7)}, "argument 'bound': "),
    ],
)
def test_cross_check_refuses_tolerances_before_anything_runs(arguments: Any, says: str) -> None:
    def never(x: Tensor) -> Tensor:
        raise AssertionError("ran")

    with pytest.raises(ValueError, match=says):
        verdict(never, lambda x: x.double(), tensor(1.0, 2.0), **arguments)


def test_cross_check_takes_a_number_as_bound() -> None:
    x = tensor(1.0, 2.0)
    assert verdict(lambda x: x + 0.1, lambda x: x.double(), x, bound=lambda ref, x: 0.2)
    assert not verdict(lambda x: x + 0.3, lambda x: x.double(), x, bound=lambda ref, x: 0.2)


@pytest.mark.parametrize("dtype", [torch.int32, HALF, torch.bfloat16])
def test_cross_check_refuses_a_wrong_dtype_on_both_sides(dtype: torch.dtype) -> None:
    x = tensor(1.0, 2.0)  # exact in every dtype: by its values nothing is wrong
    report = verdict(lambda x: x.to(dtype), lambda x: x.double(), x)
    assert not report
    assert f"returned {dtype}, expected torch.float32 or torch.float64" in str(report)
    assert f"dtype={dtype}" in str(report)
    assert not verdict(lambda x: x.to(dtype), lambda x: x.clone(), x)
    if dtype.is_floating_point:
        assert verdict(lambda x: x.to(dtype), lambda x: x.double(), x, dtype=dtype)


def test_cross_check_takes_wider_results_of_an_oracle_in_float64() -> None:
    """As statistics of 16-bit rows are; the oracle does not say which dtype it should be."""
    x = tensor(1.0, 2.0).bfloat16()
    assert verdict(lambda x: x.float() / 3, lambda x: x.double() / 3, x)
    assert not verdict(lambda x: x.half(), lambda x: x.double(), x)


def test_cross_check_wants_one_dtype_of_both_sides() -> None:
    x = tensor(1.0, 2.0)
    report = cross_check(
        triton=lambda x: x.clone(),
        cuda=lambda x: x.double(),
        oracle=lambda x: x.double(),
        inputs=[(x,)],
    )
    assert not report
    assert "the other side returned torch.float64" in str(report)


def test_cross_check_integers() -> None:
    x = torch.tensor([2**60 + 1, 5])
    assert verdict(lambda x: x.clone(), lambda x: x.clone(), x)
    assert not verdict(lambda x: x - 1, lambda x: x.clone(), x, max_ulps=5)
    assert not verdict(lambda x: x.double().long(), lambda x: x.clone(), x)


def test_cross_check_keeps_strides() -> None:
    """Rows that lie further apart than they are long: swapped strides read the wrong rows."""
    x, y = torch.randn(5, 40)[:, :33], torch.randn(5, 50)[:, :33]
    both: Any = {"cuda": torch.add, "oracle": torch.add, "inputs": [(x, y)]}
    assert cross_check(triton=add_rows, **both)
    report = cross_check(triton=lambda x, y: add_rows(x, y, swapped=True), **both)
    assert "the triton side is wrong" in report.verdict


def test_cross_check_keeps_offset_alignment_and_shared_memory() -> None:
    base = torch.arange(40.0)
    views = base[3:20], base[4:21], base.as_strided((3, 4), (8, 2), 5), base[:1].expand(4)
    seen: list[Any] = []

    def look(*given: Tensor) -> Tensor:
        assert [t.stride() for t in given] == [t.stride() for t in views]
        assert all(torch.equal(a, b) for a, b in zip(given, views))
        assert [t.data_ptr() % 64 for t in given] == [t.data_ptr() % 64 for t in views]
        first, second, *_ = given
        assert second.data_ptr() - first.data_ptr() == 4
        before = first.as_strided((1,), (1,), first.storage_offset() - 2)
        seen.append(first.data_ptr() != base.data_ptr() and bool(before.isnan().all()))
        return given[0].clone()

    assert verdict(look, lambda *given: given[0].double(), *views)
    assert seen == [True, True]


def test_cross_check_poisons_the_gaps() -> None:
    x = torch.zeros(4, 8)[:, :3]

    def beyond(x: Tensor) -> Tensor:
        return x.as_strided((4, 4), x.stride(), x.storage_offset())[:, 1:].clone()

    assert not verdict(beyond, lambda x: x.double(), x)
    assert not verdict(
        lambda x: x.as_strided((4, 3), (8, 1), x.storage_offset() - 1).clone(),
        lambda x: x.double(),
        x,
    )


def test_cross_check_poisons_what_nobody_writes() -> None:
    """Memory that was just freed may hold the right values."""

    def leaves_the_last(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        out[:-1] = x[:-1]
        return out

    def beside(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        out.as_strided((4,), (1,), out.storage_offset()).copy_(torch.cat((x, x[:1])))
        return out

    x = tensor(0.0, 0.0, 0.0)
    assert not verdict(leaves_the_last, lambda x: x.double(), x)
    assert "wrote outside memory that it allocated" in str(verdict(beside, lambda x: x.double(), x))


def test_cross_check_copies_only_what_is_there() -> None:
    """Gigabytes between two elements cost nothing; near the elements there is poison."""
    memory = torch.empty(3 * 2**30, dtype=torch.float16)  # nobody touches most of it
    x = memory.as_strided((2, 3), (2**31, 1), 7)
    x.copy_(torch.arange(6).view(2, 3))

    def after(x: Tensor) -> Tensor:
        near = x.as_strided((2, 5), x.stride(), x.storage_offset() - 1)
        assert bool(near[:, 0].isnan().all() and near[:, 4].isnan().all())
        return near[:, 1:4].clone()

    assert verdict(after, lambda x: x.double(), x)


def test_cross_check_keeps_what_requires_grad() -> None:
    def gradient(x: Tensor) -> Tensor:
        (found,) = torch.autograd.grad((x * x).sum(), x)
        return found

    x = tensor(1.0, 2.0).requires_grad_()
    assert verdict(gradient, lambda x: 2 * x.detach().double(), x)


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


def test_reports_are_json(monkeypatch: pytest.MonkeyPatch) -> None:
    report = verdict(set_first(NAN), lambda x: x.double(), tensor(INF, 1.0))
    found = json.loads(report.to_json())
    assert found["passed"] is False
    assert found["findings"][0]["deviation"]["got"].startswith("nan")
