"""Which tensors are alive is asked once a launch, and kept no longer."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
import triton
import triton.language as tl

import triton_kernels as tk
from triton_kernels.interpreter import live_tensors


@triton.jit
def summed(table_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """The sum of what the table points at."""
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(n):
        x_ptr = tl.load(table_ptr + i).to(tl.pointer_type(tl.float32))
        total += tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.store(out_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), total)


def test_it_is_asked_once_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[None] = []
    alive = live_tensors.alive

    def counted() -> Iterator[live_tensors.Argument]:
        asked.append(None)
        return alive()

    monkeypatch.setattr(live_tensors, "alive", counted)
    tensors, out = [torch.randn(8) for _ in range(5)], torch.empty(2, 8)
    table = torch.tensor([t.data_ptr() for t in tensors])
    with tk.interpret():
        summed[(2,)](table, out, 5, BLOCK=8)
        assert len(asked) == 1
        other = torch.ones(8)  # made since
        table[0] = other.data_ptr()
        summed[(2,)](table, out, 1, BLOCK=8)
    assert len(asked) == 2
    assert torch.equal(out, torch.ones(2, 8))


def test_no_tensor_is_kept_alive() -> None:
    x, innocent = torch.ones(8), torch.ones(8)
    table = torch.tensor([x.data_ptr(), 8])
    gone = weakref.ref(innocent)
    with tk.interpret():
        summed[(1,)](table, torch.empty(8), 1, BLOCK=8)
        with pytest.raises(IndexError):
            summed[(1,)](table, torch.empty(8), 2, BLOCK=8)
        del innocent
        gc.collect()
        assert gone() is None
