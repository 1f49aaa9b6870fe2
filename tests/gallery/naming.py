"""Where a report names a line."""

from __future__ import annotations

import re
from pathlib import Path

from compare import Findings
from gallery.exhibits import Fault

HEADLINE, SHOWN, NOWHERE = "headline", "shown", "nowhere"
# Faults whose line reports do not name yet: a list that gets shorter.
UNNAMED = frozenset((Path(__file__).parent / "unnamed.txt").read_text().splitlines())


def lines_named(text: str, file: str) -> set[int]:
    """The lines of a file that printed findings name; in columns the file's name is left out."""
    return {int(n) for n in re.findall(rf"(?:{re.escape(file)}| ):(\d+)(?=[ ,]|$)", text, re.M)}


def where_named(found: Findings, fault: Fault, file: str) -> str:
    """Whether the changed line stands in what is said first, further below, or nowhere.

    What is said first ends at the first empty line; the trace and a lane's values follow it.
    """
    text = str(found)
    if fault.line in lines_named(text.partition("\n\n")[0], file):
        return HEADLINE
    return SHOWN if fault.line in lines_named(text, file) else NOWHERE
