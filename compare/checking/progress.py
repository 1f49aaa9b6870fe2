"""A progress bar for work that may take long."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

PATIENCE = 1.0  # seconds before it shows


class Bar:
    """A progress bar on stderr that appears after PATIENCE. A bar inside another one is hidden."""

    _outer: ClassVar[Bar | None] = None

    def __init__(self, what: str, unit: str = "programs", ends: str = "Ctrl-C ends it") -> None:
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[done]}"),
            TimeElapsedColumn(),
            TextColumn(ends),
            console=Console(stderr=True),
            transient=True,
            disable=not Console(stderr=True).is_terminal,
        )
        self._unit = unit
        self._task = self.progress.add_task(what, total=None, done="")
        self.timer = threading.Timer(PATIENCE, self.progress.start)
        self.timer.daemon = True

    def update(self, done: int, total: int) -> None:
        """Show the number of units done."""
        text = f"{done} of {total} {self._unit}"
        self.progress.update(self._task, completed=done, total=total, done=text)

    def describe(self, what: str) -> None:
        """Show what is being done now."""
        self.progress.update(self._task, description=what)

    def __enter__(self) -> Bar:
        if Bar._outer is None:
            Bar._outer = self
            self.timer.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if Bar._outer is not self:
            return
        Bar._outer = None
        self.timer.cancel()
        self.timer.join()
        if self.progress.live.is_started:  # stopping one that never started prints a line
            self.progress.stop()
