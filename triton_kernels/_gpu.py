"""Descriptions of GPUs: what kernels and their tiles are chosen by."""

from __future__ import annotations

from typing import NamedTuple


class Gpu(NamedTuple):
    """A GPU, there or not.

    Attributes:
        capability: compute capability, 90 for 9.0.
        multiprocessors: their number.
        shared_memory: bytes that one block can have, where it asks for as much as it may.
    """

    capability: int
    multiprocessors: int
    shared_memory: int


# One of each architecture. Shared memory is from the CUDA programming guide's table of compute
# capabilities.
GPUS = {
    "sm_80": Gpu(80, 108, 166912),  # A100
    "sm_86": Gpu(86, 82, 101376),  # GeForce RTX 3090
    "sm_89": Gpu(89, 128, 101376),  # GeForce RTX 4090
    "sm_90": Gpu(90, 132, 232448),  # H100, H200
    "sm_100": Gpu(100, 148, 232448),  # B200
    "sm_120": Gpu(120, 170, 101376),  # GeForce RTX 5090
}
H200 = GPUS["sm_90"]


def like(capability: int) -> Gpu:
    """The one above of that capability, or of the next lower one."""
    older = [gpu for gpu in GPUS.values() if gpu.capability <= capability]
    return max(older, default=GPUS["sm_80"])
