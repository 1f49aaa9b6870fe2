"""A machine without a GPU, for functions that ask for one."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode,
    _push_mode,
)

from compare.cases import CPU, META

_IS_CUDA = Tensor.is_cuda.__get__  # type: ignore[attr-defined]
_DEVICE = Tensor.device.__get__  # type: ignore[attr-defined]
# What a tensor on a GPU says of itself.
_WHERE = {_IS_CUDA: True, _DEVICE: torch.device("cuda", 0), Tensor.get_device: 0}
_CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
# Namespaces of operators that torch itself wrote in Python: their fakes are what others build on.
_OF_TORCH = ("aten", "prims", "rngprims")
_OURS = ("compare", "cuda_reference", "torch", "triton", "triton_kernels")


class WithoutGpu(TorchFunctionMode):
    """On a machine without a GPU, allocations that ask for one go to another device: functions that
    launch kernels often pass ``device="cuda"``. Tensors then say that they are on a GPU, and torch
    that there is one, because some functions assert it or else launch nothing; torch and these
    packages still see the truth. Operators that Python registered for CUDA alone run there, too. On
    meta all that Python registered run, not their fakes.
    """

    def __init__(self, device: torch.device = CPU) -> None:
        super().__init__()
        self._device = None if torch.cuda.is_available() else device
        self._changes = contextlib.ExitStack()
        self._registered: set[OpOverload] = set()

    def __enter__(self) -> Any:
        # What is made here outlives the mode as garbage, and must not keep its tensors.
        changed = [] if self._device is None else _answers(functools.partial(_there, self._device))
        for owner, name, value in [*changed, *self._in_backward()]:
            self._changes.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._changes.close()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._device is None or torch.compiler.is_compiling():
            return func(*args, **kwargs)
        if func in _WHERE and args[0].device.type == self._device.type:
            return _WHERE[func] if _foreign(_asked_by()) else func(*args, **kwargs)
        if isinstance(func, (OpOverload, OpOverloadPacket)):
            for overload in _overloads(func):
                self._register(overload)
        if func is Tensor.cuda:
            return args[0].to(self._device)
        if func is Tensor.pin_memory:
            return args[0]
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        if func is Tensor.to and len(args) > 1:
            args = (args[0], self._there(args[1]), *args[2:])
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": self._there(kwargs["device"])}
        return func(*args, **kwargs)

    def _in_backward(self) -> list[tuple[Any, str, Any]]:
        """torch leaves the mode for a call of backward(), which is a torch function itself; the
        functions' own backward() is inside again."""
        name = "_engine_run_backward"
        run = vars(torch.autograd).get(name)
        if run is None:
            return []

        def inside(*args: Any, **kwargs: Any) -> Any:
            if self in _get_current_function_mode_stack():
                return run(*args, **kwargs)
            _push_mode(self)
            try:
                return run(*args, **kwargs)
            finally:
                _pop_mode()

        return [(torch.autograd, name, inside)]

    def _register(self, overload: OpOverload) -> None:
        """Until the end of the mode, run an operator's kernel in Python for CUDA on the CPU, if it
        has none there, or on meta, in place of its fake, which launches nothing."""
        key = "Meta" if self._device == META else "CPU"
        if overload in self._registered or not _in_python(overload, lacking=key):
            return
        self._registered.add(overload)
        library = torch.library.Library(overload.namespace, "IMPL")
        name = overload.name().partition("::")[2]
        on_cuda = functools.partial(overload.redispatch, _CUDA)
        library.impl(name, on_cuda, key, allow_override=True)
        self._changes.callback(library._destroy)
        self._changes.callback(self._registered.discard, overload)

    def _there(self, device: Any) -> Any:
        return _there(self._device, device)


def _there(instead: Any, device: Any) -> Any:
    """The replacement for a GPU, which may be given as a number; other devices unchanged."""
    if isinstance(device, str):
        on_gpu = device.partition(":")[0] == "cuda"
    elif isinstance(device, torch.device):
        on_gpu = device.type == "cuda"
    else:
        on_gpu = isinstance(device, int) and not isinstance(device, bool)
    return instead if on_gpu else device


def _asked_by() -> str:
    """The module that called the current torch function, past all modes that were entered."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name in ("_asked_by", "__torch_function__"):
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


def _overloads(operator: OpOverload | OpOverloadPacket) -> list[OpOverload]:
    if isinstance(operator, OpOverload):
        return [operator]
    return [getattr(operator, name) for name in operator.overloads()]


def _in_python(overload: OpOverload, lacking: str) -> bool:
    """Whether a function in Python is what runs on CUDA. For the CPU only if none runs there."""
    if overload.namespace in _OF_TORCH:
        return False
    name = overload.name()
    there = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    if not there(name, "CUDA") or (lacking == "CPU" and there(name, "CPU")):
        return False
    # A kernel for CUDA goes before one for all devices.
    dump = torch._C._dispatch_dump(name)
    for key in ("CUDA", r"CompositeExplicitAutograd\[alias\]"):
        registered = re.search(rf"^{key}: registered at (.*?):\d+ ", dump, re.M)
        if registered is not None:
            return not registered[1].endswith((".cpp", ".cu", ".h"))
    return False


def _foreign(module: str) -> bool:
    return module.partition(".")[0] not in _OURS


def _answers(there: Callable[[Any], Any]) -> list[tuple[Any, str, Any]]:
    """What torch answers to functions from elsewhere: (object, attribute, value)."""

    def asked(owner: Any, name: str, answer: Any) -> tuple[Any, str, Any]:
        truth = getattr(owner, name)

        def called(*args: Any, **kwargs: Any) -> Any:
            foreign = _foreign(str(sys._getframe(1).f_globals.get("__name__", "")))
            return answer if foreign else truth(*args, **kwargs)

        return owner, name, called

    class AnyGenerator(type(torch.Generator)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, generator)

    class Generator(torch.Generator, metaclass=AnyGenerator):
        def __new__(cls, device: Any = "cpu") -> Any:
            return generator(there(device))

    generator = torch.Generator
    return [
        asked(torch.cuda, "is_available", True),
        asked(torch.cuda, "device_count", 1),
        asked(torch.cuda, "is_bf16_supported", True),
        asked(torch.accelerator, "is_available", True),
        asked(torch.accelerator, "device_count", 1),
        asked(torch.accelerator, "current_accelerator", torch.device("cuda")),
        asked(torch.accelerator, "current_device_index", 0),
        asked(torch.accelerator, "synchronize", None),
        (torch, "Generator", Generator),
        (Tensor, "record_stream", lambda tensor, stream: None),
        (torch.cuda, "get_rng_state", lambda device="cuda": torch.get_rng_state()),
        (torch.cuda, "set_rng_state", lambda state, device="cuda": torch.set_rng_state(state)),
    ]
