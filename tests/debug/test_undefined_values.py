"""Undefined values: seen where they matter, through every operation that moves them."""

from __future__ import annotations

from typing import Any

import marked_lines
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from sanitized import X, lines, only

from compare import debug
from triton_kernels import interpreter
from triton_kernels.interpreter import Observer, shadowing
from triton_kernels.interpreter.builder import MendedBuilder

line_of = marked_lines.finder("# ", __file__)


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


def test_whether_zeros_would_be_right() -> None:
    """What code for NVIDIA's GPUs counts on: said where the results become right by it."""
    x, out = -torch.arange(1.0, 6.0), torch.zeros(1)
    total = debug(uses_masked_lanes, (1,), (x, out, 5), oracle=lambda: x.sum()[None], HOW="sum")
    assert "note: right with 0 in lanes masked off without other=, as NVIDIA's GPUs" in str(total)
    largest = debug(uses_masked_lanes, (1,), (x, out, 5), oracle=lambda: x[:1], HOW="max")
    assert largest.wrong
    assert "with 0 in lanes" not in str(largest)  # 0 is larger than all of them
