"""One fault that can be planted: an edit of one function of one source file."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import compare

ROOT = Path(compare.__file__).resolve().parents[1]  # the folder of the three packages
PACKAGES = ("triton_kernels", "cuda_reference", "compare")


class Edit(NamedTuple):
    """Characters ``start`` to ``end`` of a text become ``new``; ``kind`` names the fault."""

    kind: str
    start: int
    end: int
    new: str


@dataclass(frozen=True)
class Mutant:
    """An edit inside ``function`` of a file, which is relative to the packages' folder.

    ``kernel``: whether the function runs on the device; host functions choose what runs.
    """

    side: str  # "triton" or "cuda"
    file: str
    function: str
    edit: Edit
    text: str  # the file's
    kernel: bool = True

    @property
    def mutated(self) -> str:
        """The file's text with the fault."""
        return self.text[: self.edit.start] + self.edit.new + self.text[self.edit.end :]

    @property
    def line(self) -> int:
        """The first edited line."""
        return self.text.count("\n", 0, self.edit.start) + 1

    @property
    def statement(self) -> tuple[str, str]:
        """The whole lines that the edit touches, before and after, with single blanks."""
        begin = self.text.rfind("\n", 0, self.edit.start) + 1
        end = self.text.find("\n", self.edit.end)
        before = self.text[begin : len(self.text) if end < 0 else end]
        head, tail = self.text[begin : self.edit.start], before[self.edit.end - begin :]
        return " ".join(before.split()), " ".join((head + self.edit.new + tail).split())

    @property
    def diff(self) -> str:
        """The edit as a unified diff."""
        lines = difflib.unified_diff(
            self.text.splitlines(),
            self.mutated.splitlines(),
            f"a/{self.file}",
            f"b/{self.file}",
            n=1,
            lineterm="",
        )
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}: {self.edit.kind}"
