"""Tests that can run for seconds, as all do, or for long, and then keep what they found as figures.

``--long FILE`` makes a run long. If all its tests pass, their figures are in FILE afterwards, as
JSON, and ``python -m compare report --facts docs/FACTS.md`` makes its table of them.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from compare.checking import printing


@dataclass
class LongRun:
    """How much tests are to do, and what they did.

    Attributes:
        file: where the figures shall be; None for a short run.
        figures: claim → what was counted or measured → the number.
    """

    file: Path | None = None
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    start: float = field(default_factory=time.monotonic)

    def amount(self, short: int, long: int) -> int:
        """How many of something to do."""
        return short if self.file is None else long

    def add(self, claim: str, **numbers: float) -> None:
        """Figures for a claim; of the same name they add up."""
        known = self.figures.setdefault(claim, {})
        for name, number in numbers.items():
            known[name] = known.get(name, 0) + number

    def end(self, failed: bool) -> None:
        """Write the file that the report reads, if this is a long run and all of it was right."""
        if self.file is None or failed or not self.figures:
            return
        report = {
            "environment": printing.environment(),
            "date": printing.date(),
            "command": f"make {self.file.stem}",
            "seconds": round(time.monotonic() - self.start, 1),
            "figures": self.figures,
        }
        self.file.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
