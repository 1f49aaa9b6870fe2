"""A compile's file for the page: figures of every kernel from both compilers, side by side."""

from __future__ import annotations

from typing import Any

from compare.reporting.sources import Source

SIDES = ("triton", "cuda")


def context(source: Source) -> dict[str, Any]:
    """The template's values for the file."""
    data = source.data
    archs = {
        arch: {
            "limit": data["archs"][arch]["shared_limit"],
            "ops": _ops([row for row in data["rows"] if row["arch"] == arch]),
        }
        for arch in data["archs"]
    }
    problems = [
        {**problem, "where": f"{row['arch']} {row['op']} {row['dtype']} {row['label']}"}
        for row in data["rows"]
        for problem in row["problems"]
    ]
    return {
        "name": source.name,
        "passed": data["passed"],
        "archs": archs,
        "open": next(iter(archs), ""),  # shown first
        "problems": [problem for problem in problems if not problem["accepted"]],
        "accepted": _accepted(problems),
        "not_compiled": data["not_compiled"],
        "kernels": sum(row[side] is not None for row in data["rows"] for side in SIDES),
    }


def _ops(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    lines_of: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        bad = {problem["side"]: not problem["accepted"] for problem in row["problems"]}
        line = {
            "dtype": row["dtype"],
            "label": row["label"],
            **{side: _cells(row[side], bad.get(side)) for side in SIDES},
        }
        lines_of.setdefault(row["op"], []).append(line)
    return lines_of


def _cells(kernel: dict[str, Any] | None, bad: bool | None) -> dict[str, Any] | None:
    """``bad``: None if all is right, False if what is wrong is accepted."""
    if kernel is None:
        return None
    figures = kernel["figures"]
    mark = {None: "", False: "accepted", True: "bad"}[bad]
    if figures is None:
        return {"error": kernel["error"], "mark": mark}
    return {
        "registers": figures["registers"],
        "local": f"{figures['spills']} / {figures['stack']}" if figures["stack"] else "·",
        "shared": figures["shared"] or "·",
        "loads": _accesses(figures["loads"]),
        "stores": _accesses(figures["stores"]),
        "tensor": ", ".join(f"{n} {name}" for name, n in figures["tensor"].items()) or "·",
        "mark": mark,
    }


def _accesses(counts: dict[str, int]) -> str:
    """The number of accesses per width, the widest first."""
    ordered = sorted(
        counts.items(), key=lambda item: -(10**6 if item[0] == "bulk" else int(item[0]))
    )
    return ", ".join(f"{n}×{width}" for width, n in ordered) or "·"


def _accepted(problems: list[dict[str, Any]]) -> dict[str, list[str]]:
    lines_of: dict[str, list[str]] = {}
    for problem in problems:
        if problem["accepted"]:
            line = f"{problem['side']} {problem['where']}: {problem['problem']}"
            lines_of.setdefault(problem["accepted"], []).append(line)
    return lines_of
