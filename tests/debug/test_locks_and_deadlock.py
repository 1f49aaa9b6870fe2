"""Locks order plain accesses; what waits forever is told."""

from __future__ import annotations

from pathlib import Path

import marked_lines
import pytest
import torch
import triton
import triton.language as tl
from racing import lines, orders, races

from compare import debug
from compare.debugging.findings.findings import LINES, Findings
from compare.debugging.observers import deadlock

pytestmark = pytest.mark.usefixtures("impatient")
line_of = marked_lines.finder("  # ", __file__)


@triton.jit
def locked(x_ptr, lock_ptr, sum_ptr, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    if FAULT != "unlocked":
        while tl.atomic_cas(lock_ptr, 0, 1) == 1:  # take lock
            pass
    at = sum_ptr + tl.arange(0, BLOCK)
    tl.store(at, tl.load(at) + x)  # locked sum
    tl.debug_barrier()
    if FAULT == "plain release":
        tl.store(lock_ptr, 0)  # plain release
    elif FAULT == "":
        tl.atomic_xchg(lock_ptr, 0)


def lock(fault: str) -> Findings:
    x = torch.randn(8 * 16, generator=torch.Generator().manual_seed(0))
    args = (x, torch.zeros(1, dtype=torch.int32), torch.zeros(16), fault)
    want = {"sum_ptr": x.view(8, 16).double().sum(0)}
    if fault != "unlocked":
        want["lock_ptr"] = torch.zeros(1, dtype=torch.int32)
    return debug(locked, (8,), args, oracle=lambda: want, max_ulps=1e4, BLOCK=16)


def test_a_lock_orders_plain_accesses() -> None:
    assert lock(""), lock("")
    x = torch.randn(8 * 16)
    found = debug(locked, (8,), (x, torch.zeros(1).int(), torch.zeros(16), ""), BLOCK=16)
    assert found, "without an oracle, another rounding in another order is no hazard"
    unlocked = races(lock("unlocked"))
    assert {tuple(lines(h)) for h in unlocked} == {(line_of("locked sum"),) * 2}
    plain = races(lock("plain release"))
    assert lines(plain[0]) == [line_of("plain release"), line_of("take lock")]
    assert plain[0].text.startswith("a plain access against an atomic")
    assert [w.what for w in plain[0].witnesses] == ["stored to", "atomic cas"]


def test_a_lock_that_nobody_releases_ends() -> None:
    found = lock("never released")
    assert found.failure.program == (1, 0, 0)
    assert found.failure.place.line == line_of("take lock")
    assert found.failure.error.startswith("WaitsForever: lock_ptr[0] stays as it is")
    assert not orders(found), "the run failed: no other order is tried"
    assert len(str(found).splitlines()) <= LINES


@triton.jit
def look_back(x_ptr, flag_ptr, carry_ptr, out_ptr, REVERSED: tl.constexpr, BLOCK: tl.constexpr):
    """A running sum over all programs: each waits for its neighbour's."""
    pid = tl.program_id(0)
    if REVERSED:
        pid = tl.num_programs(0) - 1 - pid
    i = pid * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    before = 0.0
    if pid > 0:
        while tl.atomic_cas(flag_ptr + pid - 1, 1, 1) != 1:  # look back
            pass
        before = tl.load(carry_ptr + pid - 1)
    tl.store(carry_ptr + pid, before + tl.sum(x))
    tl.debug_barrier()
    tl.atomic_xchg(flag_ptr + pid, 1)
    tl.store(out_ptr + i, before + tl.cumsum(x))


def looking_back(reverse: bool) -> Findings:
    x = torch.arange(64.0)
    args = (x, torch.zeros(4, dtype=torch.int32), torch.zeros(4), torch.zeros(64), reverse)
    want = {"out_ptr": x.cumsum(0), "carry_ptr": x.cumsum(0)[15::16]}
    want["flag_ptr"] = torch.ones(4, dtype=torch.int32)
    return debug(look_back, (4,), args, oracle=lambda: want, BLOCK=16)


def test_waiting_for_an_earlier_program_is_right_but_told() -> None:
    found = looking_back(reverse=False)
    assert found, found
    (note,) = [note for note in found.notes if "waits forever" in note]
    assert note.startswith("in reverse order program (3, 0, 0) waits forever for one that runs")
    assert f"{Path(__file__).name}:{line_of('look back')} in look_back: while" in note


def test_waiting_for_a_later_program_is_found_in_forward_order() -> None:
    found = looking_back(reverse=True)
    assert found.failure.program == (0, 0, 0)
    assert found.failure.place.line == line_of("look back")
    assert "WaitsForever: flag_ptr[2] stays as it is" in found.failure.error


@triton.jit
def repeats(x_ptr, out_ptr, n, m, FAULT: tl.constexpr):
    total = 0.0
    for _ in range(n):
        for j in range(m):
            total += tl.load(x_ptr + j)
            if FAULT == "scaled":
                total *= tl.load(x_ptr)
        if FAULT == "counts":
            tl.atomic_add(out_ptr + 1, 1.0)
    tl.store(out_ptr, total)


def test_much_repetition_is_no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlock, "PATIENCE", 20)
    x, out = torch.ones(40), torch.zeros(2)
    assert debug(repeats, (1,), (x, out, 15, 40, ""))  # each address 15 times
    assert debug(repeats, (1,), (x, out, 30, 1, "counts"))  # memory changes
    assert debug(repeats, (1,), (x, out, 1, 40, "scaled"))  # one is the same, the other is not
    found = debug(repeats, (1,), (x, out, 30, 1, ""))
    assert found.failure.error.startswith("WaitsForever: x_ptr[0] stays"), "it is that quick"


