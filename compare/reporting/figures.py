"""The report's figures; each is a function from plain numbers to an ``<svg>`` element.

They are as wide as a phone, to be read there without zooming. A wide page shows several in a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from compare.pages.colours import ink, of_provider
from compare.reporting import drawing, svg

WIDTH = 384.0


class Bar(NamedTuple):
    """A ratio with its interval. ``value`` is None if there is none; ``note`` says why."""

    label: str
    value: float | None
    low: float = math.nan
    high: float = math.nan
    note: str = ""
    group: str = ""  # a heading before the first of its bars
    link: str = ""  # the id of its place on the page


class Point(NamedTuple):
    """A timed case in a roofline: operations per byte, TFLOP/s."""

    provider: str
    x: float
    y: float


class Roof(NamedTuple):
    """The TB/s and TFLOP/s that a device reaches; None if not measured."""

    bandwidth: float
    flops: float | None


class Line(NamedTuple):
    """One provider's rates over sizes, each with the ends of its interval."""

    provider: str
    points: list[tuple[float, float, float, float]]  # x, rate, low, high


def ratios(
    bars: Sequence[Bar],
    label: str,
    key: str,
    *,
    least: float,
    most: float,
    title: str = "",
    alone: bool = False,
    width: float = WIDTH,
    beside: str = "best peer",
) -> str:
    """Bars from 1 to each ratio on a logarithmic axis; a line over a bar is its interval.

    Args:
        least, most: the ends of the axis.
        title: the title above the figure.
        alone: whether it is a file of its own.
        beside: that of which the ratios are.
    """
    spots: list[float] = []
    y, group = 0.0, ""
    for bar in bars:
        if bar.group != group:
            y, group = y + (1.7 if spots else 1.0), bar.group
        spots.append(y)
        y += 1
    top, bottom, row = 10 + (30 if title else 0), 42, 18.0
    height = top + bottom + row * y
    left = 12 + 6.9 * max((len(bar.label) for bar in bars), default=0)
    noted = 10 + 6.6 * max((len(bar.note) for bar in bars if bar.value is not None), default=0)
    with svg.canvas(width, height) as figure:
        axes = figure.add_axes(
            (left / width, bottom / height, (width - left - noted - 44) / width, row * y / height)
        )
        drawing.plain(axes)
        axes.set_xscale("log", base=2)
        axes.set_xlim(least, most)
        axes.set_ylim(y - 0.4, -0.7)
        ticks = [tick for tick in drawing.ratio_ticks(least, most) if least <= tick <= most]
        axes.set_xticks(ticks, [drawing.in_words(tick) for tick in ticks])
        axes.xaxis.grid(True, color=ink("grid"), linewidth=0.8)
        axes.tick_params(axis="y", length=0)
        axes.set_yticks(spots, [bar.label for bar in bars], color=ink("ink"), family="DejaVu Sans")
        axes.set_xlabel(f"× {beside}; right of 1 is faster", color=ink("muted"))
        group = ""
        for bar, spot in zip(bars, spots):
            if bar.group != group:
                group = bar.group
                drawing.beside(
                    axes, 0, spot - 1, group, color=ink("ink"), weight="bold", x=-left + 6
                )
            if bar.value is None:
                drawing.beside(axes, 0, spot, bar.note or "no time", color=ink("muted"), x=4)
                continue
            axes.barh(spot, bar.value - 1, left=1, height=0.3, color=ink("triton"))
            dot = {"marker": "o", "markersize": 7, "markeredgewidth": 0, "zorder": 4}
            axes.plot(bar.value, spot, color=ink("triton"), **dot)
            if math.isfinite(bar.low + bar.high):
                axes.plot([bar.low, bar.high], [spot, spot], color=ink("ink"), linewidth=1.2)
            drawing.beside(axes, 1, spot, f"{bar.value:.2f}", color=ink("ink"), x=8)
            drawing.beside(axes, 1, spot, bar.note, color=ink("muted"), x=42)
        links = {}
        for bar, spot in zip(bars, spots):
            if bar.link:
                links[f"#{bar.link}"] = f"{bar.label}: all times"
                drawing.link(axes, spot, -left, width, f"#{bar.link}")
        axes.axvline(1, color=ink("ink"), linewidth=1.2)
        if title:
            figure.text(6 / width, 1 - 16 / height, title, size=13, weight="bold", va="center",
                        color=ink("ink"))  # fmt: skip
        return svg.text(figure, label, key, alone, links)


