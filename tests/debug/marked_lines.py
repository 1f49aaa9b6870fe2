"""The lines that comments mark: what a tool names is compared with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def finder(comment: str, *files: str) -> Callable[[str], int]:
    """A function of a mark: the number of the one line in the files that ends in comment, mark."""
    texts = [Path(file).read_text().splitlines() for file in files]

    def line_of(mark: str) -> int:
        numbered = (each for lines in texts for each in enumerate(lines, 1))
        (found,) = [number for number, line in numbered if line.endswith(f"{comment}{mark}")]
        return found

    return line_of
