"""What the sanitizers see: every fault is planted once, and healthy kernels are silent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import triton_kernels
from compare import debug, numerics
from compare.cases import CPU, Case
from compare.copies import copies, tensors
from compare.debugging import investigation
from compare.debugging.findings.findings import LINES, Findings
from compare.debugging.findings.hazards import Hazard
from compare.debugging.observers.values import Values
from compare.debugging.subjects import Kernel, Op
from compare.ops import SPECS
from triton_kernels import interpreter
from triton_kernels.interpreter import Observer, handles, selftest, shadowing
from triton_kernels.interpreter.builder import MendedBuilder
from triton_kernels.interpreter.memory import PAGE, Pages

SOURCE = Path(__file__).read_text().splitlines()


def line_of(mark: str) -> int:
    """The number of the line that ends in the comment ``# mark``."""
    (found,) = [n for n, line in enumerate(SOURCE, 1) if line.endswith(f"# {mark}")]
    return found


def only(found: Findings, kind: str) -> Hazard:
    """The one hazard."""
    assert not found
    assert [h.kind for h in found.hazards] == [kind], str(found)
    assert len(str(found).splitlines()) <= LINES
    return found.hazards[0]


def lines(hazard: Hazard) -> list[int]:
    return [w.place.line for w in hazard.witnesses if w.place]


X = torch.linspace(-3, 3, 24)


# ---- undefined values ----


@triton.jit
def uses_masked_lanes(x_ptr, out_ptr, n, HOW: tl.constexpr):
    i = tl.arange(0, 32)
    x = tl.load(x_ptr + i, mask=i < n)  # masked load
    if HOW == "store":
        tl.store(out_ptr + i, x * 2.0, mask=i <= n)  # masked store
    elif HOW == "sum":
        tl.store(out_ptr, tl.sum(x))  # masked sum
    elif HOW == "max":
        tl.store(out_ptr, tl.sum(tl.max(tl.reshape(x, (4, 8)).T, axis=0)))  # masked max
    elif HOW == "argmax":
        tl.store(out_ptr, tl.argmax(x, 0))  # masked argmax
    elif HOW == "scan":
        tl.store(out_ptr + i, tl.cumsum(x), mask=i < n + 1)  # masked scan
    elif HOW == "address":
        tl.store(out_ptr + x.to(tl.int32), 1.0, mask=i == n)  # masked address
    elif HOW == "mask":
        tl.store(out_ptr + i, 1.0, mask=(i <= n) & (x != 77.0))  # masked mask
    elif HOW == "atomic":
        tl.atomic_add(out_ptr + i, x, mask=i < n + 2)  # masked atomic
    elif HOW == "assertion":
        tl.device_assert(x != 77.0)  # masked assertion
    elif HOW == "branch":
        if tl.max(x) != 77.0:  # masked branch
            tl.store(out_ptr, 1.0)
    else:
        a = tl.broadcast_to(x[None, :], (16, 32))
        b = tl.full((32, 16), 1.0, tl.float32)
        c = tl.dot(a, b, input_precision="ieee")
        j = tl.arange(0, 16)
        tl.store(out_ptr + j[:, None] * 16 + j[None, :], c)  # masked dot


@pytest.mark.parametrize(
    ("how", "count", "says"),
    [
        ("store", 1, "one stored element depends on"),
        ("sum", 1, "one stored element depends on"),
        ("max", 1, "one stored element depends on"),
        ("argmax", 1, "one stored element depends on"),
        ("scan", 1, "one stored element depends on"),
        ("address", 1, "one lane of a store takes its address from"),
        ("mask", 1, "one lane of a store takes its mask from"),
        ("atomic", 2, "2 lanes of an atomic operation depend on"),
        ("assertion", 8, "8 lanes of a device_assert depend on"),
        ("branch", 1, "what the kernel does next depends on"),
        ("dot", 256, "256 stored elements depend on"),
    ],
)
def test_undefined_values_are_reported_where_they_matter(how: str, count: int, says: str) -> None:
    found = debug(uses_masked_lanes, (1,), (X, torch.zeros(256), 24), HOW=how)
    hazard = only(found, "undefined value")
    assert lines(hazard) == [line_of(f"masked {how}"), line_of("masked load")]
    assert hazard.text == f"{says} lanes that a load masked off, without other="
    assert hazard.count == count
    reached, made = hazard.witnesses
    if how != "argmax":  # its tree of pairs begins elsewhere
        assert (made.element, made.lane) == ("x_ptr[24]", (24,))
    assert made.program == reached.program == (0, 0, 0)
    if how == "store":
        assert (reached.element, reached.lane) == ("out_ptr[24]", (24,))


