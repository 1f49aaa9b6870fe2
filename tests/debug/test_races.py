"""debug's races: planted ones are found with both lines, right kernels are silent."""

from __future__ import annotations

import json
import math

import marked_lines
import numpy as np
import pytest
import racing
import torch
import triton
import triton.language as tl
from racing import column_sums, counts, lines, orders, races

import triton_kernels
from compare import debug
from compare.debugging import investigation
from compare.debugging.findings.findings import LINES, Findings
from compare.debugging.findings.traces import WIDTH
from compare.debugging.observers.clocks import Clocks
from compare.debugging.observers.races import Races
from compare.debugging.subjects import Op
from compare.ops import SPECS
from triton_kernels import interpreter
from triton_kernels._launch import Launch

pytestmark = pytest.mark.usefixtures("impatient")
line_of = marked_lines.finder("  # ", __file__, racing.__file__)


def flat(found: Findings) -> str:
    return " ".join(str(found).split())


# ---- broken kernels ----


def test_load_add_store_instead_of_an_atomic() -> None:
    """The result is right in every order, as one program at a time runs: only the race tells."""
    found = counts(atomic=False)
    assert not found
    assert not found.wrong
    assert found.verdict == "RIGHT BY LUCK" or found.compiled_right is False  # luck, on a GPU
    read, write = found.hazards
    assert (read.kind, write.kind) == ("race", "race")
    assert read.text.startswith("one program loads what another stores")
    assert lines(read) == [line_of("histogram load"), line_of("histogram store")]
    assert [w.program for w in read.witnesses] == [(1, 0, 0), (0, 0, 0)]
    assert [w.element for w in read.witnesses] == ["count_ptr[0]"] * 2
    assert [w.lane for w in read.witnesses] == [(0,), (0,)]
    assert read.count == write.count == 16
    assert write.text.startswith("two programs store different values")
    assert lines(write) == [line_of("histogram store")] * 2
    assert counts(atomic=True)


def test_two_programs_cover_a_column() -> None:
    x, out = torch.arange(1.0, 81).view(8, 10), torch.zeros(10)
    args, sizes = (x, out, 8, 10), {"ROWS": 4, "BLOCK": 16}
    found = debug(column_sums, (1, 2), args, oracle=lambda: x.sum(0), **sizes)
    (race,) = races(found)
    assert race.text.startswith("two programs store different values")
    assert (race.count, lines(race)) == (10, [line_of("column store")] * 2)
    first, second = race.witnesses
    assert (first.what, second.what) == (f"set to {x[:4, 0].sum()}", f"set to {x[4:, 0].sum()}")
    assert (first.program, second.program) == ((0, 0, 0), (0, 1, 0))
    assert found.wrong, "the last one's part only"
    assert debug(column_sums, (1, 1), args, oracle=lambda: x.sum(0), ROWS=8, BLOCK=16)


