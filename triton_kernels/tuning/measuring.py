"""tune: measure this GPU and keep the figures."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

import torch

from triton_kernels import _elementwise_kernels, _known_calls, _launch, _measured
from triton_kernels._gpu import Gpu
from triton_kernels._measured import Measurement
from triton_kernels.gemm import choice, rivals
from triton_kernels.gemm.gluon import availability
from triton_kernels.graph import capabilities as graph_capabilities
from triton_kernels.tuning import constants, rates, scores
from triton_kernels.tuning.constants import Run
from triton_kernels.tuning.holding import Capabilities, capabilities, cuda_device
from triton_kernels.tuning.scores import Case, Times
from triton_kernels.tuning.stopwatch import Stopwatch

SECONDS = 270.0  # after which no measurement begins, so that all ends within five minutes


def tune(device: torch.device | int | None = None, *, progress: bool = True) -> Capabilities:
    """Measure this GPU, in at most five minutes, and keep the figures for this user.

    From then on the choice of a product's tiles, fuse, replace_modules and torch.compile use the
    figures: in this process for plans made after the call, and in later processes. They hold
    until torch, triton, CUDA or this package's kernels change. Nothing else should run on the GPU
    during the measurement.

    Args:
        device: a CUDA device or its number; by default the current one.
        progress: whether to print each measurement on standard error.

    Returns:
        The figures in use, as :func:`triton_kernels.capabilities` returns them.

    Raises:
        RuntimeError: there is no GPU, or kernels are interpreted.
        ValueError: there is no such device.
        OSError: the file cannot be written.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("tune(): there is no GPU to measure; torch sees none")
    if _launch.interpreted(_elementwise_kernels.flat_kernel):
        raise RuntimeError("tune(): kernels are interpreted here, not run on the GPU")
    began = time.monotonic()
    device = cuda_device(device)
    gpu = _launch.gpu(_elementwise_kernels.flat_kernel, device)

    def say(what: str) -> None:
        if progress:
            print(f"{time.monotonic() - began:4.0f} s  {what}", file=sys.stderr, flush=True)

    with torch.cuda.device(device), torch.no_grad():
        watch = Stopwatch(gpu, device)
        capabilities = _measure_all(gpu, device, watch.runs, watch.case, say, began)
    say(f"kept in {_measured.file(gpu)}")
    return capabilities


def _measure_all(
    gpu: Gpu,
    device: torch.device,
    time_runs: Callable[[Sequence[Run]], Sequence[float]],
    time_case: Callable[[Case], Times],
    say: Callable[[str], None],
    began: float,
) -> Capabilities:
    """Measure and keep all figures, and return those in use. The constants are kept first, because
    the timed products use them."""
    say(f"{gpu.name}: the choice of tiles")
    tiles = constants.measure(gpu, time_runs)
    _keep(gpu, Measurement(tiles, {}))
    layers, cases = rates.cases(gpu, device), scores.cases(gpu, device)
    total, done = len(layers) + len(cases), 0

    def time_next(case: Case) -> Times:
        nonlocal done
        done += 1
        say(f"[{done}/{total}] {case}")
        return time_case(case)

    measured = None
    if layers:
        estimate, _ = graph_capabilities.rates_of(gpu, device)
        kernels = availability.kernels(gpu, device)
        measured = rates.measure(gpu, layers, time_next, estimate, kernels)
        _keep(gpu, Measurement(tiles, {}, measured))
    speeds = scores.measure(cases, time_next, lambda: time.monotonic() - began < SECONDS)
    if done < total:
        say(f"no time left for {total - done} of {total}: these keep their figures")
    _keep(gpu, Measurement(tiles, speeds, measured))
    return capabilities(device)


def _keep(gpu: Gpu, found: Measurement) -> None:
    """Save figures to the file, and clear the caches of this process so that they are used."""
    _measured.save(gpu, found)
    choice.choose.cache_clear()
    rivals.ours.cache_clear()
    _known_calls.forget()
    graph_capabilities.entries.cache_clear()
