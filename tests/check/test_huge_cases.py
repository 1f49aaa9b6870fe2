"""Cases that run out of memory, or whose results are judged in parts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from compare import numerics
from compare.cases import CPU, Case, Guarded
from compare.checking import judging, running
from compare.checking.implementations import Implementation
from compare.checking.verdicts import Row, check, find_writer
from compare.ops import SPECS


def test_a_case_that_runs_out_of_memory_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "CUDA out of memory. Tried to allocate 32.00 GiB. GPU 0 has a total capacity of 79 GiB"
    spec, shapes = SPECS["square"], [(33, 129), (7,), (5, 3)]

    def square(x: Tensor, out: Tensor) -> Tensor:
        if x.shape == (7,):
            raise torch.OutOfMemoryError(said)
        return torch.mul(x, x, out=out)

    implementation = Implementation("triton-interpreted", None, square)
    row = Row("square", "float32", True)
    for result in check(
        spec, [Case("square", "float32", shape) for shape in shapes], [implementation]
    ):
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
    implementation = Implementation("triton-interpreted", None, spec.triton)
    arguments = spec.inputs(case)
    reference = spec.oracle(*arguments[0], **arguments[1])
    wrong = reference.float().clone().reshape(33, 129)
    wrong[2, 3] += 1
    wrong[20, 5] += 1000
    wrong[31, 128] += 2

    def judged(result: Tensor) -> running.Outcome:
        return running.judge(spec, case, implementation, arguments, result, reference)

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
