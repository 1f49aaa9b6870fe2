"""The results of shrinking: what was done, and the file that reproduces the failure."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass
class Shrunk:
    """How a case was shrunk.

    Attributes:
        runs: the number of interpreted runs.
        before, after: the cases in words.
        replay: the command that debugs the small case; empty for a kernel from elsewhere.
        stopped: what ended it early, "Ctrl-C" or the limit of runs; else empty.
        notes: what could not be shrunk, and why.
    """

    runs: int
    before: str
    after: str
    replay: str = ""
    stopped: str = ""
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """What was done, as lines of text."""
        many = f"{self.runs} run{'' if self.runs == 1 else 's'}"
        ended = f", ended by {self.stopped}" if self.stopped else ""
        after = self.after.removeprefix("input values: ")
        way = f"{self.before} → {after}" if self.before != self.after else "nothing is smaller"
        return [f"shrunk in {many}{ended}: {way}", *(f"  {note}" for note in self.notes)]


@dataclass
class Reproduction:
    """A Python file that fails like the kernel.

    Attributes:
        text: the file; empty if none could be written, and ``how`` says why.
        how: whether it fails in the same way, in words.
        file: its path; None if no file was requested.
    """

    text: str
    how: str
    file: Path | None = None

    def lines(self) -> list[str]:
        """What was done, as lines of text."""
        if not self.text:
            return [f"no reproduction: {self.how}"]
        where = os.path.relpath(self.file) if self.file else "in findings.reproduction.text"
        if self.file and where.startswith(".."):
            where = str(self.file)
        return [f"reproduction: {where}", f"  {self.how}"]

    def to_dict(self) -> dict[str, Any]:
        """The entry of the JSON file."""
        return {**asdict(self), "file": self.file and str(self.file)}
