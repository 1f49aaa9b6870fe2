"""A benchmark's file for the page: ratios to the best peer, rooflines, sweeps, all times."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import geometric_mean
from typing import Any

from compare.cases import Case
from compare.ops import SPECS
from compare.reporting import figures, samples, spreads
from compare.reporting.figures import Bar, Line, Point, Roof
from compare.reporting.sources import Source
from compare.timing import distributions
from compare.timing.tables import number

OURS, PLAIN = "triton", "cuda"


def context(source: Source, key: str) -> dict[str, Any]:
    """The template's values for the file; ``key`` is the prefix of the figures' ids."""
    everything = [{**case, "anchor": f"{key}c{i}"} for i, case in enumerate(source.data["cases"])]
    cases = fixed(everything)
    swept = [case for case in everything if case.get("sweep")]
    drawn = [case for case in everything if case.get("stratum")]
    chosen = bool(source.data.get("regret"))
    return {
        "name": source.name,
        "cases": len(cases),
        "overview": overview(cases, f"{key}o-") if any(map(ratio, cases)) else "",
        "means": sorted(means(cases), key=lambda mean: float(mean["mean"])),
        "slowest": slowest(cases),
        "ops": _ops(cases, key),
        "rooflines": _rooflines(source.data, cases, key),
        "sweeps": _sweeps(swept, key),
        "samples": [] if chosen else samples.context(drawn, key),
        "regrets": samples.regrets(drawn) if chosen else [],
        "seed": source.data.get("seed"),
    }


def fixed(cases: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cases with the ops' fixed shapes, without those of sweeps and samples."""
    return [case for case in cases if not case.get("sweep") and not case.get("stratum")]


