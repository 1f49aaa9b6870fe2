"""A mutate's file for the page: how many planted faults the check found, and the survivors."""

from __future__ import annotations

from collections import Counter
from typing import Any

from compare.mutation.tables import COLUMNS
from compare.reporting.sources import Source


def context(source: Source) -> dict[str, Any]:
    """The template's values for the file."""
    data = source.data
    survivors = [row for row in data["rows"] if row["end"] == "survived"]
    return {
        "name": source.name,
        "ops": " ".join(data["ops"]),
        "passed": data["passed"],
        "interrupted": data["interrupted"],
        "score": f"{100 * data['score']:.1f} %",
        "killed": data["ends"]["killed"],
        "tried": sum(sum(ends.values()) for ends in data["files"].values()),
        "ends": COLUMNS,
        "files": {file: Counter(ends) for file, ends in data["files"].items()},
        "open": [_survivor(row) for row in survivors if not row["explained"]],
        "explained": [_survivor(row) for row in survivors if row["explained"]],
        "stale": data["stale"],
    }


def _survivor(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "where": f"{row['file']}:{row['line']}", **(row["explained"] or {})}
