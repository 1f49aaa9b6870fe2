"""A check's file for the page: the verdict matrix, the mismatches, the sizes of errors."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from compare.cases import DTYPES
from compare.checking.implementations import MODES
from compare.reporting import figures
from compare.reporting.sources import Source

SHOWN = 10  # mismatches per op and dtype
WORDS = {
    "triton-interpreted": "Triton, interpreted",
    "triton-compiled": "Triton, compiled",
    "cuda-host": "CUDA, on the CPU",
    "cuda-gpu": "CUDA, on the GPU",
}


def context(source: Source, key: str) -> dict[str, Any]:
    """The template's values for the file; ``key`` is the prefix of the figures' ids."""
    data = source.data
    rows = data["rows"]
    modes = [mode for mode in MODES if any(mode in row["runs"] for row in rows)]
    dtypes = [name for name in DTYPES if any(row["dtype"] == name for row in rows)]
    by = {(row["op"], row["dtype"]): row for row in rows}
    return {
        "name": source.name,
        "passed": data["passed"],
        "failing": sum(not row["passed"] for row in rows),
        "rows": len(rows),
        "cases": sum(row["cases"] for row in rows),
        "runs": sum(sum(row["runs"].values()) for row in rows),
        "dtypes": dtypes,
        "matrix": [
            {
                "op": op,
                "lines": [
                    {
                        "title": WORDS[mode],
                        "cells": [_cell(by.get((op, dtype)), mode) for dtype in dtypes],
                    }
                    for mode in modes
                ],
            }
            for op in dict.fromkeys(row["op"] for row in rows)
        ],
        "worst": [
            {"op": op, "cells": [_worst(by.get((op, dtype))) for dtype in dtypes]}
            for op in dict.fromkeys(row["op"] for row in rows)
        ],
        "nearest": nearest(rows),
        "bounded": any(row["unit"] != "ulp" for row in rows),
        "not_run": {WORDS.get(mode, mode): why for mode, why in data["not_run"].items()},
        "missing": data["required_but_missing"],
        "unlaunched": [row for row in rows if row.get("launches") == 0],
        "table": [_line(row) for row in rows],
        "mismatches": [_mismatches(row) for row in rows if row["mismatches"]],
        "counted": any(row.get("errors") for row in rows),
        "exact": _exact(rows),
        "figures": _figures(rows, key),
    }


def _cell(row: dict[str, Any] | None, mode: str) -> dict[str, str]:
    """✓ or ✗ with the worst error; – if the op lacks the dtype, n/a if nothing ran."""
    if row is None:
        return {"kind": "none", "text": "–"}
    if mode not in row["runs"]:
        return {"kind": "none", "text": "n/a"}
    wrong = any(m["implementation"].split("/")[0] == mode for m in row["mismatches"])
    return {"kind": "bad" if wrong else "good", "text": score(row["worst"][mode], row["unit"])}


def _worst(row: dict[str, Any] | None) -> dict[str, str]:
    """The cell for all implementations together."""
    modes = [] if row is None else [mode for mode in MODES if mode in row["runs"]]
    if row is None or not modes:
        return _cell(row, "")
    wrong = bool(row["mismatches"])
    worst = max((row["worst"][mode] for mode in modes), key=float)
    return {"kind": "bad" if wrong else "good", "text": score(worst, row["unit"])}


def nearest(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """One line per op, dtype and implementation: wrong ones first, then those nearest to their
    bounds. Exact ones without an error are left out."""
    ranked = []
    for row in rows:
        for mode in row["runs"]:
            worst, cell = float(row["worst"][mode]), _cell(row, mode)
            if worst or cell["kind"] == "bad":
                line = {"op": row["op"], "dtype": row["dtype"], "mode": WORDS[mode], **cell}
                if allowed := row.get("max_ulps"):
                    worst /= allowed
                    line["text"] += f" of {allowed:g}"
                ranked.append(((cell["kind"] != "bad", -worst), line))
    return [line for _, line in sorted(ranked, key=lambda each: each[0])]


def score(worst: Any, unit: str) -> str:
    """The worst error, as the command prints it."""
    value = float(worst)  # the file has infinity as a string
    if not math.isfinite(value):
        return "wrong"
    return f"{value:.0f} ulp" if unit == "ulp" else f"{value:.2f} b"


def _line(row: dict[str, Any]) -> dict[str, Any]:
    agree = {None: "–", True: "bitwise", False: "no"}[row["triton_equals_cuda"]]
    return {**row, "agree": agree, "all_runs": sum(row["runs"].values())}


def _mismatches(row: dict[str, Any]) -> dict[str, Any]:
    shown = row["mismatches"][:SHOWN]
    return {**row, "mismatches": shown, "more": len(row["mismatches"]) - len(shown)}


def _histograms(row: dict[str, Any], measure: str) -> dict[str, dict[float, int]]:
    """Implementation → upper end of a bin → elements."""
    return {
        name: {float(edge): n for edge, n in measures[measure].items()}
        for name, measures in row.get("errors", {}).items()
        if measures.get(measure)
    }


def _exact(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """A table of elements that must equal the oracle's bits, or nearly: a line per op, dtype and
    mode, a column per bin. A bin is right or wrong as a whole, because the tolerance is an edge."""
    lines, edges = [], {0.0}
    for row in rows:
        modes: dict[str, Counter[float]] = {}
        for name, histogram in _histograms(row, "exact_ulp").items():
            modes.setdefault(name.split("/")[0], Counter()).update(histogram)
            edges |= set(histogram)
        allowed = row.get("max_ulps") or 0.0
        lines += [
            (row["op"], row["dtype"], WORDS[mode], modes[mode], allowed)
            for mode in MODES
            if mode in modes
        ]
    if not lines:
        return None
    ordered = sorted(edges)
    return {
        "titles": [_range(edge) for edge in ordered],
        "elements": sum(sum(line[3].values()) for line in lines),
        "wrong": sum(n for *_, own, most in lines for e, n in own.items() if _is_wrong(e, most)),
        "allowed": any(line[4] for line in lines),
        "ops": _grouped(
            [
                {
                    **{"op": op, "dtype": dtype, "mode": mode, "allowed": f"{most:g}"},
                    "counts": [(own[e], bool(own[e]) and _is_wrong(e, most)) for e in ordered],
                }
                for op, dtype, mode, own, most in lines
            ]
        ),
    }


def _is_wrong(edge: float, allowed: float) -> bool:
    """Whether the elements of the bin with this upper end exceed the tolerance."""
    return edge == math.inf or edge / 2 >= allowed if edge else False


def _grouped(lines: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault(line["op"], []).append(line)
    return groups


def _range(edge: float) -> str:
    """The whole numbers in the bin with this upper end: 0, 1, 2, 3–4, 5–8."""
    if edge == math.inf:
        return "> 65536, inf, NaN"
    if edge in (0, 1, 2):
        return f"{edge:.0f}"
    return f"{edge:g}" if edge < 1 else f"{edge / 2 + 1:.0f}–{edge:.0f}"


def _figures(rows: list[dict[str, Any]], key: str) -> list[dict[str, str]]:
    """One figure per op and dtype that has a bound."""
    drawn = []
    for i, row in enumerate(rows):
        ulps, fractions = _histograms(row, "ulp"), _histograms(row, "fraction")
        if not ulps:
            continue
        name = f"{row['op']} {row['dtype']}"
        bounds: Counter[float] = Counter()
        for histogram in _histograms(row, "bound_ulp").values():
            bounds.update(histogram)
        label = f"{name}: how large the errors are in ULPs, and beside each element's own bound"
        figure = figures.errors(ulps, dict(bounds), fractions, label, f"{key}e{i}-")
        drawn.append({"op": row["op"], "dtype": row["dtype"], "name": name, "figure": figure})
    return drawn