@triton.jit
def moves(x_ptr, i_ptr, out_ptr, n, HOW: tl.constexpr):
    """Stores all of a tile of which ``n`` of 16 lanes were loaded, moved about."""
    i = tl.arange(0, 16)
    x = tl.load(x_ptr + i, mask=i < n)
    if HOW == "reshape":
        y = tl.reshape(tl.reshape(x, (4, 4)).T, (16,))
    elif HOW == "trans":
        y = tl.reshape(tl.trans(tl.reshape(x, (2, 8))), (16,))
    elif HOW == "permute":
        y = tl.reshape(tl.permute(tl.reshape(x, (2, 4, 2)), (2, 0, 1)), (16,))
    elif HOW == "broadcast":
        y = tl.sum(tl.broadcast_to(x[None, :], (4, 16)), axis=0)
    elif HOW == "join":
        left, right = tl.split(tl.join(x, tl.full((16,), 1.0, tl.float32)))
        y = left + 0 * right
    elif HOW == "split":
        left, right = tl.split(tl.reshape(x, (8, 2)))
        y = tl.cat(left, right, can_reorder=True)
    elif HOW == "interleave":
        left, right = tl.split(tl.reshape(x, (8, 2)))
        y = tl.interleave(left, right)
    elif HOW == "gather":
        y = tl.gather(x, (i * 3) % 16, axis=0)
    elif HOW == "flip":
        y = tl.flip(x)
    elif HOW == "cast":
        y = x.to(tl.float16).to(tl.int32).to(tl.float32)
    elif HOW == "bits":
        y = x.to(tl.int32, bitcast=True).to(tl.float32, bitcast=True)
    elif HOW == "math":
        y = tl.fma(tl.exp(-tl.abs(x)), 2.0, tl.maximum(x, 0.5)) / (1 + tl.rsqrt(x * x + 1))
    elif HOW == "where":
        y = tl.where(i % 2 == 0, x, 1.0)
    elif HOW == "reverse scan":
        y = tl.cumsum(x, reverse=True)
    elif HOW == "product":
        y = tl.associative_scan(x, 0, _product)
    elif HOW == "sort":
        y = tl.sort(x)
    else:
        y = x
    tl.store(out_ptr + i, y)


@triton.jit
def _product(a, b):
    return a * b


def expected_lanes(how: str, n: int) -> list[int]:
    off = np.arange(16) >= n
    two, four = off.reshape(2, 8), off.reshape(4, 4)
    found = {
        "reshape": four.T,
        "trans": two.T,
        "permute": off.reshape(2, 4, 2).transpose(2, 0, 1),
        "split": off.reshape(8, 2).T,
        "gather": off[np.arange(16) * 3 % 16],
        "flip": off[::-1],
        "where": off & (np.arange(16) % 2 == 0),
        "reverse scan": np.full(16, n < 16),
        "sort": np.full(16, n < 16),
    }.get(how, off)
    return np.flatnonzero(found.ravel()).tolist()


class Undefined(Observer):
    """Which lanes of a store were undefined, from the reports alone."""

    def __init__(self) -> None:
        self.shadows = interpreter.Shadows()
        self.lanes: list[int] = []
        reach = self.shadows.reach

        def noted(where: str, verb: str, layer: Any, active: Any, *rest: Any) -> None:
            if where == "store" and layer is not None:
                self.lanes += np.flatnonzero(active & (layer != 0)).tolist()
            reach(where, verb, layer, active, *rest)

        self.shadows.reach = noted  # type: ignore[method-assign]


MOVES = "reshape trans permute broadcast join split interleave gather flip cast bits math where"


@pytest.mark.parametrize("how", [*MOVES.split(), "product", "reverse scan", "sort"])
def test_undefined_lanes_move_as_their_values_do(how: str) -> None:
    x, index = torch.linspace(1, 2, 16), torch.zeros(16, dtype=torch.int32)
    for n in (11, 16):
        watch = Undefined()
        with interpreter.interpreting(watch):
            moves[(1,)](x, index, torch.zeros(16), n, HOW=how)
        assert watch.lanes == expected_lanes(how, n)


@triton.jit
def dot_rows(a_ptr, b_ptr, out_ptr, M, N, BLOCK: tl.constexpr):
    """Rows past M and columns past N are undefined; one column too many is stored."""
    i = tl.arange(0, BLOCK)
    a = tl.load(a_ptr + i[:, None] * BLOCK + i[None, :], mask=i[:, None] < M)
    b = tl.load(b_ptr + i[:, None] * BLOCK + i[None, :], mask=i[None, :] < N)
    c = tl.dot(a, b, input_precision="ieee")
    at = i[:, None] * BLOCK + i[None, :]
    tl.store(out_ptr + at, c, mask=(i[:, None] < M) & (i[None, :] < N + 1))


