"""Requests for more than a machine has: an error that says what was asked for, and at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from triton_kernels import interpreter
from triton_kernels.interpreter import Observer, launching


@triton.jit
def store_place(out_ptr, stop):
    """What the first programs of a grid are, one row each; then an error."""
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = out_ptr + 3 * (z + y * tl.num_programs(2) + x * tl.num_programs(2) * tl.num_programs(1))
    tl.device_assert(x < stop, "enough")
    tl.store(row, x)
    tl.store(row + 1, y)
    tl.store(row + 2, z)


def launch(grid: tuple[int, ...], out: torch.Tensor, stop: int) -> Any:
    return store_place[grid](out, stop)


@pytest.fixture
def interpreted() -> Iterator[None]:
    with interpreter.interpreting():
        yield


@pytest.mark.parametrize(
    "grid", [(2**40,), (2**31, 1), (1, 2**16), (3, 1, 2**16), (2**61, 1, 1), (2**80,)]
)
def test_a_grid_that_no_gpu_takes(interpreted: None, grid: tuple[int, ...]) -> None:
    """It was an empty MemoryError."""
    out = torch.zeros(3, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"^kernel store_place has a grid of \(.*\) programs") as e:
        launch(grid, out, 1)
    assert str((*grid, 1, 1)[:3]) in str(e.value)
    assert not out.any()


@pytest.mark.parametrize("grid", [(0, 2**31 - 1, 1), (2**31 - 1, 0), (2**60, 2**60, 0)])
def test_an_empty_grid_is_empty_however_large(interpreted: None, grid: tuple[int, ...]) -> None:
    launch(grid, torch.zeros(3, dtype=torch.int32), 1)


def test_the_largest_grid_begins_at_once(interpreted: None) -> None:
    """Programs are made one at a time, in the usual order; a list of these is 200 GB."""
    out = torch.zeros(2 * 2 * 3, 3, dtype=torch.int32)
    with pytest.raises(AssertionError, match="enough"):
        launch((2**31 - 1, 2, 3), out, 2)
    assert out.tolist() == [list(p) for p in itertools.product(range(2), range(2), range(3))]


def test_a_watched_grid_must_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """An observer gets all programs, to put them in order."""
    out = torch.zeros(3, dtype=torch.int32)
    said = (
        r"^kernel store_place has 281470681677825 programs in its grid \(65537, 65535, 65535\); "
        r"to watch them takes a list of 2\d{7} GiB"
    )
    with interpreter.interpreting(Observer()), pytest.raises(MemoryError, match=said):
        launch((2**16 + 1, 2**16 - 1, 2**16 - 1), out, 1)
    monkeypatch.setattr(launching, "BYTES_A_PROGRAM", 2**60)
    with interpreter.interpreting(Observer()), pytest.raises(MemoryError, match="5 programs"):
        launch((5,), out, 1)
    assert not out.any()
