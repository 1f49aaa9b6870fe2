"""Variants that are called with what they are not for; and what they are called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from calls import refused

import cuda_reference
import triton_kernels
from compare.checking.implementations import MODES, Implementation
from compare.ops import SPECS


def test_variant_of_another_dtype_or_layout(mode: str) -> None:
    """The sides differ in one thing: Triton's variants pin a dtype only and take any layout."""
    side, device, *_ = MODES[mode]
    package = triton_kernels if side == "triton" else cuda_reference
    error = TypeError if side == "triton" else ValueError
    dtypes = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    for name, function in package.variants("add").items():
        if (own := dtypes.get(name.split("x")[0])) is None:  # a rung is of no one dtype
            continue
        run = Implementation(mode, name, function)
        for dtype in (*dtypes.values(), torch.float64, torch.int32):
            x = torch.ones(9, dtype=dtype, device=device)
            out = torch.full_like(x, 7)
            if dtype == own:
                assert run(x, x, out=out).tolist() == [2] * 9
                continue
            words = (f"'{name}'", str(dtype))
            refused(lambda run=run, x=x, out=out: run(x, x, out=out), "add", error, words)
            assert out.tolist() == [7] * 9
        if side == "cuda":
            x = torch.ones(18, dtype=own, device=device)[::2]
            out = torch.full((9,), 7, dtype=own, device=device)
            words = (f"'{name}'", "'x'", "contiguous", "2")
            refused(lambda run=run, x=x, out=out: run(x, x, out=out), "add", error, words)
            assert out.tolist() == [7] * 9


@pytest.mark.parametrize("package", [triton_kernels, cuda_reference])
@pytest.mark.parametrize("op", ["sub", "", None])
def test_variants_of_an_unknown_op(package: Any, op: Any) -> None:
    words = (repr(op), *SPECS)
    refused(lambda: package.variants(op), "variants", ValueError, words)


@pytest.mark.parametrize("op", list(SPECS))
def test_both_sides_name_the_same_variants_of_add(op: str) -> None:
    triton_names, cuda_names = (set(p.variants(op)) for p in (triton_kernels, cuda_reference))
    assert triton_names <= cuda_names
    if op == "add":
        assert triton_names == cuda_names - set(SPECS[op].rungs())
        assert len(triton_names) == 10