def test_a_dot_spreads_rows_and_columns_only() -> None:
    a, b, out = torch.ones(16, 16), torch.ones(16, 16), torch.zeros(16, 16)
    assert debug(dot_rows, (1,), (a, b, out, 9, 16), BLOCK=16)
    hazard = only(debug(dot_rows, (1,), (a, b, out, 9, 5), BLOCK=16), "undefined value")
    assert hazard.count == 9
    assert hazard.witnesses[1].tensor == "b_ptr"
    assert hazard.witnesses[0].element == "out_ptr[0, 5]"


# ---- memory that nobody wrote ----


@triton.jit
def accumulates(x_ptr, out_ptr, n, ATOMIC: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    if ATOMIC:
        tl.atomic_add(out_ptr + i, x, mask=i < n)  # atomic on nothing
    else:
        old = tl.load(out_ptr + i, mask=i < n, other=0.0)  # load of nothing
        tl.store(out_ptr + i, x + old, mask=i < n)  # store of nothing


def test_reading_memory_that_nobody_wrote() -> None:
    args = (X, torch.zeros(24), 24)
    for atomic in (False, True):
        assert debug(accumulates, (2,), args, oracle=lambda: X, ATOMIC=atomic, BLOCK=16)
    found = debug(
        accumulates, (2,), args, oracle=lambda: X, uninitialized=["out_ptr"], ATOMIC=False, BLOCK=16
    )
    assert found.verdict == "RIGHT BY LUCK"
    hazard = only(found, "uninitialised memory")
    assert lines(hazard) == [line_of("store of nothing"), line_of("load of nothing")]
    assert hazard.text == "24 stored elements depend on memory that nobody wrote"
    assert [w.element for w in hazard.witnesses] == ["out_ptr[0]", "out_ptr[0]"]
    found = debug(
        accumulates, (2,), args, oracle=lambda: X, uninitialized=["out_ptr"], ATOMIC=True, BLOCK=16
    )
    hazard = only(found, "uninitialised memory")
    assert lines(hazard) == [line_of("atomic on nothing")]


@triton.jit
def in_two_steps(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n, other=0.0), mask=i < n)
    tl.debug_barrier()
    y = tl.load(out_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr + i, 2 * y, mask=i < n)


def test_a_store_makes_memory_good() -> None:
    found = debug(
        in_two_steps, (1,), (X, torch.empty(24), 24), oracle=lambda: 2 * X,
        uninitialized=["out_ptr"], BLOCK=32,
    )  # fmt: skip
    assert found, found


def test_a_view_is_uninitialised_without_its_neighbours() -> None:
    memory = torch.arange(48.0).view(24, 2)
    x, out = memory[:, 0], memory[:, 1]
    pairs = {"uninitialized": ["out_ptr"], "n": 24, "BLOCK": 32}
    assert debug(strided_copy, (1,), (x, out), **pairs)
    hazard = only(debug(strided_copy, (1,), (out, x), **{**pairs, "uninitialized": ["x_ptr"]}),
                  "uninitialised memory")  # fmt: skip
    assert hazard.witnesses[1].element == "x_ptr[0]"


@triton.jit
def masked_across_the_end(out_ptr, n):
    wide = (out_ptr + n - 1).to(tl.pointer_type(tl.float32))
    tl.store(out_ptr, tl.load(wide, mask=n < 0, other=0.0).to(tl.float16))
    tl.store(wide, 1.0, mask=n < 0)


def test_lanes_that_are_off_may_point_across_the_end() -> None:
    """As those past the end of one tensor may, where another of another dtype begins or ends."""
    args = (torch.ones(1, dtype=torch.float16), 1)
    found = debug(masked_across_the_end, (1,), args, uninitialized=["out_ptr"])
    assert found, found


