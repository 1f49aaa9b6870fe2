"""An output to which no program stored is wrong; that is no mistake of the oracle's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from compare import debug

X = torch.arange(1.0, 9.0)


@triton.jit
def last_of_all(x_ptr, done_ptr, sum_ptr, out_ptr, N: tl.constexpr, LAST: tl.constexpr):
    """The program that is last to count itself writes the result."""
    x = tl.load(x_ptr + tl.program_id(0) * N + tl.arange(0, N))
    tl.atomic_add(sum_ptr, tl.sum(x))
    if tl.atomic_add(done_ptr, 1) == LAST:
        tl.store(out_ptr, tl.atomic_add(sum_ptr, 0.0))


def run(last: int, oracle: Callable[[], Any]) -> Any:
    args = X, torch.zeros(1, dtype=torch.int32), torch.zeros(1), torch.zeros(1)
    return debug(last_of_all, (2,), args, oracle=oracle, N=4, LAST=last)


DONE = torch.tensor([2], dtype=torch.int32)
ORACLES = {
    "a dict": lambda: {"out_ptr": X.sum()[None]},
    "a tuple": lambda: (DONE, X.sum()[None], X.sum()[None]),
}


@pytest.mark.parametrize("oracle", ORACLES.values(), ids=ORACLES)
def test_a_result_that_no_program_stored_is_wrong(oracle: Callable[[], Any]) -> None:
    assert run(1, oracle)
    (wrong,) = run(2, oracle).wrong
    assert wrong.output == "out_ptr"
    assert "never stored by any of 2 programs" in str(run(2, oracle))


def test_an_input_is_no_result() -> None:
    with pytest.raises(ValueError, match="returned x_ptr, but the kernel stored to done_ptr"):
        run(2, lambda: {"x_ptr": X})


@triton.jit
def storing_nothing(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    for start in range(0, N - BLOCK, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(out_ptr + at, tl.load(x_ptr + at))


def test_a_kernel_that_stores_nothing_is_wrong() -> None:
    args = X, torch.zeros(8), 8
    found = debug(storing_nothing, (1,), args, oracle=lambda: X, BLOCK=8)
    assert "8 of 8 elements wrong: all of them" in str(found)
    assert debug(storing_nothing, (1,), (X, torch.zeros(8), 16), oracle=lambda: X, BLOCK=8)
