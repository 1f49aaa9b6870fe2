"""Counts that a launch is cut by. Triton's own functions of these names are made for kernels, too,
and take microseconds."""

from __future__ import annotations


def cdiv(a: int, b: int) -> int:
    """⌈a/b⌉."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """The least power of two that is n or more; 1 of less than that."""
    return 1 << max(0, n - 1).bit_length()
