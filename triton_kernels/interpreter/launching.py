"""Launches: converts arguments and runs every program of the grid."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import inspect
import math
import operator
import os
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from triton_kernels import _memory, _modes
from triton_kernels.interpreter import imported_names, language, source_lines
from triton_kernels.interpreter.handles import ArgumentPointer, encode, plain, upstream
from triton_kernels.interpreter.memory import Argument
from triton_kernels.interpreter.observers import Launch, Program
from triton_kernels.interpreter.rewriting import rewrite

_reached: contextvars.ContextVar[Mapping[str, torch.Tensor]] = contextvars.ContextVar(
    "reached", default=types.MappingProxyType({})
)


@contextlib.contextmanager
def reaching(memory: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Launches know these tensors, to which addresses in their arguments lead, by name."""
    token = _reached.set(memory)
    try:
        yield
    finally:
        _reached.reset(token)


@dataclasses.dataclass
class _Parameters:
    """The properties of a kernel's signature that a launch needs."""

    signature: inspect.Signature
    constexprs: frozenset[str]
    scalars: dict[str, Any]  # parameter -> its annotated scalar type


@functools.cache
def _parameters(fn: Callable[..., Any]) -> _Parameters:
    signature = inspect.signature(fn)
    constexprs, scalars = [], {}
    for name, parameter in signature.parameters.items():
        if parameter.annotation is inspect.Parameter.empty:
            continue
        annotation = parameter.annotation
        text = annotation if isinstance(annotation, str) else str(annotation)
        if "constexpr" in text or getattr(annotation, "__name__", "") == "constexpr":
            constexprs.append(name)
            continue
        short = triton.runtime.jit._normalize_ty(annotation)
        if re.fullmatch(r"i\d+|u\d+|fp16|bf16|fp32|fp64", short):
            scalars[name] = tl.str_to_ty("i1" if short == "u1" else short, None)
    return _Parameters(signature, frozenset(constexprs), scalars)


