"""A GPU that is simulated: it knows the true times, and the engine has to find them out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from compare.cases import Case
from compare.specs import Spec
from compare.timing import bench, nvml, providers, warm_up
from compare.timing import gpu as real
from compare.timing.engine import Candidate
from triton_kernels import _launch
from triton_kernels._gpu import H200
from triton_kernels.graph import racing

FLUSH = 60.0  # µs that emptying the cache takes once


class SimulatedGpu:
    """A GPU that runs what is queued, in order, and a host whose calls take time; microseconds.

    A kernel whose data are in the cache takes half as long as one with a cold cache.
    """

    def __init__(self) -> None:
        self.host = self.gpu = 0.0
        self.log: list[str] = []
        self.cached = ""  # the name of the launch whose data are there
        self.seen: list[bool] = []  # of each launch, whether they were
        self.broken = False  # as after a sticky error: nothing is answered

    def clock(self) -> float:
        """What time.perf_counter returns."""
        return self.host / 1e6

    def work(self, host: float, gpu: float) -> None:
        self.host += host
        self.gpu = max(self.gpu, self.host) + gpu

    def synchronize(self) -> None:
        if self.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        self.host = max(self.host, self.gpu)

    def empty_cache_lines(self, passes: int) -> None:
        for _ in range(passes):
            self.work(3.0, FLUSH)
        self.cached = ""

    def keep_busy(self, microseconds: float) -> None:
        self.work(3.0, microseconds)

    def event(self) -> float:
        self.gpu = max(self.gpu, self.host)
        return self.gpu

    def elapsed(self, start: float, end: float) -> float:
        return end - start

    def graph(self, call: Callable[[], Any]) -> Callable[[], Any] | None:
        """What the call launched, without the call's host time."""
        result = call()
        name, gpu = self.last

        def replay() -> Any:
            self.launch(name, 5.0, gpu)
            self.log[-1] = "replay"
            return result

        return replay

    def launch(self, name: str, host: float, gpu: float) -> str:
        """A call that takes so long on the host, and a kernel of so long with a cold cache."""
        self.last = name, gpu
        warm = self.cached == name
        self.seen.append(warm)
        self.work(host, gpu / 2 if warm else gpu)
        self.log.append(name)
        self.cached = name
        return name


COOL = {"sm_clock_mhz": 1980.0, "temperature_c": 41.0, "power_w": 600.0, "throttling": []}
CEILINGS = real.Ceilings(4e12, {"float16": 8e14, "bfloat16": 8e14}, "Simulated")


class Rig:
    """A machine with a simulated GPU: how long each provider takes, and what goes wrong there."""

    def __init__(self) -> None:
        self.gpu = SimulatedGpu()
        self.factor: dict[str, float] = {}  # provider → times the limit
        self.state: dict[str, Any] = dict(COOL)
        self.before: Callable[[str, Case], None] = lambda name, case: None  # of every call
        self.timed: list[str] = []

    def candidates(self, spec: Spec, case: Case, wanted: Sequence[str]) -> Iterator[Candidate]:
        flops, moved = spec.cost(case)
        limit = CEILINGS.limit(case.dtype, flops if spec.bounded else 0, moved)
        self.timed.append(f"{case.op} {case.dtype} {'x'.join(map(str, case.shape))}")
        for name in wanted:
            slow = limit * self.factor.get(name, 1.25)

            def call(args: Any, kwargs: Any, name: str = name, slow: float = slow) -> str:
                self.before(name, case)
                return self.gpu.launch(name, 10.0, slow)

            yield Candidate(name, call)

    def replaced(self) -> list[tuple[Any, str, Any]]:
        """What stands in for the real machine: where, name, value."""
        return [
            (time, "perf_counter", self.gpu.clock),
            (torch.cuda, "is_available", lambda: True),
            (torch.cuda, "get_device_name", lambda: "Simulated"),
            (torch.cuda, "empty_cache", lambda: None),
            (real, "Gpu", lambda: self.gpu),
            (real, "ceilings", lambda: CEILINGS),
            (providers, "candidates", self.candidates),
            (nvml, "state", lambda: dict(self.state)),
            (nvml, "missing", lambda: ""),
            (bench, "inputs", lambda spec, case, seed: ((seed,), {})),
            (bench, "Checker", lambda spec, case: lambda *_: ""),
            (bench, "SliceChecker", lambda spec, case: lambda *_: ""),
            (warm_up, "compile_all", lambda jobs, done: []),
            (racing, "doubtful", lambda verdict, least, trained=False: False),
            (_launch, "_properties", lambda device: H200),
        ]
