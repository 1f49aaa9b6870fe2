"""The eager rule: a result less accurate than eager torch's is refused, and debug says the same."""

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
from judged import outcome_of
from torch import Tensor
from typer.testing import CliRunner

from compare import ops
from compare.cases import Case
from compare.checking import judging, running
from compare.checking.implementations import Implementation
from compare.checking.verdicts import check, eager_rule
from compare.cli import app
from compare.debugging import investigation, subjects
from compare.debugging.compiled import bisection
from compare.ops import SPECS


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
    assert blurred(1e-5, options={"precision": "f16x3"}).mismatch is not None
    assert blurred(1e-5, values="integers").mismatch is None
    assert blurred(1e-5, options={"precision": "tf32"}).mismatch is None
    assert blurred(1e-5, shape=(7, 9, 200)).mismatch is None  # 63 results


def test_an_eager_that_overflows_is_no_measure() -> None:
    overflowed = SPECS["gemm_bias_act"].changed(
        eager=lambda a, b, *rest, **options: a @ b * math.nan
    )
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

    implementation = Implementation("triton-interpreted", None, serial)
    (result,) = check(spec, [case], [implementation], limit=False)
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