def _convert(name: str, value: Any, scalar_type: Any, arguments: list[Argument]) -> Any:
    """A launch argument as the kernel gets it; tensors are added to ``arguments``."""
    if isinstance(value, tuple):
        parts = [_convert(f"{name}[{i}]", v, None, arguments) for i, v in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if hasattr(value, "block_shape") and hasattr(value, "base"):  # TensorDescriptor
        descriptor = upstream._implicit_cvt(value)
        _remember(descriptor.handle.base, name, value.base, arguments)
        return descriptor
    if hasattr(value, "data_ptr"):
        pointer = upstream._implicit_cvt(value)
        _remember(pointer.handle, name, value, arguments)
        return pointer
    if scalar_type is None and isinstance(value, bool):
        scalar_type = tl.int1
    if scalar_type is None and isinstance(value, float):
        scalar_type = tl.float32  # the compiler's type of a Python float
    if scalar_type is not None and isinstance(value, (bool, int, float)):
        with np.errstate(over="ignore"):  # 1e300 is inf in float32
            return tl.tensor(encode(np.array([value]), scalar_type), scalar_type)
    converted = upstream._implicit_cvt(value)
    if isinstance(value, int):  # from 2³¹ on Triton calls it int64 but computes with uint32
        handle = converted.handle
        handle.data = handle.data.astype(upstream._get_np_dtype(handle.dtype))
    return converted


def _remember(handle: Any, name: str, tensor: Any, arguments: list[Argument]) -> None:
    argument = Argument(name, tensor)
    arguments.append(argument)
    old = handle.dtype
    handle.dtype = ArgumentPointer(old.element_ty, old.address_space, old.const)
    handle.dtype.argument = argument


def _tensors(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield from _tensors(value)
        elif hasattr(value, "block_shape") and hasattr(value, "base"):
            yield value.base
        elif hasattr(value, "data_ptr"):
            yield value


MOST_PROGRAMS = 2**31 - 1, 2**16 - 1, 2**16 - 1  # along the axes of a CUDA grid
BYTES_A_PROGRAM = 100  # of a list of programs


_launches = 0


def _programs(sizes: list[int]) -> Iterator[Program]:
    """Programs in the usual order, as an iterator: a list might not fit into memory."""
    x, y, z = map(range, sizes[:3] if 0 not in sizes else (0, 0, 0))
    return ((i, j, k) for i in x for j in y for k in z)


def _listed(kernel: str, sizes: list[int]) -> list[Program]:
    """A list of all programs, for an observer to reorder."""
    asked = BYTES_A_PROGRAM * math.prod(sizes)
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if asked > there:
        raise MemoryError(
            f"kernel {kernel} has {math.prod(sizes)} programs in its grid {tuple(sizes)}; to watch "
            f"them takes a list of {asked / 2**30:.0f} GiB, but there are {there / 2**30:.0f} GiB "
            "of memory"
        )
    return list(_programs(sizes))


def _check_grid(kernel: str, sizes: list[int]) -> None:
    """Refuse a grid that no GPU launches and the interpreter would never finish."""
    if 0 not in sizes and any(n > most for n, most in zip(sizes, MOST_PROGRAMS)):
        raise ValueError(
            f"kernel {kernel} has a grid of {tuple(sizes)} programs, but CUDA launches at most "
            f"{MOST_PROGRAMS}"
        )


def launches() -> int:
    """The number of launches that this process has interpreted."""
    return _launches


def launch(function: Any, args: Any, kwargs: dict[str, Any], grid: Any) -> None:
    """Run every program of a launch, in order."""
    global _launches
    _launches += 1
    parameters = _parameters(function.fn)
    names = parameters.signature.parameters
    bound = parameters.signature.bind(*args, **{k: v for k, v in kwargs.items() if k in names})
    bound.apply_defaults()
    values = dict(bound.arguments)
    kernel = rewrite(function.fn)
    imported_names.bind(kernel)
    for t in _tensors(values.values()):
        base = getattr(t, "base", t)  # a triton.reinterpret() wrapper
        if isinstance(base, torch.Tensor) and not _memory.there(base):
            raise _memory.refusal(function.fn.__name__, "an argument", base)
    given, host, transfer = list(values.values()), list(values.values()), None
    if any(t.device.type != "cpu" for t in _tensors(given)):
        transfer = upstream.GridExecutor(kernel, list(values), grid)
        host, _ = transfer._init_args_hst(given, {})
        values = dict(zip(values, host, strict=True))
    for hook in function.pre_run_hooks:
        hook(**values)
    if callable(grid):
        grid = grid(values)
    sizes = [operator.index(plain(n)) for n in (*grid, 1, 1, 1)[: max(3, len(grid))]]

    name = function.fn.__name__
    _check_grid(name, sizes)

    arguments: list[Argument] = []
    reached = [Argument(key, tensor) for key, tensor in _reached.get().items()]
    converted = {
        key: value
        if key in parameters.constexprs
        else _convert(key, value, parameters.scalars.get(key), arguments)
        for key, value in values.items()
    }
    builder = upstream.interpreter_builder
    builder.arguments = (*arguments, *reached)
    builder.set_grid_dim(*sizes)
    observer = builder.observer
    programs: Iterable[Program] = _programs(sizes)
    if observer is not None:
        options = {key: value for key, value in kwargs.items() if key not in names}
        begins = Launch(name, tuple(sizes), builder.arguments, function, values, options)
        observer.launch(begins)
        programs = observer.order(begins, _listed(name, sizes))
    try:
        with np.errstate(all="ignore"):
            for program in programs:
                if observer is not None and not observer.wants(program):
                    continue
                builder.set_grid_idx(*program)
                try:
                    source_lines.run(kernel, converted)
                except Exception as error:
                    error.add_note(f"in program {program} of kernel {name}")
                    raise
    finally:
        builder.alive = None  # else the tensors would stay alive
    if transfer is not None:
        transfer._restore_args_dev(given, host, {}, {})


def run_jit(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    """JITFunction.run, interpreted."""
    if not warmup:
        launch(self, args, kwargs, grid)


def call_jit(self: Any, *args: Any, **kwargs: Any) -> Any:
    """A jit function called from a kernel."""
    if self.fn is getattr(getattr(tl, "flip", None), "fn", None):
        return language.flip(*args, **kwargs)
    function = rewrite(self.fn)
    imported_names.bind(function)
    return function(*args, **kwargs)


def run_autotuner(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the configuration that was asked for, or the first that pruning leaves. Nothing is timed,
    and no driver is needed."""
    named = dict(zip(self.arg_names, args, strict=False))
    configs = self.configs
    if self.early_config_prune:
        configs = self.early_config_prune(configs, named, **kwargs)
    config, asked = configs[0], _modes.configured()
    if asked is not None:
        differing = _differing(self, configs)
        config = differing[asked.number % len(differing)]
        asked.most = max(asked.most, len(differing))
        asked.chosen[_name(self)] = ", ".join(f"{k}={v}" for k, v in config.kwargs.items())
    self.best_config = config  # callers read it after the launch
    if config.pre_hook is not None:
        config.pre_hook({**named, **kwargs, **config.all_kwargs()})
    return self.fn.run(*args, **kwargs, **config.all_kwargs())


def _differing(autotuner: Any, configs: Iterable[Any]) -> list[Any]:
    """The configurations without those that are the same to the interpreter: they differ only in
    options of the compiler, such as num_warps, which neither the kernel nor a heuristic sees."""
    sees_all = hasattr(autotuner.fn, "values")  # Heuristics
    seen: dict[Any, Any] = {}
    for config in configs:
        visible = {
            name: str(value)
            for name, value in config.all_kwargs().items()
            if sees_all or name in config.kwargs or name in autotuner.arg_names
        }
        seen.setdefault((tuple(sorted(visible.items())), config.pre_hook), config)
    return list(seen.values())


def _name(kernel: Any) -> str:
    while not hasattr(kernel, "__name__"):
        kernel = kernel.fn
    return str(kernel.__name__)
