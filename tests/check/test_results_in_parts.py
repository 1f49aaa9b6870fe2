"""A huge result is judged slice by slice: what is found is what is found of the whole."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from compare import numerics
from compare.cases import Case
from compare.checking import running
from compare.checking.eager_rule import less_accurate
from compare.checking.implementations import Implementation
from compare.checking.oracles import Oracle
from compare.ops import SPECS

PART = 1 << 10


def representative(op: str) -> list[Case]:
    """Of what is larger than a part: one a dtype, layout and set of options."""
    chosen: dict[Any, Case] = {}
    for dtype in SPECS[op].dtypes:
        for case in SPECS[op].cases(dtype, "quick"):
            if PART < case.numel < 1 << 18 and "multiprocessors" not in case.options:
                key = case.layout, case.values == "special", *sorted(case.options)
                chosen.setdefault(key, case)
    return list(chosen.values())


@pytest.mark.parametrize("op", SPECS)
def test_parts_of_a_result_are_the_whole(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle's, in every layout and with every option; only sums in float64 may differ in
    their last bits, since their order is another one."""
    spec, several = SPECS[op], 0
    for case in representative(op):
        arguments = spec.inputs(case)
        whole = spec.oracle(*arguments[0], **arguments[1])
        with monkeypatch.context() as scaled:
            scaled.setattr(numerics, "CHUNK", PART)
            oracle = Oracle(spec, arguments)
            parts = list(oracle.parts())
        assert (oracle.like.shape, oracle.like.dtype) == (whole.shape, whole.dtype), case
        seen = torch.zeros(whole.shape, dtype=torch.int8)
        for part in parts:
            part.of(seen).add_(1)
            assert (
                max(t.numel() for t in (part.reference, part.of(whole))) <= PART + whole.shape[-1]
            )
            if spec.bounded:
                same = torch.isclose(part.reference, part.of(whole), 1e-13, 1e-13, equal_nan=True)
            else:
                same = numerics.same_bits(part.reference, part.of(whole))
            assert bool(same.all()), case
        assert bool((seen == 1).all()), case
        several += len(parts) > 1
    assert several


def judged(case: Case, wrong: dict[tuple[int, ...], float]) -> running.Outcome:
    spec = SPECS[case.op]
    arguments = spec.inputs(case)
    result = spec.oracle(*arguments[0], **arguments[1]).to(spec.out_dtype(case)).clone()
    for index, by in wrong.items():
        result[index] += by
    implementation = Implementation("triton-interpreted", None, spec.triton)
    oracle = Oracle(spec, arguments)
    outcome = running.judge(spec, case, implementation, arguments, result, oracle)
    worse = less_accurate(spec, result, oracle) if spec.bounded else None
    outcome.result = None if worse is None else torch.tensor(worse)
    return outcome


@pytest.mark.parametrize(
    "case",
    [
        Case("add", "float16", (33, 129), "transposed", options={"alpha": 0.1}),
        Case("act_backward", "float32", (33, 129), options={"act": "gelu"}),
        Case("gemm_bias_act", "float32", (64, 64, 64), options={"c": "column", "bias": True}),
        Case("linear_act", "float32", (64, 64, 64), options={"act": "relu"}),
        Case("sum_to", "float32", (33, 129), options={"to": "same"}),
    ],
    ids=lambda case: case.op,
)
@pytest.mark.parametrize("wrong", [{}, {(2, 3): 1.0, (20, 5): 1000.0, (31, 40): 2.0}])
def test_verdicts_are_those_of_the_whole(
    case: Case, wrong: dict[tuple[int, ...], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is wrong is counted, and the worst of all parts is told with its place."""
    if case.op == "linear_act":  # its rows are [2, 32]
        wrong = {(i // 32, i % 32, j): by for (i, j), by in wrong.items()}
    whole = judged(case, wrong)
    monkeypatch.setattr(numerics, "CHUNK", PART)
    again = judged(case, wrong)
    assert math.isclose(again.worst, whole.worst, rel_tol=1e-6)
    assert again.errors.keys() == whole.errors.keys()
    assert (again.mismatch is None) == (whole.mismatch is None) == (not wrong)
    if again.mismatch is not None and whole.mismatch is not None:
        new, old = again.mismatch.deviation, whole.mismatch.deviation
        assert new is not None
        assert old is not None
        assert (new.index, new.wrong, new.total, new.got) == (
            *(old.index, old.wrong, old.total, old.got),
        )
        assert new.wrong == 3
    if whole.result is not None:
        assert again.result is not None
        assert torch.isclose(again.result[0], whole.result[0])
        # eager's own sums are float32, in another order
        assert torch.isclose(again.result[1], whole.result[1], rtol=0.5)


def test_no_part_is_as_large_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor has anybody asked the oracle for more at once."""
    monkeypatch.setattr(numerics, "CHUNK", PART)
    asked = []
    spec = SPECS["act_backward"]
    whole = spec.oracle

    def oracle(grad: Tensor, *rest: Any, **options: Any) -> Tensor:
        asked.append(grad.numel())
        return whole(grad, *rest, **options)

    narrow = spec.changed(oracle=oracle)
    case = Case("act_backward", "float16", (3, 4099), options={"act": "relu"})
    arguments = narrow.inputs(case)
    total = sum(part.reference.numel() for part in Oracle(narrow, arguments).parts())
    assert total == 4 * 4099
    assert max(asked) <= PART
