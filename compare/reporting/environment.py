"""The machine, versions and dates of the files."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from compare.profiling.folder import MADE_BY
from compare.reporting.sources import COMMANDS, Source

_NAMES = {"triton_kernels": "this package", "cuda": "CUDA", "gpu": "GPU"}
_STATE = {
    "sm_clock_mhz": ("SM clock", "MHz"),
    "memory_clock_mhz": ("memory clock", "MHz"),
    "temperature_c": ("temperature", "°C"),
    "power_w": ("power", "W"),
    "power_limit_w": ("power limit", "W"),
}


def _commit(name: str) -> str:
    """The first digits of a commit, and whether files were changed."""
    digits, *dirty = name.split("-")
    return "-".join([digits[:12], *dirty])


def _date(told: str) -> str:
    """An ISO 8601 date, to the minute; other texts unchanged."""
    try:
        at = datetime.fromisoformat(told)
    except ValueError:
        return told
    return at.strftime("%Y-%m-%d %H:%M %Z").strip() if "T" in told else told


_SHORT = {"commit": _commit, "date": _date}  # shortened to fit on a line of a card


def card(source: Source) -> dict[str, Any]:
    """A file's name, its command, and its machine, versions, commit and date."""
    data = source.data
    told = data["environment"] | {key: data[key] for key in _SHORT if data.get(key)}
    facts = {_NAMES.get(key, key): _SHORT.get(key, str)(value) for key, value in told.items()}
    if source.kind not in ("bench", "profile"):
        facts["time it took"] = f"{data['seconds']:.0f} s"
    if "cold" in data:
        facts["cache"] = "cold" if data["cold"] else "warm"
    facts |= {key: data[key] for key in ("samples", "ended") if data.get(key)}
    if data.get("archs"):
        facts["compiled for"] = ", ".join(data["archs"])
    facts |= _state(*_states(data))
    facts |= _ceilings(data.get("ceilings") or {})
    return {
        "name": source.name,
        "command": MADE_BY
        if source.kind == "profile"
        else COMMANDS[source.kind].split(" --json")[0],
        "facts": {key: str(value) for key, value in facts.items()},
    }


def _states(data: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The GPU's state before and after the run, or before the first and after the last case."""
    told = [data, *data.get("cases", [])]
    before = [each["state_before"] for each in told if each.get("state_before")]
    after = [each["state_after"] for each in told if each.get("state_after")]
    if not before or not after:
        return {}, {}
    return before[0], after[0] if data.get("state_after") else after[-1]


def _state(before: dict[str, Any], after: dict[str, Any]) -> dict[str, str]:
    facts = {}
    for key, (name, unit) in _STATE.items():
        values = [each[key] for each in (before, after) if each.get(key) is not None]
        words = dict.fromkeys(f"{value:.0f}" for value in values)
        if words:
            facts[name] = f"{' → '.join(words)} {unit}"
    throttling = [each["throttling"] for each in (before, after) if "throttling" in each]
    if throttling:
        words = dict.fromkeys(", ".join(each) or "none" for each in throttling)
        facts["throttling"] = " → ".join(words)
    return facts


def _ceilings(ceilings: dict[str, Any]) -> dict[str, str]:
    if not ceilings:
        return {}
    sheet = ceilings.get("datasheet") or {}
    facts = {"copy bandwidth": f"{ceilings['bandwidth'] / 1e9:.0f} GB/s"}
    if "bytes" in sheet:
        facts["copy bandwidth"] += f" (datasheet: {sheet['bytes'] / 1e9:.0f})"
    for dtype, rate in ceilings["rates"].items():
        facts[f"{dtype} product"] = f"{rate / 1e12:.0f} TFLOP/s"
        if dtype in sheet:
            facts[f"{dtype} product"] += f" (datasheet: {sheet[dtype] / 1e12:.0f})"
    return facts
