"""Python's debugger with commands on stdin."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest


class Typed:
    """Runs something with commands on stdin, one a line; what is printed, split by prompts."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: Path
    ) -> None:
        self._patch, self._capsys = monkeypatch, capsys
        monkeypatch.setenv("HOME", str(home))  # no .pdbrc
        self.answers: list[str] = []
        self.result: Any = None

    def __call__(self, commands: str, run: Any) -> list[str]:
        """The outputs: before the first prompt, then after each command."""
        self._patch.setattr(sys, "stdin", io.StringIO(commands.replace("; ", "\n") + "\n"))
        self.result = run()
        self.answers = self._capsys.readouterr().out.split("(Pdb) ")
        return self.answers

    def stops(self) -> list[tuple[str, int]]:
        """Function and line of every prompt's place."""
        found = re.findall(r"^> \S+\((\d+)\)(\w+)\(\)", "".join(self.answers), re.MULTILINE)
        return [(name, int(line)) for line, name in found]
