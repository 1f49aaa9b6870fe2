"""Random problems of elementwise ops, with the layouts of their tensors as strata."""

from __future__ import annotations

from random import Random
from typing import Any

from compare.specs.drawn import elements, equal, images, matrix, odd_matrix

FLAT = ("dense", "odd count", "offset view", "every second element")  # may be a single row
UNARY = equal(*FLAT, "padded rows", "transposed", "permuted 4-D")
_PAIRS = ("transposed pair", "permuted pair 4-D", "row", "column", "outer", "channel")
BINARY = equal(*FLAT, "padded rows", *_PAIRS)

Lying = tuple[tuple[int, ...], str, dict[str, Any]]  # shape, layout, options


def lying(stratum: str, itemsize: int, random: Random) -> Lying | None:
    """A shape and layouts of the stratum; in a pair either tensor may be the one with the other
    layout. None if the shape has only one layout."""
    numel = elements(random, itemsize)
    if stratum == "odd count":
        return odd_matrix(random, numel), "contiguous", {}
    if stratum in ("channel", "permuted 4-D", "permuted pair 4-D"):
        shape: tuple[int, ...] = images(random, numel)
    else:
        shape = matrix(random, numel)
    if stratum not in FLAT and len(shape) == 2 and min(shape) == 1:
        return None
    if stratum in ("row", "column", "outer", "channel"):
        return shape, "contiguous", {"y": stratum}
    if "pair" in stratum:
        other = "channels_last" if "4-D" in stratum else "transposed"
        layout, y = random.sample(("contiguous", other), 2)
        return shape, layout, {"y": y}
    layouts = {
        "dense": ("contiguous",),
        "offset view": ("misaligned",),
        "every second element": ("strided",),
        "padded rows": ("padded", "chunk"),
        "transposed": ("transposed",),
        "permuted 4-D": ("channels_last",),
    }
    return shape, random.choice(layouts[stratum]), {}
