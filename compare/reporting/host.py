"""Host times of a ``bench --host`` file, for the page and for FACTS.md."""

from __future__ import annotations

import math
from typing import Any

from compare.reporting.sources import Source
from compare.timing.host import PROVIDERS, TORCH

OURS = "triton"
COLUMNS = (TORCH, *(name for name in PROVIDERS if name != TORCH))


def context(source: Source) -> dict[str, Any]:
    """The template's values for the file."""
    return {"name": source.name, "titles": titles(), "rows": rows(source.data)}


def titles() -> list[str]:
    """The titles of the columns after a row's name."""
    return [f"{name}, × torch" if name != TORCH else "torch, µs" for name in COLUMNS]


def rows(data: dict[str, Any]) -> list[dict[str, Any]]:
    """One line per row: its name, torch's microseconds, the others' multiples of it. Wrong ones
    first, then by Triton's multiple of torch's time, the largest first."""
    lines = []
    for row in sorted(data["host"], key=_worst, reverse=True):
        calls = {call["provider"]: call for call in row["calls"]}
        lines.append(
            {
                **{name: row[name] for name in ("op", "dtype", "what")},
                "shape": "×".join(map(str, row["shape"])),
                "options": "".join(f" {name}={value}" for name, value in row["options"].items()),
                "cells": [_cell(calls.get(name)) for name in COLUMNS],
            }
        )
    return lines


def _worst(row: dict[str, Any]) -> float:
    if any(call["problem"] for call in row["calls"]):
        return math.inf
    return against(row).get(OURS, 0.0)


def against(row: dict[str, Any]) -> dict[str, float]:
    """Provider → the multiple of torch's time in a row."""
    return {
        call["provider"]: call["times_torch"][0] for call in row["calls"] if call.get("times_torch")
    }


def _cell(call: dict[str, Any] | None) -> str:
    if call is None:
        return "–"
    if call["problem"]:
        return str(call["problem"])
    if call["provider"] == TORCH:
        return f"{call['microseconds']:.1f}"
    return f"{call['times_torch'][0]:.2f}" if call["times_torch"] else "–"
