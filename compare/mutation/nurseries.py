"""Several :mod:`compare.mutation.nursery` processes that run trials in parallel."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")


class Nursery:
    """One such process, for one trial at a time; it is restarted after it had to be killed.
    ``variables`` are added to its environment."""

    def __init__(self, variables: Mapping[str, str] = MappingProxyType({})) -> None:
        self._variables = variables
        self._process: subprocess.Popen[str] | None = None
        self._ended = False
        self._beside: Nursery | None = None
        self._lock = threading.Lock()  # of these three

    def beside(self, variables: Mapping[str, str]) -> Nursery:
        """Another one with these variables, always the same. It ends with this one."""
        with self._lock:
            self._beside = self._beside or Nursery(variables)
            self._beside._ended |= self._ended
            return self._beside

    def run(self, seconds: float, **request: Any) -> int | None:
        """The exit status of a trial; None at the time limit, or if it was ended."""
        with self._lock:
            if self._ended:
                return None
            process = self._process = self._process or _started(self._variables)
        assert process.stdin
        assert process.stdout
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            ready, *_ = select.select([process.stdout], [], [], seconds)
            if ready and (answer := process.stdout.readline()):
                return int(answer)
        except (OSError, ValueError):  # another thread ended it and closed its pipes
            if not self._ended:
                raise
        self.close()
        return None

    def end(self) -> None:
        """End it for good, from any thread."""
        self._ended = True
        self.close()
        if self._beside is not None:
            self._beside.end()

    def close(self) -> None:
        """End it, and the trial that it is at."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _started(variables: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).with_name("nursery.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Read once, when torch is loaded; else every trial has a thread for each core.
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        start_new_session=True,  # so that it is killed with all processes of a trial
    )


def each(
    function: Callable[[Item, Nursery], Value], items: Iterable[Item], jobs: int
) -> Iterator[Value]:
    """The function of every item and an idle nursery, in the order of completion."""
    nurseries = [Nursery() for _ in range(jobs)]
    free = queue.SimpleQueue[Nursery]()
    for nursery in nurseries:
        free.put(nursery)

    def in_a_free_one(item: Item) -> Value:
        nursery = free.get()
        try:
            return function(item, nursery)
        finally:
            free.put(nursery)

    with ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(in_a_free_one, item) for item in items]
        try:
            for one in as_completed(running):
                yield one.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for nursery in nurseries:
                nursery.end()
