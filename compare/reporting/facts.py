"""The tables of docs/FACTS.md that are made from files.

A table is the text between ``<!-- table: bench -->`` and ``<!-- end of table -->``. The rest of the
document is left unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from compare.checking.implementations import MODES
from compare.models.processes import Raced, mean
from compare.models.timing import INDUCTOR, OURS, Request
from compare.mutation.tables import COLUMNS
from compare.reporting import checks, host, samples, speeds
from compare.reporting.sources import COMMANDS, ReportError, Source
from compare.timing.engine import CONTROL

MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end of table -->)", re.S)
EXAMPLE = "<!-- table: check -->\n<!-- end of table -->"


def rewritten(text: str, sources: Sequence[Source]) -> str:
    """The document with new tables.

    Raises:
        ReportError: the document has no table; one has an unknown name, or no or an unusable file.
    """

    def table(match: re.Match[str]) -> str:
        begin, kind, end = match.groups()
        if kind not in TABLES:
            raise ReportError(f"no table {kind!r}; the tables are {', '.join(TABLES)}")
        return f"{begin}{_table(kind, sources)}\n{end}"

    if not MARKED.search(text):
        raise ReportError(f"--facts needs a file with places for tables, as\n{EXAMPLE}")
    return MARKED.sub(table, text)


def _table(kind: str, sources: Sequence[Source]) -> str:
    together: list[str] = []
    made_by = SAMPLES if kind == "sample" else kind
    for source in sources:
        if source.kind != made_by:
            continue
        try:
            lines = TABLES[kind](source.data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ReportError(
                f"{source.name}: not as `{COMMANDS[made_by]}` writes it "
                f"({type(error).__name__}: {error}); make it again"
            ) from error
        if kind in TOGETHER:
            together += lines[2:] if together else lines
        elif lines:  # a file with only sweeps or samples has no speed-ups
            return "\n".join([*lines, "", f"From `{source.name}`: {_versions(source.data)}."])
    if together:
        return "\n".join(together)
    raise ReportError(f"no file for the table {kind!r}: {COMMANDS[made_by]}")


def _versions(data: dict[str, Any]) -> str:
    versions = data["environment"]
    names = ("python", "torch", "triton", "numpy")
    words = [versions.get("date") or data.get("date") or ""]
    words = [word[:10] for word in words if word]
    if versions["gpu"] != "none":
        words.append(versions["gpu"])
    return ", ".join([*words, *(f"{name} {versions[name]}" for name in names if name in versions)])


def _rows(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    rule = ["---"] * len(titles)
    return ["| " + " | ".join(map(str, row)) + " |" for row in (titles, rule, *rows)]


def _check(data: dict[str, Any]) -> list[str]:
    """One line per op, for all its dtypes: the worst error in each mode."""
    modes = [mode for mode in MODES if any(mode in row["runs"] for row in data["rows"])]
    ops: dict[str, list[dict[str, Any]]] = {}
    for row in data["rows"]:
        ops.setdefault(row["op"], []).append(row)
    lines = []
    for op, rows in ops.items():
        failing = [f"{row['dtype']}: {row['verdict']}" for row in rows if not row["passed"]]
        lines.append(
            [
                op,
                len(rows),
                sum(row["cases"] for row in rows),
                sum(sum(row["runs"].values()) for row in rows),
                *(_worst(rows, mode) for mode in modes),
                ", ".join(dict.fromkeys(row["coverage"] for row in rows)),
                "; ".join(failing) or "pass",
            ]
        )
    titles = (checks.WORDS[mode] for mode in modes)
    return _rows(["op", "dtypes", "cases", "runs", *titles, "coverage", "verdict"], lines)


def _worst(rows: list[dict[str, Any]], mode: str) -> str:
    ran = [row for row in rows if mode in row["runs"]]
    if not ran:
        return "–"
    worst = max(ran, key=lambda row: float(row["worst"][mode]))
    return checks.score(worst["worst"][mode], worst["unit"])


def _speed(data: dict[str, Any]) -> list[str]:
    """One line per op, one column per dtype: the speed-ups' geometric mean, minimum and maximum."""
    means = speeds.means(speeds.fixed(data["cases"]))
    if not means:
        return []
    dtypes = list(dict.fromkeys(mean["dtype"] for mean in means))
    cells = {
        (mean["op"], mean["dtype"]): f"{mean['mean']:.2f} ({mean['least']:.2f}–{mean['most']:.2f})"
        for mean in means
    }
    ops = dict.fromkeys(mean["op"] for mean in means)
    return _rows(["op", *dtypes], [[op, *(cells.get((op, d), "–") for d in dtypes)] for op in ops])


