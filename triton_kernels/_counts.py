"""Integer arithmetic for launches. Triton's functions of these names also serve kernels, and take
microseconds."""

from __future__ import annotations


def cdiv(a: int, b: int) -> int:
    """⌈a/b⌉."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """The least power of two that is at least n; 1 for n < 1."""
    return 1 << max(0, n - 1).bit_length()


def powers_of_2(n: int) -> list[int]:
    """n as a sum of powers of two, the largest first."""
    powers = (1 << bit for bit in reversed(range(n.bit_length())))
    return [power for power in powers if n & power]
