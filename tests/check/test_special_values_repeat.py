"""Special values are the same every time, however many threads torch has."""

from __future__ import annotations

import pytest
import torch

from compare import cases, numerics


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int32], ids=str)
def test_special_values_repeat(dtype: torch.dtype) -> None:
    """Of 2¹⁸ elements, which several threads write, some twice."""

    def drawn() -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        return numerics.bits(cases.random_values((1 << 18,), dtype, "special", generator))

    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        first = drawn()
        assert all(torch.equal(drawn(), first) for _ in range(10))
    finally:
        torch.set_num_threads(threads)
