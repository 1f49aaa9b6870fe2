"""The cases' tensors: those with gigabytes between their elements, and values that tell when an
operand is rounded."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest
import torch

from compare import cases
from compare.ops import SPECS

CPU = cases.CPU


def resident() -> int:
    """Bytes of memory that this process takes up."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64])
@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((3,), "distant"),
        ((3, 7), "distant"),
        ((7, 3), "distant_transposed"),
        ((2, 3, 5), "distant"),
    ],
)
def test_distant(shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> None:
    before = resident()
    x = torch.arange(1, 1 + torch.Size(shape).numel()).view(shape).to(dtype)
    lying = cases.arrange(x, layout)
    guarded = cases.Guarded(shape, dtype, CPU, layout)
    assert torch.equal(lying, x)
    for t in (lying, guarded.out):
        last = sum((n - 1) * stride for n, stride in zip(shape, t.stride()))
        assert 2**31 <= last < 2**32
        # An offset that is cut to 32 bits, or a row further, is in memory, too.
        assert t.storage_offset() + last - 2**32 >= 0
        step = max(t.stride())
        assert t.storage_offset() + last + step < t.untyped_storage().nbytes() // dtype.itemsize
    assert resident() - before < 2**27
    guarded.out.copy_(lying)
    assert guarded.intact()
    guarded.buffer[guarded.out.storage_offset() + max(guarded.out.stride()) - 1] = 1
    assert not guarded.intact()


@pytest.mark.parametrize("shape", [(), (0, 3), (1, 5)])
def test_too_few_rows_are_not_distant(shape: tuple[int, ...]) -> None:
    assert cases.arrange(torch.ones(shape), "distant").is_contiguous()
    assert cases.Guarded(shape, torch.float32, CPU, "distant").buffer.numel() < 2**20


def test_distant_without_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(torch.OutOfMemoryError, match=r"no \d{12} bytes of addresses"):
        cases.arrange(torch.ones(3), "distant")


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16])
def test_ties_go_the_other_way_through_float32(narrow: torch.dtype) -> None:
    wide = [torch.float64, torch.int64, torch.int32][: 1 if narrow == torch.float16 else 3]
    for dtype in wide:
        _, kind = cases.ties(narrow, dtype)
        x = cases.random_values((500,), dtype, kind, torch.Generator().manual_seed(0))
        neighbours = torch.stack([x.float().to(narrow).double(), x.double().to(narrow).double()])
        exact = x.double()
        # torch converts by way of float32: to the wrong neighbour. The right one is nearer.
        other = 2 * x.float().double() - neighbours[0]
        assert (other != neighbours[0]).all()
        assert ((other - exact).abs() < (neighbours[0] - exact).abs()).all()


@pytest.mark.parametrize("op", SPECS)
def test_no_case_runs_twice(op: str) -> None:
    spec = SPECS[op]
    for level in ("quick", "full"):
        listed = [str(case) for dtype in spec.dtypes for case in spec.cases(dtype, level)]
        assert len(listed) == len(set(listed))
