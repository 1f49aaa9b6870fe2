"""fuse: wraps a module so that it runs with the fused kernels, by torch.compile's tracer."""

from __future__ import annotations

import inspect
import itertools
import types
import weakref
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
from triton_kernels.graph.checkpoints import call_checkpoints
from triton_kernels.graph.matching import PASSES
from triton_kernels.graph.planning import Options, Plan, rewrite


def fuse(
    module: nn.Module,
    *,
    min_score: float = capabilities.MIN_SCORE,
    passes: Sequence[str] = PASSES,
    measure: bool = True,
    precision: str | None = None,
) -> Fused:
    """A module that computes what ``module`` does, with its linear layers, activations, residuals
    and elementwise chains fused into this package's kernels where these are faster.

    Parameters, buffers and hooks are the module's own. torch.compile's tracer makes the graphs: at
    the first call, and again when a graph is no longer valid, for other shapes, dtypes, modes or
    attributes. Operations that are not fused run as before. The result's ``plan`` describes the
    latest call.

    Inside another trace (torch.compile, torch.export, make_fx, torch.jit.trace), under transforms
    of torch.func and forward-mode derivatives, and with global module hooks it runs the module
    unfused.

    Args:
        module: any module; parts that cannot be traced run as they are.
        min_score: the least expected speed relative to eager's at which a kernel is taken; 0
            fuses everything that can be fused.
        passes: the rewriting passes to run, of "elementwise" and "epilogue".
        measure: whether to time products on the GPU where it is not certain that the kernel is
            faster, 60 ms for each that differs. Without it plans are the same in all processes.
        precision: of float32 products, as in :func:`triton_kernels.gemm_bias_act`. By default it is
            torch's own. With "f16x3", say, products with nothing to fuse are also taken where that
            is faster, and so are those of their gradients.

    Raises:
        TypeError: ``module`` is no torch.nn.Module, or an option has a wrong type.
        ValueError: an unknown pass or precision.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"fuse(): argument 'module' must be a module, not {type(module).__name__}")
    return Fused(module, Options(min_score, passes, measure=measure, precision=precision))


class NoPlanYet(RuntimeError, AttributeError):
    """A fused module that was not called yet has no plan. It is also an AttributeError, for
    hasattr."""

    def __str__(self) -> str:
        return "a fused module has a plan once it has been called"


class Fused(nn.Module):
    """The result of :func:`fuse`. The original module is its child ``module``.

    Attributes, items, the length and the signature of ``forward`` are the original's. Methods of
    the original compute unfused, because they call the original, not this module.
    """

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
        interpreted = _launch.interpreted(_elementwise_kernels.flat_kernel)  # no guard checks it
        call = self._calls.get(interpreted)
        if call is None:
            call = self._calls[interpreted] = compiled(self._options, self._latest)
        return call_compiled(call, _call, self._latest, self.module, *args, **kwargs)

    @property
    def plan(self) -> Plan:
        """The plan of the latest fused call; plans of several graphs are joined.

        Raises:
            RuntimeError: there was no such call yet. The error is also an AttributeError.
        """
        if not self._calls:
            raise NoPlanYet
        steps = [step for plan in self._latest for step in plan.steps]
        return Plan(steps, [line for plan in self._latest for line in plan.left])

    def __getattr__(self, name: str) -> Any:
        if name == "plan":  # Python calls this after the property's AttributeError
            raise NoPlanYet
        try:
            return super().__getattr__(name)
        except AttributeError:
            original = self._original()
            if original is None or name.startswith("_"):  # private attributes are not shared
                raise
            return getattr(original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        original = self._original()
        own = name.startswith("_") or name in self.__dict__ or hasattr(type(self), name)
        if original is not None and not own and name != "module" and hasattr(original, name):
            setattr(original, name, value)
        else:
            super().__setattr__(name, value)
        if name == "module":
            self._take_signature()

    def _original(self) -> nn.Module | None:
        return self.__dict__.get("_modules", {}).get("module")  # None before __init__ has run

    def __len__(self) -> int:
        return len(self.module)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return True  # otherwise bool() would call __len__, which not every module has

    def __getitem__(self, key: Any) -> Any:
        return self.module[key]  # type: ignore[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.module)  # type: ignore[call-overload]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_calls": {}, "_latest": []}  # plans will be made again

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._take_signature()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """For pickle and deepcopy, which cannot find a class made here by its name."""
        if not self._of_own_class():
            return super().__reduce_ex__(protocol)
        return _empty, (), self.__getstate__()

    def _take_signature(self) -> None:
        if self._of_own_class():
            self.__class__ = _class_for(self.module)  # type: ignore[assignment]

    def _of_own_class(self) -> bool:
        """Whether nobody, as fully_shard, gave this object another class."""
        return type(self) is Fused or Fused in type(self).__bases__


def _empty() -> Fused:
    return Fused.__new__(Fused)


_CLASSES: Any = weakref.WeakKeyDictionary()  # a module's class → that of the fused one


def _class_for(module: nn.Module) -> Any:
    """A subclass of Fused whose forward has the signature of the module's. torch.export takes the
    arguments' names from it; transformers' Trainer looks at the class for what the model takes of
    a batch and what of that are labels, and finds questions with answers by the class's name.

    Modules of one class have one, as torch.func.stack_module_state wants, unless a forward was put
    on them.
    """
    kind, own = type(module), "forward" in vars(module)
    if own or kind not in _CLASSES:
        try:
            signature = inspect.signature(module.forward)
        except (TypeError, ValueError):  # of a function in C
            return Fused
        made = _with_signature(f"Fused{kind.__name__}", signature)
        if own:
            return made
        _CLASSES[kind] = made
    return _CLASSES[kind]


def _with_signature(name: str, signature: inspect.Signature) -> Any:
    def forward(self: Fused, *args: Any, **kwargs: Any) -> Any:
        return Fused.forward(self, *args, **kwargs)

    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    names = [this, *signature.parameters.values()]
    forward.__signature__ = signature.replace(parameters=names)  # type: ignore[attr-defined]
    return type(name, (Fused,), {"forward": forward})


def as_written() -> bool:
    """Whether a call must run the model unfused: inside another trace; under a transform of
    torch.func, which torch.compile's tracer cannot trace, then or later; with forward-mode
    derivatives, for which torch has faster formulas; or with global module hooks, which no guard
    checks."""
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
    """A function that calls a module with fused graphs. Each graph appends its plan to ``latest``
    when it runs.

    The function does not refer to the Fused: torch.compile would keep it alive as long as the code.
    """

    def backend(graph: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        plan = rewrite(graph, options)
        logs.note(plan, by)
        call_checkpoints(graph)
        compute = graph.forward
        if latest is None:
            return compute

        def run(*args: Any) -> Any:
            latest.append(plan)
            return compute(*args)

        return run

    call: Callable[..., Any] = torch.compile(own_code(function), backend=backend)
    return call


def call_compiled(
    call: Callable[..., Any],
    plain: Callable[..., Any],
    latest: list[Plan],
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Call a compiled function. ``latest`` becomes the plans of the graphs that ran. Errors are
    those of ``plain``, the function that was compiled."""
    latest.clear()
    try:
        return _with_hook_guards(call, *args, **kwargs)
    except torch._dynamo.exc.TorchRuntimeError:  # the tracer's, of an operation that fails
        if latest:  # the function has run in part: not again
            raise
    return plain(*args, **kwargs)


def own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its own code object: torch.compile stores its results there, and limits how
    often it compiles one code object. Its name differs, too: for code of one name and place
    torch.compile remembers sizes, and takes those for unknown that change between two models."""
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_numbers)}")
    return types.FunctionType(code, function.__globals__)


_numbers = itertools.count()


def _with_hook_guards(call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a compiled function with guards that notice hooks registered later."""
    config = torch._dynamo.config
    unseen = config.skip_nnmodule_hook_guards
    config.skip_nnmodule_hook_guards = False
    try:
        return call(*args, **kwargs)
    finally:
        config.skip_nnmodule_hook_guards = unseen
