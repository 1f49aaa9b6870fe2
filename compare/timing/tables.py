"""Tables of benchmarks: a block per case, a table per sweep, and a line per op at the end."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from compare.timing import nvml
from compare.timing.gpu import Ceilings
from compare.timing.results import HOST_BOUND, CaseResult, Entry, geometric_mean

CLOSE = 0.02  # a ratio this close to 1 gets no colour


def console() -> Console:
    """Standard output; a log file is wider than rich's default of 80 columns."""
    plain = Console(highlight=False)
    return plain if plain.is_terminal else Console(width=120, highlight=False)


def progress(out: Console) -> Progress:
    """A bar with what is done, how much, and the remaining time."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    return Progress(*columns, TimeRemainingColumn(), console=out, transient=True)


def heading(ceilings: Ceilings, state: dict[str, Any]) -> str:
    """The device's measured rates, and its state."""
    rates = "".join(f", {k} {v / 1e12:.0f} TFLOP/s" for k, v in ceilings.rates.items())
    clock, power = (state.get(name) for name in ("sm_clock_mhz", "power_w"))
    told = f"; {clock:.0f} MHz, {power:.0f} W" if clock and power else ""
    return f"{ceilings.name}: copy {ceilings.bandwidth / 1e9:.0f} GB/s{rates}{told}\n"


def block(result: CaseResult, values: bool = False) -> Group:
    """One case: a line per provider, the fastest first; optionally with their first results."""
    shape = "×".join(map(str, result.case.shape))
    options = "".join(f" {name}={value}" for name, value in result.case.options.items())
    name = f"{result.case.op} {result.case.dtype} {shape}{options}"
    table = Table(
        title=f"{name}, limit {number(result.limit)} µs{_capped(result)}",
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
            "" if entry.percent_of_limit is None else f"{entry.percent_of_limit:.0f}",
            _speedup(entry, result.best_peer),
            f"{entry.timing.host:.0f}",
        )
    problems = [
        f"{entry.provider:<20}  {entry.problem}" for entry in result.entries if entry.problem
    ]
    if result.throttled:
        problems.append(f"the GPU was slowed meanwhile: {', '.join(result.throttled)}")
    shown = [
        f"{entry.provider:<20}  {', '.join(f'{value:.6g}' for value in entry.first_values)}"
        for entry in result.entries
        if values and entry.first_values
    ]
    return Group(table, *(Text(line, style="yellow") for line in problems), *map(Text, shown), "")


def _capped(result: CaseResult) -> str:
    return f" [dim]({nvml.POWER_CAP})[/]" if nvml.POWER_CAP in result.throttling else ""


LABEL, CELL = 12, 13  # columns of a size and of a provider's cell
SHORT = ((HOST_BOUND, HOST_BOUND), ("wrong: ", "wrong"))  # the beginning of a problem → its cell


def sweep(results: list[CaseResult], width: int) -> Group:
    """One sweep: a row per size, a column per provider with its rate and the best peer's ratio."""
    first = results[0]
    # One unit for all rows: TFLOP/s if arithmetic is the limit in any row.
    unit = next((r.rate_unit for r in results if r.rate_unit == "TFLOP/s"), "GB/s")
    names = list(dict.fromkeys(e.provider for result in results for e in result.entries))
    fitting = max(1, (width - LABEL) // CELL)
    lines: list[Any] = []
    for start in range(0, len(names), fitting):
        table = Table(
            title=f"{first.case.op} {first.case.dtype}, {unit} and × best peer",
            title_justify="left",
            title_style="bold",
            box=None,
            header_style="dim",
            padding=(0, 2, 0, 0),
        )
        table.add_column(first.sweep, justify="right", no_wrap=True)
        for name in names[start : start + fitting]:
            table.add_column(name.replace("/", "/\n"), justify="right")
        for result in results:
            entries = {entry.provider: entry for entry in result.entries}
            cells = [
                _cell(result, entries.get(name), unit) for name in names[start : start + fitting]
            ]
            table.add_row(str(result.x), *cells)
        lines += [table, ""]
    problems: dict[str, list[int]] = {}
    for result in results:
        if result.throttled:
            what = f"the GPU was slowed meanwhile: {', '.join(result.throttled)}"
            problems.setdefault(what, []).append(result.x)
        for entry in result.entries:
            if entry.problem:
                problems.setdefault(f"{entry.provider}: {entry.problem}", []).append(result.x)
    for problem, sizes in problems.items():
        lines.append(Text(f"{first.sweep} {', '.join(map(str, sizes))}  {problem}", "yellow"))
    return Group(*lines, *([""] if problems else []))


def _cell(result: CaseResult, entry: Entry | None, unit: str) -> str:
    if entry is None:
        return ""
    if entry.problem:
        short = [cell for begin, cell in SHORT if begin in entry.problem]
        return f"[yellow]{(*short, 'failed')[0]}[/]"
    rate = number(result.rates(entry)[unit])
    if entry.provider == result.best_peer:
        return f"{rate} best"
    return f"{rate} {_coloured(entry)}" if entry.speedup else rate


def _median(entry: Entry) -> float:
    return entry.timing.gpu.median


def _speedup(entry: Entry, best_peer: str) -> str:
    if entry.provider == best_peer:
        return "best peer"
    if entry.speedup is None:
        return ""
    return f"{_coloured(entry)} ±{(entry.speedup.high - entry.speedup.low) / 2:.2f}"


def _coloured(entry: Entry) -> str:
    assert entry.speedup is not None
    value, low, high = entry.speedup
    colour = "green" if low > 1 + CLOSE else "red" if high < 1 - CLOSE else "default"
    return f"[{colour}]{value:.2f}[/]"


def number(value: float) -> str:
    """The number with three or four digits, without an exponent."""
    digits = 0 if value >= 1000 else 1 if value >= 100 else 2 if value >= 1 else 3
    return f"{value:.{digits}f}"


def summary(results: list[CaseResult], provider: str = "triton") -> Table:
    """A line per op, dtype and sweep: the provider's ratios to each case's fastest peer."""
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    groups: dict[tuple[str, str, str], list[Entry]] = {}
    for result in results:
        own = [e for e in result.entries if e.provider == provider and e.speedup]
        place = result.case.op, result.case.dtype, result.sweep
        groups.setdefault(place, []).extend(own)
    names = ("op", "dtype", "sweep") if any(place[2] for place in groups) else ("op", "dtype")
    for column in names:
        table.add_column(column, no_wrap=True)
    for column in ("cases", f"{provider} × best peer", "least", "most", "% of limit"):
        table.add_column(column, justify="right", no_wrap=True)
    for place, entries in groups.items():
        if entries:
            ratios = [e.speedup.value for e in entries if e.speedup]
            percents = [e.percent_of_limit for e in entries if e.percent_of_limit is not None]
            table.add_row(
                *place[: len(names)],
                str(len(entries)),
                f"{geometric_mean(ratios):.2f}",
                f"{min(ratios):.2f}",
                f"{max(ratios):.2f}",
                f"{min(percents):.0f}–{max(percents):.0f}" if percents else "",
            )
    return table
