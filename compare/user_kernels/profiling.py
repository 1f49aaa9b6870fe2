"""profile: what ``python -m compare profile`` does, for one call of any function."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from compare.profiling import counters, reading, recording, tables
from compare.profiling.reading import Kernel
from compare.timing.engine import Candidate
from triton_kernels.annotating import annotate

__all__ = ["CallProfile", "annotate", "profile"]


class CallProfile:
    """Where a call's time goes; printable. Times are microseconds per call.

    Attributes:
        host: until the call returns, under the profiler.
        gpu: while the GPU works for it.
        first: from the first call to the first kernel, on an idle GPU.
        idle: the fraction of the time between first and last kernel in which the GPU is idle.
        kernels: name, count and microseconds of each, the longest first.
        trace: the trace's file, if one was requested.
    """

    def __init__(self, profile: reading.Profile, trace: Path | None) -> None:
        self.host, self.gpu = profile.host, profile.gpu
        self.first, self.idle = profile.first, profile.idle
        self.kernels: list[Kernel] = profile.kernels
        self.trace, self._profile = trace, profile

    def __str__(self) -> str:
        out = Console(file=io.StringIO(), width=120)
        out.print(tables.overview([self._profile]), "", tables.kernels([self._profile]))
        how = "python -m compare profile --target MODULE:SPEC asks ncu for them"
        why = counters.MISSING if counters.find() is None else how
        out.print(f"\nno counters: {why}", markup=False, highlight=False, soft_wrap=True)
        if self.trace is not None:
            out.print(f"\nopen {self.trace} in https://ui.perfetto.dev", markup=False)
        assert isinstance(out.file, io.StringIO)
        return out.file.getvalue().rstrip()

    def to_json(self) -> str:
        """The whole result as JSON text."""
        return json.dumps(self._profile.to_dict())


def profile(
    function: Callable[..., Any],
    *args: Any,
    trace: Path | str | None = None,
    steps: int = 5,
    calls: int = 10,
    **kwargs: Any,
) -> CallProfile:
    """Show where the time of ``function(*args, **kwargs)`` goes on a GPU.

    For the GPU's counters use ``python -m compare profile --target``, which needs Nsight Compute.

    Args:
        function: launches GPU work, for example a model's forward and backward pass.
        trace: a file for the trace, in Chrome's format.
        steps, calls: the number of recorded steps, and of calls per step.

    Returns:
        A :class:`CallProfile`.

    Raises:
        RuntimeError: there is no GPU, or another profiler runs this process.

    Example:
        >>> print(profile(model, x, trace="model.trace.json"))
    """
    if not torch.cuda.is_available():
        raise RuntimeError("profile(): nothing to profile: no CUDA device")
    if outside := recording.started_under():
        raise RuntimeError(f"profile(): {outside} runs this process, and one profiler is possible")
    name = getattr(function, "__name__", type(function).__name__)
    candidate = Candidate(name, lambda: function(*args, **kwargs))
    for _ in range(2):  # some compile at the second call
        candidate.call()
    torch.cuda.synchronize()
    return _recorded(candidate, None if trace is None else Path(trace), steps, calls)


def _recorded(
    candidate: Candidate, trace: Path | None, steps: int, calls: int, device: str = "cuda"
) -> CallProfile:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json" if trace is None else trace
        recording.record([candidate], (), file, steps, calls, device=device)
        (profile,) = reading.read(json.loads(file.read_text()), [candidate.name], calls)
    return CallProfile(profile, trace)