@triton.jit
def smooth_in_place(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    left = tl.load(x_ptr + i - 1, mask=(i > 0) & (i < n), other=0.0)  # smooth left
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    right = tl.load(x_ptr + i + 1, mask=i + 1 < n, other=0.0)  # smooth right
    tl.store(x_ptr + i, left + x + right, mask=i < n)  # smooth store


def test_a_load_before_and_after_anothers_store() -> None:
    """Reader first or writer first in this run: on a GPU it may be the other way."""
    x = torch.arange(1.0, 49)
    found = debug(smooth_in_place, (3,), (x, 48), BLOCK=16)
    by_line = {hazard.witnesses[0].place.line: hazard for hazard in races(found)}
    assert set(by_line) == {line_of("smooth left"), line_of("smooth right")}
    for hazard in by_line.values():
        assert hazard.count == 2
        assert lines(hazard)[1] == line_of("smooth store")
        assert [w.what for w in hazard.witnesses] == ["loaded", "stored to"]
    left, right = by_line[line_of("smooth left")], by_line[line_of("smooth right")]
    assert [w.program[0] for w in left.witnesses] == [1, 0]  # the writer was first
    assert [w.program[0] for w in right.witnesses] == [0, 1]  # the reader was first
    assert [w.element for w in left.witnesses] == ["x_ptr[15]"] * 2
    assert [w.lane for w in left.witnesses] == [(0,), (15,)]
    assert [w.lane for w in right.witnesses] == [(15,), (0,)]
    assert len(orders(found)) == 1


def test_coordinates_are_the_views() -> None:
    memory = torch.zeros(20, 12)
    for view, at in ((memory[3:, 2:10:2], 15 * 12 + 6), (memory.t()[1:], 16)):
        found = debug(store_its_number, (3,), (view, at), oracle=None)
        (race,) = races(found)
        index = {15 * 12 + 6: "x_ptr[15, 3]", 16: "x_ptr[4, 1]"}[at]
        assert [w.element for w in race.witnesses] == [index] * 2


@triton.jit
def store_its_number(x_ptr, at):
    tl.store(x_ptr + at, tl.program_id(0) + 1)


@triton.jit
def last_one_reduces(
    x_ptr, part_ptr, count_ptr, out_ptr, FAULT: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr
):
    pid = tl.program_id(0)
    x = tl.load(x_ptr + pid * BLOCK + tl.arange(0, BLOCK))
    tl.store(part_ptr + pid, tl.sum(x))  # part store
    tl.debug_barrier()
    if FAULT == "no atomic":
        arrived = tl.load(count_ptr)  # count load
        tl.store(count_ptr, arrived + 1)  # count store
    elif FAULT == "relaxed":
        arrived = tl.atomic_add(count_ptr, 1, sem="relaxed")
    elif FAULT == "release":
        arrived = tl.atomic_add(count_ptr, 1, sem="release")
    elif FAULT == "acquire":
        arrived = tl.atomic_add(count_ptr, 1, sem="acquire")
    else:
        arrived = tl.atomic_add(count_ptr, 1)  # count atomic
    if arrived == N - 1 or FAULT == "all":
        if FAULT == "plain peek":
            tl.device_assert(tl.load(count_ptr) == N)
        tl.store(out_ptr, tl.sum(tl.load(part_ptr + tl.arange(0, N))))  # part load
        if FAULT != "all":
            tl.store(count_ptr, 0)  # ready for the next launch


def last_one(fault: str) -> Findings:
    x = torch.arange(64.0)
    args = (x, torch.zeros(4), torch.zeros(1, dtype=torch.int32), torch.zeros(1), fault)
    return debug(last_one_reduces, (4,), args, N=4, BLOCK=16)


@pytest.mark.parametrize("fault", ["", "plain peek"])
def test_the_last_to_arrive_may_read_everything(fault: str) -> None:
    assert not last_one(fault).hazards, last_one(fault)


@pytest.mark.parametrize("fault", ["no atomic", "relaxed", "release", "acquire", "all"])
def test_without_order_the_last_to_arrive_may_not(fault: str) -> None:
    found = races(last_one(fault))
    pairs = {(h.text.split(", and")[0], *lines(h)) for h in found}
    loads = "one program loads what another stores"
    assert (loads, line_of("part load"), line_of("part store")) in pairs
    if fault == "no atomic":
        assert (loads, line_of("count load"), line_of("count store")) in pairs
    if fault in (
        "relaxed",
        "release",
        "acquire",
    ):  # the reset is not ordered after the others' atomics
        plain = "a plain access against an atomic operation of another program"
        assert found[0].text.startswith(plain)
        assert found[0].witnesses[1].what == f"{fault} atomic add"
        assert lines(found[0])[0] == line_of("ready for the next launch")


# ---- right ones ----


@triton.jit
def gather_maximum(x_ptr, at_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_max(out_ptr + tl.load(at_ptr + i), tl.load(x_ptr + i), sem="relaxed")


def test_relaxed_atomics_alone_are_silent() -> None:
    x, at, out = torch.arange(64) * 37 % 64, torch.arange(64) % 5, torch.zeros(5, dtype=torch.int64)
    assert debug(gather_maximum, (4,), (x, at, out), BLOCK=16)
    want = torch.stack([x[at == i].max() for i in range(5)])
    assert debug(gather_maximum, (4,), (x, at, out), oracle=lambda: want, BLOCK=16)


@triton.jit
def same_value(flag_ptr, x_ptr, BLOCK: tl.constexpr):
    """All set the flag, to the same; then each reads its own."""
    tl.store(flag_ptr, 1.0)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i) * 2 + tl.load(flag_ptr))


def test_the_same_value_and_ones_own_elements_are_silent() -> None:
    x = torch.arange(64.0)
    assert debug(same_value, (4,), (torch.zeros(1), x, 16))
    assert debug(same_value, (4,), (torch.zeros(1), x.view(8, 8).t(), 16))


def test_two_launches_are_ordered() -> None:
    watch = Races()
    x = torch.zeros(8)
    with interpreter.interpreting(watch):
        store_its_number[(1,)](x, 3)
        store_its_number[(1,)](x, 3)
        assert not watch.hazards()
        backwards[(2,)](x, 0)
        backwards[(2,)](x, 1)
        assert not watch.hazards()
        store_its_number[(2,)](x, 3)
    assert len(watch.hazards()) == 1


@triton.jit
def backwards(x_ptr, last):
    pid = tl.program_id(0)
    tl.store(x_ptr + tl.where(last == 0, pid, 1 - pid), pid + 7)


