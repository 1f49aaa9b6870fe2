"""Integers that overflow in offsets and elsewhere, and wrapping that is legal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import marked_lines
import pytest
import torch
import triton
import triton.language as tl
from sanitized import lines, only

from compare import debug

line_of = marked_lines.finder("# ", __file__)


@triton.jit
def far(x_ptr, out_ptr, stride, HOW: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    n = tl.arange(0, BLOCK)
    if HOW == "int64":
        row = pid.to(tl.int64) * stride
    else:
        row = pid * stride  # far product
    x = tl.load(x_ptr + row + n)  # far load
    tl.store(out_ptr + pid * BLOCK + n, x)


def test_int32_overflow_in_an_offset_and_its_fix_on_little_memory() -> None:
    x = torch.empty_strided((3, 8), (2**30, 1), dtype=torch.int8)
    want = torch.arange(24, dtype=torch.int8).view(3, 8)
    x.copy_(want)
    out = torch.zeros_like(want)
    fixed = debug(far, (3,), (x, out, 2**30), oracle=lambda: want, HOW="int64", BLOCK=8)
    assert fixed, fixed
    found = debug(far, (3,), (x, out, 2**30), oracle=lambda: want, HOW="int32", BLOCK=8)
    hazard = only(found, "int32 overflow")
    assert found.failure is not None
    assert "out-of-bounds load" in found.failure.error
    assert lines(hazard) == [line_of("far product"), line_of("far load")]
    assert hazard.text == (
        "2 * 1073741824 = 2147483648 does not fit int32, wraps to -2147483648 and ends in an "
        "address: cast one operand to int64 first"
    )
    assert [w.program for w in hazard.witnesses] == [(2, 0, 0), (2, 0, 0)]
    assert hazard.witnesses[1].element == "x_ptr at element offset -2147483648"
    assert hazard.witnesses[1].lane == (0,)


@triton.jit
def two_faults(x_ptr, out_ptr, stride, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * stride + i, mask=i < 8)
    tl.store(out_ptr + tl.program_id(0), tl.sum(x))


def test_the_hazard_behind_an_error_comes_first() -> None:
    out = torch.zeros(4)
    x = torch.empty_strided((3, 8), (2**30, 1), dtype=torch.int8)
    found = debug(two_faults, (3,), (x, out, 2**30), BLOCK=16)
    assert [h.kind for h in found.hazards] == ["int32 overflow", "undefined value"]


@triton.jit
def wraps(x_ptr, out_ptr, a, b, HOW: tl.constexpr, TYPE: tl.constexpr):
    """The exact result is far outside; 16 lanes' address is wrapped back into the tensor."""
    i = tl.arange(0, 16)
    x, y = a.to(TYPE) + i.to(TYPE) * 0, b.to(TYPE)
    if HOW == "+":
        at = x + y
    elif HOW == "-":
        at = x - y
    elif HOW == "*":
        at = x * y
    elif HOW == "neg":
        at = -x
    elif HOW == "<<":
        at = x << y
    tl.store(out_ptr + i, tl.load(x_ptr + at))


@pytest.mark.parametrize(
    ("how", "dtype", "a", "b", "says"),
    [
        ("+", tl.int32, 2**31 - 1, 2**31 - 1, "2147483647 + 2147483647 = 4294967294"),
        ("-", tl.int32, -(2**31), 2**31 - 1, "-2147483648 - 2147483647 = -4294967295"),
        ("*", tl.int32, 65537, 65536, "65537 * 65536 = 4295032832"),
        ("neg", tl.int8, -128, 0, "0 - (-128) = 128 does not fit int8, wraps to -128"),
        ("<<", tl.int32, 2**20 + 1, 12, "1048577 << 12 = 4294971392"),
        ("+", tl.int8, 100, 100, "100 + 100 = 200 does not fit int8, wraps to -56"),
        ("*", tl.int16, 256, 257, "256 * 257 = 65792 does not fit int16, wraps to 256"),
        ("*", tl.uint32, 65537, 65536, "4295032832 does not fit uint32, wraps to 65536"),
        ("*", tl.int64, 2**32 + 1, 2**32, "= 18446744078004518912 does not fit int64, wraps to"),
        ("+", tl.int64, 2**63 - 1, 2**63 - 1, "= 18446744073709551614 does not fit int64"),
    ],
)
def test_overflow_of_each_operation(how: str, dtype: Any, a: int, b: int, says: str) -> None:
    x = torch.zeros(70_000)
    found = debug(wraps, (1,), (x, torch.zeros(16), a, b), HOW=how, TYPE=dtype)
    hazard = only(found, f"{dtype} overflow")
    assert says in hazard.text
    assert hazard.count == 16
    assert ("int64 first" in hazard.text) == (dtype != tl.int64)


@triton.jit
def legal_wraps(x_ptr, out_ptr, seed, n, BLOCK: tl.constexpr):
    """Hashes, random numbers and masked-off lanes: the wrap-around is meant, or has no effect."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    h = i * -1640531527 + seed * 1103515245
    h = (h ^ (h >> 15)) * -2048144789
    at = (h & 0x7FFFFFFF) % n
    x = tl.load(x_ptr + at)
    u = i.to(tl.uint32) * 2654435761
    x += tl.load(x_ptr + (u >> 26))
    x += tl.load(x_ptr + tl.randint(seed, i) % n.to(tl.uint32))
    x = tl.where(tl.rand(seed, i) > 0.5, x, 0.0)
    x = tl.where(h * 7 > 0, x, 0.0)
    beyond = i * 1_000_000_000
    x += tl.load(x_ptr + beyond, mask=i < 1, other=0.0)
    tl.store(out_ptr + i, x + h, mask=i < n)


def test_legal_wraps_are_silent() -> None:
    found = debug(legal_wraps, (2,), (torch.randn(100), torch.zeros(100), 12345, 100), BLOCK=64)
    assert found.hazards == [], str(found)
    assert found.failure is None


def test_a_view_with_gaps_takes_little_memory() -> None:
    """Two gigabytes of addresses, eight numbers in each of three rows."""
    x = torch.empty_strided((3, 8), (2**30, 1), dtype=torch.int8)
    x.copy_(torch.arange(24).view(3, 8))
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = most_memory()
    for uninitialized in ((), ("x_ptr",)):
        debug(far, (3,), (x, torch.zeros_like(x), 2**30), HOW="int64", BLOCK=8,
              uninitialized=uninitialized)  # fmt: skip
    grown = most_memory() - before
    assert grown < 400_000, f"{grown} KiB more"


def most_memory() -> int:
    """The peak of this process's resident memory, in KiB."""
    (line,) = [n for n in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in n]
    return int(line.split()[1])
