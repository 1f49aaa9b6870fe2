"""A profile's file for the page: where the time of one op's calls goes, by provider and kernel."""

from __future__ import annotations

from typing import Any

from compare.profiling.reading import Kernel, Profile, short
from compare.profiling.tables import number_of
from compare.reporting.sources import Source
from compare.timing.tables import number


def context(source: Source) -> dict[str, Any]:
    """What the template shows of the file."""
    data = source.data
    profiles = [
        Profile(**{**row, "kernels": [Kernel(**kernel) for kernel in row["kernels"]]})
        for row in data["profiles"]
    ]
    profiles.sort(key=lambda profile: profile.gpu)
    return {
        "name": source.name,
        **{each: data[each] for each in ("op", "dtype", "steps", "calls", "problems")},
        "shape": "×".join(map(str, data["shape"])),
        "options": "".join(f" {name}={value}" for name, value in data["options"].items()),
        "providers": [_provider(profile) for profile in profiles],
        "kernels": [(profile.provider, _kernels(profile)) for profile in profiles],
    }


def _provider(profile: Profile) -> dict[str, str]:
    seen = bool(profile.kernels)
    return {
        "provider": profile.provider,
        "gpu": number(profile.gpu) if seen else "none seen",
        "count": number_of(sum(kernel.count for kernel in profile.kernels)),
        "host": number(profile.host),
        "first": "–" if profile.first is None else number(profile.first),
        "idle": "–" if profile.idle is None else f"{100 * profile.idle:.0f} %",
    }


def _kernels(profile: Profile) -> list[dict[str, str]]:
    total = sum(kernel.microseconds for kernel in profile.kernels)
    return [
        {
            "name": short(kernel.name),
            "count": number_of(kernel.count),
            "time": number(kernel.microseconds),
            "share": f"{100 * kernel.microseconds / total:.0f} %" if total else "–",
        }
        for kernel in profile.kernels
    ]
