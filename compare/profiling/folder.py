"""The folder for a run's files. They are written all or none, and replace only a former run's."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SUMMARY = "profile.json"  # written last; it marks the folder of a former run
MADE_BY = "python -m compare profile"


def check(folder: Path) -> str:
    """Why a run cannot write into this folder; empty if it can."""
    if folder.exists():
        if not folder.is_dir():
            return "is a file; name a folder"
        if not os.access(folder, os.W_OK):
            return "cannot be written to"
        if any(folder.iterdir()) and _former(folder) is None:
            return f"is not empty and not from a former run (no {SUMMARY}); name another folder"
        return ""
    parent = next(parent for parent in folder.absolute().parents if parent.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        return f"cannot be made: {parent} cannot be written to"
    return ""


@contextmanager
def filled(folder: Path, summary: dict[str, Any]) -> Iterator[Path]:
    """A temporary folder to write into. When the context ends without an error, its files replace
    those of a former run.

    ``summary`` is written to ``profile.json``, with a list of the other files.
    """
    with tempfile.TemporaryDirectory(prefix="profile-") as name:
        made = Path(name)
        yield made
        files = sorted(str(path.relative_to(made)) for path in made.rglob("*") if path.is_file())
        before = (_former(folder) or []) if folder.exists() else []
        for file in files:
            _put(made / file, folder / file)
        summary = {"made_by": MADE_BY, **summary, "files": files}
        (made / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n")
        _put(made / SUMMARY, folder / SUMMARY)
        for file in set(before) - set(files):
            (folder / file).unlink(missing_ok=True)


def _former(folder: Path) -> list[str] | None:
    """The files of the former run in this folder; None if the folder is not from a run."""
    try:
        summary = json.loads((folder / SUMMARY).read_text())
        if summary["made_by"] != MADE_BY:
            return None
        inside = folder.resolve()
        return [f for f in summary["files"] if (folder / f).resolve().is_relative_to(inside)]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _put(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.part")
    shutil.copyfile(source, part)
    part.replace(target)
