"""What compare.debug takes: arguments untouched, bad ones refused, any grid and decorator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from broken_kernels import X, square

from compare import debug
from compare.cases import CPU
from compare.debugging import subjects


@triton.jit
def in_place(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(y_ptr + i, mask=i < n) + 1, mask=i < n)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)


def test_arguments_are_untouched_and_overlap_stays() -> None:
    memory = torch.arange(20.0)
    x, y = memory[:10], memory[5:15]
    before = memory.clone()
    twin = memory.clone()
    twin[:10] = twin[5:15] + 1
    first = twin[:10].clone()
    twin[5:15] = twin[:10] * 2
    assert not torch.equal(first, twin[:10])  # the second store changed the first's result
    want = twin[:10].clone(), twin[5:15].clone()
    found = debug(in_place, (1,), (x, y, 10), oracle=lambda: want, BLOCK=16)
    assert found, found
    assert torch.equal(memory, before)
    assert debug(
        in_place, (1,), (x, y, 10), oracle=lambda: {"y_ptr": want[1], "x_ptr": want[0]}, BLOCK=16
    )


def test_copies_keep_strides_and_alignment_and_copy_no_more_than_needed() -> None:
    storage = torch.arange(100_000, dtype=torch.float16)
    view, other = storage[50_001:50_041].view(4, 10).t(), storage[50_020:50_030:2]
    a, (b, n) = subjects.copies((view, (other, 3)), CPU)
    assert torch.equal(a, view)
    assert torch.equal(b, other)
    assert (a.stride(), b.stride(), n) == (view.stride(), other.stride(), 3)
    assert (a.data_ptr() - view.data_ptr()) % 64 == 0
    assert b.data_ptr() - a.data_ptr() == other.data_ptr() - view.data_ptr()
    assert a.untyped_storage().nbytes() < 300
    a.zero_()
    assert storage[50_001] != 0


def test_tensor_descriptors_are_copied() -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    x, out = torch.randn(16, 16), torch.zeros(16, 16)
    descriptor = TensorDescriptor(out, [16, 16], [16, 1], [16, 16])
    found = debug(through_descriptor, (1,), (x, descriptor), oracle=lambda: 2 * x)
    assert found, found
    assert not out.any()
    assert not debug(through_descriptor, (1,), (x, descriptor), oracle=lambda: x)


@triton.jit
def through_descriptor(x_ptr, out):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    out.store([0, 0], 2 * tl.load(x_ptr + at))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"kernel": len}, TypeError, "'kernel' must be a @triton.jit function"),
        ({"args": X}, TypeError, "'args' must be a tuple"),
        ({"grid": 4}, TypeError, "'grid' must be a tuple or a function"),
        ({"args": (X, X)}, TypeError, "missing a required argument: 'n'"),
        ({"oracle": lambda: None}, TypeError, "must return a tensor"),
        ({"oracle": lambda: (X, X)}, ValueError, "2 tensors, but the kernel stored to out_ptr"),
        ({"oracle": lambda: {"x_ptr": X}}, ValueError, "returned x_ptr, but"),
        ({"oracle": lambda: X[:5]}, ValueError, r"shape \[5\] for out_ptr"),
        ({"oracle": None, "bound": lambda r, *a: r}, ValueError, "needs an oracle"),
        ({"args": (X.to_sparse(), X, 1000)}, TypeError, "must be strided memory"),
        ({"program": (4,)}, ValueError, r"program \(4, 0, 0\) is not in the grid"),
    ],
)  # fmt: skip
def test_bad_arguments(change: dict[str, Any], error: type[Exception], says: str) -> None:
    call = {"kernel": square, "grid": (4,), "args": (X, X.clone(), 1000)} | change
    kernel, grid, args = (call.pop(name) for name in ("kernel", "grid", "args"))
    with pytest.raises(error, match=says):
        debug(kernel, grid, args, BLOCK=256, **call)


@triton.heuristics({"BLOCK": lambda args: 256})
@triton.jit
def heuristic(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n, other=0.0) + 1, mask=i < n)


@triton.autotune([triton.Config({"BLOCK": 512}), triton.Config({"BLOCK": 64})], key=["n"])
@triton.jit
def autotuned(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n, other=0.0) + 1, mask=i < n)


def test_kernels_under_heuristics_and_autotune_and_grid_functions() -> None:
    out = torch.zeros(1000)
    found = debug(heuristic, (4,), (X, out, 1000), oracle=lambda: X)
    assert found.wrong[0].grid == (4, 1, 1)
    assert str(found).startswith("heuristic[4, 1, 1]: WRONG")
    grid = lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)  # noqa: E731
    found = debug(autotuned, grid, (X, out, 1000), oracle=lambda: X + 1)
    assert found
    assert str(found).startswith("autotuned[2, 1, 1]: nothing wrong")
    keyword = debug(square, (4,), (X,), out_ptr=out, n=1000, BLOCK=256, oracle=lambda: X * X)
    assert keyword
    assert not out.any()


def test_an_empty_grid_stores_nothing() -> None:
    with pytest.raises(ValueError, match="kernel stored to nothing"):
        debug(square, (0,), (X, X.clone(), 1000), BLOCK=256, oracle=lambda: X)
    found = debug(square, (0,), (X, X.clone(), 1000), BLOCK=256)
    assert "note: no program stored anything" in str(found)
    assert found.trace is None


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float64])
def test_outputs_of_other_dtypes(dtype: torch.dtype) -> None:
    x = (torch.arange(300) % 2).to(dtype)
    want = x.clone()
    assert debug(plain_copy, (3,), (x, torch.zeros_like(x), 300), oracle=lambda: want, BLOCK=128)
    want[7] = 1 - int(want[7])
    found = debug(plain_copy, (3,), (x, torch.zeros_like(x), 300), oracle=lambda: want, BLOCK=128)
    assert found.wrong[0].deviation.index == (7,)
    assert found.wrong[0].history.last.program == (0, 0, 0)


@triton.jit
def plain_copy(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n, other=0), mask=i < n)


def test_without_an_oracle() -> None:
    out = torch.full((1000,), torch.nan)
    found = debug(square, (3,), (X, out, 1000), BLOCK=256)
    assert found
    assert "note: out_ptr: 232 of 1000 elements never stored" in str(found)
    assert "note: no oracle" in str(found)
    assert str(found).splitlines()[0] == "square[3, 1, 1]: ran to its end"
    assert found.trace.program == (0, 0, 0)
