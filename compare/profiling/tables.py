"""What profile prints: providers, their kernels, counters, and which file to open with what."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from compare.profiling.counters import CONFLICTS, METRICS, Counters
from compare.profiling.reading import Profile, short
from compare.timing.tables import number

MOST = 8  # kernels of a provider


def overview(profiles: Sequence[Profile]) -> Table:
    """A line a provider, the fastest on the GPU first."""
    table = _table(
        "a call", "GPU µs", "kernels", "host µs", "first kernel\nafter µs", "GPU waits\nbetween"
    )
    for each in sorted(profiles, key=lambda profile: profile.gpu):
        table.add_row(
            each.provider,
            number(each.gpu) if each.kernels else "none seen",
            number_of(sum(kernel.count for kernel in each.kernels)),
            number(each.host),
            "–" if each.first is None else number(each.first),
            "–" if each.idle is None else f"{100 * each.idle:.0f} %",
        )
    return table


def kernels(profiles: Sequence[Profile]) -> Table:
    """A line a kernel, by GPU time, under its provider."""
    table = _table("kernel", "a call", "µs", "share")
    for each in sorted(profiles, key=lambda profile: profile.gpu):
        table.add_row(Text(each.provider, style="bold"))
        total = sum(kernel.microseconds for kernel in each.kernels)
        for kernel in each.kernels[:MOST]:
            table.add_row(
                Text("  " + short(kernel.name)),
                number_of(kernel.count),
                number(kernel.microseconds),
                f"{100 * kernel.microseconds / total:.0f} %" if total else "–",
            )
        if rest := each.kernels[MOST:]:
            spent = sum(kernel.microseconds for kernel in rest)
            share = f"{100 * spent / total:.0f} %" if total else "–"
            table.add_row(f"  {len(rest)} more", "", number(spent), share)
    return table


def counted(counters: Sequence[Counters]) -> RenderableType:
    """A line a kernel with its counters, under its provider."""
    table = _table("Nsight Compute,\ncold cache", *METRICS.values())
    for each in counters:
        if each.problem:
            continue
        table.add_row(Text(each.provider, style="bold"))
        for kernel in each.kernels:
            times = f" ×{kernel.launches}" if kernel.launches > 1 else ""
            table.add_row(
                Text("  " + short(kernel.name, 32) + times),
                *(_figure(kernel.values[metric], name) for metric, name in METRICS.items()),
            )
    problems = [
        Text(f"{each.provider}: {each.problem}", style="yellow")
        for each in counters
        if each.problem
    ]
    return Group(*([table] if table.row_count else []), *problems)


def number_of(count: float) -> str:
    """A count a call: whole, unless it is not the same in every call."""
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
