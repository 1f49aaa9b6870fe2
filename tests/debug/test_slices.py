"""What debug shows of a wrong value: the lines that it was made of, wherever they stand."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import sliced_kernels as kernels
import torch
from marked_lines import finder

from compare import Findings, debug

line_of = finder("# fault: ", kernels.__file__)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def near(expected: torch.Tensor, *_: object) -> torch.Tensor:
    return 1e-4 * (1 + expected.abs())


def centred(fault: str) -> Findings:
    x = normal(6, 24) + 2
    left = x.double() - x.double().mean(1, keepdim=True)
    return debug(
        kernels.centred_kernel,
        (3,),
        (x, torch.zeros(6, 24), 6, 24, 24, fault),
        oracle=lambda: left / left.square().sum(1, keepdim=True),
        bound=near,
        BLOCK=32,
    )


def matmul(fault: str) -> Findings:
    a, b = normal(40, 56), normal(56, 24, seed=1)
    return debug(
        kernels.matmul_kernel,
        (2,),
        (a, b, torch.zeros(40, 24), 40, 24, 56, fault),
        oracle=lambda: a.double() @ b.double(),
        bound=near,
        BLOCK=16,
    )


def buckets(fault: str) -> Findings:
    x = torch.arange(1, 14)
    expected = torch.cat([2 * (x.cumsum(0) - x), 5 * x.flip(0)])
    args = (x, torch.empty(13, dtype=torch.int64), torch.empty(26, dtype=torch.int64), 13, fault)
    return debug(kernels.buckets_kernel, (1,), args, oracle=lambda: {"out_ptr": expected}, BLOCK=16)


def stepping(x: torch.Tensor) -> Findings:
    args = (x, torch.zeros(x.shape), x.shape[1])
    return debug(kernels.stepping_kernel, (x.shape[0],), args, oracle=lambda: x, BLOCK=8)


def chain(fault: str) -> Findings:
    x, out = normal(3, 8), torch.zeros(9)
    expected = torch.cat([x.double().sum(0), torch.tensor([3.0])])
    args = (x, out, fault)
    return debug(
        kernels.chain_kernel, (3,), args, oracle=lambda: expected, bound=near, sanitize=False,
        BLOCK=8,
    )  # fmt: skip


def guarded(fault: str) -> Findings:
    x, out = normal(40), torch.zeros(40)
    expected = torch.where(torch.arange(40) < 16, 0, x + 1)
    args = (x, out, 40, fault)
    return debug(kernels.guarded_kernel, (3,), args, oracle=lambda: expected, BLOCK=16)


RUNS: dict[str, Callable[[str], Findings]] = {
    **dict.fromkeys(("step", "mask", "padding"), centred),
    **dict.fromkeys(("tile", "steps", "advance"), matmul),
    "weight": buckets,
    "forgotten": chain,
    "guard": guarded,
}


def lines_shown(found: Findings) -> set[int]:
    return {int(n) for n in re.findall(r"(?:sliced_kernels\.py|\s|^):(\d+) ", str(found))}


@pytest.mark.parametrize("fault", RUNS)
def test_the_line_at_fault_is_shown(fault: str) -> None:
    """Masks, pointers, loops, calls and what went through memory are part of the way."""
    found = RUNS[fault](fault)
    assert not found
    assert line_of(fault) in lines_shown(found), found
    assert len(str(found).splitlines()) <= 41


@pytest.mark.parametrize("run", dict.fromkeys(RUNS.values()), ids=lambda run: run.__name__)
def test_a_healthy_kernel_has_no_such_lines(
    run: Callable[[str], Findings], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The chain is right only where programs run one after the other, which they do not compiled.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = run("")
    assert found, found
    assert "on the way to" not in str(found)


def test_what_goes_elsewhere_is_left_out() -> None:
    """The slice is of one element: another output's lines are no part of it."""
    found = buckets("weight")
    names = {step.name for step in found.wrong[0].lane_history}
    assert {"n", "inside", "x", "weighed", "before"} <= names
    assert "noise" not in names


