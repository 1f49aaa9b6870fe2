"""The parts of Gluon that the kernel uses, under one name in all versions of Triton."""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_tile = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
thread_barrier = getattr(gl, "barrier", None) or gl.thread_barrier
_memory = gl.shared_memory_descriptor
reinterpret = getattr(_memory, "reinterpret", None) or _memory._reinterpret
store_wait = tma.store_wait
# Whether a part of a buffer is a slice, whose beginning must be a constant. In versions without
# slices of buffers that are no power of two, its first element may be reinterpreted as all of it.
# Triton 3.8 has neither, see forms.WIDE.
SLICES = gl.constexpr(tuple(map(int, triton.__version__.split(".")[:2])) > (3, 8))

__all__ = [
    "SLICES",
    "TensorDescriptor",
    "fence_async_shared",
    "gdc_launch_dependents",
    "gdc_wait",
    "gl",
    "gluon",
    "load_tile",
    "mbarrier",
    "reinterpret",
    "store_tile",
    "store_wait",
    "thread_barrier",
    "warpgroup_mma",
    "warpgroup_mma_wait",
]
