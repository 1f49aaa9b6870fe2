"""Providers run under a profiler: torch's, or one that wraps the whole process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function

from compare.timing.engine import Candidate

WAIT, WARM_UP = 1, 1  # steps before those that are recorded


def started_under() -> str:
    """The profiler that this process was started by, which wants CUPTI for itself; or ""."""
    if "NSYS_PROFILING_SESSION_ID" in os.environ:
        return "Nsight Systems"
    if "NV_NSIGHT_INJECTION_TRANSPORT_TYPE" in os.environ:
        return "Nsight Compute"
    return ""


def record(
    candidates: Sequence[Candidate],
    arguments: Any,
    file: Path,
    steps: int,
    calls: int,
    tensorboard: Path | None = None,
    device: str = "cuda",
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Run candidates under torch.profiler and write one Chrome trace.

    In every step each candidate makes its calls in a range of its name, without waiting in between,
    and the GPU ends them before the next candidate begins.

    Args:
        candidates: what to run; they have run before, so that nothing is compiled now.
        arguments: as ``candidate.call(*arguments)`` takes them.
        file: the trace.
        steps: how many are recorded, after one that the profiler sits out and one to warm up.
        calls: of each candidate in a step.
        tensorboard: a folder for the same trace under the name that TensorBoard's plugin expects.
        device: "cuda", or "cpu" to record host events alone.
        tick: told of the steps done and their total.
    """

    def save(profiler: Any) -> None:
        if tensorboard is None:
            profiler.export_chrome_trace(str(file))
            return
        worker = file.name.split(".")[0]
        torch.profiler.tensorboard_trace_handler(str(tensorboard), worker)(profiler)
        (written,) = tensorboard.glob("*.pt.trace.json")  # a trace can be exported once only
        shutil.copyfile(written, file)

    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
    schedule = torch.profiler.schedule(wait=WAIT, warmup=WARM_UP, active=steps, repeat=1)
    total = WAIT + WARM_UP + steps
    with torch.profiler.profile(
        activities=activities, schedule=schedule, on_trace_ready=save
    ) as profiler:
        for done in range(total):
            for candidate in candidates:
                with record_function(candidate.name):
                    for _ in range(calls):
                        candidate.call(*arguments)
                if device == "cuda":
                    torch.cuda.synchronize()
            profiler.step()
            tick(done + 1, total)


def run_in_ranges(
    candidates: Sequence[Candidate], arguments: Any, steps: int, calls: int, cuda: Any = torch.cuda
) -> None:
    """The same steps for a profiler around the process: in NVTX ranges, between start and stop.

    ``cuda`` is torch.cuda, or what a test puts in its place.
    """
    cuda.synchronize()
    cuda.profiler.start()
    for step in range(steps):
        with cuda.nvtx.range(f"step {step}"):
            for candidate in candidates:
                with cuda.nvtx.range(candidate.name):
                    for _ in range(calls):
                        candidate.call(*arguments)
                cuda.synchronize()
    cuda.profiler.stop()
