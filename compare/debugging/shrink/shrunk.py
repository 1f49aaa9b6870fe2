"""What shrinking leaves: the way it took, and the file that reproduces the failure."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass
class Shrunk:
    """How a case became smaller.

    Attributes:
        runs: interpreted runs that were tried.
        before, after: the cases in words.
        replay: the command that debugs the small one; empty for a kernel from elsewhere.
        stopped: what ended it early, "Ctrl-C" or the limit of runs; else empty.
        notes: what could not shrink, and why.
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
    """A Python file that fails as the kernel does.

    Attributes:
        text: the file; empty where none could be written, and ``how`` says why.
        how: whether it fails as it should, in words.
        file: where it lies; None where nobody asked for a file.
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
        """What the JSON file has of it."""
        return {**asdict(self), "file": self.file and str(self.file)}
