"""A GPU's launches, simulated on CPU tensors: compiled kernels that Triton's C launcher starts.

What is started is interpreted, of tensors made of the addresses that come in. So a replayed call is
right only if every argument is.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest
import torch
import triton
from torch import Tensor

from triton_kernels import _elementwise, _known_calls, _launch, _modes, _plans, _replay, interpreter
from triton_kernels.gemm import launch as gemm_launch
from triton_kernels.gemm import repacking


class CudaLauncher:
    """As Triton 3.6's or 3.7's, by the class's name and attributes."""

    global_scratch_size = profile_scratch_size = 0
    launch_cooperative_grid = launch_pdl = False

    def __init__(self, compiled: Compiled, version: str) -> None:
        self._compiled = compiled
        self.launch = self._launch_3_6
        if version == "3.7":
            self.launch = self._launch_3_7
            self.arg_annotations, self.kernel_signature = [], b""

    def _launch_3_6(self, x: int, y: int, z: int, stream: int, function: int, *rest: Any) -> None:
        assert function == 77
        assert rest[:8] == (False, False, None, None, (4, 1, 0), *[None] * 3)
        self._compiled.started((x, y, z), stream, rest[8:])

    def _launch_3_7(self, x: int, y: int, z: int, stream: int, function: int, *rest: Any) -> None:
        assert function == 77
        assert rest[:10] == (False, False, (4, 1, 0), *[None] * 5, [], b"")
        assert len(rest) == 11
        self._compiled.started((x, y, z), stream, rest[10])


class Compiled:
    """What Triton would have compiled for these arguments."""

    function, packed_metadata = 77, (4, 1, 0)

    def __init__(self, machine: Machine, kernel: Any, args: Any, meta: dict[str, Any]) -> None:
        self._machine, self._kernel = machine, kernel
        self._likes = [(a.dtype, a.shape, a.stride()) if isinstance(a, Tensor) else a for a in args]
        names = kernel.arg_names[len(args) :]
        self._count = len(args) + len(names)
        self._options = meta
        self.run = CudaLauncher(self, machine.version)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        """Triton's own runner, in whose hands descriptors are."""
        return lambda *args: self.started(grid, 55, args)

    def started(self, grid: tuple[int, ...], stream: int, given: Any) -> None:
        self._machine.started += 1
        if self._machine.computes:
            assert stream == 55
            assert len(given) == self._count
            args = [_at(a, like) for a, like in zip(given, self._sized(given))]
            self._machine.interpret(self._kernel, grid, args, self._options)

    def _sized(self, given: Any) -> list[Any]:
        """What the arguments were like when it was compiled, with as many elements as now."""
        if "n" not in (names := self._kernel.arg_names):
            return self._likes
        before, now = self._likes[names.index("n")], given[names.index("n")]
        if now == before:
            return self._likes
        return [
            (like[0], (now,), (1,)) if _is_tensor(like) and math.prod(like[1]) == before else like
            for like in self._likes
        ]


def _is_tensor(like: Any) -> bool:
    return isinstance(like, tuple) and bool(like) and isinstance(like[0], torch.dtype)


def _at(address: Any, like: Any) -> Any:
    """The tensor at an address, if it is one. Its shape does not matter to a kernel, its dtype
    does."""
    if not _is_tensor(like) or isinstance(address, Tensor):
        return address
    dtype, shape, strides = like
    size = 1 + sum((n - 1) * s for n, s in zip(shape, strides))
    memory = (ctypes.c_char * (size * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides)


class Machine:
    """What happened on it.

    Attributes:
        compiled, started: how often Triton was asked for a kernel, and one was started.
        computes: whether what is started is interpreted.
    """

    def __init__(self, version: str) -> None:
        self.version = version
        self.compiled = self.started = 0
        self.computes = True

    def interpret(self, kernel: Any, grid: Any, args: Any, meta: dict[str, Any]) -> None:
        with interpreter.interpreting():
            _JITTED(kernel, grid)(*args, **meta)

    def __getitem__(self, kernel: Any, grid: Any) -> Any:
        def launch(*args: Any, **meta: Any) -> Compiled:
            self.compiled += 1
            if self.computes:
                self.interpret(kernel, grid, args, meta)
            return Compiled(self, kernel, args, meta)

        return launch


_JITTED = triton.JITFunction.__getitem__


@contextmanager
def simulated(version: str = "3.7") -> Iterator[Machine]:
    """Inside, CPU tensors are a GPU's to the ops."""
    machine = Machine(version)

    def getitem(kernel: Any, grid: Any) -> Any:
        if _modes.interpreting():
            return _JITTED(kernel, grid)
        return machine.__getitem__(kernel, grid)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton.JITFunction, "__getitem__", getitem)
        patch.setattr(_launch, "check_device", lambda *args: None)
        patch.setattr(_launch, "interpreted", lambda kernel: False)
        patch.setattr(_launch, "current_device", lambda: None)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        patch.setattr(_launch, "current_stream", lambda index: 55)
        patch.setattr(_launch, "_properties", lambda device: _launch.H200)
        patch.setattr(_replay, "DEVICES", ("cpu",))
        patch.setattr(_replay, "_tested", set())
        patch.setattr(_replay, "_wrong", set())
        patch.setattr(_plans, "current_device", lambda: -1)
        patch.setattr(_plans, "current_stream", lambda index: 55)
        patch.setattr(_plans, "empty", torch._C._dynamo.guards._empty_strided_cpu)
        patch.setattr(gemm_launch.availability, "kernels", lambda *_: "tl")
        _forget()
        try:
            yield machine
        finally:
            _forget()


def _forget() -> None:
    _known_calls.forget()
    _launch._compiled.clear()
    for cached in (
        _elementwise._dense,
        _elementwise._along_row,
        _elementwise._prepared,
        _elementwise._walking,
        import_module("triton_kernels.ops.sum_to")._passes,
        import_module("triton_kernels.ops.sum_to")._launching,
        import_module("triton_kernels.ops.act_backward")._prepared,
        gemm_launch._pointer_launch,
        gemm_launch._tma_launch,
        repacking._prepared,
    ):
        cached.cache_clear()
    for name in ("launch", "fma"):  # not every Triton can import them
        module = sys.modules.get(f"triton_kernels.gemm.gluon.{name}")
        if module is not None:
            module._prepared.cache_clear()


def replayed(machine: Machine, call: Callable[[], Any]) -> tuple[Any, bool]:
    """What a call gives, and whether it was replayed: nothing but starts, and no Launch."""
    before = machine.compiled
    with pytest.MonkeyPatch.context() as patch:
        ran: list[Any] = []
        run = _launch.Launch._run

        def noted(self: Any, *args: Any) -> None:
            ran.append(self)
            run(self, *args)

        patch.setattr(_launch.Launch, "_run", noted)
        result = call()
    return result, not ran and machine.compiled == before
