"""compare.debug with an oracle for some of what a kernel stores to; tables of pointers."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from compare import debug
from compare.debugging.compiled import bisection


@triton.jit
def doubling(x_ptr, out_ptr, lock_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)
    tl.atomic_add(lock_ptr, 1)


@triton.jit
def grouped(table_ptr, out_ptr, n, BLOCK: tl.constexpr):
    x_ptr = tl.load(table_ptr + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + tl.program_id(0) * n + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)


X = torch.randn(50)


def debugged(oracle):
    args = X, torch.empty(50), torch.zeros(1, dtype=torch.int32), 50
    return debug(doubling, (2,), args, oracle=oracle, BLOCK=32)


def test_a_dict_may_leave_out_a_lock() -> None:
    assert debugged(lambda: {"out_ptr": 2 * X})
    assert debugged(lambda: {"out_ptr": 2 * X, "lock_ptr": torch.tensor([2], dtype=torch.int32)})


def test_what_it_names_is_judged() -> None:
    findings = debugged(lambda: {"out_ptr": 3 * X})
    assert not findings
    assert "out_ptr float32 (50,): 50 of 50 elements wrong" in str(findings)
    assert not debugged(lambda: {"lock_ptr": torch.tensor([3], dtype=torch.int32)})


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ({"out": X}, r"oracle\(\) returned out, but the kernel stored to out_ptr, lock_ptr"),
        ({"out_ptr": X, "x_ptr": X}, r"returned out_ptr, x_ptr, but the kernel stored to out_ptr"),
        ({}, r"returned an empty dict, but"),
        (X, "it must return one for each of these, or a dict"),
    ],
)
def test_what_it_cannot_name(returned: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        debugged(lambda: returned)


def test_a_table_of_pointers() -> None:
    tensors = [torch.randn(50) for _ in range(3)]
    table = torch.tensor([t.data_ptr() for t in tensors], dtype=torch.int64)
    args = table, torch.empty(150), 50
    assert debug(grouped, (3,), args, oracle=lambda: torch.cat(tensors), BLOCK=64)
    wrong = debug(grouped, (3,), args, oracle=lambda: 2 * torch.cat(tensors), BLOCK=64)
    assert "150 of 150 elements wrong" in str(wrong)


def test_a_table_of_pointers_of_the_host_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU its addresses would break the context."""
    monkeypatch.setattr(bisection, "impossible", lambda subject: None)
    tensors = [torch.randn(50) for _ in range(3)]
    table = torch.tensor([t.data_ptr() for t in tensors], dtype=torch.int64)
    args = table, torch.empty(150), 50
    findings = debug(grouped, (3,), args, oracle=lambda: torch.cat(tensors), BLOCK=64)
    assert findings.compiled == "not run: it reaches memory by addresses that only the host knows"
