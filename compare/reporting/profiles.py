"""A profile's file for the page: where the time of an op's calls goes, by provider and kernel."""

from __future__ import annotations

import shlex
from typing import Any

from compare.cases import Case
from compare.profiling import tables
from compare.profiling.counters import METRICS, Counted
from compare.profiling.reading import Kernel, Profile
from compare.reporting.sources import Source


def context(source: Source) -> dict[str, Any]:
    """The template's values for the file."""
    data = source.data
    case = Case(data["op"], data["dtype"], tuple(data["shape"]), options=data["options"])
    profiles = tables.fastest_first(map(_profile, data["profiles"]))
    counted = [
        (each["provider"], [tables.counted_line(Counted(**kernel)) for kernel in each["kernels"]])
        for each in data["counters"]
    ]
    return {
        "name": source.name,
        **{each: data[each] for each in ("op", "dtype", "steps", "calls", "problems")},
        "shape": "×".join(map(str, case.shape)),
        "options": "".join(f" {name}={value}" for name, value in case.options.items()),
        "replay": _replay(case, [profile.provider for profile in profiles]),
        "titles": _titles(tables.OVERVIEW),
        "providers": [tables.overview_line(profile) for profile in profiles],
        "kernels": [(profile.provider, tables.kernel_lines(profile)) for profile in profiles],
        "metrics": _titles(METRICS.values()),
        "counted": counted if any(lines for _, lines in counted) else [],
        "uncounted": {e["provider"]: e["problem"] for e in data["counters"] if e["problem"]},
    }


def _profile(row: dict[str, Any]) -> Profile:
    return Profile(**{**row, "kernels": [Kernel(**kernel) for kernel in row["kernels"]]})


def _titles(names: Any) -> list[str]:
    return [name.replace("\n", " ") for name in names]


def _replay(case: Case, names: list[str]) -> str:
    """The command line that profiles the case again."""
    words = ["python", "-m", "compare", "profile", *case.words, "--dtype", case.dtype]
    words += ["--shape", ",".join(map(str, case.shape))]
    return shlex.join([*words, "--providers", ",".join(names)])
