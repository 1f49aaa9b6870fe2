"""Descriptions of GPUs, by which kernels and tiles are chosen."""

from __future__ import annotations

import functools
from typing import NamedTuple


class Gpu(NamedTuple):
    """A GPU, present or not.

    Attributes:
        capability: compute capability, 90 for 9.0.
        multiprocessors: the number of multiprocessors.
        shared_memory: the largest number of bytes of shared memory that one block can have.
        name: the model's name, which is the key in :mod:`triton_kernels._measured`; "" for a GPU
            that is not present.
    """

    capability: int
    multiprocessors: int
    shared_memory: int
    name: str = ""


# One GPU of each architecture. Shared memory is from the table of compute capabilities in the CUDA
# programming guide.
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
    """The GPU of GPUS with this capability, or with the next lower one."""
    older = [gpu for gpu in GPUS.values() if gpu.capability <= capability]
    return max(older, default=GPUS["sm_80"])


class Peaks(NamedTuple):
    """The peak rates of a GPU.

    Attributes:
        flops: FLOP/s of 16-bit matrix products with float32 sums.
        bandwidth: bytes/s of its memory.
    """

    flops: float
    bandwidth: float


# The peaks of GPUS, from the vendor's datasheets, for dense products.
_PEAKS = {
    "sm_80": Peaks(312e12, 1.56e12),
    "sm_86": Peaks(71e12, 0.94e12),
    "sm_89": Peaks(165e12, 1.01e12),
    "sm_90": Peaks(989e12, 4.8e12),
    "sm_100": Peaks(2250e12, 8e12),
    "sm_120": Peaks(209e12, 1.79e12),
}


@functools.cache
def peaks(gpu: Gpu, bandwidth: float = 0.0) -> Peaks:
    """The peaks of a GPU. FLOP/s are estimated from a GPU of its architecture, in proportion to the
    number of multiprocessors. ``bandwidth`` is the driver's figure; 0 takes the other GPU's."""
    known = like(gpu.capability)
    flops, other = next(_PEAKS[arch] for arch, each in GPUS.items() if each is known)
    return Peaks(flops * gpu.multiprocessors / known.multiprocessors, bandwidth or other)
