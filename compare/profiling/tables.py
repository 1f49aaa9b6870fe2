"""The tables of profile: providers, their kernels, counters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from compare.profiling.counters import CONFLICTS, METRICS, Counted, Counters
from compare.profiling.reading import Profile, short
from compare.timing.tables import number

MOST = 8  # kernels shown per provider
OVERVIEW = (
    *("a call", "GPU µs", "kernels", "host µs"),
    *("first kernel\nafter µs", "GPU waits\nbetween"),
)


def fastest_first(profiles: Iterable[Profile]) -> list[Profile]:
    """Sorted by GPU time; those without recorded kernels come last."""
    return sorted(profiles, key=lambda profile: (not profile.kernels, profile.gpu))


def overview(profiles: Sequence[Profile]) -> Table:
    """One line per provider, the fastest on the GPU first."""
    table = _table(*OVERVIEW)
    for each in fastest_first(profiles):
        table.add_row(*overview_line(each))
    return table


def overview_line(profile: Profile) -> list[str]:
    """A provider's name, and its figures in the order of ``OVERVIEW``."""
    return [
        profile.provider,
        number(profile.gpu) if profile.kernels else "none seen",
        number_of(sum(kernel.count for kernel in profile.kernels)),
        number(profile.host),
        "–" if profile.first is None else number(profile.first),
        "–" if profile.idle is None else f"{100 * profile.idle:.0f} %",
    ]


def kernels(profiles: Sequence[Profile]) -> Table:
    """One line per kernel under its provider, the longest GPU time first."""
    table = _table("kernel", "a call", "µs", "share")
    for each in fastest_first(profiles):
        table.add_row(Text(each.provider, style="bold"))
        for name, *figures in kernel_lines(each)[:MOST]:
            table.add_row(Text("  " + name), *figures)
        if rest := each.kernels[MOST:]:
            spent = sum(kernel.microseconds for kernel in rest)
            table.add_row(f"  {len(rest)} more", "", number(spent), _share(spent, each))
    return table


def kernel_lines(profile: Profile) -> list[list[str]]:
    """For every kernel: name, launches per call, time per call, percentage of all kernels' time."""
    return [
        [
            short(kernel.name),
            number_of(kernel.count),
            number(kernel.microseconds),
            _share(kernel.microseconds, profile),
        ]
        for kernel in profile.kernels
    ]


def _share(spent: float, profile: Profile) -> str:
    total = sum(kernel.microseconds for kernel in profile.kernels)
    return f"{100 * spent / total:.0f} %" if total else "–"


def counted(counters: Sequence[Counters]) -> RenderableType:
    """One line of counters per kernel, under its provider; then the problems."""
    table = _table("Nsight Compute,\ncold cache", *METRICS.values())
    for each in counters:
        if each.problem:
            continue
        table.add_row(Text(each.provider, style="bold"))
        for kernel in each.kernels:
            name, *figures = counted_line(kernel)
            table.add_row(Text("  " + name), *figures)
    problems = [
        Text(f"{each.provider}: {each.problem}", style="yellow")
        for each in counters
        if each.problem
    ]
    return Group(*([table] if table.row_count else []), *problems)


def counted_line(kernel: Counted) -> list[str]:
    """A kernel's name with its number of launches, and its counters in the order of ``METRICS``."""
    times = f" ×{kernel.launches}" if kernel.launches > 1 else ""
    figures = [_figure(kernel.values[metric], name) for metric, name in METRICS.items()]
    return [short(kernel.name, 32) + times, *figures]


def number_of(count: float) -> str:
    """A count per call: with two decimals unless it is whole."""
    return f"{count:.0f}" if count == round(count) else f"{count:.2f}"


def _figure(value: float | None, name: str) -> str:
    if value is None:
        return "n/a"
    if name.endswith("%"):
        return f"{value:.1f}"
    return f"{value:.0f}" if name in ("regs", METRICS[CONFLICTS]) else number(value)


def _table(first: str, *names: str) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column(first, overflow="fold", vertical="bottom")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    return table
