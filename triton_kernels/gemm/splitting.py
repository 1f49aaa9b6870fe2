"""Where the programs that share a tile meet: the workspace of its parts, and counters.

A launch needs counters of 0, and leaves them so; two launches that may run at once must not share
them. To set them to 0 takes as long as a small product, so each stream has its own, for its
launches run one after the other. A launch that is captured in a CUDA graph may be replayed on any
stream: it gets its own, which the graph sets to 0 again. So does one that is interpreted, since an
error may end it in between; on a GPU no launch ends so, or the whole process is lost.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from triton_kernels import _launch, _modes
from triton_kernels.gemm.kernels import gemm_bias_act_kernel

LEAST = 4096  # counters of a stream
_counters: dict[tuple[int, int], Tensor] = {}


def memory(
    tiles: int, elements: int, parts: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    """Workspace for the parts of so many tiles of so many elements each, and a counter for each
    tile; None and None if there is one part."""
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
    """Zeros that may stay. Before torch.compile captures a graph it runs it with what this thread
    allocates in the graph's memory, none of which may stay: so another thread does it."""
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
