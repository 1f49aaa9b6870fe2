"""What test_workers.py runs in worker processes; without torch, so that these start quickly."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from typing import Any, NamedTuple

from compare.checking import workers

CALLS: list[Any] = []  # of this process


def double(x: float) -> float:
    return 2 * x


def process() -> tuple[int, str | None]:
    return os.getpid(), os.environ.get("OMP_NUM_THREADS")


def misbehave(how: Any) -> Any:
    """End the process in some way, or be right."""
    if how == "segfault":
        ctypes.memset(16, 0, 1)
    if how == "abort":
        os.abort()
    if how == "exit":
        os._exit(3)
    if how == "hang":
        ctypes.CDLL(None).pause()
    if how == "late":
        time.sleep(0.3)
    if how == "raise":
        raise KeyError("no such thing")
    if how == "leave":
        sys.exit(5)
    if how == "unspeakable":
        raise Unspeakable(1, 2)
    if how == "function":
        return lambda: None
    if how == "debug":
        breakpoint()
    return how


def announced(how: str) -> Any:
    """The same, announced."""
    workers.tell(f"about to {how}")
    return misbehave(how)


class Unspeakable(Exception):
    """One that pickle cannot make again."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("too much")


class Told(NamedTuple):
    """Stands for compare.checking.scheduling.Told."""

    names: list[str]
    gpu_is_lost: bool
    left_out: tuple[str, ...] = ()
    seconds: float = 1.0

    def outcomes(self, known: Any) -> Any:
        from compare.checking.running import Outcome

        return [Outcome(known[name], 0.0, None, None) for name in self.names]


def run_case(case: Any, names: list[str], attack: int) -> Told:
    """Runs implementations that are called after what they do."""
    before = list(CALLS)
    for number, name in enumerate(names, 1):
        workers.tell(name)
        CALLS.append(name)
        if "loses the GPU" in name:
            return Told(names[:number], True)
        if "after others" not in name or before:
            misbehave(name.partition("/")[2].split()[0])
    return Told(names, "loses the GPU" in " ".join(before))