def roofline(
    points: Sequence[Point], measured: Roof, datasheet: Roof | None, label: str, key: str
) -> str:
    """Rates over operations per byte, below the measured and the datasheet's roofline."""
    families = sorted({family(point.provider) for point in points}, key=_drawn_last)
    legend = 18 * math.ceil((len(families) + 2) / 3)
    height = 346.0 + legend
    with svg.canvas(WIDTH, height) as figure:
        axes = figure.add_axes((46 / WIDTH, (46 + legend) / height, 330 / WIDTH, 276 / height))
        drawing.plain(axes, sides=("left", "bottom"))
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=10)
        xs, ys = [p.x for p in points], [p.y for p in points]
        low, high = min(xs) / 2, max(xs) * 2
        axes.set_xlim(low, high)
        tops = [measured.flops, datasheet and datasheet.flops, max(ys)]
        axes.set_ylim(min(ys) / 2, 2 * max(top for top in tops if top))
        for roof, style, name in ((measured, "-", "measured"), (datasheet, "--", "datasheet")):
            if roof is not None:
                line = [low, *([roof.flops / roof.bandwidth] if roof.flops else []), high]
                heights = [min(x * roof.bandwidth, roof.flops or math.inf) for x in line]
                drawn = {"color": ink("muted"), "linewidth": 1.3, "linestyle": style}
                axes.plot(line, heights, label=name, **drawn)
        for name in families:
            mine = [p for p in points if family(p.provider) == name]
            drawing.markers(axes, name, [p.x for p in mine], [p.y for p in mine])
        exponents = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
        ticks = [k for k in exponents if k % 2 == 0]
        axes.set_xticks([2.0**k for k in ticks], [drawing.power(k) for k in ticks])
        drawing.decades(axes)
        axes.grid(True, color=ink("grid"), linewidth=0.6)
        axes.set_xlabel("operations a byte", color=ink("muted"))
        axes.set_title("TFLOP/s", loc="left", size=11, color=ink("muted"), x=-0.11)
        drawing.legend(figure, axes, legend)
        return svg.text(figure, label, key)


def sweep(
    lines: Sequence[Line],
    limit: Sequence[tuple[float, float]],
    quantity: str,
    unit: str,
    label: str,
    key: str,
) -> str:
    """Rates over sizes, one line with a band per provider, below the limit."""
    legend = 18 * math.ceil((len(lines) + 1) / 3)
    height = 250.0 + legend
    with svg.canvas(WIDTH, height) as figure:
        axes = figure.add_axes((52 / WIDTH, (46 + legend) / height, 324 / WIDTH, 176 / height))
        drawing.plain(axes, sides=("left", "bottom"))
        axes.set_xscale("log", base=2)
        axes.plot(*zip(*limit), color=ink("muted"), linewidth=1.2, label="limit")
        for line in lines:
            x, rate, low, high = zip(*line.points)
            style = of_provider(line.provider)
            axes.fill_between(x, low, high, color=style.colour, alpha=0.18, linewidth=0)
            drawn = {"linestyle": style.line, "linewidth": 1.5}
            drawing.markers(axes, line.provider, x, rate, **drawn)
        exponents = [math.log2(x) for line in lines for x, *_ in line.points]
        first, last = math.floor(min(exponents)), math.ceil(max(exponents))
        step = max(1, math.ceil((last - first) / 7))
        ticks = range(first, last + 1, step)
        axes.set_xticks([2.0**k for k in ticks], [drawing.power(k) for k in ticks])
        axes.set_ylim(bottom=0)
        axes.grid(True, color=ink("grid"), linewidth=0.6)
        axes.set_xlabel(quantity, color=ink("muted"))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_title(unit, loc="left", size=11, color=ink("muted"), x=-0.13)
        drawing.legend(figure, axes, legend)
        return svg.text(figure, label, key)