@triton.jit
def layer_norm_tutorial(dw_ptr, sum_ptr, lock_ptr, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    """As in Triton's tutorial: a lock and a counter for each group; the first one only stores."""
    group, i = tl.program_id(0) % GROUPS, tl.arange(0, BLOCK)
    dw = tl.load(dw_ptr + tl.program_id(0) * BLOCK + i)
    lock, count = lock_ptr + group, lock_ptr + GROUPS + group
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    if tl.load(count) == 0:
        tl.atomic_xchg(count, 1)
    else:
        dw += tl.load(sum_ptr + group * BLOCK + i)
    tl.store(sum_ptr + group * BLOCK + i, dw)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


def test_the_tutorials_locks_are_silent() -> None:
    dw = torch.randn(12, 16, generator=torch.Generator().manual_seed(0))
    want = {
        "sum_ptr": dw.view(4, 3, 16).double().sum(0),
        "lock_ptr": torch.tensor([0] * 3 + [1] * 3),
    }
    for oracle in (None, lambda: want):
        args = (dw, torch.full((3, 16), torch.nan), torch.zeros(6, dtype=torch.int32))
        found = debug(
            layer_norm_tutorial, (12,), args, oracle=oracle, max_ulps=100, GROUPS=3, BLOCK=16
        )
        assert found, found


@triton.jit
def running_sum(x_ptr, sums_ptr, flags_ptr, FAULT: tl.constexpr):
    """A program waits until the one before it has stored its sum."""
    i = tl.program_id(0)
    before = 0.0
    if i > 0:
        while tl.atomic_add(flags_ptr + i - 1, 0, sem="acquire") == 0:
            pass
        before = tl.load(sums_ptr + i - 1)
    if FAULT == "sum":
        before = before / 2  # halved
    tl.store(sums_ptr + i, before + tl.load(x_ptr + i))
    if FAULT == "flag":
        tl.atomic_xchg(flags_ptr + i, 0, sem="release")  # not set
    else:
        tl.atomic_xchg(flags_ptr + i, 1, sem="release")


def sums(fault: str) -> Findings:
    x, flags = torch.arange(1.0, 6), torch.zeros(5, dtype=torch.int32)
    want = {"sums_ptr": x.cumsum(0)}
    return debug(running_sum, (5,), (x, torch.zeros(5), flags, fault), oracle=lambda: want)


def test_who_had_last_written_what_a_program_waits_for() -> None:
    assert sums("")
    found = sums("flag")
    assert found.failure is not None
    assert found.failure.program == (1, 0, 0)
    text = str(found)
    assert "flags_ptr[0] was last written by program (0, 0, 0) (atomic xchg)" in text
    assert f"test_locks_and_deadlock.py:{line_of('not set')} in running_sum" in text


def test_a_wrong_program_that_alone_would_wait_runs_after_the_others() -> None:
    """What it waits for comes of them; alone, it would get no further than the first flag."""
    found = sums("sum")
    assert found.wrong[0].deviation.index == (4,)
    assert found.trace is not None
    assert not found.trace.alone
    assert f":{line_of('halved')} before = before / 2" in str(found)
