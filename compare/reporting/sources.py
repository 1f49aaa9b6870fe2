"""The files of a report; each kind is recognised by its content."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMITTED = Path(__file__).parent.parent.parent / "docs" / "benchmarks"

# Kind → the command that makes it, in the page's order. Long runs and models are not on the page.
COMMANDS = {
    "check": "python -m compare check --json check.json",
    "bench": "python -m compare bench --json bench.json",
    "host": "python -m compare bench --host --json host.json",
    "profile": "python -m compare profile linear_gelu --json profile.json",
    "mutate": "python -m compare mutate --json mutate.json",
    "compile": "python -m compare compile --json compile.json",
    "models": "python -m compare models --time --json models.json",
    "long": "make fuzz (kills, endurance, sanitizers, package)",
}


_MADE_BY = "files are made by\n" + "\n".join(f"  {command}" for command in COMMANDS.values())


class ReportError(ValueError):
    """Why a report cannot be made, with the remedy."""


@dataclass(frozen=True)
class Source:
    """A file's content. The page calls it ``name``."""

    name: str
    kind: str
    data: dict[str, Any]


def read(files: Sequence[Path]) -> list[Source]:
    """The files in the page's order; by default those of the checkout.

    Raises:
        ReportError: a file cannot be read, or is of no known kind; or there is none.
    """
    if files:
        files_read = [_source(file, str(file)) for file in files]
    else:
        folder = sorted(COMMITTED.glob("*.json"))
        files_read = [_source(file, f"docs/benchmarks/{file.name}") for file in folder]
    if not files_read:
        raise ReportError(
            "no FILE is given, and there is no checkout with docs/benchmarks around this package; "
            + _MADE_BY
        )
    return sorted(files_read, key=lambda source: list(COMMANDS).index(source.kind))


def _source(file: Path, name: str) -> Source:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportError(f"{name}: {error.strerror or error}") from None
    except ValueError as error:
        raise ReportError(f"{name}: no JSON ({error}); {_MADE_BY}") from None
    kind = _kind(data)
    if kind is None:
        raise ReportError(
            f"{name}: not what check, mutate, bench, profile or compile write, "
            f"nor a long run's; {_MADE_BY}"
        )
    return Source(name, kind, data)


def _kind(data: Any) -> str | None:
    if not isinstance(data, dict) or not isinstance(data.get("environment"), dict):
        return None
    if isinstance(data.get("figures"), dict):
        return "long"
    if isinstance(data.get("cases"), list) and "ceilings" in data:
        return "bench"
    if isinstance(data.get("host"), list):
        return "host"
    if isinstance(data.get("profiles"), list):
        return "profile"
    if isinstance(data.get("rows"), list):
        if isinstance(data.get("ends"), dict):
            return "mutate"
        if isinstance(data.get("archs"), dict):
            return "compile"
        if isinstance(data.get("not_run"), dict):
            return "check"
        if isinstance(data.get("processes"), int):
            return "models"
    return None
