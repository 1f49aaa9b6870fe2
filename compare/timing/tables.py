"""What benchmarks look like: a block a case, and a line an op at the end."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from compare.timing.bench import CaseResult, Entry, geometric_mean
from compare.timing.providers import PEERS

CLOSE = 0.02  # of a ratio: not told from 1 by colour


def console() -> Console:
    """Standard output; a log file has room, where rich would assume 80 columns."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(width=120, highlight=False)


def block(result: CaseResult) -> Group:
    """One case: a line a provider, the fastest first."""
    shape = "×".join(map(str, result.case.shape))
    options = "".join(f" {name}={value}" for name, value in result.case.options.items())
    name = f"{result.case.op} {result.case.dtype} {shape}{options}"
    table = Table(
        title=f"{name}, limit {number(result.limit)} µs",
        title_justify="left",
        title_style="bold",
        box=None,
        header_style="dim",
        padding=(0, 2, 0, 0),
    )
    table.add_column("", no_wrap=True, min_width=20)
    for name in ("µs", "20–80 %", result.rate_unit, "% of limit", "× best peer", "host µs"):
        table.add_column(name, justify="right", no_wrap=True)
    timed = sorted((e for e in result.entries if not e.problem), key=_median)
    for entry in timed:
        gpu = entry.timing.gpu
        table.add_row(
            entry.provider,
            number(gpu.median),
            f"{number(gpu.percentile(20))}–{number(gpu.percentile(80))}",
            number(entry.rate or 0.0),
            f"{entry.percent_of_limit or 0.0:.0f}",
            _speedup(entry, result.best_peer),
            f"{entry.timing.host:.0f}",
        )
    problems = [
        f"{entry.provider:<20}  {entry.problem}" for entry in result.entries if entry.problem
    ]
    return Group(table, *(Text(line, style="yellow") for line in problems), "")


def _median(entry: Entry) -> float:
    return entry.timing.gpu.median


def _speedup(entry: Entry, best_peer: str) -> str:
    if entry.provider == best_peer:
        return "best peer"
    if entry.speedup is None:
        return ""
    value, low, high = entry.speedup
    colour = "green" if low > 1 + CLOSE else "red" if high < 1 - CLOSE else "default"
    return f"[{colour}]{value:.2f}[/] ±{(high - low) / 2:.2f}"


def number(value: float) -> str:
    """Three or four digits, without exponents."""
    digits = 0 if value >= 1000 else 1 if value >= 100 else 2 if value >= 1 else 3
    return f"{value:.{digits}f}"


def summary(results: list[CaseResult], provider: str = "triton") -> Table:
    """A line an op and dtype: how the provider stands against the fastest peer of each case."""
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("op", "dtype"):
        table.add_column(name, no_wrap=True)
    for name in ("cases", f"{provider} × best peer", "least", "most", "% of limit"):
        table.add_column(name, justify="right", no_wrap=True)
    groups: dict[tuple[str, str], list[Entry]] = {}
    for result in results:
        own = [e for e in result.entries if e.provider == provider and e.speedup]
        groups.setdefault((result.case.op, result.case.dtype), []).extend(own)
    for (op, dtype), entries in groups.items():
        if entries:
            ratios = [e.speedup.value for e in entries if e.speedup]
            percents = [e.percent_of_limit or 0.0 for e in entries]
            table.add_row(
                op,
                dtype,
                str(len(entries)),
                f"{geometric_mean(ratios):.2f}",
                f"{min(ratios):.2f}",
                f"{max(ratios):.2f}",
                f"{min(percents):.0f}–{max(percents):.0f}",
            )
    return table


def regressions(
    results: list[dict[str, Any]], baseline: list[dict[str, Any]], threshold: float
) -> list[str]:
    """Where one of ours takes longer than in the baseline, by more than the threshold.

    Times are compared as multiples of the peer that was best then, if it was timed both times:
    that cancels the machine's state. Else the medians are compared.
    """
    lines = []
    before = {_key(case): case for case in baseline}
    for case in results:
        old = before.get(_key(case))
        if old is None:
            continue
        then, now = _medians(old), _medians(case)
        peer = old["best_peer"]
        drift = now[peer] / then[peer] if peer in then and peer in now else 1.0
        for provider in now:
            if provider in PEERS or provider not in then:
                continue
            slower = now[provider] / then[provider] / drift - 1
            if slower > threshold:
                name = f"{case['op']} {case['dtype']} {'×'.join(map(str, case['shape']))}"
                lines.append(f"{name}, {provider}: {100 * slower:.0f} % slower than the baseline")
    return lines


def _key(case: dict[str, Any]) -> tuple[Any, ...]:
    return case["op"], case["dtype"], tuple(case["shape"]), str(sorted(case["options"].items()))


def _medians(case: dict[str, Any]) -> dict[str, float]:
    return {e["provider"]: e["median"] for e in case["entries"] if not e["problem"]}