def errors(
    ulps: dict[str, Histogram],
    bounds: Histogram,
    fractions: dict[str, Histogram],
    label: str,
    key: str,
) -> str:
    """The fractions of elements by the size of their error, one line per implementation. The upper
    part is in ULPs, with the bounds as an area; the lower part is relative to each own bound."""
    legend = 18 * math.ceil((len(ulps) + 1) / 2)
    height = 364.0 + legend
    with svg.canvas(WIDTH, height) as figure:
        above = figure.add_axes((50 / WIDTH, (210 + legend) / height, 326 / WIDTH, 134 / height))
        below = figure.add_axes((50 / WIDTH, (42 + legend) / height, 326 / WIDTH, 100 / height))
        _histogram(above, ulps, bounds, "error, ULPs")
        walls = _histogram(below, fractions, {}, "error ÷ bound")
        below.axvline(walls[1.0], color=ink("bad"), linewidth=1.6)
        below.annotate("bound ", (walls[1.0], 1), xycoords=("data", "axes fraction"), ha="right",
                       va="top", size=11, color=ink("bad"))  # fmt: skip
        drawing.legend(figure, above, legend, columns=2)
        return svg.text(figure, label, key)


Histogram = dict[float, int]  # upper end of a bin → elements


def _histogram(
    axes: Any, histograms: dict[str, Histogram], bounds: Histogram, axis: str
) -> dict[float, float]:
    """Draw steps over bins of powers of two. Returns the positions of the bins' ends."""
    edges = {1.0, *(edge for h in (*histograms.values(), bounds) for edge in h)}
    inner = [math.log2(edge) for edge in edges if 0 < edge < math.inf]
    first, last = int(min(inner)), int(max(inner))
    bins = [0.0, *(2.0**k for k in range(first, last + 1))]
    bins += [math.inf] if math.inf in edges else []
    walls = [i - 0.5 for i in range(len(bins) + 1)]

    def shares(histogram: Histogram) -> list[float]:
        total = sum(histogram.values())
        return [100 * histogram.get(edge, 0) / total if total else 0.0 for edge in bins]

    if bounds:
        look = {"fill": True, "color": ink("grid"), "label": "bounds of these elements"}
        axes.stairs(shares(bounds), walls, baseline=1e-9, **look)
    for i, (name, histogram) in enumerate(histograms.items()):
        style = of_provider(name)
        width = max(1.2, 3.2 - 0.7 * i)  # lines on top of each other stay visible
        look = {"color": style.colour, "linestyle": style.line, "linewidth": width}
        axes.stairs(shares(histogram), walls, baseline=1e-9, label=name, **look)
    drawing.plain(axes, sides=("left", "bottom"))
    axes.set_yscale("log", base=10)
    smallest = [100 / sum(h.values()) for h in histograms.values() if h]
    axes.set_ylim(max(1e-6, min(smallest, default=1) / 2), 200)
    axes.set_xlim(walls[0], walls[-1])
    step = max(1, math.ceil(len(bins) / 9))
    whole = [k for k in range(first + 1, last + 1) if (k - (0 if step < 3 else 1)) % step == 0]
    whole = [k for k in whole if math.inf not in edges or last - k >= step - 1]
    names = {0: "0", **{k - first + 1: drawing.power(k) for k in whole}}
    if math.inf in edges:
        names[len(bins) - 1] = "more"
    axes.set_xticks(list(names), list(names.values()))
    axes.set_xlabel(f"{axis}, at most", color=ink("muted"))
    drawing.decades(axes)
    axes.yaxis.grid(True, color=ink("grid"), linewidth=0.6)
    axes.set_title("% of elements", loc="left", size=11, color=ink("muted"), x=-0.12)
    return dict(zip(bins, walls[1:]))


def family(provider: str) -> str:
    """A provider's name in a roofline; a side's pinned variants have one name."""
    side, _, variant = provider.partition("/")
    return (
        f"{side}/pinned" if variant and variant not in ("tiled", "wmma", "cublaslt") else provider
    )


def _drawn_last(name: str) -> tuple[bool, bool, str]:
    """A sort key: ours over others, and Triton's over all."""
    return name == "triton", name.startswith(("triton", "cuda")), name