@triton.jit
def strided_copy(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + 2 * i, tl.load(x_ptr + 2 * i, mask=i < n), mask=i < n)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["nobody"], "'nobody', which is no parameter; the tensors are x_ptr, out_ptr"),
        (["n"], "'n', which is no tensor; the tensors are x_ptr, out_ptr"),
        ("out", "'out', which is no parameter"),
    ],
)
def test_names_of_uninitialised_tensors_are_checked(names: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        debug(strided_copy, (1,), (X, X.clone(), 12), uninitialized=names, BLOCK=16)


def with_workspace(
    fill: Callable[[Any], Any], loaded: int, stored: int
) -> Callable[..., torch.Tensor]:
    """An op of two launches by way of memory of its own."""

    def run(x: torch.Tensor, y: Any = None, *, out: torch.Tensor | None = None) -> torch.Tensor:
        out = torch.empty_like(x) if out is None else out
        space = fill(torch.empty(x.numel() + 5))
        with interpreter.interpreting():
            copy_part[(1,)](x, space, loaded, stored, BLOCK=64)
            copy_part[(1,)](space, out, x.numel(), x.numel(), BLOCK=64)
        return out

    return run


@triton.jit
def copy_part(x_ptr, out_ptr, n, keep, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)  # copied load
    tl.store(out_ptr + i, x, mask=i < keep)  # copied store


@pytest.mark.parametrize("layout", ["contiguous", "functional", "transposed"])
def test_what_an_op_allocates_is_uninitialised(layout: str) -> None:
    spec = SPECS["square"]
    case = next(c for c in spec.cases("float32", "quick") if c.layout == layout)
    case = type(case)(**{**vars(case), "shape": (5, 8)})

    def hazards(fill: Callable[[Any], Any], loaded: int, stored: int) -> list[Hazard]:
        subject = Op(spec, case, None, with_workspace(fill, loaded, stored))
        return investigation.investigate(subject).hazards

    assert not hazards(lambda t: t, 40, 40)
    assert not hazards(lambda t: t.zero_(), 30, 30)
    assert not hazards(lambda t: t.copy_(torch.ones(45)), 30, 30)
    assert not hazards(lambda t: torch.zeros(45, out=t), 30, 30)
    (hazard,) = hazards(lambda t: t, 30, 30)
    assert hazard.kind == "uninitialised memory"
    assert lines(hazard) == [line_of("copied store"), line_of("copied load")]
    assert hazard.count == 10
    # An undefined value stays one on its way through memory: both stores count.
    (hazard,) = hazards(lambda t: t, 37, 40)
    assert (hazard.kind, hazard.count) == ("undefined value", 6)
    assert hazard.witnesses[1].lane == (37,)


def test_an_ops_given_output_is_uninitialised_unless_it_is_an_input() -> None:
    def adds_to_out(x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        with interpreter.interpreting():
            accumulates[(2,)](x, out, x.numel(), ATOMIC=False, BLOCK=16)
        return out

    for layout, count in (("contiguous", 24), ("inplace", 0)):
        case = Case("square", "float32", (4, 6), layout)
        found = investigation.investigate(Op(SPECS["square"], case, None, adds_to_out))
        assert sum(h.count for h in found.hazards) == count
        assert all(h.kind == "uninitialised memory" for h in found.hazards)


# ---- integer overflow ----


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


# ---- NaN and infinity ----


@triton.jit
def nonfinite(x_ptr, y_ptr, out_ptr, HOW: tl.constexpr):
    i = tl.program_id(0) * 8 + tl.arange(0, 8)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    if HOW == "exp":
        z = tl.exp(x)  # makes exp
    elif HOW == "divide":
        z = y / x  # makes divide
    elif HOW == "zero by zero":
        z = x / x  # makes zero by zero
    elif HOW == "difference":
        big = tl.exp(x)
        z = big - big  # makes difference
    elif HOW == "product":
        z = tl.exp(x) * 0.0  # makes product
    elif HOW == "quotient":
        z = tl.exp(x) / tl.exp(x)  # makes quotient
    elif HOW == "cast":
        z = (x * y).to(tl.float16).to(tl.float32)  # makes cast
    elif HOW == "sqrt":
        z = tl.sqrt(x)  # makes sqrt
    elif HOW == "fma":
        z = tl.fma(x, y, y)  # makes fma
    elif HOW == "other":
        z = x
    elif HOW == "sum":
        z = tl.sum(x) + y  # makes sum
    elif HOW == "cumsum":
        z = tl.cumsum(x)  # makes cumsum
    else:
        at = tl.arange(0, 16)
        a = tl.full((16, 16), 1.0, tl.float32) * tl.max(x)
        c = tl.dot(a, a, input_precision="ieee")  # makes dot
        z = tl.sum(tl.where(at[:, None] == 3, c, 0.0)) + y
    tl.store(out_ptr + i, z)


@pytest.mark.parametrize(
    ("how", "x", "y", "says"),
    [
        ("exp", 89.25, 1, "made inf by exp(89.25)"),
        ("divide", 0, 1, "made inf by 1 / 0"),
        ("zero by zero", 0, 1, "made nan by 0 / 0"),
        ("difference", 100, 1, "made nan by inf - inf"),
        ("product", 100, 1, "made nan by inf * 0"),
        ("quotient", 100, 1, "made nan by inf / inf"),
        ("cast", 256, 300, "made inf by casting 76800 to fp16"),
        ("sqrt", -4, 1, "made nan by sqrt(-4)"),
        ("fma", 3e30, -3e30, "made -inf by fma(3e+30, -3e+30, -3e+30)"),
        ("sum", 3e38, 1, "made inf by tl.sum"),
        ("cumsum", 3e38, 1, "made inf by tl.cumsum"),
        ("dot", 3e38, 1, "made inf by tl.dot"),
    ],
)
def test_the_operation_that_made_it(how: str, x: float, y: float, says: str) -> None:
    xs, ys = torch.full((16,), 1.0), torch.full((16,), float(y))
    xs[10:12] = x
    found = debug(nonfinite, (2,), (xs, ys, torch.zeros(16)), oracle=lambda: ys, HOW=how)
    assert found.hazards == []
    made = found.wrong[0].made
    assert made is not None, str(found)
    assert made.what == says
    assert made.program == (1, 0, 0)
    assert made.lane == {"cumsum": (3,), "sum": (), "dot": (3, 0)}.get(how, (2,))
    assert made.place is not None
    assert made.place.line == line_of(f"makes {how}")
    assert says in str(found)


def test_numbers_that_were_not_finite_before_have_no_maker() -> None:
    xs = torch.full((16,), 1.0)
    xs[5] = math.inf
    found = debug(nonfinite, (2,), (xs, xs, torch.zeros(16)), oracle=lambda: 0 * xs, HOW="exp")
    assert found.wrong[0].made is None


def test_without_an_oracle_a_note_names_the_operation() -> None:
    xs = torch.full((16,), 1.0)
    xs[3], xs[10] = math.nan, -1
    found = debug(nonfinite, (2,), (xs, xs, torch.zeros(16)), HOW="sqrt")
    assert found
    (note,) = [n for n in found.notes if "NaN" in n]
    assert note.startswith(
        "out_ptr: 2 of 16 elements are NaN; out_ptr[10] was made nan by sqrt(-1)"
    )
    assert f"test_sanitizers.py:{line_of('makes sqrt')}" in note


# ---- healthy kernels ----


@triton.jit
def softmax(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    row, n = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * N + n, mask=n < N, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * N + n, e / tl.sum(e, axis=0), mask=n < N)


@triton.jit
def layer_norm(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    """Loads without other=, and puts the undefined lanes right before they count."""
    row, n = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * N + n, mask=n < N)
    mean = tl.sum(tl.where(n < N, x, 0.0)) / N
    centred = tl.where(n < N, x - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred) / N + 1e-5)
    tl.store(out_ptr + row * N + n, (x - mean) * rstd, mask=n < N)


@triton.jit
def dropout(x_ptr, out_ptr, n, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    h = (i ^ seed) * -2048144789
    h = (h ^ (h >> 13)) * -1028477387
    keep = ((h ^ (h >> 16)) & 1) == 1
    tl.store(out_ptr + i, tl.where(keep, x * 2.0, 0.0), mask=i < n)


@triton.jit
def attention(q_ptr, k_ptr, v_ptr, out_ptr, M, N, D: tl.constexpr, BLOCK: tl.constexpr):
    m, d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, D)
    q = tl.load(q_ptr + m[:, None] * D + d[None, :], mask=m[:, None] < M)
    best = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    acc = tl.zeros((BLOCK, D), tl.float32)
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        k = tl.load(k_ptr + n[:, None] * D + d[None, :], mask=n[:, None] < N)
        qk = tl.dot(q, k.T, input_precision="ieee")
        qk = tl.where((n[None, :] < N) & (n[None, :] <= m[:, None]), qk, -float("inf"))
        new = tl.maximum(best, tl.max(qk, 1))
        p = tl.exp(qk - new[:, None])
        scale = tl.exp(best - new)
        v = tl.load(v_ptr + n[:, None] * D + d[None, :], mask=n[:, None] < N, other=0.0)
        acc = tl.dot(p, v, acc * scale[:, None], input_precision="ieee")
        total = total * scale + tl.sum(p, 1)
        best = new
    out = acc / total[:, None]
    tl.store(out_ptr + m[:, None] * D + d[None, :], out, mask=m[:, None] < M)


@triton.jit
def split_k(a_ptr, b_ptr, out_ptr, M, N, K, BLOCK: tl.constexpr):
    """The rows wrap around at M, as in Triton's own tutorial; the sums are atomic."""
    i = tl.arange(0, BLOCK)
    m, n = (tl.program_id(0) * BLOCK + i), i
    k = tl.program_id(1) * BLOCK + i
    a = tl.load(a_ptr + (m % M)[:, None] * K + k[None, :], mask=k[None, :] < K, other=0.0)
    b = tl.load(b_ptr + k[:, None] * N + (n % N)[None, :], mask=k[:, None] < K, other=0.0)
    c = tl.dot(a, b, input_precision="ieee")
    mask = (m[:, None] < M) & (n[None, :] < N)
    tl.atomic_add(out_ptr + m[:, None] * N + n[None, :], c, mask=mask)


@triton.jit
def _welford(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    n = n_a + n_b
    delta = mean_b - mean_a
    ratio = tl.where(n == 0, 0.0, n_b / n)
    return mean_a + delta * ratio, m2_a + m2_b + delta * delta * n_a * ratio, n


@triton.jit
def _segments(flag_a, a, flag_b, b):
    return flag_a | flag_b, tl.where(flag_b, b, a + b)


@triton.jit
def odds_and_ends(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    inside = i < n
    x = tl.load(x_ptr + i, mask=inside)
    good = tl.where(inside, x, 1e30)
    tl.store(out_ptr + i, tl.sort(good), mask=inside)
    tl.store(out_ptr + BLOCK + tl.argmin(good, 0), tl.min(good))
    tl.store(out_ptr + BLOCK + i, tl.cumsum(x), mask=inside)  # lanes before n only
    tl.store(out_ptr + 2 * BLOCK + i, tl.flip(x), mask=i >= BLOCK - n)
    tl.store(out_ptr + 3 * BLOCK + i, tl.gather(x, i % n, 0))
    w = tl.where(inside, 1.0, 0.0)
    mean, m2, count = tl.reduce((tl.where(inside, x, 0.0), w * 0.0, w), 0, _welford)
    tl.store(out_ptr + 4 * BLOCK, mean + m2 / count)
    flags = (i == 0) | (i == n // 2)
    tl.store(out_ptr + 5 * BLOCK + i, tl.associative_scan((flags, x), 0, _segments)[1], mask=inside)
    small = tl.load(x_ptr + i, mask=inside & (x > -1.0))
    tl.store(out_ptr + 6 * BLOCK + i, small, mask=inside & (x > -1.0))
    tl.device_assert((x < 1e9) | (i >= n))
    bins = tl.where(inside, tl.abs(x).to(tl.int32), 3)
    tl.store(out_ptr + 7 * BLOCK + tl.arange(0, 4), tl.histogram(bins, 4).to(tl.float32))
    tl.store(out_ptr + 8 * BLOCK + i, 1 / (1 + tl.exp(-200.0 * x)), mask=inside)
    counts = tl.load(x_ptr + i, mask=inside).to(tl.int32) * inside.to(tl.int32)
    tl.store(out_ptr + 9 * BLOCK, tl.sum(counts).to(tl.float32))
    if tl.load(x_ptr) > 1e6:
        tl.store(out_ptr, 0.0)


@triton.jit
def described(x_ptr, out, M, N, BLOCK: tl.constexpr):
    """Out-of-bounds lanes of a descriptor are zeros, by contract."""
    x = tl.make_tensor_descriptor(x_ptr, [M, N], [N, 1], [BLOCK, BLOCK])
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for n in range(0, N, BLOCK):
        total += x.load([tl.program_id(0) * BLOCK, n])
    out.store([tl.program_id(0) * BLOCK, 0], tl.broadcast_to(tl.sum(total, 1)[:, None], (BLOCK, 4)))


@triton.jit
def block_pointers(x_ptr, out_ptr, M, N, BLOCK: tl.constexpr):
    at = (tl.program_id(0) * BLOCK, 0)
    x = tl.make_block_ptr(x_ptr, (M, N), (N, 1), at, (BLOCK, BLOCK), (1, 0))
    out = tl.make_block_ptr(out_ptr, (M, N), (N, 1), at, (BLOCK, BLOCK), (1, 0))
    for _ in range(0, N, BLOCK):
        tl.store(out, 2 * tl.load(x, boundary_check=(0, 1)), boundary_check=(0, 1))
        x, out = tl.advance(x, (0, BLOCK)), tl.advance(out, (0, BLOCK))


def healthy() -> dict[str, tuple[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]]]:
    """Kernels that have nothing wrong, with their launches; the output comes second to last."""
    torch.manual_seed(0)
    x, wide = torch.randn(7, 21), torch.randn(7, 24)
    q, k, v = torch.randn(3, 19, 16)
    out = torch.empty(7, 24)
    target = TensorDescriptor(torch.empty(7, 4), [7, 4], [4, 1], [8, 4])
    cases: dict[str, Any] = {
        "softmax": (softmax, (7,), (x, out, 21), {"BLOCK": 32}),
        "layer_norm": (layer_norm, (7,), (x, out, 21), {"BLOCK": 32}),
        "dropout": (dropout, (5,), (x, out, 147, 2**30 + 7), {"BLOCK": 32}),
        "attention": (
            attention, (2,), (q, k, v, torch.empty(19, 16), 19, 19), {"D": 16, "BLOCK": 16}
        ),
        "split_k": (
            split_k, (2, 2), (q, k.T.contiguous(), torch.zeros(19, 19), 19, 19, 16), {"BLOCK": 16}
        ),
        "odds_and_ends": (odds_and_ends, (1,), (x, torch.empty(10 * 32), 21), {"BLOCK": 32}),
        "described": (described, (1,), (wide, target, 7, 24), {"BLOCK": 8}),
    }  # fmt: skip
    if hasattr(tl, "make_block_ptr") and hasattr(
        handles.upstream.InterpreterBuilder, "create_make_block_ptr"
    ):
        cases["block_pointers"] = (block_pointers, (1,), (x, out, 7, 21), {"BLOCK": 8})
    return cases


@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
@pytest.mark.parametrize("name", list(healthy()))
def test_healthy_kernels_are_silent(name: str) -> None:
    kernel, grid, args, constexprs = healthy()[name]
    output = {"split_k": (), "described": ("out",), "attention": ("out_ptr",)}.get(
        name, ("out_ptr",)
    )
    found = debug(kernel, grid, args, uninitialized=output, **constexprs)
    assert found.failure is None, str(found)
    assert found.hazards == [], str(found)


def run_of(subject: Any, watch: Observer | None) -> list[torch.Tensor]:
    state = subject.prepare(CPU)
    with interpreter.interpreting(watch):
        subject.launch(state, watch.shadows if watch else None)
    return [state["result"]] if isinstance(state, dict) else list(tensors(state))


@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
@pytest.mark.parametrize("name", list(healthy()))
def test_shadows_change_no_result_of_kernels(name: str) -> None:
    kernel, grid, args, constexprs = healthy()[name]
    subject = Kernel(kernel, grid, args, constexprs, None, 0.0, None)
    pairs = zip(run_of(subject, None), run_of(subject, Values()), strict=True)
    assert all(bool(numerics.same_bits(a, b).all()) for a, b in pairs)


# ---- the catalogue ----


def catalogue(op: str) -> Iterator[Op]:
    """A share of the quick cases: every dtype, layout, option and variant, not all combined."""
    spec, seen = SPECS[op], set()
    for dtype in spec.dtypes:
        for case in spec.cases(dtype, "quick"):
            if case.values == "every" or not 20 < math.prod(case.shape) <= 300_000:
                continue
            for variant in (None, *triton_kernels.variants(op)):
                layout = (case.layout, case.values)
                new = {variant, dtype, layout, str(case.options)} - seen
                if new and spec.takes("triton", variant, case):
                    seen |= new
                    function = triton_kernels.variants(op)[variant] if variant else spec.triton
                    yield Op(spec, case, variant, function)


@pytest.mark.parametrize("op", list(SPECS))
def test_the_healthy_catalogue_is_silent_and_unchanged(op: str) -> None:
    subjects = list(catalogue(op))
    assert len(subjects) > len(SPECS[op].dtypes)
    for subject in subjects:
        watch = Values()
        with_shadows = run_of(subject, watch)
        assert not watch.hazards(), f"{subject.title}: {watch.hazards()}"
        for a, b in zip(run_of(subject, None), with_shadows, strict=True):
            assert bool(numerics.same_bits(a, b).all()), subject.title


# ---- bounds and assertions ----


@triton.jit
def touch(x_ptr, out_ptr, m, n, stride_m, stride_n, HOW: tl.constexpr):
    """One access of a 4 by 4 tile, of which lane [1, 2] is element [m, n]."""
    i = tl.arange(0, 4)
    at = x_ptr + (m - 1 + i[:, None]) * stride_m + (n - 2 + i[None, :]) * stride_n
    mask = (i[:, None] == 1) & (i[None, :] == 2)
    if HOW == "load":
        y = tl.load(at, mask=mask, other=0.0)  # touches load
        tl.store(out_ptr, tl.sum(y))
    elif HOW == "store":
        tl.store(at, 1.0, mask=mask)  # touches store
    elif HOW == "atomic":
        tl.atomic_add(at, 1.0, mask=mask)  # touches atomic
    else:
        tl.atomic_cas(x_ptr + m * stride_m + n * stride_n, 0.0, 1.0)  # touches cas


def views() -> dict[str, torch.Tensor]:
    """6 by 5 elements each, amid others of the same storage."""
    base = torch.zeros(40, 40)
    return {
        "contiguous": base.view(-1)[:30].view(6, 5),
        "strided": base[::3, ::7][:6, :5],
        "offset": base[7:13, 9:14],
        "transposed": base[3:8, 2:8].t(),
    }


@pytest.mark.parametrize("how", ["load", "store", "atomic", "cas"])
@pytest.mark.parametrize("layout", list(views()))
def test_accesses_out_of_bounds(layout: str, how: str) -> None:
    view, out = views()[layout], torch.zeros(1)
    assert debug(touch, (1,), (view, out, 5, 4, *view.stride()), HOW=how)
    outside = {"past the rows": (6, 0), "before the rows": (-1, 0), "beside": (2, 5)}
    for m, n in outside.values():
        if layout == "contiguous" and n == 5:
            continue  # the next row's first element
        found = debug(touch, (1,), (view, out, m, n, *view.stride()), HOW=how)
        assert found.failure is not None, (m, n)
        assert found.failure.place is not None
        assert found.failure.place.line == line_of(f"touches {how}")
        offset = m * view.stride(0) + n * view.stride(1)
        error, verb = found.failure.error, "atomic" if how == "cas" else how
        assert f"IndexError: out-of-bounds {verb} through x_ptr" in error
        assert f"element offset {offset} of x_ptr" in error
        assert f"shape (6, 5), strides {view.stride()}, float32" in error
        assert ("lane [1, 2]" in error) == (how != "cas")
        if (m, n) == (6, 0) and view.stride(0) > view.stride(1):
            assert "which would be [6, 0]" in error


@triton.jit
def asserts(x_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0) * BLOCK * BLOCK + i[:, None] * BLOCK + i[None, :]
    tl.device_assert(tl.load(x_ptr + at) < 10, "too large")  # assertion


def test_an_assertion_names_a_lane() -> None:
    x = torch.zeros(2, 4, 4)
    x[1, 2, 1] = x[1, 3, 0] = 11
    found = debug(asserts, (2,), (x,), BLOCK=4)
    assert found.failure is not None
    assert found.failure.program == (1, 0, 0)
    assert found.failure.place is not None
    assert found.failure.place.line == line_of("assertion")
    assert (
        "too large (device_assert, 2 of 16 lanes, the first is lane [2, 1])" in found.failure.error
    )


# ---- what it takes ----


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


def test_copies_hold_the_elements_of_every_kind_of_view() -> None:
    base = torch.arange(60.0)
    for view in (
        base[3:40:4],
        base.view(6, 10).t()[2:, 1:4],
        base[5:8, None].expand(3, 4),
        base[5:6].expand(3),
        base.unfold(0, 4, 1)[7:],
        base[:0],
        base[4],
    ):
        copy = copies((view,), CPU)[0]
        assert copy.stride() == view.stride()
        assert torch.equal(copy, view)
        assert copy.data_ptr() != view.data_ptr() or not view.numel()


def test_pages() -> None:
    pages = Pages(3 * PAGE, np.int32)
    at = np.array([[5, PAGE + 5], [2 * PAGE + 7, 5]])
    assert not pages[at].any()
    pages[at[:, 1]] = np.array([7, 8])
    assert pages[at].tolist() == [[8, 7], [0, 8]]
    pages[at] = 0
    assert not pages[at].any()


def test_what_nothing_refers_to_is_forgotten() -> None:
    """Else a long run with masked-off lanes in every program would fill the memory."""
    x, out = torch.randn(100), torch.zeros(100)
    watch = Values()
    with interpreter.interpreting(watch):
        dropout[(50,)](x, out, 100, 3, BLOCK=64)
    assert len(watch.shadows.log) <= 3  # one load and two products
    x[3] = 1000
    watch = Values()
    with interpreter.interpreting(watch):
        nonfinite[(12,)](x, x, out, HOW="exp")
        nonfinite[(1,)](out, x, out, HOW="other")
    made = watch.made(out.data_ptr() + 3 * 4)
    assert made is not None
    assert made.what == "made inf by exp(1000)"


def test_without_shadows_no_builder_method_is_wrapped() -> None:
    with interpreter.interpreting():
        builder = handles.upstream.interpreter_builder
        assert type(builder).__mro__[0] is not shadowing.ShadowedBuilder
        with interpreter.interpreting(Values()):
            assert isinstance(builder, shadowing.ShadowedBuilder)
        assert not isinstance(builder, shadowing.ShadowedBuilder)


def test_operations_that_nothing_is_known_about_are_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A builder method of a future release: its result has no shadow, and nothing breaks."""
    known = shadowing.ShadowedBuilder.create_exp
    monkeypatch.setattr(shadowing.ShadowedBuilder, "create_exp", MendedBuilder.create_exp)
    assert known is not MendedBuilder.create_exp
    x = torch.ones(16)
    watch = Undefined()
    with interpreter.interpreting(watch):
        moves[(1,)](x, x, torch.zeros(16), 11, HOW="math")
    assert watch.lanes == expected_lanes("math", 11)  # of the maximum and the root, still


def test_the_self_test_misses_what_is_renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert interpreter.self_test() == []
    monkeypatch.setattr(selftest, "MOVES", (*selftest.MOVES, "create_renamed"))
    assert any("create_renamed is gone" in line for line in interpreter.self_test())
    monkeypatch.undo()
    monkeypatch.setattr(shadowing.ShadowedBuilder, "create_join", MendedBuilder.create_join)
    assert any("shadow values find" in line for line in interpreter.self_test())


@triton.jit
def one_element(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    block = tl.load(x_ptr + i, mask=i < n, other=0.0)
    scalar = tl.load(x_ptr + tl.program_id(0), mask=tl.program_id(0) < n, other=0.0)
    tl.store(out_ptr + i, block + scalar)


def test_other_of_one_element_is_other() -> None:
    """Triton calls the builder without an other that is one zero: `if other` denies it."""
    x = torch.ones(2)
    expected = torch.tensor([2.0, 2.0, 0.0])
    found = debug(one_element, (3,), (x, torch.empty(3), 2), oracle=lambda: expected, BLOCK=1)
    assert found, found
