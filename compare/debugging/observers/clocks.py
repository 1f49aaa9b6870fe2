"""Vector clocks: which accesses of earlier programs happened before those of the running one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class _Released(NamedTuple):
    """A clock left in memory: programs, and the last access known of each."""

    programs: np.ndarray
    times: np.ndarray


class Clocks:
    """The clock of the running program, and released clocks.

    Time is the number of an access, which grows from program to program. Programs run one after
    another, so no clock of another program is needed.

    Attributes:
        first: the number of the running program's first access.
    """

    def __init__(self) -> None:
        self.first = 0
        self._begun: list[int] = []  # the first access of each program
        self._mine = np.zeros(0, dtype=np.int64)  # per program: its last access known here
        self._released: dict[int, _Released] = {}
        self._uses: dict[int, int] = {}  # clock → number of elements that hold it
        self._last = 0

    def begin(self, number: int) -> None:
        """Begin a program; its first access will have this number."""
        self.first = number
        self._begun.append(number)
        self._mine = np.zeros(0, dtype=np.int64)

    def known(self, numbers: np.ndarray) -> np.ndarray:
        """Which of these accesses happened before the running program's next one."""
        known = np.zeros(numbers.shape, dtype=bool)
        if self._mine.size:
            programs = np.searchsorted(self._begun, numbers, side="right") - 1
            known = self._mine[programs] >= numbers
        return known

    def acquire(self, held: np.ndarray) -> None:
        """Merge the clocks ``held`` at some elements into the running program's."""
        for clock in np.unique(held[held > 0]):
            if not self._mine.size:
                self._mine = np.zeros(len(self._begun), dtype=np.int64)
            programs, times = self._released[int(clock)]
            self._mine[programs] = np.maximum(self._mine[programs], times)

    def release(self, held: np.ndarray, at: np.ndarray, number: int) -> None:
        """Store the program's clock, including its own accesses up to this one, at elements.

        Clocks released there before are merged: an acquire gets both.

        Args:
            held: the clock of every element, 0 for none; changed at ``at``.
        """
        own, at = self._mine, np.unique(at)
        self._mine = own.copy() if own.size else np.zeros(len(self._begun), dtype=np.int64)
        self.acquire(held[at])
        self._mine[-1] = number
        programs = np.flatnonzero(self._mine)
        self._last += 1
        self._released[self._last] = _Released(programs, self._mine[programs])
        self._mine = own
        for clock, elements in zip(*np.unique(held[at], return_counts=True)):
            self._drop(int(clock), int(elements))
        self._uses[self._last] = len(at)
        held[at] = self._last

    def _drop(self, clock: int, elements: int) -> None:
        """Count that so many elements hold a clock no longer."""
        if clock:
            self._uses[clock] -= elements
            if not self._uses[clock]:
                del self._uses[clock], self._released[clock]
