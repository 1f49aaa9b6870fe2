"""Copies of a product's operands that suit the library's fast kernels.

The library multiplies on tensor cores at full speed only if rows begin at multiples of 16 bytes and
have a multiple of as many: bfloat16 of 12143×2094×1911 takes 934 µs, and 12144×2096×1912 less
than a third of it (H100). Zeros beside the operands change no sum, and the results beside the
product are left out.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cuda_reference import _launch
from cuda_reference._cublaslt_plans import Matrix, matrix

ROWS = 16  # bytes
# Copies pay from so many operations on, if the copies' product has at most so many times as many. A
# copy of more bytes than L2 keeps pays if each of its elements is multiplied so many times.
LEAST, MOST = 2**26, 1.25
SMALL, TIMES = 2**24, 256


class Copy(NamedTuple):
    """A matrix's copy, by rows, or by columns if ``transposed``."""

    rows: int
    columns: int
    transposed: bool

    def empty(self, dtype: torch.dtype, device: torch.device | str = "meta") -> Tensor:
        """A matrix that lies as the copy."""
        if self.transposed:
            return torch.empty((self.columns, self.rows), dtype=dtype, device=device).t()
        return torch.empty((self.rows, self.columns), dtype=dtype, device=device)


class Copies(NamedTuple):
    """The copies of a and b; None for what needs none."""

    a: Copy | None
    b: Copy | None


def round_up(n: int, multiple: int = 8) -> int:
    """The next multiple."""
    return -(-n // multiple) * multiple


def copies(a: Tensor, b: Tensor, precision: str) -> Copies | None:
    """The copies that make a product faster; None if it is as fast without. Both lie by rows or by
    columns."""
    on_tensor_cores = a.element_size() == 2 or (a.dtype == torch.float32 and precision == "tf32")
    (M, K), N = a.shape, b.shape[1]
    if not on_tensor_cores or 2 * M * N * K < LEAST:
        return None
    of_a, of_b = matrix(a), matrix(b)
    if of_a is None or of_b is None:
        raise AssertionError("other operands are copied before")
    each = ROWS // a.element_size()
    sizes = (
        round_up(M, each) if of_a.transposed else M,
        round_up(N, each),  # the sum lies by rows
        round_up(K, each) if of_b.transposed or not of_a.transposed else K,
    )
    if sizes[0] * sizes[1] * sizes[2] > MOST * M * N * K:
        return None
    made = Copies(_copy(a, of_a, sizes[0], sizes[2]), _copy(b, of_b, sizes[2], sizes[1]))
    pays = [
        copy is None or times >= TIMES or t.numel() * t.element_size() <= SMALL
        for copy, t, times in zip(made, (a, b), (N, M))
    ]
    return made if made != (None, None) and all(pays) else None


def _copy(t: Tensor, lies: Matrix, rows: int, columns: int) -> Copy | None:
    pitch = lies.ld * t.element_size()
    if t.shape == (rows, columns) and pitch % ROWS == 0 and _launch.address(t) % ROWS == 0:
        return None
    return Copy(rows, columns, lies.transposed)
