"""Host functions of torch and Triton that launching code calls, for tensors on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.utils._triton
import triton
from triton.backends.compiler import GPUTarget

from triton_kernels import _modes

# Launches for several GPUs are inside ``with torch.cuda.device(x.device.index):``, which without a
# GPU is a no-op. The index of a CPU or meta tensor is None.
_init, _enter, _exit = (
    getattr(torch.cuda.device, name) for name in ("__init__", "__enter__", "__exit__")
)


def _to_no_gpu(self: Any, device: Any) -> None:
    named = isinstance(device, (str, torch.device))
    of_host = named and torch.device(device).type in ("cpu", "meta")
    if of_host or not torch.cuda.is_available():
        self.idx = self.prev_idx = -1
    else:
        _init(self, device)


def _entered(self: Any) -> None:
    if self.idx is not None and self.idx >= 0:
        _enter(self)


def _left(self: Any, *error: Any) -> Any:
    return _exit(self, *error) if self.idx is not None and self.idx >= 0 else False


# Without a GPU, grids and tiles are chosen for this small one.
NO_GPU = SimpleNamespace(
    name="Triton's interpreter",
    major=8,
    minor=0,
    multi_processor_count=4,
    warp_size=32,
    total_memory=2**34,
    L2_cache_size=2**22,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=2**16,
    shared_memory_per_block=48 * 2**10,
    shared_memory_per_block_optin=163 * 2**10,
    shared_memory_per_multiprocessor=164 * 2**10,
    gcnArchName="",
)


class NoStream:
    """Stands in for torch.cuda.Stream and torch.cuda.Event: work is done when its call returns."""

    cuda_stream = cuda_event = device_index = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def _nothing(self, *_: Any) -> None:
        pass

    synchronize = wait = wait_stream = wait_event = record = _nothing

    def record_event(self, event: Any = None) -> Any:
        return NoStream() if event is None else event

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Any) -> float:
        return 0.0


NO_STREAM = NoStream()


def _nothing_to_time() -> Any:
    raise RuntimeError("Triton's interpreter runs on the CPU: there is nothing to time")


def _alike(
    fn: Callable[[], Any],
    warmup: int = 25,
    rep: int = 100,
    grad_to_none: Any = None,
    quantiles: Any = None,
    return_mode: str = "mean",
) -> Any:
    """``do_bench`` for autotuners from elsewhere: every candidate runs once, and all are equally
    fast, so that the first is chosen, as by Triton's own autotuner here."""
    fn()
    if quantiles is not None:
        return [1.0] * len(quantiles) if len(quantiles) > 1 else 1.0
    return [1.0] if return_mode == "all" else 1.0


def like(capability: int, multiprocessors: int, shared_memory: int) -> SimpleNamespace:
    """A description like NO_GPU, of another architecture."""
    major, minor = divmod(capability, 10)
    described = {
        "name": f"sm_{capability}, not present",
        "major": major,
        "minor": minor,
        "multi_processor_count": multiprocessors,
        "shared_memory_per_block_optin": shared_memory,
        "shared_memory_per_multiprocessor": shared_memory + 2**10,
    }
    return SimpleNamespace(**{**vars(NO_GPU), **described})


def properties(gpu: SimpleNamespace) -> dict[str, int]:
    """What Triton's driver says of a described GPU."""
    return {
        "max_shared_mem": gpu.shared_memory_per_block_optin,
        "max_num_regs": gpu.regs_per_multiprocessor,
        "multiprocessor_count": gpu.multi_processor_count,
        "warpSize": gpu.warp_size,
        "sm_clock_rate": 10**6,
        "mem_clock_rate": 10**6,
        "mem_bus_width": 256,
    }


_has_triton = torch.utils._triton.has_triton


def _can_launch() -> bool:
    """``has_triton``, under which modules define their kernels. They may keep it, so it answers for
    the moment of the call."""
    return _modes.interpreting() or _modes.compiling() or _has_triton()


# Stands in for ``triton.runtime.driver.active``, which Triton lacks without a GPU. Pruning
# functions and launchers read the same figures from it, and kernels (``tl.target_info``) their
# target.
NO_GPU_DRIVER = SimpleNamespace(
    is_active=lambda: True,
    get_current_target=lambda: GPUTarget("cuda", 10 * NO_GPU.major + NO_GPU.minor, 32),
    get_current_device=lambda: 0,
    get_current_stream=lambda device=None: NO_STREAM.cuda_stream,
    get_active_torch_device=lambda: torch.device("cpu"),
    get_device_interface=lambda: torch.cuda,
    get_benchmarker=lambda: _alike,
    get_empty_cache_for_benchmark=_nothing_to_time,
    utils=SimpleNamespace(get_device_properties=lambda device=None: properties(NO_GPU)),
)


def patches(gpu: SimpleNamespace = NO_GPU) -> list[tuple[Any, str, Any]]:
    """The patches, each (object, attribute, replacement). Without a GPU that one is described."""
    device: Any = torch.cuda.device
    replaced: list[tuple[Any, str, Any]] = [
        (device, "__init__", _to_no_gpu),
        (device, "__enter__", _entered),
        (device, "__exit__", _left),
    ]
    if torch.cuda.is_available():
        return replaced
    drivers = triton.runtime.driver
    if drivers._active is None:  # no driver is set, for example for cross-compiling
        replaced.append((drivers, "_active", NO_GPU_DRIVER))
    replaced.append((triton.testing, "do_bench", _alike))
    replaced.append((torch.utils._triton, "has_triton", _can_launch))
    answers: dict[str, Callable[..., Any]] = {
        "current_device": lambda: 0,
        "get_device_properties": lambda device=None: gpu,
        "get_device_capability": lambda device=None: (gpu.major, gpu.minor),
        "get_device_name": lambda device=None: gpu.name,
        "synchronize": lambda device=None: None,
        "set_device": lambda device: None,
        "current_stream": lambda device=None: NO_STREAM,
        "default_stream": lambda device=None: NO_STREAM,
        "mem_get_info": lambda device=None: (gpu.total_memory, gpu.total_memory),
        "is_current_stream_capturing": lambda: False,
        "Stream": NoStream,
        "Event": NoStream,
    }
    marks = {name: lambda *_: 0 for name in ("range_push", "range_pop", "mark")}
    replaced += [(torch.cuda.nvtx, name, what) for name, what in marks.items()]
    return replaced + [(torch.cuda, name, what) for name, what in answers.items()]
