"""Times models in fresh processes: what is compiled anew may come out differently.

A process compiles its model and waits for its turn. Several compile at the same time; then one
after another is timed, with the GPU to itself.
"""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from compare.models.timing import INDUCTOR, OURS, READY, Request
from compare.timing.statistics import Samples, ratio

PROGRAM = (sys.executable, "-m", "compare.models.timing")


@dataclass
class Raced:
    """A model's times.

    Attributes:
        request: what was asked for.
        kernels: how many fused kernels the first process's plans have.
        microseconds: provider → the median of each process.
        speeds: provider → torch.compile's time divided by its own, of each process.
        problems: what went wrong, once each.
    """

    request: Request
    kernels: int = 0
    microseconds: dict[str, list[float]] = field(default_factory=dict)
    speeds: dict[str, list[float]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def speed(self, provider: str = OURS) -> float | None:
        """The geometric mean of the processes' ratios."""
        return mean(self.speeds.get(provider, []))

    def take(self, answer: dict[str, Any]) -> None:
        """Add what a process measured."""
        self.kernels = self.kernels or answer["kernels"]
        samples = {}
        for timing in answer["timings"]:
            if timing["problem"]:
                self.say(f"{timing['name']}: {timing['problem']}")
            else:
                samples[timing["name"]] = Samples(**timing["gpu"])
        for name, each in samples.items():
            self.microseconds.setdefault(name, []).append(each.median)
            compared = ratio(samples[INDUCTOR], each) if INDUCTOR in samples else None
            if compared is not None:
                self.speeds.setdefault(name, []).append(compared.value)

    def say(self, problem: str) -> None:
        """Add a problem, once."""
        if problem not in self.problems:
            self.problems.append(problem)

    def to_dict(self) -> dict[str, Any]:
        """The row of a JSON file."""
        return asdict(self)


def mean(values: Sequence[float]) -> float | None:
    """The geometric mean; None of nothing."""
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else None


def race(
    requests: Sequence[Request], times: int, jobs: int, tick: Callable[[Sequence[Raced], str], None]
) -> list[Raced]:
    """Time each model in so many processes; ``jobs`` of them compile at the same time.

    Before each is timed ``tick`` is called with all models so far, and the name of this one.
    """
    models = [Raced(request) for request in requests]
    for _ in range(times):
        for start in range(0, len(models), jobs):
            some = models[start : start + jobs]
            _take_turns(some, lambda name: tick(models, name))
    return models


def _take_turns(some: Sequence[Raced], tick: Callable[[str], None]) -> None:
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_Process(each.request)) for each in some]
        for process in processes:
            process.compile()
        for raced, process in zip(some, processes):
            tick(raced.request.name)
            answer = process.time()
            if isinstance(answer, str):
                raced.say(answer)
            else:
                raced.take(answer)


class _Process:
    """A process that times one model."""

    def __init__(self, request: Request) -> None:
        words = [*PROGRAM, json.dumps(asdict(request))]
        pipe = subprocess.PIPE
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by __exit__
        self._process = subprocess.Popen(
            words, stdin=pipe, stdout=pipe, stderr=self._errors, text=True
        )

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *args: object) -> None:
        with self._process, self._errors:
            self._process.kill()

    def compile(self) -> None:
        """Wait until everything is compiled, or the process has ended."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == READY:
                return

    def time(self) -> dict[str, Any] | str:
        """What the process finds; if it fails, why."""
        with contextlib.suppress(BrokenPipeError):
            out, _ = self._process.communicate("\n")
            if self._process.returncode == 0:
                return json.loads(out.splitlines()[-1])  # type: ignore[no-any-return]
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines()
        return said[-1][:200] if said else f"ended with status {self._process.wait()}"