@triton.jit
def halves(x_ptr, SHIFT: tl.constexpr):
    """Program 0 writes the low halves of 32-bit elements, program 1 the high ones."""
    half = x_ptr.to(tl.pointer_type(tl.int16))
    i = tl.arange(0, 8) * 2 + tl.program_id(0) * SHIFT
    tl.store(half + i, (tl.program_id(0) + 1).to(tl.int16))


@triton.jit
def pairs(x_ptr):
    """Both programs write the same two 32-bit elements as one of 64 bits."""
    tl.store(x_ptr.to(tl.pointer_type(tl.int64)), (tl.program_id(0) + 1).to(tl.int64) << 32)


def test_pointers_that_were_cast() -> None:
    x = torch.zeros(8, dtype=torch.int32)
    assert not races(debug(halves, (2,), (x, 1)))
    (race,) = races(debug(halves, (2,), (x, 0)))
    assert (race.count, race.witnesses[0].element) == (8, "x_ptr[0]")
    (race,) = races(debug(pairs, (2,), (x,)))
    assert (race.count, race.witnesses[0].element) == (1, "x_ptr[1]")
    assert [w.what for w in race.witnesses] == ["set to 1", "set to 2"]


@triton.jit
def either(x_ptr, y_ptr, BLOCK: tl.constexpr):
    """The pointers' argument is not known."""
    i = tl.arange(0, BLOCK)
    at = tl.where(i < BLOCK // 2, x_ptr + i, y_ptr + i)
    tl.store(at, tl.program_id(0) + i)


def test_pointers_of_two_arguments() -> None:
    x, y = torch.zeros(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    found = races(debug(either, (2,), (x, y), BLOCK=8))
    assert {(h.witnesses[0].element, h.count) for h in found} == {("x_ptr[0]", 4), ("y_ptr[4]", 4)}


def test_atomics_of_many_elements_keep_few_clocks() -> None:
    clocks, held = Clocks(), np.zeros(64, dtype=np.int32)
    for program in range(200):
        clocks.begin(2 * program + 1)
        at = np.arange(program % 4 * 16, program % 4 * 16 + 16)
        clocks.acquire(held[at])
        clocks.release(held, at, 2 * program + 1)
    assert len(clocks._released) == 4
    clocks.begin(401)
    clocks.acquire(held[:1])
    assert clocks.known(np.array([1, 9, 2 * 196 + 1])).all()
    assert not clocks.known(np.array([2, 3, 2 * 197 + 1])).any()


def test_who_acquires_learns_of_all_that_was_released_there() -> None:
    clocks, held, one = Clocks(), np.zeros(3, dtype=np.int64), np.array([1])
    for number in (1, 3):  # two programs that only release
        clocks.begin(number)
        clocks.release(held, one, number)
        assert not clocks.known(np.array([1])).any()
    clocks.begin(5)
    clocks.acquire(held[one])
    assert clocks.known(np.array([1, 2, 3, 4])).tolist() == [True, False, True, False]


@pytest.mark.parametrize("op", list(SPECS))
def test_healthy_catalogue(op: str, launches: list[Launch]) -> None:
    """The smallest quick case of every dtype, of every layout and of every variant."""
    spec, chosen = SPECS[op], {}
    cases = [case for dtype in spec.dtypes for case in spec.cases(dtype, "quick")]
    for case in sorted(cases, key=lambda one: -math.prod(one.shape)):
        if math.prod(case.shape) > 1024:  # several programs, most of them
            variants = [v for v in triton_kernels.variants(op) if spec.takes("triton", v, case)]
            for key in (case.dtype, case.layout, *variants):
                chosen[key] = (case, key if key in variants else None)
    assert len(chosen) >= len(spec.dtypes) + len(triton_kernels.variants(op))
    several = 0
    for case, variant in chosen.values():
        function = triton_kernels.variants(op)[variant] if variant else spec.triton
        found = investigation.investigate(Op(spec, case, variant, function))
        assert found, found
        assert not any("waits" in note for note in found.notes)
        several += any(math.prod(each.grid) > 1 for each in launches)
        launches.clear()
    assert several > len(chosen) // 3


# ---- what is printed; what is left out ----


def test_findings_are_short_and_json_has_the_witnesses() -> None:
    found = counts(atomic=False)
    text = str(found).splitlines()
    assert len(text) <= LINES
    assert max(map(len, text)) <= WIDTH
    assert "race: one program loads what another stores, and nothing orders them" in flat(found)
    assert "count_ptr[0] loaded by program (1, 0, 0) in lane [0]" in flat(found)
    assert "count_ptr[0] stored to by program (0, 0, 0) in lane [0]" in flat(found)
    told = json.loads(found.to_json())["hazards"][0]
    assert (told["kind"], told["count"]) == ("race", 16)
    assert [w["line"] for w in told["witnesses"]] == lines(found.hazards[0])