def test_values_are_those_of_the_lanes_that_count() -> None:
    """Element 3 is a sum of three: of the product, the lanes 0 to 2."""
    found = buckets("weight")
    assert found.wrong[0].deviation.index == (12,)
    told = {step.name: str(step) for step in found.wrong[0].lane_history}
    assert told["before"] == f"before = {3 * 78}"
    assert told["weighed"] == "weighed = 3…36 (12 lanes)"
    assert told["n"].startswith("n = 0…12")


def test_a_program_that_needs_others_runs_after_them() -> None:
    found = chain("forgotten")
    assert found.trace is not None
    assert not found.trace.alone
    assert found.wrong[0].alone != found.wrong[0].value
    assert "of (3, 1, 1), after those before it" in str(found)
    assert chain("").trace is None
    chosen = debug(
        kernels.chain_kernel, (3,), (normal(3, 8), torch.zeros(9), "forgotten"),
        oracle=lambda: torch.zeros(9), program=(2,), sanitize=False, BLOCK=8,
    )  # fmt: skip
    assert chosen.trace is not None
    assert chosen.trace.alone  # asked for, it runs as it always did


def test_the_nearest_store_where_nobody_stored() -> None:
    found = guarded("guard")
    assert "  the nearest that is stored: out_ptr[32], by program (2, 0, 0)" in str(found)
    assert "  if True " in str(found)
    assert found.to_dict()["wrong"][0]["worst"]["nearest_stored_by"]["program"] == (2, 0, 0)


def test_the_nearest_store_is_in_the_same_row() -> None:
    """Not the first one of the next row, which is nearer in memory."""
    x = torch.ones(3, 20)
    x[1, 19] = 50
    found = stepping(x)
    assert "worst out_ptr[1, 19]" in str(found)
    assert "the nearest that is stored: out_ptr[1, 15], by program (1, 0, 0)" in str(found)
    way = {step.place.line for step in found.lane_history()[1]}
    assert line_of("half a step") in way, found


def test_a_lane_of_padding_is_not_pointed_at() -> None:
    """Program 1's lanes 24 to 31 point into row 2, which nobody stores: they are no reason."""
    x = normal(4, 24)
    args = (x, torch.zeros(4, 24), 24, "row")
    found = debug(kernels.rows_kernel, (4,), args, oracle=lambda: x, BLOCK=32)
    assert "never stored by any of 4 programs: 24 of them" in str(found)
    assert found.wrong[0].history.masked is None
    assert "not this one" not in str(found)
    assert line_of("row") in lines_shown(found)


def test_a_lane_that_a_mask_left_out_is_pointed_at() -> None:
    found = centred("mask")
    masked = found.wrong[0].history
    assert masked.masked is not None
    assert masked.masked_lane == (23,)
    assert "in lane [23] of [32]: 23 of 32 lanes on, not this one" in str(found)


def test_a_dot_that_rounds_its_operands() -> None:
    """Told without a GPU, from one more interpreted run."""
    found = matmul("tf32")
    assert not found
    (note,) = [note for note in found.notes if "input_precision" in note]
    assert note.startswith("right with input_precision='ieee' instead of 'tf32' (")
    assert f"sliced_kernels.py:{line_of('tf32')} in matmul_kernel" in note
    both = matmul("steps")
    assert not [note for note in both.notes if "input_precision" in note]


def test_the_elements_of_a_tuple_are_told_apart() -> None:
    """They are not the values of one name in several iterations."""
    x = torch.arange(8.0).view(1, 8)
    out = torch.zeros(1)
    findings = debug(kernels.range_kernel, (1,), (x, out), oracle=lambda: x[:, 7], BLOCK=8)
    text = str(findings)
    assert "returns[0] 0, returns[1] 7" in text
    assert "both[0] = 0, both[1] = 7" in text
    assert "times)" not in text
