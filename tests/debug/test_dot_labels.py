"""The trace says an input precision of float32 dots alone: 16-bit operands are not rounded."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from compare import debug


@triton.jit
def product_kernel(a_ptr, b_ptr, out_ptr, BLOCK: tl.constexpr):
    i, j = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    a = tl.load(a_ptr + i * BLOCK + j)
    b = tl.load(b_ptr + i * BLOCK + j)
    tl.store(out_ptr + i * BLOCK + j, tl.dot(a, b))  # tf32 is what Triton takes by itself


@pytest.mark.parametrize(
    ("dtype", "label"),
    [
        (torch.float32, "tf32"),
        (torch.float16, ""),
        (torch.bfloat16, ""),
        (torch.float8_e5m2, ""),
        (torch.int8, ""),
    ],
)
def test_the_label_of_a_dot(dtype: torch.dtype, label: str) -> None:
    a = torch.ones(16, 16).to(dtype)
    out = torch.empty(16, 16, dtype=torch.int32 if dtype == torch.int8 else torch.float32)
    found = debug(product_kernel, (1,), (a, a, out), oracle=lambda: torch.zeros_like(out), BLOCK=16)
    assert found.trace is not None
    (dot,) = (event for event in found.trace.events if event.what == "dot")
    assert dot.precision == label
    line = next(line for line in str(found).splitlines() if " dot " in line)
    assert ("tf32" in line) == bool(label)
    assert not any("instead of 'tf32'" in note for note in found.notes)