def _ops(cases: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """An op's figures, one per dtype, on one axis; and all its times."""
    ops = []
    for i, op in enumerate(dict.fromkeys(case["op"] for case in cases)):
        own = [case for case in cases if case["op"] == op]
        dtypes = [
            {
                "dtype": dtype,
                "figure": _ratios(op, dtype, group, f"{key}r{i}{dtype}-", axis(own)),
                "rows": [_row(case) for case in group],
            }
            for (_, dtype), group in grouped(own).items()
        ]
        ops.append({"op": op, "dtypes": dtypes})
    return ops


def grouped(cases: Iterable[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The cases, grouped by op and dtype."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for case in cases:
        groups.setdefault((case["op"], case["dtype"]), []).append(case)
    return groups


def entry(case: dict[str, Any], provider: str) -> dict[str, Any] | None:
    """A provider's entry for a case."""
    return next((e for e in case["entries"] if e["provider"] == provider), None)


def ratio(case: dict[str, Any]) -> dict[str, float] | None:
    """Triton's ratio to the fastest peer: value, low and high; None if there is none."""
    own = entry(case, OURS)
    return own.get("speedup") if own and not own["problem"] else None


def axis(cases: Iterable[dict[str, Any]]) -> tuple[float, float]:
    """The ends of the axis: a quarter around 1, or half powers of two around the ratios."""
    values = [r[end] for case in cases if (r := ratio(case)) for end in ("value", "low", "high")]
    least, most = min([0.8, *values]), max([1.25, *values])
    if least >= 0.7 and most <= 1.4:
        return min(least, 0.78), max(most, 1.28)
    least, most = min(least, 0.5), max(most, 2.0)
    return 2.0 ** (math.floor(2 * math.log2(least)) / 2), 2.0 ** (
        math.ceil(2 * math.log2(most)) / 2
    )


def means(cases: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line per op and dtype: the ratios' geometric mean and range, per cent of the limit."""
    rows = []
    for (op, dtype), group in grouped(cases).items():
        values = [r["value"] for case in group if (r := ratio(case))]
        if values:
            ours = [e for case in group if (e := entry(case, OURS)) and not e["problem"]]
            # With a warm cache there is no limit if memory is the limit.
            percents = [p for e in ours if (p := e["percent_of_limit"]) is not None]
            rows.append(
                {
                    "op": op,
                    "dtype": dtype,
                    "cases": len(values),
                    "mean": geometric_mean(values),
                    "least": min(values),
                    "most": max(values),
                    "percents": f"{min(percents):.0f}–{max(percents):.0f}" if percents else "–",
                }
            )
    return rows


def slowest(cases: Iterable[dict[str, Any]]) -> list[dict[str, str]]:
    """One line per case, the smallest ratio to its best peer first."""
    ranked = sorted(
        (r["value"], i, case) for i, case in enumerate(cases) if (r := ratio(case)) is not None
    )
    return [
        {
            "op": case["op"],
            "dtype": case["dtype"],
            "shape": shape(case),
            "anchor": case["anchor"],
            "ratio": f"{value:.2f}",
            "best_peer": case["best_peer"],
        }
        for value, _, case in ranked
    ]


def overview(cases: list[dict[str, Any]], key: str, title: str = "", alone: bool = False) -> str:
    """One figure of all cases: a bar per op and dtype, with minimum and maximum."""
    bars = [Bar(m["dtype"], m["mean"], m["least"], m["most"], group=m["op"]) for m in means(cases)]
    least, most = axis(cases)
    label = (
        "Triton against the fastest peer: geometric means of the speed-ups of every op and dtype"
    )
    width = 560.0 if alone else figures.WIDTH
    return figures.ratios(
        bars, label, key, least=least, most=most, title=title, alone=alone, width=width
    )


def ladder(cases: Iterable[dict[str, Any]], title: str) -> str:
    """One figure of the CUDA side's variants, and of Triton, beside its plain kernel; "" if no case
    has both. A group per case, the slowest first."""
    bars: list[Bar] = []
    for case in cases:
        plain = entry(case, PLAIN)
        if plain is None or plain["problem"]:
            continue
        group = f"{case['op']} {case['dtype']} {shape(case)}"
        timed = [e for e in case["entries"] if not e["problem"] and e is not plain]
        mine = [e for e in timed if e["provider"] == OURS or e["provider"].startswith(PLAIN)]
        for e in sorted(mine, key=lambda e: -e["median"]):
            name = e["provider"].removeprefix(f"{PLAIN}/")
            bars.append(Bar(name, plain["median"] / e["median"], group=group))
    if not bars:
        return ""
    values = [bar.value for bar in bars if bar.value]
    least, most = min(1.0, *values) / 1.1, max(values) * 1.5
    return figures.ratios(
        bars,
        "How many times as fast as its plain kernel every CUDA kernel is",
        "",
        least=least,
        most=most,
        title=title,
        alone=True,
        width=560.0,
        beside="the plain kernel",
    )


def _ratios(
    op: str, dtype: str, cases: list[dict[str, Any]], key: str, ends: tuple[float, float]
) -> str:
    bars = []
    for case in cases:
        if interval := ratio(case):
            bar = Bar(
                shape(case), interval["value"], interval["low"], interval["high"], case["best_peer"]
            )
        else:
            bar = Bar(shape(case), None, note=_why(case))
        bars.append(bar._replace(link=case["anchor"]))
    label = f"{op} {dtype}: how many times as fast as the fastest peer Triton is, by shape"
    return figures.ratios(bars, label, key, least=ends[0], most=ends[1])


def _why(case: dict[str, Any]) -> str:
    """Why there is no ratio, in a few words."""
    own = entry(case, OURS)
    if own is None:
        return "not timed"
    return own["problem"].split(":")[0] or "no peer"


def shape(case: dict[str, Any]) -> str:
    """The case's shape, as tables write it."""
    return "×".join(map(str, case["shape"]))


def _row(case: dict[str, Any]) -> dict[str, Any]:
    """A case: Triton's figures, and those of all providers, the fastest first."""
    ours, speedup = entry(case, OURS), ratio(case)
    timed = sorted((e for e in case["entries"] if not e["problem"]), key=lambda e: e["median"])
    strips = spreads.strips([e.get("microseconds") or [] for e in timed])
    layout = case.get("layout", "contiguous")
    place = (case["op"], case["dtype"], tuple(case["shape"]), layout)
    return {
        "anchor": case.get("anchor", ""),
        "replay": distributions.replay(Case(*place, options=case["options"])),
        "shape": shape(case),
        "options": ", ".join(f"{k}={v}" for k, v in case["options"].items()),
        "limit": number(case["limit"]),
        "unit": case["rate_unit"],
        "best_peer": case["best_peer"] or "–",
        "ours": _times(ours, case) if ours and not ours["problem"] else None,
        "why": "" if speedup else _why(case),
        "all": [{**_times(e, case), "strip": strip} for e, strip in zip(timed, strips)],
        "problems": [(e["provider"], e["problem"]) for e in case["entries"] if e["problem"]],
    }


def _times(e: dict[str, Any], case: dict[str, Any]) -> dict[str, str]:
    speedup, percent = e["speedup"], e["percent_of_limit"]
    if speedup:
        half = (speedup["high"] - speedup["low"]) / 2
        against = f"{speedup['value']:.2f} ±{half:.2f}"
    else:
        against = "best peer" if e["provider"] == case["best_peer"] else "–"
    return {
        "provider": e["provider"],
        "median": number(e["median"]),
        "band": f"{number(e['p20'])}–{number(e['p80'])}",
        "rate": number(e["rate"]),
        "percent": "–" if percent is None else f"{percent:.0f}",
        "against": against,
        "host": f"{e['host']:.0f}",
    }


def work(case: dict[str, Any]) -> tuple[float, float] | None:
    """(operations, bytes) of a call, from the file or else from the op's spec."""
    if case.get("flops") is not None and case.get("bytes"):
        return case["flops"], case["bytes"]
    spec = SPECS.get(case["op"])
    if spec is None:
        return None
    return spec.cost(Case(case["op"], case["dtype"], tuple(case["shape"]), options=case["options"]))


def _rooflines(data: dict[str, Any], cases: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """One figure per dtype: every provider on every case."""
    drawn: list[dict[str, Any]] = []
    ceilings = data["ceilings"]
    if not ceilings:
        return drawn
    for dtype in dict.fromkeys(case["dtype"] for case in cases):
        points = [
            Point(e["provider"], cost[0] / cost[1], cost[0] / e["median"] / 1e6)
            for case in cases
            if case["dtype"] == dtype and (cost := work(case)) and cost[0]
            for e in case["entries"]
            if not e["problem"]
        ]
        if not points:
            continue
        rates = dict(ceilings["rates"])
        if "float16" in rates:  # a float32 product can be three of float16
            rates["float32"] = rates["float16"] / 3
        measured = Roof(ceilings["bandwidth"] / 1e12, _tera(rates.get(dtype)))
        sheet = ceilings.get("datasheet") or {}
        roof = Roof(sheet["bytes"] / 1e12, _tera(sheet.get(dtype))) if "bytes" in sheet else None
        label = f"{dtype}: TFLOP/s over operations a byte, of every provider, under the roofline"
        figure = figures.roofline(points, measured, roof, label, f"{key}l{dtype}-")
        drawn.append({"dtype": dtype, "figure": figure, "points": len(points)})
    return drawn


def _tera(rate: float | None) -> float | None:
    return rate / 1e12 if rate else None


def _sweeps(cases: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """One figure per op, dtype and swept size: the rates of all providers."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for case in cases:
        groups.setdefault((case["op"], case["dtype"], case["sweep"]), []).append(case)
    sweeps = []
    for i, ((op, dtype, quantity), group) in enumerate(groups.items()):
        group = sorted((case for case in group if work(case)), key=lambda case: case["x"])
        # One unit per figure: TFLOP/s if arithmetic is the limit in any case.
        unit = "TFLOP/s" if any(case["rate_unit"] == "TFLOP/s" for case in group) else "GB/s"
        lines: dict[str, list[tuple[float, float, float, float]]] = {}
        limit = []
        for case in group:
            flops, moved = work(case) or (0.0, 0.0)
            amount = flops / 1e6 if unit == "TFLOP/s" else moved / 1e3
            limit.append((case["x"], amount / case["limit"]))
            for e in case["entries"]:
                if not e["problem"]:
                    rates = (amount / e[end] for end in ("median", "p80", "p20"))
                    lines.setdefault(e["provider"], []).append((case["x"], *rates))
        if not lines:
            continue
        name = f"{op} {dtype} over {quantity}"
        drawn = [Line(provider, points) for provider, points in lines.items()]
        label = f"{name}: {unit} of every provider"
        figure = figures.sweep(drawn, limit, quantity, unit, label, f"{key}s{i}-")
        rows = [_row(case) for case in group]
        place = {"op": op, "dtype": dtype, "name": name}
        sweeps.append({**place, "figure": figure, "rows": rows})
    return sweeps
