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


@triton.jit
def grouped_into(table_ptr, sizes_ptr, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    group = tl.program_id(0)
    x_ptr = tl.load(table_ptr + 2 * group).to(tl.pointer_type(tl.float32))
    out_ptr = tl.load(table_ptr + 2 * group + 1).to(tl.pointer_type(tl.float32))
    i = tl.arange(0, BLOCK)
    mask = i < tl.load(sizes_ptr + group)
    x = tl.load(x_ptr + i, mask=mask, other=0.0)
    if FAULT:
        x *= group + 1
    tl.store(out_ptr + i, x, mask=mask)


@pytest.mark.parametrize("by_name", [True, False])
def test_results_that_only_a_table_leads_to(by_name: bool) -> None:
    """memory= names them; the kernel gets copies of them, and the table leads to these."""
    xs, outs = ([torch.randn(n) for n in (5, 50, 33)] for _ in range(2))
    before = [out.clone() for out in outs]
    addresses = [t.data_ptr() for pair in zip(xs, outs) for t in pair]
    args = (
        torch.tensor(addresses, dtype=torch.int64),
        torch.tensor([5, 50, 33], dtype=torch.int32),
    )
    names = [f"c{i}" if by_name else f"memory[{i}]" for i in range(3)]
    memory = dict(zip(names, outs)) if by_name else outs

    def found(fault: bool):
        oracle = lambda: dict(zip(names, xs))  # noqa: E731
        return debug(grouped_into, (3,), args, oracle=oracle, memory=memory, FAULT=fault, BLOCK=64)

    assert found(fault=False), found(fault=False)
    text = str(found(fault=True))
    assert f"{names[1]} float32 (50,): 50 of 50 elements wrong" in text
    assert "stored by program (1, 0, 0) in lane" in text or "by program (2, 0, 0) in lane" in text
    assert "x *= group + 1" in text
    assert all(map(torch.equal, outs, before))


def test_memory_that_does_not_suit() -> None:
    x, out = torch.ones(3), torch.zeros(3)
    table = torch.tensor([x.data_ptr(), out.data_ptr()], dtype=torch.int64)
    args = table, torch.tensor([3], dtype=torch.int32)
    text = str(debug(grouped_into, (1,), args, FAULT=False, BLOCK=4))
    assert "all stores went to memory that arguments lead to by addresses: memory= names" in text
    with pytest.raises(ValueError, match=r"stored to none of its arguments \(memory= names"):
        debug(grouped_into, (1,), args, oracle=lambda: {"out": x}, FAULT=False, BLOCK=4)
    with pytest.raises(TypeError, match=r"memory\[0\] must be a tensor, but is a int"):
        debug(doubling, (2,), (X, X, X, 50), memory=[3], BLOCK=32)
    with pytest.raises(ValueError, match="memory and shrink exclude each other"):
        debug(doubling, (2,), (X, X, X, 50), memory=[X], shrink=True, BLOCK=32)
