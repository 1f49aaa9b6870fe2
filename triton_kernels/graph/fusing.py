"""fuse: a module that computes the same with the fused kernels, by torch.compile's tracer."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.fx import GraphModule
from torch.fx._symbolic_trace import is_fx_symbolic_tracing
from torch.nn.modules import module as torch_module

from triton_kernels import _elementwise_kernels, _launch
from triton_kernels.graph import capabilities, logs
from triton_kernels.graph.matching import PASSES
from triton_kernels.graph.planning import Options, Plan, rewrite


def fuse(
    module: nn.Module,
    *,
    min_score: float = capabilities.MIN_SCORE,
    passes: Sequence[str] = PASSES,
) -> Fused:
    """A module that computes what ``module`` does, with its linear layers, activations, residuals
    and elementwise chains fused into this package's kernels where these are faster.

    Parameters, buffers and hooks are the module's own. torch.compile's tracer makes the graphs, at
    the first call and whenever one no longer holds: for other shapes, dtypes, modes, attributes.
    What is left runs as it did. ``plan`` of the result says what became of the latest call.

    Inside somebody else's trace (torch.compile, torch.export, make_fx, torch.jit.trace) it is the
    plain module, and so it is under transforms of torch.func, forward-mode derivatives and hooks of
    all modules.

    Args:
        module: any; what cannot be traced of it stays as it is.
        min_score: the least expected speed relative to eager's at which a kernel is taken; 0
            fuses everything that can be.
        passes: the rewriting passes that run, of "elementwise" and "epilogue".

    Raises:
        TypeError: ``module`` is no torch.nn.Module, or an option has a wrong type.
        ValueError: an unknown pass.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"fuse(): argument 'module' must be a module, not {type(module).__name__}")
    return Fused(module, Options(min_score, passes))


class NoPlanYet(RuntimeError, AttributeError):
    """The plan of a fused module that was not called yet; hasattr takes it for missing."""

    def __str__(self) -> str:
        return "a fused module has a plan once it has been called"


class Fused(nn.Module):
    """What :func:`fuse` returns. The original is its child ``module``, and attributes, items and
    the length are the original's; its methods compute unfused, as they call it and not this."""

    def __init__(self, module: nn.Module, options: Options) -> None:
        super().__init__()
        self.module = module
        self.training = module.training
        self._options = options
        self._calls: dict[bool, Callable[..., Any]] = {}
        self._latest: list[Plan] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if as_written():
            return self.module(*args, **kwargs)
        interpreted = _launch.interpreted(_elementwise_kernels.flat_kernel)  # no guard knows of it
        call = self._calls.get(interpreted)
        if call is None:
            call = self._calls[interpreted] = compiled(self._options, self._latest)
        self._latest.clear()
        return with_hook_guards(call, self.module, *args, **kwargs)

    @property
    def plan(self) -> Plan:
        """The plan of the latest call that was fused; of several graphs, one after the other.

        Raises:
            RuntimeError: there was none yet. It is an AttributeError, too, for who asks hasattr.
        """
        if not self._calls:
            raise NoPlanYet
        steps = [step for plan in self._latest for step in plan.steps]
        return Plan(steps, [line for plan in self._latest for line in plan.left])

    def __getattr__(self, name: str) -> Any:
        if name == "plan":  # of an AttributeError in a property Python asks here again
            raise NoPlanYet
        try:
            return super().__getattr__(name)
        except AttributeError:
            original = self._original()
            if original is None or name.startswith("_"):  # what is private is of one module
                raise
            return getattr(original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        original = self._original()
        own = name.startswith("_") or name in self.__dict__ or hasattr(type(self), name)
        if original is not None and not own and name != "module" and hasattr(original, name):
            setattr(original, name, value)
        else:
            super().__setattr__(name, value)

    def _original(self) -> nn.Module | None:
        return self.__dict__.get("_modules", {}).get("module")  # None before __init__ has run

    def __len__(self) -> int:
        return len(self.module)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return True  # a module without a length has none to ask for

    def __getitem__(self, key: Any) -> Any:
        return self.module[key]  # type: ignore[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.module)  # type: ignore[call-overload]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_calls": {}, "_latest": []}  # plans are made again


def as_written() -> bool:
    """Whether a call must run what the model's author wrote: somebody else traces it, torch.func
    transforms it, of which torch.compile's tracer makes no graph, then or later, derivatives go
    forward, which no kernel has, or hooks see every module, which no guard notices."""
    if torch.compiler.is_compiling() or is_fx_symbolic_tracing() or torch.jit.is_tracing():  # type: ignore[attr-defined]
        return True
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    return forward_ad._current_level >= 0 or bool(torch_module._has_any_global_hook())


def _call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    return module(*args, **kwargs)


def compiled(
    options: Options,
    latest: list[Plan] | None = None,
    *,
    by: str = "fuse",
    function: Callable[..., Any] = _call,
) -> Callable[..., Any]:
    """A function that calls a module, fused; each of its graphs notes its plan when it runs.

    Nothing here holds the Fused, which torch.compile would keep alive as long as the code.
    """

    def backend(graph: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        plan = rewrite(graph, options)
        logs.note(plan, by)
        compute = graph.forward
        if latest is None:
            return compute

        def run(*args: Any) -> Any:
            latest.append(plan)
            return compute(*args)

        return run

    call: Callable[..., Any] = torch.compile(own_code(function), backend=backend)
    return call


def own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with code of its own: torch.compile counts how often it has compiled the same
    code, and keeps what it made of it there."""
    code = function.__code__.replace()
    return types.FunctionType(code, function.__globals__)


def with_hook_guards(call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """A call of what torch.compile made, in which hooks registered later are noticed."""
    config = torch._dynamo.config
    unseen = config.skip_nnmodule_hook_guards
    config.skip_nnmodule_hook_guards = False
    try:
        return call(*args, **kwargs)
    finally:
        config.skip_nnmodule_hook_guards = unseen
