"""A case's samples in a table: a small histogram per provider, all on one axis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

WIDTH, HEIGHT = 160, 16  # pixels
SHOWN = 0.95  # of a provider's samples; the axis ends there, and shows the rest at its end


def strips(samples: Sequence[Sequence[float]]) -> list[str]:
    """The SVG path of each provider's histogram; empty if the file has no samples of it."""
    full = [sorted(own) for own in samples if own]
    if not full:
        return [""] * len(samples)
    low = min(own[0] for own in full)
    high = max(own[int(SHOWN * (len(own) - 1))] for own in full)
    scale = (WIDTH - 1) / (high - low) if high > low else 0.0
    return [_path(own, low, scale) for own in samples]


def _path(samples: Sequence[float], low: float, scale: float) -> str:
    columns = Counter(min(WIDTH - 1, round((sample - low) * scale)) for sample in samples)
    most = max(columns.values(), default=1)
    return "".join(
        f"M{x} {HEIGHT}v-{max(2, round(HEIGHT * count / most))}"
        for x, count in sorted(columns.items())
    )
