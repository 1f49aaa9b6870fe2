"""Samples of random problems for the page: a distribution per stratum, with the control's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from compare.pages.colours import ink
from compare.reporting import drawing, svg
from compare.reporting.figures import WIDTH
from compare.timing import distributions, regret
from compare.timing.distributions import OURS, Standing
from compare.timing.engine import CONTROL
from compare.timing.results import CaseResult

ROW = 34.0  # pixels per stratum
LARGE = 4 * 10**6  # bytes moved, from which a launch's own time matters little
GOLDEN = 0.618  # its multiples modulo 1 spread the dots of a row evenly


def context(cases: Sequence[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """For each op a figure, a table, and the worst problems of its strata."""
    results = [CaseResult.from_dict(case) for case in cases]
    ops = []
    for i, op in enumerate(dict.fromkeys(result.case.op for result in results)):
        own = [result for result in results if result.case.op == op]
        both = (distributions.standings(own, provider) for provider in (OURS, CONTROL))
        pairs = list(zip(*both))
        dtypes = ", ".join(dict.fromkeys(result.case.dtype for result in own))
        label = (
            f"{op}: how many times as fast as the fastest peer Triton is, a dot a problem, by "
            "stratum; beneath, that peer timed a second time"
        )
        ops.append(
            {
                "op": op,
                "dtypes": dtypes,
                "problems": len(own),
                "figure": strips(pairs, label, f"{key}d{i}-"),
                "rows": [_row(*pair) for pair in _with_all(pairs)],
                "worst": [
                    {
                        "stratum": ours.stratum,
                        "ratio": f"{problem.ratio:.3f}",
                        "best_peer": problem.best_peer,
                        "replay": distributions.replay(problem.case),
                    }
                    for ours, _ in pairs
                    for problem in ours.worst
                ],
            }
        )
    return ops


def summaries(cases: Sequence[dict[str, Any]]) -> list[list[str]]:
    """One line per op: the number of problems, the ratios' geometric mean, 5th percentile and
    minimum; the same for large problems; the control's mean and percentile."""
    drawn = [case for case in cases if case.get("stratum") and case["best_peer"]]
    lines = []
    for op in dict.fromkeys(case["op"] for case in drawn):
        own = [case for case in drawn if case["op"] == op]
        large = [case for case in own if case["bytes"] >= LARGE]
        control = ", ".join(_figures(_all(own, CONTROL))[:2])
        lines.append([op, *_summary(own), *_summary(large), control])
    return lines


def _all(cases: Sequence[dict[str, Any]], provider: str) -> Standing:
    results = [CaseResult.from_dict(case) for case in cases]
    return distributions.together(distributions.standings(results, provider))


def _summary(cases: Sequence[dict[str, Any]]) -> list[str]:
    if not cases or not (standing := _all(cases, OURS)).problems:
        return ["0", "–"]
    mean, low, worst = _figures(standing)
    return [str(len(standing.problems)), f"{mean}, {low}, {worst.split()[0]}"]


def regrets(cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line per stratum: the cost of the chosen configurations."""
    rows = []
    for each in regret.standings(CaseResult.from_dict(case) for case in cases):
        missing = f" of {each.missing + len(each.problems)}" if each.missing else ""
        figures = ["–"] * 3
        if each.problems:
            worst = " ".join(f"{problem.value:.2f}" for problem in each.worst)
            figures = [f"{each.mean:.3f}", f"{each.high:.2f}", worst]
        count = f"{len(each.problems)}{missing}"
        rows.append({"op": each.op, "stratum": each.stratum, "count": count, "figures": figures})
    return rows


Pair = tuple[Standing, Standing]  # ours, and the control


def _with_all(pairs: Sequence[Pair]) -> list[Pair]:
    if len(pairs) < 2:
        return list(pairs)
    ours, control = (distributions.together(list(each)) for each in zip(*pairs))
    return [*pairs, (ours, control)]


def _row(ours: Standing, control: Standing) -> dict[str, Any]:
    missing = f" of {ours.missing + len(ours.problems)}" if ours.missing else ""
    return {
        "stratum": ours.stratum,
        "count": f"{len(ours.problems)}{missing}",
        "figures": [*_figures(ours), *_figures(control)],
    }


def _figures(standing: Standing) -> list[str]:
    if not standing.problems:
        return ["–"] * 3
    worst = " ".join(f"{problem.ratio:.2f}" for problem in standing.worst)
    return [f"{standing.mean:.3f}", f"{standing.low:.2f}", worst]


def ends(ratios: Sequence[float]) -> tuple[float, float]:
    """Half powers of two that enclose all ratios and 1."""
    least, most = (math.log2(end(ratios, default=1.0)) for end in (min, max))
    low, high = min(-0.5, math.floor(2 * least) / 2), max(0.5, math.ceil(2 * most) / 2)
    return 2.0**low, 2.0**high


def strips(pairs: Sequence[Pair], label: str, key: str) -> str:
    """A row per stratum on a logarithmic axis: a dot per problem's ratio, and a line for the
    geometric mean; below, smaller and paler, the same for the control."""
    bottom, top, height = 42.0, 8.0, 50.0 + ROW * len(pairs)
    left = 12 + 6.9 * max(len(ours.stratum) for ours, _ in pairs)
    least, most = ends([ratio for pair in pairs for each in pair for ratio in each.ratios])
    with svg.canvas(WIDTH, height) as figure:
        size = ((WIDTH - left - 14) / WIDTH, (height - top - bottom) / height)
        axes = figure.add_axes((left / WIDTH, bottom / height, *size))
        drawing.plain(axes)
        axes.set_xscale("log", base=2)
        axes.set_xlim(least, most)
        axes.set_ylim(len(pairs) - 0.5, -0.5)
        ticks = [tick for tick in drawing.ratio_ticks(least, most) if least <= tick <= most]
        axes.set_xticks(ticks, [drawing.in_words(tick) for tick in ticks])
        axes.xaxis.grid(True, color=ink("grid"), linewidth=0.8)
        axes.tick_params(axis="y", length=0)
        names = [ours.stratum for ours, _ in pairs]
        axes.set_yticks(range(len(pairs)), names, color=ink("ink"), family="DejaVu Sans")
        axes.set_xlabel("× best peer; right of 1 is faster", color=ink("muted"))
        axes.axvline(1, color=ink("ink"), linewidth=1.2)
        for row, (ours, control) in enumerate(pairs):
            _strip(axes, control, row + 0.08, 0.26, "muted", 2.4)
            _strip(axes, ours, row - 0.38, 0.36, "triton", 3.6)
        return svg.text(figure, label, key)


def _strip(
    axes: Any, standing: Standing, above: float, thick: float, colour: str, size: float
) -> None:
    if not standing.problems:
        return
    places = [above + thick * (GOLDEN * n % 1) for n in range(len(standing.ratios))]
    dots = {"linestyle": "none", "marker": "o", "markeredgewidth": 0, "alpha": 0.6}
    axes.plot(standing.ratios, places, color=ink(colour), markersize=size, **dots)
    mean = [standing.mean, standing.mean]
    axes.plot(mean, [above - 0.03, above + thick + 0.03], color=ink("ink"), linewidth=2)
