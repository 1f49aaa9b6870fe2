"""Compiling launches without a GPU.

Inside :func:`compiling`, functions that launch kernels run their ordinary Python on CPU or meta
tensors. Each launch compiles for the requested architecture instead of running. So a kernel is
specialised as by a real launch (alignment, divisibility by 16, None, strides of 1), and no launch
is written twice. The private Triton API for this, a driver without a device, is all in this file.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver as _drivers
from triton.runtime.autotuner import Autotuner

from triton_kernels import _gpu, _modes
from triton_kernels.interpreter import host_calls


@dataclass(frozen=True)
class Launch:
    """A compiled launch: its kernel, configuration and machine code.

    Attributes:
        kernel: the jit function's name.
        meta: the launch's keyword arguments: constants, num_warps, num_stages.
        cubin: the machine code; empty if the kernel does not compile.
        shared: bytes of shared memory that the launch needs.
        asm: the compiler's intermediate texts: "ttir", "ttgir", "llir", "ptx", "sass" → text.
        error: the compiler's error, or None.
        tuned: the number of the autotuner's call that chooses among such launches, or None.
    """

    kernel: str
    meta: dict[str, Any] = field(repr=False)
    cubin: bytes = field(default=b"", repr=False)
    shared: int = 0
    asm: Mapping[str, Any] = field(default_factory=dict, repr=False)
    error: Exception | None = None
    tuned: int | None = None


class _Driver(DriverBase):  # type: ignore[misc]
    """Describes a GPU that need not be present; anything that needs a real one is refused."""

    def __init__(self, capability: int) -> None:
        super().__init__()
        self.capability = capability
        described = _gpu.like(capability)
        numbers = described.multiprocessors, described.shared_memory
        self.gpu = host_calls.like(capability, *numbers)
        answer = host_calls.properties(self.gpu)
        self.utils = SimpleNamespace(get_device_properties=lambda device=None: answer)

    def get_device_interface(self) -> Any:
        return torch.cuda

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> str:
        # The key of Triton's cache of loaded kernels; no real device has this one.
        return f"no device, sm_{self.capability}"

    def get_current_stream(self, device: Any) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_benchmarker(self) -> Any:
        raise RuntimeError("nothing can be timed while kernels are cross-compiled")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"nothing can be launched while kernels are cross-compiled: {name}")


_lock = threading.Lock()
_before: tuple[Any, Any, Any] = (None, None, None)  # the original driver and both run methods
_replaced: list[tuple[Any, str, Any]] = []  # object, attribute, and the original value
_launches: list[Launch] = []
_calls = itertools.count()  # of autotuners


def _leave_to_the_parent() -> None:
    """In a forked child: end the compiling() of another thread, which the child does not have."""
    global _lock
    if _modes.compiling():
        return
    if _modes.compiling_thread is not None:
        _put_back()
    _lock, _modes.compiling_thread = threading.Lock(), None


def _put_back() -> None:
    _drivers._active, triton.JITFunction.run, Autotuner.run = _before
    while _replaced:
        setattr(*_replaced.pop())


os.register_at_fork(after_in_child=_leave_to_the_parent)


def capability() -> int:
    """The architecture for which compiling() compiles."""
    major_minor: int = _drivers._active.capability
    return major_minor


@contextlib.contextmanager
def compiling(capability: int) -> Iterator[list[Launch]]:
    """Launches of any ``@triton.jit`` kernel compile for sm_<capability> and run nothing. An
    autotuned kernel is compiled in every configuration. Without a GPU, host functions that ask
    torch or Triton's driver for it get the description of one with that capability.

    Yields the list of launches, which grows with each one. A kernel that does not compile is
    recorded with its error and does not stop the caller. Only one thread at a time may be inside;
    other threads must not launch Triton kernels meanwhile, because Triton has one driver per
    process.

    Raises:
        RuntimeError: kernels are interpreted, or this thread is already inside.
    """
    global _before, _launches
    if _modes.compiling():
        raise RuntimeError("compiling() cannot be entered twice")
    if _modes.interpreting() or triton.knobs.runtime.interpret:
        raise RuntimeError(
            "kernels are interpreted here and cannot be compiled: unset TRITON_INTERPRET, and "
            "stay outside triton_kernels.interpret()"
        )
    with _lock:
        # .active would look for a GPU.
        _before = _drivers._active, triton.JITFunction.run, Autotuner.run
        _launches = []
        try:
            # First, because a fork relies on it.
            _modes.compiling_thread = threading.get_ident()
            driver = _Driver(capability)
            _drivers.set_active(driver)
            for target, name, value in host_calls.patches(driver.gpu):
                _replaced.append((target, name, vars(target)[name]))
                setattr(target, name, value)
            triton.JITFunction.run, Autotuner.run = _run, _run_every_configuration
            yield _launches
        finally:
            _put_back()
            _modes.compiling_thread = None


def _run(self: Any, *args: Any, grid: Any, warmup: bool, **meta: Any) -> Any:
    """JITFunction.run inside compiling()."""
    if warmup or not _modes.compiling():  # launch() passes warmup; another thread is not inside
        return _before[1](self, *args, grid=grid, warmup=warmup, **meta)
    launch(self, (1, 1, 1), *args, **meta)
    return None


def _run_every_configuration(self: Any, *args: Any, **meta: Any) -> Any:
    """Autotuner.run inside compiling(), where nothing can be timed."""
    if not _modes.compiling():
        return _before[2](self, *args, **meta)
    self.nargs = dict(zip(self.arg_names, args))
    before, number = len(_launches), next(_calls)
    for config in self.prune_configs(meta):
        self.fn.run(*args, **meta, **config.all_kwargs())
    _launches[before:] = [replace(launch, tuned=number) for launch in _launches[before:]]
    self.nargs = None
    return None


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **meta: Any) -> None:
    """Compile the kernel of ``kernel[grid](*args, **meta)``, and record it."""
    name = kernel.fn.__name__
    try:
        compiled = kernel.warmup(*args, grid=grid, **meta)
    except Exception as error:  # noqa: BLE001 (any error of the compiler is recorded)
        _launches.append(Launch(name, meta, error=error))
    else:
        made, shared = compiled.asm, compiled.metadata.shared
        _launches.append(Launch(name, meta, made["cubin"], shared, made))


def tool(name: str) -> Path:
    """NVIDIA's binary tool of that name ("cuobjdump", "nvdisasm") in the Triton wheel."""
    return Path(getattr(triton.knobs.nvidia, name).path)