def _host(data: dict[str, Any]) -> list[str]:
    """One line per op: for each kind of call the smallest and largest multiple of torch's time."""
    calls = list(dict.fromkeys(row["what"] for row in data["host"]))
    sides = list(dict.fromkeys(name for row in data["host"] for name in host.against(row)))
    ops: dict[str, list[dict[str, Any]]] = {}
    for row in data["host"]:
        ops.setdefault(row["op"], []).append(row)

    def cell(rows: list[dict[str, Any]], what: str, side: str) -> str:
        values = [
            each[side]
            for row in rows
            if row["what"] == what and side in (each := host.against(row))
        ]
        return _between(values)

    titles = [f"{side}, {what}" for side in sides for what in calls]
    lines = [[op, *(cell(rows, w, s) for s in sides for w in calls)] for op, rows in ops.items()]
    return _rows(["op", *titles], lines)


def _between(values: list[float]) -> str:
    if not values:
        return "–"
    least, most = f"{min(values):.1f}", f"{max(values):.1f}"
    return least if least == most else f"{least}–{most}"


def _sample(data: dict[str, Any]) -> list[str]:
    """One line per op: the ratios to the fastest peer of all drawn problems, of the larger ones,
    and of the control."""
    rows = samples.summaries(data.get("cases", []))
    if not rows:
        return []
    large = f"from {samples.LARGE // 10**6} MB"
    titles = ["op", "problems", FIGURES, large, FIGURES, "control: mean, 5 %", "seed, date, GPU"]
    versions = data["environment"]
    place = f"{data['seed']}, {versions['date'][:10]}, {versions['gpu']}"
    given = " ".join([*(data.get("dtypes") or ()), *(data.get("arg") or ())])
    return _rows(titles, [[f"{op} {given}".strip(), *row, place] for op, *row in rows])


def _long(data: dict[str, Any]) -> list[str]:
    """One line per claim, with its counts."""
    device = "CPU, " if data["environment"]["gpu"] == "none" else ""
    when = f"{device}{_versions(data)}; {data['seconds']:.0f} s in all"
    rows = [
        [
            claim,
            ", ".join(f"{number} {name}" for name, number in numbers.items()),
            f"`{data['command']}`",
            when,
        ]
        for claim, numbers in data["figures"].items()
    ]
    return _rows(["claim", "figure", "command", "where, when"], rows)


def _mutate(data: dict[str, Any]) -> list[str]:
    """One line per source file: the number of planted faults, and how their trials ended."""
    rows = [
        [f"`{file}`", sum(ends.values()), *(ends.get(end, 0) for end in COLUMNS)]
        for file, ends in data["files"].items()
    ]
    rows.append(["all", *(sum(column) for column in zip(*(counts for _, *counts in rows)))])
    return _rows(["file", "mutants", *COLUMNS], rows)


def _models(data: dict[str, Any]) -> list[str]:
    """One line per model, and one for all: times and speeds of its processes."""
    models = [Raced(**{**row, "request": Request(**row["request"])}) for row in data["rows"]]
    titles = ["model", "pass", "kernels", "torch.compile, µs", "speed", "least, most", "control"]
    place = f"{data['date'][:10]}, {data['environment']['gpu']}"
    rows = []
    for each in models:
        ours, control = each.speeds.get(OURS, []), each.speed(CONTROL)
        time = mean(each.microseconds.get(INDUCTOR, []))
        rows.append(
            [
                each.request.name,
                "training" if each.request.training else "forward",
                each.kernels,
                "–" if time is None else f"{time:.0f}",
                "–" if not ours else f"{mean(ours):.3f}",
                "–" if not ours else f"{min(ours):.3f}, {max(ours):.3f}",
                "–" if control is None else f"{control:.3f}",
                place,
            ]
        )
    speeds = [speed for each in models if (speed := each.speed()) is not None]
    controls = [speed for each in models if (speed := each.speed(CONTROL)) is not None]
    if speeds and controls:
        extremes = f"{min(speeds):.3f}, {max(speeds):.3f}"
        total = [f"{mean(speeds):.3f}", extremes, f"{mean(controls):.3f}", place]
        rows.append(["all", rows[-1][1], "", "", *total])
    return _rows([*titles, "date, GPU"], rows)


# Kind of file → its table, as lines of Markdown.
TABLES: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "check": _check,
    "bench": _speed,
    "sample": _sample,
    "host": _host,
    "long": _long,
    "mutate": _mutate,
    "models": _models,
}
FIGURES = "mean, 5 %, worst"
SAMPLES = "bench"  # the kind of the files of samples
TOGETHER = ("sample", "long", "models")  # all files in one table; each line has its own versions
