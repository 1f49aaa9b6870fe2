"""Runs providers under torch's profiler, or under one that was started around the process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function

from compare.timing.engine import Candidate

WAIT, WARM_UP = 1, 1  # steps before the recorded ones


def started_under() -> str:
    """The profiler that started this process, or "". It does not share CUPTI with torch's."""
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

    In every step each candidate makes its calls inside a range with its name, without waiting
    between them. The next candidate begins when the GPU has finished.

    Args:
        candidates: the candidates; they have run before, so that nothing is compiled now.
        arguments: for ``candidate.call(*arguments)``.
        file: the trace to write.
        steps: the number of recorded steps, after one unrecorded step and one to warm up.
        calls: the number of calls of each candidate per step.
        tensorboard: a folder for the same trace under the name that TensorBoard's plugin expects.
        device: "cuda", or "cpu" to record only host events.
        tick: called after each step with the number of finished steps and the total.
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
    """Run the same steps for a profiler around the process: in NVTX ranges, between
    cudaProfilerStart and Stop.

    ``cuda`` is torch.cuda, or a test's substitute.
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
