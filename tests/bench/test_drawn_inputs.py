"""The inputs of drawn problems, and the check of slices of their results, on the CPU."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

import triton_kernels
from compare.cases import META, Arguments, Case, tensors_of
from compare.ops import SPECS
from compare.specs.drawn import drawn
from compare.timing import bench, providers
from compare.timing.bench import Checker, SliceChecker
from compare.timing.engine import CONTROL, Candidate

SMALL = 1 << 17  # elements


def small(op: str, dtype: str = "float32") -> list[Case]:
    """Problems that a CPU takes in a moment, of as many strata as have such."""
    spec, found = SPECS[op], dict[tuple[str, int], Case]()
    counts: Counter[str] = Counter()
    for stratum, case in drawn(spec, 600, 11, [dtype]):
        if all(t.numel() < SMALL for t in tensors_of(spec.inputs(case, META))):
            found[stratum, counts[stratum]] = case
            counts[stratum] += 1
    return [found[place] for place in sorted(found, key=lambda place: place[1])][:12]


@pytest.mark.parametrize("op", ["add", "square", "sum_to", "act_backward", "gemm_bias_act"])
def test_inputs_lie_as_the_case_says_and_are_numbers_throughout(op: str) -> None:
    spec = SPECS[op]
    problems = small(op)
    assert len(problems) >= 3
    for case in problems:
        wanted = tensors_of(spec.inputs(case, META))
        found = tensors_of(bench.inputs(spec, case, 0, "cpu"))
        for t, like in zip(found, wanted, strict=True):
            assert (t.shape, t.stride(), t.dtype) == (like.shape, like.stride(), like.dtype)
            assert t.storage_offset() == like.storage_offset(), case
            memory = torch.tensor([], dtype=t.dtype).set_(t.untyped_storage())
            assert memory.isfinite().all()
            assert t.numel() < 20 or t.std() > 0.5


def test_an_offset_view_is_one() -> None:
    (x,), _ = bench.inputs(
        SPECS["square"], Case("square", "float16", (64,), "misaligned"), 0, "cpu"
    )
    assert x.data_ptr() % 16 == 2


def candidate(name: str) -> Candidate:
    return Candidate(name, lambda *_: None)


def eager(case: Case) -> tuple[Tensor, Arguments]:
    args, kwargs = bench.inputs(SPECS[case.op], case, 0, "cpu")
    return SPECS[case.op].eager(*args, **kwargs), (args, kwargs)


BIG = [
    Case("add", "float16", (40, 64), options={"y": "outer"}),
    Case("square", "float32", (300, 48), "transposed"),
    Case("linear_gelu", "float32", (96, 64, 32), options={"approximate": "tanh"}),
    Case("gemm_bias_act", "float32", (90, 40, 16), options={"act": "relu", "c": "full"}),
    Case("sum_to", "float32", (3, 999), options={"to": "row"}),
    Case("act_backward", "float32", (9, 300), options={"act": "gelu"}),
]


@pytest.mark.parametrize("case", BIG, ids=str)
def test_slices_of_a_right_result_are_right(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "LOOKED_AT", 256)
    looked: list[int] = []
    oracle = SPECS[case.op].oracle

    def counted(*args: Any, **kwargs: Any) -> Tensor:
        found = oracle(*args, **kwargs)
        looked.append(found.numel())
        return found

    spec = SPECS[case.op].changed(oracle=counted)
    result, arguments = eager(case)
    check = SliceChecker(spec, case)
    for name in ("triton", "eager", CONTROL):
        assert check(candidate(name), result, arguments) == "", name
    assert len(looked) == 3  # once a slice, whoever is checked
    assert sum(looked) < result.numel() // 2


@pytest.mark.parametrize("case", BIG, ids=str)
@pytest.mark.parametrize("end", [0, -1])
def test_what_is_wrong_at_either_end_is_found(
    case: Case, end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "LOOKED_AT", 256)
    result, arguments = eager(case)
    result = result.clone()
    along = SPECS[case.op].cut(arguments)
    assert along is not None
    result.select(along, end).copy_(torch.tensor(99.0))
    check = SliceChecker(SPECS[case.op], case)
    for name in ("triton", "eager", CONTROL):
        assert "wrong: " in check(candidate(name), result, arguments), name


def test_a_result_of_another_shape_or_kind_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "LOOKED_AT", 256)
    result, arguments = eager(BIG[0])
    check = SliceChecker(SPECS["add"], BIG[0])
    assert "returned shape" in check(candidate("triton"), result[1:], arguments)
    assert "returned int" in check(candidate("triton"), 3, arguments)


def test_what_overflows_in_everybodys_dtype_is_no_error() -> None:
    case = Case("act_backward", "float16", (3, 2), options={"act": "none"})
    grad = torch.full((3, 2), 30000.0, dtype=torch.float16)
    check, arguments = Checker(SPECS[case.op], case), ((grad, grad, "none"), {})
    result = torch.cat((grad, torch.full((1, 2), torch.inf, dtype=torch.float16)))
    assert check(candidate("eager"), result, arguments) == ""
    result[3, 0] = 60000
    assert check(candidate("eager"), result, arguments).startswith("wrong")
    result[3, 0] = -torch.inf
    assert check(candidate("eager"), result, arguments).startswith("wrong")


def test_small_results_and_scalars_are_judged_whole() -> None:
    for case in (
        Case("add", "float32", (7, 8)),
        Case("sum_to", "float32", (70, 80), options={"to": "scalar"}),
    ):
        result, arguments = eager(case)
        assert SliceChecker(SPECS[case.op], case)(candidate("triton"), result, arguments) == ""
        wrong = result + 10
        for checker in (Checker, SliceChecker):
            found = checker(SPECS[case.op], case)(candidate("triton"), wrong, arguments)
            assert found == f"wrong: {result.numel()} of {result.numel()} elements"


@pytest.mark.parametrize("op", SPECS)
def test_whoever_is_asked_computes_the_problem(op: str) -> None:
    """Ours, interpreted, and the peers that need no compiler, called as they are timed."""
    spec = SPECS[op]
    problems = [case for case in small(op) if math.prod(case.shape) < 1 << 21]
    assert len(problems) >= 3
    for case in problems:
        names = set(providers.names(spec, case, ("triton", "peers"), sweep=True))
        assert names >= {"triton", "eager"}
        arguments = bench.inputs(spec, case, 0, "cpu")
        check = SliceChecker(spec, case)
        for each in providers.candidates(
            spec, case, sorted(names & {"triton", "eager", "cublaslt"})
        ):
            with triton_kernels.interpret():
                result = each.call(*arguments)
            assert not result.requires_grad
            assert check(each, result, arguments) == "", (each.name, str(case))


def test_a_training_step_is_one_for_everybody() -> None:
    options = {"act": "silu", "bias": True, "operands": "dgrad", "training": "out"}
    case = Case("gemm_bias_act", "float32", (5, 64, 64), "functional", options=options)
    spec = SPECS["gemm_bias_act"]
    followed: list[bool] = []

    def eager(a: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        followed.append(a.requires_grad)
        return spec.eager(a, *args, **kwargs)

    watched = spec.changed(eager=eager)
    assert "cublaslt" not in providers.names(spec, case)  # which writes no pre-activation
    (peer,) = providers.candidates(watched, case, ["eager"])
    assert not peer.call(*bench.inputs(spec, case, 0, "cpu")).requires_grad
    assert followed == [True]
    _, moved = spec.cost(case)
    assert moved == (5 * 64 + 64 * 64 + 2 * 5 * 64) * 4
