"""Measured cases in a JSON file that is written after every case, so that a later run can continue.

bench's --json file is one, and so is the file of ``pytest --benchmark-full`` in pytest's cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import compare
import cuda_reference
import triton_kernels
from compare import ops
from compare.checking import printing
from compare.numerics import json_safe
from compare.timing.bench import Mode
from compare.timing.engine import Budget
from compare.timing.results import CaseResult, key

ROOT = Path(compare.__file__).parent.parent
# The files that decide about times: both sides, the measurement, and the measured cases.
MEASURES = ("timing/*.py", "ops/*.py", "specs/*.py", "cases.py")
SUFFIXES = (".py", ".cu", ".cuh", ".h")
# The entries of the head that must be unchanged for a run to continue.
SAME = (
    *("sources", "cold", "graph", "full", "providers", "samples", "seconds"),
    *("sample", "seed", "dtypes", "ops", "regret", "arg"),  # of random problems
    "targets",
)
OWN_DATES = ("commit", "date")  # entries of the environment that belong to the run


class ResumeError(ValueError):
    """A file with which a run cannot continue."""


class Saved:
    """Cases by their coordinates, with a head that says where and how they were measured.

    Attributes:
        head: everything above the cases, as JSON.
    """

    def __init__(self, path: Path | None, head: dict[str, Any]) -> None:
        self.path, self.head = path, head
        self._cases: dict[str, dict[str, Any]] = {}
        self._lines: dict[str, str] = {}

    def add(self, result: CaseResult) -> None:
        """Add a case, and write the file."""
        self._keep(json_safe(result.to_dict()))
        self.write()

    def known(self, result: CaseResult) -> CaseResult | None:
        """The saved result of a case; of the argument only the coordinates matter."""
        saved = self._cases.get(key(result.to_dict()))
        return CaseResult.from_dict(saved) if saved else None

    @property
    def cases(self) -> list[dict[str, Any]]:
        """The saved cases, as JSON."""
        return list(self._cases.values())

    def write(self) -> None:
        """Replace the file in one step, so that a reader sees the old or the new one whole."""
        if self.path is None:
            return
        head = json.dumps(json_safe(self.head), indent=1)[:-2]
        text = f'{head},\n "cases": [\n' + ",\n".join(self._lines.values()) + "\n ]\n}\n"
        if self.path.exists() and not self.path.is_file():  # a device, which cannot be replaced
            self.path.write_text(text)
            return
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
        try:
            beside.write_text(text)
            beside.replace(self.path)
        finally:
            beside.unlink(missing_ok=True)

    def resume(self) -> int:
        """Continue with the cases of the file. Returns their number; 0 without a file.

        Raises:
            ResumeError: it is another kind of file, or sources, versions, GPU or options have
                changed.
        """
        if self.path is None or not self.path.exists():
            return 0
        try:
            saved = json.loads(self.path.read_text())
            changed = differences(saved, self.head)
            for case in () if changed else saved["cases"]:
                CaseResult.from_dict(case)
                self._keep(case)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ResumeError(f"{self.path}: no file to go on with ({error!r})") from None
        if changed:
            raise ResumeError(f"{self.path}: {'; '.join(changed)}. Measure anew, or elsewhere")
        self.head = {name: value for name, value in saved.items() if name != "cases"}
        self.head["ended"] = ""
        return len(self._cases)

    def _keep(self, case: dict[str, Any]) -> None:
        self._cases[key(case)] = case
        self._lines[key(case)] = "  " + json.dumps(case)


def head(mode: Mode, budget: Budget, wanted: list[str], full: bool, **drawn: Any) -> dict[str, Any]:
    """The head: where and how cases are measured; for random problems, how they are drawn."""
    return {
        "environment": environment(),
        "sources": sources(),
        "cold": mode.cold,
        "graph": mode.graph,
        "full": full,
        "providers": wanted,
        "samples": budget.samples,
        "seconds": budget.seconds,
        **drawn,
        "ended": "",
        "state_before": {},
        "state_after": {},
        "ceilings": None,
    }


def differences(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Why the cases under one head cannot be compared with those under another."""
    before, after = (_comparable(each) for each in (then, now))
    reasons = []
    for name, value in after.items():
        if before.get(name) != value:
            if name == "sources":
                reasons.append("the sources are not those that were measured")
            else:
                reasons.append(f"{name} was {before.get(name)!r} and is {value!r}")
    return reasons


def identity(head: dict[str, Any]) -> str:
    """A name for the entries that :func:`differences` compares."""
    text = json.dumps(_comparable(head), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _comparable(head: dict[str, Any]) -> dict[str, Any]:
    versions = {k: v for k, v in head["environment"].items() if k not in OWN_DATES}
    return {**versions, **{name: head.get(name) for name in SAME}}


def environment() -> dict[str, str]:
    """Versions and device, the checkout's commit, and the current time."""
    return {**printing.environment(), "commit": commit(), "date": printing.date()}


def commit() -> str:
    """The commit of the running checkout, with "-dirty" if files are changed; "unknown" without a
    checkout, or if git fails."""
    if not (ROOT / ".git").exists():
        return "unknown"
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        changed = _git("status", "--porcelain", "--untracked-files=no")
        return _git("rev-parse", "HEAD") + ("-dirty" if changed else "")
    return "unknown"


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True, timeout=20
    )
    return done.stdout.strip()


def of_targets(names: Iterable[str]) -> dict[str, str]:
    """Target → a hash of its files."""
    hashes = {}
    for name in names:
        folder, files = ops.sources(name)
        hasher = hashlib.sha256()
        for file in files:
            hasher.update(f"{file}\0".encode() + (folder / file).read_bytes() + b"\0")
        hashes[name] = hasher.hexdigest()
    return hashes


@cache
def sources() -> str:
    """A hash of the files that decide about times."""
    own = [p for pattern in MEASURES for p in (ROOT / "compare").glob(pattern)]
    for package in (triton_kernels, cuda_reference):
        folder = Path(package.__file__ or "").parent
        own += [p for p in folder.rglob("*") if p.suffix in SUFFIXES]
    hasher = hashlib.sha256()
    for path in sorted(own):
        hasher.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    return hasher.hexdigest()
