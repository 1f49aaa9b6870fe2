"""Common parts of the figures: axes without a frame, markers, ticks, legends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from compare.pages.colours import ink, of_provider

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def plain(axes: Any, sides: tuple[str, ...] = ()) -> None:
    """Draw only these sides of the frame, muted ticks, and no background."""
    axes.patch.set_visible(False)
    for side, spine in axes.spines.items():
        spine.set_visible(side in sides)
        spine.set_color(ink("muted"))
    axes.tick_params(colors=ink("muted"), labelsize=11, which="both")
    axes.tick_params(which="minor", length=0, labelsize=0)
    axes.set_axisbelow(True)


def markers(axes: Any, provider: str, x: Sequence[float], y: Sequence[float], **line: Any) -> None:
    """A provider's points; with a line style they are joined."""
    style = of_provider(provider)
    look: dict[str, Any] = {
        "linestyle": "none",
        "marker": style.marker,
        "markersize": 5.5,
        "alpha": 0.85,
        **line,
    }
    look["markersize"] *= 1.6 if style.marker == "*" else 1.0  # stars look smaller
    look["markeredgewidth"] = 1.5 if style.marker in "x+" else 0
    axes.plot(x, y, color=style.colour, label=provider, **look)


def decades(axes: Any) -> None:
    """Powers of ten on the y axis, in plain digits."""
    low, high = axes.get_ylim()
    exponents = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    axes.set_yticks([10.0**k for k in exponents], [_digits(k) for k in exponents])
    axes.minorticks_off()


def _digits(k: int) -> str:
    """10ᵏ in digits if there are few of them."""
    return f"{10.0**k:g}" if -5 < k < 6 else "10" + str(k).translate(RAISED)


def legend(figure: Any, axes: Any, room: float, columns: int = 3) -> None:
    """A legend at the bottom, ``room`` pixels high."""
    height = figure.get_size_inches()[1] * 72
    figure.legend(
        *axes.get_legend_handles_labels(),
        loc="upper left",
        bbox_to_anchor=(0.0, (room + 2) / height),
        ncols=columns,
        frameon=False,
        fontsize=11,
        labelcolor=ink("ink"),
        borderpad=0.1,
        labelspacing=0.35,
        columnspacing=1.2,
        handlelength=1.8,
    )


def beside(axes: Any, edge: float, y: float, text: str, *, x: float, **look: Any) -> None:
    """Text at height y of the data, x pixels right of the left (0) or the right (1) edge."""
    axes.annotate(text, (edge, y), (x, 0), ("axes fraction", "data"), "offset points",
                  va="center_baseline", size=11, annotation_clip=False, **look)  # fmt: skip


def link(axes: Any, y: float, x: float, width: float, target: str) -> None:
    """An invisible strip over a row, starting x pixels from the left edge, that links to a place of
    the page. The page's style may make it visible."""
    inner = axes.get_position().width * axes.figure.get_size_inches()[0] * 72
    look = {"color": ink("paper"), "alpha": 0.002, "zorder": 9, "clip_on": False, "url": target}
    across = axes.get_yaxis_transform()
    axes.barh(y, width / inner, left=x / inner, height=1, transform=across, **look)


def ratio_ticks(least: float, most: float) -> list[float]:
    """Ticks of a ratio's axis."""
    if most / least < 2.5:
        return [0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.4]
    if most / least < 3.5:
        return [0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8]
    first, last = math.floor(math.log2(least)), math.ceil(math.log2(most))
    return [2.0**k for k in range(first, last + 1, 1 if last - first <= 6 else 2)]


def in_words(value: float) -> str:
    """The text of a ratio's tick."""
    k = math.log2(value)
    return power(int(k)) if k == int(k) else f"{value:g}"


def power(k: float) -> str:
    """2ᵏ as people write it: ⅛, ½, 8, 4096, 2²⁰."""
    if -3 <= k < 0:
        return {-1: "½", -2: "¼", -3: "⅛"}[int(k)]
    if 0 <= k <= 12:
        return f"{2 ** int(k)}"
    return "2" + str(int(k)).translate(RAISED)
