"""Comparison of two files of one kind: what became slower, or less exact."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from compare.checking.implementations import MODES
from compare.reporting.checks import WORDS, score
from compare.reporting.sources import Source
from compare.timing import baseline
from compare.timing.tables import number

THRESHOLD = 0.05  # the default of bench --threshold; less is noise


def context(sources: Sequence[Source]) -> list[dict[str, Any]]:
    """Each file compared with the previous one of its kind, if they have anything in common."""
    pairs = []
    for kind, lines_of in (("check", errors), ("bench", times)):
        for then, now in pairwise(source for source in sources if source.kind == kind):
            names: dict[str, Any] = {"kind": kind, "then": then.name, "now": now.name}
            gpus = [each.data["environment"].get("gpu") or "none" for each in (then, now)]
            names["gpus"] = "" if gpus[0] == gpus[1] else " → ".join(gpus)
            if why := _incomparable(then, now):
                pairs.append({**names, "why": why, "lines": []})
            elif lines := lines_of(then.data, now.data):
                tally = {mark: sum(line["mark"] == mark for line in lines) for mark in MARKS}
                pairs.append({**names, "why": "", "lines": lines, **tally})
    return pairs


MARKS = ("bad", "good", "none")  # worse, better, the same


def _incomparable(then: Source, now: Source) -> str:
    if now.kind != "bench" or baseline.mode_of(then.data) == baseline.mode_of(now.data):
        return ""
    modes = [baseline.in_words(baseline.mode_of(each.data)) for each in (then, now)]
    return f"times were taken {modes[0]}, and then {modes[1]}: they are not compared"


def times(then: dict[str, Any], now: dict[str, Any]) -> list[dict[str, str]]:
    """One line per case and provider of ours, or per stratum; the largest slowdown first."""
    changes = baseline.changes(now["cases"], then["cases"])
    return [
        {
            "op": each.op,
            "dtype": each.dtype,
            "place": each.stratum or "×".join(map(str, each.shape)),
            "provider": each.provider,
            "then": "" if each.then is None else number(each.then),
            "now": "" if each.now is None else number(each.now),
            "change": f"{each.times:.2f}",
            "mark": _mark(each.times - 1, THRESHOLD),
        }
        for each in sorted(changes, key=lambda each: -each.times)
    ]


def _mark(worse: float, noise: float = 0.0) -> str:
    return "bad" if worse > noise else "good" if worse < -noise else "none"


def errors(then: dict[str, Any], now: dict[str, Any]) -> list[dict[str, str]]:
    """One line per op, dtype and implementation; the largest loss of accuracy first."""
    before = {(row["op"], row["dtype"]): row for row in then["rows"]}
    lines = list(_errors(before, now["rows"]))
    return [line for _, line in sorted(lines, key=lambda each: each[0])]


def _errors(
    before: dict[tuple[str, str], dict[str, Any]], rows: Iterable[dict[str, Any]]
) -> Iterable[tuple[tuple[bool, float], dict[str, str]]]:
    for row in rows:
        old = before.get((row["op"], row["dtype"]))
        for mode in MODES if old else ():
            if old is None or mode not in old["runs"] or mode not in row["runs"]:
                continue
            worsts = [(float(each["worst"][mode]), _wrong(each, mode)) for each in (old, row)]
            texts = [score(each["worst"][mode], each["unit"]) for each in (old, row)]
            if old["unit"] != row["unit"]:
                mark, worse = "none", 0.0  # judged by another rule
            elif worsts[0][1] != worsts[1][1]:
                mark, worse = ("bad", float("inf")) if worsts[1][1] else ("good", -1.0)
            elif texts[0] == texts[1]:
                mark, worse = "none", 0.0
            else:
                worse = worsts[1][0] - worsts[0][0]
                mark = _mark(worse)
            line = {"op": row["op"], "dtype": row["dtype"], "place": WORDS[mode], "mark": mark}
            yield (mark != "bad", -worse), {**line, "then": texts[0], "now": texts[1]}


def _wrong(row: dict[str, Any], mode: str) -> bool:
    return any(m["implementation"].split("/")[0] == mode for m in row["mismatches"])
