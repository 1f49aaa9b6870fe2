"""Memory that the programs of one tile share if K is split: a workspace for the parts, counters.

Counters must be 0 at the start of a launch, and are 0 at its end. Launches that may run at the same
time must not share them. Setting them to 0 takes as long as a small product, so each stream keeps
its counters, because its launches run one after the other. A launch that is captured in a CUDA
graph may be replayed on any stream: it gets its own counters, and the graph sets them to 0. An
interpreted launch also gets its own, because an error may end it early. On a GPU that cannot happen
without ending the process.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from triton_kernels import _launch, _modes
from triton_kernels.gemm.kernels import gemm_bias_act_kernel

LEAST = 4096  # the fewest counters of a stream
_counters: dict[tuple[int, int], Tensor] = {}


def memory(
    tiles: int, elements: int, parts: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    """A workspace for the parts of ``tiles`` tiles of ``elements`` elements each, and a counter per
    tile; (None, None) if K is not split."""
    if parts <= 1 or not tiles:
        return None, None
    space = _launch.workspace((tiles * parts * elements,), dtype, device)
    return space, _zeros(tiles, device)


def _zeros(count: int, device: torch.device) -> Tensor:
    if (
        device.type != "cuda"
        or _modes.compiling()
        or _launch.interpreted(gemm_bias_act_kernel)
        or torch.cuda.is_current_stream_capturing()
    ):
        return torch.zeros(count, dtype=torch.int32, device=device)
    stream: int = torch._C._cuda_getCurrentRawStream(device.index)
    zeros = _counters.get((device.index, stream))
    if zeros is None or len(zeros) < count:
        zeros = _counters[device.index, stream] = _lasting(max(count, LEAST), device)
    if _launch.recorder.now is not None:
        _launch.recorder.now.of_stream.append(zeros)
    return zeros


def _lasting(count: int, device: torch.device) -> Tensor:
    """Zeros that live on after this call. Before torch.compile captures a graph, it runs the code,
    and this thread's allocations are in the graph's memory and must not live on. So another thread
    allocates the zeros."""
    stream, made = torch.cuda.current_stream(device), []

    def make() -> None:
        with torch.cuda.stream(stream):
            made.append(torch.zeros(count, dtype=torch.int32, device=device))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if not made:
        raise torch.OutOfMemoryError("no memory for the counters of a split matrix product")
    return made[0]
